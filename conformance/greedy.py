"""Greedy decoding: every token is the argmax at its own prefix, or a near tie explains it.

A token is IDENTICAL where one token alone can be the argmax, and it is that one; NEAR-TIE where
several can, because their logits are equal or within the margin of the largest, and it is one of
these; DIVERGED where it is none of them. Which prefixes are near ties follows from the logits, and
not from what was emitted. The margin is twice the rounding of a logit: two are compared.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from conformance.evidence import Evidence
from conformance.law import Bools
from conformance.oracle import Tree
from conformance.plan import Case, RunPlan
from conformance.processors import ended
from conformance.statistics import certificate
from conformance.statistics.proportion import wilson
from conformance.verdict import Finding, Interval

SHOWN = 3  # examples of impossible or diverged tokens spelled out in a message
# Equal rows of an output layer give logits that are equal to their last bits, whoever adds them.
EXACTLY = 1e-9  # nats


class GreedyJudge:
    """Judges one arm of a greedy case.

    Laws are taken at the prefixes that were really emitted, so one divergence is one divergence
    and not every token after it.

    Parameters
    ----------
    plan, case, arm
        What was planned.
    evidence : Evidence
        What was gathered.
    """

    def __init__(self, plan: RunPlan, case: Case, arm: str, evidence: Evidence) -> None:
        assert case.workload is not None
        self.plan, self.case, self.arm = plan, case, arm
        self.prompts = case.workload.prompt_array
        self.tree: Tree = case.oracle.tree(evidence.prompt, evidence.tokens, evidence.lengths)
        shape = self.tree.tokens.shape
        # after its end an output has no choice left, and agreeing there tells nothing
        over = ended(self.tree.tokens, case.decoding)
        self._going_on = np.concatenate([np.ones_like(over[:, :1]), ~over[:, :-1]], axis=1)
        self.judged, self.impossible = np.zeros(shape, bool), np.zeros(shape, bool)
        self.gap, self.tied = np.zeros(shape), np.zeros(shape, bool)
        for chunk in case.oracle.chunks(self.prompts, self.tree):
            at = self.tree.instances(chunk.begin, chunk.begin + len(chunk.logits))
            row, x = self.tree.prefix.flat[at] - chunk.begin, self.tree.tokens.flat[at]
            valid = self.tree.valid.flat[at]
            judged = valid & ~chunk.laws.ambiguous[row]
            self.judged.flat[at] = judged & self._going_on.flat[at]
            self.impossible.flat[at] = valid & ~chunk.laws.possible[row, x]
            below = chunk.logits.max(axis=1, keepdims=True) - chunk.logits
            self.gap.flat[at] = below[row, x]
            self.tied.flat[at] = ((below <= EXACTLY).sum(axis=1) > 1)[row]

    @cached_property
    def diverged(self) -> Bools:
        """Tokens that no near tie explains. [N, T]"""
        return np.asarray(self.impossible & self._going_on)

    @cached_property
    def near(self) -> Bools:
        """Tokens at near ties, each one of those that may be the argmax. [N, T]"""
        free = self.tree.valid & self._going_on & ~self.judged
        return np.asarray(free & ~self.impossible)

    @property
    def set_aside(self) -> int:
        """How many tokens are at near ties."""
        return int(self.near.sum())

    @property
    def margin(self) -> float:
        """How far below the largest a logit may be, in nats, and still be its equal."""
        return 2 * self.case.oracle.rounding

    def findings(self) -> list[Finding]:
        """Support and identity."""
        return [support(self.tree, self.impossible, self.arm), self._identity()]

    def _identity(self) -> Finding:
        """Every token is the argmax at its own prefix, near ties set aside and counted."""
        where = list(zip(*np.nonzero(self.diverged), strict=True))
        widest = float(self.gap[self.near].max(initial=0.0))
        examples = [
            f"request {i} output index {t}: token {self.tree.tokens[i, t]} is "
            f"{self.gap[i, t]:.3g} nats below the argmax"
            for i, t in where[:SHOWN]
        ]
        identical = int((self.judged & ~self.diverged).sum())
        n = identical + len(where)
        rate = len(where) / n if n else 0.0
        return Finding(
            "greedy identity",
            "all tokens",
            self.arm,
            n=n,
            rejected=bool(where),
            effect={"diverged": Interval(rate, *wilson(len(where), n))} if where else {},
            detectable=certificate.zero_events_rate(self.plan.profile.power, n) if n else None,
            detectable_unit="rate",
            figures={
                "identical": identical,
                "near_tie": self.set_aside,
                "exact_tie": int((self.near & self.tied).sum()),
                "diverged": len(where),
                "after_end": int((self.impossible & ~self._going_on).sum()),
                # a token that was masked is infinitely far below, which JSON cannot say
                "widest_diverged_nats": min(float(self.gap[self.diverged].max(initial=0)), 1e6),
                "widest_near_tie_nats": widest,
                "margin_nats": self.margin,
            },
            message=(
                f"DIVERGED at {len(where):,} of {n:,} tokens: {'; '.join(examples)}"
                if where
                else f"IDENTICAL at {n:,} tokens, DIVERGED at none"
            )
            + f"; {self._near_ties(widest)}",
        )

    def _near_ties(self, widest: float) -> str:
        exact = int((self.near & self.tied).sum())
        some = f" ({exact:,} of exactly equal logits)" if exact else ""
        allowed = f"margin {self.margin:.2g} nats, {self._source()}"
        if not self.set_aside:
            return f"NEAR-TIE at none ({allowed})"
        return (
            f"NEAR-TIE at {self.set_aside:,}{some}, set aside, where the token is at most "
            f"{widest:.2g} nats below the largest ({allowed})"
        )

    def _source(self) -> str:
        tolerance = self.case.oracle.probe.tolerance
        if self.case.noise is None or self.case.noise <= tolerance:
            return "of single precision, measured on the probe"
        return f"of {self.case.capabilities.precision}, not below what the control arm shows"


def support(tree: Tree, impossible: Bools, arm: str) -> Finding:
    """One token that the law cannot emit is proof.

    Parameters
    ----------
    tree : Tree
        What was emitted.
    impossible : (N, T) bool
        Tokens inside the vocabulary that the law cannot emit.
    arm : str
        Whose tokens.
    """
    examples = [
        f"request {i} emitted id {x} at output index {t}, outside the vocabulary"
        for i, t, x in tree.outside[:SHOWN]
    ]
    examples += [
        f"request {i} emitted token {tree.tokens[i, t]} at output index {t}, whose probability is 0"
        for i, t in list(zip(*np.nonzero(impossible), strict=True))[:SHOWN]
    ]
    count = int(impossible.sum()) + len(tree.outside)
    return Finding(
        "support",
        "all tokens",
        arm,
        n=int(tree.valid.sum()) + len(tree.outside),
        rejected=count > 0,
        message=(
            f"{count:,} tokens the law cannot emit: {'; '.join(examples[:SHOWN])}"
            if count
            else "every token is one the law can emit"
        ),
    )


def compare_greedy(first: GreedyJudge, second: GreedyJudge) -> Finding:
    """Where do the arms first part, and was it a near tie?"""
    a, b = first.tree, second.tree
    parted = a.tokens != b.tokens
    at = parted.argmax(axis=1)
    rows = np.flatnonzero(parted.any(axis=1))
    real = [i for i in rows if first.judged[i, at[i]]]
    # two right tokens at one prefix, one of blocks and one of single steps: what arithmetic does
    both = [i for i in rows if first.near[i, at[i]] and second.near[i, at[i]]]
    widest = max((max(j.gap[i, at[i]] for j in (first, second)) for i in both), default=0.0)
    return Finding(
        "two-sample",
        "shared prefixes",
        "both",
        n=len(a.tokens),
        rejected=bool(real),
        message=(
            f"speculative and control arm part at {len(real):,} of {len(a.tokens):,} prompts where "
            "no near tie explains it"
            if real
            else f"speculative and control arm part at {len(rows):,} of {len(a.tokens):,} prompts, "
            f"first at near ties, of {widest:.2g} nats at most"
            if len(both) == len(rows) > 0
            else f"speculative and control arm part at {len(rows):,} of {len(a.tokens):,} prompts, "
            "where the control arm diverges"
            if len(rows)
            else "speculative and control arm agree"
        ),
    )
