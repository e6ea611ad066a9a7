"""Times and sizes as people read them, and the rows that terminal, Markdown and HTML share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.reports.bench_model import (
    ArmTimes,
    AuditModel,
    BenchReport,
    CellModel,
    Estimate,
    Outcome,
    Spread,
)
from conformance.reports.text import number

TOO_FEW = "too few"
_GLYPHS: dict[Outcome, str] = {
    "pays": "▲",
    "does not pay": "▼",
    "cannot tell": "?",
    "did not speculate": "–",
}


@dataclass(frozen=True, slots=True)
class Group:
    """What was measured of one engine at one decoding, with the verdict that belongs beside it."""

    engine: str
    decoding: str
    audit: AuditModel
    cells: Sequence[CellModel]


def groups(report: BenchReport) -> list[Group]:
    """Cells by engine and decoding, in the order in which they were measured."""
    return [
        Group(
            a.engine,
            a.decoding,
            a,
            [c for c in report.cells if (c.engine, c.decoding) == (a.engine, a.decoding)],
        )
        for a in report.audits
    ]


def glyph(outcome: Outcome | None) -> str:
    """A sign that says an outcome without colour."""
    return "!" if outcome is None else _GLYPHS[outcome]


def seconds(value: float | None) -> str:
    """Write a time in the unit that suits it.

    Examples
    --------
    >>> seconds(0.01234), seconds(2.5), seconds(0.0000321), seconds(None)
    ('12.3 ms', '2.5 s', '32.1 µs', '–')
    """
    if value is None:
        return "–"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{number(value / size)} {unit}"
    return f"{number(value / 1e-6)} µs"


def size(value: float | None) -> str:
    """Write a number of bytes.

    Examples
    --------
    >>> size(290816), size(-5 * 2**30), size(None)
    ('284 KiB', '-5 GiB', '–')
    """
    if value is None:
        return "–"
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(value) >= 2**power:
            return f"{number(value / 2**power)} {unit}"
    return f"{value:,.0f} B"


def times(value: Estimate | None) -> str:
    """Write a ratio with its interval.

    Examples
    --------
    >>> times(Estimate(estimate=1.234, low=1.1, high=1.4, n=10))
    '1.23 (1.10 to 1.40)'
    """
    if value is None:
        return "–"
    if value.low is None or value.high is None:
        return f"{value.estimate:.2f} (no interval: {TOO_FEW})"
    return f"{value.estimate:.2f} ({value.low:.2f} to {value.high:.2f})"


def rate(value: Estimate | None) -> str:
    """Write a number per second with its interval."""
    if value is None:
        return "–"
    if value.low is None or value.high is None:
        return number(value.estimate)
    return f"{number(value.estimate)} ({number(value.low)} to {number(value.high)})"


def middle(spread: Spread | None) -> str:
    """Write a median time with its interval."""
    if spread is None:
        return "–"
    m = spread.median
    if m.low is None or m.high is None:
        return seconds(m.estimate)
    return f"{seconds(m.estimate)} ({seconds(m.low)} to {seconds(m.high)})"


def tail(spread: Spread | None, name: str) -> str:
    """Write a tail, or that there are too few samples for one."""
    if spread is None:
        return "–"
    value: Estimate | None = getattr(spread, name)
    return f"{TOO_FEW} (n = {spread.n:,})" if value is None else seconds(value.estimate)


def audited(audit: AuditModel) -> str:
    """The verdict in a word or two, for every place where numbers are shown."""
    return "not audited" if audit.verdict is None else audit.verdict.value


def arm_of(cell: CellModel, arm: str) -> ArmTimes | None:
    """One arm of a cell, where it was measured."""
    return next((a for a in cell.arms if a.arm == arm), None)


def where(cell: CellModel) -> str:
    """Batch and prompt of a cell."""
    prompts = "own prompts" if cell.prompt_length is None else f"prompt {cell.prompt_length}"
    return f"batch {cell.batch}, {prompts}"


LATENCIES = (
    ("end_to_end", "whole call"),
    ("first_token", "first token"),
    ("per_token", "each further token"),
    ("pauses", "pauses between blocks"),
)
LATENCY_HEAD = ("time of", "arm", "samples", "median (95 %)", "90 % below", "99 % below")
ARM_NAMES = {"speculative": "speculative", "control": "control", "draft": "draft alone"}


def latency_rows(cell: CellModel) -> list[tuple[str, ...]]:
    """A row for every kind of time and arm of a cell, the compared arms side by side."""
    rows: list[tuple[str, ...]] = []
    for field, words in LATENCIES:
        for arm in cell.arms:
            spread: Spread | None = getattr(arm, field)
            if spread is None or (field == "pauses" and arm.arm != "speculative"):
                continue
            rows.append(
                (
                    words,
                    ARM_NAMES[arm.arm],
                    f"{spread.n:,}",
                    middle(spread),
                    tail(spread, "p90"),
                    tail(spread, "p99"),
                )
            )
    return rows


THROUGHPUT_HEAD = ("arm", "requests a second (95 %)", "output tokens a second (95 %)")


def throughput_rows(cell: CellModel) -> list[tuple[str, ...]]:
    """What the compared arms get through."""
    return [
        (ARM_NAMES[a.arm], rate(a.requests_per_second), rate(a.tokens_per_second))
        for a in cell.arms
        if a.arm != "draft"
    ]


COST_HEAD = ("what", "value")


def cost_rows(cell: CellModel) -> list[tuple[str, str]]:
    """Acceptance, the parts of a block, and the speed-up that the formula predicts."""
    a, c = cell.acceptance, cell.cost
    rows: list[tuple[str, str]] = []
    if a is not None:
        rows += [
            ("accepted, of proposals that were verified", times(a.rate)),
            ("the most that an exact rule can accept: mean of sum min(p, q)", times(a.most)),
            (
                "accepted, of all proposals",
                "–" if a.of_proposed is None else f"{a.of_proposed:.2f}",
            ),
            (
                "tokens of a block",
                "–" if a.tokens_per_block is None else f"{a.tokens_per_block:.2f}",
            ),
        ]
    if c is not None:
        rows += [
            ("proposals of a block", _plain(c.proposals)),
            ("c: a step of the draft, in steps of the target", times(c.ratio)),
            ("a step of the target", seconds(c.target)),
            ("a step of the draft", seconds(c.draft)),
            ("a block", seconds(c.block)),
            ("a block beyond drafting and one step of the target", seconds(c.rest)),
            ("speed-up that Leviathan's formula predicts", times(c.predicted)),
            ("the same from the tokens that blocks did emit", _plain(c.from_blocks)),
            ("speed-up measured, after the first block", times(c.measured)),
            ("speed-up measured, end to end", times(cell.speedup)),
        ]
    return rows


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
