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
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from conformance import errors, wire
from conformance.contract import Capabilities, EngineCard, ModelPair, Request
from conformance.errors import ConformanceError, EngineFailure, NotSupportedError

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
    """What came of a task: completions as plain data, or the error."""

    task: Task
    completions: tuple[wire.Json, ...] = ()
    seconds: float = 0.0
    error: ConformanceError | None = None
    detail: str = ""


class Worker:
    """One process, one engine at a time.

    Parameters
    ----------
    timeout : float
        Seconds to wait for an answer.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._engine: str | None = None
        self._loaded: tuple[str, ModelPair | None] | None = None
        self._buffer = b""

    def load(self, engine: str, pair: ModelPair | None) -> tuple[EngineCard, Capabilities]:
        """Construct an engine and, given a pair, load it."""
        encoded = None if pair is None else wire.encode_pair(pair)
        if self._engine != engine:
            self.close()  # what the last engine did to its process is not this one's to suffer
        self._engine, self._loaded = engine, None
        answer = self._ask({"op": "load", "engine": engine, "pair": encoded})
        try:
            described = wire.read_description(answer)
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise EngineFailure(f"engine {engine} has an unreadable card: {exc}") from exc
        self._loaded = (engine, pair)
        return described

    def generate(self, task: Task) -> Outcome:
        """Do one task; never raises what the engine is to blame for."""
        try:
            if self._loaded != (task.engine, task.pair):
                self.load(task.engine, task.pair)
            begin = time.perf_counter()
            answer = self._ask({"op": "generate", "requests": wire.encode_requests(task.requests)})
            seconds = time.perf_counter() - begin
            return Outcome(task, wire.read_completions(answer, task.requests), seconds)
        except ConformanceError as exc:
            if not isinstance(exc, NotSupportedError):
                self.close()  # in what state the engine is, nobody knows
            return Outcome(task, error=exc, detail=exc.detail)

    def close(self) -> None:
        """End the process and whatever it started, by force if need be."""
        process, self._process = self._process, None
        self._engine = self._loaded = None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=SECONDS_TO_END)
        self._kill(process)
        process.wait()
        process.stdout.close()

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
        try:
            self._write(process, json.dumps(message).encode() + b"\n", deadline)
            answer = json.loads(self._line(process, deadline))
            if not isinstance(answer, dict):
                raise ValueError("not an object")
        except TimeoutError:  # before OSError, whose subclass it is
            self._kill(process)
            raise self._failure(
                f"the engine did not answer within {self.timeout:g} seconds and was stopped"
            ) from None
        except (OSError, EOFError) as exc:
            raise self._dead(process) from exc
        except (ValueError, RecursionError) as exc:
            self._kill(process)
            raise self._failure(f"the engine process answered garbage: {exc}") from exc
        if "error" in answer:
            raise _named_error(answer)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._stderr.seek(0)
            self._stderr.truncate()
            self._buffer = b""
            # one thread each: the workers share the machine's cores between them
            threads = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS",)}
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "conformance.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=os.environ | threads,
                bufsize=0,
                start_new_session=True,  # a process group of its own, to be ended as one
            )
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
        how = f"by signal {-code}" if code < 0 else f"with exit status {code}"
        return self._failure(f"the engine process ended {how} instead of answering")

    def _failure(self, message: str) -> EngineFailure:
        self._loaded = None
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - STDERR_TAIL))
        tail = self._stderr.read().decode("utf-8", "replace")
        return _with_detail(EngineFailure(message), tail)


def _named_error(answer: wire.Json) -> ConformanceError:
    """The error a worker reports; a name that is none of ours is the engine's failure."""
    kind = getattr(errors, str(answer["error"]), None)
    if not (isinstance(kind, type) and issubclass(kind, ConformanceError)):
        kind = EngineFailure
    message = wire.plain_text(answer.get("message"), LONGEST_MESSAGE) or "no reason was given"
    detail = wire.plain_text(answer.get("traceback"), 10 * LONGEST_MESSAGE)
    return _with_detail(kind(message), detail)


def _with_detail(error: Failure, detail: str) -> Failure:
    error.detail = detail
    return error


def run_tasks(
    tasks: Iterable[Task], jobs: int, timeout: float, wanted: Callable[[Task], bool]
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
    """
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    count = 0
    for task in tasks:
        waiting.put(task)
        count += 1
    done: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()
    workers: Sequence[Worker] = [Worker(timeout) for _ in range(max(1, min(jobs, count)))]

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


def describe(engine: str, timeout: float = 120.0) -> tuple[EngineCard, Capabilities]:
    """Ask an engine, in a process of its own, who it is and what it can do.

    Raises
    ------
    ConformanceError
        `UnknownEngineError`, `EngineLoadError` or `EngineFailure`.
    """
    worker = Worker(timeout)
    try:
        return worker.load(engine, None)
    finally:
        worker.close()
