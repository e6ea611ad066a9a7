"""From logits to the law: the target's next-token distribution under a decoding, in float64.

`warp` applies temperature and filters in the order of a `Dialect`. `law_at` adds the
ambiguity band: near the edge of a truncation, a logit that moves by a rounding error moves a token
in or out of the support, and a float32 engine may rightly disagree with float64. Such prefixes are
recognised from the logits alone, never from what was sampled, so setting them aside selects
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformance.decoding import Decoding, Dialect
from conformance.errors import InvalidLogitsError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# A prefix whose law may differ by more than this total variation through rounding alone is set
# aside. The noise handed to `law_at` is an upper bound with a wide margin, so what is left inside
# this limit is far below anything a profile certifies.
MAX_LAW_NOISE_TV = 0.01


@dataclass(frozen=True, slots=True)
class Laws:
    """Laws at U prefixes, with what rounding could change.

    Parameters
    ----------
    probs : (U, V) float64
        The law at each prefix; rows sum to 1.
    possible : (U, V) bool
        Tokens that some logits within the noise would keep. A token outside is impossible.
    ambiguous : (U,) bool
        Prefixes set aside for every test but support.
    """

    probs: Floats
    possible: Bools
    ambiguous: Bools


def check_logits(logits: ArrayLike) -> Floats:
    """Return logits as float64 of shape (..., V), or say what is wrong with them.

    Raises
    ------
    InvalidLogitsError
        If they contain NaN or +inf, have no finite entry in some row, or no vocabulary axis.
    """
    z = np.asarray(logits, dtype=np.float64)
    if z.ndim == 0 or z.shape[-1] == 0:
        raise InvalidLogitsError("logits need a last axis of vocabulary size >= 1")
    if np.isnan(z).any():
        raise InvalidLogitsError("logits contain NaN; the model or its weights are damaged")
    if np.isposinf(z).any():
        raise InvalidLogitsError("logits contain +inf, which defines no probability")
    if not np.isfinite(z).any(axis=-1).all():
        raise InvalidLogitsError("every logit of a row is -inf; no token is possible")
    return z


def softmax(z: Floats) -> Floats:
    """Softmax over the last axis; -inf gives exactly 0."""
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def warp(logits: ArrayLike, decoding: Decoding, dialect: Dialect | None = None) -> Floats:
    """Logits to law.

    Parameters
    ----------
    logits : (..., V) array_like
        Raw logits; -inf marks an impossible token.
    decoding : Decoding
        What was asked.
    dialect : Dialect, optional
        How the engine understands it; the default is that of Hugging Face transformers.

    Returns
    -------
    (..., V) float64
        Rows sum to 1; removed tokens have probability exactly 0. Under greedy decoding the row is
        one-hot at the first largest logit.

    Raises
    ------
    InvalidLogitsError
        If the logits define no law.

    Examples
    --------
    >>> warp([2.0, 1.0, 0.0], Decoding(top_k=1)).tolist()
    [1.0, 0.0, 0.0]
    """
    dialect = dialect or Dialect()
    z = check_logits(logits)
    z = z - z.max(axis=-1, keepdims=True)  # a tiny temperature then cannot overflow
    if decoding.greedy:
        law: Floats = np.zeros_like(z)
        np.put_along_axis(law, z.argmax(axis=-1)[..., None], 1.0, axis=-1)
        return law
    for name in dialect.warps:
        if name == "temperature":
            with np.errstate(over="ignore"):
                z = z / decoding.temperature
        elif filters(name, decoding):
            z = np.where(_kept(name, z, decoding, dialect), z, -np.inf)
    return softmax(z)


def filters(name: str, decoding: Decoding) -> bool:
    """Whether a filter is asked for that may remove something."""
    value = getattr(decoding, name)
    return value is not None and not (name in ("top_p", "typical_p") and value == 1)


def law_at(
    logits: ArrayLike,
    decoding: Decoding,
    dialect: Dialect | None = None,
    noise: float = 0.0,
    edges_only: bool = False,
) -> Laws:
    """Laws at U prefixes together with the ambiguity band.

    Parameters
    ----------
    logits : (U, V) array_like
        Raw logits, one row per prefix.
    decoding, dialect
        As for `warp`.
    noise : float
        Largest absolute rounding error of a raw logit, in nats; measured on the probe.
    edges_only : bool
        Set aside only where the noise can move a token across an edge, not where it moves the law
        itself: for low precision, where it always does.

    Returns
    -------
    Laws
    """
    dialect = dialect or Dialect()
    z = check_logits(logits)
    probs = warp(z, decoding, dialect)
    z = z - z.max(axis=-1, keepdims=True)
    possible = np.isfinite(z)
    if decoding.greedy:
        possible &= z >= -2 * noise
        return Laws(probs, possible, possible.sum(axis=-1) > 1)
    ambiguous = np.zeros(z.shape[:-1], dtype=bool)
    for name in dialect.warps:
        if name == "temperature":
            with np.errstate(over="ignore"):
                z = z / decoding.temperature
            noise = noise / decoding.temperature
            continue
        if not filters(name, decoding):
            continue
        kept, maybe, sure = _edges(name, z, decoding, dialect, noise)
        # Once one edge is in doubt the later ones are computed from the wrong support; such a
        # prefix keeps every token that the first doubtful edge left possible.
        possible &= np.where(ambiguous[..., None], possible, maybe)
        ambiguous |= ((maybe != kept) | (sure != kept)).any(axis=-1)
        z = np.where(kept, z, -np.inf)
    if edges_only:
        return Laws(probs, possible, ambiguous)
    # |dz| <= noise moves a set of mass m by at most 2 noise m (1 - m)
    heaviest = np.maximum(probs.max(axis=-1), 0.5)
    law_noise = 2 * noise * heaviest * (1 - heaviest)
    return Laws(probs, possible, ambiguous | (law_noise > MAX_LAW_NOISE_TV))


def _kept(name: str, z: Floats, decoding: Decoding, dialect: Dialect) -> Bools:
    """What one filter keeps."""
    if name == "top_k" and decoding.top_k is not None:
        return _keep_top_k(z, decoding.top_k, dialect)
    if name == "top_p" and decoding.top_p is not None:
        return _keep_top_p(z, decoding.top_p, dialect)
    return _edges(name, z, decoding, dialect, 0.0)[0]


def _keep_top_k(z: Floats, k: int, dialect: Dialect) -> Bools:
    if k >= z.shape[-1]:
        return np.ones(z.shape, dtype=bool)
    if dialect.top_k_ties == "keep":
        return np.asarray(z >= _kth_largest(z, k))
    keep = np.zeros(z.shape, dtype=bool)
    order = np.argsort(-z, axis=-1, kind="stable")[..., :k]
    np.put_along_axis(keep, order, True, axis=-1)
    return keep


def _kth_largest(z: Floats, k: int) -> Floats:
    return np.asarray(np.partition(z, -k, axis=-1)[..., [-k]])


def _mass_above(z: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Mass of the tokens ranked before each token, in rank order, with that order. [..., V]"""
    order = np.argsort(-z, axis=-1, kind="stable")
    p = np.take_along_axis(softmax(z), order, axis=-1)
    return np.cumsum(p, axis=-1) - p, order


def _keep_top_p(z: Floats, top_p: float, dialect: Dialect) -> Bools:
    above, order = _mass_above(z)
    keep_ranked = above < top_p
    if dialect.top_p_crossing == "drop":
        p = np.take_along_axis(softmax(z), order, axis=-1)
        keep_ranked = above + p <= top_p
    keep_ranked[..., 0] = True
    keep = np.zeros(z.shape, dtype=bool)
    np.put_along_axis(keep, order, keep_ranked, axis=-1)
    return keep & np.isfinite(z)


def _edges(
    name: str, z: Floats, decoding: Decoding, dialect: Dialect, noise: float
) -> tuple[Bools, Bools, Bools]:
    """What one filter keeps, may keep, and surely keeps, when logits move by up to `noise`."""
    if name == "typical_p":
        return _typical(z, decoding.typical_p or 1.0, noise)
    if name in ("epsilon_cutoff", "eta_cutoff"):
        return _above(z, *_cutoff(name, z, decoding, noise), noise)
    if name == "top_k":
        k = decoding.top_k
        assert k is not None
        kept = _keep_top_k(z, k, dialect) & np.isfinite(z)
        if k >= z.shape[-1]:
            return kept, kept, kept
        maybe = (z >= _kth_largest(z, k) - 2 * noise) & np.isfinite(z)
        # a tie is a tie only without noise; with it, one of the tied may fall behind
        sure = kept & (z > _kth_largest(z, k + 1) + 2 * noise) if noise > 0 else kept
        return kept, maybe, sure
    if name == "top_p":
        assert decoding.top_p is not None
        kept = _keep_top_p(z, decoding.top_p, dialect)
        # moving every logit by +-noise moves a mass by a factor of at most exp(+-2 noise)
        slack = float(np.expm1(2 * noise))
        maybe = _keep_top_p(z, min(decoding.top_p + slack, 1.0), dialect)
        sure = _keep_top_p(z, max(decoding.top_p - slack, 1e-300), dialect)
        # which of two nearly equal tokens ranks first is up to rounding as well
        lowest = np.where(maybe, z, np.inf).min(axis=-1, keepdims=True)
        dropped = np.where(sure, -np.inf, z).max(axis=-1, keepdims=True)
        return kept, (z >= lowest - 2 * noise) & np.isfinite(z), sure & (z > dropped + 2 * noise)
    assert decoding.min_p is not None
    return _above(z, decoding.min_p * softmax(z).max(axis=-1, keepdims=True), 0.0, noise)


def _above(
    z: Floats, threshold: Floats | float, doubt: Floats | float, noise: float
) -> tuple[Bools, Bools, Bools]:
    """Tokens at least as likely as a threshold, whose logarithm `doubt` may move, and the likeliest
    whatever it is.
    """
    p = softmax(z)
    highest = p.max(axis=-1, keepdims=True)
    slack = np.exp(2 * noise + doubt)
    # the most likely token is always kept, where it is clear which one that is
    first = p * np.exp(2 * noise) >= highest
    alone = first.sum(axis=-1, keepdims=True) == 1
    kept = (p >= threshold) | (p == highest)
    maybe = (p * slack >= threshold) | first
    return kept, maybe, (p >= threshold * slack) | ((p == highest) & alone)


def _entropy(z: Floats, noise: float) -> tuple[Floats, Floats]:
    """Entropy, and how far it moves when logits do: to first order, noise times the mean distance
    of the surprisal from it; twice that is taken. [..., 1] each
    """
    p = softmax(z)
    surprisal = -np.log(np.where(p > 0, p, 1.0))
    entropy = (p * surprisal).sum(axis=-1, keepdims=True)
    return entropy, 2 * noise * (p * np.abs(surprisal - entropy)).sum(axis=-1, keepdims=True)


def _cutoff(
    name: str, z: Floats, decoding: Decoding, noise: float
) -> tuple[Floats | float, Floats | float]:
    """Threshold of an epsilon or eta cut-off, and how far its logarithm moves."""
    if name == "epsilon_cutoff":
        return decoding.epsilon_cutoff or 0.0, 0.0
    eta = decoding.eta_cutoff or 0.0
    entropy, doubt = _entropy(z, noise)
    return np.minimum(eta, np.sqrt(eta) * np.exp(-entropy)), doubt


def _typical(z: Floats, mass: float, noise: float) -> tuple[Bools, Bools, Bools]:
    """Tokens whose surprisal is nearest to the entropy, until their mass reaches `mass`."""
    p = softmax(z)
    there = p > 0
    entropy, doubt = _entropy(z, noise)
    far = np.where(there, np.abs(-np.log(np.where(there, p, 1.0)) - entropy), np.inf)
    order = np.argsort(far, axis=-1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=-1)
    above = np.cumsum(ranked, axis=-1) - ranked

    def nearest(reached: float) -> Floats:
        """How far the last token is that is kept. [..., 1]"""
        last = np.maximum((above < reached).sum(axis=-1, keepdims=True) - 1, 0)
        return np.asarray(np.take_along_axis(np.take_along_axis(far, order, -1), last, -1))

    kept = (far <= nearest(mass)) & there
    slack, move = float(np.expm1(2 * noise)), 2 * (2 * noise + doubt)
    maybe = (far <= nearest(min(mass + slack, 1.0)) + move) & there
    last = nearest(max(mass - slack, 1e-300))
    surely = (far <= last) & there
    dropped = np.where(surely, np.inf, far).min(axis=-1, keepdims=True)
    # of those about as far as the last one any may be the last, and a likely one leave no need of
    # the others
    edge = surely & (far >= last - move)
    return (
        kept,
        maybe,
        surely & (far < dropped - move) & ~(edge & (edge.sum(-1, keepdims=True) > 1)),
    )
