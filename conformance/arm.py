"""One arm of an engine's case while it is gathered: what is on disk of it, and what comes in."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from conformance import wire
from conformance.asked import arm_seeds, evidence_path, questions, seeded_requests
from conformance.errors import ConformanceError, EvidenceError
from conformance.evidence import Evidence, continued, load_evidence, read_evidence, several, uneven
from conformance.parts import Parts, failure, reason
from conformance.plan import AGAIN, Case, RunPlan
from conformance.pool import Outcome, Task
from conformance.stacked import stack_counts, stack_logprobs, stack_rounds
from conformance.tinylm import Tokens


class Arm:
    """One arm while its chunks come in.

    What counts is the run of chunks from the first request on: which chunk comes first can depend
    on what is in it (accepted drafts are fast), and taking whatever has come would select.
    """

    def __init__(self, plan: RunPlan, case: Case, arm: str, folder: Path) -> None:
        asked = case.asked(arm)
        assert asked.workload is not None
        self.case, self.arm, self.asked = case, arm, asked
        self.parts = Parts(evidence_path(folder, case, arm))
        self.work = asked.workload
        self.seeds = arm_seeds(plan, asked, arm)
        self.questions = questions(asked)
        self.requests = seeded_requests(asked, arm, self.seeds)
        self.kept: Evidence | None = None
        # of the requests after those kept, without a gap: number of the next one, answers, seconds
        self.chunks: list[tuple[int, Sequence[wire.Json], float]] = []
        self.ahead: dict[int, Outcome] = {}  # by first request: chunks whose turn has not come
        self.saved = 0  # requests on disk
        self.size = max(1, case.capabilities.max_batch)
        if arm == AGAIN:  # in other company
            self.size = self.size // 2 + 1
        self.lock = threading.Lock()

    def take_up(self) -> None:
        """Go on from what is on disk, which becomes one file.

        Raises
        ------
        EvidenceError
            If it was gathered under another plan, or cannot be read.
        """
        self.parts.sweep()
        self.kept = kept_evidence(self.asked, self.seeds, self.parts.path)
        if self.kept is None:
            self.parts.remove()
            return
        self.saved = len(self.kept.tokens)
        if self.parts.listed():
            self.kept.save(self.parts.path)
            self.parts.remove()

    def failed_before(self) -> tuple[Evidence, ConformanceError, str] | None:
        """What there is of a case that has failed, and the failure; None if this has not."""
        path = self.parts.failed
        if not os.path.lexists(path):
            return None
        evidence, meta = read_evidence(path, self.work.requests)
        check_planned(self.asked, self.arm, self.seeds, path, evidence)
        return evidence, *failure(meta, path)

    def tasks(self) -> Iterator[Task]:
        """Every chunk that has not come."""
        pair = self.case.oracle.probe.pair
        for begin, end in self.work.calls(self.done, self.size):
            first, last = np.searchsorted(self.work.asked, (begin, end))
            chunk = tuple(self.requests[first:last])
            yield Task((self, begin), self.case.engine, pair, chunk)

    def take(self, begin: int, outcome: Outcome) -> list[tuple[Tokens, Tokens]]:
        """File a chunk; tokens and prompts of the chunks whose turn this makes it."""
        self.ahead[begin] = outcome
        turn = []
        while self.done in self.ahead:
            at, now = self.done, self.ahead.pop(self.done)
            with self.lock:  # in one step, whatever it is interrupted by
                self.chunks.append((at + len(now.completions), now.completions, now.seconds))
            turn.append((self._tokens(now.completions), self.work.prompt_of[at : self.done]))
        return turn

    @property
    def done(self) -> int:
        """Requests answered, from the first on."""
        return self.chunks[-1][0] if self.chunks else self._begin

    @property
    def complete(self) -> bool:
        """Whether every request is answered."""
        return self.done == self.work.requests

    @property
    def _begin(self) -> int:
        return 0 if self.kept is None else len(self.kept.tokens)

    def evidence(self) -> Evidence:
        """What was kept and what has come."""
        new = self._new(self._begin)
        return new if self.kept is None else continued(self.kept, new)

    def save_part(self) -> None:
        """Save what has come since the last time."""
        with self.lock:
            if self.saved < self.done:
                self._new(self.saved).save(self.parts.part(self.saved), self.saved)
                self.saved = self.done

    def save(self) -> Evidence:
        """Save everything as one file."""
        with self.lock:
            found = self.evidence()
            found.save(self.parts.path)
            self.saved = self.done
            self.parts.remove()
        return found

    def save_failed(self, found: Evidence, error: ConformanceError, detail: str) -> None:
        """Save it under a name that is never gone on from, with the reason."""
        with self.lock:
            found.save(self.parts.failed, more=reason(error, detail))
            self.saved = self.done

    def _new(self, begin: int) -> Evidence:
        """What has come, from a request on that was not kept."""
        chunks = [(n, said, t) for n, said, t in self.chunks if n > begin]
        answers = [answer for _, said, _ in chunks for answer in said]
        end = begin + len(answers)
        before = () if self.kept is None or self.kept.batch is None else self.kept.batch
        last = int(np.max(before, initial=-1)) + len(self.chunks)
        number = np.arange(last - len(chunks) + 1, last + 1)
        each = [len(said) for _, said, _ in chunks]
        seconds = np.array([t for _, _, t in chunks], dtype=np.float64)
        return Evidence(
            tokens=self._tokens(answers),
            prompt=self.work.prompt_of[begin:end],
            seeds=self.seeds[begin:end],
            rounds=stack_rounds(self._rounds(begin, answers)),
            seconds=float(seconds.sum()),
            planned=self.work.requests,
            counts=stack_counts([a["counts"] for a in answers]),
            batch=np.repeat(number, each),
            batch_seconds=np.repeat(seconds, each),
            question=self.questions[begin:end],
            case=self.asked.id,
            arm=self.arm,
            lengths=uneven(self.work.lengths[begin:end], self.work.new_tokens),
            answer=several(self.work.answer_of[begin:end]),
            logprobs=stack_logprobs([a.get("logprobs") for a in answers], self.work.new_tokens),
        )

    def _tokens(self, answers: Sequence[wire.Json]) -> Tokens:
        # an id beyond 64 bits is no less outside the vocabulary for being clipped to them
        limit = np.iinfo(np.int64)
        tokens = [[min(max(x, limit.min), limit.max) for x in a["tokens"]] for a in answers]
        width = self.work.new_tokens
        padded = [row + row[-1:] * (width - len(row)) for row in tokens]
        return np.array(padded, dtype=np.int64).reshape(-1, width)

    def _rounds(
        self, begin: int, answers: Sequence[wire.Json]
    ) -> list[Sequence[Sequence[int]] | None]:
        """What was told of blocks; of a request that does not speculate among others, no block."""
        told = [a["rounds"] for a in answers]
        speculates = self.work.speculates
        if speculates is None:
            return told
        mine = speculates[begin : begin + len(told)]
        return [r if s else [] for r, s in zip(told, mine, strict=True)]


def kept_evidence(case: Case, seeds: Tokens, path: Path) -> Evidence | None:
    """Evidence on disk, in one file and the parts that go on from it: answers to the first of the
    requests planned with these seeds; None without a file.

    Raises
    ------
    EvidenceError
        If it was gathered under another plan, or cannot be read.
    """
    work = case.workload
    assert work is not None

    def load(piece: Path, begin: int) -> Evidence:
        evidence = load_evidence(piece, max(work.requests - begin, 0), begin)
        check_planned(case, parts.arm, seeds, piece, evidence, begin)
        return evidence

    parts = Parts(path)
    pieces = parts.pieces(load, lambda e: len(e.tokens))
    if not pieces:
        return None
    return replace(functools.reduce(continued, pieces), planned=work.requests)


def check_planned(
    case: Case, arm: str, seeds: Tokens, path: Path, found: Evidence, begin: int = 0
) -> None:
    """Refuse evidence of an arm that was gathered under another plan.

    Raises
    ------
    EvidenceError
        If case, arm, seeds, prompts, questions, lengths or answers are not those planned.
    """
    work = case.workload
    assert work is not None
    its = slice(begin, begin + len(found.tokens))
    none = np.zeros(0)
    for what, said, planned in (
        ("case", found.case, case.id),
        ("arm", found.arm, arm),
        ("seeds", found.seeds, seeds[its]),
        ("prompts", found.prompt, work.prompt_of[its]),
        ("tokens", found.tokens.shape[1], work.new_tokens),
        ("lengths", found.asked_for, work.lengths[its]),
        ("answers", found.answer_of, work.answer_of[its]),
        ("questions", none if found.question is None else found.question, questions(case)[its]),
    ):
        if not np.array_equal(said, planned):
            raise EvidenceError(
                f"{path} was gathered under another plan (its {what} differ); use another folder"
            )
