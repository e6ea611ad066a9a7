"""Gathering a verifier's evidence: chunks and edge cases through worker processes.

A worker that raises, dies, hangs or talks nonsense ends the case as an ERROR; a law that the
verifier refuses out loud is left out and listed. What has come is saved every few seconds, and what
is on disk is not asked again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conformance import introduction
from conformance.builtin import builtin_verifier
from conformance.contract import Capabilities, EngineCard
from conformance.errors import (
    ConformanceError,
    EngineFailure,
    EvidenceError,
    NotSupportedError,
)
from conformance.parts import Autosave
from conformance.pool import Worker
from conformance.verifier import draws, wire
from conformance.verifier.book import Book, Job, jobs_of
from conformance.verifier.contract import VerifierCapabilities
from conformance.verifier.evidence import LAW, Rows, VerifierEvidence
from conformance.verifier.plan import VerifierCase

Description = tuple[EngineCard, Capabilities] | tuple[EngineCard, VerifierCapabilities, bool]
TIMED_CALLS = 64


@dataclass(frozen=True, slots=True)
class Gathered:
    """A case's evidence, and the failure that ended it, if one did."""

    case: VerifierCase
    evidence: VerifierEvidence
    error: ConformanceError | None = None


class VerifierWorker(Worker):
    """A worker process that holds a verifier.

    Attributes
    ----------
    environment : tuple of (str, str)
        What the last one that was described runs on.
    """

    environment: tuple[tuple[str, str], ...] = ()

    def describe(self, name: str) -> Description:
        """Construct the verifier, or engine, and read its card.

        Raises
        ------
        EngineFailure
            If what it says of itself cannot be read.
        """
        answer = self.begin(name)
        try:
            self.environment = introduction.read_environment(answer)
            if "verifier" in answer:
                return wire.read_description(answer)
            return introduction.read_description(answer)
        except introduction.UNREADABLE as exc:
            raise self.refused(f"engine {name} has an unreadable card: {exc}") from exc

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """One message, one answer."""
        return self._ask(message)


def describe(name: str, timeout: float = 120.0, python: str | None = None) -> Description:
    """Ask an engine or a verifier, in a process of its own, who it is and what it can do.

    Raises
    ------
    ConformanceError
        `UnknownEngineError`, `EngineLoadError` or `EngineFailure`.
    """
    return meet(name, timeout, python)[0]


def meet(
    name: str, timeout: float = 120.0, python: str | None = None
) -> tuple[Description, tuple[tuple[str, str], ...]]:
    """The same, with what it runs on."""
    worker = VerifierWorker(timeout, python)
    try:
        said = worker.describe(name)
        return said, worker.environment
    finally:
        worker.close()


def stand_in(name: str) -> Capabilities | VerifierCapabilities:
    """Claims of something that could not be asked for them."""
    return VerifierCapabilities() if builtin_verifier(name) else Capabilities()


Told = Callable[[int], None]


def gather_case(
    case: VerifierCase,
    run: int,
    jobs: int = 1,
    timeout: float = 300.0,
    told: Told = lambda rows: None,
    python: str | None = None,
    path: Path | None = None,
) -> Gathered:
    """Sample one case.

    Parameters
    ----------
    case : VerifierCase
        What was planned.
    run : int
        The run's seed.
    jobs : int
        Worker processes.
    timeout : float
        Seconds a verifier may take for one chunk.
    told : callable
        Told of the blocks of every chunk as it comes in.
    python : str, optional
        The Python to run the verifier with.
    path : Path, optional
        Where evidence is kept, as it comes; what is there already is not asked again, and a failure
        stands. None: in memory alone.

    Raises
    ------
    EvidenceError
        If evidence cannot be written.
    """
    book = Book(case, run, path)
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    try:
        if before := book.failed_before():
            return Gathered(case, *before)
        todo = book.take_up(list(jobs_of(case, run)))
    except EvidenceError as exc:
        return Gathered(case, Book(case, run, None).evidence(), exc)
    if kept := sum(len(r.tokens) for r in book.rows if r.kind == LAW):
        told(kept)
    for job in todo:
        waiting.put(job)
    workers = [VerifierWorker(timeout, python) for _ in range(min(max(1, jobs), len(todo)))]

    def serve(worker: VerifierWorker) -> None:
        try:
            worker.describe(case.engine)
            while book.error is None:
                saving.check()
                _do(worker, waiting.get_nowait(), book, told)
        except queue.Empty:
            pass
        except ConformanceError as exc:
            book.error = book.error or exc
        except BaseException as exc:  # a defect of ours: hand it to the caller's thread
            book.defect = exc
            book.error = book.error or EngineFailure("the run was interrupted")
        finally:
            worker.close()

    saving = Autosave(book.save_parts)
    threads = [threading.Thread(target=serve, args=(w,), daemon=True) for w in workers]
    with saving:
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            book.error = EngineFailure("the run was interrupted")
            for worker in workers:
                worker.kill()
            raise
    if book.defect is not None:
        raise book.defect
    return Gathered(case, book.finish(), book.error)


def _do(worker: VerifierWorker, job: Job, book: Book, told: Told) -> None:
    if job.name in book.refused:
        return
    try:
        answer = worker.ask(job.message)
    except NotSupportedError as exc:
        with book.lock:
            book.refused[job.name] = str(exc)
        return
    tokens = wire.read_tokens(answer, *job.shape)
    with book.lock:
        book.rows.append(Rows(job.kind, job.name, job.begin, tokens))
        book.seconds += wire.read_seconds(answer)
        if job.kind == LAW:
            told(len(tokens))


def seconds_needed(
    case: VerifierCase, run: int, timeout: float = 300.0, python: str | None = None
) -> float | None:
    """Time some calls of every law, and scale; None if the verifier will not answer."""
    worker = VerifierWorker(timeout, python)
    total = 0.0
    try:
        worker.describe(case.engine)
        for name, rows in case.blocks:
            chunk = draws.chunks(case.law(name).spec, rows, case.claims)[0]
            few = min(chunk.rows, TIMED_CALLS * chunk.batch, max(chunk.batch, 2048))
            message = {
                "op": "verify",
                "run": run,
                "law_seed": case.law_seed,
                "chunk": asdict(draws.Chunk(name, 0, few, chunk.batch)),
            }
            worker.ask(message)  # the first call pays for warming up
            begin = time.perf_counter()
            worker.ask(message)
            total += (time.perf_counter() - begin) * rows / few
    except ConformanceError:
        return None
    finally:
        worker.close()
    return total
