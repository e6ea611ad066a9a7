"""What speculation should gain: the arithmetic of Leviathan, Kalman and Matias (2023).

Every proposal of a block of k is accepted with probability a, independently, until one is not; a
step of the draft costs c steps of the target; verifying costs one step of the target, whatever k
is. arXiv 2211.17192, equation 1 and theorem 3.8.
"""

from __future__ import annotations

from collections.abc import Mapping


def expected_tokens(a: float, k: float) -> float:
    """Tokens that a block emits on average, (1 - a^(k + 1)) / (1 - a).

    Examples
    --------
    >>> expected_tokens(0.8, 4)
    3.3616
    >>> expected_tokens(1.0, 4)
    5.0
    """
    return k + 1.0 if a >= 1 else round((1 - a ** (k + 1)) / (1 - a), 12)


def predicted_speedup(a: float, blocks: Mapping[int, int], c: float) -> float:
    """Time of plain decoding over time with speculation.

    Parameters
    ----------
    a : float
        Probability that a proposal is accepted.
    blocks : mapping of int to int
        How many blocks had k proposals, by k; k = 0 is a plain step. One k alone is the theorem.
    c : float
        Time of a draft's step over time of a target's step.

    Raises
    ------
    ValueError
        If there is no block.

    Examples
    --------
    >>> round(predicted_speedup(0.8, {4: 1}, 0.05), 4)
    2.8013
    """
    total = sum(blocks.values())
    if total <= 0:
        raise ValueError("no block, so nothing to predict from")
    tokens = sum(n * expected_tokens(a, k) for k, n in blocks.items())
    steps = sum(n * (k * c + 1) for k, n in blocks.items())
    return tokens / steps
