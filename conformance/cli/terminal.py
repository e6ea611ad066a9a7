"""What a person sees in the terminal: progress while sampling, a summary at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from conformance.plan import Case, RunPlan
from conformance.reports.expectations import beside, sentences
from conformance.reports.model import CaseModel, Report
from conformance.reports.wording import LOOKS
from conformance.result import CaseResult
from conformance.text import excerpt
from conformance.verdict import Verdict

STYLES = {
    Verdict.EXACT: "bold green",
    Verdict.NOT_EXACT: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.ERROR: "bold magenta",
    Verdict.NOT_SUPPORTED: "dim",
}
LONGEST_CELL = 2000


class Bars:
    """Progress bars with time left; a line per finished case where there is no terminal."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._live = console.is_terminal and not quiet
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not self._live,
        )
        self._bars: dict[str, TaskID] = {}
        self._all: TaskID | None = None

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def planned(self, plan: RunPlan) -> None:
        """Open a bar for every case that will be sampled."""
        total = 0
        for case in plan.cases:
            if case.workload is not None:
                size = case.workload.requests * len(case.arms)
                total += size
                self._bars[case.id] = self._progress.add_task(case.id, total=size, start=False)
        self._all = self._progress.add_task("all", total=total)
        if not self._live and not self._quiet:
            self._console.print(
                f"{len(plan.cases)} cases, {total:,} requests, {plan.test_count} tests share "
                f"alpha = {plan.alpha:g}",
                highlight=False,
            )

    def progress(self, case: Case, arm: str, requests: int) -> None:
        """Requests of an arm were answered."""
        del arm  # one bar shows both
        bar = self._bars[case.id]
        self._progress.start_task(bar)
        self._progress.advance(bar, requests)
        if self._all is not None:
            self._progress.advance(self._all, requests)

    def result(self, result: CaseResult) -> None:
        """A case was judged."""
        verdict = result.verdict.verdict
        bar = self._bars.get(result.case.id)
        if bar is not None:
            self._progress.update(bar, description=f"{result.case.id}: {verdict.value}")
            self._progress.stop_task(bar)
        if not self._live and not self._quiet:
            self._console.print(Text(f"{result.case.id}: {verdict.value}"))


def print_summary(console: Console, report: Report, files: Mapping[str, Path]) -> None:
    """The verdict, a line per case, and where to read more."""
    table = Table(show_lines=True)
    table.add_column("case", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("why, or what a pass rules out", overflow="fold", ratio=1)
    for case in report.cases:
        name = f"{case.engine}\n{case.probe}\n{case.decoding}"
        table.add_row(
            plain(name), Text(case.verdict.value, STYLES[case.verdict]), plain(_say(case))
        )
    console.print(table)
    headline = Text(report.verdict.value, STYLES[report.verdict])
    console.print(headline.append(f": {LOOKS[report.verdict].meaning}.", "default"))
    console.print(plain(report.why))
    if report.verdict is Verdict.EXACT:
        console.print(
            "What is ruled out would have been caught with probability "
            f"{report.settings.power:.1%} or more in each case.",
            highlight=False,
        )
    for sentence in sentences(report.cases, report.expectations):
        console.print(plain(sentence))
    console.print(
        f"alpha {report.settings.alpha:g} over {report.settings.tests} tests, profile "
        f"{report.settings.profile}, {report.seconds:.0f} s. Exit status {report.exit_code}.",
        highlight=False,
    )
    if "html" in files:
        console.print(Text(f"Report: {files['html']}"))


def _say(case: CaseModel) -> str:
    exact = case.verdict is Verdict.EXACT
    lines = [f"- {line}" for line in case.ruled_out] if exact else [case.why]
    return "\n".join([*filter(None, [beside(case)]), *lines])


def plain(text: str) -> Text:
    """Text from an engine, without markup or terminal control characters."""
    return Text(excerpt(text, LONGEST_CELL))
