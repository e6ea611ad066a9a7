"""Faults of where: which positions of a block, an output or a batch are handled wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.faults.fault import NO_THREAD, Fault, Span
from conformance.faults.probabilities import rounded
from conformance.faults.rules import RULES, normalised, one_hot
from conformance.faults.steps import Block, Emitted, Steps, judged
from conformance.law import Bools, Floats
from conformance.reference import acceptance, draw, residual, verify

LONGEST_BLOCK = 16
ACCEPT_ALL = RULES[0].rule()
assert ACCEPT_ALL is not None


def power(p: Floats, exponent: Floats | float) -> Floats:
    """P sharpened: raised to a power and normalised. [..., V]"""
    return normalised(np.where(p > 0, np.maximum(p, 1e-300) ** exponent, 0.0), p)


# --- positions of a block -------------------------------------------------------------------------


def _first_unverified(b: Block) -> Emitted:
    coins = b.coins.copy()
    coins[:, 0] = -1.0  # below every acceptance probability
    return judged(replace(b, coins=coins))


def _holes(b: Block) -> Emitted:
    """Acceptances are summed over the block instead of up to the first rejection."""
    a = np.take_along_axis(acceptance(b.p[:, : b.k], b.q), b.drafts[..., None], axis=-1)[..., 0]
    passed = (b.coins < a).sum(axis=1)
    coins = np.where(np.arange(b.k) < passed[:, None], -1.0, 2.0)
    return judged(replace(b, coins=coins))


def _bonus(law: Callable[[Block], Floats]) -> Steps:
    def verify(b: Block) -> Emitted:
        p = b.p.copy()
        p[:, b.k] = law(b)
        return judged(replace(b, p=p))

    return Steps(verify=verify)


def _zeroed_proposal(b: Block) -> Emitted:
    """P without the rejected token, renormalised: right for a one-hot draft only."""
    e = judged(b)
    rows = np.flatnonzero(e.accepted < b.k)
    at = e.accepted[rows]
    p = b.p[rows, at] * (1 - one_hot(b.drafts[rows, at], b.p.shape[-1]))
    e.tokens[rows, at] = draw(normalised(p, b.p[rows, at]), b.last[rows])
    return e


def _recovered_from_last(b: Block) -> Emitted:
    e = judged(b)
    rows = np.flatnonzero(e.accepted < b.k)
    law = residual(b.p[rows, b.k - 1], b.q[rows, b.k - 1])
    e.tokens[rows, e.accepted[rows]] = draw(law, b.last[rows])
    return e


def _recovered_from_next(b: Block) -> Emitted:
    """The row after the rejected proposal: its law takes the proposal for emitted."""
    e = judged(b)
    rows = np.flatnonzero(e.accepted < b.k)
    e.tokens[rows, e.accepted[rows]] = draw(b.p[rows, e.accepted[rows] + 1], b.last[rows])
    return e


def _own_sample_ratio(b: Block) -> Emitted:
    """Accept if u <= q(x) / p(y), where y is a token that the target drew by itself."""
    y = np.stack([draw(b.p[:, i], b.extra[:, i]) for i in range(b.k)], axis=1)  # [B, K]
    q_x = np.take_along_axis(b.q, b.drafts[..., None], axis=-1)[..., 0]
    p_y = np.take_along_axis(b.p[:, : b.k], y[..., None], axis=-1)[..., 0]
    return _accepting(b.coins * p_y <= q_x, replace(b, coins=np.full_like(b.coins, 2.0)))


# --- positions of an output -----------------------------------------------------------------------


def _sharpened_every(period: float) -> Steps:
    def verify(b: Block) -> Emitted:
        hit = b.index % int(period) == int(period) - 1
        return judged(replace(b, p=np.where(hit[..., None], power(b.p, 1.5), b.p)))

    return Steps(verify=verify)


def _drift(rate: float) -> Steps:
    def verify(b: Block) -> Emitted:
        return judged(
            replace(b, p=power(b.p, np.asarray(1.0 + rate * b.index[..., None], dtype=np.float64)))
        )

    return Steps(verify=verify)


def _accepting(where: Bools, b: Block) -> Emitted:
    """Accept every proposal of the blocks, or of the positions, where `where` holds."""
    coins = np.where(where, -1.0, b.coins)
    return judged(replace(b, coins=coins))


def _after(n: float) -> Steps:
    return Steps(verify=lambda b: _accepting(b.index[:, : b.k] >= n, b))


def _some_prompts(share: float) -> Steps:
    def verify(b: Block) -> Emitted:
        weights = 2 * np.arange(b.prompts.shape[1]) + 1
        mixed = (b.prompts @ weights) * 0.6180339887498949 % 1.0  # spread evenly over [0, 1)
        return _accepting((mixed < share)[:, None], b)

    return Steps(verify=verify)


def _after_some_tokens(share: float) -> Steps:
    def verify(b: Block) -> Emitted:
        return _accepting((b.before < share * b.p.shape[-1])[:, None], b)

    return Steps(verify=verify)


# --- greedy where sampling was asked --------------------------------------------------------------


def _greedy_verifier(b: Block) -> Emitted:
    p = b.p.copy()
    p[:, : b.k] = one_hot(b.p[:, : b.k].argmax(axis=-1), b.p.shape[-1])
    return judged(replace(b, p=p, q=one_hot(b.drafts, b.p.shape[-1])))


def _silent_greedy(b: Block) -> Emitted:
    hot = one_hot(b.p.argmax(axis=-1), b.p.shape[-1])
    return judged(replace(b, p=hot, q=one_hot(b.drafts, b.p.shape[-1])))


# --- draws of low precision -----------------------------------------------------------------------


def _low_precision_draw(bits: float) -> Steps:
    def verify(b: Block) -> Emitted:
        e = judged(b)
        rows, k = np.arange(len(b.last)), b.k
        at = np.minimum(e.accepted, k - 1)
        law = np.where(
            (e.accepted == k)[:, None], b.p[:, k], residual(b.p[rows, at], b.q[rows, at])
        )
        cdf = np.zeros(law.shape[:1])
        steps = []
        for x in range(law.shape[1]):  # every partial sum is rounded before the next is added
            cdf = rounded(cdf + rounded(law[:, x], int(bits)), int(bits))
            steps.append(cdf)
        sums = np.stack(steps, axis=-1)  # [B, V]
        drawn = (sums <= b.last[:, None] * sums[:, -1:]).sum(axis=-1)
        e.tokens[rows, e.accepted] = np.minimum(drawn, law.shape[1] - 1)
        return e

    return Steps(verify=verify)


def _coarse_uniforms(bits: float) -> Steps:
    def verify(b: Block) -> Emitted:
        return judged(replace(b, coins=coarse(b.coins, bits), last=coarse(b.last, bits)))

    return Steps(verify=verify)


def coarse(u: Floats, bits: float) -> Floats:
    """Uniforms on a grid of 2**bits values, 0 among them."""
    return np.asarray(np.floor(np.ldexp(u, int(bits))) / 2.0**bits)


def _zero_coin(bits: float) -> Steps:
    def verify_inclusively(b: Block) -> Emitted:
        # u <= p/q in place of u < p/q: the next smaller number makes one of the other
        coins = np.nextafter(coarse(b.coins, bits), -1.0)
        return Emitted(*verify(b.p, b.q, b.drafts, coins, b.last))

    return Steps(verify=verify_inclusively)


def _late(b: Block) -> Floats:
    return np.asarray(b.p[:, b.k - 1])


POSITIONS = (
    Fault(
        "first-unverified",
        "off by one: the first proposal of a block is committed unchecked",
        "lattice #243",
        "first position of a block",
        "engine",
        lambda _: Steps(verify=_first_unverified),
        needs="anything",
    ),
    Fault(
        "sum-for-cumprod",
        "acceptances are counted over the whole block instead of up to the first rejection",
        "",
        "accepted tokens after a rejected one",
        "engine",
        lambda _: Steps(verify=_holes),
        needs="anything",
        note=NO_THREAD,
    ),
    Fault(
        "rejected-zeroed",
        "the replacement is drawn from p without the rejected token, which suits one-hot drafts",
        "",
        "recovered tokens",
        "engine",
        lambda _: Steps(verify=_zeroed_proposal),
        note=NO_THREAD,
    ),
    Fault(
        "recovered-from-last",
        "the replacement is drawn from the residual at the block's last position",
        "",
        "recovered tokens before the last position",
        "engine",
        lambda _: Steps(verify=_recovered_from_last),
        needs="anything",
        note=NO_THREAD,
    ),
    Fault(
        "recovered-from-next",
        "the replacement is drawn from the target's law after the rejected proposal",
        "openvino.genai #4190",
        "recovered tokens",
        "engine",
        lambda _: Steps(verify=_recovered_from_next),
        needs="anything",
    ),
    Fault(
        "own-sample-ratio",
        "q of the proposal is compared with p of a token that the target drew by itself",
        "openvino.genai 2026.4, validate_candidate",
        "accepted tokens",
        "engine",
        lambda _: Steps(verify=_own_sample_ratio, extra=LONGEST_BLOCK),
    ),
    Fault(
        "bonus-from-q",
        "the bonus token is drawn from the draft's law",
        "",
        "bonus tokens",
        "engine",
        lambda _: _bonus(lambda b: b.q[:, b.k - 1]),
        needs="anything",
        note="the draft's law at the last proposal stands in; no thread is known",
    ),
    Fault(
        "bonus-late",
        "the bonus token is drawn from the target's law one position too early",
        "",
        "bonus tokens",
        "engine",
        lambda _: _bonus(_late),
        needs="anything",
        note="no thread is known; vLLM's rejection sampler test mocks the bonus token away",
    ),
    Fault(
        "bonus-greedy",
        "the bonus token is the likeliest one instead of a draw",
        "",
        "bonus tokens",
        "engine",
        lambda _: _bonus(lambda b: one_hot(b.p[:, b.k].argmax(axis=-1), b.p.shape[-1])),
        note=NO_THREAD,
    ),
    Fault(
        "greedy-verifier",
        "proposals are verified against the argmax although sampling was asked; bonus is sampled",
        "sglang #37134; mlxcel #902; TensorRT-LLM #19390",
        "accepted and recovered tokens",
        "engine",
        lambda _: Steps(verify=_greedy_verifier),
    ),
    Fault(
        "silent-greedy",
        "speculation decodes greedily whatever the temperature",
        "sglang #37134; TensorRT-LLM #19390",
        "every token",
        "engine",
        lambda _: Steps(verify=_silent_greedy),
    ),
    Fault(
        "sharpened-every",
        "the target's law is sharpened (power 1.5) at every n-th output index",
        "",
        "every n-th token",
        "engine",
        _sharpened_every,
        parameter=4,
        span=Span(1, 1000, "n", whole=True),
        note="stands for whatever hits some positions only; no thread is known",
    ),
    Fault(
        "drift",
        "the target's law is sharpened a little more at every output index",
        "",
        "late tokens",
        "engine",
        _drift,
        parameter=0.02,
        span=Span(0, 1, "growth of the exponent per token"),
        note="stands for state that decays with length; no thread is known",
    ),
    Fault(
        "accept-late",
        "every proposal is accepted from some output index on, as after a window has wrapped",
        "mlx-lm #1109",
        "tokens after the first n",
        "engine",
        _after,
        needs="anything",
        parameter=6,
        span=Span(1, 100_000, "n", whole=True),
    ),
    Fault(
        "accept-some-prompts",
        "every proposal is accepted at some prompts, and none wrongly at the others",
        "",
        "some prompts",
        "engine",
        _some_prompts,
        needs="anything",
        parameter=0.5,
        span=Span(0, 1, "the share of prompts"),
        note="a run with few prompts may have none of them; no thread is known",
    ),
    Fault(
        "accept-after-some-tokens",
        "every proposal of a block is accepted when the token before it has a low id",
        "",
        "blocks that follow certain tokens",
        "engine",
        _after_some_tokens,
        needs="anything",
        parameter=0.25,
        span=Span(0, 1, "the share of the vocabulary"),
        note="stands for a path that only some inputs take; no thread is known",
    ),
    Fault(
        "low-precision-draw",
        "cumulative sums of the recovered and bonus draws are rounded to a short mantissa",
        "vllm #43150",
        "recovered and bonus tokens, unlikely ones most",
        "engine",
        _low_precision_draw,
        parameter=8,
        span=Span(2, 52, "bits of the mantissa: 8 is bfloat16, 11 float16, 24 float32", whole=True),
        visible=4,
        note="in a vocabulary of 32 it is slight, =4 too; a verifier shows it in larger ones",
    ),
    Fault(
        "coarse-uniforms",
        "uniforms have few bits, so that what is rarer than their step is lost or gains",
        "DeepSpec #31",
        "unlikely tokens",
        "engine",
        _coarse_uniforms,
        parameter=24,
        span=Span(2, 52, "bits of a uniform", whole=True),
        visible=6,
        note="at 24 bits it takes far more tokens than anyone draws; a verifier shows =6",
    ),
    Fault(
        "zero-coin",
        "a coin of 0 accepts a token of probability 0: the comparison includes equality",
        "sglang #35771",
        "impossible tokens, once in 2^bits proposals",
        "engine",
        _zero_coin,
        needs="filter",
        parameter=24,
        span=Span(2, 52, "bits of a coin", whole=True),
        visible=8,
        note="at 24 bits it happens once in 17 million proposals; =8 shows it under a filter",
    ),
)
