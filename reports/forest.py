"""Forest plots: estimates with their intervals, one a row, beside what they are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.collections import LineCollection
from matplotlib.ticker import MaxNLocator

from conformance.errors import ReportError
from conformance.reports.details import AcceptanceModel
from conformance.reports.figure import (
    DRAFT,
    INK,
    LABEL_LIMIT,
    OBSERVED,
    ROW_HEIGHT,
    label_margin,
    legend,
    marker,
    matplotlib_style,
    new_figure,
    row_lines,
    to_svg,
)
from conformance.reports.model import FindingModel, IntervalModel
from conformance.reports.text import count, number, percent
from conformance.text import one_line

_LARGEST = 1e15
_MOST_EFFECTS = 18


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a forest plot: an estimate with its interval, and marks to compare it with."""

    label: str
    estimate: float
    low: float
    high: float
    marks: tuple[float | None, ...] = ()
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """What the marks of a forest plot stand for."""

    label: str
    shape: str
    colour: str = INK


def forest_svg(
    panels: Sequence[tuple[str, Sequence[Row]]],
    marks: Sequence[Mark],
    summary: str,
    zero: bool = True,
    as_percent: bool = False,
    key: str = "",
) -> str:
    """Draw estimates with their intervals, one row each, in panels that share the rows.

    Parameters
    ----------
    panels : sequence of (str, sequence of Row)
        The name of each panel's axis, and its rows; the rows' labels are those of the first.
    marks : sequence of Mark
        What the rows' marks are.
    summary : str
        What the picture shows, in words.
    zero : bool
        Whether to draw a line at 0.
    as_percent : bool
        Whether the axis is in per cent.
    key : str
        As for `p_values_svg`.

    Raises
    ------
    ReportError
        If a number is too large to be drawn.
    """
    rows = panels[0][1]
    numbers = [x for _, rows in panels for r in rows for x in _numbers(r)]
    if any(not abs(x) <= _LARGEST for x in numbers):
        raise ReportError("these estimates hold numbers that cannot be drawn")
    with matplotlib_style():
        above = 0.22 if len(marks) < 3 else 0.36
        height = above + 0.46 + ROW_HEIGHT * max(len(rows), 1)
        figure = new_figure(height)
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        figure.subplots_adjust(
            left=label_margin([r.label for r in rows]),
            right=0.97,
            top=1 - above / height,
            bottom=0.4 / height,
            wspace=0.16,
        )
        for axes, (name, mine) in zip(all_axes, panels, strict=True):
            _forest(axes, mine, marks, zero)
            axes.set_xlabel(name)
            if as_percent:
                axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
            axes.xaxis.set_major_locator(MaxNLocator(4 if len(panels) == 1 else 3))
        all_axes[0].set_yticks(range(len(rows)), [one_line(r.label, LABEL_LIMIT) for r in rows])
        all_axes[0].set_ylim(len(rows) - 0.4, -0.6)
        legend(figure, all_axes[0], 3 if len(marks) < 3 else 2)
        return to_svg(figure, summary, f"{key}{panels}{marks}")


def _numbers(row: Row) -> list[float]:
    return [row.estimate, row.low, row.high, *(m for m in row.marks if m is not None)]


def _forest(axes: Any, rows: Sequence[Row], marks: Sequence[Mark], zero: bool) -> None:
    if zero:
        axes.axvline(0, color=INK, linewidth=0.8)
    for hollow in (False, True):
        mine = [(i, r) for i, r in enumerate(rows) if r.hollow is hollow]
        if not mine:
            continue
        colour = DRAFT if hollow else OBSERVED
        bars = [[(r.low, i), (r.high, i)] for i, r in mine]
        axes.add_collection(LineCollection(bars, colors=colour, linewidths=2.0))
        style = marker("o", colour, 4.5, 1.4)
        if not hollow:
            style["markerfacecolor"] = colour
        label = "control arm" if hollow else "observed, 95%"
        axes.plot([r.estimate for _, r in mine], [i for i, _ in mine], label=label, **style)
    for k, mark in enumerate(marks):
        at = [(r.marks[k], i) for i, r in enumerate(rows) if k < len(r.marks)]
        known = [(x, i) for x, i in at if x is not None]
        if known:
            style = marker(mark.shape, mark.colour, 8 if mark.shape == "|" else 5, 1.3)
            axes.plot(*zip(*known, strict=True), label=mark.label, **style)
    row_lines(axes, len(rows))


# --- rows from the model --------------------------------------------------------------------------


def effect_rows(findings: Iterable[FindingModel], name: str) -> list[tuple[FindingModel, Row]]:
    """The findings that estimate an effect, as rows, the speculative arm's first; where there are
    very many, those that are farthest from 0.
    """
    mine = [f for f in findings if name in f.effect]
    mine.sort(key=lambda f: f.arm == "control")
    if len(mine) > _MOST_EFFECTS:  # the first is of all tokens; of the others, what is far from 0
        far = sorted(mine[1:], key=lambda f: -_far(f.effect[name]))[: _MOST_EFFECTS - 1]
        mine = [f for f in mine if f is mine[0] or any(f is other for other in far)]
    return [(f, _effect_row(f, f.effect[name])) for f in mine]


def _far(size: IntervalModel) -> float:
    """How far an estimate is from 0, in widths of its interval."""
    return abs(size.estimate) / max(size.high - size.low, 1e-12)


def _effect_row(finding: FindingModel, size: IntervalModel) -> Row:
    control = finding.arm == "control"
    label = f"{one_line(finding.scope, 40)}{' (control)' if control else ''}"
    return Row(label, size.estimate, size.low, size.high, (finding.detectable,), control)


def acceptance_summary(seen: AcceptanceModel) -> str:
    """Say in words how acceptance compares with what was to be expected."""
    if not seen.places:
        return "No proposal was seen."
    first = seen.places[0]
    text = (
        f"Of {count(first.proposals)} proposals {percent(round(first.rate, 3))} were accepted "
        f"(95%: {percent(round(first.low, 3))} to {percent(round(first.high, 3))}); rejection "
        f"sampling would accept {percent(round(first.rejection, 3))} at the same prefixes, the sum "
        "of min(p, q)"
    )
    if not seen.verified:
        return text + ", but all drafted tokens are counted, also those after a rejection."
    if first.low <= first.rejection <= first.high:
        return text + ": as expected of it."
    way = "fewer" if first.rate < first.rejection else "more"
    return text + f": {way} than expected of it, {number(first.rate - first.rejection)} apart."
