"""What others use to test the same thing, as statistics of token counts.

Each is the idea and the published size and threshold of a test, written anew. A `Statistic` can be
asked of any pair of laws, so that it can be held to any false-alarm rate by simulation of exact
samplers; a `Design` is a published test whole: its own laws, its own N, its own threshold.

- vLLM, tests/v1/sample/test_rejection_sampler.py: vocabulary 10, two proposals a trial, trials in
  five sizes from 10 to 100,000; the L2 distance to the target must shrink 20 times more than that
  to 100 random laws. The bonus token is not looked at.
- vLLM, tests/v1/spec_decode/test_rejection_sampler_utils.py: vocabulary 4096, 40,960 trials of one
  or three proposals at two temperatures, Pearson's statistic < df + 10 sqrt(2 df) at every
  position, cells expected fewer than 5 times pooled.
- Hugging Face transformers, tests/generation/test_utils.py, the test of the target's distribution:
  one fixed pair, 10,000 trials, no token outside the four possible ones, and their counts' order.
- TensorRT-LLM's test of rejected indices: vocabulary 500 of which 100 are possible, 50,000 trials,
  |KL(p || sampled) - KL(p || sampled from p)| < 0.01.
- Model equality testing (Gao, Liang, Guestrin 2024, arXiv 2410.20247): maximum mean discrepancy
  with a Hamming kernel between completions and reference completions, 10 samples a prompt, judged
  by permutation. 25 prompts, 50 tokens and a level of 0.05 are our reading of its experiments.
- Pearson's chi-square over every token with its asymptotic p-value, as scipy.stats.chisquare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import rel_entr

from benchmarks.laws import softmax
from conformance.law import Floats

FIRST = 10  # vLLM's smallest sample, that distances are compared with
REFERENCES = 100
IMPROVEMENT = 20
POOLED_BELOW = 5.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of B samplers.

    Parameters
    ----------
    tested : (B, V) int64
        What the engine emitted.
    first : (B, V) int64
        A further sample of `FIRST` tokens of the engine.
    reference : (B, V) int64
        As many tokens as `tested`, drawn from the target.
    """

    tested: np.ndarray
    first: np.ndarray
    reference: np.ndarray


Statistic = Callable[[Counts, Floats, np.random.Generator], Floats]  # large means different, [B]


def draw_counts(
    n: int, emitted: Floats, target: Floats, size: int, rng: np.random.Generator
) -> Counts:
    """Counts of `size` samplers that emit `emitted`, n tokens each."""
    return Counts(
        rng.multinomial(n, emitted, size=size),
        rng.multinomial(FIRST, emitted, size=size),
        rng.multinomial(n, target, size=size),
    )


def l2_ratio(counts: Counts, p: Floats, rng: np.random.Generator) -> Floats:
    """vLLM's first: shrinkage of the distance to random laws over that to the target; published
    limit 1 / 20. [B]
    """
    few, many = (
        c / c.sum(axis=1, keepdims=True) for c in (counts.first, counts.tested)
    )  # [B, V] each
    laws = softmax(rng.random((REFERENCES, len(p))))
    middle, spread = laws.sum(axis=0), float((laws**2).sum())

    def to_references(x: Floats) -> Floats:
        square = (x**2).sum(axis=1)
        return np.asarray(np.sqrt(REFERENCES * square - 2 * x @ middle + spread))

    def to_target(x: Floats) -> Floats:
        return np.asarray(np.linalg.norm(x - p, axis=1))

    target = to_target(few) / to_target(many)
    return np.asarray(to_references(few) / to_references(many) / target)


def pooled_pearson(tested: np.ndarray, p: Floats) -> tuple[Floats, int]:
    """vLLM's second: Pearson's statistic, cells expected fewer than 5 times pooled and the pool
    left out if it is itself; and its degrees of freedom. [B, V] -> [B]
    """
    n = tested.sum(axis=1)
    assert (n == n[0]).all()
    expected = n[0] * p
    large = expected >= POOLED_BELOW
    rest = float(expected[~large].sum())
    cells = ((tested[:, large] - expected[large]) ** 2 / expected[large]).sum(axis=1)
    df = int(large.sum()) - 1
    if rest >= POOLED_BELOW:
        cells = cells + (tested[:, ~large].sum(axis=1) - rest) ** 2 / rest
        df += 1
    return np.asarray(cells), df


def pearson_pooled(counts: Counts, p: Floats, rng: np.random.Generator) -> Floats:
    """As a statistic in units of the published limit: (X2 - df) / sqrt(2 df), limit 10. [B]"""
    x2, df = pooled_pearson(counts.tested, p)
    return (x2 - df) / np.sqrt(2 * df) if df > 0 else np.zeros(len(x2))


def pearson_plain(counts: Counts, p: Floats, rng: np.random.Generator) -> Floats:
    """Pearson's statistic over every token, standardised in the same way. [B]"""
    expected = counts.tested.sum(axis=1, keepdims=True) * p
    x2 = ((counts.tested - expected) ** 2 / expected).sum(axis=1)
    df = len(p) - 1
    return np.asarray((x2 - df) / np.sqrt(2 * df))


def kl_difference(counts: Counts, p: Floats, rng: np.random.Generator) -> Floats:
    """TensorRT-LLM's: |KL(p || sampled) - KL(p || sampled from p)|, published limit 0.01. Infinite
    where a possible token was not sampled, as the difference is not a number then. [B]
    """
    kl = [
        rel_entr(p, c / c.sum(axis=1, keepdims=True)).sum(axis=1)
        for c in (counts.tested, counts.reference)
    ]
    with np.errstate(invalid="ignore"):
        difference = np.abs(kl[0] - kl[1])
    return np.where(np.isnan(difference), np.inf, difference)


def hamming_mmd(counts: Counts, p: Floats, rng: np.random.Generator) -> Floats:
    """Unbiased squared maximum mean discrepancy under the kernel [x = y], a completion of one
    token; two samples of the same size. [B]
    """
    a, b = counts.tested.astype(float), counts.reference.astype(float)
    n = a.sum(axis=1)
    within = ((a**2).sum(axis=1) + (b**2).sum(axis=1) - 2 * n) / (n * (n - 1))
    return np.asarray(within - 2 * (a * b).sum(axis=1) / n**2)


STATISTICS: dict[str, Statistic] = {
    "vLLM, L2 ratio": l2_ratio,
    "vLLM, chi-square": pearson_pooled,
    "TensorRT-LLM, KL difference": kl_difference,
    "Pearson, every token": pearson_plain,
    "Hamming MMD": hamming_mmd,
}
