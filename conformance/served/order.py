"""The one random order in which all arms are asked, and the bets on answers in that order."""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np

from conformance.asked import arm_seeds
from conformance.plan import RunPlan
from conformance.served.bets import LawWatch
from conformance.served.evidence import ServedEvidence
from conformance.served.laws import ServedLaws
from conformance.served.nodes import Nodes
from conformance.served.plan import GATE, GATE_TESTS, ServedCase
from conformance.served.server import AGAIN, ARMS, CONTROL, SPECULATIVE, Answer, Ask
from conformance.statistics.paired import Pairs
from conformance.statistics.tables import Ints
from conformance.statistics.tree import ABSENT


def schedule(plan: RunPlan, case: ServedCase) -> tuple[Ints, Ints]:
    """Arm and prompt of every request, in the order asked. The beginning is the same whatever the
    number of requests.
    """
    assert case.workload is not None
    prompts = len(case.texts)
    size = len(ARMS) * prompts
    rng = np.random.default_rng([plan.seed, zlib.crc32(case.id.encode()), 3])
    blocks = math.ceil(case.workload.requests / prompts)
    order = np.concatenate([rng.permutation(size) for _ in range(blocks)])
    return order // prompts, order % prompts


def requests(plan: RunPlan, case: ServedCase) -> list[Ask]:
    """Every request of a case, in the order asked."""
    assert case.workload is not None
    arm_of, prompt_of = schedule(plan, case)
    seeds = {arm: iter(arm_seeds(plan, case, arm).tolist()) for arm in ARMS}
    asks = []
    for a, p in zip(arm_of.tolist(), prompt_of.tolist(), strict=True):
        seed = next(seeds[ARMS[a]])
        text, tokens = case.texts[p], case.workload.new_tokens
        asks.append(Ask(ARMS[a], text, None if seed < 0 else seed, tokens))
    return asks


class Watch:
    """The bets on the arms against each other, and on the control arm against itself.

    Parameters
    ----------
    level : float
        Of the first; the second has the gate's.
    law : LawWatch, optional
        The bets on the law that the control server tells.
    """

    def __init__(self, level: float, law: LawWatch | None = None) -> None:
        self.level, self.law = level, law
        self.apart, self.gate = Pairs(), Pairs()
        self._bets = (((SPECULATIVE, CONTROL), self.apart), ((CONTROL, AGAIN), self.gate))
        self._waiting: dict[tuple[int, int], deque[tuple[str, Answer]]] = {}

    def add(self, arm: str, prompt: int, answer: Answer) -> None:
        """One answer; answers of two arms to one prompt are paired in the order they come."""
        for number, (arms, pairs) in enumerate(self._bets):
            if arm not in arms:
                continue
            waiting = self._waiting.setdefault((number, prompt), deque())
            if not waiting or waiting[0][0] == arm:
                waiting.append((arm, answer))
                continue
            _, other = waiting.popleft()
            x, y = (answer, other) if arm == arms[0] else (other, answer)
            pairs.add(prompt, x.symbols, y.symbols)
        if self.law is not None:
            self.law.add(arm, prompt, answer.symbols)

    def settled(self) -> bool:
        """Whether a bet was won."""
        return (
            self.apart.log_e >= -math.log(self.level)
            or self.gate.log_e >= -math.log(GATE / GATE_TESTS)
            or (self.law is not None and self.law.settled())
        )


def replayed(
    plan: RunPlan,
    case: ServedCase,
    arms: Mapping[str, ServedEvidence],
    laws: ServedLaws | None = None,
) -> Watch:
    """The bets on evidence that is complete up to some request."""
    watch = watch_of(plan, case, laws)
    for arm, prompt, answer in answers(plan, case, arms):
        watch.add(arm, prompt, answer)
    return watch


def watch_of(plan: RunPlan, case: ServedCase, laws: ServedLaws | None) -> Watch:
    """Bets before any answer."""
    return Watch(plan.level, None if laws is None else LawWatch(Nodes(case, laws), plan.level))


def answers(
    plan: RunPlan, case: ServedCase, arms: Mapping[str, ServedEvidence]
) -> Iterator[tuple[str, int, Answer]]:
    """Arm, prompt and answer of every request of such evidence, in the order asked."""
    arm_of, prompt_of = schedule(plan, case)
    place = dict.fromkeys(ARMS, 0)
    for a, p in zip(arm_of.tolist(), prompt_of.tolist(), strict=True):
        arm = ARMS[a]
        i = place[arm]
        if i >= len(arms[arm].symbols):
            break
        row = arms[arm].symbols[i]
        yield arm, p, Answer(tuple(row[row != ABSENT].tolist()))
        place[arm] += 1
