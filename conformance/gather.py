"""Gathering: a plan's requests through the workers, into evidence on disk.

A case whose evidence is on disk is not sampled again. What was gathered before a failure is kept.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.contract import Request
from conformance.errors import ConformanceError, EvidenceError
from conformance.evidence import Evidence, load_evidence, stack_rounds
from conformance.plan import Case, RunPlan
from conformance.pool import Outcome, Task, run_tasks
from conformance.tinylm import Tokens


@dataclass(frozen=True, slots=True)
class Gathered:
    """The arms of one case, and the failure that ended it, if one did."""

    case: Case
    arms: dict[str, Evidence]
    error: ConformanceError | None = None
    detail: str = ""


Progress = Callable[[Case, str, int], None]  # case, arm, requests just answered


def evidence_path(folder: Path, case: Case, arm: str) -> Path:
    """Where an arm's evidence is kept."""
    return folder / "evidence" / f"{case.slug}.{arm}.npz"


def arm_seeds(plan: RunPlan, case: Case, arm: str) -> Tokens:
    """Distinct seeds in [0, 2**31) for every request of an arm; -1 under greedy decoding. [N]"""
    assert case.workload is not None
    n = case.workload.requests
    if case.decoding.greedy:
        return np.full(n, -1)
    rng = np.random.default_rng([plan.seed, zlib.crc32(case.id.encode()), zlib.crc32(arm.encode())])
    seeds = np.zeros(0, dtype=np.int64)
    while len(seeds) < n:  # distinct, in the order drawn
        more = np.concatenate([seeds, rng.integers(0, 2**31, size=n)])
        seeds = more[np.sort(np.unique(more, return_index=True)[1])]
    return seeds[:n]


def arm_requests(plan: RunPlan, case: Case, arm: str) -> list[Request]:
    """Every request of an arm."""
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
        for p, seed in zip(work.prompt_of, arm_seeds(plan, case, arm), strict=True)
    ]


class _Arm:
    """One arm while its chunks come in."""

    def __init__(self, plan: RunPlan, case: Case, arm: str, folder: Path) -> None:
        self.case, self.arm, self.path = case, arm, evidence_path(folder, case, arm)
        self.requests = arm_requests(plan, case, arm)
        self.seeds = arm_seeds(plan, case, arm)
        self.chunks: dict[int, Outcome] = {}
        size = max(1, case.capabilities.max_batch)
        self.begins = list(range(0, len(self.requests), size))
        self.size = size

    def tasks(self) -> Iterator[Task]:
        pair = self.case.oracle.probe.pair
        for begin in self.begins:
            chunk = tuple(self.requests[begin : begin + self.size])
            yield Task((self, begin), self.case.engine, pair, chunk)

    @property
    def complete(self) -> bool:
        return len(self.chunks) == len(self.begins)

    def evidence(self) -> Evidence:
        assert self.case.workload is not None
        done = sorted(self.chunks)
        answers = [a for begin in done for a in self.chunks[begin].completions]
        rows = np.array(
            [i for b in done for i in range(b, b + len(self.chunks[b].completions))], dtype=np.int64
        )
        width = self.case.workload.new_tokens
        # an id beyond 64 bits is no less outside the vocabulary for being clipped to them
        limit = np.iinfo(np.int64)
        tokens = [[min(max(x, limit.min), limit.max) for x in a["tokens"]] for a in answers]
        return Evidence(
            tokens=np.array(tokens, dtype=np.int64).reshape(-1, width),
            prompt=self.case.workload.prompt_of[rows],
            seeds=self.seeds[rows],
            rounds=stack_rounds([a["rounds"] for a in answers]),
            seconds=sum(self.chunks[b].seconds for b in done),
            planned=len(self.requests),
        )


def gather(
    plan: RunPlan,
    cases: Sequence[Case],
    folder: Path,
    jobs: int = 1,
    timeout: float = 300.0,
    progress: Progress | None = None,
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
    """
    run = _Gathering(plan, cases, folder, progress or (lambda case, arm, requests: None))
    yield from run.already_complete()
    for outcome in run_tasks(run.tasks(), jobs, timeout, run.wants):
        yield from run.take(outcome)


class _Gathering:
    """The arms of several cases while their chunks come in, in any order."""

    def __init__(
        self, plan: RunPlan, cases: Sequence[Case], folder: Path, progress: Progress
    ) -> None:
        self.cases, self.folder, self.progress = cases, folder, progress
        self.open: dict[str, list[_Arm]] = defaultdict(list)
        self.complete: dict[str, dict[str, Evidence]] = defaultdict(dict)
        self.failed: set[str] = set()
        for case in cases:
            for arm in case.arms:
                path = evidence_path(folder, case, arm)
                if path.exists():
                    self.complete[case.id][arm] = _reuse(plan, case, arm, path)
                    progress(case, arm, len(self.complete[case.id][arm].tokens))
                else:
                    self.open[case.id].append(_Arm(plan, case, arm, folder))

    def already_complete(self) -> Iterator[Gathered]:
        """Cases whose evidence was all on disk."""
        for case in self.cases:
            if case.id not in self.open:
                yield Gathered(case, self.complete[case.id])

    def tasks(self) -> Iterator[Task]:
        """Every chunk still to be answered."""
        for arms in self.open.values():
            for arm in arms:
                yield from arm.tasks()

    def wants(self, task: Task) -> bool:
        """A case that has failed needs no more answers."""
        return _chunk(task)[0].case.id not in self.failed

    def take(self, outcome: Outcome) -> Iterator[Gathered]:
        """File one chunk's outcome; yields the case if that completes or ends it."""
        arm, begin = _chunk(outcome.task)
        case = arm.case
        if case.id in self.failed:
            return
        if outcome.error is not None:
            self.failed.add(case.id)
            kept = self.complete[case.id] | {a.arm: a.evidence() for a in self.open[case.id]}
            for name, evidence in kept.items():
                path = evidence_path(self.folder, case, name)
                evidence.save(path.with_suffix(".partial.npz"))
            yield Gathered(case, kept, outcome.error, outcome.detail)
            return
        arm.chunks[begin] = outcome
        self.progress(case, arm.arm, len(outcome.completions))
        if arm.complete:
            self.complete[case.id][arm.arm] = arm.evidence()
            self.complete[case.id][arm.arm].save(arm.path)
        if all(a.complete for a in self.open[case.id]):
            yield Gathered(case, self.complete[case.id])


def _reuse(plan: RunPlan, case: Case, arm: str, path: Path) -> Evidence:
    assert case.workload is not None
    evidence = load_evidence(path)
    for what, found, planned in (
        ("seeds", evidence.seeds, arm_seeds(plan, case, arm)),
        ("prompts", evidence.prompt, case.workload.prompt_of),
        ("tokens", np.array(evidence.tokens.shape[1]), np.array(case.workload.new_tokens)),
    ):
        if not np.array_equal(found, planned):
            raise EvidenceError(
                f"{path} was gathered under another plan (its {what} differ); use another folder"
            )
    return evidence


def _chunk(task: Task) -> tuple[_Arm, int]:
    """The arm a task belongs to, and the first request it carries."""
    assert isinstance(task.key, tuple)
    arm, begin = task.key
    assert isinstance(arm, _Arm)
    assert isinstance(begin, int)
    return arm, begin
