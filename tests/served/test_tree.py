"""Two samples on the tree of outputs: the scores are exact, and see what they should."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from conformance.statistics import certificate
from conformance.statistics.paired import Pairs
from conformance.statistics.tree import (
    ABSENT,
    MIN_JOINT,
    _Squares,
    _upper,
    compared,
    followed,
    permuted,
)

END, VOCAB, PROMPTS = -1, 5, 2


def drawn(n, rng, length=4, sharper=1.0, arms=3):
    """`arms` samples of n sequences from one law, the first warped; symbol 0 ends a sequence."""
    scores = np.random.default_rng(5).standard_normal((VOCAB + PROMPTS, VOCAB)) * 1.5
    prompt = np.arange(arms * n) % PROMPTS
    first = np.arange(arms * n) < n
    out = np.full((arms * n, length), ABSENT)
    row, alive = VOCAB + prompt, np.ones(arms * n, dtype=bool)
    for t in range(length):
        logits = scores[row] * np.where(first, sharper, 1.0)[:, None]
        p = np.exp(logits)
        p /= p.sum(axis=1, keepdims=True)
        x = (np.cumsum(p, axis=1) < rng.random(arms * n)[:, None]).sum(axis=1).clip(0, VOCAB - 1)
        out[alive, t] = np.where(x == 0, END, x)[alive]
        alive &= x != 0
        row = x
    return out, prompt, first


def uniform(p_values, tolerance=1e-4):
    return stats.kstest(np.array(p_values), "uniform").pvalue > tolerance


def test_p_values_are_uniform_at_any_depth():
    rng = np.random.default_rng(1)
    found = {"any": [], "sharper": [], "later": [], "shuffled": [], "frequent": []}
    for _ in range(600):
        symbols, prompt, first = drawn(150, rng)
        cells = compared(symbols, prompt, first, rng)
        found["any"].append(cells.chi_square().p_value)
        found["sharper"].append(cells.direction().p_value)
        found["later"].append(cells.at(range(1, 4)).chi_square().p_value)
        found["frequent"].append(cells.by_frequency().p_value)
        again = compared(symbols, prompt, permuted(prompt, first, rng), rng)
        found["shuffled"].append(again.chi_square().p_value)
    for name, p_values in found.items():
        assert uniform(p_values), name


def test_the_tail_is_that_of_permutations_where_those_reach():
    rng = np.random.default_rng(2)
    symbols, prompt, first = drawn(80, rng, sharper=1.6)
    found = compared(symbols, prompt, first, rng).direction()
    statistic = abs(found.statistic)
    shuffled = [
        abs(compared(symbols, prompt, permuted(prompt, first, rng), rng).direction().statistic)
        for _ in range(1500)
    ]
    p = (1 + sum(s >= statistic for s in shuffled)) / (1 + len(shuffled))
    assert found.p_value <= p + 3 * math.sqrt(p / len(shuffled))
    assert found.p_value < 0.02


def test_which_cells_are_looked_at_does_not_depend_on_the_labels():
    rng = np.random.default_rng(3)
    symbols, prompt, first = drawn(100, rng)
    seen = set()
    for _ in range(5):
        cells = compared(symbols, prompt, permuted(prompt, first, rng), rng)
        seen.add((tuple(cells.node), tuple(cells.symbol), tuple(cells.sharpening)))
        assert (cells.joint >= MIN_JOINT).all()
    assert len(seen) == 1


def test_sharper_output_is_seen_best_by_its_own_direction():
    rng = np.random.default_rng(4)
    cells = compared(*drawn(1500, rng, sharper=1.25), rng)
    assert cells.direction().p_value < 1e-8
    assert cells.direction().statistic > 0
    flatter = compared(*drawn(1500, rng, sharper=0.8), rng)
    assert flatter.direction().p_value < 1e-8
    assert flatter.direction().statistic < 0


@pytest.mark.parametrize("weights", [[1.0] * 7, [1, 0.2, 0.1, 0.1], list(1 / np.arange(1, 40))])
def test_the_tail_of_a_weighted_sum_of_squares(weights):
    w = np.array(weights)
    sums = (np.random.default_rng(5).standard_normal((200_000, len(w))) ** 2 - 1) @ w
    for p in (0.9, 0.5, 0.1, 0.01, 0.001):
        tail = _upper(float(np.quantile(sums, 1 - p)), _Squares(w))
        noise = math.sqrt((1 - p) / (p * len(sums)))
        assert (
            0.97 - 4 * noise <= tail / p <= 1.1 + 4 * noise
        )  # a little too large, never too small
    if len(set(weights)) == 1:  # a plain chi-square, whose tail is known as deep as one likes
        for p in (1e-6, 1e-12, 1e-30):
            x = stats.chi2.isf(p, len(w)) - len(w)
            assert p <= _upper(float(x), _Squares(w)) <= 1.1 * p


def test_the_certificate_holds():
    """A departure of the size certified is caught as often as it says: three arms, two prompts."""
    rng = np.random.default_rng(6)
    level, power, n, cells = 1e-6, 0.9, 600, 4
    caught, runs = 0, 300
    df, effective = PROMPTS * (cells - 1), 2 * n / 3
    tv = certificate.chi_square_tv(level, power, df, int(effective))
    # shapes that are worst for chi-square: all of the mass moves between two even halves
    q = np.full(cells, 1 / cells)
    moved = q + np.array([1, 1, -1, -1]) * tv / 2
    for _ in range(runs):
        prompt = np.arange(3 * n) % PROMPTS
        first = np.arange(3 * n) < n
        symbols = np.where(first, rng.choice(cells, 3 * n, p=moved), rng.choice(cells, 3 * n, p=q))[
            :, None
        ]
        caught += compared(symbols, prompt, first, rng).chi_square().p_value <= level
    assert stats.binom.cdf(caught, runs, power) > 1e-3, caught / runs


def test_a_request_that_follows_the_one_before_is_seen():
    rng = np.random.default_rng(7)
    symbols, prompt, _ = drawn(1600, rng, arms=1)
    assert followed(symbols, prompt, 1).p_value > 1e-4
    copied = symbols.copy()
    for i in np.flatnonzero(rng.random(len(copied)) < 0.2):
        if i >= PROMPTS:
            copied[i] = copied[i - PROMPTS]  # the last one with the same prompt
    assert followed(copied, prompt, 1).p_value < 1e-8
    assert followed(symbols[:2], prompt[:2], 1) is None


def test_agreement_is_expected_as_often_as_it_happens():
    rng = np.random.default_rng(8)
    observed, expected, variance = 0, 0.0, 0.0
    for _ in range(40):
        symbols, prompt, _ = drawn(200, rng, arms=1)
        found = followed(symbols, prompt, 1)
        observed, expected = observed + found.observed, expected + found.expected
        variance += found.variance
    assert abs(observed - expected) < 4 * math.sqrt(variance)


def test_a_bet_is_fair_and_wins_where_it_should():
    rng = np.random.default_rng(9)
    ends = []
    for _ in range(300):
        pairs = Pairs()
        symbols, prompt, _ = drawn(40, rng, arms=2)
        for i in range(40):
            pairs.add(int(prompt[i]), symbols[i], symbols[40 + i])
        ends.append(math.exp(pairs.log_e))
    assert np.mean(ends) < 1 + 4 * np.std(ends) / math.sqrt(len(ends))
    pairs = Pairs()
    symbols, prompt, _ = drawn(1500, rng, sharper=2.5, arms=2)
    for i in range(1500):
        pairs.add(int(prompt[i]), symbols[i], symbols[1500 + i])
    assert pairs.log_e > math.log(1e8)


def test_nothing_to_compare_is_no_evidence():
    rng = np.random.default_rng(10)
    cells = compared(np.zeros((0, 3), np.int64), np.zeros(0, np.int64), np.zeros(0, bool), rng)
    assert cells.chi_square().p_value == 1
    assert cells.by_frequency().p_value == 1
    assert cells.direction() is None
    same = compared(np.ones((50, 2), np.int64), np.zeros(50, np.int64), np.arange(50) < 25, rng)
    assert same.chi_square().df == 0
