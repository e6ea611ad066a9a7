"""The statistics against brute force and other libraries.

Whether p-values are uniform in use is for tests/calibration; whether they are small enough when
they should be is for tests/power. Here single functions are held to what can be computed.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.gof import chisquare as sm_chisquare

from conformance.law import Floats
from conformance.reference import draw
from conformance.statistics import exact, pit
from conformance.statistics.tables import (
    MIN_EXPECTED,
    Ints,
    Table,
    cells_expected,
    conditional_table,
    pooled_cells,
)
from conformance.statistics.two_sample import two_sample

TESTS = {"chi-square": exact.chi_square, "KL": exact.likelihood_ratio}
ALPHAS = np.array([1e-4, 1e-3, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 0.95])


class Fixed(np.random.Generator):
    """A generator that hands out given numbers."""

    def __init__(self, v: Floats) -> None:
        super().__init__(np.random.PCG64(0))
        self.v = v

    def random(self, size: int) -> Floats:  # type: ignore[override]
        return np.broadcast_to(self.v, size)


def outcomes(n: int, c: int) -> Ints:
    """Every way to put n answers into c cells. [O, c]"""
    every = np.array(list(product(range(n + 1), repeat=c)))
    return every[every.sum(axis=1) == n]


def cell_p_values(
    monkeypatch: pytest.MonkeyPatch, name: str, counts: Ints, prob: Floats, v: Floats
) -> Floats:
    """The p-value of every cell before they are combined, at every v. [O, c - 1, G]"""
    o, m, g = len(counts), counts.shape[1] - 1, len(v)
    caught: list[Floats] = []
    with monkeypatch.context() as patch:
        patch.setattr(exact, "_combine", caught.append)
        table = Table(
            total=np.repeat(counts.sum(axis=1), g),
            row=np.repeat(np.arange(o * g), m),
            count=np.repeat(counts[:, :m], g, axis=0).reshape(-1),
            prob=np.tile(prob[:m], o * g),
        )
        TESTS[name](table, Fixed(np.tile(np.repeat(v, m), o)))
    return np.asarray(caught[0].reshape(o, g, m).transpose(0, 2, 1))


LAWS = [
    (4, (0.5, 0.5)), (5, (0.3, 0.7)), (6, (0.5, 0.5)), (8, (0.75, 0.25)), (8, (0.95, 0.05)),
    (4, (0.5, 0.25, 0.25)), (6, (0.5, 0.3, 0.2)), (7, (0.8, 0.15, 0.05)),
    (8, (1 / 3, 1 / 3, 1 / 3)),
    (4, (0.4, 0.3, 0.2, 0.1)), (5, (0.25, 0.25, 0.25, 0.25)), (5, (0.7, 0.1, 0.1, 0.1)),
]  # fmt: skip


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize(("n", "law"), LAWS)
def test_p_values_are_exactly_uniform(
    monkeypatch: pytest.MonkeyPatch, name: str, n: int, law: tuple[float, ...]
) -> None:
    """P(p <= a) = a, summed over every outcome and integrated over the randomisation."""
    prob = np.array(law)
    counts = outcomes(n, len(law))
    weight = stats.multinomial.pmf(counts, n, prob)
    df = len(law) - 1
    size = 2000 if len(law) == 2 else 400
    fine = (np.arange(size) + 0.5) / size
    # where a cell's p-value is smallest, at either end, the nodes are dense: v = sin(angle)^2
    angle = (np.arange(60) + 0.5) / 60 * np.pi / 2
    coarse, share = np.sin(angle) ** 2, np.sin(2 * angle) * np.pi / 2 / 60
    p_fine = cell_p_values(monkeypatch, name, counts, prob, fine)
    p_coarse = cell_p_values(monkeypatch, name, counts, prob, coarse)
    critical = stats.chi2.isf(ALPHAS, df)
    got = np.zeros(len(ALPHAS))
    for w, last, earlier in zip(weight, p_fine[:, -1], p_coarse[:, :-1], strict=True):
        z2 = np.sort(stats.chi2.isf(np.clip(last, 1e-300, 1), 1))
        rest, mass = np.zeros(1), np.ones(1)
        for p in earlier:
            rest = (rest[:, None] + stats.chi2.isf(np.clip(p, 1e-300, 1), 1)[None]).reshape(-1)
            mass = (mass[:, None] * share[None]).reshape(-1)
        beyond = len(z2) - np.searchsorted(z2, critical[:, None] - rest[None])
        got += w * (beyond / len(z2)) @ mass
    np.testing.assert_allclose(got, ALPHAS, rtol=0, atol=5e-4)


@pytest.mark.parametrize("name", TESTS)
def test_one_cell_against_the_definition(name: str) -> None:
    """Two-sided binomial p-values with the observed outcome randomised, at every outcome."""
    for n, pi in product((1, 4, 10, 21), (0.5, 0.25, 0.3, 1 / 3, 0.9)):
        o = np.arange(n + 1)
        mass = stats.binom.pmf(o, n, pi)
        if name == "KL":
            other = np.array([n * pi, n * (1 - pi)])
            rank = np.array(
                [stats.entropy([k / n, 1 - k / n], other / n) for k in o]
            )  # deviance / 2n
        for k, v in product(o, (0.0, 0.4, 0.99)):
            table = Table(np.array([n]), np.array([0]), np.array([k]), np.array([pi]))
            got = TESTS[name](table, Fixed(np.array(v))).p_value
            if name == "KL":
                more = rank > rank[k] + 1e-10
                same = abs(rank - rank[k]) <= 1e-10
                want = mass[more].sum() + v * mass[same].sum()
            else:
                low = mass[:k].sum() + (1 - v) * mass[k]
                want = 2 * min(low, 1 - low)
            assert got == pytest.approx(want, abs=1e-9), (n, pi, k, v)


def test_a_cell_nobody_could_fill_is_uniform_too() -> None:
    """Earlier cells took every answer: a p-value all the same, and a random one."""
    table = Table(np.array([5]), np.array([0, 0]), np.array([5, 0]), np.array([0.6, 0.2]))
    for test in TESTS.values():
        whole = [test(table, Fixed(np.array([0.5, v]))).p_value for v in np.linspace(0.01, 0.99, 9)]
        assert len(set(whole)) > 1
        assert min(whole) < test(table, Fixed(np.array([0.5, 0.5]))).p_value


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize("shift", [0.0, 0.004])
def test_large_expectations_agree_with_other_libraries(name: str, shift: float) -> None:
    rng = np.random.default_rng(4)
    prob = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    true = prob + shift * np.array([1, -1, 1, -1, 0])
    for _ in range(20):
        counts = rng.multinomial(400_000, true)
        table = Table(np.array([400_000]), np.zeros(4, int), counts[:4], prob[:4])
        fit = TESTS[name](table, rng)
        kind = "pearson" if name == "chi-square" else "log-likelihood"
        g, p = stats.power_divergence(counts, 400_000 * prob, lambda_=kind)
        assert fit.df == 4
        assert fit.statistic == pytest.approx(g, rel=0.02, abs=0.05)
        assert np.log(fit.p_value) == pytest.approx(np.log(p), rel=0.03, abs=0.05)
        if name == "chi-square":
            assert sm_chisquare(counts, 400_000 * prob)[0] == pytest.approx(g)


# --- tables ---------------------------------------------------------------------------------------


def test_pooling_looks_at_expectations_only() -> None:
    rng = np.random.default_rng(5)
    law = rng.dirichlet(np.full(12, 0.5), 9)
    prefix = rng.choice(9, 900, p=rng.dirichlet(np.ones(9)))
    tables = []
    for _ in range(30):
        # counts from wildly different laws, the prefixes kept
        token = draw(rng.dirichlet(np.full(12, 0.1), 900), rng.random(900))
        tables.append(conditional_table(prefix, token, law))
    for t in tables[1:]:
        np.testing.assert_array_equal(t.total, tables[0].total)
        np.testing.assert_array_equal(t.row, tables[0].row)
        np.testing.assert_array_equal(t.prob, tables[0].prob)
    assert any((t.count != tables[0].count).any() for t in tables[1:])


def test_every_cell_and_every_remainder_is_expected_often_enough() -> None:
    rng = np.random.default_rng(6)
    for _ in range(200):
        r, v = rng.integers(1, 8), rng.integers(2, 40)
        law = rng.dirichlet(np.full(v, rng.choice([0.05, 0.5, 5.0])), r)
        total = rng.integers(0, 400, r)
        kept, row, cell = pooled_cells(total, law)
        expected = total[kept][row] * law[kept][row, cell]
        rest = total[kept] - np.bincount(row, expected, len(kept))
        assert (expected >= MIN_EXPECTED).all()
        assert (rest >= MIN_EXPECTED * (1 - 1e-9)).all()
        assert len(set(zip(row.tolist(), cell.tolist(), strict=True))) == len(row)
        for i, n in enumerate(total):
            assert cells_expected(law[i], int(n)) == (row == np.searchsorted(kept, i)).sum() * (
                i in kept
            )


def test_a_table_counts_every_answer_once() -> None:
    rng = np.random.default_rng(7)
    law = rng.dirichlet(np.full(6, 0.7), 4)
    prefix = np.repeat(np.arange(4), [500, 300, 19, 100])
    token = draw(law[prefix], rng.random(len(prefix)))
    table = conditional_table(prefix, token, law)
    assert table.total.tolist() == [500, 300, 100]  # 19 answers are too few for two cells
    rest, rest_prob = table.remainders()
    assert table.n == 900 == table.count.sum() + rest.sum()
    np.testing.assert_allclose(np.bincount(table.row, table.prob, 3) + rest_prob, 1)
    live = [0, 1, 3]
    for r, i in enumerate(live):
        seen = np.bincount(token[prefix == i], minlength=6)
        here = table.row == r
        for count, prob in zip(table.count[here], table.prob[here], strict=True):
            x = int(np.flatnonzero(law[i] == prob)[0])
            assert count == seen[x]


# --- the probability integral transform -----------------------------------------------------------


@pytest.mark.parametrize("ranked_by", ["p", "q/p", "one constant"])
def test_tokens_share_the_unit_interval_by_their_probability(ranked_by: str) -> None:
    """u is uniform because every token owns an interval as long as its probability."""
    rng = np.random.default_rng(8)
    law = rng.dirichlet(np.full(7, 0.5), 40)
    law[:10] = np.eye(7)[rng.integers(0, 7, 10)]  # one-hot
    law[10:20] = 1 / 7  # all tied
    law[20:30, 3] = 0
    law /= law.sum(axis=1, keepdims=True)
    draft = rng.dirichlet(np.full(7, 0.5), 40) * (rng.random((40, 7)) < 0.7)
    key = {"p": law, "q/p": pit.draft_key(law, draft), "one constant": np.zeros_like(law)}
    prefix, token = (x.reshape(-1) for x in np.mgrid[:40, :7])
    low, high = (
        pit.transform(prefix, token, law, key[ranked_by], Fixed(np.array(v))).reshape(40, 7)
        for v in (0.0, 1.0)
    )
    np.testing.assert_allclose(high - low, law, atol=1e-12)
    starts, ends = np.sort(low, axis=1), np.sort(high, axis=1)
    np.testing.assert_allclose(starts[:, 1:], ends[:, :-1], atol=1e-12)  # no gap, no overlap
    np.testing.assert_allclose([starts[:, 0], 1 - ends[:, -1]], 0, atol=1e-12)


def test_ranking_puts_the_favoured_token_first() -> None:
    law, draft = np.array([[0.5, 0.3, 0.2, 0.0]]), np.array([[0.1, 0.1, 0.2, 0.6]])
    at = np.zeros(4, dtype=np.int64), np.arange(4)
    by_p = pit.transform(*at, law, law, Fixed(np.array(0.5)))
    np.testing.assert_allclose(by_p, [0.25, 0.65, 0.9, 1.0])
    by_ratio = pit.transform(*at, law, pit.draft_key(law, draft), Fixed(np.array(0.5)))
    np.testing.assert_allclose(by_ratio, [0.75, 0.35, 0.1, 1.0])


def test_kolmogorov_smirnov_agrees_with_scipy() -> None:
    rng = np.random.default_rng(9)
    for n, power in product((1, 5, 50, 3000), (1.0, 0.9, 3.0)):
        u = rng.random(n) ** power
        ours, theirs = pit.kolmogorov_smirnov(u), stats.kstest(u, "uniform", method="exact")
        assert ours.distance == pytest.approx(theirs.statistic, abs=1e-12)
        assert ours.p_value == pytest.approx(theirs.pvalue, rel=1e-9, abs=1e-299)


# --- two samples ----------------------------------------------------------------------------------


def test_one_two_sample_cell_against_the_hypergeometric_law() -> None:
    """P(p <= a) = a given the margins, by enumeration of every split."""
    m, n_a, n_b = 25, 30, 40
    split = np.arange(0, m + 1)
    weight = stats.hypergeom.pmf(split, n_a + n_b, m, n_a)
    v = (np.arange(100) + 0.5) / 100
    got = np.zeros(len(ALPHAS))
    for x, w in zip(split, weight, strict=True):
        if w == 0:
            continue
        first = np.repeat([0, 1], [x, n_a - x])
        second = np.repeat([0, 1], [m - x, n_b - m + x])
        p = []
        for one in v:
            fit, n = two_sample(
                (np.zeros(n_a, int), first), (np.zeros(n_b, int), second), 2, Fixed(np.array(one))
            )
            assert (fit.df, n) == (1, n_a)
            p.append(fit.p_value)
        got += w * (np.array(p)[:, None] <= ALPHAS).mean(axis=0)
    np.testing.assert_allclose(got, ALPHAS, rtol=0, atol=5e-3)


def test_two_samples_that_share_nothing_are_not_judged() -> None:
    rng = np.random.default_rng(10)
    fit, n = two_sample(
        (np.zeros(100, int), rng.integers(0, 2, 100)),
        (np.ones(100, int), rng.integers(0, 2, 100)),
        2,
        rng,
    )
    assert (fit.df, fit.p_value, n) == (0, 1.0, 0)


@pytest.mark.parametrize("size", [4000, 20_000])
def test_two_samples_that_differ_are_told_apart(size: int) -> None:
    rng = np.random.default_rng(11)
    law = rng.dirichlet(np.ones(8), 3)
    other = 0.8 * law + 0.2 * rng.dirichlet(np.ones(8), 3)
    prefix = rng.integers(0, 3, (2, size))
    first = prefix[0], draw(law[prefix[0]], rng.random(size))
    second = prefix[1], draw(other[prefix[1]], rng.random(size))
    same = prefix[1], draw(law[prefix[1]], rng.random(size))
    assert two_sample(first, second, 8, rng)[0].p_value < 1e-6
    assert two_sample(first, same, 8, rng)[0].p_value > 1e-6
