"""``bench.md``: speed and cost, short enough for a CI job summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.reports.bench_model import BenchReport, CellModel
from conformance.reports.bench_text import (
    COST_HEAD,
    LATENCY_HEAD,
    THROUGHPUT_HEAD,
    arm_of,
    audited,
    cost_rows,
    glyph,
    groups,
    latency_rows,
    middle,
    rate,
    size,
    throughput_rows,
    times,
    where,
)
from conformance.reports.markdown import escape
from conformance.reports.text import command_line, duration, moment

_SHOWN_CELLS = 60


def render_bench_markdown(report: BenchReport) -> str:
    """Render a measurement as GitHub-flavoured Markdown."""
    return "\n\n".join(_blocks(report)) + "\n"


def _blocks(report: BenchReport) -> Iterator[str]:
    yield f"# Speed: {escape(report.headline)}"
    if not report.finished:
        yield "**Interrupted: what was measured until then.**"
    yield (
        "This is no verdict on exactness. Where one was given for the same engine, version and "
        "decoding it stands beside the numbers."
    )
    yield "\n".join(f"- {escape(note)}" for note in report.notes)
    shown = 0
    for group in groups(report):
        yield f"## {escape(group.engine)}, {escape(group.decoding)}"
        yield f"Exactness: {escape(group.audit.sentence, 800)}"
        yield _overview(group.cells)
        for cell in group.cells:
            if cell.status == "measured" and shown < _SHOWN_CELLS:
                shown += 1
                yield from _cell(cell, audited(group.audit))
    if report.memory:
        yield "## Memory"
        yield _table(
            ("engine", "with the draft", "without", "difference", "what was compared"),
            [
                (
                    m.engine,
                    _sizes(m.with_draft),
                    _sizes(m.without),
                    size(m.added),
                    m.sentence,
                )
                for m in report.memory
            ],
        )
    m = report.machine
    yield (
        f"Measured {escape(moment(report.created))}, {escape(duration(report.seconds))}, on "
        f"{escape(m.processor)}, {m.processors} processors, {size(m.memory_bytes)}; "
        f"{report.settings.warmup} rounds of warm-up, up to {report.settings.repeats} repeats, "
        f"seed {report.settings.seed}."
    )
    yield f"`{command_line(report.command).replace('`', ' ')}`"


def _overview(cells: Sequence[CellModel]) -> str:
    rows = []
    for cell in cells:
        spec, control = arm_of(cell, "speculative"), arm_of(cell, "control")
        rows.append(
            (
                f"{glyph(cell.outcome)} {where(cell)}",
                times(cell.speedup),
                rate(spec.tokens_per_second if spec else None),
                rate(control.tokens_per_second if control else None),
                middle(spec.first_token if spec else None),
                middle(control.first_token if control else None),
                cell.sentence,
            )
        )
    head = (
        "setting",
        "speed-up",
        "tokens a second, speculative",
        "control",
        "first token, speculative",
        "control",
        "in words",
    )
    return _table(head, rows)


def _cell(cell: CellModel, verdict: str) -> Iterator[str]:
    summary = f"{where(cell)} ({verdict}): {cell.sentence}"
    yield f"<details><summary>{escape(summary)}</summary>"
    yield escape(cell.prompts)
    yield _table(LATENCY_HEAD, latency_rows(cell))
    yield _table(THROUGHPUT_HEAD, throughput_rows(cell))
    yield _table(COST_HEAD, cost_rows(cell))
    if cell.acceptance is not None:
        counts = cell.acceptance.accepted
        if counts:
            total = sum(counts.values())
            rows = [(str(n), f"{k:,}", f"{k / total:.1%}") for n, k in counts.items()]
            yield _table(("accepted in a block", "blocks", "share"), rows)
        if cell.acceptance.sentence:
            yield escape(cell.acceptance.sentence)
    if cell.cost is not None:
        yield escape(cell.cost.sentence)
    yield "</details>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(escape(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _sizes(values: Sequence[int]) -> str:
    return ", ".join(map(size, values)) or "–"
