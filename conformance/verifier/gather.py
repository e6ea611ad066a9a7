"""Gathering a verifier's evidence: chunks and edge cases through worker processes.

A worker that raises, dies, hangs or talks nonsense ends the case as an ERROR; a law that the
verifier refuses out loud is left out and listed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from conformance import wire as engine_wire
from conformance.builtin import builtin_verifier
from conformance.contract import Capabilities, EngineCard
from conformance.errors import ConformanceError, EngineFailure, NotSupportedError
from conformance.pool import Worker
from conformance.reference import Ints
from conformance.verifier import draws, edges, wire
from conformance.verifier.contract import VerifierCapabilities
from conformance.verifier.evidence import VerifierEvidence
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
            self.environment = engine_wire.read_environment(answer)
            if "verifier" in answer:
                return wire.read_description(answer)
            return engine_wire.read_description(answer)
        except engine_wire.UNREADABLE as exc:
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


@dataclass(slots=True)
class _Job:
    """One message, what it is for, and the tokens it is to bring."""

    kind: str
    name: str
    number: int
    message: dict[str, Any]
    shape: tuple[int, int]


def _jobs(case: VerifierCase, run: int) -> Iterator[_Job]:
    first: _Job | None = None
    for name, rows in case.blocks:
        spec = case.law(name).spec
        width = (draws.tree_shape(spec)[0].size if case.claims.tree else spec.block) + 1
        for chunk in draws.chunks(spec, rows, case.claims):
            message = {
                "op": "verify",
                "run": run,
                "law_seed": case.law_seed,
                "chunk": asdict(chunk),
            }
            job = _Job("law", name, chunk.number, message, (chunk.rows, width))
            first = first or job
            yield job
    for edge in edges.EDGES:
        if edge.refused(case.claims, case.injects) is None:
            shape = (edge.answers, edge.x.shape[1] + 1)
            yield _Job("edge", edge.name, 0, {"op": "edge", "edge": edge.name}, shape)
    if case.claims.reproducible and first is not None:
        yield _Job("again", first.name, 0, first.message, first.shape)


Told = Callable[[int], None]


@dataclass(slots=True)
class _Book:
    """What has come in so far."""

    tokens: dict[tuple[str, str, int], Ints] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: ConformanceError | None = None
    defect: BaseException | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


def gather_case(
    case: VerifierCase,
    run: int,
    jobs: int = 1,
    timeout: float = 300.0,
    told: Told = lambda rows: None,
    python: str | None = None,
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
    """
    waiting: queue.SimpleQueue[_Job] = queue.SimpleQueue()
    count = 0
    for job in _jobs(case, run):
        waiting.put(job)
        count += 1
    book = _Book()
    workers = [VerifierWorker(timeout, python) for _ in range(max(1, min(jobs, count)))]

    def serve(worker: VerifierWorker) -> None:
        try:
            worker.describe(case.engine)
            while book.error is None:
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

    threads = [threading.Thread(target=serve, args=(w,), daemon=True) for w in workers]
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
    return Gathered(case, _evidence(case, run, book), book.error)


def _do(worker: VerifierWorker, job: _Job, book: _Book, told: Told) -> None:
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
        book.tokens[job.kind, job.name, job.number] = tokens
        book.seconds += wire.read_seconds(answer)
        if job.kind == "law":
            told(len(tokens))


def _evidence(case: VerifierCase, run: int, book: _Book) -> VerifierEvidence:
    tokens, batch = {}, {}
    for name, rows in case.blocks:
        if name in book.refused:
            continue
        cut = draws.chunks(case.law(name).spec, rows, case.claims)
        parts = []
        for chunk in cut:  # up to the first gap: later blocks would be taken for earlier ones
            part = book.tokens.get(("law", name, chunk.number))
            if part is None:
                break
            parts.append(part)
        if parts:
            tokens[name], batch[name] = np.concatenate(parts), cut[0].batch
    again = [t for (kind, _, _), t in book.tokens.items() if kind == "again"]
    return VerifierEvidence(
        run=run,
        law_seed=case.law_seed,
        tokens=tokens,
        batch=batch,
        edges={n: t for (kind, n, _), t in book.tokens.items() if kind == "edge"},
        again=again[0] if again else None,
        refused=dict(book.refused),
        seconds=book.seconds,
    )


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
