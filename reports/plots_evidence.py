"""Plots of evidence: p-values, effect sizes, acceptance rates, and the course of an e-process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.collections import LineCollection
from matplotlib.ticker import FixedLocator, MaxNLocator, PercentFormatter

from conformance.errors import ReportError
from conformance.reports.details import AcceptanceModel, TrajectoryModel
from conformance.reports.figure import (
    BAD,
    BAND,
    DRAFT,
    INK,
    OBSERVED,
    WIDTH,
    legend,
    marker,
    matplotlib_style,
    new_figure,
    to_svg,
)
from conformance.reports.model import FindingModel, IntervalModel
from conformance.reports.text import count, counted, number, p_text, percent
from conformance.text import one_line

_SMALLEST = 1e-300  # no p-value is told apart below
_TICKS = (1.0, 0.1, 1e-3, 1e-9, 1e-30, 1e-100, 1e-300)
_LABEL_LIMIT = 26
_LARGEST = 1e15
_ROW = 0.165  # inches a row takes
_MOST_ROWS = 40
_MOST_EFFECTS = 18
_ARMS = {"speculative": (OBSERVED, 0.34), "control": (DRAFT, 0.2), "both": (INK, 0.34)}


# --- p-values -------------------------------------------------------------------------------------


def p_values_svg(findings: Sequence[FindingModel], key: str = "") -> str:
    """Draw every p-value of a case, one row a kind of test, with the level it is held to.

    Parameters
    ----------
    findings : sequence of FindingModel
        Those with neither a p-value nor a rejection are left out.
    key : str
        Tells apart two plots of the same data on one page, whose identifiers would be equal.

    Returns
    -------
    str
        An ``<svg>`` element that may stand in an HTML page as it is.

    Raises
    ------
    ReportError
        If a p-value is none.
    """
    shown = with_p(findings)
    if any(not 0 <= f.p_value <= 1 for f in shown if f.p_value is not None):
        raise ReportError("these findings hold numbers that are no p-values")
    tests = [*dict.fromkeys(f.test for f in shown)][:_MOST_ROWS]
    shown = [f for f in shown if f.test in tests]
    levels = [f.level for f in shown if f.level > 0]
    reach = max([_depth(1e-12), *(_depth(f.p_value) for f in shown), *map(_depth, levels)])
    with matplotlib_style():
        height = 0.82 + _ROW * len(tests)
        figure = new_figure(height)
        axes = figure.subplots()
        left = _margin(tests)
        figure.subplots_adjust(left=left, right=0.95, top=1 - 0.36 / height, bottom=0.4 / height)
        # three states that differ in shape as well as in colour
        for arm, (colour, half) in _ARMS.items():
            mine = [f for f in shown if f.arm == arm and not f.rejected and f.level > 0]
            _ticks(axes, mine, tests, colour, half, f"{arm} arm" if arm != "both" else "both arms")
        told = [f for f in shown if f.level <= 0 and not f.rejected]
        axes.plot(*_points(told, tests), label="not judged", **marker(".", BAND, 3, 0.8))
        gone = [f for f in shown if f.rejected]
        if gone:
            axes.plot(*_points(gone, tests), label="rejected", **marker("x", BAD, 5, 1.5))
        if levels:
            axes.axvline(
                _depth(max(levels)), color=INK, linewidth=0.9, linestyle=(0, (4, 3)), label="level"
            )
        axes.set_xlim(-0.15, 1.03 * reach)
        axes.set_ylim(len(tests) - 0.4, -0.6)
        axes.set_yticks(range(len(tests)), [one_line(t, _LABEL_LIMIT) for t in tests])
        ticks = _apart([p for p in _TICKS if _depth(p) <= 1.03 * reach], 0.12 * reach)
        axes.xaxis.set_major_locator(FixedLocator([_depth(p) for p in ticks]))
        axes.set_xticklabels([f"{p:g}" for p in ticks])
        axes.set_xlabel("p-value; further right, less by chance")
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", color=BAND, alpha=0.25, linewidth=0.5)
        axes.set_axisbelow(True)
        legend(figure, axes)
        identity = key + "|".join(f.model_dump_json() for f in shown)
        return to_svg(figure, p_values_summary(findings), identity)


def with_p(findings: Iterable[FindingModel]) -> list[FindingModel]:
    """The findings that the overview shows: those with a p-value, and proofs."""
    return [f for f in findings if f.p_value is not None or f.rejected]


def p_values_summary(findings: Sequence[FindingModel]) -> str:
    """Say in words what `p_values_svg` shows."""
    shown = with_p(findings)
    judged = [f for f in shown if f.level > 0 or f.rejected]
    gone = [f for f in judged if f.rejected]
    proofs = sum(f.p_value is None for f in gone)
    text = f"{counted(len(judged), 'test')}, {len(gone)} rejected"
    if proofs:
        text += f", {proofs} of them by proof"
    level = max((f.level for f in judged), default=0.0)
    smallest = min((f for f in judged if f.p_value is not None), key=_p, default=None)
    if smallest is not None:
        text += (
            f"; smallest p {p_text(smallest.p_value)} ({one_line(smallest.test, 40)}, "
            f"{one_line(smallest.scope, 40)}, {smallest.arm}), level {p_text(level)}"
        )
    others = len(shown) - len(judged)
    return f"{text}; {others:,} more for information only." if others else f"{text}."


def _p(finding: FindingModel) -> float:
    return 1.0 if finding.p_value is None else finding.p_value


def _depth(p: float | None) -> float:
    """Where a p-value is drawn: the root makes room for 1e-9 beside 1e-300. A proof is beyond."""
    return math.sqrt(-math.log10(max(_SMALLEST if p is None else p, _SMALLEST)))


def _apart(ticks: list[float], least: float) -> list[float]:
    """Those whose numbers do not run into each other."""
    out = ticks[:1]
    for p in ticks[1:]:
        if _depth(p) - _depth(out[-1]) >= least:
            out.append(p)
    return out


def _points(findings: Sequence[FindingModel], tests: list[str]) -> tuple[list[float], list[int]]:
    return [_depth(f.p_value) for f in findings], [tests.index(f.test) for f in findings]


def _ticks(
    axes: Any,
    findings: Sequence[FindingModel],
    tests: list[str],
    colour: str,
    half: float,
    label: str,
) -> None:
    """One short line a finding, so that many at one place can still be told apart."""
    x, y = _points(findings, tests)
    lines = [[(a, b - half), (a, b + half)] for a, b in zip(x, y, strict=True)]
    if lines:
        axes.add_collection(LineCollection(lines, colors=colour, linewidths=1.3, label=label))


# --- effect sizes and rates -----------------------------------------------------------------------


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
        height = above + 0.46 + _ROW * max(len(rows), 1)
        figure = new_figure(height)
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        figure.subplots_adjust(
            left=_margin([r.label for r in rows]),
            right=0.97,
            top=1 - above / height,
            bottom=0.4 / height,
            wspace=0.16,
        )
        for axes, (name, mine) in zip(all_axes, panels, strict=True):
            _forest(axes, mine, marks, zero)
            axes.set_xlabel(name)
            if as_percent:
                axes.xaxis.set_major_formatter(PercentFormatter(1.0))
            axes.xaxis.set_major_locator(MaxNLocator(4 if len(panels) == 1 else 3))
        all_axes[0].set_yticks(range(len(rows)), [one_line(r.label, _LABEL_LIMIT) for r in rows])
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
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color=BAND, alpha=0.25, linewidth=0.5)
    axes.set_axisbelow(True)


def _margin(labels: Iterable[str]) -> float:
    """The share of the width that labels take, by arithmetic."""
    longest = max((min(len(label), _LABEL_LIMIT) for label in labels), default=0)
    return min(0.45, (0.12 + 0.062 * longest) / WIDTH)


# --- the course of an e-process -------------------------------------------------------------------


def trajectories_svg(courses: Sequence[TrajectoryModel], key: str = "") -> str:
    """Draw the evidence of each arm against the tokens looked at, with what it takes to reject.

    Parameters
    ----------
    courses : sequence of TrajectoryModel
        At least one.
    key : str
        As for `p_values_svg`.

    Raises
    ------
    ReportError
        If they cannot be drawn.
    """
    for course in courses:
        if len(course.tokens) != len(course.log10_e):
            raise ReportError("the looks and the values of an e-process differ in number")
        if any(not abs(x) <= _LARGEST for x in (*course.tokens, *course.log10_e, course.needed)):
            raise ReportError("this e-process holds numbers that cannot be drawn")
    needed = max(course.needed for course in courses)
    with matplotlib_style():
        figure = new_figure(1.9)
        axes = figure.subplots()
        figure.subplots_adjust(left=0.14, right=0.97, top=0.87, bottom=0.21)
        looks = {"speculative": ("-", "o", OBSERVED), "control": ("--", "^", DRAFT)}
        for course in courses:
            line, shape, colour = looks.get(course.arm, ("-", "o", OBSERVED))
            style = {**marker(shape, colour, 3.2, 1.0), "linestyle": line, "linewidth": 1.4}
            style["color"] = colour
            label = "the arms apart" if course.arm == "both" else f"{course.arm} arm"
            axes.plot([0, *course.tokens], [0.0, *course.log10_e], label=label, **style)
        axes.axhline(0, color=INK, linewidth=0.6)
        axes.axhline(needed, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), label="rejects above")
        axes.set_ylabel("evidence, as 10^y")
        axes.set_xlabel("tokens looked at")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlim(left=0)
        legend(figure, axes)
        identity = key + "|".join(course.model_dump_json() for course in courses)
        return to_svg(figure, trajectories_summary(courses), identity)


def trajectories_summary(courses: Sequence[TrajectoryModel]) -> str:
    """Say in words what `trajectories_svg` shows."""
    parts = []
    for course in courses:
        who = "the arms apart" if course.arm == "both" else f"{course.arm} arm"
        crossed = crossing(course)
        if not course.tokens:
            parts.append(f"{who}: nothing was looked at")
        elif crossed is None:
            highest = max(0.0, *course.log10_e)
            parts.append(
                f"{who}: at most 10^{highest:.1f} in {count(course.tokens[-1])} tokens, "
                f"10^{course.needed:.1f} needed"
            )
        else:
            parts.append(
                f"{who}: crosses the needed 10^{course.needed:.1f} by {count(crossed)} tokens and "
                f"reaches 10^{max(course.log10_e):.1f}"
            )
    return f"Evidence against the law. {'; '.join(parts)}."


def crossing(course: TrajectoryModel) -> int | None:
    """Tokens after which an e-process was first seen to reject."""
    for tokens, value in zip(course.tokens, course.log10_e, strict=True):
        if value >= course.needed:
            return tokens
    return None


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
