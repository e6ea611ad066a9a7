"""The reference sampler: computed laws, injected random numbers, and agreement in distribution."""

from __future__ import annotations

import doctest
import importlib
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from conformance.explain import explain
from conformance.faults import parse_fault, rule_faults
from conformance.law import Floats
from conformance.reference import (
    EXACT,
    Model,
    Prefix,
    Rule,
    acceptance,
    block_law,
    continued_law,
    draw,
    emitted_law,
    ordinary_sampling,
    residual,
    speculative_block,
    speculative_sampling,
    verify,
)

BELOW_ONE = np.nextafter(1.0, 0.0)
MODULES = (
    *("reference", "explain", "decoding", "law", "verdict", "statistics.certificate"),
    *("text", "reports.text"),
)
# an entropy of 2 nats is out of reach of the small vocabularies here
RULES = {**rule_faults(), "entropy-gated": parse_fault("entropy-gated=0.3")[1] or EXACT}
# these hold only where p, or the entropy, passes a threshold; this one needs a residual of two
SOMEWHERE = {"threshold", "relaxed", "typical", "entropy-gated", "argmax-recovered"}
# looks at p alone, and so departs even from a draft that is the target
WITHOUT_Q = {"typical"}
# the false-alarm probability of each comparison of samples below
LEVEL = 1e-6


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_documentation_are_right(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"conformance.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


# --- computed laws --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "q", "kept", "recovered"),
    [
        # the background text: accepted .3 + .4, rejected .3, all of it to the second token
        ([0.3, 0.7], [0.6, 0.4], [0.3, 0.4], [0.0, 1.0]),
        # reworked: .2 + .3 accepted, .5 rejected and recovered in the ratio 3 : 2
        ([0.5, 0.3, 0.2], [0.2, 0.8, 0.0], [0.2, 0.3, 0.0], [0.6, 0.0, 0.4]),
    ],
)
def test_worked_examples(
    p: list[float], q: list[float], kept: list[float], recovered: list[float]
) -> None:
    law, draft = np.array(p), np.array(q)
    np.testing.assert_allclose(draft * acceptance(law, draft), kept, atol=1e-15)
    np.testing.assert_allclose(residual(law, draft), recovered, atol=1e-15)
    np.testing.assert_allclose(emitted_law(law, draft), p, atol=1e-15)
    told = explain(p, q)
    np.testing.assert_allclose(told.kept, kept, atol=1e-15)
    np.testing.assert_allclose(told.rejected, 1 - sum(kept), atol=1e-15)


def pairs(rng: np.random.Generator, v: int, n: int) -> tuple[Floats, Floats]:
    """Random, peaked, equal, disjoint, one-hot and partly zero laws, n of each kind. [6 n, V]"""
    p, q = (rng.dirichlet(np.ones(v), n) for _ in range(2))
    peaked = [rng.dirichlet(np.full(v, 0.02) + 1e-3, n) for _ in range(2)]
    half = np.arange(v) < max(v // 2, 1)
    left, right = p * half, q * ~half
    holes = [a * (rng.random((n, v)) < 0.5) + np.eye(v)[rng.integers(0, v, n)] for a in (p, q)]
    hot = np.eye(v)[rng.integers(0, v, n)]

    def laws(*blocks: Floats) -> Floats:
        x = np.concatenate(blocks)
        return np.asarray(x / x.sum(axis=1, keepdims=True))

    return laws(p, peaked[0], p, left, p, holes[0]), laws(q, peaked[1], p, right, hot, holes[1])


@pytest.mark.parametrize("v", [2, 3, 8, 64, 1000])
def test_the_exact_rule_emits_the_target(v: int) -> None:
    p, q = pairs(np.random.default_rng(v), v, 500 if v < 100 else 60)
    np.testing.assert_allclose(emitted_law(p, q), p, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_no_faulty_rule_emits_the_target(name: str) -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(5), 200), rng.dirichlet(np.ones(5), 200)
    tv = 0.5 * np.abs(emitted_law(p, q, RULES[name]) - p).sum(axis=1)
    # slight where p and q nearly agree, but never nothing
    assert tv.min() > 1e-9 or name in SOMEWHERE
    assert tv.mean() > 0.01
    np.testing.assert_allclose(emitted_law(p, q, RULES[name]).sum(axis=1), 1, atol=1e-12)
    # ... but where the draft is the target nothing can go wrong, and nothing must be claimed
    same = np.allclose(emitted_law(p, p, RULES[name]), p, rtol=0, atol=1e-12)
    assert same == (name not in WITHOUT_Q)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=6))
@settings(max_examples=300, deadline=None)
def test_the_exact_rule_emits_the_target_whatever_the_shape(weights: list[tuple[int, int]]) -> None:
    w = np.array(weights, dtype=float) + np.eye(len(weights))[:, :2] * 1e-3
    p, q = (w / w.sum(axis=0)).T
    np.testing.assert_allclose(emitted_law(p, q), p, rtol=0, atol=1e-12)
    a = acceptance(p, q)
    assert ((a >= 0) & (a <= 1)).all()
    np.testing.assert_allclose(residual(p, q).sum(), 1, atol=1e-12)


def random_model(v: int, seed: int, sharp: float = 1.0, holes: bool = False) -> Model:
    """A law that depends on the whole prefix, in no regular way."""
    seen: dict[Prefix, Floats] = {}

    def law(prefix: Prefix) -> Floats:
        if prefix not in seen:
            rng = np.random.default_rng([seed, len(prefix), *prefix])
            p = rng.dirichlet(np.full(v, sharp))
            if holes:
                p = p * (rng.random(v) < 0.6) + 0.1 * np.eye(v)[rng.integers(v)]
            seen[prefix] = p / p.sum()
        return seen[prefix]

    return law


SIZES = [(v, k) for v in (2, 3, 4) for k in (1, 2, 3)]


@pytest.mark.parametrize(("v", "k"), SIZES)
@pytest.mark.parametrize("holes", [False, True])
def test_a_block_and_what_follows_have_the_law_of_strings(v: int, k: int, holes: bool) -> None:
    target, draft = random_model(v, 1, 0.7, holes), random_model(v, 2, 0.7, holes)
    law = block_law(target, draft, (1,), k)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert set(map(len, law)) <= set(range(1, k + 2))
    strings = list(continued_law(target, draft, (1,), k, k + 1))
    assert len(strings) == v ** (k + 1)
    for _, through_block, alone in strings:
        assert through_block == pytest.approx(alone, rel=0, abs=1e-12)
    assert sum(alone for *_, alone in strings) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("v", "k", "name"),
    # a residual over one token leaves nothing to draw
    [(v, k, n) for v, k in SIZES for n in RULES if (v, n) != (2, "argmax-recovered")],
)
def test_a_faulty_block_has_another_law_of_strings(v: int, k: int, name: str) -> None:
    target, draft = random_model(v, 1), random_model(v, 2)
    strings = list(continued_law(target, draft, (1,), k, k + 1, RULES[name]))
    tv = 0.5 * sum(abs(a - b) for _, a, b in strings)
    assert tv > 1e-3
    assert sum(a for _, a, _ in strings) == pytest.approx(1, abs=1e-12)


def test_a_block_that_draws_its_bonus_from_the_wrong_position_is_seen() -> None:
    """The computed string law is no tautology: shifting the target by one token breaks it."""
    target, draft = random_model(3, 1), random_model(3, 2)

    def late(prefix: Prefix) -> Floats:
        return target(prefix[:-1]) if len(prefix) == 3 else target(prefix)

    law = block_law(late, draft, (1,), 2)
    exact = block_law(target, draft, (1,), 2)
    assert max(abs(law[s] - exact[s]) for s in exact if len(s) == 3) > 1e-3


# --- sampled --------------------------------------------------------------------------------------


def string_law(model: Model, prefix: Prefix, n: int, v: int) -> dict[Prefix, float]:
    return {
        s: float(np.prod([model(prefix + s[:i])[s[i]] for i in range(n)]))
        for s in product(range(v), repeat=n)
    }


def fits(counts: Counter[Prefix], law: dict[Prefix, float]) -> float:
    """Chi-square p-value of counted strings; cells expected fewer than 5 times are pooled."""
    n = sum(counts.values())
    assert all(law.get(s, 0.0) > 0 for s in counts)
    big = [s for s, p in law.items() if n * p >= 5]
    observed = [counts[s] for s in big]
    expected = [n * law[s] for s in big]
    if n - sum(expected) > 1e-6 * n:
        observed.append(n - sum(observed))
        expected.append(n - sum(expected))
    return float(stats.chisquare(observed, expected, sum_check=False).pvalue)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_three_ways_of_sampling_agree_with_the_string_law(k: int) -> None:
    v, n, size, start = 3, 3, 3000, (2, 0)
    target, draft = random_model(v, 5, 0.8), random_model(v, 6, 0.8)
    law = string_law(target, start, n, v)
    rng = np.random.default_rng(k)
    plain = Counter(ordinary_sampling(target, start, n, rng) for _ in range(size))
    assert fits(plain, law) > LEVEL
    speculative = Counter(
        speculative_sampling(target, draft, start, n, k, rng) for _ in range(size)
    )
    assert fits(speculative, law) > LEVEL
    wrong = Counter(
        speculative_sampling(target, draft, start, n, k, rng, RULES["accept-all"])
        for _ in range(size)
    )
    assert fits(wrong, law) < LEVEL  # so the comparison can fail


def batch_verified(
    target: Model, draft: Model, start: Prefix, k: int, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """`size` blocks through `verify`; proposals are drawn from the draft here."""
    proposals = [ordinary_sampling(draft, start, k, rng) for _ in range(size)]
    p = np.array([[target(start + x[:i]) for i in range(k + 1)] for x in proposals])
    q = np.array([[draft(start + x[:i]) for i in range(k)] for x in proposals])
    return verify(p, q, np.array(proposals), rng.random((size, k)), rng.random(size))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_single_and_batched_blocks_have_the_computed_law(k: int) -> None:
    v, size, start = 3, 4000, (0, 1)
    target, draft = random_model(v, 7), random_model(v, 8)
    law = block_law(target, draft, start, k)
    rng = np.random.default_rng(10 + k)
    single = [speculative_block(target, draft, start, k, rng) for _ in range(size)]
    tokens, accepted = batch_verified(target, draft, start, k, size, rng)
    batched = Counter(tuple(int(x) for x in row if x >= 0) for row in tokens)
    assert fits(Counter(s for s, _ in single), law) > LEVEL
    assert fits(batched, law) > LEVEL
    # strings of full length hide whether the last token was a bonus; the acceptances show it
    counts = np.array(
        [
            np.bincount([a for _, a in single], minlength=k + 1),
            np.bincount(accepted, minlength=k + 1),
        ]
    )
    assert stats.chi2_contingency(counts).pvalue > LEVEL
    assert (tokens[np.arange(size), accepted] >= 0).all()
    assert ((tokens >= 0).sum(axis=1) == accepted + 1).all()
    # the bonus, given what precedes it, is a draw from the target alone
    full = tokens[accepted == k]
    before = Counter(map(tuple, full[:, :k].tolist())).most_common(1)[0][0]
    bonus = full[(full[:, :k] == before).all(axis=1), k]
    expected = target(start + before) * len(bonus)
    observed = np.bincount(bonus, minlength=v)
    assert stats.chisquare(observed, expected, sum_check=False).pvalue > LEVEL


# --- injected random numbers ----------------------------------------------------------------------


def one(
    p: list[list[float]],
    q: list[list[float]],
    x: list[int],
    coins: list[float],
    last: float,
    rule: Rule = EXACT,
) -> tuple[list[int], int]:
    tokens, accepted = verify(
        np.array([p]), np.array([q]), np.array([x]), np.array([coins]), np.array([last]), rule
    )
    return tokens[0].tolist(), int(accepted[0])


def test_a_coin_of_zero_does_not_accept_the_impossible() -> None:
    got = one([[0.0, 1.0], [0.5, 0.5]], [[0.9, 0.1]], [0], [0.0], 0.3)
    assert got == ([1, -1], 0)


def test_the_coin_decides_exactly_at_the_ratio() -> None:
    p, q = [[0.25, 0.75], [1.0, 0.0]], [[0.5, 0.5]]
    assert one(p, q, [0], [np.nextafter(0.5, 0)], 0.9) == ([0, 0], 1)
    assert one(p, q, [0], [0.5], 0.9) == ([1, -1], 0)
    assert one(p, q, [0], [np.nextafter(0.5, 1)], 0.9) == ([1, -1], 0)


def test_a_ratio_of_one_or_more_is_always_accepted() -> None:
    assert one([[0.5, 0.5], [0.0, 1.0]], [[0.5, 0.5]], [1], [BELOW_ONE], 0.0) == ([1, 1], 1)
    assert one([[0.1, 0.9], [1.0, 0.0]], [[0.5, 0.5]], [1], [BELOW_ONE], 0.99) == ([1, 0], 1)


def test_the_first_rejection_ends_the_block() -> None:
    p = [[0.5, 0.5], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]
    q = [[0.5, 0.5], [1.0, 0.0], [1.0, 0.0]]
    assert one(p, q, [0, 0, 0], [0.0, 0.0, 0.0], 0.5) == ([0, 1, -1, -1], 1)


def test_all_accepted_draws_the_bonus_from_the_last_law() -> None:
    half = [0.5, 0.5]
    assert one([half, half, [0.0, 1.0]], [half, half], [0, 0], [0.9, 0.9], 0.0) == ([0, 0, 1], 2)


def test_a_leak_in_a_faulty_rule_reaches_the_tokens() -> None:
    """The same coins, another rule, another token: the rule is really used."""
    p, q = [[0.0, 1.0], [0.5, 0.5]], [[1.0, 0.0]]
    assert one(p, q, [0], [0.5], 0.2) == ([1, -1], 0)
    assert one(p, q, [0], [0.5], 0.2, RULES["accept-all"]) == ([0, 0], 1)


@pytest.mark.parametrize("u", [0.0, 1e-300, 0.5, BELOW_ONE])
def test_a_token_of_probability_zero_is_never_drawn(u: float) -> None:
    laws = np.array(
        [
            [0.0, 0.3, 0.0, 0.7, 0.0],
            [0.0, 0.0, 0.0, 0.0, 1.0],
            [1.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 1e-300, 0.0, 1.0, 0.0],
            [0.1 + 0.2, 0.0, 0.3, 0.4, 0.0],
            [0.0, 0.2, 0.2, 0.6 - 1e-9, 0.0],  # sums to less than one
        ]
    )
    drawn = draw(laws, np.full(len(laws), u))
    assert (laws[np.arange(len(laws)), drawn] > 0).all()


@pytest.mark.parametrize("ulps", range(-4, 8))
def test_a_sum_that_rounding_moved_off_one_still_yields_a_token(ulps: int) -> None:
    total = 1 + ulps * np.finfo(float).eps
    assert draw(np.array([[0.5, total - 0.5, 0.0]]), np.array([BELOW_ONE])).tolist() == [1]


def test_draw_inverts_the_distribution_function() -> None:
    rng = np.random.default_rng(3)
    laws = rng.dirichlet(np.full(7, 0.4), 2000)
    laws[:, 2] = 0
    laws /= laws.sum(axis=1, keepdims=True)
    u = rng.random(2000)
    x = draw(laws, u)
    cdf = np.cumsum(laws, axis=1)
    at = np.arange(2000)
    assert (cdf[at, x] >= u - 1e-12).all()
    assert (cdf[at, x] - laws[at, x] <= u + 1e-12).all()
