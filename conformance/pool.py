"""Workers: engines in processes of their own, fed from a queue.

A worker that raises, dies, hangs or talks nonsense costs one task, never the run: the task fails
with a reason, the process is replaced, and the queue goes on. No two engines share a process, and
nothing an engine has started outlives its worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from conformance import errors, introduction, launch, wire
from conformance.contract import Capabilities, EngineCard, ModelPair, Request
from conformance.errors import (
    ConformanceError,
    EngineFailure,
    EngineLoadError,
    NotSupportedError,
    UnknownEngineError,
)

Failure = TypeVar("Failure", bound=ConformanceError)
LONGEST_LINE = 256 * 1024 * 1024
STDERR_TAIL = 4000
LONGEST_MESSAGE = 2000
SECONDS_TO_END = 5.0


@dataclass(frozen=True, slots=True)
class Task:
    """Requests for one engine on one probe."""

    key: object
    engine: str
    pair: ModelPair
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a task: completions as plain data, or the error.

    `seconds` is seen from here, the way to the process and back included; `inside` is what the
    process says that its engine took, where it says so.
    """

    task: Task
    completions: tuple[wire.Json, ...] = ()
    seconds: float = 0.0
    error: ConformanceError | None = None
    detail: str = ""
    inside: float | None = None


class Worker:
    """One process, one engine at a time.

    Parameters
    ----------
    timeout : float
        Seconds to wait for an answer.
    python : str, optional
        The Python to run engines with, as for `conformance.launch.command`.
    """

    def __init__(self, timeout: float, python: str | None = None) -> None:
        self.timeout, self.python = timeout, python
        self._process: subprocess.Popen[bytes] | None = None
        self._said: _Tail | None = None
        self._engine: str | None = None
        self._loaded: ModelPair | None = None
        self._buffer = b""
        self._asked = 0

    def start(self, engine: str) -> tuple[EngineCard, Capabilities]:
        """Construct an engine, and read who it is and what it claims.

        Raises
        ------
        ConformanceError
            `UnknownEngineError`, `EngineLoadError` or `EngineFailure`.
        """
        answer = self.begin(engine)
        try:
            return introduction.read_description(answer)
        except introduction.UNREADABLE as exc:
            raise self.refused(f"engine {engine} has an unreadable card: {exc}") from exc

    def begin(self, engine: str) -> wire.Json:
        """Start the process of an engine, or of a verifier; what it says of itself, unread."""
        if self._engine != engine:
            self.close()  # what the last engine did to its process is not this one's to suffer
        self._engine, self._loaded = engine, None
        answer = self._ask({"op": "start", "protocol": wire.PROTOCOL, "engine": engine})
        if not _is(answer.get("protocol"), wire.PROTOCOL):
            raise self.refused(
                f"{engine} speaks version {answer.get('protocol')!r:.100} of the host protocol, "
                f"not {wire.PROTOCOL}"
            )
        return answer

    def load(self, engine: str, pair: ModelPair) -> None:
        """See to it that an engine runs and has loaded a probe."""
        if self._engine != engine:
            self.start(engine)
        if self._loaded != pair:
            self._loaded = None
            self._ask({"op": "load", "probe": wire.encode_pair(pair)})
            self._loaded = pair

    def generate(self, task: Task) -> Outcome:
        """Do one task; never raises what the engine is to blame for."""
        try:
            self.load(task.engine, task.pair)
            begin = time.perf_counter()
            answer = self._ask({"op": "generate", "requests": wire.encode_requests(task.requests)})
            seconds = time.perf_counter() - begin
            completions = wire.read_completions(answer, task.requests)
            return Outcome(task, completions, seconds, inside=wire.read_seconds(answer))
        except ConformanceError as exc:
            if not isinstance(exc, NotSupportedError):
                self.close()  # in what state the engine is, nobody knows
            return Outcome(task, error=exc, detail=exc.detail)

    def close(self) -> None:
        """End the process and whatever it started, by force if need be."""
        process, self._process = self._process, None
        self._engine = None
        self._loaded = None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            if process.poll() is None:
                stop = {"op": "stop", "id": self._asked + 1}
                os.set_blocking(process.stdin.fileno(), False)  # a full pipe must not hold us
                os.write(process.stdin.fileno(), json.dumps(stop).encode() + b"\n")
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=SECONDS_TO_END)
        self._kill(process)
        process.wait()
        process.stdout.close()

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """End the process from another thread, which makes a waiting `generate` return."""
        process = self._process
        if process is not None:
            self._kill(process)

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        # the whole group: an engine may have started servers that would keep its ports and memory
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    def _ask(self, message: wire.Json) -> wire.Json:
        process = self._start()
        deadline = time.monotonic() + self.timeout
        self._asked += 1
        numbered = message | {"id": self._asked}
        try:
            self._write(process, json.dumps(numbered).encode() + b"\n", deadline)
            answer = json.loads(self._line(process, deadline).decode("utf-8"))
            if not isinstance(answer, dict):
                raise ValueError("not an object")
            if not _is(answer.get("id"), self._asked):
                # an answer to another question must never be taken for this one's
                raise ValueError(f"id {answer.get('id')!r:.100} where {self._asked} was asked")
        except TimeoutError:  # before OSError, whose subclass it is
            ended = process.poll()
            self._kill(process)
            raise self._failure(
                f"the engine did not answer within {self.timeout:g} seconds and was stopped"
                if ended is None
                else f"the engine process ended {_how(ended)}, and what it has started kept its "
                f"output open for {self.timeout:g} seconds without an answer"
            ) from None
        except (OSError, EOFError) as exc:
            raise self._dead(process) from exc
        except (ValueError, RecursionError) as exc:
            raise self.refused(f"the engine process answered garbage: {exc}") from exc
        if "error" in answer:
            raise _named_error(answer, self._engine or "")
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            assert self._engine is not None
            absent = launch.missing(self._engine, self.python)
            if absent:
                raise EngineLoadError(absent)
            self._buffer = b""
            line = launch.command(self._engine, self.python)
            try:
                self._process = subprocess.Popen(
                    line,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=launch.variables(self._engine),
                    bufsize=0,
                    start_new_session=True,  # a process group of its own, to be ended as one
                )
            except OSError as exc:
                raise EngineLoadError(f"cannot start {line[0]}: {exc.strerror or exc}") from exc
            self._said = _Tail(self._process)
        return self._process

    @staticmethod
    def _write(process: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
        assert process.stdin is not None
        out = process.stdin.fileno()
        os.set_blocking(out, False)  # a stopped process does not read, and must not stop us
        with selectors.DefaultSelector() as ready:
            ready.register(out, selectors.EVENT_WRITE)
            while data:
                if not ready.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                with contextlib.suppress(BlockingIOError):
                    data = data[os.write(out, data) :]

    def _line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert process.stdout is not None
        chunks, size = [self._buffer], len(self._buffer)
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in chunks[-1]:
                if not ready.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                chunk = os.read(process.stdout.fileno(), 1 << 20)
                if not chunk:
                    raise EOFError
                chunks.append(chunk)
                size += len(chunk)
                # an engine that never stops talking is always ready to be read
                if time.monotonic() > deadline:
                    raise TimeoutError
                if size > LONGEST_LINE:
                    raise ValueError(f"a line of more than {LONGEST_LINE} bytes")
        line, _, self._buffer = b"".join(chunks).partition(b"\n")
        return line

    def _dead(self, process: subprocess.Popen[bytes]) -> EngineFailure:
        try:
            code = process.wait(timeout=SECONDS_TO_END)
        except subprocess.TimeoutExpired:  # alive, with its end of the pipe closed
            self._kill(process)
            return self._failure("the engine process closed its output instead of answering")
        return self._failure(f"the engine process ended {_how(code)} instead of answering")

    def refused(self, message: str) -> EngineFailure:
        """The failure of an engine whose answer is none; ends its process."""
        self.kill()
        return self._failure(message)

    def _failure(self, message: str) -> EngineFailure:
        self._loaded = None
        error = EngineFailure(wire.plain_text(message, LONGEST_MESSAGE))
        return _with_detail(error, self._said.text() if self._said else "")


class _Tail:
    """The last of what a process says on standard error, however much that is."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._pipe = process.stderr
        self._bytes = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def text(self) -> str:
        """What was said last; waits a moment for what a process that has ended said at the end."""
        self._reader.join(timeout=1.0)  # whoever it started may hold the pipe open for ever
        return self._bytes.decode("utf-8", "replace")

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._pipe:
            while chunk := os.read(self._pipe.fileno(), 1 << 16):
                self._bytes = (self._bytes + chunk)[-STDERR_TAIL:]


def _is(said: object, number: int) -> bool:
    """Whether it is this number, and not true or 1.0, which are equal to 1."""
    return type(said) is int and said == number


def _how(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with exit status {code}"


def _named_error(answer: wire.Json, engine: str) -> ConformanceError:
    """The error a worker reports; a name that is none of ours is the engine's failure."""
    name, message, trace = (
        text if isinstance(text := answer.get(key), str) else ""
        for key in ("error", "message", "traceback")
    )
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, ConformanceError)):
        kind = EngineFailure
    if issubclass(kind, UnknownEngineError) and engine.startswith(launch.PROGRAM):
        kind = EngineFailure  # the program is there; what it does not know is its own affair
    message = wire.plain_text(message.strip(), LONGEST_MESSAGE) or "no reason was given"
    return _with_detail(kind(message), wire.plain_text(trace, 10 * LONGEST_MESSAGE))


def _with_detail(error: Failure, detail: str) -> Failure:
    error.detail = detail
    return error


def run_tasks(
    tasks: Iterable[Task],
    jobs: int,
    timeout: float,
    wanted: Callable[[Task], bool],
    python: str | None = None,
) -> Iterator[Outcome]:
    """Do tasks on `jobs` workers; outcomes come as they finish.

    Parameters
    ----------
    tasks : iterable of Task
        Neighbours that share engine and probe save loading.
    jobs : int
        Worker processes.
    timeout : float
        Seconds to wait for one task.
    wanted : callable
        Asked just before a task is started; False drops it (its case has failed already).
    python : str, optional
        As for `Worker`.
    """
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    count = 0
    for task in tasks:
        waiting.put(task)
        count += 1
    done: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()
    workers: Sequence[Worker] = [Worker(timeout, python) for _ in range(max(1, min(jobs, count)))]

    def serve(worker: Worker) -> None:
        try:
            while not stop.is_set():
                task = waiting.get_nowait()
                done.put(worker.generate(task) if wanted(task) else None)
        except queue.Empty:
            pass
        except BaseException as exc:  # a defect of ours: hand it to the caller's thread
            done.put(exc)
        finally:
            worker.close()

    threads = [threading.Thread(target=serve, args=(w,), daemon=True) for w in workers]
    for thread in threads:
        thread.start()
    abandoned = True
    try:
        for _ in range(count):
            outcome = done.get()
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is not None:
                yield outcome
        abandoned = False
    finally:
        stop.set()
        for worker in workers if abandoned else ():
            worker.kill()
        for thread in threads:
            thread.join(timeout=10)
