"""What drafting costs, what the formula makes of it, and where the difference to the clock lies."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conformance import wire
from conformance.bench.clocks import Pace
from conformance.bench.formula import predicted_speedup
from conformance.bench.intervals import Measured, bootstrap, median
from conformance.law import Floats


@dataclass(frozen=True, slots=True)
class Later:
    """The blocks after the first of every request, summed over one call.

    The first block of a request is not timed apart from reading the prompt, so all that is compared
    with the clock leaves it out.
    """

    drafted: Counter[int]
    tokens: int
    blocks: int
    looked_at: int
    kept: int


def later_blocks(completions: Sequence[wire.Json]) -> Later | None:
    """Read one call; None if any request came without rounds, or none has a second block."""
    drafted: Counter[int] = Counter()
    tokens = blocks = looked_at = kept = 0
    for completion in completions:
        rounds = completion.get("rounds")
        if rounds is None:
            return None
        tokens += max(0, len(completion["tokens"]) - rounds[0][1] - 1)
        blocks += len(rounds) - 1
        for k, n in rounds[1:]:
            drafted[k] += 1
            looked_at += min(n + 1, k)
            kept += n
    return Later(drafted, tokens, blocks, looked_at, kept) if blocks else None


@dataclass(frozen=True, slots=True)
class Cost:
    """The parts of a block, and two predictions of the speed-up.

    Parameters
    ----------
    ratio : Measured or None
        c, a step of the draft over a step of the target; None where the draft cannot be run alone.
    predicted : Measured or None
        By the formula, from the acceptance rate, the numbers of proposals, and c.
    from_blocks : float or None
        The same without the assumption that every proposal fares alike: the tokens that blocks
        did emit.
    measured : Measured or None
        Time of a token without speculation over time of a token with it, after the first block.
    proposals : float or None
        Proposals of a block on average.
    target, draft, block : float or None
        Seconds of a step of the target, of a step of the draft, and of a block.
    rest : float or None
        Seconds of a block beyond drafting and one step of the target.
    """

    ratio: Measured | None = None
    predicted: Measured | None = None
    from_blocks: float | None = None
    measured: Measured | None = None
    proposals: float | None = None
    target: float | None = None
    draft: float | None = None
    block: float | None = None
    rest: float | None = None


def cost(
    speculative: Pace,
    control: Pace,
    draft: Pace | None,
    calls: Sequence[Sequence[wire.Json]],
    free: bool,
) -> Cost:
    """Compare one cell with the formula.

    Parameters
    ----------
    speculative, control, draft : Pace
        The arms, over the same repeats; `draft` is None where the draft cannot be run alone.
    calls : sequence of sequence of dict
        Completions of every call of the speculative arm.
    free : bool
        Whether proposals come without a model's step (n-gram lookup), so that c is 0 and whatever
        looking up costs is part of the rest.
    """
    t, s = control.decode, speculative.decode
    pairs = [(a, b) for a, b in zip(t, s, strict=True) if a and b and a > 0 and b > 0]
    measured = median([a / b for a, b in pairs])
    target = _median(t)
    block, step = _median(speculative.round), None if draft is None else _median(draft.decode)
    ratios: list[float] | None = None
    if draft is not None:
        ratios = [
            d / a if a and d and a > 0 and d > 0 else float("nan")
            for d, a in zip(draft.decode, t, strict=True)
        ]
    elif free:
        ratios, step = [0.0] * len(t), 0.0
    known = [] if ratios is None else [r for r in ratios if math.isfinite(r)]
    ratio = None if draft is None or not known else median(known)
    later = [later_blocks(c) for c in calls]
    told = [x for x in later if x is not None]
    if not told or len(told) != len(later) or not known or ratios is None:
        return Cost(ratio=ratio, measured=measured, target=target, draft=step, block=block)
    found = _Predict(told, np.array(ratios))
    everything = np.arange(len(told))
    point = found(everything)
    k = sum(n * x for one in told for n, x in one.drafted.items()) / sum(o.blocks for o in told)
    parts = None
    if None not in (block, step, target):
        parts = block - k * step - target  # type: ignore[operator]
    low, high = bootstrap(found, len(told))
    tokens = sum(o.tokens for o in told) / sum(o.blocks for o in told)
    return Cost(
        ratio=ratio,
        predicted=Measured(point, low, high, len(told)) if math.isfinite(point) else None,
        from_blocks=tokens / (k * statistics.median(known) + 1),
        measured=measured,
        proposals=k,
        target=target,
        draft=step if draft is not None else None,
        block=block,
        rest=parts,
    )


class _Predict:
    """The formula's speed-up of some repeats, given by number; NaN where nothing was verified."""

    def __init__(self, later: Sequence[Later], ratios: Floats) -> None:
        longest = max((k for one in later for k in one.drafted), default=0)
        self._drafted = np.array(
            [[one.drafted.get(k, 0) for k in range(longest + 1)] for one in later]
        )  # [R, k]
        self._looked_at = np.array([one.looked_at for one in later])
        self._kept = np.array([one.kept for one in later])
        self._ratios = ratios

    def __call__(self, rows: np.ndarray) -> float:
        looked_at = int(self._looked_at[rows].sum())
        ratios = self._ratios[rows]
        ratios = ratios[np.isfinite(ratios)]
        if not looked_at or not len(ratios):
            return float("nan")
        blocks = dict(enumerate(self._drafted[rows].sum(axis=0).tolist()))
        rate = self._kept[rows].sum() / looked_at
        return predicted_speedup(float(rate), blocks, float(np.median(ratios)))


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None
