"""Greedy decoding without a law: do the arms give the same answer?

An exact greedy arm gives what plain greedy sampling gives, but for near ties, at which rounding
decides: the verification of several tokens at once is rounded otherwise than one token at a time.
Without logits a near tie cannot be told from a fault. So three things are said apart. No divergence
at all is a pass. Divergences that rounding could explain, at most `Target.ties` of the tokens, or
no more of them than the control arm has with itself, are INCONCLUSIVE. More of them is NOT EXACT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from conformance.plan import RunPlan
from conformance.served.evidence import ServedEvidence
from conformance.served.plan import EVERYWHERE, ServedCase
from conformance.served.server import AGAIN, CONTROL, SPECULATIVE
from conformance.statistics import certificate
from conformance.statistics.proportion import wilson
from conformance.statistics.tree import ABSENT
from conformance.verdict import Finding, Interval


@dataclass(frozen=True, slots=True)
class Divergence:
    """Symbols compared up to the first difference of each answer, and answers that differ."""

    compared: int
    diverged: int


def divergence(first: ServedEvidence, second: ServedEvidence) -> Divergence:
    """The answers of two arms to the same prompts, each asked once."""
    seen = hits = 0
    a, b = (e.symbols[np.argsort(e.prompt)] for e in (first, second))
    for x, y in zip(a, b, strict=True):
        differ = np.flatnonzero(x != y)
        seen += int(differ[0]) + 1 if len(differ) else int((x != ABSENT).sum())
        hits += bool(len(differ))
    return Divergence(seen, hits)


def greedy_findings(
    plan: RunPlan, case: ServedCase, arms: Mapping[str, ServedEvidence]
) -> tuple[Finding, Finding]:
    """Speculative against control, and control against control."""
    assert case.aim is not None
    apart = divergence(arms[SPECULATIVE], arms[CONTROL])
    gate = divergence(arms[CONTROL], arms[AGAIN])
    ties = case.aim.ties
    # the null is either of two: rounding, or no more than the control arm differs from itself
    p = float(stats.binom.sf(apart.diverged - 1, max(apart.compared, 1), ties)) if ties else 0.0
    if gate.diverged:
        table = np.array([[d.diverged, d.compared - d.diverged] for d in (apart, gate)])
        p = max(p, float(stats.fisher_exact(table, alternative="greater").pvalue))
    p = p if apart.diverged else 1.0
    hit = p <= plan.level
    rate = apart.diverged / max(apart.compared, 1)
    low, high = wilson(apart.diverged, max(apart.compared, 1))
    detectable = (
        certificate.zero_events_rate(plan.profile.power, apart.compared)
        if apart.compared and not apart.diverged
        else None
    )
    unit = case.unit
    return (
        Finding(
            "greedy identity",
            EVERYWHERE,
            "both",
            n=apart.compared,
            p_value=p,
            level=plan.level,
            rejected=hit,
            effect={"diverged": Interval(rate, low, high)},
            detectable=detectable,
            detectable_unit="rate",
            message=(
                f"{apart.diverged:,} of {len(arms[SPECULATIVE].symbols):,} greedy answers leave "
                f"the control arm's, at {rate:.2%} of the {unit}s compared"
            ),
        ),
        Finding(
            "greedy identity",
            EVERYWHERE,
            "control",
            n=gate.compared,
            message=(
                f"control against control: {gate.diverged:,} of {len(arms[CONTROL].symbols):,} "
                "greedy answers differ"
            ),
        ),
    )
