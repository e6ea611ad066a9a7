"""What an engine said of N requests, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from conformance.law import Floats
from conformance.returned import Said, numbers
from conformance.tinylm import Tokens


def stack_logprobs(logprobs: Sequence[Sequence[Said] | None], width: int) -> Floats | None:
    """Log-probabilities of N requests as one array, 0 after their ends; None if no request came
    with any. [N, width]
    """
    if all(row is None for row in logprobs):
        return None
    made = np.zeros((len(logprobs), width))
    for i, row in enumerate(logprobs):
        made[i, : width if row is None else len(row)] = np.nan if row is None else numbers(row)
    return made


def stack_counts(counts: Sequence[Sequence[int] | None]) -> Tokens | None:
    """Counts of N requests as one array; None if no request came with any. [N, 2]"""
    if all(c is None for c in counts):
        return None
    return np.array([c or (0, 0) for c in counts], dtype=np.int64).reshape(-1, 2)


def stack_rounds(rounds: Sequence[Sequence[Sequence[int]] | None]) -> Tokens | None:
    """Rounds of N requests as one array; None if any request came without."""
    if any(r is None for r in rounds):
        return None
    rows = [(i, d, a) for i, pairs in enumerate(rounds) for d, a in pairs or ()]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)
