"""How likely a proposal is accepted where target and draft are known, by exact methods."""

from __future__ import annotations

import numpy as np

from conformance.law import Floats

METHODS = ("rejection sampling", "matching", "matching the likeliest token")


def chances(law: Floats, draft: Floats) -> Floats:
    """Probability that a proposal is accepted at each of u prefixes, by each of `METHODS`.

    Parameters
    ----------
    law, draft : (u, V) float64
        Laws of target and draft.

    Returns
    -------
    (u, 3) float64
        The sum of min(p, q) over tokens, which rejection sampling attains; the sum of p * q, where
        the target is sampled and a proposal kept that it matches; and the p of the draft's
        likeliest token, where that is what is proposed.
    """
    best = np.take_along_axis(law, draft.argmax(axis=1)[:, None], axis=1)[:, 0]
    overlap = np.minimum(law, draft).sum(axis=1)
    return np.stack([overlap, np.einsum("uv,uv->u", law, draft), best], axis=1)
