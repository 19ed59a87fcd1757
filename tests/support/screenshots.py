"""Takes the pictures of docs/images from a built site: `python tests/support/screenshots.py build/site`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import browser

IMAGES = Path(__file__).parents[2] / "docs/images"
PAGES = {
    "entry": "entry-points/fused_recurrent_kda_replayssm_decode/",
    "error": "errors/sparse_prefill/head-dim-mismatch/",
}
SIZES = {1280: 1500, 390: 1800}
#: Reader's preference to the name that Material gives it.
SCHEMES = {"light": "default", "dark": "slate"}
#: Whether all that the page shows has been loaded.
READY = "[...document.images].every((i) => i.complete) && document.fonts.status === 'loaded'"


def views(page: browser.Page, base: str) -> Iterator[str]:
    """Shows one page after the other in each size and scheme, and gives the name of the picture."""
    for name, path in PAGES.items():
        for scheme, palette in SCHEMES.items():
            for width, height in SIZES.items():
                page.show(width, height, scheme)
                page.open(f"{base}/{path}")
                page.wait(f"{READY} && document.body.dataset.mdColorScheme === '{palette}'")
                yield f"{name}-{scheme}-{width}.png"


def main(site: Path) -> None:
    """Take all pictures.

    Args:
        site: Folder of the built site.
    """
    IMAGES.mkdir(exist_ok=True)
    with browser.served(site) as base, browser.page() as page:
        for name in views(page, base):
            (IMAGES / name).write_bytes(page.screenshot())
            sys.stdout.write(f"{IMAGES / name}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
