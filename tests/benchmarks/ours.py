"""How many tokens our tests need: the e-process by simulation, the fixed-N tests by calculation.

What a fixed-N test needs is solved for from its own critical value and the mean and spread of its
statistic under the departure; `check` simulates the real test at the number found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from benchmarks.laws import Departure, Pair
from conformance.betting import LARGE_VOCABULARY
from conformance.law import Floats
from conformance.statistics import eprocess, exact, pit
from conformance.statistics.alternatives import pointwise_log_ratios, token_log_ratios
from conformance.statistics.leak import bounded_score, detectable, leak
from conformance.statistics.tables import pooled_cells, pooled_table

EVERY = 64  # a look after every token up to here, then looks spaced by GROWTH
GROWTH = 1.03
REFRESH = 1.25  # spacing of looks at the Dirichlet part, whose state is all the counts
MOST = 1 << 22  # runs longer than this are reported as longer
FEWEST = 16  # a fixed-N test is not asked about fewer tokens
DENSE = 128  # with more than one token in so many of the vocabulary, counts are drawn at once
TOKEN_LIMIT = 1 << 21  # a check by simulation keeps every token in memory


@dataclass(frozen=True, slots=True)
class RunLengths:
    """Tokens until rejection, one a run; infinite where a run was stopped without one. [R]"""

    tokens: Floats

    def quantile(self, q: float) -> float:
        return float(np.quantile(self.tokens, q, method="inverted_cdf"))

    def at_least(self) -> float:
        """Lower end of an exact one-sided 97.5 % interval for the median, by order statistics."""
        rank = int(stats.binom.ppf(0.025, len(self.tokens), 0.5))
        return float(np.sort(self.tokens)[max(rank - 1, 0)])


def log_ratio_table(pair: Pair, every: bool) -> Floats:
    """log r(x) / p(x) of every token and tilt; of the leak alone unless `every`. [V, C]"""
    v = np.arange(pair.vocab)
    if not every:
        return pointwise_log_ratios(pair.p, pair.q)
    return token_log_ratios(np.zeros(len(v), np.int64), v, pair.p[None], pair.q[None])


def run_lengths(
    pair: Pair,
    law: Floats,
    alphas: tuple[float, ...],
    runs: int,
    rng: np.random.Generator,
    limit: int = MOST,
    every: bool | None = None,
) -> dict[float, RunLengths]:
    """Draw tokens from `law` until the e-process, or a token of p = 0, rejects at each level.

    A run is looked at after every token at first and then at a growing spacing, so what is
    reported is at most `GROWTH` above what looking after every token would give.

    Parameters
    ----------
    pair : Pair
        What the e-process is told.
    law : (V,) float64
        What is emitted.
    alphas : tuple of float
        Levels.
    runs, rng, limit
        Number of runs, randomness, and the longest run.
    every : bool, optional
        Whether every alternative is kept, as in a run with a vocabulary that is not large, or only
        the draft leak; by default as a run would have it.
    """
    if every is None:
        every = pair.vocab <= LARGE_VOCABULARY
    bets = _Bets(pair, law, runs, every, rng)
    reached = {a: np.full(runs, np.inf) for a in alphas}
    alive, done = np.arange(runs), 0
    while done < limit and len(alive):
        goal = done + 1 if done < EVERY else min(int(np.ceil(done * GROWTH)), limit)
        struck = bets.add(alive, goal - done)
        done = goal
        largest = bets.log_e(alive, done)
        for a, hit in reached.items():
            now = alive[(struck | (largest >= np.log(1 / a))) & np.isinf(hit[alive])]
            hit[now] = done
        alive = alive[np.isinf(reached[min(alphas)][alive])]
    return {a: RunLengths(t) for a, t in reached.items()}


class _Bets:
    """The e-processes of R runs."""

    def __init__(
        self, pair: Pair, law: Floats, runs: int, every: bool, rng: np.random.Generator
    ) -> None:
        self.pair, self.law, self.every, self.rng = pair, law, every, rng
        self.table = log_ratio_table(pair, every)
        self.cdf, self.impossible = np.cumsum(law), pair.p == 0
        self.sums = np.zeros((runs, self.table.shape[1]))
        self.counts = np.zeros((runs, pair.vocab), np.int64)
        self.generic = np.zeros(runs)  # log E of the Dirichlet part at its last look
        self.refreshed = 0

    def add(self, rows: np.ndarray, n: int) -> np.ndarray:
        """Give n tokens more to some runs; which of them got one of p = 0."""
        if n > self.pair.vocab // DENSE:
            fresh = self.rng.multinomial(n, self.law, size=len(rows))
            self.sums[rows] += fresh @ self.table
            self.counts[rows] += fresh
            return np.asarray(fresh[:, self.impossible].any(axis=1))
        u = self.rng.random((len(rows), n)) * self.cdf[-1]
        tokens = np.searchsorted(self.cdf, u, side="right")
        self.sums[rows] += self.table[tokens].sum(axis=1)
        np.add.at(self.counts, (rows[:, None], tokens), 1)
        return np.asarray(self.impossible[tokens].any(axis=1))

    def log_e(self, rows: np.ndarray, done: int) -> Floats:
        """Log E of some runs after `done` tokens."""
        tilts = eprocess.log_e(self.sums[rows])
        if not self.every:
            return tilts
        if done >= self.refreshed * REFRESH:
            self.refreshed = done
            for i in rows:
                seen = np.flatnonzero((self.counts[i] > 0) & ~self.impossible)
                count, prob = self.counts[i, seen].astype(float), self.pair.p[seen]
                sums = eprocess.dirichlet_cells(np.zeros(len(seen), np.int64), count, prob)
                self.generic[i] = eprocess.mix_concentrations(sums)
        both = zip(tilts, self.generic[rows], strict=True)
        return np.array([eprocess.combine(t, g) for t, g in both])


# --- fixed N --------------------------------------------------------------------------------------


def chi_square_power(pair: Pair, departure: Departure, alpha: float, n: float) -> float:
    """Power of the chi-square test of n tokens, from the noncentral chi-square law."""
    _, _, cell = pooled_cells(np.array([int(n)]), pair.p[None])
    if len(cell) == 0:
        return 0.0
    p, e = (np.append(x[cell], 1 - x[cell].sum()) for x in (pair.p, departure.law))
    distance = float(((e - p) ** 2 / p).sum())
    critical = stats.chi2.isf(alpha, len(cell))
    return float(stats.ncx2.sf(critical, len(cell), n * distance))


def leak_power(pair: Pair, departure: Departure, alpha: float, n: float) -> float:
    """Power of the leak test of n tokens: its critical value is that of the exact null law, its
    statistic under the departure is taken for normal.
    """
    law, draft = pair.p[None], pair.q[None]
    score = bounded_score(law, draft)[0]
    gain = float((pair.q - pair.p) @ score)
    # the leak that is caught half of the time lies at the critical value itself
    half = detectable(np.array([n]), law, draft, alpha, 0.5)
    if half is None:
        return 0.0
    mean = float(departure.law @ score)
    spread = np.sqrt(float(departure.law @ score**2) - mean**2)
    return float(stats.norm.sf((half * gain - mean) * np.sqrt(n) / spread))


def pit_power(pair: Pair, departure: Departure, alpha: float, n: float) -> float:
    """At least the power of the Kolmogorov-Smirnov test by q/p: the chance that it rejects at
    the rank where the two distribution functions are furthest apart.
    """
    order = np.argsort(-pit.draft_key(pair.p[None], pair.q[None])[0], kind="stable")
    p, e = np.cumsum(pair.p[order]), np.cumsum(departure.law[order])
    at = int(np.abs(e - p).argmax())
    critical = float(stats.kstwo.isf(alpha, int(n)))
    spread = np.sqrt(e[at] * (1 - e[at]) / n)
    return float(stats.norm.sf((critical - abs(e[at] - p[at])) / spread))


FIXED: dict[str, Callable[[Pair, Departure, float, float], float]] = {
    "chi-square": chi_square_power,
    "draft leak": leak_power,
    "PIT by q/p": pit_power,
}


def tokens_needed(
    test: str, pair: Pair, departure: Departure, alpha: float, power: float, limit: int = MOST
) -> float:
    """Smallest number of tokens at which a fixed-N test has a power; infinite beyond `limit`."""

    def short(log_n: float) -> float:
        return FIXED[test](pair, departure, alpha, np.exp(log_n)) - power

    low, high = np.log(FEWEST), np.log(limit)
    if short(high) < 0:
        return float("inf")
    if short(low) >= 0:
        return float(FEWEST)
    return float(np.ceil(np.exp(optimize.brentq(short, low, high, xtol=1e-3))))


def check(
    test: str,
    pair: Pair,
    departure: Departure,
    alpha: float,
    n: int,
    runs: int,
    rng: np.random.Generator,
) -> float | None:
    """Share of runs of n tokens that the real test rejects; None if n is too many to simulate."""
    if n > TOKEN_LIMIT:
        return None
    law, draft = pair.p[None], pair.q[None]
    rejected = 0
    for _ in range(runs):
        counts = rng.multinomial(n, departure.law)
        if test == "chi-square":
            p_value = exact.chi_square(pooled_table(np.array([n]), counts[None], law), rng).p_value
        else:
            tokens = np.repeat(np.arange(pair.vocab), counts)
            zeros = np.zeros(n, np.int64)
            if test == "draft leak":
                found = leak(zeros, tokens, law, draft)
                p_value = 1.0 if found is None else found.p_value
            else:
                u = pit.transform(zeros, tokens, law, pit.draft_key(law, draft), rng)
                p_value = pit.kolmogorov_smirnov(u).p_value
        rejected += p_value <= alpha
    return rejected / runs
