"""How well a simulated candidate predicts the evidence's counts.

Both sides are counts of the same cells. With a Dirichlet prior on a row's law, updated by the
simulated counts, the evidence's row has a Dirichlet-multinomial (Polya) law; its logarithm is the
score, and differences of scores are log odds. A candidate that was simulated with as few tokens as
there are in evidence is thereby not trusted more than it deserves.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import stats
from scipy.special import gammaln

from conformance.diagnosis.cells import Counts
from conformance.law import Floats
from conformance.reference import Ints

PRIOR = 0.5  # Jeffreys
POOLED = 8  # cells expected less often than this are judged together


def polya(evidence: Ints, alpha: Floats) -> float:
    """Log probability of counts [..., C], row by row, under Dirichlet parameters [..., C]."""
    return float(_log_polya(evidence, alpha).sum())


def _log_polya(counts: Ints, alpha: Floats) -> Floats:
    """[..., C], [..., C] -> [...]"""
    total, n = alpha.sum(axis=-1), counts.sum(axis=-1)
    rows = gammaln(total) - gammaln(total + n)
    return np.asarray(rows + (gammaln(alpha + counts) - gammaln(alpha)).sum(axis=-1))


def predicted(simulated: Ints, exact: Ints) -> Floats:
    """Dirichlet parameters of a candidate's rows, [..., C], leaning on the exact engine's.

    Most faults leave most rows as they are. A row's law is taken to be near the exact engine's, as
    near as makes the simulated counts likeliest (an empirical Bayes choice of the prior's weight):
    where a fault changes nothing, simulation noise then counts neither for nor against it.

    Parameters
    ----------
    simulated : (..., C) int64
        Counts of the candidate.
    exact : (..., C) int64
        Counts of the exact engine, from as many tokens or more.
    """
    known = exact + PRIOR
    mass = known.sum(axis=-1, keepdims=True)
    prior = known / mass  # [..., C]
    weights = np.minimum(np.geomspace(1.0, 1e5, 11).reshape(-1, *[1] * known.ndim), mass)
    fits = _log_polya(simulated[None], weights * prior)  # [weights, ...]
    best = np.take_along_axis(weights[..., 0], fits.argmax(axis=0)[None], axis=0)[0]
    return np.asarray(best[..., None] * prior + simulated)


def score(evidence: Counts, simulated: Counts, exact: Counts, how_often: bool) -> float:
    """Log probability of the evidence under a candidate, up to a constant.

    The chain is: how often each stratum occurs, its cells, the output index given event and coarse
    cell, the prompt's coarse cells, and what ties requests together.

    Parameters
    ----------
    evidence, simulated, exact : Counts
        Of the engine, of the candidate, and of the exact engine.
    how_often : bool
        Whether frequencies of strata may be compared: only if the engine's blocks have as many
        proposals as the candidate's.
    """

    def part(table: Callable[[Counts], Ints]) -> float:
        return polya(table(evidence), predicted(table(simulated), table(exact)))

    out = part(lambda c: c.cells) + part(lambda c: c.index)
    # a weight of less than one: every token is in the tables above already
    out += part(lambda c: c.prompts) / len(evidence.prompts)
    if how_often:
        out += part(strata)
    for name, table in evidence.links.items():
        out += polya(table, np.asarray(simulated.links[name] + PRIOR, dtype=np.float64))
    return out


def strata(counts: Counts) -> Ints:
    """Tokens by stratum, flat. [EVENTS * POSITIONS]"""
    return np.asarray(counts.cells.sum(axis=-1).ravel())


def two_samples(a: Ints, b: Ints) -> tuple[float, int]:
    """Chi-square statistic and degrees of freedom of two rows of counts [C] being alike.

    Cells are pooled, rarest first, until each is expected `POOLED` times in either row.
    """
    na, nb = int(a.sum()), int(b.sum())
    if min(na, nb) < 2 * POOLED:
        return 0.0, 0
    both = a + b
    least = POOLED * (na + nb) / min(na, nb)
    big = both >= least
    rest = (int(a[~big].sum()), int(b[~big].sum()))
    x = np.append(a[big], rest[0]).astype(float)
    y = np.append(b[big], rest[1]).astype(float)
    if sum(rest) < least:  # too rare even together: with the rarest of the others
        if big.sum() < 2:
            return 0.0, 0
        smallest = int(np.argmin((x + y)[:-1]))
        x[smallest] += x[-1]
        y[smallest] += y[-1]
        x, y = x[:-1], y[:-1]
    if len(x) < 2:
        return 0.0, 0
    expected = np.outer([na, nb], (x + y) / (na + nb))
    return float(((np.stack([x, y]) - expected) ** 2 / expected).sum()), len(x) - 1


def fit(evidence: Counts, simulated: Counts, how_often: bool) -> float:
    """p-value of the evidence and the simulation being of one law, over strata and links."""
    rows = [
        (a, b)
        for a, b in zip(
            evidence.cells.reshape(-1, evidence.cells.shape[-1]),
            simulated.cells.reshape(-1, simulated.cells.shape[-1]),
            strict=True,
        )
    ]
    if how_often:
        rows.append((strata(evidence), strata(simulated)))
    rows += [(table, simulated.links[name]) for name, table in evidence.links.items()]
    found = [two_samples(a, b) for a, b in rows]
    df = sum(f[1] for f in found)
    return float(stats.chi2.sf(sum(f[0] for f in found), df)) if df else 1.0


def standardised(statistic: float, df: int) -> float:
    """A chi-square statistic as a number of standard deviations."""
    return (statistic - df) / np.sqrt(2 * df) if df else 0.0


def odds_in_words(nats: float) -> str:
    """Log odds as a person reads them."""
    tens = nats / np.log(10)
    return f"10^{tens:.0f} to 1" if tens >= 2 else f"{np.exp(nats):.2g} to 1"


def best_first(scores: dict[str, float]) -> list[str]:
    """Names by decreasing score."""
    return sorted(scores, key=lambda name: -scores[name])
