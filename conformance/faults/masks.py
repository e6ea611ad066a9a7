"""Faults in what may come at all: grammars whose mask changes along the output, and filters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.decoding import LATER_FILTERS, Decoding, Dialect, Warp
from conformance.faults.fault import NO_THREAD, Fault
from conformance.faults.steps import Block, Emitted, Steps, judged
from conformance.law import Floats, warp
from conformance.processors import History, apply
from conformance.reference import Rule, acceptance, residual

# --- grammars -------------------------------------------------------------------------------------


def _at_block_start(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    if target and history.state is not None:
        history = replace(history, state=history.state[:, :1])
    return apply(logits, history, decoding)


def _one_late(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    """Each place of a block has the mask of the place before it."""
    if target and history.state is not None:
        late = np.concatenate([history.state[:, :1], history.state[:, :-1]], axis=1)
        history = replace(history, state=late)
    return apply(logits, history, decoding)


def _stops_anywhere(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    masked = apply(logits, history, decoding)
    stops = [t for t in decoding.stop if t < logits.shape[-1]]
    if target and history.state is not None:
        masked[..., stops] = logits[..., stops]
    return masked


def _unmasked(b: Block) -> Floats:
    """The target's laws without the grammar."""
    free = replace(b.decoding, grammar="")
    return warp(b.target_logits, free, b.dialect)


def _accepted_unmasked(b: Block) -> Emitted:
    """Acceptance looks at the target before the mask, what is drawn afterwards at it."""
    if not b.decoding.grammar:
        return judged(b)
    seen = _unmasked(b)[:, : b.k]
    return judged(b, Rule("unmasked", lambda p, q: acceptance(seen, q), residual))


def _masked_after_filters(b: Block) -> Emitted:
    """The target is filtered first and masked then; the draft the other way round."""
    if not b.decoding.grammar or b.decoding.greedy:
        return judged(b)
    left = np.where(b.p > 0, _unmasked(b), 0.0)
    mass = left.sum(axis=-1, keepdims=True)
    return judged(replace(b, p=np.where(mass > 0, left / np.where(mass > 0, mass, 1.0), b.p)))


# --- filters --------------------------------------------------------------------------------------


def _filtered(b: Block, decoding: Decoding, dialect: Dialect | None = None) -> Emitted:
    if b.decoding.greedy:
        return judged(b)
    return judged(replace(b, p=warp(b.target_logits, decoding, dialect or b.dialect)))


def _without_min_p(b: Block) -> Emitted:
    return _filtered(b, replace(b.decoding, min_p=None))


def _without_later(b: Block) -> Emitted:
    return _filtered(b, b.decoding.without(LATER_FILTERS))


def _temperature_elsewhere(b: Block) -> Emitted:
    """Temperature is applied after the filters where it belongs before them, and the reverse."""
    order = (b.dialect or Dialect()).warps
    last = order[0] == "temperature"
    rest = tuple(w for w in order if w != "temperature")
    turned: tuple[Warp, ...] = (*rest, "temperature") if last else ("temperature", *rest)
    return _filtered(b, b.decoding, replace(b.dialect or Dialect(), order=turned))


MASKS: tuple[Fault, ...] = (
    Fault(
        "grammar-at-block-start",
        "the grammar's mask is made once for a block, and is not moved on inside it",
        "vllm #14702",
        "later positions of a block",
        "engine",
        lambda _: Steps(process=_at_block_start),
        needs="grammar",
    ),
    Fault(
        "grammar-one-late",
        "each position of a block has the grammar's mask of the one before",
        "",
        "later positions of a block",
        "engine",
        lambda _: Steps(process=_one_late),
        needs="grammar",
        note=NO_THREAD,
    ),
    Fault(
        "grammar-not-rolled-back",
        "rejected proposals stay in the state of the grammar",
        "vllm #48197",
        "after the first rejection",
        "engine",
        lambda _: Steps(counts_rejected=True),
        needs="grammar",
    ),
    Fault(
        "grammar-stops-anywhere",
        "stop tokens are not held to the grammar",
        "",
        "where outputs end",
        "engine",
        lambda _: Steps(process=_stops_anywhere),
        needs="grammar and stop",
        note=NO_THREAD,
    ),
    Fault(
        "grammar-accepts-unmasked",
        "acceptance looks at the target's law before the mask, recovered and bonus tokens at the "
        "masked one",
        "",
        "accepted and recovered tokens; no forbidden token",
        "engine",
        lambda _: Steps(verify=_accepted_unmasked),
        needs="grammar",
        note=NO_THREAD,
    ),
    Fault(
        "grammar-after-filters",
        "the target is masked after top-k and top-p instead of before",
        "",
        "with a filter: every token; no forbidden token",
        "engine",
        lambda _: Steps(verify=_masked_after_filters),
        needs="grammar and filter",
        note=NO_THREAD,
    ),
    Fault(
        "min-p-ignored",
        "verification leaves min-p out, the draft does not",
        "",
        "tokens that min-p removes",
        "engine",
        lambda _: Steps(verify=_without_min_p),
        needs="min_p",
        note=NO_THREAD,
    ),
    Fault(
        "later-filters-ignored",
        "verification knows top-k, top-p and min-p alone, the draft the other filters too",
        "",
        "tokens that these remove",
        "engine",
        lambda _: Steps(verify=_without_later),
        needs="later filter",
        note=NO_THREAD,
    ),
    Fault(
        "temperature-elsewhere",
        "verification applies temperature after the filters, plain generation before them",
        "",
        "tokens at the edge of a filter",
        "engine",
        lambda _: Steps(verify=_temperature_elsewhere),
        needs="temperature and filter",
        note=NO_THREAD,
    ),
)
