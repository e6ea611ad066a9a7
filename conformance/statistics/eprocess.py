"""An anytime-valid test of "every token is a draw from the law at its prefix, given the past".

For each fixed alternative r the product of r(x | h) / p(x | h) over the tokens is a martingale
under exactness, whatever decides which prefixes are reached; so is any mixture with weights chosen
beforehand. By Ville's inequality the mixture E ever reaches 1 / alpha with probability at most
alpha: one may look after every token and stop at the first rejection.

Two families are mixed. *Tilts* are the alternatives of `alternatives`; their state is one vector of
log ratios that is added over tokens, requests, workers and nights. *Dirichlet* alternatives give
each prefix an unknown law with a Dirichlet prior centred on p; they are evaluated from the counts
per prefix, see any departure, and need prefixes that repeat.

Shafer, *Testing by betting* (JRSS A, 2021); Ramdas, Gruenwald, Vovk, Shafer, *Game-theoretic
statistics and safe anytime-valid inference* (Statistical Science, 2023).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy.special import gammaln, logsumexp

from conformance.statistics.alternatives import NAMES, PRIOR, pointwise_log_ratios, token_log_ratios
from conformance.statistics.tables import Floats, Ints

# Prior sizes of the Dirichlet alternatives, in tokens: 4 is "anything", 65536 "hardly different".
CONCENTRATIONS = np.array([4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0])
DIRICHLET_SHARE = 0.2  # of the whole mixture; tilts need fewer tokens wherever they apply
TOKENS_AT_ONCE = 1 << 14


def names() -> tuple[str, ...]:
    """What each of the C tilts would mean."""
    return NAMES


def weights() -> Floats:
    """Prior weights of the tilts; they sum to 1. [C]"""
    return PRIOR.copy()


def log_ratios(prefix: Ints, token: Ints, law: Floats, draft: Floats | None) -> Floats:
    """Evidence of the tokens given, for each tilt: the sum of log r(x) / p(x). [C]

    Parameters
    ----------
    prefix, token : (n,) int64
        Row of the law, and the token drawn.
    law, draft : (u, V) float64 or float32
        Target and draft laws; None where the draft is not known.

    Notes
    -----
    Tokens of p = 0 are worth 0 here: each is proof by itself, and the support test's.
    """
    together = np.zeros(len(token), dtype=np.int64)
    return np.asarray(log_ratios_by(together, 1, prefix, token, law, draft)[0])


def log_ratios_by(
    group: Ints, groups: int, prefix: Ints, token: Ints, law: Floats, draft: Floats | None
) -> Floats:
    """As `log_ratios`, summed within each group of tokens, [n] -> [groups, C]."""
    total = np.zeros((groups, len(PRIOR)))
    for begin in range(0, len(token), TOKENS_AT_ONCE):
        cut = slice(begin, begin + TOKENS_AT_ONCE)
        np.add.at(total, group[cut], token_log_ratios(prefix[cut], token[cut], law, draft))
    return total


def pointwise(token_p: Floats, token_q: Floats) -> Floats:
    """As `log_ratios` from p(x) and q(x) of every token alone, where laws are not kept. [C]"""
    return np.asarray(pointwise_log_ratios(token_p, token_q).sum(axis=0))


def merge(sums: Iterable[Floats]) -> Floats:
    """Evidence of several batches, workers or nights together. Each [C] -> [C]"""
    return np.asarray(np.sum([np.zeros(len(PRIOR)), *sums], axis=0))


def log_e(sums: Floats) -> Floats:
    """Log of the mixture E of the tilts. [..., C] -> [...]"""
    return np.asarray(logsumexp(sums, axis=-1, b=PRIOR))


def posterior(sums: Floats) -> Floats:
    """How the evidence divides the mixture between the tilts. [C] -> [C], sums to 1"""
    return np.asarray(np.exp(np.log(PRIOR) + sums - log_e(sums)))


def dirichlet_log_ratios(counts: Ints, law: Floats) -> Floats:
    """Evidence for each concentration, from the counts per prefix. [r, V], [r, V] -> [A]

    Rows may be added over disjoint sets of prefixes; tokens of the same prefix must be counted
    together first.
    """
    row, token = np.nonzero((counts > 0) & (law > 0))
    seen = counts[row, token].astype(np.float64)
    return dirichlet_cells(row, seen, np.asarray(law[row, token], np.float64))


def dirichlet_cells(row: Ints, count: Floats, prob: Floats) -> Floats:
    """As `dirichlet_log_ratios` from the cells that were seen, [M] each. -> [A]"""
    total = np.bincount(row, count)
    total = total[total > 0]
    a = CONCENTRATIONS[:, None]
    prior = a * prob  # [A, M]
    cells = (gammaln(prior + count) - gammaln(prior) - count * np.log(prob)).sum(axis=1)
    return np.asarray(cells - (gammaln(a + total) - gammaln(a)).sum(axis=1))


def dirichlet_log_e(counts: Ints, law: Floats) -> float:
    """Log of the mixture E over the concentrations, evenly weighted. [r, V], [r, V]"""
    return mix_concentrations(dirichlet_log_ratios(counts, law))


def mix_concentrations(sums: Floats) -> float:
    """Log of the Dirichlet mixture E from its evidence. [A]"""
    return float(logsumexp(sums) - np.log(len(CONCENTRATIONS)))


def combine(tilts: float, dirichlet: float) -> float:
    """Log E of both families, with the prior split fixed beforehand."""
    return float(
        np.logaddexp(np.log1p(-DIRICHLET_SHARE) + tilts, np.log(DIRICHLET_SHARE) + dirichlet)
    )


def p_value(largest_log_e: float) -> float:
    """Anytime-valid p-value: min(1, 1 / E) at the largest E of all the looks taken."""
    return float(np.exp(-max(largest_log_e, 0.0)))
