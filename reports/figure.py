"""What every plot of a report has in common: size, style, and how matplotlib's SVG becomes ours.

The SVG is matplotlib's, rebuilt: colours follow the page (``currentColor`` and CSS variables with
fallbacks, so that dark mode and print work), identifiers are unique to each plot, style sheets and
metadata are gone, and a label says in words what the picture shows. The same data always give
the same text.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import matplotlib.style
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator

# so narrow that it can be read on a phone as it is, and three stand side by side on a desk
WIDTH = 3.7  # inches
ROW_HEIGHT = 0.165  # inches, where a row is a line of text
LABEL_LIMIT = 26  # characters of a row's label

# Stand-ins that matplotlib accepts as colours, and what the page shows in their place
INK, OBSERVED, DRAFT, BAND, BAD = "#010203", "#010204", "#010205", "#010206", "#010207"
_COLOURS = {
    INK: "currentColor",
    OBSERVED: "var(--plot-observed,#5f93d1)",
    DRAFT: "var(--plot-draft,#b3541e)",
    BAND: "var(--plot-band,#8a94a3)",
    BAD: "var(--plot-bad,#c0182a)",
}
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "specdec-conformance",
    # a label is text: `$x$` is not mathematics, and nothing is handed to TeX
    "text.parse_math": False,
    "text.usetex": False,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "font.size": 8.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
}
_REFERENCE = re.compile(r"url\(#([^)]*)\)")
_GEOMETRY = frozenset({"d", "x", "y", "width", "height", "viewBox", "points", "transform"})
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


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
    prefix = "p" + hashlib.sha256(identity.encode()).hexdigest()[:8]
    _rebuild(root, prefix)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("xmlns", "http://www.w3.org/2000/svg")
    root.set("role", "img")
    root.set("aria-label", summary)
    return ET.tostring(root, encoding="unicode")


def row_lines(axes: Any, rows: int) -> None:
    """Faint lines along rows 0, 1, ... as one path, and no ticks beside their labels."""
    points = [(x, i) for i in range(rows) for x in (0.0, 1.0)]
    outline = Outline(points or [(0, 0)], [Outline.MOVETO, Outline.LINETO] * rows or None)
    style = {"edgecolor": BAND, "alpha": 0.25, "linewidth": 0.5, "facecolor": "none", "zorder": 0}
    axes.add_patch(PathPatch(outline, transform=axes.get_yaxis_transform(), **style))
    axes.tick_params(axis="y", left=False)


def legend(figure: Any, axes: Any, columns: int = 3) -> None:
    """A legend of the axes' parts along the top of the figure."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="upper left",
            bbox_to_anchor=(0, 1),
            ncols=columns,
            borderaxespad=0.1,
            borderpad=0,
            handlelength=1.2,
            handletextpad=0.4,
            columnspacing=1.0,
            labelspacing=0.25,
        )


def new_figure(height: float) -> Any:
    """A figure of the common width; both sides in inches."""
    return Figure(figsize=(WIDTH, height))


def label_margin(labels: Iterable[str]) -> float:
    """The share of the width that labels take, by arithmetic."""
    longest = max((min(len(label), LABEL_LIMIT) for label in labels), default=0)
    return min(0.45, (0.12 + 0.062 * longest) / WIDTH)


def _rebuild(root: ET.Element, prefix: str) -> None:
    """Drop what a page does not need and make identifiers and colours the page's own."""
    used = dict.fromkeys(
        name
        for element in root.iter()
        for key, value in element.attrib.items()
        for name in (
            [value.removeprefix("#")] if key.endswith("href") else _REFERENCE.findall(value)
        )
    )
    names = {name: f"{prefix}-{i}" for i, name in enumerate(used)}
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
            kept = _attribute(name, value, names)
            if kept is not None:
                element.set(name, kept)
        if element.tag != "text" and not (element.text or "").strip():
            element.text = None
        element.tail = None
    _flatten(root)


def _attribute(name: str, value: str, names: dict[str, str]) -> str | None:
    """An attribute as the page has it; None where it goes. `names` are the identifiers in use."""
    match name:
        case "id":
            return names.get(value)
        case "href":
            return f"#{names[value.removeprefix('#')]}"
        case "style":
            return _restyle(value)
        case "transform" if value.startswith("rotate(-0 "):
            return None
        case _ if name in _GEOMETRY:
            return " ".join(_NUMBER.sub(_shortened, value).split())
    return _REFERENCE.sub(lambda m: f"url(#{names[m[1]]})", value)


def _flatten(parent: ET.Element) -> None:
    """Take out groups that say nothing, and say once what neighbours have in common."""
    for child in list(parent):
        _flatten(child)
    children: list[ET.Element] = []
    for child in parent:
        if child.tag == "g" and not child.attrib:
            children.extend(child)
        elif child.tag not in ("g", "defs") or len(child):
            children.append(child)
    parent[:] = []
    for _, alike in groupby(children, key=lambda e: (e.tag, e.get("style"))):
        mine = list(alike)
        if mine[0].tag in ("use", "text") and mine[0].get("style") and len(mine) > 1:
            group = ET.SubElement(parent, "g", style=mine[0].attrib["style"])
            for element in mine:
                del element.attrib["style"]
            group.extend(mine)
        else:
            parent.extend(mine)


def _shortened(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def _restyle(style: str) -> str:
    kept = []
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":
            # "8px 'DejaVu Sans', ...": the size is ours, the family the page's
            kept.append(f"font-size:{value.split()[0]}")
        elif name and name != "font-family":
            kept.append(f"{name}:{_COLOURS.get(value, value)}")
    return ";".join(kept)
