"""The compatibility page: what published reports say of each engine, gathered in one table.

A published report is a run's ``report.json`` under a name of its own, unchanged but for tracebacks:
they are full of the paths of somebody's machine, and only their last line is kept. The page is made
from nothing else, so that every cell can be looked up, and is made anew whenever one is added.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from conformance.errors import ReportError
from conformance.reports.markdown import escape
from conformance.reports.model import CaseModel, Report, dump_json, load_report
from conformance.reports.text import web_address
from conformance.reports.wording import LOOKS
from conformance.verdict import Verdict

PAGE = "README.md"
COUNTED = (Verdict.EXACT, Verdict.NOT_EXACT, Verdict.INCONCLUSIVE, Verdict.ERROR)
HEAD = """\
# Which engines are exact

Made by `conformance publish` from the reports in this folder, never by hand. EXACT says that no
test rejected and that a departure of the size beside it would have been caught: a statement about
that version, method and decoding, on the probe models. NOT EXACT says that a departure was found,
with a false-alarm probability of at most alpha for its whole run.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One case of one published report."""

    report: Report
    case: CaseModel
    file: str

    @property
    def engine(self) -> str:
        """The engine's name without method and options."""
        return re.split("[:,]", self.case.engine)[0]

    @property
    def version(self) -> str:
        """The version that was judged."""
        return next((e.version for e in self.report.engines if e.name == self.case.engine), "")

    @property
    def method(self) -> str:
        """How it speculates, in words."""
        return next((e.method for e in self.report.engines if e.name == self.case.engine), "")

    @property
    def key(self) -> tuple[str, ...]:
        """What a later report of the same thing replaces."""
        return (self.case.engine, self.version, self.case.probe, self.case.decoding)


def publish(bundle: Path, folder: Path) -> Path:
    """Copy a run's report into the folder of published ones, and make the page anew.

    Parameters
    ----------
    bundle : Path
        A run's folder, or its ``report.json``.
    folder : Path
        Of published reports; created where missing.

    Returns
    -------
    Path
        The copy.

    Raises
    ------
    ReportError
        If the report cannot be read, holds no case, or the folder cannot be written.
    """
    report = load_report(bundle / "report.json" if bundle.is_dir() else bundle)
    if not report.cases:
        raise ReportError(f"{bundle} holds no case; there is nothing to publish")
    names = {(e.name, e.version) for e in report.engines}
    stem = "-".join(f"{name}-{version}" for name, version in sorted(names))
    safe = re.sub(r"[^A-Za-z0-9.]+", "-", stem).strip("-.")[:120] or "engine"
    path = folder / f"{safe}-{report.settings.profile}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        cases = [case.model_copy(update={"error": _last_line(case.error)}) for case in report.cases]
        _write(path, dump_json(report.model_copy(update={"cases": cases})))
        _write(folder / PAGE, render_page(folder))
    except OSError as exc:
        raise ReportError(f"cannot publish in {folder}: {exc.strerror or exc}") from exc
    return path


def render_page(folder: Path) -> str:
    """The page of all reports in a folder, as Markdown.

    Raises
    ------
    ReportError
        If one of them cannot be read.
    """
    return "\n".join([HEAD.rstrip(), *_sections(rows_of(folder))]) + "\n"


def rows_of(folder: Path) -> list[Row]:
    """Every published case, the latest of each kind, by engine and version."""
    latest: dict[tuple[str, ...], Row] = {}
    for path in sorted(folder.glob("*.json")):
        report = load_report(path)
        for row in (Row(report, case, path.name) for case in report.cases):
            before = latest.get(row.key)
            if before is None or before.report.created <= report.created:
                latest[row.key] = row
    # in the order of the report, a method's rows together
    return sorted(latest.values(), key=lambda row: (row.engine, row.version, row.case.engine))


def _sections(rows: list[Row]) -> Iterator[str]:
    methods = [
        (of, list(mine))
        for of, mine in groupby(rows, lambda r: (r.engine, r.version, r.case.engine))
    ]
    yield from _overview(methods)
    above = None
    for (engine, version, _), mine in methods:
        if (engine, version) != above:
            above = (engine, version)
            yield f"\n## {escape(engine, 80)} {escape(version, 80)}\n"
            yield from _home(mine[0])
        yield from _method(mine)


def _overview(methods: Sequence[tuple[tuple[str, str, str], list[Row]]]) -> Iterator[str]:
    """One line a method: how many questions ended how."""
    yield f"\n| Engine | {' | '.join(f'{LOOKS[v].emoji} {v.value}' for v in COUNTED)} | Not asked |"
    yield f"| --- |{' ---: |' * (len(COUNTED) + 1)}"
    for (_, version, name), mine in methods:
        counts = [sum(r.case.verdict is v for r in mine) for v in COUNTED]
        rest = len(mine) - sum(counts)
        cells = " | ".join(str(n) if n else "" for n in (*counts, rest))
        yield f"| {escape(name, 100)} {escape(version, 80)} | {cells} |"


def _home(row: Row) -> Iterator[str]:
    home = next((e.homepage for e in row.report.engines if e.name == row.case.engine), "")
    if home:
        plain = web_address(home) and re.fullmatch(r"[\w:/.~%+-]+", home, re.ASCII)
        yield f"<{home}>\n" if plain else f"{escape(home, 200)}\n"


def _method(rows: list[Row]) -> Iterator[str]:
    """A method's cases, and in one sentence what it was not asked."""
    yield f"\n### {escape(rows[0].case.engine, 100)} ({escape(rows[0].method, 80)})\n"
    asked = [r for r in rows if r.case.verdict is not Verdict.NOT_SUPPORTED]
    if asked:
        yield "| Question | Verdict | Ruled out, or why | Answers | Report |"
        yield "| --- | --- | --- | ---: | --- |"
        yield from map(_line, asked)
    left = [r for r in rows if r.case.verdict is Verdict.NOT_SUPPORTED]
    if left:
        told = "; ".join(
            f"{escape(r.case.decoding, 120)} ({escape(r.case.why, 120)})" for r in left
        )
        yield f"\nNot asked: {told}."


def _line(row: Row) -> str:
    case = row.case
    answers = sum(arm.requests for arm in case.arms if arm.arm == "speculative")
    probe = f", {case.probe}" if case.probe else ""
    profile = row.report.settings.profile
    date = row.report.created.date().isoformat()
    said = "; ".join(case.ruled_out[:2]) if case.ruled_out else case.why
    cells = (
        escape(f"{case.decoding}{probe}", 160),
        f"{LOOKS[case.verdict].emoji} {case.verdict.value}",
        escape(said, 300),
        f"{answers:,}",
        f"[{profile}, {date}]({row.file})",
    )
    return f"| {' | '.join(cells)} |"


def _last_line(error: str | None) -> str | None:
    lines = (error or "").strip().splitlines()
    return lines[-1] if lines else None


def _write(path: Path, text: str) -> None:
    half = path.with_name(f".{path.name}.half")
    half.write_text(text, encoding="utf-8")
    os.replace(half, path)
