"""Verification of a whole bundle.

What was asked for is planned again, every case is judged again from its evidence, and the report is
built and rendered again; each line says whether that is what the bundle holds. What an engine did
besides answering (an ERROR, a refusal while it ran, times) cannot be worked out, and is listed as
somebody's word.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from conformance._version import __version__
from conformance.errors import ConformanceError, ReportError
from conformance.reports.bundle import FILES
from conformance.reports.manifest import FILE as MANIFEST
from conformance.reports.manifest import read_plain
from conformance.reports.model import SCHEMA_VERSION, Report, dump_json
from conformance.reports.stages import FILE, LARGEST_FILE, PREVIOUS, RunFile, as_text
from conformance.reports.verify.check import Check, Status, Verification, agrees, differs, stated
from conformance.reports.verify.files import check_files
from conformance.reports.verify.pages import check_pages
from conformance.reports.verify.probes import check_probes
from conformance.reports.verify.replay import Replay
from conformance.reports.verify.report import check_report

LARGEST_REPORT = 64 * 2**20  # bytes
Told = Callable[[Check], None]


def verify_bundle(
    folder: Path, expected: str | None = None, told: Told = lambda check: None
) -> Verification:
    """Work out again what a bundle claims.

    Parameters
    ----------
    folder : Path
        The bundle. Nothing in it is trusted.
    expected : str, optional
        SHA-256 that its manifest must have, known from elsewhere.
    told : callable, optional
        Told of every line as it is found.

    Raises
    ------
    ReportError
        If the folder holds no bundle, or that of a run that has not ended.
    """
    _check_ended(folder)
    checks: list[Check] = []

    def note(found: Sequence[Check]) -> None:
        for check in found:
            checks.append(check)
            told(check)

    files, sha256 = check_files(folder, expected)
    note(files)
    whole = _Whole(folder)
    try:
        for check in whole.checks():
            note([check])
    except ConformanceError as exc:
        note([differs("bundle", str(exc))])
    except Exception as exc:  # a bundle may be made so that something of ours breaks on it
        note([differs("bundle", f"cannot be worked out: {type(exc).__name__}: {exc}")])
    return whole.verification(checks, sha256)


def _check_ended(folder: Path) -> None:
    there = {
        name for name in (FILE, MANIFEST, FILES["json"], PREVIOUS) if os.path.lexists(folder / name)
    }
    if not there & {FILE, MANIFEST}:
        raise ReportError(
            f"{folder} is no bundle that can be verified: it has no {FILE}, and no {MANIFEST}"
        )
    if FILES["json"] not in there and (PREVIOUS in there or MANIFEST not in there):
        raise ReportError(
            f"the run in {folder} has not ended, and there is nothing to verify yet; finish it: "
            f"conformance run --resume {folder}"
        )


class _Whole:
    """A bundle while it is worked out again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report: Report | None = None
        self.replay: Replay | None = None
        self.wrong = False  # whether anything of the report differs

    def checks(self) -> Iterator[Check]:
        """Every line, in the order of the work."""
        for check in self._lines():
            self.wrong = self.wrong or check.status is Status.DIFFERS
            yield check
        if self.report is None:
            return
        if self.wrong:
            yield stated("pages", "not compared: report.json itself is not right")
            return
        yield from check_pages(self.folder, self.report)

    def verification(self, checks: Sequence[Check], sha256: str | None) -> Verification:
        """What came of it."""
        if self.report is None or self.replay is None:
            return Verification(tuple(checks), sha256)
        return Verification(
            tuple(checks),
            sha256,
            self.report.verdict.value,
            len(self.report.cases),
            tuple(self.replay.untested),
        )

    def _lines(self) -> Iterator[Check]:
        report = self.report = _read_report(self.folder / FILES["json"])
        run = _read_run(self.folder / FILE)
        yield _tool(run, report)
        told = {c.id: c for c in report.cases}
        if len(told) < len(report.cases):
            yield differs("plan", "the report has a case twice")
            return
        bad = False
        for check in check_probes(self.folder, report):
            bad = bad or check.status is Status.DIFFERS
            yield check
        if bad:
            yield differs("plan", "not worked out: the law is not that of these probes")
            return
        replay = self.replay = Replay(self.folder, run, told)
        yield from replay.checks()
        plan = replay.plan
        if plan is None or any(c.id not in replay.cases for c in plan.cases):
            yield differs("verdict", "not worked out: not every case that was planned was")
            return
        cases = [replay.cases[c.id] for c in plan.cases]
        yield from check_report(run, report, plan, cases)


def _tool(run: RunFile, report: Report) -> Check:
    if run.tool_version != report.tool_version:
        return differs(
            "tool", f"report.json is of version {report.tool_version}, run.json of another"
        )
    if report.tool_version != __version__:
        return stated(
            "tool",
            f"written by version {report.tool_version}; this is {__version__}: where lines differ, "
            "verify with that version",
        )
    return agrees("tool", f"version {__version__}")


def _read_report(path: Path) -> Report:
    data = read_plain(path, LARGEST_REPORT)
    try:
        found = Report.model_validate_json(data)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ReportError(
            f"{path} does not fit report schema {SCHEMA_VERSION}: {where}: {first['msg']}"
        ) from exc
    _as_written(path, data, dump_json(found), found.tool_version)
    return found


def _read_run(path: Path) -> RunFile:
    data = read_plain(path, LARGEST_FILE)
    try:
        found = RunFile.model_validate_json(data)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ReportError(f"{path} is no record of a run: {where}: {first['msg']}") from exc
    _as_written(path, data, as_text(found), found.tool_version)
    return found


def _as_written(path: Path, data: bytes, text: str, version: str) -> None:
    """Refuse JSON that says more than one thing: readers differ in which they take."""
    if version == __version__ and data != text.encode():
        raise ReportError(f"{path} is not as it was written")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ReportError(f"{path} has a name twice in one object")
        return dict(pairs)

    if version != __version__:
        json.loads(data, object_pairs_hook=once)
