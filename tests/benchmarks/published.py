"""Published tests whole: their own laws, their own N, their own threshold (see `incumbents`).

A run of a design draws laws as the published test does, lets a rule emit tokens, and is rejected
or not. N can be multiplied, to see how many samples the same test would have needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from benchmarks.incumbents import (
    FIRST,
    Counts,
    kl_difference,
    l2_ratio,
    pooled_pearson,
)
from benchmarks.laws import Pair, make_pair, softmax, total_variation
from conformance.law import Floats
from conformance.reference import Rule, emitted_law

IMPROVEMENT = 20
SIGMAS = 10.0
KL_LIMIT = 0.01
LEVEL = 0.05  # of the permutation test
PROMPTS, COMPLETIONS, LENGTH, PERMUTATIONS = 25, 10, 50, 199
ASYMPTOTIC = 1e-6  # level at which Pearson's asymptotic p-value is compared


def law_of(pair: Pair, rule: Rule) -> Floats:
    """The law a rule emits, rounding below 0 cut off. [V]"""
    law = np.maximum(emitted_law(pair.p, pair.q, rule), 0.0)
    return np.asarray(law / law.sum())


@dataclass(frozen=True, slots=True)
class Design:
    """A published test.

    Parameters
    ----------
    name : str
        Whose it is.
    trials : str
        Its published size, in words.
    tokens : int
        Tokens of the engine that one run looks at, about.
    pair : callable
        Draws the laws of one run.
    rejects : callable
        ``(pair, rule, multiple, rng)``: one run, with N multiplied.
    emitted : callable
        ``(pair, rule)``: the law of the token that a rule emits on a pair of this design.
    doublings : int
        How far N is doubled at most.
    """

    name: str
    trials: str
    tokens: int
    pair: Callable[[np.random.Generator], Pair]
    rejects: Callable[[Pair, Rule, int, np.random.Generator], bool]
    emitted: Callable[[Pair, Rule], Floats] = law_of
    doublings: int = 10


def _pair(p: Floats, q: Floats) -> Pair:
    return Pair(p, q, total_variation(p, q))


def _blocks(pair: Pair, rule: Rule, n: int, k: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Counts at each of k positions of n blocks, a position being reached only if the proposals
    before it were accepted, and at the bonus position. k + 1 of [V]
    """
    kept = pair.q * rule.accept(pair.p, pair.q)
    ends = (1 - kept.sum()) * rule.recover(pair.p, pair.q)
    cells = np.maximum(np.concatenate([kept, ends]), 0)
    out = []
    for _ in range(k):
        counts = rng.multinomial(n, cells / cells.sum())
        out.append(counts[: pair.vocab] + counts[pair.vocab :])
        n = int(counts[: pair.vocab].sum())
    return [*out, rng.multinomial(n, pair.p)]


# --- vLLM -----------------------------------------------------------------------------------------


def _uniform_logits(rng: np.random.Generator) -> Pair:
    return _pair(*softmax(rng.random((2, 10))))


def _l2(pair: Pair, rule: Rule, multiple: int, rng: np.random.Generator) -> bool:
    samples = [
        np.sum(_blocks(pair, rule, n, 2, rng)[:2], axis=0)[None]
        for n in (FIRST, 100_000 * multiple)
    ]
    ratio = l2_ratio(Counts(samples[1], samples[0], samples[0]), pair.p, rng)
    return bool(ratio[0] >= 1 / IMPROVEMENT)


def _normal_logits(temperature: float) -> Callable[[np.random.Generator], Pair]:
    return lambda rng: _pair(*softmax(rng.standard_normal((2, 4096)) / temperature))


def _chi_square(pair: Pair, rule: Rule, multiple: int, rng: np.random.Generator) -> bool:
    """The laws at the other temperature are those of the same logits."""
    for temperature in (1.0, 0.6):
        p, q = (softmax(np.log(x) / temperature) for x in (pair.p, pair.q))
        for k in (1, 3):
            for counts in _blocks(_pair(p, q), rule, 40_960 * multiple, k, rng):
                if counts.sum() == 0:
                    continue
                x2, df = pooled_pearson(counts[None], p)
                if df > 0 and x2[0] >= df + SIGMAS * np.sqrt(2 * df):
                    return True
    return False


# --- transformers ---------------------------------------------------------------------------------


def _fixed_logits(_: np.random.Generator) -> Pair:
    target, draft = np.full(10, -np.inf), np.full(10, -10.0)
    target[[1, 3, 7, 8]] = 2.0, 1.0, -0.01, 2.0
    draft[5] = 10.0
    return _pair(softmax(target), softmax(draft))


def _given(pair: Pair, rule: Rule) -> Floats:
    """The proposal is given, token 5, whatever q is."""
    a = float(rule.accept(pair.p, pair.q)[5])
    law = (1 - a) * rule.recover(pair.p, pair.q)
    law[5] += a
    return np.asarray(law / law.sum())


def _order(pair: Pair, rule: Rule, multiple: int, rng: np.random.Generator) -> bool:
    c = rng.multinomial(10_000 * multiple, _given(pair, rule))
    outside = int(c.sum() - c[[1, 3, 7, 8]].sum())
    return not (outside == 0 and c[1] > c[3] > c[7] > 0 and c[8] > c[3])


# --- TensorRT-LLM ---------------------------------------------------------------------------------


def _uniform_top(rng: np.random.Generator) -> Pair:
    x = rng.random((2, 500))
    x[x < np.sort(x, axis=1)[:, [400]]] = 0
    return _pair(*(x / x.sum(axis=1, keepdims=True)))


def _kl(pair: Pair, rule: Rule, multiple: int, rng: np.random.Generator) -> bool:
    n = 50_000 * multiple
    tested = rng.multinomial(n, law_of(pair, rule))[None]
    reference = rng.multinomial(n, pair.p)[None]
    return bool(kl_difference(Counts(tested, tested, reference), pair.p, rng)[0] >= KL_LIMIT)


# --- generic tests --------------------------------------------------------------------------------


def _heavy_tail(rng: np.random.Generator) -> Pair:
    return make_pair(4096, 0.25, int(rng.integers(1 << 31)))


def _asymptotic(pair: Pair, rule: Rule, multiple: int, rng: np.random.Generator) -> bool:
    n = 40_960 * multiple
    counts = rng.multinomial(n, law_of(pair, rule))
    x2 = float(((counts - n * pair.p) ** 2 / (n * pair.p)).sum())
    return bool(stats.chi2.sf(x2, pair.vocab - 1) <= ASYMPTOTIC)


def _permutation(pair: Pair, rule: Rule, multiple: int, rng: np.random.Generator) -> bool:
    """Completions of one prompt are compared with completions of that prompt only, and labels are
    permuted within a prompt; every prompt has a pair of its own.
    """
    n = COMPLETIONS * multiple
    statistic = np.zeros(PERMUTATIONS + 1)
    sign = np.repeat([1, -1], n)
    for i in range(PROMPTS):
        own = pair if i == 0 else _heavy_tail(rng)
        laws = (law_of(own, rule), own.p)
        x = np.concatenate([rng.choice(own.vocab, (n, LENGTH), p=w) for w in laws])
        kernel = (x[:, None] == x[None]).sum(axis=-1).astype(float)  # [2n, 2n]
        np.fill_diagonal(kernel, 0)
        labels = np.stack([sign, *(rng.permutation(sign) for _ in range(PERMUTATIONS))])
        between = -(labels @ kernel * labels).sum(axis=1)  # within minus between, up to weights
        total = kernel.sum()
        same, cross = (total - between) / 2, (total + between) / 2
        statistic += same / (n * (n - 1)) - cross / n**2
    p_value = (statistic >= statistic[0] - 1e-12).sum() / (PERMUTATIONS + 1)
    return bool(p_value <= LEVEL)


DESIGNS = (
    Design("vLLM, L2 ratio", "100,000 trials of 2 proposals", 180_000, _uniform_logits, _l2),
    Design(
        "vLLM, chi-square",
        "40,960 trials of 1 and 3 proposals at 2 temperatures",
        290_000,
        _normal_logits(1.0),
        _chi_square,
    ),
    Design("transformers, order of counts", "10,000 trials", 10_000, _fixed_logits, _order, _given),
    Design("TensorRT-LLM, KL difference", "50,000 trials", 50_000, _uniform_top, _kl),
    Design(
        f"Pearson, every token, asymptotic p at {ASYMPTOTIC:g}",
        "40,960 tokens",
        40_960,
        _heavy_tail,
        _asymptotic,
    ),
    Design(
        "Hamming MMD, permutation at 0.05",
        f"{COMPLETIONS} completions of {LENGTH} tokens for each of {PROMPTS} prompts",
        COMPLETIONS * LENGTH * PROMPTS,
        _heavy_tail,
        _permutation,
        doublings=2,
    ),
)
