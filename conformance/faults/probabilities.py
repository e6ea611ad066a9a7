"""Faults of what the rule is given: it is right, but its p or its q is not the one it should be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.faults.fault import NO_THREAD, Fault, Span
from conformance.faults.rules import normalised, one_hot
from conformance.faults.steps import Block, Emitted, Steps, judged
from conformance.law import Floats, softmax, warp
from conformance.reference import EXACT, Ints, Rule, acceptance, draw

BOTH = "accepted and recovered tokens"


def argmax(law: Floats, u: Floats) -> Ints:
    """A proposal that is not drawn: the draft's likeliest token. [B, V] -> [B]"""
    return np.asarray(law.argmax(axis=-1))


def with_target(b: Block, verified: Floats, bonus: Floats | None = None) -> Block:
    """The block with other target laws at the proposals, and after them where given.

    Shapes are [B, K, V] and [B, V].
    """
    p = b.p.copy()
    p[:, : b.k] = verified
    if bonus is not None:
        p[:, b.k] = bonus
    return replace(b, p=p)


# --- the draft's law ------------------------------------------------------------------------------


def _raw_q(b: Block) -> Emitted:
    return judged(replace(b, q=softmax(b.draft_logits)))


def _stale_q(b: Block) -> Emitted:
    return judged(replace(b, q=np.repeat(b.q[:, :1], b.k, axis=1)))


def _misaligned_q(b: Block) -> Emitted:
    return judged(replace(b, q=np.concatenate([b.q[:, :1], b.q[:, :-1]], axis=1)))


def _made_up_q(c: float) -> Steps:
    # the residual of a one-hot draft is right: only acceptance meets the made-up number
    rule = Rule("made-up-q", lambda p, q: np.minimum(1.0, p / c), EXACT.recover)

    def verify(b: Block) -> Emitted:
        return judged(replace(b, q=one_hot(b.drafts, b.p.shape[-1])), rule)

    return Steps(propose=argmax, verify=verify)


def _zeroed_in_place(_: float) -> Steps:
    def verify(b: Block) -> Emitted:
        hot = one_hot(b.drafts, b.p.shape[-1])
        return judged(replace(with_target(b, normalised(b.p[:, :-1] * (1 - hot), hot)), q=hot))

    return Steps(propose=argmax, verify=verify)


def _draft_top_k(k: float) -> Steps:
    def propose(q: Floats, u: Floats) -> Ints:
        least = np.sort(q, axis=-1)[:, -min(int(k), q.shape[-1]), None]
        return draw(np.where(q >= least, q, 0.0), u)

    return Steps(propose=propose)


# --- the target's law -----------------------------------------------------------------------------


def _unwarped_target(b: Block) -> Emitted:
    return judged(replace(b, p=softmax(b.target_logits)))


def _temperature_ignored(b: Block) -> Emitted:
    plain = replace(b.decoding, temperature=1.0)
    return judged(replace(b, p=warp(b.target_logits, plain, b.dialect)))


def _temperature_twice(b: Block) -> Emitted:
    if b.decoding.greedy:
        return judged(b)
    twice = replace(b.decoding, temperature=b.decoding.temperature**2)
    return judged(replace(b, p=warp(b.target_logits, twice, b.dialect)))


def _unfiltered(b: Block) -> Floats:
    if b.decoding.greedy:
        return b.p
    return warp(b.target_logits, b.decoding.unfiltered, b.dialect)


def _filters_on_bonus_only(b: Block) -> Emitted:
    return judged(with_target(b, _unfiltered(b)[:, : b.k]))


def _bonus_unfiltered(b: Block) -> Emitted:
    return judged(with_target(b, b.p[:, : b.k], _unfiltered(b)[:, b.k]))


def _misaligned_p(b: Block) -> Emitted:
    return judged(with_target(b, b.p[:, np.maximum(np.arange(b.k) - 1, 0)]))


def _tail_lost(least: float) -> Steps:
    def verify(b: Block) -> Emitted:
        kept = np.where(b.p >= least, b.p, 0.0)
        return judged(replace(b, p=normalised(kept, b.p)))

    return Steps(verify=verify)


def rounded(x: Floats, bits: int) -> Floats:
    """X to a mantissa of so many bits: 24 is float32, 11 float16, 8 bfloat16."""
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits))


def _rounded_laws(bits: float) -> Steps:
    def verify(b: Block) -> Emitted:
        return judged(replace(b, p=rounded(b.p, int(bits)), q=rounded(b.q, int(bits))))

    return Steps(verify=verify)


def _unfinished_ratio(_: float) -> Steps:
    # the residual's mass is needed, not the residual's law: drawing from it unnormalised against
    # 1 leaves the last token with what is missing
    def recover(p: Floats, q: Floats) -> Floats:
        r = np.maximum(p - q, 0.0)
        r[..., -1] += 1.0 - r.sum(axis=-1)
        return np.asarray(r)

    return Steps(verify=lambda b: judged(b, Rule("unnormalised-residual", acceptance, recover)))


PROBABILITIES = (
    Fault(
        "raw-q",
        "proposals come from the filtered and tempered draft, but its raw softmax is declared",
        "transformers #47932; vllm #9834",
        BOTH,
        "probability",
        lambda _: Steps(verify=_raw_q),
        needs="warp",
    ),
    Fault(
        "argmax-draft",
        "the draft proposes its likeliest token, which is judged by its softmax probability",
        "transformers #32867; ml-recurrent-drafter #6; rtp-llm #1311",
        BOTH,
        "probability",
        lambda _: Steps(propose=argmax),
    ),
    Fault(
        "draft-top-k",
        "the draft proposes from its k likeliest tokens, its whole law is declared",
        "",
        BOTH,
        "probability",
        _draft_top_k,
        parameter=4,
        span=Span(1, 100_000, "k", whole=True),
        note="between argmax-draft and raw-q; no thread of its own is known",
    ),
    Fault(
        "made-up-q",
        "a one-hot proposal (as of prompt lookup) is accepted against a made-up probability",
        "openvino.genai #2331",
        "accepted tokens of drafts without probabilities",
        "probability",
        _made_up_q,
        parameter=0.5,
        span=Span(0, 1, "the made-up probability; 1 is exact"),
    ),
    Fault(
        "zeroed-in-place",
        "a one-hot proposal's p is zeroed in place for the replacement, before it is verified",
        "vllm-ascend #2881; vllm #16952",
        "recovered tokens; nothing is ever accepted",
        "probability",
        _zeroed_in_place,
    ),
    Fault(
        "misaligned-q",
        "each proposal is judged by the draft's law one step earlier",
        "several engines",
        "after the first position of a block",
        "probability",
        lambda _: Steps(verify=_misaligned_q),
    ),
    Fault(
        "stale-q",
        "every proposal of a block is judged by the draft's law at the block's beginning",
        "",
        "after the first position of a block",
        "probability",
        lambda _: Steps(verify=_stale_q),
        note="a relative of misaligned-q; no thread of its own is known",
    ),
    Fault(
        "misaligned-p",
        "each proposal is judged by the target's law one step earlier",
        "several engines",
        "after the first position of a block",
        "probability",
        lambda _: Steps(verify=_misaligned_p),
        needs="anything",
    ),
    Fault(
        "unwarped-target",
        "the verifier uses temperature 1 and no filter, whatever was asked",
        "vllm #9834; lattice #388",
        "every token",
        "probability",
        lambda _: Steps(verify=_unwarped_target),
        needs="warp",
    ),
    Fault(
        "temperature-ignored",
        "the verifier uses temperature 1, filters as asked",
        "vllm #9834; lattice #388",
        "every token",
        "probability",
        lambda _: Steps(verify=_temperature_ignored),
        needs="temperature",
    ),
    Fault(
        "temperature-twice",
        "temperature is applied to logits that were divided by it already",
        "",
        "every token",
        "probability",
        lambda _: Steps(verify=_temperature_twice),
        needs="temperature",
        note=NO_THREAD,
    ),
    Fault(
        "filters-on-bonus-only",
        "top-k, top-p and min-p are applied to the bonus token and skipped by the verifier",
        "vllm #42744; sglang #10617; TensorRT-LLM #17701",
        "accepted and recovered tokens; right on bonus",
        "probability",
        lambda _: Steps(verify=_filters_on_bonus_only),
        needs="filter",
    ),
    Fault(
        "bonus-unfiltered",
        "top-k, top-p and min-p are applied by the verifier and skipped for the bonus token",
        "",
        "bonus tokens",
        "probability",
        lambda _: Steps(verify=_bonus_unfiltered),
        needs="filter",
        note="the mirror image of filters-on-bonus-only; no thread is known",
    ),
    Fault(
        "unnormalised-residual",
        "the residual is drawn from without being normalised; the last token gets what is missing",
        "",
        "recovered tokens",
        "probability",
        _unfinished_ratio,
        note=NO_THREAD,
    ),
    Fault(
        "tail-lost",
        "probabilities below a smallest number become zero, as in float16",
        "vllm #43150; DeepSpec #31",
        "unlikely tokens, which are never emitted",
        "probability",
        _tail_lost,
        parameter=6e-8,
        span=Span(0, 0.5, "the smallest probability left"),
        visible=0.005,
        note="of float16's own size it takes millions of tokens to see; =0.005 shows it at once",
    ),
    Fault(
        "rounded-laws",
        "p and q reach the rule with the mantissa of a short float",
        "vllm #43150",
        "every token, a little",
        "probability",
        _rounded_laws,
        parameter=8,
        span=Span(1, 52, "bits of the mantissa: 8 is bfloat16, 11 float16, 24 float32", whole=True),
        visible=2,
        note="in bfloat16 it moves a law by less than a thousandth; =2 shows it",
    ),
)
