"""Is one estimate larger than another? From two estimates and their intervals alone.

A report keeps estimates with intervals and no standard errors, and many of the intervals are not
symmetric (a total variation cannot be below 0). MOVER, the method of variance estimates recovery
(Zou and Donner, Statistics in Medicine 27, 2008, 1693-1702), gives an interval for the difference
from just that: what stands between each estimate and the limit that faces the other one is taken
for its uncertainty on that side. Intervals of 95 % are widened to the confidence that is asked for
as those of a normal law would be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from conformance.reports.model import IntervalModel

Direction = Literal["grew", "shrank", "not seen to differ"]
LARGEST = 1e12  # of an effect size; anything beyond is no measurement
LEAST_CONFIDENCE = 0.95  # narrower intervals than those given would claim more than is known
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate with its interval, and the number of judgements it is made from."""

    value: IntervalModel
    n: int


def z_of(confidence: float) -> float:
    """Half width of a two-sided interval of the standard normal law."""
    return -_NORMAL.inv_cdf((1 - confidence) / 2)


def each_of(confidence: float, comparisons: int) -> float:
    """Confidence of each of several comparisons that all hold with `confidence` (Bonferroni)."""
    return 1 - (1 - confidence) / max(comparisons, 1)


def usable(value: IntervalModel) -> bool:
    """Whether an interval can be compared: its confidence means something, its ends are in order.

    A report is a file, and may say anything.
    """
    ordered = -LARGEST <= value.low <= value.high <= LARGEST and abs(value.estimate) <= LARGEST
    return ordered and 0.5 <= value.confidence <= 0.9999


def size_change(old: Estimate, new: Estimate, confidence: float) -> IntervalModel:
    """By how much the size of an effect, whatever its sign, is larger than it was.

    Parameters
    ----------
    old, new : Estimate
        Of two builds; from separate samples, or of the same random numbers, which makes the
        interval wider than it need be.
    confidence : float
        Of the interval; at least `LEAST_CONFIDENCE`.

    Returns
    -------
    IntervalModel
        Of ``|new| - |old|``.
    """
    before, after = _size(old.value), _size(new.value)
    down_old, up_old = _reach(before, confidence)
    down_new, up_new = _reach(after, confidence)
    # Nothing is known without error: an interval that is clipped to a point takes the other one's
    # width, in proportion to the number of judgements.
    widest_old, widest_new = max(down_old, up_old), max(down_new, up_new)
    if widest_old == 0:
        down_old = up_old = widest_new * math.sqrt(max(new.n, 1) / max(old.n, 1))
    if widest_new == 0:
        down_new = up_new = widest_old * math.sqrt(max(old.n, 1) / max(new.n, 1))
    difference = after.estimate - before.estimate
    return IntervalModel(
        estimate=difference,
        low=difference - math.hypot(down_new, up_old),
        high=difference + math.hypot(up_new, down_old),
        confidence=confidence,
    )


def direction(difference: IntervalModel) -> Direction:
    """What an interval of a difference says."""
    if difference.low > 0:
        return "grew"
    return "shrank" if difference.high < 0 else "not seen to differ"


def _size(value: IntervalModel) -> IntervalModel:
    if value.estimate >= 0:
        return value
    return IntervalModel(
        estimate=-value.estimate, low=-value.high, high=-value.low, confidence=value.confidence
    )


def _reach(value: IntervalModel, confidence: float) -> tuple[float, float]:
    """Distance to the lower and to the upper limit, at another confidence."""
    wider = max(z_of(confidence) / z_of(value.confidence), 1.0)
    return (
        wider * max(value.estimate - value.low, 0.0),
        wider * max(value.high - value.estimate, 0.0),
    )


def accepted_share(accepted: int, drafted: int, blocks: int, confidence: float) -> IntervalModel:
    """Accepted of drafted tokens, with a Wilson interval in which each block counts once.

    Tokens of a block are accepted up to the first that is not, hence not independently. Of all laws
    on a block's share with the same mean, all or nothing has the largest variance, which is that of
    one trial a block: the interval is too wide rather than too narrow.

    Parameters
    ----------
    accepted, drafted, blocks : int
        ``0 <= accepted <= drafted``, both positive.
    confidence : float
        Of the interval.
    """
    z2 = z_of(confidence) ** 2
    share, n = accepted / drafted, blocks
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return IntervalModel(
        estimate=share,
        low=max(min(middle - half, share), 0.0),
        high=min(max(middle + half, share), 1.0),
        confidence=confidence,
    )
