"""Sums kept without their laws: the cumulant function, the leak, the surprisal."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from conformance.law import Floats, softmax
from conformance.reference import draw
from conformance.statistics import saddlepoint
from conformance.statistics.cumulants import LARGEST, TILTS, CumulantSum, token_blocks
from conformance.statistics.leak import (
    BOUND,
    Leak,
    LeakSum,
    bounded_score,
    detectable,
    leak,
)
from conformance.statistics.surprisal import (
    MOST,
    Surprisal,
    SurprisalSum,
    centred_surprisal,
)
from conformance.statistics.tables import Ints

LUCK = 1e-6
ALPHA = 1e-6


def leak_of_sum(total: float, times: Ints, p: Floats, q: Floats) -> Leak | None:
    """The leak of tokens whose scores were added up elsewhere."""
    sums = LeakSum()
    sums.expect(times, p, q)
    sums.total = total
    return sums.result()


def a_pair(rows: int, v: int, apart: float, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.standard_normal((rows, v))
    return softmax(logits), softmax(logits + apart * rng.standard_normal((rows, v)))


class Dense:
    """The same cumulant function from the laws."""

    def __init__(self, times: Floats | Ints, p: Floats, s: Floats) -> None:
        self.times, self.p, self.s = times, p, s

    def __call__(self, t: float) -> tuple[float, float, float]:
        top = (t * self.s).max(axis=1, keepdims=True)
        e = self.p * np.exp(t * self.s - top)
        m = e.sum(axis=1)
        mean = (e * self.s).sum(axis=1) / m
        var = (e * self.s**2).sum(axis=1) / m - mean**2
        k = float(self.times @ (np.log(m) + top[:, 0]))
        return k, float(self.times @ mean), float(self.times @ var)


@pytest.mark.parametrize("apart", [0.05, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("score", ["leak", "surprisal"])
def test_between_the_tilts_nothing_is_lost(apart: float, score: str) -> None:
    p, q = a_pair(20, 40, apart)
    s = bounded_score(p, q) if score == "leak" else centred_surprisal(p)
    times = np.arange(20)
    kept, dense = CumulantSum.of(times, p, s), Dense(times, p, s)
    assert kept.n == 190
    assert kept.variance == pytest.approx(dense(1e-9)[2], rel=1e-6)
    for t in np.concatenate([TILTS, np.linspace(-LARGEST, LARGEST, 401), [1e-4, -1e-3]]):
        for a, b, tolerance in zip(
            kept(float(t)), dense(float(t)), (2e-4, 2e-3, 5e-2), strict=True
        ):
            assert a == pytest.approx(b, rel=tolerance, abs=1e-6 * kept.n)


@pytest.mark.parametrize("n", [60, 1000, 10**6])
@pytest.mark.parametrize("z", [-7.0, -3.0, 0.01, 2.0, 6.0])
def test_tails_are_those_of_the_laws(n: int, z: float) -> None:
    p, q = a_pair(20, 40, 0.8)
    for s in (bounded_score(p, q), centred_surprisal(p)):
        times = np.full(20, n / 20)
        kept, dense = CumulantSum.of(times, p, s), Dense(times, p, s)
        spread = float(np.sqrt(kept.variance))
        ours = saddlepoint.two_sided(z * spread, kept, spread, LARGEST)
        theirs = saddlepoint.two_sided(z * spread, dense, spread)
        if theirs > 1e-30:
            assert ours == pytest.approx(theirs, rel=0.01)
        else:
            assert 0.99 * theirs <= ours < 1e-20


@pytest.mark.parametrize("expected", [0.01, 0.1, 1.6, 30.0])
def test_a_staircase_of_rare_jumps_is_not_cut_in_half(expected: float) -> None:
    """One prefix where a token of probability 1e-5 leans to the draft: a Poisson number of them."""
    p, q = np.array([[1 - 1e-5, 1e-5]]), np.array([[0.5, 0.5]])
    n = round(expected * 1e5)
    total = bounded_score(p, q)[0, 1] - bounded_score(p, q)[0, 0]
    for k in range(1, 60):
        beyond = float(stats.binom.sf(k - 1, n, 1e-5))
        if k > 1.5 * expected and beyond > 1e-15:
            score = total * k + n * bounded_score(p, q)[0, 0]
            found = leak_of_sum(float(score), np.array([n]), p, q)
            assert found is not None
            assert found.p_value == pytest.approx(min(2 * beyond, 1), rel=0.08)


def test_jumps_of_many_sizes_are_no_staircase() -> None:
    p, q = a_pair(200, 16, 0.8)
    one = CumulantSum.of(np.array([50]), p[:1], bounded_score(p[:1], q[:1]))
    many = CumulantSum.of(np.full(200, 50), p, bounded_score(p, q))
    for t in (-1.0, 0.0, 0.3):
        assert many.likeness(t) < 0.05
        assert 0.1 < one.likeness(t) <= 1


def test_beyond_every_tilt_the_tail_is_bounded_not_guessed() -> None:
    """Three tokens, all of them the likeliest to lean to the draft: probability .1^3."""
    p, q = np.array([[0.1, 0.9]]), np.array([[0.9, 0.1]])
    found = leak(np.zeros(3, int), np.zeros(3, int), p, q)
    assert found is not None
    assert found.p_value == pytest.approx(2 * 0.1**3, rel=0.05)
    # a total that no outcome reaches is bounded too, never NaN
    s = bounded_score(p, q)
    null = CumulantSum.of(np.array([3]), p, s)
    spread = float(np.sqrt(null.variance))
    far = saddlepoint.two_sided(4 * float(s.max()), null, spread, LARGEST)
    assert 0 < far < 2 * 0.1**3
    assert saddlepoint.critical_tilt(1e-9, null, spread, LARGEST) is None


def test_tokens_come_in_blocks_that_fit() -> None:
    rng = np.random.default_rng(1)
    prefix = rng.integers(0, 50, 300)
    prefix = prefix[prefix % 3 > 0]
    seen: list[int] = []
    for rows, mine in token_blocks(prefix, (50, 1 << 18)):
        assert len(rows) <= 4
        assert set(prefix[mine]) == set(rows.tolist())
        seen += mine.tolist()
    assert sorted(seen) == list(range(len(prefix)))
    assert not list(token_blocks(np.zeros(0, int), (5, 10)))


# --- the leak -------------------------------------------------------------------------------------


def in_parts(prefix: Ints, token: Ints, p: Floats, q: Floats, parts: int) -> LeakSum:
    whole = LeakSum()
    for i in np.array_split(np.random.default_rng(2).permutation(len(token)), parts):
        part = LeakSum()
        part.add(prefix[i], token[i], p, q)
        whole = whole.merge(part)
    return whole


def close(a: Leak | None, b: Leak | None, rel: float = 1e-6) -> None:
    assert a is not None
    assert b is not None
    for name in ("eps", "se", "z", "information", "n"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=rel)
    # one prefix in two parts counts as two where the likeness of jumps is judged
    assert np.log(a.p_value) == pytest.approx(np.log(b.p_value), rel=max(rel, 0.02))


def test_parts_add_up_to_the_whole() -> None:
    p, q = a_pair(30, 12, 0.8)
    rng = np.random.default_rng(3)
    prefix = rng.integers(0, 30, 3000)
    token = draw(0.8 * p[prefix] + 0.2 * q[prefix], rng.random(3000))
    whole, parts = leak(prefix, token, p, q), in_parts(prefix, token, p, q, 7)
    close(parts.result(), whole)
    times = np.bincount(prefix, minlength=30)
    total = float(bounded_score(p, q)[prefix, token].sum())
    close(leak_of_sum(total, times, p, q), whole)
    close(leak(prefix, token, p.astype(np.float32), q.astype(np.float32)), whole, rel=1e-3)
    smallest = detectable(times, p, q, ALPHA, 0.9)
    assert parts.detectable(ALPHA, 0.9) == pytest.approx(smallest, rel=0.02)
    growing = LeakSum()
    growing.add(prefix[:1000], token[:1000], p, q)
    growing.add(prefix[1000:], token[1000:], p, q)
    growing.add(prefix[:0], token[:0], p, q)
    close(growing.result(), whole)


def test_grades_of_a_large_vocabulary_change_nothing_that_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(4)
    p, q = a_pair(6, 6000, 0.5)
    p[:, :50] = 0
    p /= p.sum(axis=1, keepdims=True)
    prefix = rng.integers(0, 6, 4000)
    token = draw(0.9 * p[prefix] + 0.1 * q[prefix] * (p[prefix] > 0), rng.random(4000))
    impossible = np.append(token[1:], 3)
    graded, fewer = in_parts(prefix, token, p, q, 3), leak(prefix, impossible, p, q)
    total = float(bounded_score(p, q)[prefix, token].sum())
    assert graded.total == pytest.approx(total)
    np.testing.assert_allclose((p * bounded_score(p, q)).sum(axis=1), 0, atol=1e-12)
    assert (bounded_score(p, q)[:, :50] == 0).all()
    assert fewer is not None
    rough = surprisal(prefix, token, p)
    np.testing.assert_allclose((p * centred_surprisal(p)).sum(axis=1), 0, atol=1e-12)
    for module in ("leak", "surprisal"):
        monkeypatch.setattr(f"conformance.statistics.{module}.UNGRADED", 10**6)
    close(graded.result(), leak(prefix, token, p, q), rel=0.02)
    fine = surprisal(prefix, token, p)
    assert rough.z == pytest.approx(fine.z, abs=0.02)
    assert rough.detectable(ALPHA, 0.9) == pytest.approx(fine.detectable(ALPHA, 0.9), rel=1e-3)


def test_the_score_is_the_slope_of_the_likelihood() -> None:
    p, q = a_pair(4, 6, 3.0)
    h, eps = 1e-6, 1 / BOUND
    slope = (np.log(p + (eps + h) * (q - p)) - np.log(p + (eps - h) * (q - p))) / (2 * h)
    slope -= (p * slope).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(bounded_score(p, q), slope, rtol=1e-6, atol=1e-6)
    rare = np.array([[1 - 1e-310, 1e-310, 0.0]])
    bounded = bounded_score(rare, np.array([[0.0, 0.5, 0.5]]))
    assert np.isfinite(bounded).all()
    assert bounded[0, 1] == pytest.approx(BOUND, rel=0.1)
    assert bounded[0, 2] == 0


def test_nothing_seen_is_nothing_said() -> None:
    p, _ = a_pair(3, 5, 1.0)
    assert LeakSum().result() is None
    assert LeakSum().detectable(ALPHA, 0.9) is None
    assert leak(np.zeros(9, int), np.zeros(9, int), p, p) is None


# --- surprisal ------------------------------------------------------------------------------------


def surprisal(prefix: Ints, token: Ints, law: Floats) -> Surprisal:
    sums = SurprisalSum()
    sums.add(prefix, token, law)
    found = sums.result()
    assert found is not None
    return found


def test_surprisal_of_given_tokens() -> None:
    p = np.array([[0.5, 0.25, 0.25], [0.9, 0.1, 0.0]])
    found = surprisal(np.array([0, 0, 1]), np.array([0, 1, 1]), p)
    entropy = stats.entropy(p, axis=1)
    wanted = np.log([2, 4, 10]).sum() - 2 * entropy[0] - entropy[1]
    assert found.excess.estimate == pytest.approx(wanted / 3)
    assert found.n == 3
    variance = 2 * 0.25 * np.log(2) ** 2 + 0.09 * np.log(9) ** 2
    assert found.z == pytest.approx(wanted / np.sqrt(variance))
    # p = 0 is support's business, and rare tokens count as 2e-9
    assert surprisal(np.array([1]), np.array([2]), p).excess.estimate == 0
    s = centred_surprisal(np.array([[1 - 1e-30, 1e-30]]))
    assert s[0, 1] == pytest.approx(MOST)


@pytest.mark.parametrize("temperature", [0.93, 1.0, 1.07])
def test_temperature_shows_and_the_interval_covers(temperature: float) -> None:
    rng = np.random.default_rng([4, int(100 * temperature)])
    p, _ = a_pair(25, 16, 1.0)
    hot = softmax(np.log(p) / temperature)
    prefix = rng.integers(0, 25, 4000)
    score = centred_surprisal(p)
    truth = float((hot * score).sum(axis=1)[prefix].mean())
    covered, small, reps = 0, 0, 200
    for _ in range(reps):
        found = surprisal(prefix, draw(hot[prefix], rng.random(4000)), p)
        covered += found.excess.low <= truth <= found.excess.high
        small += found.p_value <= 1e-3
    print(f"T={temperature}: shift {truth:.4f}, covered {covered / reps:.3f}, p <= .001: {small}")
    assert stats.binomtest(covered, reps, 0.95).pvalue > LUCK
    if temperature == 1:
        assert stats.binomtest(small, reps, 1e-3, alternative="greater").pvalue > LUCK
    else:
        assert small > reps / 2


@pytest.mark.parametrize("sign", [1, -1])
def test_the_stated_shift_is_caught(sign: int) -> None:
    rng = np.random.default_rng([5, sign + 1])
    p, _ = a_pair(25, 16, 1.0)
    n, power, reps = 3000, 0.9, 400
    prefix = rng.integers(0, 25, n)
    shift = surprisal(prefix, draw(p[prefix], rng.random(n)), p).detectable(ALPHA, power)
    assert shift is not None
    score, times = centred_surprisal(p), np.bincount(prefix, minlength=25)
    temperature = 1.0
    while True:
        temperature *= 1 + sign * 1e-3
        hot = softmax(np.log(p) / temperature)
        if sign * float(times @ (hot * score).sum(axis=1)) >= shift * n:
            break
    found = [surprisal(prefix, draw(hot[prefix], rng.random(n)), p) for _ in range(reps)]
    caught = sum(f.p_value <= ALPHA for f in found)
    print(f"shift {sign * shift:.4f} (T = {temperature:.3f}): caught {caught / reps:.3f}")
    assert stats.binomtest(caught, reps, power, alternative="less").pvalue > LUCK
    assert caught < reps


def test_surprisal_adds_up() -> None:
    rng = np.random.default_rng(6)
    p, _ = a_pair(30, 12, 1.0)
    prefix, token = rng.integers(0, 30, 900), rng.integers(0, 12, 900)
    whole, merged = surprisal(prefix, token, p), SurprisalSum()
    for i in np.array_split(rng.permutation(900), 5):
        part = SurprisalSum()
        part.add(prefix[i], token[i], p)
        merged = part.merge(merged)
    found = merged.result()
    assert found is not None
    for name, rel in (("n", 0), ("z", 1e-6), ("p_value", 0.02), ("spread", 1e-6)):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), rel=rel)
    assert found.detectable(ALPHA, 0.9) == pytest.approx(whole.detectable(ALPHA, 0.9), rel=0.02)


def test_laws_without_a_choice_or_without_a_shape_have_no_surprisal() -> None:
    for p in (np.array([[1.0, 0.0]]), np.full((1, 4), 0.25)):
        sums = SurprisalSum()
        sums.add(np.zeros(5, int), np.zeros(5, int), p)
        assert sums.result() is None
    assert SurprisalSum().result() is None
    few = surprisal(np.zeros(2, int), np.zeros(2, int), np.array([[0.9, 0.1]]))
    assert few.detectable(1e-12, 0.9) is None
