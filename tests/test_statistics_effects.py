"""Effect sizes, the draft leak and what a certificate promises, against computation and simulation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import GofChisquarePower

from conformance.law import Floats
from conformance.reference import draw
from conformance.statistics import certificate, effect, exact, pit
from conformance.statistics.leak import Leak, bounded_score, information_per_token, leak
from conformance.statistics.tables import Ints, Table

# Simulations below fail by bad luck less often than this.
LUCK = 1e-6


# --- KL in nats per token -------------------------------------------------------------------------


def one_row(counts: Ints, prob: Floats) -> Table:
    size = len(prob) - 1
    return Table(counts.sum(keepdims=True), np.zeros(size, int), counts[:size], prob[:size])


def divergence(true: Floats, prob: Floats) -> float:
    return float(stats.entropy(true, prob))


@pytest.mark.parametrize("n", [400, 5000])
@pytest.mark.parametrize("shift", [0.0, 0.03, 0.1])
def test_the_interval_covers_the_divergence(n: int, shift: float) -> None:
    rng = np.random.default_rng([n, int(100 * shift)])
    prob = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    true = prob + shift * np.array([1, 0, -1, 0.5, -0.5])
    kl, reps = divergence(true, prob), 800
    counts = rng.multinomial(n, true, size=reps)
    found = [effect.kl_per_token(one_row(c, prob)) for c in counts]
    covered = sum(i is not None and i.low <= kl <= i.high for i in found)
    # one-sided where the truth is 0: the lower end is then never above it but by chance
    print(f"n={n} KL={kl:.4f}: covered {covered / reps:.3f}")
    assert stats.binomtest(covered, reps, 0.94).pvalue > LUCK or covered / reps > 0.94
    assert covered / reps > 0.91
    if shift:
        mean = np.mean([i.estimate for i in found if i])
        assert mean == pytest.approx(kl, rel=0.15, abs=1e-3)
        assert covered / reps < 0.995  # an interval that is never wrong is too wide


def test_no_cells_no_interval() -> None:
    assert effect.kl_per_token(one_row(np.array([7]), np.array([1.0]))) is None


# --- certificates ---------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1e-9, 1e-6, 0.05])
@pytest.mark.parametrize("df", [1, 7, 60])
@pytest.mark.parametrize("power", [0.5, 0.9, 0.999])
def test_noncentrality_against_scipy_and_statsmodels(alpha: float, df: int, power: float) -> None:
    lam = certificate.noncentrality(alpha, power, df)
    assert stats.ncx2.sf(stats.chi2.isf(alpha, df), df, lam) == pytest.approx(power, abs=1e-6)
    n = 1000
    theirs = GofChisquarePower().power(np.sqrt(lam / n), n, alpha, n_bins=df + 1)
    assert theirs == pytest.approx(power, abs=1e-5)


def test_certificates_move_the_right_way() -> None:
    tv = certificate.chi_square_tv
    base = tv(1e-6, 0.9, 10, 1000)
    assert tv(1e-6, 0.9, 10, 4000) == pytest.approx(base / 2)
    assert tv(1e-9, 0.9, 10, 1000) > base
    assert tv(1e-6, 0.99, 10, 1000) > base
    assert tv(1e-6, 0.9, 20, 1000) > base
    assert certificate.chi_square_n(1e-6, 0.9, 10, base) in (1000, 1001)
    ks = certificate.ks_distance
    assert ks(1e-6, 0.9, 4000) == pytest.approx(ks(1e-6, 0.9, 1000) / 2)
    assert ks(1e-9, 0.9, 1000) > ks(1e-6, 0.9, 1000) < ks(1e-6, 0.99, 1000)
    score = certificate.score_effect
    assert score(1e-6, 0.9, 400.0) == pytest.approx(score(1e-6, 0.9, 100.0) / 2)
    assert score(0.05, 0.975, 1.0) == pytest.approx(2 * stats.norm.isf(0.025))


@pytest.mark.parametrize("n", [1, 10, 5000])
@pytest.mark.parametrize("power", [0.9, 0.99, 0.999])
def test_zero_events_rate(n: int, power: float) -> None:
    rate = certificate.zero_events_rate(power, n)
    assert 1 - (1 - rate) ** n == pytest.approx(power)


@pytest.mark.parametrize("n", [100, 2000])
@pytest.mark.parametrize("alpha", [1e-8, 1e-3])
def test_a_shift_of_the_certified_size_is_caught_by_kolmogorov_smirnov(
    n: int, alpha: float
) -> None:
    rng = np.random.default_rng(n)
    power, reps = 0.9, 400
    d = certificate.ks_distance(alpha, power, n)
    # mass d moved from the second half of the unit interval to the first
    caught = 0
    for _ in range(reps):
        low = rng.random(n) < 0.5 + d
        u = np.where(low, 0.5 * rng.random(n), 0.5 + 0.5 * rng.random(n))
        caught += pit.kolmogorov_smirnov(u).p_value <= alpha
    print(f"KS n={n} alpha={alpha:g}: stated {power}, caught {caught / reps:.3f}")
    assert stats.binomtest(caught, reps, power, alternative="less").pvalue > LUCK


# --- the draft leak -------------------------------------------------------------------------------


def a_pair(rng: np.random.Generator, rows: int, v: int, mix: float = 0.4) -> tuple[Floats, Floats]:
    p = rng.dirichlet(np.full(v, 0.8), rows)
    return p, (1 - mix) * p + mix * rng.dirichlet(np.full(v, 0.8), rows)


def leak_at(prefix: Ints, token: Ints, p: Floats, q: Floats) -> Leak:
    found = leak(prefix, token, p, q)
    assert found is not None
    return found


def test_the_score_is_centred_and_bounded() -> None:
    rng = np.random.default_rng(0)
    p, q = a_pair(rng, 30, 9, mix=0.9)
    p[:, 0] = 0
    p /= p.sum(axis=1, keepdims=True)
    s = bounded_score(p, q)
    np.testing.assert_allclose((p * s).sum(axis=1), 0, atol=1e-12)
    assert s.max() <= 8.0
    assert (s[:, 0] == 0).all()


def test_a_twin_draft_shows_nothing() -> None:
    p = np.array([[0.2, 0.8]])
    assert leak(np.zeros(50, int), np.ones(50, int), p, p) is None


@pytest.mark.parametrize("eps", [0.0, 0.05, 0.3])
def test_the_estimate_is_unbiased_and_its_standard_error_right(eps: float) -> None:
    rng = np.random.default_rng(1)
    p, q = a_pair(rng, 20, 12)
    mixed = (1 - eps) * p + eps * q
    prefix = rng.integers(0, 20, 1500)
    found = [
        leak_at(prefix, draw(mixed[prefix], rng.random(len(prefix))), p, q) for _ in range(300)
    ]
    values = np.array([f.eps for f in found])
    assert abs(values.mean() - eps) < stats.norm.isf(LUCK / 2) * values.std() / np.sqrt(300)
    assert values.std() == pytest.approx(found[0].se, rel=0.25)
    assert found[0].information == pytest.approx(found[0].se ** -2)
    per_token = np.mean([information_per_token(p[[i]], q[[i]]) for i in prefix])
    assert found[0].information == pytest.approx(per_token * 1500, rel=0.3)


def exact_two_sided(p: Floats, s: Floats, n: int) -> tuple[Ints, Floats]:
    """Every outcome of n draws from three tokens, with twice its smaller mid-tail by the score."""
    counts = np.array([(i, j, n - i - j) for i, j in product(range(n + 1), repeat=2) if i + j <= n])
    mass = stats.multinomial.pmf(counts, n, p)
    total = np.round(counts @ s, 9)
    order = np.argsort(total)
    value, first = np.unique(total[order], return_index=True)
    atoms = np.add.reduceat(mass[order], first)
    below = np.cumsum(atoms) - atoms
    above = np.cumsum(atoms[::-1])[::-1] - atoms
    at = np.searchsorted(value, total)
    tail = np.where(total > 0, above[at], below[at]) + 0.5 * atoms[at]
    return counts, np.minimum(2 * tail, 1.0)


@pytest.mark.parametrize(
    ("law", "draft"),
    [
        ((0.5, 0.3, 0.2), (0.2, 0.35, 0.45)),
        ((0.6, 0.3, 0.1), (0.3, 0.37, 0.33)),
        ((0.85, 0.1, 0.05), (0.5, 0.27, 0.23)),
    ],
)
def test_saddlepoint_against_enumeration(
    law: tuple[float, ...], draft: tuple[float, ...]
) -> None:
    """Over eight orders of magnitude of p, where a normal approximation is wrong by tens."""
    p, q, n = np.array(law), np.array(draft), 120
    counts, wanted = exact_two_sided(p, bounded_score(p[None], q[None])[0], n)
    rng = np.random.default_rng(2)
    worst, normal = 0.0, 0.0
    for low, high in ((1e-9, 1e-7), (1e-7, 1e-5), (1e-5, 1e-3), (1e-3, 0.05), (0.05, 0.5)):
        inside = np.flatnonzero((wanted > low) & (wanted < high))
        for i in rng.choice(inside, 40):
            token = np.repeat(np.arange(3), counts[i])
            found = leak_at(np.zeros(n, int), token, p[None], q[None])
            worst = max(worst, abs(np.log(found.p_value / wanted[i])))
            normal = max(normal, abs(np.log(2 * stats.norm.sf(abs(found.z)) / wanted[i])))
    print(f"{law}: saddlepoint off by a factor of {np.exp(worst):.3f}, normal {np.exp(normal):.1f}")
    assert worst < np.log(1.25)
    assert normal > np.log(3)


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("z", [3.0, 4.9, 5.8])
def test_deep_tails_by_importance_sampling(side: int, z: float) -> None:
    """P(p <= a) = a at a of 1e-3, 1e-6, 1e-8, where prefixes follow from the tokens before.

    Tokens are drawn from laws tilted to the score and weighted back. One tail of a two-sided test
    should hold a/2.
    """
    rng = np.random.default_rng([int(10 * z), side + 1])
    states, v, size, length, reps = 6, 5, 250, 4, 1500
    p, q = a_pair(rng, length * states, v)
    score = bounded_score(p, q)
    follow = rng.integers(0, states, (length * states, v))
    spread = np.sqrt((p * score**2).sum(axis=1).mean() * size * length)
    theta = side * z / spread
    tilted = p * np.exp(theta * score)
    log_norm = np.log(tilted.sum(axis=1))
    tilted /= tilted.sum(axis=1, keepdims=True)
    a = 2 * stats.norm.sf(z)
    weights = np.zeros(reps)
    for r in range(reps):
        state = np.zeros(size, int)
        prefix, token = np.zeros((2, length, size), int)
        for t in range(length):
            prefix[t] = t * states + state
            token[t] = draw(tilted[prefix[t]], rng.random(size))
            state = follow[prefix[t], token[t]]
        found = leak_at(prefix.reshape(-1), token.reshape(-1), p, q)
        if found.p_value <= a and side * found.z > 0:
            total = theta * score[prefix, token].sum() - log_norm[prefix].sum()
            weights[r] = np.exp(-total)
    ratio = weights.mean() / (a / 2)
    se = weights.std() / np.sqrt(reps) / (a / 2)
    print(f"tail {side:+d} at a={a:.1e}: {ratio:.3f} +- {se:.3f} of what it should hold")
    assert ratio - 5 * se < 1.25
    assert ratio + 5 * se > 0.8


def test_exact_tests_are_not_fooled_by_what_was_drawn_before() -> None:
    """Totals of later rows are drawn too; the p-value given them is uniform all the same."""
    rng = np.random.default_rng(3)
    p = np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])
    values = []
    for _ in range(600):
        first = rng.multinomial(60, p[0])
        second = rng.multinomial(first[0], p[1]) if first[0] > 25 else None
        if second is not None:
            values.append(exact.chi_square(one_row(second, p[1]), rng).p_value)
    assert stats.kstest(values, "uniform").pvalue > LUCK
