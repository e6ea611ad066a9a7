"""Plots of counts: observed against expected, and PIT histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator

from conformance.errors import ReportError
from conformance.reports.figure import (
    BAD,
    BAND,
    DRAFT,
    INK,
    bar_columns,
    count_axis,
    legend,
    marker,
    matplotlib_style,
    new_figure,
    to_svg,
)
from conformance.reports.model import BarsModel, PitModel
from conformance.reports.text import counted
from conformance.text import one_line

MAX_BARS = 40
_LABEL_LIMIT = 12
_LARGEST = 1e15  # beyond it counts are no counts, and tick arithmetic fails
_UNUSUAL, _REACH = 3.0, 12.0  # standard errors: dashed lines, and the most that is drawn


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
    with matplotlib_style():
        labels = [one_line(label, _LABEL_LIMIT) for label in bars.labels]
        longest = max(map(len, labels), default=0)
        upright = len(labels) * longest <= 60
        small = 7 if len(labels) <= 26 else 5.5
        # margins by arithmetic: matplotlib's layout engine measures every label, many times over
        below = 0.2 if upright else 0.1 + 0.07 * longest
        height = 2.3 + below
        figure = new_figure(height)
        counts, residuals = figure.subplots(2, 1, gridspec_kw={"height_ratios": [2.6, 1]})
        figure.subplots_adjust(
            left=0.165, right=0.99, top=1 - 0.26 / height, bottom=below / height, hspace=0.08
        )
        counts.add_patch(bar_columns([i - 0.38 for i in x], 0.76, bars.observed, "observed"))
        counts.plot(
            x,
            bars.expected,
            label="expected",
            **marker("_", INK, size=6 if len(bars.labels) > 20 else 12, edge=1.5),
        )
        if bars.draft is not None:
            counts.plot(
                x,
                bars.draft,
                label="if it were the draft's",
                **marker("o", DRAFT, size=3, edge=0.9),
            )
        counts.set_ylabel("count")
        count_axis(counts, [*bars.observed, *bars.expected, *(bars.draft or [])])
        impossible = [i for i in x if bars.expected[i] == 0 < bars.observed[i]]
        if impossible:
            tops = [bars.observed[i] for i in impossible]
            counts.plot(impossible, tops, label="impossible", **marker("x", BAD, 6, 1.8))
        legend(figure, counts, 4 if impossible else 3)

        errors = [
            (o - e) / math.sqrt(e) if e > 0 else _REACH * (o > 0)
            for o, e in zip(bars.observed, bars.expected, strict=True)
        ]
        residuals.add_patch(bar_columns([i - 0.38 for i in x], 0.76, errors))
        residuals.axhline(0, color=INK, linewidth=0.6)
        for level in (-_UNUSUAL, _UNUSUAL):
            residuals.axhline(level, color=INK, linewidth=0.6, linestyle=(0, (4, 3)))
        # cut off where nothing more is to be learned, or one rare token would flatten the others
        reach = min(_REACH, 1.15 * max([_UNUSUAL + 0.6, *map(abs, errors)]))
        residuals.set_ylim(-reach, reach)
        residuals.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 3, 5, 10]))
        residuals.set_ylabel("difference")
        for axes in (counts, residuals):
            axes.set_xlim(-0.7, max(len(labels), 1) - 0.3)
            axes.tick_params(axis="x", bottom=False)
        counts.set_xticks([])
        residuals.set_xticks(list(x), labels, rotation=0 if upright else 90, fontsize=small)
        figure.align_ylabels()
        return to_svg(figure, bars_summary(bars), key + bars.model_dump_json())


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
    with matplotlib_style():
        figure = new_figure(1.9)
        axes = figure.subplots()
        figure.subplots_adjust(left=0.165, right=0.965, top=0.87, bottom=0.21)
        edges = [i / bins for i in range(len(pit.observed))]
        axes.add_patch(bar_columns(edges, 0.92 / bins, pit.observed, "observed"))
        axes.axhspan(
            *pit.band, color=BAND, alpha=0.35, linewidth=0, label="99% band if exact", zorder=2
        )
        axes.axhline(pit.expected, color=INK, linewidth=1.2, label="expected", zorder=3)
        axes.set_xlim(-0.01, 1.01)
        axes.set_ylabel("count")
        axes.set_xlabel("transformed value of a token, 0 to 1")
        count_axis(axes, values)
        legend(figure, axes)
        return to_svg(figure, pit_summary(pit), key + pit.model_dump_json())


def pit_summary(pit: PitModel) -> str:
    """Say in words what `pit_svg` shows."""
    low, high = pit.band
    outside = sum(not low <= value <= high for value in pit.observed)
    return (
        f"Histogram of {sum(pit.observed):,} transformed tokens in "
        f"{counted(len(pit.observed), 'bin')}, flat if exact: {outside} outside the band of "
        f"{low:,.0f} to {high:,.0f} round the expected {pit.expected:,.1f}."
    )
