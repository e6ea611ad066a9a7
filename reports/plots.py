"""Plots as inline SVG: observed against expected counts, and PIT histograms.

The SVG is matplotlib's, rebuilt: colours follow the page (``currentColor`` and CSS variables with
fallbacks, so that dark mode and print work), identifiers are unique to each plot, style sheets and
metadata are gone, and a title says in words what the picture shows. The same data always give
the same text.
"""

from __future__ import annotations

import hashlib
import io
import math
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

from conformance.errors import ReportError
from conformance.reports.model import BarsModel, PitModel
from conformance.reports.text import counted
from conformance.text import one_line

MAX_BARS = 40
_LABEL_LIMIT = 12
_LARGEST = 1e15  # beyond it counts are no counts, and tick arithmetic fails
_WIDTH = 6.4  # inches
_UNUSUAL, _REACH = 3.0, 12.0  # standard errors: dashed lines, and the most that is drawn

# Stand-ins that matplotlib accepts as colours, and what the page shows in their place
_INK, _OBSERVED, _DRAFT, _BAND = "#010203", "#010204", "#010205", "#010206"
_COLOURS = {
    _INK: "currentColor",
    _OBSERVED: "var(--plot-observed, #5f93d1)",
    _DRAFT: "var(--plot-draft, #b3541e)",
    _BAND: "var(--plot-band, #8a94a3)",
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
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
}
_REFERENCE = re.compile(r"url\(#([^)]*)\)")


def pooled(bars: BarsModel) -> BarsModel:
    """Keep the `MAX_BARS` - 1 most expected cells in their order and add up the others.

    Raises
    ------
    ReportError
        If the lists differ in length, or hold what no count can be.
    """
    columns: list[Sequence[float]] = [bars.observed, bars.expected]
    if bars.draft is not None:
        columns.append(bars.draft)
    if any(len(column) != len(bars.labels) for column in columns):
        raise ReportError("this table's labels and counts differ in number")
    if any(not 0 <= value <= _LARGEST for column in columns for value in column):
        raise ReportError("this table holds numbers that are no counts")
    total = len(bars.labels)
    if total <= MAX_BARS:
        return bars
    ranked = sorted(range(total), key=lambda i: (-bars.expected[i], i))
    kept, rest = sorted(ranked[: MAX_BARS - 1]), ranked[MAX_BARS - 1 :]
    return BarsModel(
        title=bars.title,
        labels=[*(bars.labels[i] for i in kept), f"{len(rest):,} others"],
        observed=[*(bars.observed[i] for i in kept), sum(bars.observed[i] for i in rest)],
        expected=[*(bars.expected[i] for i in kept), math.fsum(bars.expected[i] for i in rest)],
        draft=None
        if bars.draft is None
        else [*(bars.draft[i] for i in kept), math.fsum(bars.draft[i] for i in rest)],
    )


def bars_svg(bars: BarsModel, key: str = "") -> str:
    """Draw observed counts as bars, expected ones as markers, and the difference beneath.

    Parameters
    ----------
    bars : BarsModel
        The table; beyond `MAX_BARS` cells the least expected are drawn as one.
    key : str
        Tells apart two plots of the same data on one page, whose identifiers would be equal.

    Returns
    -------
    str
        An ``<svg>`` element that may stand in an HTML page as it is.

    Raises
    ------
    ReportError
        If the table cannot be drawn.
    """
    bars = pooled(bars)
    x = range(len(bars.labels))
    with _matplotlib():
        labels = [one_line(label, _LABEL_LIMIT) for label in bars.labels]
        longest = max(map(len, labels), default=0)
        upright = longest <= 2 or len(labels) * longest <= 60
        # margins by arithmetic: matplotlib's layout engine measures every label, many times over
        below = 0.22 if upright else 0.1 + 0.07 * longest
        height = 3.05 + below
        figure = Figure(figsize=(_WIDTH, height))
        counts, residuals = figure.subplots(2, 1, gridspec_kw={"height_ratios": [2.6, 1]})
        figure.subplots_adjust(
            left=0.1, right=0.995, top=1 - 0.26 / height, bottom=below / height, hspace=0.08
        )
        counts.add_patch(_columns([i - 0.38 for i in x], 0.76, bars.observed, "observed"))
        counts.plot(
            x,
            bars.expected,
            label="expected (target model)",
            **_marker("_", _INK, size=9 if len(bars.labels) > 20 else 14, edge=1.6),
        )
        if bars.draft is not None:
            counts.plot(
                x,
                bars.draft,
                label="if the draft were sampled",
                **_marker("o", _DRAFT, size=4, edge=1.0),
            )
        counts.set_ylabel("count")
        _count_axis(counts, [*bars.observed, *bars.expected, *(bars.draft or [])])
        counts.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0)

        errors = [
            (o - e) / math.sqrt(e) if e > 0 else 0.0
            for o, e in zip(bars.observed, bars.expected, strict=True)
        ]
        residuals.add_patch(_columns([i - 0.38 for i in x], 0.76, errors))
        residuals.axhline(0, color=_INK, linewidth=0.6)
        for level in (-_UNUSUAL, _UNUSUAL):
            residuals.axhline(level, color=_INK, linewidth=0.6, linestyle=(0, (4, 3)))
        # cut off where nothing more is to be learned, or one rare token would flatten the others
        reach = min(_REACH, 1.15 * max([_UNUSUAL + 0.6, *map(abs, errors)]))
        residuals.set_ylim(-reach, reach)
        residuals.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 3, 5, 10]))
        residuals.set_ylabel("difference", fontsize=8)
        for axes in (counts, residuals):
            axes.set_xlim(-0.7, max(len(labels), 1) - 0.3)
            axes.tick_params(axis="x", length=0)
        counts.set_xticks([])
        residuals.set_xticks(list(x), labels, rotation=0 if upright else 90, fontsize=8)
        figure.align_ylabels()
        return _svg(figure, bars_summary(bars), key + bars.model_dump_json())


def bars_summary(bars: BarsModel) -> str:
    """Say in words what `bars_svg` shows."""
    worst, place = 0.0, ""
    for label, observed, expected in zip(bars.labels, bars.observed, bars.expected, strict=True):
        if expected > 0 and abs(observed - expected) / math.sqrt(expected) > worst:
            worst = abs(observed - expected) / math.sqrt(expected)
            place = f"{one_line(label, 40)}: observed {observed:,}, expected {expected:,.1f}"
    text = f"Observed and expected counts of {counted(len(bars.labels), 'cell')}, "
    text += f"{sum(bars.observed):,} judged"
    impossible = sum(o for o, e in zip(bars.observed, bars.expected, strict=True) if e == 0)
    if impossible:
        text += f", {impossible:,} of them where none was possible"
    return f"{text}. Largest difference {worst:.1f} standard errors, at {place}." if place else text


def pit_svg(pit: PitModel, key: str = "") -> str:
    """Draw a histogram of the probability integral transform with its band.

    Parameters
    ----------
    pit : PitModel
        The histogram.
    key : str
        As for `bars_svg`.

    Returns
    -------
    str
        An ``<svg>`` element that may stand in an HTML page as it is.

    Raises
    ------
    ReportError
        If the histogram cannot be drawn.
    """
    values = [*pit.observed, pit.expected, *pit.band]
    if any(not abs(value) <= _LARGEST for value in values):
        raise ReportError("this histogram holds numbers that are no counts")
    bins = max(len(pit.observed), 1)
    with _matplotlib():
        figure = Figure(figsize=(_WIDTH, 2.3))
        axes = figure.subplots()
        figure.subplots_adjust(left=0.1, right=0.995, top=0.88, bottom=0.19)
        edges = [i / bins for i in range(len(pit.observed))]
        axes.add_patch(_columns(edges, 0.92 / bins, pit.observed, "observed"))
        axes.axhspan(
            *pit.band, color=_BAND, alpha=0.35, linewidth=0, label="99% band if exact", zorder=2
        )
        axes.axhline(pit.expected, color=_INK, linewidth=1.2, label="expected", zorder=3)
        axes.set_xlim(-0.01, 1.01)
        axes.set_ylabel("count")
        axes.set_xlabel("transformed value of a token, 0 to 1")
        _count_axis(axes, values)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0)
        return _svg(figure, pit_summary(pit), key + pit.model_dump_json())


def pit_summary(pit: PitModel) -> str:
    """Say in words what `pit_svg` shows."""
    low, high = pit.band
    outside = sum(not low <= value <= high for value in pit.observed)
    return (
        f"Histogram of {sum(pit.observed):,} transformed tokens in "
        f"{counted(len(pit.observed), 'bin')}, flat if exact: {outside} outside the band of "
        f"{low:,.0f} to {high:,.0f} round the expected {pit.expected:,.1f}."
    )


def _matplotlib() -> Any:
    # "default" first: a user's own matplotlibrc must not reach a report
    return matplotlib.style.context(["default", _STYLE])


def _marker(shape: str, colour: str, size: float, edge: float) -> dict[str, Any]:
    return {
        "linestyle": "none",
        "marker": shape,
        "markersize": size,
        "markeredgewidth": edge,
        "markeredgecolor": colour,
        "markerfacecolor": "none",
    }


def _columns(
    left: Sequence[float], width: float, heights: Sequence[float], label: str = ""
) -> PathPatch:
    """All columns as one path: a tenth of the text that as many rectangles would take."""
    points: list[tuple[float, float]] = []
    for x, height in zip(left, heights, strict=True):
        points += [(x, 0), (x, height), (x + width, height), (x + width, 0), (x, 0)]
    codes = [Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY] * len(heights)
    # an outline without any point is refused
    outline = Outline(points or [(0, 0)], codes or [Outline.MOVETO])
    return PathPatch(outline, facecolor=_OBSERVED, linewidth=0, label=label, zorder=1)


def _count_axis(axes: Any, values: Sequence[float]) -> None:
    axes.set_ylim(0, 1.08 * max([1.0, *values]))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _svg(figure: Any, summary: str, identity: str) -> str:
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
