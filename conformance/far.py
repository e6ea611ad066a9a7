"""Far from the beginning: the places of a long context, and how many requests reach each of them.

Requests begin before the borders at which caches are known to wrap, page or slide, and go over
them. What is judged is every region between two borders by itself, over all its tokens, since no
prefix is met often enough for a table. Where the model has a sliding window, the borders are
multiples of it.
"""

from __future__ import annotations

import numpy as np

from conformance.forms import LONG, SLIDING, WINDOW
from conformance.law import Bools
from conformance.statistics import certificate
from conformance.tinylm import Tokens

# Lengths of prompts: outputs go over the borders below, from several places of a page, and of a
# window.
STARTS = {
    LONG: (224, 480, 992, 1100, 231, 493, 1003, 1109),
    SLIDING: (6, 20, WINDOW, 45, WINDOW - 1, 70, 31, 101),
}
BORDERS = {LONG: (256, 512, 1024), SLIDING: (2 * WINDOW, 4 * WINDOW)}
LAST = 8  # places of a context that are its end
END = f"the context's last {LAST} places"
SPARE = 1.1  # a tenth of the tokens is more than is ever set aside


def names(form: str = LONG) -> tuple[str, ...]:
    """The regions in words."""
    borders = BORDERS[form]
    between = zip((0, *borders), borders, strict=False)
    return (*(f"positions {low} to {high - 1}" for low, high in between), f"from {borders[-1]} on")


def regions(lengths: Tokens, tokens: int, form: str = LONG) -> dict[str, Bools]:
    """Which tokens are in each region.

    Parameters
    ----------
    lengths : (N,) int64
        Length of each request's prompt.
    tokens : int
        Tokens a request asks for, T.
    form : str
        A key of `STARTS`.

    Returns
    -------
    dict of str to (N, T) bool
    """
    place = lengths[:, None] + np.arange(tokens)
    number = np.searchsorted(BORDERS[form], place, side="right")
    return {name: number == i for i, name in enumerate(names(form))}


def at_end(lengths: Tokens, tokens: int, context: int) -> Bools:
    """Which tokens are at the context's end, where caches are full and blocks are cut. [N, T]

    Parameters
    ----------
    lengths, tokens
        As in `regions`.
    context : int
        Places that there are.
    """
    return np.asarray(lengths[:, None] + np.arange(tokens) >= context - LAST)


def requests_needed(tokens: int, level: float, power: float, delta: float, form: str = LONG) -> int:
    """How many requests it takes to certify a shift of rank of `delta` in every region, all prompts
    asked equally often.
    """
    starts = STARTS[form]
    each = np.array([r.sum() for r in regions(np.array(starts), tokens, form).values()])
    turns = 1
    while True:
        got = certificate.ks_distance(level, power, int(each.min() * turns / SPARE))
        if got <= delta:
            return turns * len(starts)
        turns += 1
