"""Faults of the acceptance rule itself: when a proposal is accepted, and what replaces it."""

from __future__ import annotations

import numpy as np

from conformance.faults.fault import NO_THREAD, Fault, Span
from conformance.law import Floats, softmax
from conformance.reference import Rule, acceptance, residual

# Medusa's threshold on p, which entropy can lower
TYPICAL_EPSILON = 0.09
RELAXED_TOP = 10


def ones(p: Floats, q: Floats) -> Floats:
    """Accept whatever is proposed. [..., V]"""
    return np.ones_like(p)


def normalised(r: Floats, otherwise: Floats) -> Floats:
    """R scaled to sum 1; `otherwise` in rows where r is all zero. [..., V]"""
    mass = r.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(mass > 0, r / np.where(mass > 0, mass, 1.0), otherwise))


def one_hot(x: np.ndarray, size: int) -> Floats:
    """[...] -> [..., V]"""
    hot = np.zeros((*x.shape, size))
    np.put_along_axis(hot, x[..., None], 1.0, axis=-1)
    return hot


def entropy(p: Floats) -> Floats:
    """In nats, last axis kept. [..., 1]"""
    return np.asarray(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1, keepdims=True))


def _lenient(factor: float) -> Rule:
    def accept(p: Floats, q: Floats) -> Floats:
        ratio = np.divide(p, q * factor, out=np.zeros_like(p), where=q > 0)
        return np.minimum(1.0, ratio)

    return Rule("lenient", accept, residual)


def _threshold(least: float) -> Rule:
    return Rule("threshold", lambda p, q: np.where(p >= least, 1.0, acceptance(p, q)), residual)


def _relaxed(delta: float) -> Rule:
    def accept(p: Floats, q: Floats) -> Floats:
        top = np.sort(p, axis=-1)[..., -min(RELAXED_TOP, p.shape[-1]), None]
        near = (p >= top) & (p >= p.max(axis=-1, keepdims=True) - delta)
        return np.where(near, 1.0, acceptance(p, q))

    return Rule("relaxed", accept, residual)


def _typical(alpha: float) -> Rule:
    def accept(p: Floats, q: Floats) -> Floats:
        least = np.minimum(TYPICAL_EPSILON, alpha * np.exp(-entropy(p)))
        return np.asarray(p > least, dtype=np.float64)

    return Rule("typical", accept, _argmax)


def _entropy_gated(nats: float) -> Rule:
    def accept(p: Floats, q: Floats) -> Floats:
        return np.where(entropy(p) >= nats, 1.0, acceptance(p, q))

    return Rule("entropy-gated", accept, residual)


def _argmax(p: Floats, q: Floats) -> Floats:
    return one_hot(p.argmax(axis=-1), p.shape[-1])


def _softmax_residual(_: float) -> Rule:
    return Rule("softmax-residual", acceptance, lambda p, q: softmax(np.maximum(p - q, 0.0)))


def _absolute_residual(_: float) -> Rule:
    return Rule("absolute-residual", acceptance, lambda p, q: normalised(np.abs(p - q), p))


def _ratio_in_place(_: float) -> Rule:
    def recover(p: Floats, q: Floats) -> Floats:
        return normalised(np.maximum(acceptance(p, q) - q, 0.0), p)

    return Rule("ratio-in-place", acceptance, recover)


def _argmax_recovered(_: float) -> Rule:
    def recover(p: Floats, q: Floats) -> Floats:
        return one_hot(residual(p, q).argmax(axis=-1), p.shape[-1])

    return Rule("argmax-recovered", acceptance, recover)


def _strict(factor: float) -> Rule:
    return Rule("strict", lambda p, q: factor * acceptance(p, q), residual)


RULES = (
    Fault(
        "accept-all",
        "every proposal is accepted, so the draft's law is emitted",
        "openvino.genai #2331",
        "accepted tokens",
        "rule",
        lambda _: Rule("accept-all", ones, residual),
        needs="anything",
    ),
    Fault(
        "lenient",
        "the acceptance ratio p/q is divided by a factor below 1, so too much is accepted",
        "vllm #5131; SGLang speculative_accept_threshold_acc",
        "accepted tokens",
        "rule",
        _lenient,
        parameter=0.9,
        span=Span(0, 1, "the factor; 1 is exact"),
    ),
    Fault(
        "threshold",
        "a proposal is accepted whenever p is at least a threshold, whatever q is",
        "SGLang speculative_accept_threshold_single",
        "accepted tokens",
        "rule",
        _threshold,
        parameter=0.1,
        span=Span(0, 1, "the threshold on p"),
    ),
    Fault(
        "relaxed",
        "a proposal among the ten likeliest and not much below the likeliest is always accepted",
        "TensorRT-LLM relaxed acceptance",
        "accepted tokens",
        "rule",
        _relaxed,
        parameter=0.6,
        span=Span(0, 1, "how far below the likeliest p may be"),
    ),
    Fault(
        "typical",
        "typical acceptance: p against a threshold that entropy lowers, and argmax after a "
        "rejection",
        "vllm #5131 (Medusa's rule)",
        "accepted and recovered tokens",
        "rule",
        _typical,
        parameter=0.3,
        span=Span(0, 1, "Medusa's alpha: the threshold is min(0.09, alpha exp(-entropy))"),
    ),
    Fault(
        "entropy-gated",
        "every proposal is accepted where the target is uncertain",
        "",
        "accepted tokens where the law is flat",
        "rule",
        _entropy_gated,
        parameter=2.0,
        span=Span(0, 20, "the entropy, in nats, from which on everything is accepted"),
        note="a published lossy rule; no thread reports it as a fault",
    ),
    Fault(
        "strict",
        "the acceptance probability is multiplied by a factor below 1, so too little is accepted",
        "",
        "recovered tokens",
        "rule",
        _strict,
        parameter=0.9,
        span=Span(0, 1, "the factor; 1 is exact"),
        note="the mirror image of lenient; no thread is known",
    ),
    Fault(
        "inverted-ratio",
        "acceptance compares with q/p where p/q is meant",
        "",
        "accepted tokens",
        "rule",
        lambda _: Rule("inverted-ratio", lambda p, q: acceptance(q, p), residual),
        note=NO_THREAD,
    ),
    Fault(
        "resample-from-p",
        "after a rejection the token is drawn from p instead of the residual max(p - q, 0)",
        "Spec-RL #14",
        "recovered tokens",
        "rule",
        lambda _: Rule("resample-from-p", acceptance, lambda p, q: p),
        note="so does a second proposal that is verified against p instead of the residual",
    ),
    Fault(
        "softmax-residual",
        "the residual max(p - q, 0) goes through a softmax instead of being normalised",
        "transformers #28508",
        "recovered tokens",
        "rule",
        _softmax_residual,
    ),
    Fault(
        "absolute-residual",
        "the residual is |p - q|, its negative part not cut off",
        "",
        "recovered tokens",
        "rule",
        _absolute_residual,
        note=NO_THREAD,
    ),
    Fault(
        "ratio-in-place",
        "the ratio is computed in place over p, so the residual is max(min(1, p/q) - q, 0)",
        "",
        "recovered tokens",
        "rule",
        _ratio_in_place,
        note="a relative of zeroed-in-place; no thread of its own is known",
    ),
    Fault(
        "argmax-recovered",
        "after a rejection the likeliest token of the residual is taken instead of a draw",
        "",
        "recovered tokens",
        "rule",
        _argmax_recovered,
        note=NO_THREAD,
    ),
)
