"""Gathering both arms, and the control arm once more, in one random order.

Blocks: each asks every arm every prompt once, shuffled, so that whatever drifts (load, caches,
batch sizes) is the same for all arms. Rows of an arm are kept in the order asked. A bet on pairs of
answers may end the sampling early.
"""

from __future__ import annotations

import math
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.errors import ConformanceError, EngineFailure, EvidenceError
from conformance.gather import arm_seeds, evidence_path
from conformance.plan import RunPlan
from conformance.served.evidence import ServedEvidence, load_served
from conformance.served.plan import GATE, GATE_TESTS, ServedCase
from conformance.served.server import AGAIN, ARMS, CONTROL, SPECULATIVE, Answer, Ask, Server, Source
from conformance.statistics.paired import Pairs
from conformance.statistics.tables import Ints
from conformance.statistics.tree import ABSENT

BLOCKS_AT_ONCE = 4  # asked together, at least; and as many as keep every connection busy
Told = Callable[[ServedCase, str, int], None]


@dataclass(frozen=True, slots=True)
class Gathered:
    """The arms of a case, and the failure that ended it, if one did."""

    case: ServedCase
    arms: dict[str, ServedEvidence]
    error: ConformanceError | None = None
    stopped: bool = False  # before the planned end, because a bet had been won


def schedule(plan: RunPlan, case: ServedCase) -> tuple[Ints, Ints]:
    """Arm and prompt of every request, in the order asked. The beginning is the same whatever the
    number of requests.
    """
    assert case.workload is not None
    prompts = len(case.texts)
    size = len(ARMS) * prompts
    rng = np.random.default_rng([plan.seed, zlib.crc32(case.id.encode()), 3])
    blocks = math.ceil(case.workload.requests / prompts)
    order = np.concatenate([rng.permutation(size) for _ in range(blocks)])
    return order // prompts, order % prompts


def requests(plan: RunPlan, case: ServedCase) -> list[Ask]:
    """Every request of a case, in the order asked."""
    assert case.workload is not None
    arm_of, prompt_of = schedule(plan, case)
    seeds = {arm: iter(arm_seeds(plan, case, arm).tolist()) for arm in ARMS}
    asks = []
    for a, p in zip(arm_of.tolist(), prompt_of.tolist(), strict=True):
        seed = next(seeds[ARMS[a]])
        text, tokens = case.texts[p], case.workload.new_tokens
        asks.append(Ask(ARMS[a], text, None if seed < 0 else seed, tokens))
    return asks


class Watch:
    """The bets on the arms against each other, and on the control arm against itself.

    Parameters
    ----------
    level : float
        Of the first; the second has the gate's.
    """

    def __init__(self, level: float) -> None:
        self.level = level
        self.apart, self.gate = Pairs(), Pairs()
        self._bets = (((SPECULATIVE, CONTROL), self.apart), ((CONTROL, AGAIN), self.gate))
        self._waiting: dict[tuple[int, int], deque[tuple[str, Answer]]] = {}

    def add(self, arm: str, prompt: int, answer: Answer) -> None:
        """One answer; answers of two arms to one prompt are paired in the order they come."""
        for number, (arms, pairs) in enumerate(self._bets):
            if arm not in arms:
                continue
            waiting = self._waiting.setdefault((number, prompt), deque())
            if not waiting or waiting[0][0] == arm:
                waiting.append((arm, answer))
                continue
            _, other = waiting.popleft()
            x, y = (answer, other) if arm == arms[0] else (other, answer)
            pairs.add(prompt, x.symbols, y.symbols)

    def settled(self) -> bool:
        """Whether a bet was won."""
        return self.apart.log_e >= -math.log(self.level) or self.gate.log_e >= -math.log(
            GATE / GATE_TESTS
        )


def replayed(plan: RunPlan, case: ServedCase, arms: dict[str, ServedEvidence]) -> Watch:
    """The bets on evidence that is complete up to some request."""
    watch = Watch(plan.level)
    arm_of, prompt_of = schedule(plan, case)
    place = dict.fromkeys(ARMS, 0)
    for a, p in zip(arm_of.tolist(), prompt_of.tolist(), strict=True):
        arm = ARMS[a]
        i = place[arm]
        if i >= len(arms[arm].symbols):
            break
        row = arms[arm].symbols[i]
        watch.add(arm, p, Answer(tuple(row[row != ABSENT].tolist())))
        place[arm] += 1
    return watch


def gather(
    plan: RunPlan,
    case: ServedCase,
    folder: Path,
    told: Told | None = None,
    source: Source | None = None,
) -> Gathered:
    """Ask everything that was planned, and leave it on disk; never raises what a server causes.

    Parameters
    ----------
    plan : RunPlan
        Seeds and levels come from it.
    case : ServedCase
        Planned.
    folder : Path
        Evidence is kept under it; what is there already is not asked again.
    told : callable, optional
        Told of the answers as they come.
    source : Source, optional
        What to ask in the place of the server.
    """
    run: _Run | None = None
    error: ConformanceError | None = None
    stopped = False
    try:
        run = _Run(plan, case, folder, told)
        assert case.aim is not None
        asked = source or Server(case.aim, case.met)
        try:
            stopped = run.ask(asked)
        finally:
            asked.close()
    except KeyboardInterrupt:
        if run is not None:
            run.save(failed=False)  # for whoever resumes
        raise
    except ConformanceError as exc:
        error = exc
    except Exception as exc:  # whatever a server can cause is this case's ERROR
        error = EngineFailure(f"{type(exc).__name__}: {exc}")
    if run is None:
        return Gathered(case, {}, error)
    return Gathered(case, run.save(failed=error is not None), error, stopped)


class _Run:
    """A case while its answers come in."""

    def __init__(self, plan: RunPlan, case: ServedCase, folder: Path, told: Told | None) -> None:
        self.plan, self.case, self.folder, self.told = plan, case, folder, told
        self.arm_of, self.prompt_of = schedule(plan, case)
        self.seeds = {arm: arm_seeds(plan, case, arm) for arm in ARMS}
        self.asks = requests(plan, case)
        self.answers: dict[str, list[Answer]] = {arm: [] for arm in ARMS}
        self.total: tuple[int, int] | None = None
        self.seconds, self.done = 0.0, 0
        self.watch = Watch(plan.level)
        self._take_up()

    def ask(self, source: Source) -> bool:
        """Ask what is missing; whether it was stopped early."""
        assert self.case.workload is not None
        assert self.case.aim is not None
        block = len(ARMS) * len(self.case.texts)
        size = block * max(BLOCKS_AT_ONCE, math.ceil(4 * self.case.aim.limits.concurrency / block))
        begin, before = time.perf_counter() - self.seconds, source.counted()
        earlier = self.total or (0, 0)
        greedy = self.case.decoding.greedy
        while self.done < len(self.asks):
            if not greedy and self.watch.settled():
                return True
            asks = self.asks[self.done : self.done + size]
            self._take(source.ask(self.case.decoding, asks))
            self.seconds = time.perf_counter() - begin
            now = source.counted() if before is not None else None
            if before is not None and now is not None:
                self.total = (
                    earlier[0] + now[0] - before[0],
                    earlier[1] + now[1] - before[1],
                )
        return False

    def _take(self, answers: list[Answer]) -> None:
        for answer in answers:
            arm, prompt = ARMS[self.arm_of[self.done]], int(self.prompt_of[self.done])
            short = Answer(answer.symbols[: self.case.width], answer.counts)
            self.answers[arm].append(short)
            self.watch.add(arm, prompt, short)
            self.done += 1
        if self.told:
            for k, arm in enumerate(ARMS):
                new = int((self.arm_of[self.done - len(answers) : self.done] == k).sum())
                self.told(self.case, arm, new)

    def _prompts(self, arm: str) -> Ints:
        mine = self.arm_of[: self.done] == ARMS.index(arm)
        return np.asarray(self.prompt_of[: self.done][mine])

    def _evidence(self, arm: str) -> ServedEvidence:
        answers = self.answers[arm]
        symbols = np.full((len(answers), self.case.width), ABSENT, dtype=np.int64)
        for row, a in zip(symbols, answers, strict=True):
            row[: len(a.symbols)] = a.symbols
        counts = None
        if any(a.counts is not None for a in answers):
            counts = np.array([a.counts or (0, 0) for a in answers], dtype=np.int64)
        assert self.case.workload is not None
        return ServedEvidence(
            symbols=symbols,
            prompt=self._prompts(arm),
            seeds=self.seeds[arm][: len(answers)],
            counts=counts,
            total=self.total if arm == SPECULATIVE else None,
            planned=self.case.workload.requests,
            seconds=self.seconds,
            unit=self.case.unit,
            texts=self.case.texts,
        )

    def save(self, failed: bool) -> dict[str, ServedEvidence]:
        """Write what has come; after a failure under a name that is never gone on from."""
        found = {arm: self._evidence(arm) for arm in ARMS}
        for arm, evidence in found.items():
            path = evidence_path(self.folder, self.case, arm)
            evidence.save(path.with_suffix(".partial.npz") if failed else path)
        return found

    def _take_up(self) -> None:
        """Go on from what is on disk.

        Raises
        ------
        EvidenceError
            If it was gathered under another plan.
        """
        paths = {arm: evidence_path(self.folder, self.case, arm) for arm in ARMS}
        if not all(path.exists() for path in paths.values()):
            return
        kept = {arm: load_served(path) for arm, path in paths.items()}
        size = sum(len(e.symbols) for e in kept.values())
        self.done = size
        for arm, e in kept.items():
            n = len(e.symbols)
            same = (
                np.array_equal(e.seeds, self.seeds[arm][:n])
                and np.array_equal(e.prompt, self._prompts(arm))
                and e.texts == self.case.texts
                and e.unit == self.case.unit
                and e.symbols.shape[1] == self.case.width
            )
            if not same:
                raise EvidenceError(f"{paths[arm]} was gathered under another plan")
            counts = e.counts.tolist() if e.counts is not None else [None] * n
            self.answers[arm] = [
                Answer(tuple(row[row != ABSENT].tolist()), None if c is None else (c[0], c[1]))
                for row, c in zip(e.symbols, counts, strict=True)
            ]
        self.total, self.seconds = kept[SPECULATIVE].total, kept[SPECULATIVE].seconds
        self.watch = replayed(self.plan, self.case, kept)
        if self.told:
            for arm in ARMS:
                self.told(self.case, arm, len(self.answers[arm]))
