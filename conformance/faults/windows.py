"""Faults of sliding windows: what the target sees of a context that is longer than its window."""

from __future__ import annotations

import numpy as np

from conformance.faults.fault import NO_THREAD, Fault
from conformance.faults.steps import Filled, Steps
from conformance.reference import Ints
from conformance.tinylm import Cache


def _more(window: int, lost: Ints) -> Ints:
    return np.full(len(lost), window + 1)


def _less(window: int, lost: Ints) -> Ints:
    return np.full(len(lost), window - 1)


def _never(window: int, lost: Ints) -> Ints:
    """Several tokens are fed at once, and only one by one does the window slide."""
    return np.full(len(lost), 2**31)


def _evicted(window: int, lost: Ints) -> Ints:
    """What rejected proposals have pushed out of the window stays out for the next block."""
    return np.asarray(np.maximum(window - lost, 1))


def _wrapped(cache: Cache, filled: Filled) -> None:
    """Rejected proposals stay where they were written in a ring: over the oldest of the window."""
    if filled.window is None:
        return
    for row, end, count in zip(filled.rows, filled.length, filled.lost, strict=True):
        at = np.arange(int(end), int(end) + int(count))
        at = at[at >= filled.window]
        for kept in (cache.keys, cache.values):
            kept[:, row, at - filled.window] = kept[:, row, at]


WINDOWS: tuple[Fault, ...] = (
    Fault(
        "window-one-more",
        "the target sees one token more than its window has",
        "mlx-lm #390; transformers #39408",
        "every token beyond the window",
        "engine",
        lambda _: Steps(window=_more),
        needs="form",
    ),
    Fault(
        "window-one-less",
        "the target sees one token less than its window has",
        "",
        "every token beyond the window",
        "engine",
        lambda _: Steps(window=_less),
        needs="form",
        note=NO_THREAD,
    ),
    Fault(
        "window-never-slides",
        "nothing leaves the target's window where several tokens are fed at once",
        "mlx-lm #1914",
        "every token beyond the window",
        "engine",
        lambda _: Steps(window=_never),
        needs="form",
    ),
    Fault(
        "window-evicted",
        "what rejected proposals pushed out of the target's window is missing in the next block",
        "",
        "blocks after a rejection, beyond the window",
        "engine",
        lambda _: Steps(window=_evicted),
        needs="form",
        note="a relative of window-wrapped; " + NO_THREAD,
    ),
    Fault(
        "window-wrapped",
        "rejected proposals stay in a ring of the window's size, over its oldest tokens",
        "mlx-lm #1427",
        "blocks after a rejection, beyond the window",
        "engine",
        lambda _: Steps(cached=_wrapped),
        needs="form",
    ),
)
