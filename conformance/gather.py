"""Gathering: a plan's requests through the workers, into evidence on disk.

What is on disk already is not sampled again, whether an arm is complete or not. What was gathered
before a failure is kept. While answers come in, a `Watch` may find a case so far from its law that
the rest need not be sampled.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from conformance import wire
from conformance.contract import Request
from conformance.errors import ConformanceError, EvidenceError
from conformance.evidence import Evidence, continued, load_evidence, stack_counts, stack_rounds
from conformance.plan import Case, RunPlan
from conformance.pool import Outcome, Task, run_tasks
from conformance.tinylm import Tokens
from conformance.watch import Watch


@dataclass(frozen=True, slots=True)
class Gathered:
    """The arms of one case, and the failure that ended it, if one did."""

    case: Case
    arms: dict[str, Evidence]
    error: ConformanceError | None = None
    detail: str = ""
    stopped: bool = False  # before the planned end, because the answer was known


Progress = Callable[[Case, str, int], None]  # case, arm, requests just answered


def evidence_path(folder: Path, case: Case, arm: str) -> Path:
    """Where an arm's evidence is kept."""
    return folder / "evidence" / f"{case.slug}.{arm}.npz"


def arm_seeds(plan: RunPlan, case: Case, arm: str) -> Tokens:
    """Distinct seeds in [0, 2**31) for every request of an arm; -1 under greedy decoding. [N]

    Half of them differ in one bit from the seed two requests before, which mostly has the same
    prompt: whoever loses a bit of the seed on the way answers those two alike.
    """
    assert case.workload is not None
    n = case.workload.requests
    if case.decoding.greedy:
        return np.full(n, -1)
    key = [plan.seed, zlib.crc32(case.id.encode()), zlib.crc32(arm.encode())]
    fresh, bits = np.random.default_rng(key), np.random.default_rng([*key, 1])
    used: dict[int, None] = {}  # in the order drawn, the same first ones whatever n
    drawn: list[int] = []
    while len(drawn) < n:
        i = len(drawn)
        seed = drawn[i - 2] ^ 1 << int(bits.integers(0, 31)) if i % 4 >= 2 else None
        while seed is None or seed in used:
            seed = int(fresh.integers(0, 2**31))
        used[seed] = None
        drawn.append(seed)
    return np.array(drawn, dtype=np.int64)


def arm_requests(plan: RunPlan, case: Case, arm: str) -> list[Request]:
    """Every request of an arm."""
    return seeded_requests(case, arm, arm_seeds(plan, case, arm))


def seeded_requests(case: Case, arm: str, seeds: Tokens) -> list[Request]:
    """Every request of an arm, with its seed. [N]"""
    work = case.workload
    assert work is not None
    return [
        Request(
            prompt=work.prompts[p],
            max_new_tokens=work.new_tokens,
            decoding=case.decoding,
            seed=None if seed < 0 else int(seed),
            speculate=arm == "speculative",
        )
        for p, seed in zip(work.prompt_of, seeds, strict=True)
    ]


class _Arm:
    """One arm while its chunks come in.

    What counts is the run of chunks from the first request on: which chunk comes first can depend
    on what is in it (accepted drafts are fast), and taking whatever has come would select.
    """

    def __init__(self, plan: RunPlan, case: Case, arm: str, folder: Path) -> None:
        asked = case.asked(arm)
        assert asked.workload is not None
        self.case, self.arm, self.path = case, arm, evidence_path(folder, case, arm)
        self.work = asked.workload
        self.seeds = arm_seeds(plan, asked, arm)
        self.requests = seeded_requests(asked, arm, self.seeds)
        self.kept = kept_evidence(asked, self.seeds, self.path)
        self.answers: list[wire.Json] = []  # of the requests after those kept, without a gap
        self.ahead: dict[int, Outcome] = {}  # by first request: chunks whose turn has not come
        self.seconds = 0.0 if self.kept is None else self.kept.seconds
        self.size = max(1, case.capabilities.max_batch)

    def tasks(self) -> Iterator[Task]:
        pair = self.case.oracle.probe.pair
        for begin in range(self.done, len(self.requests), self.size):
            chunk = tuple(self.requests[begin : begin + self.size])
            yield Task((self, begin), self.case.engine, pair, chunk)

    def take(self, begin: int, outcome: Outcome) -> Iterator[tuple[Tokens, Tokens]]:
        """File a chunk; yields tokens and prompts of the chunks whose turn this makes it."""
        self.ahead[begin] = outcome
        while self.done in self.ahead:
            at, now = self.done, self.ahead.pop(self.done)
            self.answers += now.completions
            self.seconds += now.seconds
            yield self._tokens(now.completions), self.work.prompt_of[at : self.done]

    @property
    def done(self) -> int:
        """Requests answered, from the first on."""
        return (0 if self.kept is None else len(self.kept.tokens)) + len(self.answers)

    @property
    def complete(self) -> bool:
        return self.done == len(self.requests)

    def evidence(self) -> Evidence:
        """What was kept and what has come."""
        begin = 0 if self.kept is None else len(self.kept.tokens)
        new = Evidence(
            tokens=self._tokens(self.answers),
            prompt=self.work.prompt_of[begin : self.done],
            seeds=self.seeds[begin : self.done],
            rounds=stack_rounds([a["rounds"] for a in self.answers]),
            seconds=self.seconds,
            planned=len(self.requests),
            counts=stack_counts([a["counts"] for a in self.answers]),
        )
        return new if self.kept is None else continued(self.kept, new)

    def _tokens(self, answers: Sequence[wire.Json]) -> Tokens:
        # an id beyond 64 bits is no less outside the vocabulary for being clipped to them
        limit = np.iinfo(np.int64)
        tokens = [[min(max(x, limit.min), limit.max) for x in a["tokens"]] for a in answers]
        return np.array(tokens, dtype=np.int64).reshape(-1, self.work.new_tokens)


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
    yield from run.already_complete()
    for most in run.limits():
        tasks = run.tasks(most)
        for outcome in run_tasks(tasks, min(jobs, most or jobs), timeout, run.wants, python):
            yield from run.take(outcome)


class _Gathering:
    """The arms of several cases while their chunks come in, in any order."""

    def __init__(
        self, plan: RunPlan, cases: Sequence[Case], folder: Path, progress: Progress
    ) -> None:
        self.cases, self.folder, self.progress = cases, folder, progress
        self.open: dict[str, list[_Arm]] = {}
        self.watches: dict[str, Watch] = {}
        self.ended: set[str] = set()
        for case in cases:
            arms = self.open[case.id] = [_Arm(plan, case, arm, folder) for arm in case.sampled_arms]
            self.watches[case.id] = Watch(plan, case)
            for arm in arms:
                progress(case, arm.arm, arm.done)

    def already_complete(self) -> Iterator[Gathered]:
        """Cases that need no more answers: all are on disk, or those that are settle it."""
        for case in self.cases:
            arms = self.open[case.id]
            for arm in arms:
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
            for arm in arms:  # under a name that is never gone on from
                found[arm.arm].save(arm.path.with_suffix(".partial.npz"))
            yield Gathered(case, found, outcome.error, outcome.detail)
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
            arm.evidence().save(arm.path)

    def _stop(self, case: Case) -> Gathered:
        self.ended.add(case.id)
        return Gathered(case, self._save(self.open[case.id]), stopped=True)

    @staticmethod
    def _save(arms: Sequence[_Arm]) -> dict[str, Evidence]:
        found = {}
        for arm in arms:
            found[arm.arm] = arm.evidence()
            found[arm.arm].save(arm.path)
        return found


def kept_evidence(case: Case, seeds: Tokens, path: Path) -> Evidence | None:
    """Evidence on disk: answers to the first of the requests planned with these seeds; None without
    a file.

    Raises
    ------
    EvidenceError
        If it was gathered under another plan, or cannot be read.
    """
    if not path.exists():
        return None
    assert case.workload is not None
    evidence = load_evidence(path)
    n = len(evidence.tokens)
    for what, found, planned in (
        ("seeds", evidence.seeds, seeds[:n]),
        ("prompts", evidence.prompt, case.workload.prompt_of[:n]),
        ("tokens", np.array(evidence.tokens.shape[1]), np.array(case.workload.new_tokens)),
    ):
        if not np.array_equal(found, planned):
            raise EvidenceError(
                f"{path} was gathered under another plan (its {what} differ); use another folder"
            )
    return replace(evidence, planned=case.workload.requests)


def _chunk(task: Task) -> tuple[_Arm, int]:
    """The arm a task belongs to, and the first request it carries."""
    assert isinstance(task.key, tuple)
    arm, begin = task.key
    assert isinstance(arm, _Arm)
    assert isinstance(begin, int)
    return arm, begin
