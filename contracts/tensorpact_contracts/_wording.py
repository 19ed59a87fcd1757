"""Words of messages that depend on a number."""


def counted(number: int, one: str, many: str = "") -> str:
    """A number and what it counts: ``1 query``, ``2 queries``.

    Args:
        number: How many.
        one: What one of them is called.
        many: What several are called; with an s by default.
    """
    return f"{number} {one if number == 1 else many or one + 's'}"
