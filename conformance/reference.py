"""The reference: ordinary sampling and exact speculative sampling, to be read against the paper.

Leviathan, Kalman and Matias, *Fast Inference from Transformers via Speculative Decoding* (ICML
2023), Algorithm 1 and Appendix A.1, in the paper's letters: p is the target's law, q the draft's,
x a draft token, beta the acceptance probability.

Glossary (vLLM's words): a token is *accepted* when the draft proposed it and the rule kept it,
*recovered* when it replaces the first rejected proposal, *bonus* when it follows a block whose
proposals were all accepted.

A `Rule` is the pair (probability of accepting x, law of the recovered token). Written so, a rule
can be sampled and can be computed: `emitted_law` and `block_law` give the law it emits exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformance.errors import InvalidDistributionError
from conformance.law import Floats

Prefix = tuple[int, ...]
Model = Callable[[Prefix], Floats]  # the law of the next token at a prefix, [V]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rule:
    """An acceptance rule.

    Parameters
    ----------
    name : str
        Its name in the catalogue.
    accept : callable
        ``(p, q) -> a``, all [..., V]: the probability of accepting a proposed x is ``a[x]``.
    recover : callable
        ``(p, q) -> r``, all [..., V]: the law of the token drawn after a rejection.
    """

    name: str
    accept: Callable[[Floats, Floats], Floats]
    recover: Callable[[Floats, Floats], Floats]


def acceptance(p: Floats, q: Floats) -> Floats:
    """min(1, p/q), and 0 where q = 0 (never proposed). [..., V]"""
    return np.minimum(1.0, np.divide(p, q, out=np.zeros_like(p), where=q > 0))


def residual(p: Floats, q: Floats) -> Floats:
    """max(p - q, 0) normalised; p itself where nothing is left (p = q never rejects). [..., V]"""
    r = np.maximum(p - q, 0.0)
    mass = r.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(mass > 0, r / np.where(mass > 0, mass, 1.0), p))


EXACT = Rule("exact", acceptance, residual)


def ordinary_sampling(target: Model, prefix: Prefix, n: int, rng: np.random.Generator) -> Prefix:
    """Draw n tokens from the target, one at a time."""
    for _ in range(n):
        prefix = (*prefix, _draw(target(prefix), rng.random()))
    return prefix[-n:] if n else ()


def speculative_block(
    target: Model,
    draft: Model,
    prefix: Prefix,
    k: int,
    rng: np.random.Generator,
    rule: Rule = EXACT,
) -> tuple[Prefix, int]:
    """One block: k proposals, verified, and one recovered or bonus token.

    Returns
    -------
    tokens : tuple of int
        Between 1 and k + 1 emitted tokens.
    accepted : int
        How many of them are proposals.
    """
    x, q = prefix, []
    for _ in range(k):  # propose
        q.append(draft(x))
        x = (*x, _draw(q[-1], rng.random()))
    p = [target(x[: len(prefix) + i]) for i in range(k + 1)]  # verify, in parallel in an engine
    for i in range(k):
        here = x[len(prefix) + i]
        if rng.random() >= rule.accept(p[i], q[i])[here]:  # first rejection ends the block
            recovered = _draw(rule.recover(p[i], q[i]), rng.random())
            return (*x[len(prefix) : len(prefix) + i], recovered), i
    return (*x[len(prefix) :], _draw(p[k], rng.random())), k


def speculative_sampling(
    target: Model,
    draft: Model,
    prefix: Prefix,
    n: int,
    k: int,
    rng: np.random.Generator,
    rule: Rule = EXACT,
) -> Prefix:
    """Draw n tokens in blocks of k proposals; what crosses n is dropped."""
    out: Prefix = ()
    while len(out) < n:
        out += speculative_block(target, draft, prefix + out, k, rng, rule)[0]
    return out[:n]


def verify(
    p: Floats, q: Floats, x: Ints, coins: Floats, last: Floats, rule: Rule = EXACT
) -> tuple[Ints, Ints]:
    """Verify B blocks at once, with the random numbers given.

    Parameters
    ----------
    p : (B, K + 1, V) float64
        Target laws at the K proposals and after them.
    q : (B, K, V) float64
        Draft laws.
    x : (B, K) int64
        Proposed tokens.
    coins : (B, K) float64
        Uniforms that decide acceptance.
    last : (B,) float64
        Uniforms for the recovered or bonus token.

    Returns
    -------
    tokens : (B, K + 1) int64
        Emitted tokens, padded with -1.
    accepted : (B,) int64
        Accepted proposals per block.
    """
    k = x.shape[1]
    a = np.take_along_axis(rule.accept(p[:, :k], q), x[..., None], axis=-1)[..., 0]  # [B, K]
    accepted = np.cumprod(coins < a, axis=1).sum(axis=1)  # [B]
    rows = np.arange(len(x))
    at = np.minimum(accepted, k - 1)
    recovered = rule.recover(p[rows, at], q[rows, at])
    law = np.where((accepted == k)[:, None], p[:, k], recovered)  # bonus or recovered, [B, V]
    kept = np.where(np.arange(k) < accepted[:, None], x, -1)
    tokens = np.concatenate([kept, np.full((len(x), 1), -1)], axis=1)
    tokens[rows, accepted] = draw(law, last)
    return tokens, accepted


def draw(law: Floats, u: Floats) -> Ints:
    """Inverse-CDF sampling: one token a row, [B, V] and [B] -> [B]. Never a token of law 0."""
    cdf = np.cumsum(law, axis=-1)
    # scaled by the row's own total, so that a sum of 1 - 1e-16 cannot push u past the end
    beyond = cdf <= (u * cdf[:, -1])[:, None]
    return np.asarray(beyond.sum(axis=-1), dtype=np.int64)


def _draw(law: Floats, u: float) -> int:
    return int(draw(law[None], np.array([u]))[0])


# --- the law that a rule emits --------------------------------------------------------------------


def emitted_law(p: Floats, q: Floats, rule: Rule = EXACT) -> Floats:
    """Law of the token a rule emits where one proposal from q meets p. [..., V]

    ``q a + (1 - beta) r`` with ``beta = sum q a``; equals p for the exact rule (Appendix A.1).

    Examples
    --------
    The worked example of the background text: accepted .3 + .4, rejected .3, all of it to B.

    >>> p, q = np.array([0.3, 0.7]), np.array([0.6, 0.4])
    >>> (q * acceptance(p, q)).round(12).tolist(), residual(p, q).tolist()
    ([0.3, 0.4], [0.0, 1.0])
    >>> emitted_law(p, q).round(12).tolist()
    [0.3, 0.7]

    Accepting everything emits the draft's law instead.

    >>> always = Rule("accept-all", lambda p, q: np.ones_like(p), residual)
    >>> emitted_law(p, q, always).round(12).tolist()
    [0.6, 0.4]
    """
    kept = q * rule.accept(p, q)
    rejected = 1.0 - kept.sum(axis=-1, keepdims=True)
    return np.asarray(kept + rejected * rule.recover(p, q))


def block_law(
    target: Model, draft: Model, prefix: Prefix, k: int, rule: Rule = EXACT
) -> dict[Prefix, float]:
    """Probability of every token string that one block can emit, computed by enumeration."""
    law: dict[Prefix, float] = {}

    def walk(done: Prefix, probability: float) -> None:
        p = target(prefix + done)
        if len(done) == k:
            ends = probability * p
        else:
            q = draft(prefix + done)
            kept = q * rule.accept(p, q)
            ends = probability * (1.0 - kept.sum()) * rule.recover(p, q)
            for x in np.flatnonzero(kept):
                walk((*done, int(x)), probability * float(kept[x]))
        for x in np.flatnonzero(ends):
            string = (*done, int(x))
            law[string] = law.get(string, 0.0) + float(ends[x])

    walk((), 1.0)
    return law


def continued_law(
    target: Model, draft: Model, prefix: Prefix, k: int, n: int, rule: Rule = EXACT
) -> Iterator[tuple[Prefix, float, float]]:
    """For every string of n tokens: its probability under one block continued by ordinary
    sampling, and its probability under the target alone.

    A block of k proposals emits between 1 and k + 1 tokens, so strings are compared at a length
    n >= k + 1 that every block is continued to.
    """
    emitted = block_law(target, draft, prefix, k, rule)
    size = len(target(prefix))
    for string in itertools.product(range(size), repeat=n):
        steps = [float(target(prefix + string[:i])[string[i]]) for i in range(n)]
        through_block = sum(
            emitted.get(string[:m], 0.0) * float(np.prod(steps[m:])) for m in range(1, k + 2)
        )
        yield string, through_block, float(np.prod(steps))


def check_distribution(values: ArrayLike, name: str) -> Floats:
    """Return the values as a float64 law, or say what is wrong with them.

    Raises
    ------
    InvalidDistributionError
        If they are not at least one finite number >= 0 that sum to 1 within 1e-6.
    """
    law = np.asarray(values, dtype=np.float64)
    if law.ndim != 1 or law.size == 0 or not np.isfinite(law).all():
        raise InvalidDistributionError(f"{name} needs finite numbers, one for each token")
    if (law < 0).any():
        raise InvalidDistributionError(f"{name} has a negative probability: {law.min():g}")
    if abs(law.sum() - 1) > 1e-6:
        raise InvalidDistributionError(f"{name} sums to {law.sum():g}, not to 1")
    return np.asarray(law / law.sum())
