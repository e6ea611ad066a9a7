"""A run, replayed from its evidence: planned, judged and added to, stage by stage.

A stage is planned only after the one before it has turned out to need it, so that nothing that a
bundle merely claims decides how much work it makes.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conformance.asked import evidence_path
from conformance.decide import unsampled
from conformance.errors import ConformanceError
from conformance.plan import Case, RunPlan
from conformance.reports.build import case_model
from conformance.reports.manifest import is_half
from conformance.reports.model import CaseModel
from conformance.reports.stages import EVIDENCE, PROBES, RunFile
from conformance.reports.verify.again import Judged, files_of, judge_again
from conformance.reports.verify.case import compared, without_evidence
from conformance.reports.verify.check import Check, agrees, differs, listed, stated
from conformance.result import CaseResult
from conformance.runner import asked, prepare
from conformance.served.laws import LAWS
from conformance.served.plan import ServedCase
from conformance.suite import SUITES
from conformance.verdict import CaseVerdict, Verdict

MOST_CASES = 5000
MOST_MISSING = 100  # cases that are planned, which takes time, although they have no evidence


@dataclass(slots=True)
class Replay:
    """A run while it is replayed.

    Parameters
    ----------
    folder : Path
        The bundle.
    run : RunFile
        What was asked.
    told : mapping of str to CaseModel
        What the report says, by case.
    cases : dict of str to CaseModel
        Cases as they come out.
    untested : list of str
        Cases that came to no verdict on the evidence.
    plan : RunPlan or None
        At the last stage that was replayed.
    """

    folder: Path
    run: RunFile
    told: Mapping[str, CaseModel]
    cases: dict[str, CaseModel] = field(default_factory=dict)
    untested: list[str] = field(default_factory=list)
    plan: RunPlan | None = None

    def checks(self) -> Iterator[Check]:
        """Every line, in the order of the work."""
        wrong = self._asked()
        if wrong:
            yield differs("plan", wrong)
            return
        ends = len(self.run.stages)
        waiting = None
        for stage in range(1, ends + 1):
            plan = prepare(self.run.settings(stage), self.run.said(), self.folder / PROBES)
            self.plan = plan
            if waiting is None:
                yield self._planned(plan)
                yield from self._nobodys(plan)
                waiting = {c.id for c in plan.cases}
            needed: dict[str, int] = {}
            for case in plan.cases:
                if case.id in waiting:
                    more = yield from self._case(plan, case, stage)
                    if more is None:
                        waiting.discard(case.id)
                    else:
                        needed[case.id] = more
            if stage < ends:
                wrong = self._added(stage, needed)
                if wrong:
                    yield differs("stages", wrong)
                    return
        if ends > 1:
            yield agrees("stages", f"{ends}: samples were added to what was INCONCLUSIVE alone")

    # --- what was asked ---------------------------------------------------------------------------

    def _asked(self) -> str:
        """What is wrong with the questions, before any of them is planned."""
        run = self.run
        said = run.said()
        for name in run.engines:
            if name not in said:
                return f"run.json does not say who {name!r:.100} is"
        if others := [name for name in said if name not in run.engines]:
            return f"run.json says who {others[0]!r:.100} is, whom nobody asked for"
        if run.stages[0]:
            return "run.json has numbers of requests for the first stage, which has none"
        settings = run.settings(1)
        each = 1 + len(settings.decodings) + sum(len(SUITES[name]) for name in settings.suites)
        if len(run.engines) * each > MOST_CASES:
            return f"it may have more than {MOST_CASES:,} cases"
        cases = asked(settings, said)
        nothing = [
            c.id
            for c in cases
            if not (c.refusal or c.error)
            and not any(os.path.lexists(p) for ps in files_of(self.folder, c).values() for p in ps)
        ]
        if len(nothing) > MOST_MISSING:
            return f"{len(nothing):,} cases have no evidence: {listed(nothing)}"
        return ""

    def _planned(self, plan: RunPlan) -> Check:
        planned = [c.id for c in plan.cases]
        found = list(self.told)
        if planned == found:
            return agrees(
                "plan",
                f"{len(planned)} cases, {plan.test_count} tests, profile {plan.profile.name}, "
                f"alpha {plan.alpha:g}, seed {plan.seed}",
            )
        missing = [i for i in planned if i not in self.told]
        extra = [i for i in found if i not in planned]
        parts = [f"missing case: {i}" for i in missing] + [f"nobody asked for: {i}" for i in extra]
        return differs("plan", "; ".join(parts[:20]) or "cases are not in the order planned")

    def _nobodys(self, plan: RunPlan) -> Iterator[Check]:
        """Evidence, and probes, of no case that was planned."""
        known = {
            path.name
            for case in plan.cases
            if case.workload is not None
            for paths in files_of(self.folder, case).values()
            for path in paths
        }
        served = [c for c in plan.cases if isinstance(c, ServedCase) and c.by_law]
        known |= {evidence_path(self.folder, c, LAWS).name for c in served}
        used = {c.probe for c in plan.cases if c.workload is not None and c.has_probe}
        for what, names in ((EVIDENCE, known), (PROBES, used)):
            folder = self.folder / what
            found = os.listdir(folder) if folder.is_dir() else []
            # halves that a killed process left are told with the files
            if nobodys := sorted(n for n in found if n not in names and not is_half(n)):
                yield differs(what, f"of no case that was planned: {listed(nobodys)}")

    # --- stages -----------------------------------------------------------------------------------

    def _added(self, stage: int, needed: Mapping[str, int]) -> str:
        """What is wrong with what a stage's successor asked for."""
        before, after = self.run.stages[stage - 1], self.run.stages[stage]
        wanted = {**before, **needed}
        if not needed:
            return f"at stage {stage} nothing was left to add to, and there is a stage {stage + 1}"
        for name in sorted({*wanted, *after}):
            if wanted.get(name) != after.get(name):
                return (
                    f"after stage {stage} the evidence of {name} needs {wanted.get(name)} requests "
                    f"an arm, and {after.get(name)} were asked for"
                )
        return ""

    def _case(self, plan: RunPlan, case: Case, stage: int) -> Generator[Check, None, int | None]:
        """Judge a case at a stage; returns how many requests the next one needs, if it has one."""
        told = self.told.get(case.id)
        later = stage < len(self.run.stages)
        try:
            judged = self._judged(plan, case, stage)
        except ConformanceError as exc:
            if told is not None:
                yield self._no_evidence(case, told, stage, str(exc))
            return None
        model = case_model(judged.result, stage)
        if later and model.needed is not None:
            return model.needed
        if later and judged.counted_whole and (more := self._asked_for(case, stage)):
            yield stated(
                f"case {case.id}",
                f"that stage {stage} needed more samples: the server counts over all stages",
            )
            return more
        if told is None:
            return None
        self.cases[case.id] = model
        if judged.beyond:
            yield differs(f"case {case.id}", f"it has answers that stage {stage} did not ask for")
            return None
        check = compared(told, model, judged.word or case.error or "")
        if model.verdict in (Verdict.NOT_SUPPORTED, Verdict.ERROR):
            self.untested.append(case.id)
        yield check
        return None

    def _asked_for(self, case: Case, stage: int) -> int | None:
        """Requests that the stage after this one added, if it did."""
        before, after = (s.get(case.id) for s in self.run.stages[stage - 1 : stage + 1])
        return None if after == before else after

    def _judged(self, plan: RunPlan, case: Case, stage: int) -> Judged:
        if case.workload is None:
            return Judged(unsampled(case))
        most = max(s.get(case.id, 0) for s in self.run.stages[stage - 1 :])
        return judge_again(plan, case, self.folder, most)

    def _no_evidence(self, case: Case, told: CaseModel, stage: int, why: str) -> Check:
        """The line of a case whose evidence cannot be judged: only an ERROR may say so itself."""
        what = f"case {case.id}"
        bare = case_model(
            CaseResult(case, CaseVerdict(Verdict.ERROR, told.why), error=told.error), stage
        )
        if not without_evidence(told, bare):
            return differs(what, why)
        self.cases[case.id] = bare
        self.untested.append(case.id)
        return stated(what, f"ERROR, no pass: {told.why} ({why})")
