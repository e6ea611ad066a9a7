"""Effect sizes, the draft leak and certificates, against computation and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats
from statsmodels.stats.power import GofChisquarePower

from conformance.law import Floats
from conformance.reference import draw
from conformance.statistics import certificate, effect, exact, pit
from conformance.statistics.leak import BOUND, Leak, bounded_score, leak
from conformance.statistics.tables import Ints, Table

# Simulations below fail by bad luck less often than this.
LUCK = 1e-6


# --- KL in nats per token -------------------------------------------------------------------------


def one_row(counts: Ints, prob: Floats) -> Table:
    size = len(prob) - 1
    return Table(counts.sum(keepdims=True), np.zeros(size, int), counts[:size], prob[:size])


def divergence(true: Floats, prob: Floats) -> float:
    return float(stats.entropy(true, prob))


@pytest.mark.parametrize(("n", "shift"), [(400, 0.0), (400, 0.1), (5000, 0.0), (5000, 0.03)])
def test_the_interval_covers_the_divergence(n: int, shift: float) -> None:
    rng = np.random.default_rng([n, int(100 * shift)])
    prob = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    true = prob + shift * np.array([1, 0, -1, 0.5, -0.5])
    kl, reps = divergence(true, prob), 300
    counts = rng.multinomial(n, true, size=reps)
    found = [effect.kl_per_token(one_row(c, prob)) for c in counts]
    covered = sum(i is not None and i.low <= kl <= i.high for i in found)
    # one-sided where the truth is 0: the lower end is then never above it but by chance
    print(f"n={n} KL={kl:.4f}: covered {covered / reps:.3f}")
    assert stats.binomtest(covered, reps, 0.95, alternative="less").pvalue > LUCK
    if shift:
        mean = np.mean([i.estimate for i in found if i])
        assert mean == pytest.approx(kl, rel=0.15, abs=1e-3)
        assert covered < reps  # an interval that is never wrong is too wide


def test_the_interval_inverts_the_noncentral_law() -> None:
    prob, counts = np.array([0.3, 0.25, 0.2, 0.15, 0.1]), np.array([350, 230, 170, 160, 90])
    found = effect.kl_per_token(one_row(counts, prob), confidence=0.9)
    assert found is not None
    g = float(stats.power_divergence(counts, 1000 * prob, lambda_="log-likelihood")[0])
    assert found.estimate == pytest.approx((g - 4) / 2000)
    assert stats.ncx2.cdf(g, 4, 2000 * found.low) == pytest.approx(0.95, abs=1e-5)
    assert stats.ncx2.cdf(g, 4, 2000 * found.high) == pytest.approx(0.05, abs=1e-5)


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
    assert 8 < s.max() <= BOUND
    assert (s[:, 0] == 0).all()


def test_a_twin_draft_shows_nothing() -> None:
    p = np.array([[0.2, 0.8]])
    assert leak(np.zeros(50, int), np.ones(50, int), p, p) is None


@pytest.mark.parametrize("eps", [0.0, 0.05, 0.3, 1.0])
def test_the_estimate_is_unbiased_and_its_interval_covers(eps: float) -> None:
    rng = np.random.default_rng(1)
    p, q = a_pair(rng, 20, 12)
    mixed = (1 - eps) * p + eps * q
    prefix, reps = rng.integers(0, 20, 1500), 400
    found = [
        leak_at(prefix, draw(mixed[prefix], rng.random(len(prefix))), p, q) for _ in range(reps)
    ]
    values, se = (np.array([getattr(f, name) for f in found]) for name in ("eps", "se"))
    assert abs(values.mean() - eps) < stats.norm.isf(LUCK / 2) * values.std() / np.sqrt(reps)
    assert values.std() == pytest.approx(se.mean(), rel=0.2)
    covered = int((abs(values - eps) <= 1.959964 * se).sum())
    print(f"eps={eps}: covered {covered / reps:.3f}")
    assert stats.binomtest(covered, reps, 0.95).pvalue > LUCK
    score = bounded_score(p, q)
    slope, variance = ((q - p) * score).sum(axis=1), (p * score**2).sum(axis=1)
    planned = slope[prefix].sum() ** 2 / variance[prefix].sum()
    assert found[0].information == pytest.approx(planned)


def tails(p: Floats, s: Floats, n: int) -> tuple[Ints, Floats, Floats]:
    """Every outcome of n draws, and the mass beyond its score: without its own atom, with it."""
    every = np.indices((n + 1,) * (len(p) - 1)).reshape(len(p) - 1, -1)
    counts = np.vstack([every, n - every.sum(axis=0)]).T
    counts = counts[counts[:, -1] >= 0]
    mass = stats.multinomial.pmf(counts, n, p)
    total = np.round(counts @ s, 9)
    order = np.argsort(total)
    value, first = np.unique(total[order], return_index=True)
    atoms = np.add.reduceat(mass[order], first)
    below = np.cumsum(atoms) - atoms
    above = np.cumsum(atoms[::-1])[::-1] - atoms
    at = np.searchsorted(value, total)
    beyond = np.where(total > 0, above[at], below[at])
    return counts, beyond, beyond + atoms[at]


@pytest.mark.parametrize(
    ("n", "law", "draft"),
    [
        (400, (0.3, 0.7), (0.6, 0.4)),  # the worked example, a staircase of equal steps
        (120, (0.5, 0.3, 0.2), (0.2, 0.35, 0.45)),
        (60, (0.4, 0.3, 0.2, 0.1), (0.21, 0.37, 0.28, 0.14)),
        (60, (0.55, 0.2, 0.13, 0.12), (0.3, 0.23, 0.31, 0.16)),
    ],
)
def test_saddlepoint_against_enumeration(
    n: int, law: tuple[float, ...], draft: tuple[float, ...]
) -> None:
    """Over eight orders of magnitude of p, where a normal approximation is wrong by a lot."""
    p, q = np.array(law), np.array(draft)
    counts, beyond, reached = tails(p, bounded_score(p[None], q[None])[0], n)
    rng = np.random.default_rng(2)
    outside, normal = [], []
    for low, high in ((1e-9, 1e-7), (1e-7, 1e-5), (1e-5, 1e-3), (1e-3, 0.05), (0.05, 0.2)):
        inside = np.flatnonzero((beyond > low) & (reached < high))
        for i in rng.choice(inside, min(40, len(inside)), replace=False):
            token = np.repeat(np.arange(len(p)), counts[i])
            found = leak_at(np.zeros(n, int), token, p[None], q[None])
            tail = found.p_value / 2
            # a smooth curve through a staircase: right if it lies within the step
            outside.append(max(np.log(tail / reached[i]), np.log(beyond[i] / tail)))
            normal.append(abs(np.log(stats.norm.sf(abs(found.z)) / reached[i])))
    print(f"{law}: off the step by a factor of {np.exp(max(outside)):.3f}", np.exp(max(normal)))
    # with a handful of tokens the sums bunch, and a bunch is a wider step
    assert max(outside) < np.log(1.3)
    assert max(normal) > 2 * max(outside)


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("z", [3.0, 4.9, 5.8])
def test_deep_tails_by_importance_sampling(side: int, z: float) -> None:
    """P(p <= a) = a at a of 1e-3, 1e-6, 1e-8, where prefixes follow from the tokens before.

    Tokens are drawn from laws tilted to the score and weighted back. One tail of a two-sided test
    should hold a/2.
    """
    rng = np.random.default_rng([int(10 * z), side + 1])
    states, v, size, length, reps = 6, 5, 250, 4, 600
    p, q = a_pair(rng, length * states, v)
    score = bounded_score(p, q)
    follow = rng.integers(0, states, (length * states, v))

    def run(theta: float, uniforms: Floats) -> tuple[Ints, Ints, float]:
        """One run under the tilt: prefixes, tokens and the log likelihood ratio."""
        tilted = p * np.exp(theta * score)
        mass = tilted.sum(axis=1, keepdims=True)
        state = np.zeros(uniforms.shape[1], int)
        prefix, token = np.zeros((2, *uniforms.shape), int)
        for t in range(length):
            prefix[t] = t * states + state
            token[t] = draw(tilted[prefix[t]] / mass[prefix[t]], uniforms[t])
            state = follow[prefix[t], token[t]]
        log_ratio = theta * score[prefix, token].sum() - np.log(mass[prefix]).sum()
        return prefix.reshape(-1), token.reshape(-1), float(log_ratio)

    # tilt so that a typical run lies where the p-value is a: its signed root is then z
    many = rng.random((length, 100 * size))
    theta = optimize.brentq(
        lambda t: np.sqrt(2 * max(run(t, many)[2], 0) / 100) - z, 1e-3 * side, 2.0 * side, xtol=1e-4
    )
    a = 2 * stats.norm.sf(z)
    weights = np.zeros(reps)
    for r in range(reps):
        prefix, token, log_ratio = run(theta, rng.random((length, size)))
        found = leak_at(prefix, token, p, q)
        if found.p_value <= a and side * found.z > 0:
            weights[r] = np.exp(-log_ratio)
    ratio = weights.mean() / (a / 2)
    se = weights.std() / np.sqrt(reps) / (a / 2)
    print(f"tail {side:+d} at a={a:.1e}: {ratio:.3f} +- {se:.3f} of what it should hold")
    assert (weights > 0).mean() > 0.2
    assert ratio - 5 * se < 1.3
    assert ratio + 5 * se > 0.75


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
