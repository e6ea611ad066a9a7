"""Verification of a whole bundle.

What was asked for is planned again, every case is judged again from its evidence, and the report is
built and rendered again; each line says whether that is what the bundle holds. What an engine did
besides answering (an ERROR, a refusal while it ran, times) cannot be worked out, and is listed as
somebody's word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance._version import __version__
from conformance.decide import unsampled
from conformance.errors import ConformanceError, ReportError
from conformance.gather import evidence_path
from conformance.plan import Case, RunPlan
from conformance.reports.build import build_report, case_model
from conformance.reports.bundle import FILES
from conformance.reports.model import CaseModel, Report, dump_json, load_report
from conformance.reports.stages import EVIDENCE, PROBES, RunFile, read_run_file
from conformance.reports.verify.again import judge_again
from conformance.reports.verify.check import (
    Check,
    Status,
    Verification,
    agrees,
    differs,
    listed,
    stated,
)
from conformance.reports.verify.files import check_files
from conformance.reports.verify.pages import check_pages
from conformance.reports.verify.probes import check_probes
from conformance.reports.verify.same import differences
from conformance.runner import prepare
from conformance.verdict import Verdict

LARGEST_REPORT = 256 * 2**20  # bytes
SHOWN_DIFFERENCES = 4
# What a run says of itself, and nobody can work out from its evidence.
WORD = ("tool_version", "created", "seconds", "command", "environment", "measured")
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
        If the folder holds no bundle.
    """
    checks: list[Check] = []

    def note(found: Sequence[Check]) -> None:
        for check in found:
            checks.append(check)
            told(check)

    files, sha256 = check_files(folder, expected)
    note(files)
    try:
        run, report = _read(folder)
    except ConformanceError as exc:
        note([differs("report", str(exc))])
        return Verification(tuple(checks), sha256)
    for find in (_Again(folder, run, report).checks, lambda: check_pages(folder, report)):
        try:
            for check in find():
                note([check])
        except Exception as exc:  # a bundle may be made so that something of ours breaks on it
            note([differs("bundle", f"cannot be worked out: {type(exc).__name__}: {exc}")])
    return Verification(tuple(checks), sha256)


def _read(folder: Path) -> tuple[RunFile, Report]:
    path = folder / FILES["json"]
    if not path.exists():
        raise ReportError(f"the run has not ended; finish it: conformance run --resume {folder}")
    if path.is_file() and path.stat().st_size > LARGEST_REPORT:
        raise ReportError(f"{path} is larger than {LARGEST_REPORT:,} bytes")
    return read_run_file(folder), load_report(path)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A case, and the plan of the stage it was judged at."""

    plan: RunPlan
    case: Case


class _Again:
    """What a bundle's run and report give when they are worked out again."""

    def __init__(self, folder: Path, run: RunFile, report: Report) -> None:
        self.folder, self.run, self.report = folder, run, report
        self.said = run.said()
        self.plans: dict[int, RunPlan] = {}

    def plan(self, stage: int) -> RunPlan:
        """The plan at a stage."""
        if stage not in self.plans:
            settings = self.run.settings(stage)
            self.plans[stage] = prepare(settings, self.said, self.folder / PROBES)
        return self.plans[stage]

    def checks(self) -> Iterator[Check]:
        """Every line, in the order of the work."""
        if missing := [name for name in self.run.engines if name not in self.said]:
            yield differs("plan", f"run.json does not say who {missing[0]!r:.100} is")
            return
        bad = False
        for check in check_probes(self.folder, self.run, self.report):
            bad = bad or check.status is Status.DIFFERS
            yield check
        if bad:
            yield differs("plan", "not worked out: the law is not that of these probes")
            return
        plan = self.plan(len(self.run.stages))
        yield self._cases_planned(plan)
        if nobodys := self._nobodys_evidence(plan):
            yield differs("evidence", f"of no case that was planned: {listed(nobodys)}")
        told = {c.id: c for c in self.report.cases}
        cases = []
        for case in plan.cases:
            if case.id in told:
                check, model = self._case(case, told[case.id])
                yield check
                cases.append(model)
        yield from self._run(plan, cases)

    def _cases_planned(self, plan: RunPlan) -> Check:
        planned, told = [c.id for c in plan.cases], [c.id for c in self.report.cases]
        if planned == told:
            return agrees("plan", f"{len(planned)} cases, {plan.test_count} tests, as asked for")
        missing = [i for i in planned if i not in told]
        extra = [i for i in told if i not in planned]
        parts = [f"missing case: {i}" for i in missing] + [f"nobody asked for: {i}" for i in extra]
        return differs("plan", "; ".join(parts) or "cases are not in the order planned")

    def _nobodys_evidence(self, plan: RunPlan) -> list[str]:
        known = tuple(f"{c.slug}." for c in plan.cases if c.workload is not None)
        found = (self.folder / EVIDENCE).glob("*")
        return sorted(p.name for p in found if not p.name.startswith(known))

    def _case(self, case: Case, told: CaseModel) -> tuple[Check, CaseModel]:
        """The line of one case, and the case as it should be reported."""
        what = f"case {case.id}"
        if not 1 <= told.stage <= len(self.run.stages):
            return differs(what, f"is said to be judged at stage {told.stage}"), told
        plan = self.plan(told.stage)
        (mine,) = (c for c in plan.cases if c.id == case.id)
        try:
            return self._judged(what, _Planned(plan, mine), told)
        except ConformanceError as exc:
            return differs(what, str(exc)), told

    def _judged(self, what: str, at: _Planned, told: CaseModel) -> tuple[Check, CaseModel]:
        if at.case.workload is None:
            again = case_model(unsampled(at.case), told.stage)
            return self._compared(what, told, again), again
        if word := self._word(at, told):
            return word, told
        result = judge_again(at.plan, at.case, self.folder)
        again = case_model(result, told.stage)
        if early := self._earlier(at, told.stage):
            return differs(what, early), again
        return self._compared(what, told, again), again

    def _word(self, at: _Planned, told: CaseModel) -> Check | None:
        """The line of a case that ended with the engine's failure or refusal, without all of its
        evidence; None if its evidence can be judged.
        """
        if told.verdict not in (Verdict.ERROR, Verdict.NOT_SUPPORTED):
            return None
        there = [evidence_path(self.folder, at.case, arm).exists() for arm in at.case.sampled_arms]
        if all(there):
            return None
        return stated(
            f"case {told.id}",
            f"{told.verdict.value}: the engine's failure or refusal is the run's word; it counts "
            "as no pass",
        )

    def _earlier(self, at: _Planned, stage: int) -> str | None:
        """What is wrong with the stages before: samples may be added only to what was INCONCLUSIVE
        and said how many it needed.
        """
        for earlier in range(1, stage):
            plan = self.plan(earlier)
            (case,) = (c for c in plan.cases if c.id == at.case.id)
            result = judge_again(plan, case, self.folder, (at.plan, at.case))
            needed = self.run.stages[earlier].get(case.id)
            verdict = result.verdict
            if verdict.verdict is not Verdict.INCONCLUSIVE or verdict.needed != needed:
                return (
                    f"at stage {earlier} the evidence gives {verdict.verdict.value}, needing "
                    f"{verdict.needed} requests, where {needed} were then asked for"
                )
        return None

    def _compared(self, what: str, told: CaseModel, again: CaseModel) -> Check:
        # a traceback names files of another machine; what was expected is for the whole run to say
        skip = {"error", "expected", *(() if told.error is None else ("why",))}
        # Holm's adjustment is over the whole run, and the time was measured
        mine, theirs = (_without(_plain(m, skip), ("adjusted_p", "seconds")) for m in (again, told))
        found = list(differences(theirs, mine))
        if not found:
            ruled_out = f", {len(told.ruled_out)} certificates" if told.ruled_out else ""
            return agrees(what, f"{told.verdict.value}, {len(told.findings)} findings{ruled_out}")
        if told.verdict is not again.verdict:
            found = [
                f"report says {told.verdict.value}, the evidence gives {again.verdict.value}: "
                f"{again.why}"
            ]
        return differs(what, "; ".join(found[:SHOWN_DIFFERENCES]))

    def _run(self, plan: RunPlan, cases: Sequence[CaseModel]) -> Iterator[Check]:
        """The lines about the run as a whole."""
        told = self.report
        if len(cases) != len(plan.cases):
            yield differs("verdict", "not worked out: cases are missing")
            return
        again = build_report(
            plan,
            cases,
            seconds=told.seconds,
            jobs=told.settings.jobs,
            command=told.command,
            expectations=self.run.expectations,
            created=told.created,
        )
        mine, theirs = (json.loads(dump_json(r)) for r in (again, told))
        for name in WORD:
            mine.pop(name)
            theirs.pop(name)
        yield self._measured(again)
        for what in ("settings", "engines", "probes"):
            found = list(differences(theirs.pop(what), mine.pop(what), what))
            detail = "; ".join(found[:SHOWN_DIFFERENCES]) or "as planned"
            yield (differs if found else agrees)(what, detail)
        found = list(
            differences(_seconds_out(theirs.pop("cases")), _seconds_out(mine.pop("cases")))
        )
        holm = [f for f in found if ".adjusted_p" in f]
        detail = "; ".join(holm[:SHOWN_DIFFERENCES]) or "Holm's adjustment over all tests"
        yield (differs if holm else agrees)("adjusted p-values", detail)
        found = [f for f in found if ".expected" in f] + list(differences(theirs, mine))
        detail = "; ".join(found[:SHOWN_DIFFERENCES])
        detail = detail or f"{told.verdict.value}, exit status {told.exit_code}"
        yield (differs if found else agrees)("verdict", detail)
        if told.tool_version != __version__:
            yield stated(
                "tool",
                f"written by version {told.tool_version}; this is {__version__}: where "
                "lines differ, verify with that version",
            )
        yield stated("times, command line, machine", "as the run wrote them down")

    def _measured(self, again: Report) -> Check:
        """What the report says of the suite itself."""
        what = "how the suite was tested"
        if self.report.tool_version != __version__:
            return stated(what, f"as version {self.report.tool_version} said")
        same = self.report.measured == again.measured
        return (
            agrees(what, "the tables of this version")
            if same
            else differs(what, "these are not the tables of this version")
        )


def _plain(case: CaseModel, skip: set[str]) -> Any:
    return json.loads(case.model_dump_json(exclude=skip))


def _without(data: Any, names: Sequence[str]) -> Any:
    if isinstance(data, dict):
        return {k: _without(v, names) for k, v in data.items() if k not in names}
    return [_without(v, names) for v in data] if isinstance(data, list) else data


def _seconds_out(data: Any) -> Any:
    return _without(data, ("seconds",))
