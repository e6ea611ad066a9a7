"""The messages of a verifier's case, what has come in of them, and what of that is on disk."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from conformance.errors import ConformanceError, EvidenceError
from conformance.parts import Parts, failure, reason
from conformance.verifier import draws, edges
from conformance.verifier.evidence import (
    AGAIN,
    EDGE,
    LAW,
    Rows,
    Stored,
    VerifierEvidence,
    assembled,
    joined,
    read_stored,
)
from conformance.verifier.plan import VerifierCase


@dataclass(slots=True)
class Job:
    """One message, what it is for, and the tokens it is to bring: blocks from `begin` on."""

    kind: str
    name: str
    begin: int
    message: dict[str, Any]
    shape: tuple[int, int]


def jobs_of(case: VerifierCase, run: int) -> Iterator[Job]:
    """Every message of a case, in order."""
    first: Job | None = None
    for name, rows in case.blocks:
        spec = case.law(name).spec
        width = (draws.tree_shape(spec)[0].size if case.claims.tree else spec.block) + 1
        begin = 0
        for chunk in draws.chunks(spec, rows, case.claims):
            message = {
                "op": "verify",
                "run": run,
                "law_seed": case.law_seed,
                "chunk": asdict(chunk),
            }
            job = Job(LAW, name, begin, message, (chunk.rows, width))
            begin += chunk.rows
            first = first or job
            yield job
    for edge in edges.EDGES:
        if edge.refused(case.claims, case.injects) is None:
            shape = (edge.answers, edge.x.shape[1] + 1)
            yield Job(EDGE, edge.name, 0, {"op": "edge", "edge": edge.name}, shape)
    if case.claims.reproducible and first is not None:
        yield Job(AGAIN, first.name, 0, first.message, first.shape)


class Book:
    """What has come in so far, and what of it is on disk."""

    def __init__(self, case: VerifierCase, run: int, path: Path | None) -> None:
        self.case, self.run = case, run
        self.parts = None if path is None else Parts(path)
        self.arm = "" if self.parts is None else self.parts.arm
        self.rows: list[Rows] = []  # in the order they came
        self.refused: dict[str, str] = {}
        self.seconds = 0.0
        self.error: ConformanceError | None = None
        self.defect: BaseException | None = None
        self.lock = threading.Lock()
        self.saved = (0, 0, 0)  # of `rows`, blocks in them, and refusals
        self.batch = {
            name: draws.chunks(case.law(name).spec, rows, case.claims)[0].batch
            for name, rows in case.blocks
        }

    def stored(self, begin: int = 0) -> Stored:
        """What came after so many entries."""
        return Stored(
            rows=tuple(self.rows[begin:]),
            run=self.run,
            law_seed=self.case.law_seed,
            batch=self.batch,
            refused=dict(self.refused),
            seconds=self.seconds,
            case=self.case.id,
            arm=self.arm,
        )

    def evidence(self) -> VerifierEvidence:
        """What is judged: not what was refused after all, and laws in the order planned."""
        order = {name: i for i, name in enumerate(self.batch)}
        rows = [r for r in self.rows if r.name not in self.refused]
        rows.sort(key=lambda r: (order.get(r.name, len(order)), r.begin))
        return assembled(replace(self.stored(), rows=tuple(rows)))

    def take_up(self, jobs: Sequence[Job]) -> list[Job]:
        """Go on from what is on disk, which becomes one file; the jobs that are still to be done.

        Raises
        ------
        EvidenceError
            If it was gathered under another plan, or cannot be read.
        """
        if self.parts is None:
            return list(jobs)
        self.parts.sweep()
        most = sum(job.shape[0] for job in jobs)
        pieces = self.parts.pieces(functools.partial(self._load, most), lambda s: s.size)
        found: dict[tuple[str, str], list[Rows]] = {}
        for r in _joined((r for s in pieces for r in s.rows), self.parts.path):
            found.setdefault((r.kind, r.name), []).append(r)
        left = []
        for job in jobs:
            if (mine := _of_job(job, found.get((job.kind, job.name), []))) is None:
                left.append(job)
            else:
                self.rows.append(mine)
        if sum(s.size for s in pieces) != sum(len(r.tokens) for r in self.rows):
            raise self._another(self.parts.path)
        if pieces:
            self.refused, self.seconds = dict(pieces[-1].refused), pieces[-1].seconds
        if self.parts.listed():
            self.stored().save(self.parts.path)
            self.parts.remove()
        self._count()
        return [job for job in left if job.name not in self.refused]

    def _load(self, most: int, path: Path, begin: int) -> Stored:
        stored, _ = read_stored(path, max(most - begin, 0), begin)
        self._check(stored, path)
        return stored

    def _check(self, stored: Stored, path: Path) -> None:
        mine = (self.case.id, self.arm, self.run, self.case.law_seed)
        others = any(self.batch.get(name) != n for name, n in stored.batch.items())
        if others or (stored.case, stored.arm, stored.run, stored.law_seed) != mine:
            raise self._another(path)

    @staticmethod
    def _another(path: Path) -> EvidenceError:
        return EvidenceError(f"{path} was gathered under another plan; use another folder")

    def failed_before(self) -> tuple[VerifierEvidence, ConformanceError] | None:
        """What there is of a case that has failed, and the failure, which stands: whoever may
        answer again may choose among the answers. None if it has not failed.

        Raises
        ------
        EvidenceError
            If it cannot be read.
        """
        if self.parts is None or not os.path.lexists(self.parts.failed):
            return None
        stored, meta = read_stored(self.parts.failed)
        self._check(stored, self.parts.failed)
        error, _ = failure(meta, self.parts.failed)
        self.parts.remove(whole=True)
        return assembled(stored), error

    def save_parts(self) -> None:
        """Save what has come since the last time."""
        with self.lock:
            entries, blocks, refused = self.saved
            if self.parts is not None and (entries, refused) != (len(self.rows), len(self.refused)):
                self.stored(entries).save(self.parts.part(blocks), blocks)
                self._count()

    def finish(self) -> VerifierEvidence:
        """Save everything as one file; after a failure under a name that is never gone on from."""
        found = self.evidence()
        if self.parts is not None and self.error is not None:
            found.save(self.parts.failed, reason(self.error, self.error.detail))
            self.parts.remove(whole=True)
        elif self.parts is not None:
            found.save(self.parts.path)
            self.parts.remove()
        return found

    def _count(self) -> None:
        blocks = sum(len(r.tokens) for r in self.rows)
        self.saved = len(self.rows), blocks, len(self.refused)


def _joined(rows: Iterable[Rows], path: Path) -> list[Rows]:
    try:
        return list(joined(rows))
    except ValueError as exc:
        raise EvidenceError(f"cannot read evidence {path}: {exc}") from exc


def _of_job(job: Job, found: Sequence[Rows]) -> Rows | None:
    """The blocks that a message was to bring; None where they are not there."""
    n, width = job.shape
    for r in found:
        if r.begin <= job.begin and job.begin + n <= r.end and r.tokens.shape[1] == width:
            at = job.begin - r.begin
            return Rows(job.kind, job.name, job.begin, r.tokens[at : at + n])
    return None
