"""The process an engine lives in: speaks the host protocol for an engine written in Python.

One JSON message a line on standard input, one JSON answer a line on what was standard output
(docs/host-protocol.md). The engine's own prints go to standard error, so that they cannot be taken
for answers.

It is run as ``python -m conformance.adapters.host`` beside the suite, or as a file by the Python of
another virtual environment. That Python needs nothing installed: it is told where this suite's
packages are, and what is imported here for an engine needs the standard library alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import queue
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import IO, Any

FLAG = "--package="


class _Finder(MetaPathFinder):
    """Finds packages where the command line says that they are, and nothing else there."""

    def __init__(self, places: dict[str, Path]) -> None:
        self.places = places

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        place = self.places.get(fullname)
        if place is None:
            return None
        init = place / "__init__.py"
        if init.exists():
            return importlib.util.spec_from_file_location(
                fullname, init, submodule_search_locations=[str(place)]
            )
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(place)]
        return spec


if __name__ == "__main__":
    told = [a.removeprefix(FLAG).split("=", 1) for a in sys.argv[1:] if a.startswith(FLAG)]
    if told:
        sys.meta_path.insert(0, _Finder({name: Path(place) for name, place in told}))

from conformance import errors, introduction, wire  # noqa: E402 - found by the finder
from conformance.contract import Engine  # noqa: E402
from conformance.errors import ConformanceError  # noqa: E402
from conformance.resolve import check_engine, construct, is_verifier  # noqa: E402

SECONDS_TO_END = 4.0  # for the engine's `close`, once there are no more questions


class Host:
    """Holds one engine, or one verifier, and answers messages about it."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.verifier: Any = None  # a conformance.verifier.serve.Server; its module needs numpy

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what the message asks.

        Raises
        ------
        ConformanceError
            If it cannot be done; and whatever an engine may raise.
        """
        op = message["op"]
        if op == "start":
            return self._start(message["engine"])
        if self.verifier is not None:
            answer: dict[str, Any] = self.verifier.answer(message)
            return answer
        if self.engine is None:
            raise ConformanceError(f"the message {op!r} came before 'start'")
        if op == "load":
            self.engine.load(wire.decode_pair(message["probe"]))
            return {}
        if op == "generate":
            return self._generate(self.engine, message["requests"])
        raise ConformanceError(f"the host protocol has no message {op!r}")

    @staticmethod
    def _generate(engine: Engine, rows: list[wire.Json]) -> wire.Json:
        requests = wire.decode_requests(rows)
        size = max(1, int(engine.capabilities.max_batch))
        answers, seconds = [], 0.0
        for begin in range(0, len(requests), size):
            batch = requests[begin : begin + size]
            started = time.perf_counter()
            made = engine.generate(batch)
            seconds += time.perf_counter() - started
            answers += wire.encode_completions(made, batch)
        return {"completions": answers, "seconds": seconds}

    def _start(self, name: str) -> dict[str, Any]:
        self.close()
        made = construct(name)
        if is_verifier(made):
            from conformance.verifier import serve  # noqa: PLC0415 - needs numpy
            from conformance.verifier import wire as verifier_wire  # noqa: PLC0415

            verifier = serve.check_verifier(name, made)
            self.verifier = serve.Server(verifier)
            injects = callable(getattr(verifier, "verify_with", None))
            said = verifier_wire.describe(verifier.card, verifier.capabilities, injects)
        else:
            self.engine = check_engine(name, made)
            said = introduction.describe(self.engine.card, self.engine.capabilities)
        return said | {"environment": environment()}

    def close(self) -> None:
        """Let the engine go."""
        if self.engine is not None:
            self.engine.close()
        self.engine = self.verifier = None


def environment() -> dict[str, str]:
    """What the engine runs on: its Python, and every package that this Python finds."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for place in sys.path:
        # names of folders: reading the metadata itself would take longer than a small engine runs
        with contextlib.suppress(OSError):
            for entry in sorted(os.listdir(place or ".")):
                name, _, version = entry.removesuffix(".dist-info").partition("-")
                if entry.endswith(".dist-info") and version:
                    found.setdefault(name.lower().replace("_", "-"), version)
    return found


def main() -> None:
    """Serve until standard input ends, or 'stop'."""
    sys.path.append(os.getcwd())  # finds 'my_module:MyEngine' beside the user, hides nothing
    # the engine, and whatever it starts, gets an empty standard input and standard error for
    # output, so that neither a question nor an answer can be touched by mistake
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(questions, waiting), daemon=True).start()
    host = Host()
    while (line := waiting.get()) is not None:
        message = json.loads(line)
        if message["op"] == "stop":
            _last_seconds()
            break
        try:
            answer = json.dumps(host.answer(message) | {"id": message["id"]})
        except Exception as exc:  # whatever an engine raises is its answer
            answer = json.dumps(_failure(exc) | {"id": message["id"]})
        answers.write(answer + "\n")
        answers.flush()
    host.close()


def _listen(questions: IO[str], waiting: queue.SimpleQueue[str | None]) -> None:
    """Hand questions over; when there are no more, see to it that the process ends.

    Their end may also mean that the parent is gone, and then nobody is left to stop an engine
    that hangs.
    """
    for line in questions:
        waiting.put(line)
    waiting.put(None)
    _last_seconds()


def _last_seconds() -> None:
    """End the process soon, whatever the engine does."""
    timer = threading.Timer(SECONDS_TO_END, os._exit, [1])
    timer.daemon = True
    timer.start()


def _failure(exc: Exception) -> wire.Json:
    # the nearest of our own classes: a vendor may well derive its refusal from ours
    kinds = [k.__name__ for k in type(exc).__mro__ if k.__module__ == errors.__name__]
    ours = isinstance(exc, ConformanceError)
    return {
        "error": kinds[0] if kinds else "",
        "message": str(exc) if ours else f"{type(exc).__name__}: {exc}",
        "traceback": traceback.format_exc(),
    }


if __name__ == "__main__":
    main()
