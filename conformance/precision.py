"""Engines that compute in less than single precision.

Rounding then moves the law itself, by more than the float32 noise a probe is measured for and by an
amount that depends on kernels and batch shapes; so nothing is assumed of it. What it does is read
off the same engine, not speculating: greedy tokens that are not the argmax tell how far a logit is
moved, and the control arm how far rounding moves each test. Nothing here looks at the speculative
arm to decide how far it may depart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from conformance.errors import EngineFailure
from conformance.evidence import Evidence
from conformance.plan import ROUNDING, Case
from conformance.verdict import Finding

SAFETY = 2.0
# Rounding that takes a logit further than this is no rounding: the declared law is wrong.
MOST_NATS = 0.5
# What rounding every intermediate result does to a logit of our probes: root mean square, in nats
# (tests/test_precision_margin.py works it out). Its tail is long. A few thousand greedy tokens show
# little of it, so that the margin at near ties is never below FLOOR of these, whatever the control
# arm shows, and never above CEILING, whatever it shows.
RMS = {"bfloat16": 0.05, "float16": 0.0065}
FLOOR, CEILING = 8.0, 20.0
STRAYS = 3  # tokens beyond the margin, yet within the ceiling, that rounding does not explain
MOST_Z = 37.0  # of the smallest positive double


def with_measured_noise(case: Case, plain: Evidence | None) -> Case:
    """The case with the rounding that the engine shows without speculation, where it computes in
    low precision.

    Parameters
    ----------
    case : Case
        As planned.
    plain : Evidence or None
        Greedy answers without speculation: the control arm, or what was asked beside it.

    Raises
    ------
    EngineFailure
        If there is nothing to measure it on, or no rounding explains the tokens.
    """
    if not case.capabilities.low_precision:
        return case
    if plain is None or not (case.decoding.greedy or case.rounding):
        raise EngineFailure(
            f"an engine that computes in {case.capabilities.precision} needs a control arm and "
            "greedy decoding: its rounding can be measured on nothing else"
        )
    if not case.decoding.greedy:
        return replace(case, noise=measured_noise(case.asked(ROUNDING), plain))
    return replace(case, noise=max(measured_noise(case, plain), least_noise(case)))


def measured_noise(case: Case, plain: Evidence) -> float:
    """Rounding of a logit, in nats, from greedy answers: twice the least at which each of their
    tokens is within the rounding of two logits of the largest.
    """
    assert case.workload is not None
    oracle = replace(case, noise=case.oracle.probe.tolerance).oracle
    tree = oracle.tree(plain.prompt, plain.tokens, plain.lengths)
    gap = 0.0
    for chunk in oracle.chunks(case.workload.prompt_array, tree):
        at = tree.instances(chunk.begin, chunk.begin + len(chunk.logits))
        row, x = tree.prefix.flat[at] - chunk.begin, tree.tokens.flat[at]
        below = (chunk.logits.max(axis=1)[row] - chunk.logits[row, x])[tree.valid.flat[at]]
        gap = max(gap, float(below.max(initial=0.0)))
    if SAFETY * gap / 2 > most_noise(case):
        raise EngineFailure(
            f"without speculation a greedy token is {gap:.2g} nats below the largest logit, which "
            "is no rounding: the declared law is wrong"
        )
    return max(SAFETY * gap / 2, oracle.probe.tolerance)


def least_noise(case: Case) -> float:
    """Rounding of a logit, in nats, that is allowed at near ties whatever the control arm shows."""
    return FLOOR * RMS.get(case.capabilities.precision, 0.0)


def most_noise(case: Case) -> float:
    """Rounding of a logit, in nats, above which the declared law is wrong: an engine cannot widen
    its own margin without end.
    """
    rms = RMS.get(case.capabilities.precision)
    return SAFETY * MOST_NATS if rms is None else CEILING * rms


def strays(case: Case, findings: Sequence[Finding]) -> str:
    """What is to be said where all that was found in low precision is fewer than STRAYS greedy
    tokens beyond the margin and within the ceiling; empty where there is more, or nothing.
    """
    mine = [f for f in findings if (f.test, f.arm) == ("greedy identity", "speculative")]
    if not (case.capabilities.low_precision and case.decoding.greedy and mine):
        return ""
    told = mine[0].figures
    if not 0 < told["diverged"] < STRAYS or told["after_end"]:
        return ""
    if told["widest_diverged_nats"] > 2 * most_noise(case):
        return ""
    return (
        f"{told['diverged']:.0f} of {mine[0].n:,} greedy tokens are beyond the margin of "
        f"{told['margin_nats']:.2g} nats, by which the rounding of {case.capabilities.precision} "
        f"may move two logits, but {told['widest_diverged_nats']:.2g} nats at most, and fewer than "
        f"{STRAYS} of them show nothing: rounding has a long tail"
    )


def note(case: Case) -> str:
    """What was measured, to be said beside the verdict; nothing in single precision."""
    if case.noise is None or case.noise == case.oracle.probe.tolerance:
        return ""
    shown = "measured on the control arm"
    if case.decoding.greedy and case.noise <= least_noise(case):
        shown = "no less than it is on such a probe"
    return (
        f"; rounding in {case.capabilities.precision}, {shown}: up to {case.noise:.2g} nats a "
        "logit allowed at near ties and edges"
    )


def beyond_rounding(
    findings: Sequence[Finding], level: float
) -> tuple[list[Finding], list[Finding]]:
    """Rejections in the speculative arm that exceed what the control arm shows, and those, in
    either arm, that rounding may explain.
    """
    rejected = [f for f in findings if f.rejected]
    beyond = [f for f in rejected if f.arm != "control" and _beyond_control(f, findings, level)]
    return beyond, [f for f in rejected if f not in beyond]


def _beyond_control(finding: Finding, findings: Sequence[Finding], level: float) -> bool:
    """Whether the speculative arm departs from the law by more than the control arm does.

    Both arms have equally many samples. If the same rounding moves both, their z-scores have the
    same mean, and the difference of two is normal with variance 2. A greedy token beyond twice the
    rounding that was measured speaks for itself. An e-process bounds its p-value and has no
    z-score.
    """
    if finding.arm == "both" or finding.p_value is None:
        return True
    same = [
        f
        for f in findings
        if (f.test, f.scope, f.arm) == (finding.test, finding.scope, "control")
        and f.p_value is not None
    ]
    if finding.test == "e-process":
        return False
    if not same:  # by place in the block: the control arm has no blocks to compare with
        return False
    assert same[0].p_value is not None
    difference = (_z(finding.p_value) - _z(same[0].p_value)) / math.sqrt(2)
    return bool(difference >= _z(level))


def _z(p: float) -> float:
    return float(np.clip(stats.norm.isf(p), -MOST_Z, MOST_Z))
