"""What a person sees of a measurement in the terminal: a bar while it goes on, a summary after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from conformance.bench import run
from conformance.bench.memory import PAIRS
from conformance.bench.plan import Cell, Settings, cells_of
from conformance.reports.bench_model import ArmTimes, BenchReport, CellModel
from conformance.reports.bench_text import arm_of, glyph, groups, seconds, size, times, where
from conformance.reports.text import number
from conformance.text import excerpt, one_line

LONGEST_CELL = 1000


class Bar(run.Progress):
    """A bar over everything, in cells; a line per finished cell where there is no terminal."""

    def __init__(self, console: Console, settings: Settings, quiet: bool) -> None:
        self._console, self._quiet = console, quiet
        self._live = console.is_terminal and not quiet
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not self._live,
        )
        cells = sum(len(cells_of(settings, engine)) for engine in settings.engines)
        total = cells + (len(settings.engines) if settings.memory else 0)
        self._all = self._progress.add_task("bench", total=total)
        self._done = 0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def cell(self, cell: Cell, done: int, of: int) -> None:
        """Rounds of a cell are done."""
        self._show(one_line(cell.id, 100), done / of)

    def memory(self, engine: str, done: int, of: int) -> None:
        """Processes of an engine were watched."""
        self._show(one_line(f"{engine} / memory", 100), done / of)
        if done == of == 2 * PAIRS:
            self._done += 1

    def result(self, model: CellModel) -> None:
        """A cell is finished."""
        self._done += 1
        self._show(one_line(model.id, 100), 0.0)
        if not self._live and not self._quiet:
            self._console.print(Text(one_line(f"{model.id}: {model.sentence}")))

    def _show(self, words: str, part: float) -> None:
        self._progress.update(self._all, description=words, completed=self._done + part)


def print_bench(console: Console, report: BenchReport, files: Mapping[str, Path]) -> None:
    """Whether it pays, a table for each engine and decoding, and where to read more."""
    for group in groups(report):
        table = Table(
            title=_text(f"{group.engine}, {group.decoding}"),
            caption=_text(f"Exactness: {group.audit.sentence}"),
            title_justify="left",
            caption_justify="left",
            title_style="bold",
            caption_style="",
        )
        table.add_column("setting")
        for head in ("speed-up (95 %)", "tokens/s, control", "first token, control"):
            table.add_column(head, justify="right")
        for cell in group.cells:
            table.add_row(
                Text(f"{glyph(cell.outcome)} {where(cell)}"),
                Text(times(cell.speedup)),
                Text(_both(cell, lambda arm: number(arm.tokens_per_second.estimate))),
                Text(_both(cell, lambda arm: seconds(arm.first_token.median.estimate))),
            )
        console.print(table)
        for cell in group.cells:
            if cell.status != "measured":
                console.print(_text(f"{where(cell)}: {cell.sentence}"))
    for m in report.memory:
        if m.with_draft:
            console.print(
                _text(
                    f"{m.engine}: {size(median(m.with_draft))} of memory with the draft, "
                    f"{size(median(m.without))} without."
                )
            )
    for note in report.notes:
        console.print(_text(f"- {note}"))
    console.print(Text(report.headline, "bold"))
    if "html" in files:
        console.print(Text(f"Report: {files['html']}"))


def _both(cell: CellModel, words: Callable[[ArmTimes], str]) -> str:
    """The speculative arm's number and the control arm's."""
    found = [arm_of(cell, name) for name in ("speculative", "control")]
    return ", ".join("–" if arm is None else words(arm) for arm in found)


def _text(text: str) -> Text:
    """Text from an engine, without markup or terminal control characters."""
    return Text(excerpt(text, LONGEST_CELL))
