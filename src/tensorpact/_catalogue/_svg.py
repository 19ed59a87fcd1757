"""Pieces of a plain SVG: escaped text, boxes, edges, and a style that reads on light and on dark ground."""

import colorsys
from collections.abc import Iterable
from html import escape

#: Widths of a character, in pixels, of the monospaced and of the proportional face at their sizes.
MONO, SANS = 7.3, 5.9
_HUES = (212, 28, 145, 330, 268, 186, 52, 0, 98, 240, 300, 165)


def hue_count() -> int:
    """How many dims can have a colour of their own."""
    return len(_HUES)


def _colour(hue: int, saturation: float, light: float) -> str:
    red, green, blue = colorsys.hls_to_rgb(hue / 360, light, saturation)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _ground(page: str, ink: str, quiet: str, line: str, plain: str) -> str:
    return (
        f".page{{fill:{page}}}.ink{{fill:{ink}}}.quiet{{fill:{quiet}}}.plain{{fill:{plain};stroke:{line}}}"
        f".line{{stroke:{line};fill:none}}.dot{{fill:{quiet};stroke:{quiet}}}.ring{{fill:{page};stroke:{quiet}}}"
        f".link{{stroke:{quiet}}}"
    )


def _hues(saturation: float, fill: float, stroke: float) -> str:
    return "".join(
        f".d{i}{{fill:{_colour(h, saturation, fill)};stroke:{_colour(h, saturation, stroke)}}}"
        f".e{i}{{stroke:{_colour(h, saturation, stroke)}}}"
        for i, h in enumerate(_HUES)
    )


LIGHT = _ground("#ffffff", "#1b1f24", "#57606a", "#b6bec8", "#f6f8fa") + _hues(0.6, 0.87, 0.42)
DARK = _ground("#0d1117", "#e6edf3", "#9aa4af", "#4a525c", "#161b22") + _hues(0.42, 0.27, 0.62)
_SHARED = (
    "text{stroke:none}.mono{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    ".sans{font:11px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}"
    ".title{font:bold 14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    ".edge{fill:none;stroke-width:1.4;opacity:.75}.none{fill:none}.dash{stroke-dasharray:4 3}"
)


def document(width: float, height: float, title: str, says: str, shapes: Iterable[str], scheme: str = "auto") -> str:
    """A whole SVG file.

    Args:
        width: Width in pixels.
        height: Height in pixels.
        title: Name of the picture, for readers that do not see it.
        says: What it shows, for the same readers.
        shapes: Elements, those behind first.
        scheme: ``"auto"`` follows the reader's preference; ``"light"`` and ``"dark"`` are fixed.
    """
    grounds = {"auto": f"{LIGHT}@media(prefers-color-scheme:dark){{{DARK}}}", "light": LIGHT, "dark": DARK}
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
        f' height="{height:.0f}" role="img" aria-labelledby="title says">\n'
        f'<title id="title">{escape(title)}</title>\n<desc id="says">{escape(says)}</desc>\n'
        f"<style>{_SHARED}{grounds[scheme]}</style>\n"
        f'<rect class="page" width="100%" height="100%"/>\n{body}\n</svg>\n'
    )


def text(x: float, y: float, shown: str, style: str = "mono ink", anchor: str = "start", turned: bool = False) -> str:
    """A line of text whose baseline is at ``y``; turned, it reads upwards."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(shown)}</text>'


def box(x: float, y: float, width: float, height: float, style: str, says: str = "", radius: float = 4) -> str:
    """A rectangle, with a tooltip where it says something."""
    tip = f"<title>{escape(says)}</title>" if says else ""
    rect = f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}"'
    return f"{rect}>{tip}</rect>" if tip else f"{rect}/>"


def circle(x: float, y: float, radius: float, style: str) -> str:
    """A dot."""
    return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def upright(x: float, top: float, bottom: float, style: str) -> str:
    """A vertical line."""
    return f'<path class="{style}" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>'


def across(x: float, y: float, to_x: float, to_y: float, style: str) -> str:
    """An edge that leaves to the right and arrives from the left."""
    middle = (x + to_x) / 2
    bends = f"{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f}"
    return f'<path class="edge {style}" d="M{x:.1f} {y:.1f}C{bends} {to_x:.1f} {to_y:.1f}"/>'


def around(x: float, y: float, to_x: float, to_y: float, reach: float, style: str) -> str:
    """An edge between two boxes of one column, around their right sides; it ends in an arrow."""
    out = max(x, to_x) + reach
    return (
        f'<path class="edge {style}" d="M{x:.1f} {y:.1f}C{out:.1f} {y:.1f} {out:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}'
        f'm6 -4l-6 4l6 4"/>'
    )


def shortened(shown: str, most: int) -> str:
    """Text of at most so many characters."""
    return shown if len(shown) <= most else f"{shown[: most - 1].rstrip()}…"
