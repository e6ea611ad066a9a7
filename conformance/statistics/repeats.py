"""Do requests repeat one another?

An engine whose every request has the right law can still answer two requests with one random
stream. A request that repeats another (the one `lag` before it, or any earlier one) follows it
token by token further than it should. How far is known: given the earlier requests, the next token
is again one of theirs with the probability that the law gives to those tokens. So the depth of the
agreement has a known law and, randomised, becomes one uniform number a request, independent of
those before. Numbers that are too small are then counted exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from conformance.statistics.exact import SMALLEST_P
from conformance.statistics.proportion import wilson
from conformance.statistics.tables import Floats, Ints
from conformance.verdict import Interval

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Repeats:
    """How far requests follow earlier ones.

    Parameters
    ----------
    n : int
        Requests that could have repeated another.
    observed : int
        Requests that followed an earlier one to the end, by tokens that all have a law to be held
        to: how likely others are by chance is not known.
    expected : float
        How many would have, on average, given the requests before them.
    rate : Interval
        Share of requests that are repeats beyond chance.
    statistic : float
        How many requests the p-value rests on: the `statistic` smallest numbers are too small (or,
        if negative, the largest too large: requests avoid one another).
    p_value : float
        At most uniform under exactness, whatever n.
    reach : (n,) float64
        For a copy of each request, the probability that chance alone agrees so far.
    """

    n: int
    observed: int
    expected: float
    rate: Interval
    statistic: float
    p_value: float
    reach: Floats

    def detectable(self, alpha: float, power: float) -> float | None:
        """Smallest share of copied requests that is caught; None if not even all would be."""
        counts = np.array(_counted(self.n))
        share = alpha / (2 * len(counts))
        critical = np.asarray(stats.beta.ppf(share, counts, self.n - counts + 1))

        def best(rate: float) -> float:
            copied = np.minimum(1.0, critical[:, None] / self.reach).mean(axis=1)
            hit = (1 - rate) * critical + rate * copied
            return float(stats.binom.sf(counts - 1, self.n, hit).max()) - power

        if best(1.0) < 0:
            return None
        return 0.0 if best(0.0) >= 0 else float(optimize.brentq(best, 0.0, 1.0, xtol=1e-9))


def repeats_at_lag(
    prefix: Ints,
    token: Ints,
    token_prob: Floats,
    judged: Bools,
    lag: int,
    rng: np.random.Generator,
) -> Repeats | None:
    """Does a request follow the one `lag` before it?

    Parameters
    ----------
    prefix : (N, T) int64
        Number of each token's prefix; equal only for the same prompt and the same tokens before.
        Requests in the order that the lag counts in (a batch row's neighbours, its predecessor in
        the batch before).
    token : (N, T) int64
        The tokens.
    token_prob : (N, T) float64
        Probability of each token under the law at its prefix.
    judged : (N, T) bool
        Tokens that have a law to be held to; agreement elsewhere is followed but not counted.
    lag : int
        At least 1.
    rng : Generator
        Randomises the discrete depths.

    Returns
    -------
    Repeats or None
        None where no two requests `lag` apart share a prompt.
    """
    a, b = slice(None, -lag), slice(lag, None)
    shared = prefix[b][:, 0] == prefix[a][:, 0]
    if not shared.any():
        return None
    hit = (token[b] == token[a])[shared]
    prob, use = token_prob[a][shared], judged[a][shared]
    reach = np.exp(_log(prob, use).sum(axis=1))
    chance = np.where(use.all(axis=1), reach, 0.0)
    return _repeats(hit, prob, use & judged[b][shared], chance, reach, rng)


def repeats_anywhere(
    prefix: Ints, token: Ints, token_prob: Floats, judged: Bools, rng: np.random.Generator
) -> Repeats | None:
    """Does a request follow any earlier one? The birthday question; as `repeats_at_lag`."""
    n, length = token.shape
    _, node = np.unique(prefix, return_inverse=True)
    node = node.ravel()
    fresh = _first_of_its_kind(node, token.ravel())
    mass = np.where(fresh, token_prob.ravel(), 0.0)
    seen = _before(node, mass).reshape(n, length)  # mass of the tokens taken here before
    partner = _before(node, np.ones(n * length)).reshape(n, length)[:, 0] > 0
    if not partner.any():
        return None
    # a copy meets at most what all requests together took
    taken = np.bincount(node, mass)[node].reshape(n, length)
    reach = np.exp(_log(np.minimum(taken, 1.0), judged).sum(axis=1))
    # chance repeats a request fully with the mass of the distinct strings before it
    new = _first_of_its_kind(node.reshape(n, length)[:, -1], token[:, -1])
    known = new & judged.all(axis=1)
    string = np.where(known, np.exp(_log(token_prob, judged).sum(axis=1)), 0.0)
    chance = _before(node.reshape(n, length)[:, 0], string)
    return _repeats(
        ~fresh.reshape(n, length)[partner],
        np.clip(seen, 0.0, 1.0)[partner],
        judged[partner],
        chance[partner],
        reach[partner],
        rng,
    )


def _first_of_its_kind(group: Ints, value: Ints) -> Bools:
    """True where no earlier entry has the same group and value. [n]"""
    order = np.lexsort((np.arange(len(group)), value, group))
    first = np.ones(len(group), dtype=bool)
    g, v = group[order], value[order]
    first[order[1:]] = (g[1:] != g[:-1]) | (v[1:] != v[:-1])
    return first


def _before(group: Ints, value: Floats) -> Floats:
    """Per entry, the sum of the earlier values of its group. [n]"""
    order = np.argsort(group, kind="stable")
    ranked = group[order]
    place = np.arange(len(group)) - np.searchsorted(ranked, ranked, side="left")
    # sums never leave their group: a difference of two long sums would lose the rare tokens
    total = value[order]
    step = 1
    while step <= place.max(initial=0):
        total[step:] += np.where(place[step:] >= step, total[:-step], 0.0)
        step *= 2
    out = np.empty(len(group))
    out[order] = np.where(place > 0, np.roll(total, 1), 0.0)
    return out


def _log(prob: Floats, judged: Bools) -> Floats:
    """Logarithms; 0, for certain, where nothing is judged."""
    return np.asarray(np.where(judged, np.log(np.maximum(prob, SMALLEST_P)), 0.0))


def _repeats(
    hit: Bools, prob: Floats, judged: Bools, chance: Floats, reach: Floats, rng: np.random.Generator
) -> Repeats:
    """From agreement token by token, and its probability given agreement so far, [n, T] each;
    and the probabilities of full agreement, by chance and for a copy, [n] each.
    """
    n, length = hit.shape
    full = hit.all(axis=1)
    known = full & judged.all(axis=1)
    rows, miss = np.arange(n), np.where(full, length - 1, (~hit).argmax(axis=1))
    log_prob = _log(prob, judged)
    ended = ~full & judged[rows, miss]  # by a token that had a law
    got = np.cumsum(log_prob, axis=1)[rows, miss] - np.where(ended, log_prob[rows, miss], 0.0)
    # agreement that ended here is above all that went on, and below all that ended sooner
    floor = np.where(ended, prob[rows, miss], 0.0)
    u = np.exp(got) * (floor + rng.random(n) * (1 - floor))
    p_value, statistic = _scan(np.clip(u, SMALLEST_P, 1.0))
    observed, by_chance = int(known.sum()), min(float(chance.mean()), 1 - 1e-9)
    rate = np.array([observed / n, *wilson(observed, n)])
    estimate, low, high = (rate - by_chance) / (1 - by_chance)
    return Repeats(
        n=n,
        observed=observed,
        expected=float(chance.sum()),
        rate=Interval(float(estimate), float(low), float(high)),
        statistic=statistic,
        p_value=p_value,
        reach=np.maximum(reach, SMALLEST_P),
    )


def _counted(n: int) -> list[int]:
    """How many of the smallest numbers are looked at: 1, 2, 3, 4, 6, 8, 12, ... and n."""
    counts = {n}
    k = 1
    while k < n:
        counts |= {k, k + k // 2}
        k *= 2
    return sorted(c for c in counts if c <= n)


def _scan(u: Floats) -> tuple[float, float]:
    """Are the smallest (or the largest) of n uniforms too small (too large)? p-value and count.

    The k-th smallest is Beta(k, n - k + 1); Bonferroni over both sides and the k looked at.
    """
    n, s = len(u), np.sort(u)
    counts = np.array(_counted(n))
    low = stats.beta.cdf(s[counts - 1], counts, n - counts + 1)
    high = stats.beta.cdf(1 - s[n - counts], counts, n - counts + 1)
    both = np.concatenate([low, high])
    at = int(both.argmin())
    p = min(max(float(both[at]) * len(both), SMALLEST_P), 1.0)
    return p, float(counts[at] if at < len(counts) else -counts[at - len(counts)])
