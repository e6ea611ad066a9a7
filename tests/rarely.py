"""An exact engine that speculates for one request in many, so that little is seen of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conformance import Completion, Request
from conformance.adapters.reference import reference

ONE_IN = 40


class Rarely:
    """Exact; proposes something for about one request in `ONE_IN`."""

    def __init__(self) -> None:
        self.inner = reference()
        self.card = replace(self.inner.card, name="rarely")
        self.capabilities = replace(self.inner.capabilities, max_batch=64)

    def load(self, probe: object) -> None:
        self.inner.load(probe)  # type: ignore[arg-type]

    def close(self) -> None:
        self.inner.close()

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        asked = [
            r if (r.seed or 0) % ONE_IN == 0 else replace(r, speculate=False) for r in requests
        ]
        answers = self.inner.generate(asked)
        return [
            a
            if a.rounds is not None or not r.speculate
            else replace(a, rounds=[(0, 0)] * len(a.tokens))
            for a, r in zip(answers, requests, strict=True)
        ]
