"""The ways in which llama.cpp speculates, and the orders of its samplers, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from conformance.contract import Draft
from conformance.decoding import Warp
from conformance.errors import UnknownEngineError

PROPOSALS = 4

# The order in which llama.cpp applies its samplers is part of a request. Its default has the
# filters first; "temperature-first" is the order of transformers.
ORDERS: dict[str, tuple[Warp, ...]] = {
    "temperature-last": ("top_k", "typical_p", "top_p", "min_p", "temperature"),
    "temperature-first": ("temperature", "top_k", "top_p", "min_p", "typical_p"),
}


# What keys and values are kept in, as the engine calls it. Quantised types are left out: they need
# flash attention, and an error of theirs says nothing of speculation.
CACHES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
ALL_LAYERS = 999  # more than any model has


@dataclass(frozen=True, slots=True)
class Method:
    """One of the engine's ways to propose and verify tokens.

    Parameters
    ----------
    words : str
        The method as the engine card prints it.
    draft : str
        Where proposals come from, as in `Capabilities`.
    kind : str
        The engine's own name of it, the end of a ``common_speculative_type``.
    group : str
        The group of speculation parameters that `options` belong to.
    options : dict
        Parameters that differ from the engine's defaults.
    rates : tuple of float
        How often the engine is told to accept each place of a block, whatever the target says.
    """

    words: str
    draft: Draft
    kind: str
    group: str
    options: dict[str, int | bool] = field(default_factory=dict)
    rates: tuple[float, ...] = ()


def _lookup(kind: str, options: dict[str, int | bool]) -> Method:
    return Method("n-grams, sample and match", "lookup", kind, kind.lower(), options)


METHODS: dict[str, Method] = {
    "draft-model": Method(
        "draft model, rejection sampling",
        "model",
        "DRAFT_SIMPLE",
        "draft",
        {"n_max": PROPOSALS, "probabilistic": True},
    ),
    "match": Method(
        "draft model, sample and match",
        "model",
        "DRAFT_SIMPLE",
        "draft",
        {"n_max": PROPOSALS, "probabilistic": False},
    ),
    # the engine's own knob for measuring speed: a departure that any suite should find
    "synthetic": Method(
        "draft model, accepted at random",
        "model",
        "DRAFT_SIMPLE",
        "draft",
        {"n_max": PROPOSALS, "probabilistic": True},
        rates=(0.5, 0.25, 0.12, 0.06),
    ),
    # the defaults look for n-grams of a dozen tokens and more: no probe repeats itself for so long
    "ngram-simple": _lookup("NGRAM_SIMPLE", {"size_n": 1, "size_m": PROPOSALS}),
    "ngram-map-k": _lookup("NGRAM_MAP_K", {"size_n": 1, "size_m": 2}),
    "ngram-map-k4v": _lookup("NGRAM_MAP_K4V", {"size_n": 1, "size_m": 2}),
    "ngram-mod": _lookup("NGRAM_MOD", {"n_match": 1, "n_min": 1, "n_max": PROPOSALS}),
    "ngram-cache": _lookup("NGRAM_CACHE", {}),
}


def layers_of(text: str) -> int:
    """Layers that a GPU computes, as typed.

    Raises
    ------
    UnknownEngineError
        If it is neither ``all`` nor a number of layers.
    """
    if text == "all":
        return ALL_LAYERS
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= ALL_LAYERS):
        raise UnknownEngineError(
            f"gpu_layers must be all or a whole number up to {ALL_LAYERS}, not {text!r:.100}"
        )
    return int(text[:9])
