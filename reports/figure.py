"""What every plot of a report has in common: size, style, and how matplotlib's SVG becomes ours.

The SVG is matplotlib's, rebuilt: colours follow the page (``currentColor`` and CSS variables with
fallbacks, so that dark mode and print work), identifiers are unique to each plot, style sheets and
metadata are gone, and a title says in words what the picture shows. The same data always give
the same text.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

import matplotlib.style
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator

# so narrow that it can be read on a phone as it is, and three stand side by side on a desk
WIDTH = 4.7  # inches

# Stand-ins that matplotlib accepts as colours, and what the page shows in their place
INK, OBSERVED, DRAFT, BAND, BAD = "#010203", "#010204", "#010205", "#010206", "#010207"
_COLOURS = {
    INK: "currentColor",
    OBSERVED: "var(--plot-observed, #5f93d1)",
    DRAFT: "var(--plot-draft, #b3541e)",
    BAND: "var(--plot-band, #8a94a3)",
    BAD: "var(--plot-bad, #c0182a)",
}
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "specdec-conformance",
    # a label is text: `$x$` is not mathematics, and nothing is handed to TeX
    "text.parse_math": False,
    "text.usetex": False,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "font.size": 9.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}
_REFERENCE = re.compile(r"url\(#([^)]*)\)")


def matplotlib_style() -> Any:
    """Matplotlib's defaults, with this report's style on top, for as long as the context lasts."""
    # "default" first: a user's own matplotlibrc must not reach a report
    return matplotlib.style.context(["default", _STYLE])


def marker(shape: str, colour: str, size: float, edge: float) -> dict[str, Any]:
    """Hollow markers without a line."""
    return {
        "linestyle": "none",
        "marker": shape,
        "markersize": size,
        "markeredgewidth": edge,
        "markeredgecolor": colour,
        "markerfacecolor": "none",
    }


def bar_columns(
    left: Sequence[float], width: float, heights: Sequence[float], label: str = ""
) -> PathPatch:
    """All columns as one path: a tenth of the text that as many rectangles would take."""
    points: list[tuple[float, float]] = []
    for x, height in zip(left, heights, strict=True):
        points += [(x, 0), (x, height), (x + width, height), (x + width, 0), (x, 0)]
    codes = [Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY] * len(heights)
    # an outline without any point is refused
    outline = Outline(points or [(0, 0)], codes or [Outline.MOVETO])
    return PathPatch(outline, facecolor=OBSERVED, linewidth=0, label=label, zorder=1)


def count_axis(axes: Any, values: Sequence[float]) -> None:
    """A vertical axis of counts, from 0."""
    axes.set_ylim(0, 1.08 * max([1.0, *values]))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def to_svg(figure: Any, summary: str, identity: str) -> str:
    """Write a figure as an ``<svg>`` element that may stand in an HTML page as it is.

    Parameters
    ----------
    figure : Figure
        Matplotlib's.
    summary : str
        What it shows, in words.
    identity : str
        Everything that it is made from; figures with the same identity share identifiers.
    """
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # the reader's own fonts draw the text; that matplotlib's lack a glyph does not matter
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    root = ET.fromstring(buffer.getvalue())
    prefix = "p" + hashlib.sha256(identity.encode()).hexdigest()[:10]
    _rebuild(root, prefix)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("xmlns", "http://www.w3.org/2000/svg")
    root.set("role", "img")
    root.set("aria-label", summary)
    title = ET.Element("title")
    title.text = summary
    root.insert(0, title)
    return ET.tostring(root, encoding="unicode")


def legend(axes: Any, columns: int = 3) -> None:
    """A legend above the axes, whose first column begins where the axes do."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        borderpad=0,
        handlelength=1.3,
        handletextpad=0.5,
        columnspacing=1.2,
        fontsize=8,
    )


def new_figure(height: float) -> Any:
    """A figure of the common width; both sides in inches."""
    return Figure(figsize=(WIDTH, height))


def _rebuild(root: ET.Element, prefix: str) -> None:
    """Drop what a page does not need and make identifiers and colours the page's own."""
    used = {
        name
        for element in root.iter()
        for key, value in element.attrib.items()
        for name in (
            [value.removeprefix("#")] if key.endswith("href") else _REFERENCE.findall(value)
        )
    }
    for parent in list(root.iter()):
        for child in list(parent):
            # a style sheet inside the SVG would apply to the whole page
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = dict(element.attrib)
        element.attrib.clear()
        for key, value in attributes.items():
            name = key.rpartition("}")[2]
            if name == "id":
                if value in used:
                    element.set("id", f"{prefix}-{value}")
            elif name == "href":
                element.set("href", f"#{prefix}-{value.removeprefix('#')}")
            elif name == "style":
                element.set("style", _restyle(value))
            else:
                element.set(name, _REFERENCE.sub(rf"url(#{prefix}-\1)", value))
        if element.tag != "text" and not (element.text or "").strip():
            element.text = None
        element.tail = None


def _restyle(style: str) -> str:
    kept = []
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":
            # "8px 'DejaVu Sans', ...": the size is ours, the family the page's
            kept.append(f"font-size: {value.split()[0]}")
        elif name and name != "font-family":
            kept.append(f"{name}: {_COLOURS.get(value, value)}")
    return "; ".join(kept)
