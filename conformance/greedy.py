"""Greedy decoding: every token is the argmax at its own prefix, or a near tie explains it."""

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
        self.tree: Tree = case.oracle.tree(evidence.prompt, evidence.tokens)
        shape = self.tree.tokens.shape
        # after its end an output has no choice left, and agreeing there tells nothing
        over = ended(self.tree.tokens, case.decoding)
        self._going_on = np.concatenate([np.ones_like(over[:, :1]), ~over[:, :-1]], axis=1)
        self.judged, self.diverged = np.zeros(shape, bool), np.zeros(shape, bool)
        self.impossible, self.gap = np.zeros(shape, bool), np.zeros(shape)
        for chunk in case.oracle.chunks(self.prompts, self.tree):
            at = self.tree.instances(chunk.begin, chunk.begin + len(chunk.logits))
            row, x = self.tree.prefix.flat[at] - chunk.begin, self.tree.tokens.flat[at]
            valid = self.tree.valid.flat[at]
            judged = valid & ~chunk.laws.ambiguous[row]
            self.judged.flat[at] = judged & self._going_on.flat[at]
            self.impossible.flat[at] = valid & ~chunk.laws.possible[row, x]
            argmax = chunk.logits.argmax(axis=1)[row]
            self.diverged.flat[at] = self.judged.flat[at] & (x != argmax)
            self.gap.flat[at] = chunk.logits.max(axis=1)[row] - chunk.logits[row, x]

    @cached_property
    def set_aside(self) -> int:
        """Tokens at near ties."""
        return int((self.tree.valid & self._going_on & ~self.judged).sum())

    def findings(self) -> list[Finding]:
        """Support and identity."""
        return [support(self.tree, self.impossible, self.arm), self._identity()]

    def _identity(self) -> Finding:
        """Every token is the argmax at its own prefix, near ties set aside and counted."""
        where = list(zip(*np.nonzero(self.diverged), strict=True))
        examples = [
            f"request {i} output index {t}: token {self.tree.tokens[i, t]} is "
            f"{self.gap[i, t]:.3g} nats below the argmax"
            for i, t in where[:SHOWN]
        ]
        n = int(self.judged.sum())
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
            message=(
                f"DIVERGED at {len(where):,} of {n:,} tokens: {'; '.join(examples)}"
                if where
                else f"IDENTICAL at {n:,} tokens, {self.set_aside:,} near ties set aside"
            ),
        )


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
            else "speculative and control arm agree"
        ),
    )
