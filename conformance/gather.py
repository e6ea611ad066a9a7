"""Gathering: a plan's requests through the workers, into evidence on disk.

What is on disk already is not sampled again, whether an arm is complete or not; answers are saved
every few seconds (`conformance.parts`). What was gathered before a failure is kept. While answers
come in, a `Watch` may find a case so far from its law that the rest need not be sampled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.arm import Arm, kept_evidence
from conformance.asked import arm_requests, arm_seeds, evidence_path, questions
from conformance.errors import ConformanceError, EvidenceError
from conformance.evidence import Evidence
from conformance.parts import Autosave
from conformance.plan import Case, RunPlan
from conformance.pool import Outcome, Task, run_tasks
from conformance.watch import Watch

__all__ = [
    "Gathered",
    "Progress",
    "arm_requests",
    "arm_seeds",
    "evidence_path",
    "gather",
    "kept_evidence",
    "questions",
]


@dataclass(frozen=True, slots=True)
class Gathered:
    """The arms of one case, and the failure that ended it, if one did."""

    case: Case
    arms: dict[str, Evidence]
    error: ConformanceError | None = None
    detail: str = ""
    stopped: bool = False  # before the planned end, because the answer was known


Progress = Callable[[Case, str, int], None]  # case, arm, requests just answered


def gather(
    plan: RunPlan,
    cases: Sequence[Case],
    folder: Path,
    jobs: int = 1,
    timeout: float = 300.0,
    progress: Progress | None = None,
    python: str | None = None,
) -> Iterator[Gathered]:
    """Sample cases; each is yielded as soon as it is complete or has failed.

    Parameters
    ----------
    plan : RunPlan
        Seeds come from it.
    cases : sequence of Case
        Which of its cases; those not sampled (refused) are the caller's to leave out.
    folder : Path
        Evidence is kept under it.
    jobs : int
        Worker processes.
    timeout : float
        Seconds an engine may take for one batch.
    progress : callable, optional
        Told of every batch answered.
    python : str, optional
        The Python to run engines with.
    """
    run = _Gathering(plan, cases, folder, progress or (lambda case, arm, requests: None))
    yield from run.already_ended()
    with Autosave(run.save_parts) as saving:
        for most in run.limits():
            tasks = run.tasks(most)
            for outcome in run_tasks(tasks, min(jobs, most or jobs), timeout, run.wants, python):
                saving.check()
                yield from run.take(outcome)


class _Gathering:
    """The arms of several cases while their chunks come in, in any order."""

    def __init__(
        self, plan: RunPlan, cases: Sequence[Case], folder: Path, progress: Progress
    ) -> None:
        self.cases, self.folder, self.progress = cases, folder, progress
        self.open: dict[str, list[Arm]] = {}
        self.watches: dict[str, Watch] = {}
        self.ended: set[str] = set()
        for case in cases:
            self.open[case.id] = [Arm(plan, case, arm, folder) for arm in case.sampled_arms]
            self.watches[case.id] = Watch(plan, case)

    def already_ended(self) -> Iterator[Gathered]:
        """Cases that need no more answers: all are on disk, or those that are settle it; or they
        have failed, or what is on disk cannot be gone on from.
        """
        for case in self.cases:
            try:
                found = self._failed_before(case)
                if found is None:
                    for arm in self.open[case.id]:
                        arm.take_up()
            except EvidenceError as exc:
                found = Gathered(case, {}, exc)
            if found is not None:
                self.ended.add(case.id)
                yield found
                continue
            yield from self._complete(case)

    def _failed_before(self, case: Case) -> Gathered | None:
        """A failure that this case ended with, which stands: whoever may answer again may choose
        among the answers.
        """
        arms = self.open[case.id]
        before = {arm.arm: arm.failed_before() for arm in arms}
        known = [b for b in before.values() if b is not None]
        if not known:
            return None
        _, error, detail = known[0]
        found = {}
        for arm in arms:  # the process may have been killed before it had saved all of them
            one = before[arm.arm]
            if one is None:
                arm.take_up()
            found[arm.arm] = arm.evidence() if one is None else one[0]
        return self._fail(case, found, error, detail)

    def _complete(self, case: Case) -> Iterator[Gathered]:
        arms = self.open[case.id]
        for arm in arms:
            self.progress(case, arm.arm, arm.done)
            if arm.kept is not None:
                self.watches[case.id].add(arm.arm, arm.kept.tokens, arm.kept.prompt)
        if all(a.complete for a in arms):
            self.ended.add(case.id)
            yield Gathered(case, {a.arm: a.evidence() for a in arms})
        elif self.watches[case.id].settled():
            yield self._stop(case)

    def limits(self) -> Sequence[int | None]:
        """The limits that engines set to how many of them run side by side; one after the other."""
        return tuple(dict.fromkeys(case.capabilities.processes for case in self.cases))

    def tasks(self, processes: int | None) -> Iterator[Task]:
        """Every chunk still to be answered by engines with that limit; the arms of a case advance
        together.
        """
        limit = {case.id: case.capabilities.processes for case in self.cases}
        for name, arms in self.open.items():
            if name not in self.ended and limit[name] == processes:
                for tasks in itertools.zip_longest(*(arm.tasks() for arm in arms)):
                    yield from (task for task in tasks if task is not None)

    def wants(self, task: Task) -> bool:
        """A case that has failed, or is settled, needs no more answers."""
        return _chunk(task)[0].case.id not in self.ended

    def take(self, outcome: Outcome) -> Iterator[Gathered]:
        """File one chunk's outcome; yields the case if that completes or ends it."""
        arm, begin = _chunk(outcome.task)
        case = arm.case
        if case.id in self.ended:
            return
        arms = self.open[case.id]
        if outcome.error is not None:
            self.ended.add(case.id)
            found = {arm.arm: arm.evidence() for arm in arms}
            yield self._fail(case, found, outcome.error, outcome.detail)
            return
        watch = self.watches[case.id]
        for tokens, prompt in arm.take(begin, outcome):
            watch.add(arm.arm, tokens, prompt)
        self.progress(case, arm.arm, len(outcome.completions))
        if all(a.complete for a in arms):
            self.ended.add(case.id)
            yield Gathered(case, self._save(arms))
        elif watch.settled():
            yield self._stop(case)
        elif arm.complete:
            arm.save()

    def save_parts(self) -> None:
        """Save what has come of the cases that have not ended."""
        for name, arms in self.open.items():
            for arm in arms if name not in self.ended else ():
                arm.save_part()

    def _stop(self, case: Case) -> Gathered:
        self.ended.add(case.id)
        return Gathered(case, self._save(self.open[case.id]), stopped=True)

    def _fail(
        self, case: Case, found: dict[str, Evidence], error: ConformanceError, detail: str
    ) -> Gathered:
        """End a case as failed: all files say so before any other goes."""
        arms = self.open[case.id]
        for arm in arms:
            arm.save_failed(found[arm.arm], error, detail)
        for arm in arms:
            arm.parts.remove(whole=True)
        return Gathered(case, found, error, detail)

    @staticmethod
    def _save(arms: Sequence[Arm]) -> dict[str, Evidence]:
        return {arm.arm: arm.save() for arm in arms}


def _chunk(task: Task) -> tuple[Arm, int]:
    """The arm a task belongs to, and the first request it carries."""
    assert isinstance(task.key, tuple)
    arm, begin = task.key
    assert isinstance(arm, Arm)
    assert isinstance(begin, int)
    return arm, begin
