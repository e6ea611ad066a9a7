"""The interval for total variation: does it cover, whatever the shape of the departure?"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from conformance.law import Floats
from conformance.statistics.effect import total_variation
from conformance.statistics.tables import Table, pooled_table

LUCK = 1e-6


def moved(p: Floats, shape: str, tv: float, rng: np.random.Generator) -> Floats:
    """Laws at a distance of about `tv` from p; how, is the shape."""
    r = p.copy()
    if shape == "one cell":
        for i in range(len(p)):
            first, second = np.argsort(-p[i])[:2]
            step = min(tv, 0.9 * p[i, first])
            r[i, first] -= step
            r[i, second] += step
    elif shape == "all cells":
        d = rng.choice([-1, 1], p.shape) * p
        d -= p * d.sum(axis=1, keepdims=True)
        r = np.maximum(p + d * tv / (np.abs(d).sum(axis=1, keepdims=True) / 2), 0)
    elif shape == "one row":
        r[0] = rng.dirichlet(np.full(p.shape[1], 0.5))
    return np.asarray(r / r.sum(axis=1, keepdims=True))


def truth(table: Table, p: Floats, r: Floats) -> float:
    """Total variation in the table's own cells."""
    laws = [pooled_table(table.total, np.rint(m * 1e12).astype(np.int64), p) for m in (p, r)]
    shares = [np.concatenate([t.count, t.remainders()[0] + 10**12 - t.total]) for t in laws]
    weight = np.concatenate([table.total[laws[0].row], table.total]) / table.n
    return float((weight * np.abs(shares[0] - shares[1])).sum()) / 2e12


@pytest.mark.parametrize("shape", ["none", "one cell", "all cells", "one row"])
@pytest.mark.parametrize(
    ("rows", "v", "concentration", "n"),
    [(1, 6, 3.0, 500), (1, 60, 1.0, 3000), (20, 10, 1.0, 200), (20, 20, 0.7, 2000)],
)
def test_the_interval_covers(shape: str, rows: int, v: int, concentration: float, n: int) -> None:
    rng = np.random.default_rng([rows, v, len(shape)])
    reps = 80
    for tv in (0.01, 0.05, 0.2):
        p = rng.dirichlet(np.full(v, concentration), rows)
        r, total = moved(p, shape, tv, rng), np.full(rows, n)
        covered, found = 0, []
        for _ in range(reps):
            table = pooled_table(total, np.stack([rng.multinomial(n, x) for x in r]), p)
            interval = total_variation(table)
            assert interval is not None
            assert 0 <= interval.low <= interval.estimate <= interval.high <= 1
            covered += interval.low <= truth(table, p, r) <= interval.high
            found.append(interval)
        true = truth(table, p, r)
        low, high = (float(np.mean([getattr(i, e) for i in found])) for e in ("low", "high"))
        print(f"{shape} {rows}x{v} n={n}: true {true:.4f} in {low:.4f} .. {high:.4f}, {covered}")
        assert stats.binomtest(covered, reps, 0.95, alternative="less").pvalue > LUCK
        # an interval of everything would cover too
        assert high - low < 0.06 + 4 / np.sqrt(table.n)
        if true > 8 * np.sqrt(table.df / table.n):
            assert low > true / 2


def test_total_variation_of_given_counts() -> None:
    count = np.array([70_000, 20_000, 10_000])
    prob = np.array([0.5, 0.3, 0.2])
    table = Table(count.sum(keepdims=True), np.zeros(2, int), count[:2], prob[:2])
    found = total_variation(table, np.random.default_rng(0))
    assert found is not None
    assert found.estimate == pytest.approx(0.2, abs=0.005)
    assert found.low < 0.2 < found.high
    assert total_variation(table) == total_variation(table)
    assert total_variation(table, np.random.default_rng(1)) != found
    wider = total_variation(table, np.random.default_rng(0), confidence=0.999)
    assert wider is not None
    assert wider.low < found.low < found.high < wider.high
    none = Table(np.array([5]), np.zeros(0, int), np.zeros(0, int), np.zeros(0))
    assert total_variation(none) is None
