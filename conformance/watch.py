"""Watching a case while its answers come in, so that a wrong engine is stopped early.

Each arm has an e-process: a bet against the law that an exact engine beats with probability at most
`level`, however often it is looked at (Ville's inequality). EXACT is only ever given at the
planned end. A case is settled early only as NOT EXACT, and only when the control arm, with twice
as many tokens as the speculative arm needed, has not departed from the law: if plain sampling
departs too, the declared dialect is in question, and that is decided at the planned end.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.betting import Bet, Ledger, next_look
from conformance.oracle import free_tokens
from conformance.plan import Case, RunPlan
from conformance.statistics.eprocess import p_value
from conformance.tinylm import Tokens

# After this share of the plan, a look could save less than it costs.
LAST_LOOK = 0.6


class _Arm:
    """One arm's bet, and the answers that it has not been shown."""

    def __init__(self) -> None:
        self.bet = Bet()
        self.waiting: list[tuple[Tokens, Tokens]] = []
        self.seen = 0

    def take(self, tokens: Tokens, prompt: Tokens) -> Iterator[tuple[Tokens, Tokens]]:
        """Add answers; yields as many as the next look wants, as long as there are enough."""
        self.waiting.append((tokens, prompt))
        while True:
            wanted = next_look(self.seen)
            if sum(len(t) for t, _ in self.waiting) < wanted:
                return
            all_tokens = np.concatenate([t for t, _ in self.waiting])
            all_prompts = np.concatenate([p for _, p in self.waiting])
            self.waiting = [(all_tokens[wanted:], all_prompts[wanted:])]
            self.seen += wanted
            yield all_tokens[:wanted], all_prompts[:wanted]


class Watch:
    """The e-processes of a case's arms.

    Parameters
    ----------
    plan, case
        What was planned; `plan.level` is what an e-process may spend.
    """

    def __init__(self, plan: RunPlan, case: Case) -> None:
        self.case, self.level = case, plan.level
        self.arms = {arm: _Arm() for arm in case.arms}
        self.crossed_at: int | None = None
        # in low precision the law moves with rounding, and a bet against it proves nothing
        precise = not case.capabilities.low_precision
        self.open = precise and not case.decoding.greedy and case.workload is not None
        self.last = int(LAST_LOOK * case.workload.requests) if case.workload else 0

    def add(self, arm: str, tokens: Tokens, prompt: Tokens) -> None:
        """Take the next answers of an arm, [n, T] and [n]; enough of them are looked at at once.

        They must come in the order of the requests: which answer comes first can depend on what
        is in it, and an e-process that is shown the fast ones first promises nothing.
        """
        if not self.open or arm not in self.arms:
            return
        mine = self.arms[arm]
        if self._crossed(mine):
            return
        work = self.case.workload
        assert work is not None
        for batch in mine.take(tokens, prompt):
            if mine.seen > self.last:
                return
            begin = mine.seen - len(batch[0])
            self._look(mine, *batch, work.lengths[begin : mine.seen])
            if self._crossed(mine):
                if arm == "speculative":
                    self.crossed_at = mine.seen
                return

    def settled(self) -> bool:
        """Whether the case is certainly NOT EXACT, and not for a wrongly declared dialect."""
        if self.crossed_at is None or not self.open:
            return False
        control = self.arms.get("control")
        if control is None:
            return True
        if self._crossed(control):
            self.open = False
            return False
        return control.seen >= 2 * self.crossed_at

    def _crossed(self, arm: _Arm) -> bool:
        return p_value(arm.bet.log_e) <= self.level

    def _look(self, arm: _Arm, tokens: Tokens, prompt: Tokens, lengths: Tokens) -> None:
        work = self.case.workload
        assert work is not None
        tree = self.case.oracle.tree(prompt, tokens, lengths)
        ledger = Ledger(prompt, len(work.repeated_prompts))
        for chunk in self.case.oracle.chunks(work.prompt_array, tree):
            at = tree.instances(chunk.begin, chunk.begin + len(chunk.logits))
            ledger.add(tree, chunk, at, free_tokens(tree, chunk, at)[1])
        arm.bet.take(ledger, 0, len(prompt))
