"""The process an engine lives in: ``python -m conformance.worker``.

Reads one JSON request a line on standard input and answers one JSON line on what was standard
output. The engine's own prints go to standard error, so that they cannot be taken for answers.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from typing import IO, Any

from conformance import errors, wire
from conformance.contract import Engine
from conformance.errors import ConformanceError
from conformance.resolve import check_engine, construct
from conformance.verifier import Verifier
from conformance.verifier import wire as verifier_wire
from conformance.verifier.serve import Server, check_verifier, is_verifier

SECONDS_TO_END = 4.0  # for the engine's `close`, once there are no more questions


class _Worker:
    def __init__(self) -> None:
        self.name: str | None = None
        self.engine: Engine | None = None
        self.verifier: Server | None = None

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what the message asks."""
        if message["op"] == "load":
            return self._load(message)
        if self.verifier is not None:
            return self.verifier.answer(message)
        assert self.engine is not None
        requests = wire.decode_requests(message["requests"])
        size = max(1, int(self.engine.capabilities.max_batch))
        answers = []
        for begin in range(0, len(requests), size):
            batch = requests[begin : begin + size]
            answers += wire.encode_completions(self.engine.generate(batch), batch)
        return {"completions": answers}

    def _load(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["engine"] != self.name or self.engine is None:
            self.close()
            made, self.name = construct(message["engine"]), message["engine"]
            if is_verifier(made):
                return self._hold(check_verifier(self.name, made))
            self.engine = check_engine(self.name, made)
        if message["pair"] is not None:
            self.engine.load(wire.decode_pair(message["pair"]))
        return wire.describe(self.engine.card, self.engine.capabilities)

    def _hold(self, verifier: Verifier) -> dict[str, Any]:
        self.verifier = Server(verifier)
        injects = callable(getattr(verifier, "verify_with", None))
        return verifier_wire.describe(verifier.card, verifier.capabilities, injects)

    def close(self) -> None:
        """Let the engine go."""
        if self.engine is not None:
            self.engine.close()
        self.engine = self.verifier = self.name = None


def main() -> None:
    """Serve until standard input ends."""
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
    worker = _Worker()
    while (line := waiting.get()) is not None:
        try:
            _say(answers, worker.answer(json.loads(line)))
        except Exception as exc:  # whatever an engine raises is its answer
            _say(
                answers,
                {
                    "error": _kind(exc),
                    "message": str(exc)
                    if isinstance(exc, ConformanceError)
                    else f"{type(exc).__name__}: {exc}",
                    "traceback": traceback.format_exc(),
                },
            )
    worker.close()


def _listen(questions: IO[str], waiting: queue.SimpleQueue[str | None]) -> None:
    """Hand questions over; when there are no more, see to it that the process ends.

    Their end may also mean that the parent is gone, and then nobody is left to stop an engine
    that hangs.
    """
    for line in questions:
        waiting.put(line)
    waiting.put(None)
    time.sleep(SECONDS_TO_END)
    os._exit(1)


def _kind(exc: Exception) -> str:
    """The nearest of our own classes: a vendor may well derive its refusal from ours."""
    return next((k.__name__ for k in type(exc).__mro__ if k.__module__ == errors.__name__), "")


def _say(out: IO[str], message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
