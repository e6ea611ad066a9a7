"""Ville's inequality, measured: an exact sampler looked at after every token.

The share of sequences whose mixture ever reaches 1 / alpha is at most alpha. Drafts are near, far
and one-hot; laws dense, truncated and nearly greedy; prefixes depend on the tokens before.
"""

from __future__ import annotations

import in_process
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from conformance.law import Floats, softmax
from conformance.reference import draw
from conformance.statistics import eprocess
from conformance.statistics.alternatives import NAMES, PRIOR, token_log_ratios

ALPHAS = (0.05, 0.01)
LUCK = 1e-6
LENGTH = 400
STATES = 6
WORLDS = ("dense, near", "dense, far", "truncated", "nearly greedy, one-hot draft")


def world(name: str, rng: np.random.Generator) -> tuple[Floats, Floats]:
    v = 12
    logits = rng.standard_normal((STATES, v)) * (4.0 if "greedy" in name else 1.5)
    p = softmax(logits)
    q = softmax(logits + (2.0 if "far" in name else 0.4) * rng.standard_normal(logits.shape))
    if name == "truncated":
        keep = p >= np.sort(p, axis=1)[:, [-4]]
        p, q = (np.where(keep, m, 0) / np.where(keep, m, 0).sum(1, keepdims=True) for m in (p, q))
    if "one-hot" in name:
        q = np.eye(v)[rng.integers(0, v, STATES)]
    return p, q


def largest(
    p: Floats, q: Floats, size: int, rng: np.random.Generator, power: float
) -> dict[str, Floats]:
    """The largest log E that `size` sequences from p^power ever reach, by family. [size] each"""
    drawn = p**power / (p**power).sum(axis=1, keepdims=True)
    v = p.shape[1]
    prefix, token = np.indices(p.shape).reshape(2, -1)
    table = token_log_ratios(prefix, token, p, q).reshape(STATES, v, -1)
    follow = rng.integers(0, STATES, p.shape)
    sums = np.zeros((size, len(NAMES)))
    counts = np.zeros((size, STATES, v))
    a = eprocess.CONCENTRATIONS
    dirichlet = np.zeros((size, len(a)))
    best = {name: np.zeros(size) for name in ("tilts", "Dirichlet", "both")}
    state, each = np.zeros(size, np.int64), np.arange(size)
    for _ in range(LENGTH):
        x = draw(drawn[state], rng.random(size))
        sums += table[state, x]
        here = counts[each, state]
        mass = p[state, x][:, None]
        dirichlet += np.log(
            (a * mass + here[each, x][:, None]) / (a + here.sum(axis=1)[:, None]) / mass
        )
        counts[each, state, x] += 1
        tilts = logsumexp(sums, axis=1, b=PRIOR)
        generic = logsumexp(dirichlet, axis=1) - np.log(len(a))
        both = np.logaddexp(np.log(0.8) + tilts, np.log(0.2) + generic)
        for name, now in (("tilts", tilts), ("Dirichlet", generic), ("both", both)):
            best[name] = np.maximum(best[name], now)
        state = follow[state, x]
    # the running products are what the library computes from counts
    assert both[0] == pytest.approx(
        eprocess.combine(
            float(eprocess.log_e(sums[0])),
            eprocess.dirichlet_log_e(counts[0].astype(np.int64), p),
        )
    )
    return best


def check(size: int, seed: int, name: str, power: float = 1.0) -> None:
    rows = []
    for i, kind in enumerate(WORLDS):
        rng = np.random.default_rng([seed, i])
        found = largest(*world(kind, rng), size, rng, power)
        for family, values in found.items():
            for alpha in ALPHAS:
                crossed = int((values >= np.log(1 / alpha)).sum())
                rows.append({"world": kind, "family": family, "alpha": alpha, "n": size,
                             "crossed": crossed, "rate": crossed / size})  # fmt: skip
                print(f"{kind:30} {family:10} alpha={alpha}: {crossed / size:.5f}")
    in_process.write_table(name, rows)
    for row in rows:
        p = stats.binomtest(row["crossed"], row["n"], row["alpha"], alternative="greater").pvalue
        assert p > LUCK / len(rows), row
    # not vacuous: sequences do come near
    assert max(row["rate"] / row["alpha"] for row in rows) > 0.2


def test_no_more_sequences_than_alpha_ever_cross() -> None:
    check(2_000, seed=1, name="calibration_eprocess")


@pytest.mark.long
def test_no_more_sequences_than_alpha_ever_cross_in_twenty_thousand() -> None:
    check(20_000, seed=2, name="calibration_eprocess_long")


def test_the_check_fails_where_the_sampler_is_hotter() -> None:
    with pytest.raises(AssertionError, match="'family'"):
        check(500, seed=3, name="calibration_eprocess_of_a_hot_sampler", power=0.8)
