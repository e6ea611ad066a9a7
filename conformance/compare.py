"""Speculative against control arm, whatever the law."""

from __future__ import annotations

import numpy as np

from conformance.judge import ArmJudge
from conformance.statistics.two_sample import two_sample
from conformance.verdict import Finding


def compare_arms(first: ArmJudge, second: ArmJudge) -> Finding:
    """Two-sample test of the arms of a sampled case, prefix by prefix."""
    if not (first.complete and second.complete):
        return _unjudged(first, "sampling was stopped early")
    prompt = np.concatenate([j.tree.prompt for j in (first, second)])
    tokens = np.concatenate([j.tree.tokens for j in (first, second)])
    prefix = first.oracle.tree(prompt, tokens).prefix
    cut = len(first.tree.tokens)
    halves = [
        (numbers[judge.tree.valid], judge.tree.tokens[judge.tree.valid])
        for judge, numbers in ((first, prefix[:cut]), (second, prefix[cut:]))
    ]
    vocab = first.oracle.probe.recipe.vocab_size
    fit, n = two_sample(halves[0], halves[1], vocab, first.rng("two-sample"))
    if fit.df == 0:
        return _unjudged(first, "no prefix was reached often enough")
    rejected = fit.p_value <= first.level
    return Finding(
        "two-sample",
        "shared prefixes",
        "both",
        n=n,
        p_value=fit.p_value,
        level=first.level,
        rejected=rejected,
        statistic=fit.statistic,
        df=float(fit.df),
        message=(
            "speculative and control arm "
            + ("differ" if rejected else "were not seen to differ")
            + f": p = {fit.p_value:.2g}"
        ),
    )


def _unjudged(judge: ArmJudge, why: str) -> Finding:
    return Finding(
        "two-sample",
        "shared prefixes",
        "both",
        n=0,
        level=judge.level,
        message=f"not judged: {why}",
    )
