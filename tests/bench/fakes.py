"""An engine on an injected clock: what a step takes is known, and so is what must come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from conformance.bench.asking import Answer
from conformance.contract import Capabilities, EngineCard, ModelPair, Request

FIRST = 0.05  # seconds to read a prompt


@dataclass
class Pace:
    """How fast the engine is, and how it answers."""

    target: float = 0.01
    draft: float = 0.001
    verify: float = 0.01
    accept: float = 0.8
    k: int = 4
    noise: float = 0.01
    streams: bool = True
    tells_rounds: bool = True
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities(verification="token", max_batch=8)
    )


class FakeAsker:
    """Answers from arithmetic; `fault` may raise, and is asked before every call."""

    def __init__(
        self, pace: Pace, fault: Callable[[Sequence[Request]], None] | None = None
    ) -> None:
        self.pace, self.fault = pace, fault
        self.calls: list[tuple[str, tuple[Request, ...]]] = []
        self.rng = np.random.default_rng(7)
        self.pid = None
        self.closed = 0

    def describe(self) -> tuple[EngineCard, Capabilities]:
        return EngineCard("fake", "1.0"), self.pace.capabilities

    def ask(self, pair: ModelPair, requests: Sequence[Request]) -> Answer:
        self.calls.append((pair.name, tuple(requests)))
        if self.fault is not None:
            self.fault(requests)
        alone = "draft alone" in pair.name
        completions = [self._one(r, alone) for r in requests]
        slower = float(np.exp(self.pace.noise * self.rng.standard_normal()))
        for c in completions:
            c["times"] = [t * slower for t in c["times"]]
        seconds = max(c["times"][-1] for c in completions)
        if not self.pace.streams:
            for c in completions:
                del c["times"]
        return Answer(tuple(completions), seconds, seconds * 0.99)

    def _one(self, request: Request, alone: bool) -> dict:
        p, wanted = self.pace, request.max_new_tokens
        if not request.speculate:
            step = p.draft if alone else p.target
            times = [FIRST + step * (i + 1) for i in range(wanted)]
            return {"tokens": [0] * wanted, "rounds": None, "counts": None, "times": times}
        times, rounds, now = [], [], FIRST
        while len(times) < wanted:
            k = min(p.k, wanted - len(times) - 1)
            hits = self.rng.random(k) < p.accept
            n = k if hits.all() else int(hits.argmin())
            now += k * p.draft + (p.verify if k else p.target)
            times += [now] * (n + 1)
            rounds.append([k, n])
        answer = {"tokens": [0] * wanted, "rounds": rounds, "counts": None}
        if not p.tells_rounds:
            answer["rounds"] = None
        return answer | {"times": times[:wanted]}

    def close(self) -> None:
        self.closed += 1
