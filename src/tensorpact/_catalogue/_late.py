"""What the note of an error says that was found behind its call."""

import re

_NOTE = re.compile(
    r"found (?:by the asynchronous check (?:of call (?P<call>\d+), which was let through"
    r"|in run (?P<run>\d+) of the launch captured as call (?P<launch>\d+))"
    r"|in the kernel (?:of call (?P<masked>\d+)|captured as call (?P<captured>\d+)), which masked it)"
)


def late_note(text: str) -> str:
    """Explain the note of an error that was found behind its call; empty where a text has none.

    Args:
        text: A message with its note, a traceback, or the note alone.
    """
    found = _NOTE.search(text)
    if found is None:
        return ""
    if found["masked"] or found["captured"]:
        of = f"call {found['masked']}" if found["masked"] else f"the launch captured as call {found['captured']}"
        how = f"The kernel of {of} met the number, masked it and told of it: the result of its row counts for nothing."
    elif found["run"]:
        how = (
            f"Run {found['run']} of the launch that was captured as call {found['launch']} had the number in a buffer."
        )
    else:
        how = f"Call {found['call']} had the number in device memory and ran: its result counts for nothing."
    return f"""# A note of a late error

```text
{found[0]}
```

{how}

Another call, `tensorpact.poll()` or `tensorpact.synchronize()` raised the error, so the traceback is not that of the
call; the message above the note says what was wrong. Calls are counted in the process, from 1 on.

- `tensorpact.value_checks("async", stacks=True)` keeps the stack of each call for the note.
- `tensorpact.value_checks("sync")` raises in the call itself, and waits for the device.
"""
