"""Plots of a measurement as inline SVG, in the style of `conformance.reports.plots`."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.reports.bench_model import CellModel
from conformance.reports.bench_text import where
from conformance.reports.figure import (
    BAND,
    DRAFT,
    INK,
    OBSERVED,
    bar_columns,
    count_axis,
    legend,
    matplotlib_style,
    new_figure,
    to_svg,
)
from conformance.reports.text import counted

MOST_ROWS = 40
MOST_LENGTHS = 33


def speedup_svg(title: str, cells: Sequence[CellModel], key: str) -> str:
    """Speed-up of every setting with its interval, and a line where nothing is gained."""
    rows = [c for c in cells if c.speedup is not None][:MOST_ROWS]
    with matplotlib_style():
        height = 0.6 + 0.2 * max(1, len(rows))
        figure = new_figure(height)
        axes = figure.subplots()
        figure.subplots_adjust(left=0.36, right=0.97, top=1 - 0.1 / height, bottom=0.42 / height)
        ends = [1.0]
        for i, cell in enumerate(rows):
            gain = cell.speedup
            assert gain is not None
            y = len(rows) - 1 - i
            low, high = gain.low, gain.high
            if low is not None and high is not None:
                axes.plot([low, high], [y, y], color=OBSERVED, linewidth=3.5, zorder=1)
                ends += [low, high]
            axes.plot([gain.estimate], [y], color=INK, marker="|", markersize=10, zorder=2)
            ends.append(gain.estimate)
        axes.axvline(1.0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
        axes.set_xlim(0, 1.08 * max(ends))
        axes.set_ylim(-0.7, max(1, len(rows)) - 0.3)
        axes.set_yticks(range(len(rows)), [where(c) for c in reversed(rows)])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("times as fast as without speculation")
        return to_svg(figure, speedup_words(title, cells), key)


def speedup_words(title: str, cells: Sequence[CellModel]) -> str:
    """Say in words what `speedup_svg` shows."""
    rows = [c for c in cells if c.speedup is not None]
    said = [f"{where(c)}: {c.speedup.estimate:.2f}" for c in rows[:MOST_ROWS] if c.speedup]
    return f"Speed-up of {title} in {counted(len(rows), 'setting')}: {'; '.join(said)}."


def lengths_svg(cell: CellModel, key: str) -> str:
    """How many blocks had how many accepted proposals."""
    counts = _lengths(cell)
    longest = max(counts, default=0)
    values = [counts.get(n, 0) for n in range(longest + 1)]
    with matplotlib_style():
        figure = new_figure(1.7)
        axes = figure.subplots()
        figure.subplots_adjust(left=0.14, right=0.99, top=0.95, bottom=0.24)
        axes.add_patch(bar_columns([n - 0.38 for n in range(longest + 1)], 0.76, values))
        axes.set_xlim(-0.7, longest + 0.7)
        axes.set_xticks(range(longest + 1) if longest < 17 else range(0, longest + 1, 4))
        axes.set_xlabel("accepted in a block")
        axes.set_ylabel("blocks")
        count_axis(axes, values)
        return to_svg(figure, lengths_words(cell), key)


def lengths_words(cell: CellModel) -> str:
    """Say in words what `lengths_svg` shows."""
    counts = _lengths(cell)
    total = max(1, sum(counts.values()))
    parts = [f"{n}: {k / total:.0%}" for n, k in sorted(counts.items())]
    return f"Accepted proposals of {counted(total, 'block')}; {', '.join(parts)}."


def _lengths(cell: CellModel) -> dict[int, int]:
    """Blocks by accepted proposals; very long ones are one."""
    counts: dict[int, int] = {}
    for n, k in (cell.acceptance.accepted if cell.acceptance else {}).items():
        at = min(n, MOST_LENGTHS - 1)
        counts[at] = counts.get(at, 0) + k
    return counts


def parts_svg(title: str, cells: Sequence[CellModel], key: str) -> str:
    """What a block's time goes to: drafting, a step of the target, and the rest."""
    rows = with_parts(cells)[:MOST_ROWS]
    colours = (DRAFT, OBSERVED, BAND)
    with matplotlib_style():
        height = 0.75 + 0.2 * max(1, len(rows))
        figure = new_figure(height)
        axes = figure.subplots()
        figure.subplots_adjust(left=0.36, right=0.97, top=1 - 0.25 / height, bottom=0.42 / height)
        for i, (_, parts) in enumerate(rows):
            begin = 0.0
            for name, value, colour in zip(PARTS, parts, colours, strict=True):
                shown = max(0.0, value) * 1e3
                axes.barh(
                    len(rows) - 1 - i,
                    shown,
                    left=begin,
                    height=0.6,
                    color=colour,
                    linewidth=0,
                    label=name if i == 0 else None,
                )
                begin += shown
        axes.set_ylim(-0.7, max(1, len(rows)) - 0.3)
        axes.set_yticks(range(len(rows)), [where(c) for c, _ in reversed(rows)])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("milliseconds of a block")
        legend(figure, axes)
        return to_svg(figure, parts_words(title, cells), key)


PARTS = ("drafting", "a step of the target", "the rest")


def parts_words(title: str, cells: Sequence[CellModel]) -> str:
    """Say in words what `parts_svg` shows."""
    said = [
        f"{where(cell)}: "
        + ", ".join(f"{n} {v * 1e3:.3g} ms" for n, v in zip(PARTS, parts, strict=True))
        for cell, parts in with_parts(cells)[:MOST_ROWS]
    ]
    return f"Where a block's time goes, {title}. {'; '.join(said)}."


def with_parts(
    cells: Sequence[CellModel],
) -> list[tuple[CellModel, tuple[float, float, float]]]:
    """Cells of which the parts of a block are known, with these parts in seconds."""
    found = []
    for cell in cells:
        c = cell.cost
        if c is None or c.target is None or c.rest is None or c.proposals is None:
            continue
        found.append((cell, (c.proposals * (c.draft or 0.0), c.target, c.rest)))
    return found
