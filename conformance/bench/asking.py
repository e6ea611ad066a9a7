"""Asking an engine and timing it: the only place where a clock is read for a measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from conformance import wire
from conformance.contract import Capabilities, EngineCard, ModelPair, Request
from conformance.errors import ConformanceError
from conformance.pool import Task, Worker


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one call.

    Parameters
    ----------
    completions : tuple of dict
        As `conformance.wire.read_completions` gives them.
    seconds : float
        From asking to the answer, as seen from outside.
    inside : float or None
        What the engine's process says that the engine took.
    """

    completions: tuple[wire.Json, ...]
    seconds: float
    inside: float | None = None


class Asker(Protocol):
    """A process with one engine in it."""

    def describe(self) -> tuple[EngineCard, Capabilities]:
        """Start it, and read who it is; raises `ConformanceError`."""
        ...

    def ask(self, pair: ModelPair, requests: Sequence[Request]) -> Answer:
        """Load the pair where it is not loaded, and generate; raises `ConformanceError`."""
        ...

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        ...

    def close(self) -> None:
        """End the process."""
        ...


MakeAsker = Callable[[str], Asker]


class WorkerAsker:
    """A worker process, as ``conformance run`` has.

    Parameters
    ----------
    engine : str
        As typed.
    timeout : float
        Seconds for each answer.
    python : str, optional
        As for `conformance.pool.Worker`.
    """

    def __init__(self, engine: str, timeout: float, python: str | None = None) -> None:
        self._engine = engine
        self._worker = Worker(timeout, python)

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return self._worker.pid

    def describe(self) -> tuple[EngineCard, Capabilities]:
        """Start it, and read who it is.

        Raises
        ------
        ConformanceError
            If it cannot be started.
        """
        return self._worker.start(self._engine)

    def ask(self, pair: ModelPair, requests: Sequence[Request]) -> Answer:
        """One call.

        Raises
        ------
        ConformanceError
            Whatever the engine is to blame for; its process is then ended, unless it refused.
        """
        outcome = self._worker.generate(Task(None, self._engine, pair, tuple(requests)))
        if outcome.error is not None:
            error: ConformanceError = outcome.error
            raise error
        return Answer(outcome.completions, outcome.seconds, outcome.inside)

    def close(self) -> None:
        """End the process."""
        self._worker.close()
