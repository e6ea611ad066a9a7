"""Plots of evidence: every p-value at once, and the course of an e-process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.collections import LineCollection
from matplotlib.ticker import FixedLocator, MaxNLocator

from conformance.errors import ReportError
from conformance.reports.details import TrajectoryModel
from conformance.reports.figure import (
    BAD,
    BAND,
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
from conformance.reports.model import FindingModel
from conformance.reports.text import count, counted, p_text
from conformance.text import one_line

_SMALLEST = 1e-300  # no p-value is told apart below
_TICKS = (1.0, 0.1, 1e-3, 1e-9, 1e-30, 1e-100, 1e-300)
_LARGEST = 1e15
_MOST_ROWS = 40
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
        height = 0.82 + ROW_HEIGHT * len(tests)
        figure = new_figure(height)
        axes = figure.subplots()
        left = label_margin(tests)
        figure.subplots_adjust(left=left, right=0.95, top=1 - 0.36 / height, bottom=0.4 / height)
        # three states that differ in shape as well as in colour
        for arm, (colour, half) in _ARMS.items():
            mine = [f for f in shown if f.arm == arm and not f.rejected and f.level > 0]
            _ticks(axes, mine, tests, colour, half, f"{arm} arm" if arm != "both" else "both arms")
        told = [f for f in shown if f.level <= 0 and not f.rejected]
        axes.plot(*_points(told, tests), label="for information", **marker(".", BAND, 4.5, 1.0))
        gone = [f for f in shown if f.rejected]
        if gone:
            axes.plot(*_points(gone, tests), label="rejected", **marker("x", BAD, 5, 1.5))
        if levels:
            axes.axvline(
                _depth(max(levels)), color=INK, linewidth=0.9, linestyle=(0, (4, 3)), label="level"
            )
        axes.set_xlim(-0.15, 1.03 * reach)
        axes.set_ylim(len(tests) - 0.4, -0.6)
        axes.set_yticks(range(len(tests)), [one_line(t, LABEL_LIMIT) for t in tests])
        ticks = _apart([p for p in _TICKS if _depth(p) <= 1.03 * reach], 0.17 * reach)
        axes.xaxis.set_major_locator(FixedLocator([_depth(p) for p in ticks]))
        axes.set_xticklabels([f"{p:g}" for p in ticks])
        axes.set_xlabel("p-value; further right, less by chance")
        row_lines(axes, len(tests))
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
