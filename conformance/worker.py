"""The process an engine lives in: ``python -m conformance.worker``.

Reads one JSON request a line on standard input and answers one JSON line on what was standard
output. The engine's own prints go to standard error, so that they cannot be taken for answers.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import IO, Any

from conformance import wire
from conformance.contract import Engine
from conformance.errors import ConformanceError
from conformance.resolve import resolve


class _Worker:
    def __init__(self) -> None:
        self.name: str | None = None
        self.engine: Engine | None = None

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what the message asks."""
        if message["op"] == "load":
            return self._load(message)
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
            self.engine, self.name = resolve(message["engine"]), message["engine"]
        if message["pair"] is not None:
            self.engine.load(wire.decode_pair(message["pair"]))
        return wire.describe(self.engine.card, self.engine.capabilities)

    def close(self) -> None:
        """Let the engine go."""
        if self.engine is not None:
            self.engine.close()
        self.engine = self.name = None


def main() -> None:
    """Serve until standard input ends."""
    sys.path.append(os.getcwd())  # finds 'my_module:MyEngine' beside the user, hides nothing
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = _Worker()
    for line in sys.stdin:
        try:
            _say(answers, worker.answer(json.loads(line)))
        except Exception as exc:  # whatever an engine raises is its answer
            known = isinstance(exc, ConformanceError)
            _say(
                answers,
                {
                    "error": type(exc).__name__ if known else "EngineFailure",
                    "message": str(exc) if known else f"{type(exc).__name__}: {exc}",
                    "traceback": traceback.format_exc(),
                },
            )
    worker.close()


def _say(out: IO[str], message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
