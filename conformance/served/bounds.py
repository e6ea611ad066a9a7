"""What the most likely tokens, and how likely they are, tell of a law.

A server returns the K likeliest next tokens with their log-probabilities, of the plain softmax. The
law of a decoding is warped from it, and is known where its warps need nothing else:

* no filter, temperature 1: K cells and one for all other tokens, exactly.
* a filter whose edge lies among the K tokens (top-k below K; a nucleus that they hold; a threshold
  of min-p above the last of them): exactly, at any temperature, since only ratios of tokens that
  are kept matter. A top-p *after* a temperature also needs the normaliser, see the next line.
* another temperature: the normaliser needs the other tokens. Each of them is no likelier than the
  last one returned, m, and together they have the mass R that is missing. With a = 1 / T >= 1 their
  weights p^a add up to at most R m^(a-1), which is little; with a < 1 they add up to as much as
  N^(1-a) R^a, which is much. So the law is known within bounds, and these may be wide.

Everything is done with bounds: of each token's weight (it is known up to `noise`, which repeats of
the same question tell) and of the sum over all others. If an edge of a filter may lie on either
side of a token, nothing is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from conformance.decoding import Decoding, Dialect
from conformance.statistics.tables import Floats, Ints

MOST_TOKENS = 2**20  # of a vocabulary: bounds what tokens that were not returned can add up to
LEAST_NOISE = 1e-5  # nats: single precision, and the digits that are printed
MISSING = 1e-5  # mass that rounding may add to the tokens that were not returned, or take from them


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Bounds of a law on C tokens and the rest.

    Parameters
    ----------
    ids : (C,) int64
        Tokens, most likely first.
    low, high : (C + 1,) float64
        Bounds of weights that are not normalised; the last is that of all other tokens together.
    """

    ids: Ints
    low: Floats
    high: Floats

    @property
    def probs(self) -> Floats:
        """The law in the middle of the bounds. [C + 1]"""
        middle = (self.low + self.high) / 2
        return np.asarray(middle / middle.sum())

    @property
    def most(self) -> Floats:
        """The largest probability that each may have. [C + 1]"""
        return np.asarray(self.high / (self.high + self.low.sum() - self.low))

    @property
    def least(self) -> Floats:
        """The smallest. [C + 1]"""
        return np.asarray(self.low / np.maximum(self.low + self.high.sum() - self.high, 1e-300))

    @property
    def width(self) -> float:
        """No two laws within the bounds are further apart than this, in total variation."""
        return float((self.most - self.least).sum() / 2)


@dataclass(slots=True)
class _State:
    """Weights relative to the likeliest token's, while the warps are applied."""

    log: Floats  # [C], descending
    noise: float  # of each, in nats
    low: float  # of the sum over all other tokens
    high: float
    next: float  # log of the largest weight that any of them may have

    def cut(self, kept: int) -> None:
        """Nothing after the first `kept` is left."""
        self.log, self.low, self.high, self.next = self.log[:kept], 0.0, 0.0, -math.inf

    def fewer(self) -> None:
        """Some of the others may be left, or none."""
        self.low = 0.0


def bounds(
    ids: Ints,
    logprobs: Floats,
    decoding: Decoding,
    dialect: Dialect,
    noise: float = 0.0,
    missing: tuple[float, float] | None = None,
) -> Bounds | str:
    """The law of a decoding from the likeliest tokens, or why it is not known.

    Parameters
    ----------
    ids : (K,) int64
        The likeliest tokens, most likely first.
    logprobs : (K,) float64
        Their log-probabilities at temperature 1 without a filter, natural logarithms.
    decoding : Decoding
        Sampling, not greedy.
    dialect : Dialect
        How the server warps.
    noise : float
        How far each log-probability may be off, in nats.
    missing : (float, float), optional
        The least and the most that all other tokens have together; left out, what these leave.
    """
    if missing is None:
        left = max(1.0 - float(np.exp(logprobs).sum()), 0.0)
        missing = (left, left)
    scale = math.exp(-float(logprobs[0]))
    high = (missing[1] + MISSING) * scale
    log = logprobs - logprobs[0]
    state = _State(
        log=log,
        noise=max(noise, LEAST_NOISE),
        low=max(missing[0] - MISSING, 0.0) * scale,
        high=high,
        next=min(float(log[-1]), math.log(high)),
    )
    for name in dialect.order:
        clear = True
        if name == "temperature":
            _temperature(state, decoding.temperature)
        elif name == "top_k" and decoding.top_k is not None:
            clear = _top_k(state, int(decoding.top_k))
        elif name == "top_p" and decoding.top_p is not None and decoding.top_p < 1:
            clear = _top_p(state, decoding.top_p, dialect.top_p_crossing == "keep")
        elif name == "min_p" and decoding.min_p:
            clear = _min_p(state, math.log(decoding.min_p))
        if not clear:
            return f"the edge of {name} is too near to a token"
    weight = np.append(np.exp(state.log), 0.0)
    slack = math.exp(state.noise)
    low, high_weight = weight / slack, weight * slack
    low[-1], high_weight[-1] = state.low / slack, state.high * slack
    return Bounds(np.asarray(ids[: len(state.log)]), low, high_weight)


def _temperature(s: _State, temperature: float) -> None:
    a = 1 / temperature
    largest = math.exp(min(s.next + s.noise, 0.0))  # of the other tokens
    with np.errstate(under="ignore"):
        flat_low, flat_high = (_spread(r, a) for r in (s.low, s.high))
        thick_low, thick_high = (r * largest ** (a - 1) if r else 0.0 for r in (s.low, s.high))
    s.low, s.high = (flat_low, thick_high) if a >= 1 else (thick_low, flat_high)
    s.log, s.noise, s.next = s.log * a, s.noise * a, s.next * a
    if s.high > 0:
        s.next = min(s.next, math.log(s.high))


def _spread(mass: float, a: float) -> float:
    """Sum of the a-th powers of as many equal weights as there may be, of a given sum."""
    return float(mass**a * MOST_TOKENS ** (1 - a)) if mass else 0.0


def _top_k(s: _State, k: int) -> bool:
    if k > len(s.log):
        s.low = min(s.low, s.low * (k - len(s.log)) / MOST_TOKENS)
        return True
    following = float(s.log[k]) if k < len(s.log) else s.next
    if float(s.log[k - 1]) - following <= 2 * s.noise:
        return False
    s.cut(k)
    return True


def _top_p(s: _State, top_p: float, crossing: bool) -> bool:
    weight = np.exp(s.log)
    upto = np.cumsum(weight)
    above = upto - weight if crossing else upto  # what a token is judged by
    after = upto[-1] - above
    slack = math.exp(2 * s.noise)
    with np.errstate(divide="ignore"):
        most = above / (above + (after + s.low) / slack)
        least = above / (above + (after + s.high) * slack)
    keep, drop = (most < top_p, least >= top_p) if crossing else (most <= top_p, least > top_p)
    keep[0], drop[0] = True, False
    kept = int(keep.sum())
    if not (keep | drop).all():
        return False
    if kept < len(s.log):
        if float(s.log[kept - 1] - s.log[kept]) <= 2 * s.noise:
            return False
        s.cut(kept)
    elif s.high > 0:
        s.fewer()
    return True


def _min_p(s: _State, threshold: float) -> bool:
    keep = s.log - threshold > 2 * s.noise
    drop = s.log - threshold < -2 * s.noise
    keep[0] = True
    if not (keep | drop).all():
        return False
    kept = int(keep.sum())
    if kept < len(s.log) or s.next - threshold < -2 * s.noise:
        s.cut(kept)
    elif s.high > 0:
        s.fewer()
    return True
