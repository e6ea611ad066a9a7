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
* a token so near to the edge of a filter that rounding may take it across may have its weight, or
  none.

So every weight has bounds, and so has the sum over all tokens that were not returned. That a
server's numbers vary is another matter, see `conformance.served.nodes`; here it says only what is
near an edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from conformance.decoding import Decoding, Dialect
from conformance.statistics.tables import Floats, Ints

MOST_TOKENS = 2**20  # of a vocabulary: bounds what tokens that were not returned can add up to
ROUNDING = 1e-5  # nats, of single precision and of the digits that are printed ...
MISSING = (
    1e-5  # ... and what it adds to the mass of tokens that were not returned, or takes from it
)


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
        return np.asarray(self.high / np.maximum(self.high + self.low.sum() - self.low, 1e-300))

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
    """Weights relative to the likeliest token's, while the warps are applied. Those that are left
    are the first ones, and the last of them may be 0: `low` is, where `high` is not.
    """

    log: Floats  # [C], descending
    low: Floats  # [C]
    high: Floats  # [C]
    noise: float  # of each, in nats
    rest_low: float  # of the sum over all other tokens
    rest_high: float
    next: float  # log of the largest weight that any of them may have

    def keep(self, sure: int, maybe: int, others: bool) -> None:
        """The first tokens are left surely, more of them may be, and so may be the `others`."""
        self.log, self.low, self.high = self.log[:maybe], self.low[:maybe], self.high[:maybe]
        self.low[sure:] = 0.0
        self.rest_low = 0.0
        if not others:
            self.rest_high, self.next = 0.0, -math.inf

    def edge(self, sure: int, maybe: int) -> tuple[int, int]:
        """The same numbers, with room for tokens that may change places across the edge."""
        values = [*self.log.tolist(), self.next]
        if sure < len(self.log) or self.rest_high > 0:
            above = values[sure] + 2 * self.noise
            sure = min(sure, int((self.log > above).sum()))
        if maybe:
            maybe = max(maybe, int((self.log >= values[maybe - 1] - 2 * self.noise).sum()))
        return max(sure, 0), maybe


def bounds(
    ids: Ints,
    logprobs: Floats,
    decoding: Decoding,
    dialect: Dialect,
    noise: float = 0.0,
    missing: tuple[float, float] | None = None,
) -> Bounds:
    """The law of a decoding from the likeliest tokens.

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
        How far a log-probability may be off, in nats, at the edge of a filter.
    missing : (float, float), optional
        The least and the most that all other tokens have together, 0 and 0 where there are no
        others; left out, what these leave.
    """
    if missing is None:
        left = 1.0 - float(np.exp(logprobs).sum())
        missing = (left - MISSING, left + MISSING)
    least, most = (max(x, 0.0) * math.exp(-float(logprobs[0])) for x in missing)
    log = logprobs - logprobs[0]
    state = _State(
        log=log,
        low=np.exp(log - ROUNDING),
        high=np.exp(log + ROUNDING),
        noise=max(noise, ROUNDING),
        rest_low=least,
        rest_high=most,
        next=min(float(log[-1]), math.log(most)) if most > 0 else -math.inf,
    )
    for name in dialect.order:
        if name == "temperature":
            _temperature(state, decoding.temperature)
        elif name == "top_k" and decoding.top_k is not None:
            _top_k(state, int(decoding.top_k))
        elif name == "top_p" and decoding.top_p is not None and decoding.top_p < 1:
            _top_p(state, decoding.top_p, dialect.top_p_crossing == "keep")
        elif name == "min_p" and decoding.min_p:
            _min_p(state, math.log(decoding.min_p))
    return Bounds(
        np.asarray(ids[: len(state.log)]),
        np.append(state.low, state.rest_low),
        np.append(state.high, state.rest_high),
    )


def _temperature(s: _State, temperature: float) -> None:
    a = 1 / temperature
    largest = math.exp(min(s.next + ROUNDING, 0.0))  # of the other tokens
    with np.errstate(under="ignore"):
        flat_low, flat_high = (_spread(r, a) for r in (s.rest_low, s.rest_high))
        thick_low, thick_high = (
            r * largest ** (a - 1) if r else 0.0 for r in (s.rest_low, s.rest_high)
        )
        s.low, s.high = s.low**a, s.high**a
    s.rest_low, s.rest_high = (flat_low, thick_high) if a >= 1 else (thick_low, flat_high)
    s.log, s.noise, s.next = s.log * a, s.noise * a, s.next * a
    if s.rest_high > 0:
        s.next = min(s.next, math.log(s.rest_high))


def _spread(mass: float, a: float) -> float:
    """Sum of the a-th powers of as many equal weights as there may be, of a given sum."""
    return float(mass**a * MOST_TOKENS ** (1 - a)) if mass else 0.0


def _top_k(s: _State, k: int) -> None:
    if k > len(s.log):
        if s.rest_high > 0:
            s.rest_low *= (k - len(s.log)) / MOST_TOKENS
        return
    sure, maybe = s.edge(k, k)
    # one that was not returned may be in the place of the last one
    others = s.rest_high > 0 and s.next >= float(s.log[k - 1]) - 2 * s.noise
    s.keep(sure, maybe, others)


def _top_p(s: _State, top_p: float, crossing: bool) -> None:
    # a token is judged by the share of those before it, or with itself; of lowest, and of highest
    shift = 1 if crossing else 0
    upto_low, upto_high = np.cumsum(s.low), np.cumsum(s.high)
    before_low = upto_low - s.low * shift
    before_high = upto_high - s.high * shift
    after_low = upto_low[-1] - before_low + s.rest_low
    after_high = upto_high[-1] - before_high + s.rest_high
    slack = math.exp(2 * s.noise)
    most = before_high / np.maximum(before_high + after_low / slack, 1e-300)
    least = before_low / np.maximum(before_low + after_high * slack, 1e-300)
    passed, failed = (most < top_p, least >= top_p) if crossing else (most <= top_p, least > top_p)
    sure = max(int(passed.sum()), 1) if s.low[0] > 0 else 0
    maybe = max(int((~failed).sum()), 1)
    others = maybe == len(s.log) and s.rest_high > 0
    sure, maybe = s.edge(sure, maybe)
    s.keep(max(sure, 1) if _alone(s) else sure, maybe, others)


def _alone(s: _State) -> bool:
    """Whether it is clear which token is the likeliest; that one is always kept."""
    following = float(s.log[1]) if len(s.log) > 1 else s.next
    return following < -2 * s.noise


def _min_p(s: _State, threshold: float) -> None:
    sure = int((s.log - threshold > 2 * s.noise).sum())
    maybe = max(int((s.log - threshold >= -2 * s.noise).sum()), 1)
    others = s.rest_high > 0 and s.next - threshold >= -2 * s.noise
    s.keep(max(sure, 1) if _alone(s) else sure, maybe, others)
