"""Gathering both arms, and the control arm once more, in one random order.

Blocks: each asks every arm every prompt once, shuffled, so that whatever drifts (load, caches,
batch sizes) is the same for all arms. Rows of an arm are kept in the order asked, and saved every
few seconds. A bet on pairs of answers may end the sampling early.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.asked import arm_seeds, evidence_path
from conformance.errors import BadAnswerError, ConformanceError, EngineFailure, EvidenceError
from conformance.parts import Autosave, Parts, failure, reason
from conformance.plan import RunPlan
from conformance.served.evidence import (
    ServedEvidence,
    continued,
    first_answers,
    load_served,
    read_served,
)
from conformance.served.laws import ServedLaws, kept_laws, learnt
from conformance.served.order import Watch, replayed, requests, schedule
from conformance.served.plan import ServedCase
from conformance.served.server import ARMS, SPECULATIVE, Answer, Server, Source
from conformance.statistics.tree import ABSENT
from conformance.wire import MOST_COUNTED

__all__ = ["Gathered", "Watch", "gather", "replayed", "requests", "schedule"]

BLOCKS_AT_ONCE = 4  # asked together, at least; and as many as keep every connection busy
SECONDS_AT_ONCE = 5.0  # and fewer, where those take longer: what has been asked and not been
FEWEST_AT_ONCE = 2  # answered is lost when the process is killed; but so many a connection
Told = Callable[[ServedCase, str, int], None]


@dataclass(frozen=True, slots=True)
class Gathered:
    """The arms of a case, and the failure that ended it, if one did."""

    case: ServedCase
    arms: dict[str, ServedEvidence]
    error: ConformanceError | None = None
    stopped: bool = False  # before the planned end, because a bet had been won
    laws: ServedLaws | None = None  # what the control server told


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
        Evidence is kept under it; what is there already is not asked again, and a failure stands.
    told : callable, optional
        Told of the answers as they come.
    source : Source, optional
        What to ask in the place of the server.

    Raises
    ------
    EvidenceError
        If evidence cannot be written.
    """
    try:
        run = _Run(plan, case, folder, told)
        if before := run.failed_before():
            return before
        run.take_up()
    except EvidenceError as exc:
        return Gathered(case, {}, exc)
    error: ConformanceError | None = None
    stopped = False
    with Autosave(run.save_parts) as saving:
        try:
            assert case.aim is not None
            asked = source or Server(case.aim, case.met)
            try:
                stopped = run.ask(asked, saving)
            finally:
                asked.close()
        except EvidenceError:
            raise
        except ConformanceError as exc:
            error = exc
        except Exception as exc:  # whatever a server can cause is this case's ERROR
            error = EngineFailure(f"{type(exc).__name__}: {exc}")
    return run.fail(error) if error else Gathered(case, run.save(), stopped=stopped, laws=run.laws)


class _Run:
    """A case while its answers come in."""

    def __init__(self, plan: RunPlan, case: ServedCase, folder: Path, told: Told | None) -> None:
        self.plan, self.case, self.folder, self.told = plan, case, folder, told
        self.laws: ServedLaws | None = None
        self.parts = {arm: Parts(evidence_path(folder, case, arm)) for arm in ARMS}
        self.arm_of, self.prompt_of = schedule(plan, case)
        self.seeds = {arm: arm_seeds(plan, case, arm) for arm in ARMS}
        self.asks = requests(plan, case)
        self.answers: dict[str, list[Answer]] = {arm: [] for arm in ARMS}
        self.rounds: dict[str, list[tuple[int, float]]] = {arm: [] for arm in ARMS}
        self.saved = dict.fromkeys(ARMS, 0)  # answers on disk
        self.total: tuple[int, int] | None = None
        self.seconds, self.done, self.round = 0.0, 0, 0
        self.watch = Watch(plan.level)
        self.lock = threading.Lock()

    def ask(self, source: Source, saving: Autosave) -> bool:
        """Ask what is missing; whether it was stopped early."""
        assert self.case.workload is not None
        assert self.case.aim is not None
        self._learn(source)
        block = len(ARMS) * len(self.case.texts)
        connections = self.case.aim.limits.concurrency
        most = block * max(BLOCKS_AT_ONCE, math.ceil(4 * connections / block))
        size, fewest = most, min(most, FEWEST_AT_ONCE * connections)
        before, earlier = source.counted(), self.total or (0, 0)
        greedy = self.case.decoding.greedy
        while self.done < len(self.asks):
            saving.check()
            if not greedy and self.watch.settled():
                return True
            asks = self.asks[self.done : self.done + size]
            begin = time.perf_counter()
            answers = source.ask(self.case.decoding, asks)
            seconds = time.perf_counter() - begin
            self._take(answers, seconds)
            size = min(max(int(SECONDS_AT_ONCE * len(asks) / max(seconds, 1e-9)), fewest), most)
            now = source.counted() if before is not None else None
            if before is not None and now is not None:
                self.total = (
                    earlier[0] + now[0] - before[0],
                    earlier[1] + now[1] - before[1],
                )
        return False

    def _learn(self, source: Source) -> None:
        """Have the control server tell its law, before anything is sampled."""
        told = learnt(self.plan, self.case, self.folder, source, self.laws)
        if told is not self.laws:
            self.laws = told
            self.watch = self._replayed()

    def _replayed(self) -> Watch:
        arms = {arm: self._evidence(arm) for arm in ARMS}
        return replayed(self.plan, self.case, arms, self.laws)

    def _take(self, answers: list[Answer], seconds: float) -> None:
        for answer in answers:
            drafted, accepted = answer.counts or (0, 0)
            if not 0 <= accepted <= drafted <= MOST_COUNTED:
                raise BadAnswerError(f"an answer counts {accepted} of {drafted} tokens accepted")
        first = self.done
        with self.lock:
            for answer in answers:
                arm, prompt = ARMS[self.arm_of[self.done]], int(self.prompt_of[self.done])
                short = Answer(answer.symbols[: self.case.width], answer.counts)
                self.answers[arm].append(short)
                self.rounds[arm].append((self.round, seconds))
                self.watch.add(arm, prompt, short)
                self.done += 1
            self.round += 1
            self.seconds += seconds
        if self.told:
            for k, arm in enumerate(ARMS):
                self.told(self.case, arm, int((self.arm_of[first : self.done] == k).sum()))

    def _evidence(self, arm: str, begin: int = 0) -> ServedEvidence:
        # as many as have been counted: whoever interrupted may have come between the two
        mine = self.arm_of[: self.done] == ARMS.index(arm)
        prompts = self.prompt_of[: self.done][mine][begin:]
        end = begin + len(prompts)
        answers, rounds = self.answers[arm][begin:end], self.rounds[arm][begin:end]
        symbols = np.full((len(answers), self.case.width), ABSENT, dtype=np.int64)
        for row, a in zip(symbols, answers, strict=True):
            row[: len(a.symbols)] = a.symbols
        counts = None
        if any(a.counts is not None for a in answers):
            counts = np.array([a.counts or (0, 0) for a in answers], dtype=np.int64)
        assert self.case.workload is not None
        return ServedEvidence(
            symbols=symbols,
            prompt=prompts,
            seeds=self.seeds[arm][begin:end],
            counts=counts,
            total=self.total if arm == SPECULATIVE else None,
            planned=self.case.workload.requests,
            seconds=self.seconds,
            unit=self.case.unit,
            texts=self.case.texts,
            batch=np.array([n for n, _ in rounds], dtype=np.int64),
            batch_seconds=np.array([t for _, t in rounds], dtype=np.float64),
            case=self.case.id,
            arm=arm,
        )

    def save_parts(self) -> None:
        """Save what has come of every arm since the last time."""
        with self.lock:
            for arm, parts in self.parts.items():
                begin = self.saved[arm]
                evidence = self._evidence(arm, begin)
                if len(evidence.symbols):
                    evidence.save(parts.part(begin), begin)
                    self.saved[arm] += len(evidence.symbols)

    def save(self) -> dict[str, ServedEvidence]:
        """Save everything, a file an arm."""
        found = {arm: self._evidence(arm) for arm in ARMS}
        for arm, parts in self.parts.items():
            found[arm].save(parts.path)
            self.saved[arm] = len(found[arm].symbols)
        for parts in self.parts.values():
            parts.remove()
        return found

    def fail(
        self, error: ConformanceError, found: dict[str, ServedEvidence] | None = None
    ) -> Gathered:
        """Save everything under a name that is never gone on from, with the reason; all arms say so
        before any other file goes.
        """
        found = found or {arm: self._evidence(arm) for arm in ARMS}
        for arm, parts in self.parts.items():
            found[arm].save(parts.failed, more=reason(error, error.detail))
        for parts in self.parts.values():
            parts.remove(whole=True)
        return Gathered(self.case, found, error)

    def failed_before(self) -> Gathered | None:
        """A failure that this case ended with, which stands: whoever may answer again may choose
        among the answers.
        """
        assert self.case.workload is not None
        known: dict[str, ServedEvidence] = {}
        error: ConformanceError | None = None
        for arm, parts in self.parts.items():
            if os.path.lexists(parts.failed):
                known[arm], meta = read_served(parts.failed, self.case.workload.requests)
                self._check(arm, known[arm], parts.failed)
                error = failure(meta, parts.failed)[0]
        if error is None:
            return None
        if len(known) < len(ARMS):  # killed before it had said so of all arms
            self.take_up()
        return self.fail(error, {arm: known.get(arm) or self._evidence(arm) for arm in ARMS})

    def take_up(self) -> None:
        """Go on from what is on disk, which becomes a file an arm: up to the last answer before
        which none of any arm is missing.

        Raises
        ------
        EvidenceError
            If it was gathered under another plan, or cannot be read.
        """
        for parts in self.parts.values():
            parts.sweep()
        pieces = {arm: self._pieces(arm) for arm in ARMS}
        kept = {arm: functools.reduce(continued, p) for arm, p in pieces.items() if p}
        found = {arm: len(kept[arm].symbols) if arm in kept else 0 for arm in ARMS}
        self.done = self._together(found)
        here = {arm: int((self.arm_of[: self.done] == k).sum()) for k, arm in enumerate(ARMS)}
        rounds: dict[int, float] = {}
        for arm, whole in kept.items():
            e = first_answers(whole, here[arm])
            counts = e.counts.tolist() if e.counts is not None else [None] * len(e.symbols)
            self.answers[arm] = [
                Answer(tuple(row[row != ABSENT].tolist()), None if c is None else (c[0], c[1]))
                for row, c in zip(e.symbols, counts, strict=True)
            ]
            numbers, seconds = e.rounds
            self.rounds[arm] = list(zip(numbers.tolist(), seconds.tolist(), strict=True))
            rounds |= dict(self.rounds[arm])
        self.seconds, self.round = sum(rounds.values()), max(rounds, default=-1) + 1
        self.saved = here
        if SPECULATIVE in kept:
            self.total = kept[SPECULATIVE].total
        if found != here or any(parts.listed() for parts in self.parts.values()):
            self.save()
        self.laws = kept_laws(self.plan, self.case, self.folder)
        self.watch = self._replayed()
        if self.told:
            for arm in ARMS:
                self.told(self.case, arm, len(self.answers[arm]))

    def _together(self, found: dict[str, int]) -> int:
        """Requests up to the first whose answer is not there."""
        end = len(self.arm_of)
        for k, arm in enumerate(ARMS):
            places = np.flatnonzero(self.arm_of == k)
            if found[arm] < len(places):
                end = min(end, int(places[found[arm]]))
        return end

    def _pieces(self, arm: str) -> list[ServedEvidence]:
        assert self.case.workload is not None
        most = self.case.workload.requests

        def load(path: Path, begin: int) -> ServedEvidence:
            e = load_served(path, max(most - begin, 0), begin)
            self._check(arm, e, path, begin)
            return e

        return self.parts[arm].pieces(load, lambda e: len(e.symbols))

    def _check(self, arm: str, e: ServedEvidence, path: Path, begin: int = 0) -> None:
        its = slice(begin, begin + len(e.symbols))
        prompts = self.prompt_of[self.arm_of == ARMS.index(arm)]
        same = (
            (e.case, e.arm) == (self.case.id, arm)
            and np.array_equal(e.seeds, self.seeds[arm][its])
            and np.array_equal(e.prompt, prompts[its])
            and e.texts == self.case.texts
            and e.unit == self.case.unit
            and e.symbols.shape[1] == self.case.width
        )
        if not same:
            raise EvidenceError(f"{path} was gathered under another plan")
