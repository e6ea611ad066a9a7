"""The data behind a case's plots: counts after each prompt, and histograms of the transforms."""

from __future__ import annotations

import numpy as np
from scipy import stats

from conformance.judge import ArmJudge
from conformance.law import Floats
from conformance.result import Bars, Histogram, Trajectory
from conformance.statistics.ties import settled
from conformance.tinylm import Tokens

PIT_BINS = 20
MOST_BARS = 48  # more cannot be told apart; the rest is drawn as one


def first_token_bars(judge: ArmJudge) -> tuple[Bars, ...]:
    """First-token counts of every repeated prompt, against the law and the draft."""
    tree, prompts = judge.tree, judge.prompts[: judge.repeated]
    none = np.zeros((len(prompts), 0), np.int64)
    laws = judge.oracle.target_laws(prompts, none).probs
    raw = np.log(np.maximum(laws, 1e-300))[:, None]
    drafts = judge.oracle.draft_laws(prompts, none, raw)
    bars = []
    for p, law in enumerate(laws):
        rows = (tree.prompt == p) & tree.valid[:, 0]
        n = int(rows.sum())
        if n == 0:
            continue
        observed = np.bincount(tree.tokens[rows, 0], minlength=len(law))
        draft = None if drafts is None else drafts[p, 0]
        bars.append(counted(f"First token after prompt {p + 1}", observed, law, draft))
    return tuple(bars)


def counted(title: str, observed: Tokens, law: Floats, draft: Floats | None) -> Bars:
    """Counts of one table, [V], against the law and the draft; the likeliest tokens first."""
    n = int(observed.sum())
    order = [
        int(x) for x in np.argsort(-settled(law), kind="stable") if law[x] > 0 or observed[x] > 0
    ]
    shown, rest = order[:MOST_BARS], order[MOST_BARS:]
    return Bars(
        title=title,
        labels=(*map(str, shown), *([f"{len(rest):,} others"] if rest else [])),
        observed=tuple(int(x) for x in _cells(observed, shown, rest)),
        expected=tuple(_cells(n * law, shown, rest)),
        draft=None if draft is None else tuple(_cells(n * draft, shown, rest)),
    )


def _cells(values: Floats | Tokens, shown: list[int], rest: list[int]) -> list[float]:
    """The values shown one by one, and the sum of the others where there are any."""
    return [float(v) for v in values[shown]] + ([float(values[rest].sum())] if rest else [])


def trajectory(judge: ArmJudge) -> Trajectory:
    """The arm's e-process, at every look."""
    tokens, values = zip(*judge.course, strict=True) if judge.course else ((), ())
    return Trajectory(
        judge.arm,
        tokens,
        tuple(float(value / np.log(10)) for value in values),
        float(-np.log10(judge.level)),
    )


def pit_histograms(judge: ArmJudge) -> tuple[Histogram, ...]:
    """The transforms that the PIT tests judge, binned for the eye."""
    return tuple(
        binned(test, np.histogram(u, bins=PIT_BINS, range=(0, 1))[0])
        for test, u in judge.transforms().items()
        if len(u)
    )


def binned(test: str, observed: Tokens) -> Histogram:
    """Counts in equal bins, with what they would be if the transforms were uniform."""
    n, bins = int(observed.sum()), len(observed)
    # Bonferroni over the bins: all of them inside with probability 99 %
    low, high = stats.binom.interval(1 - 0.01 / bins, n, 1 / bins)
    return Histogram(
        test.removeprefix("PIT by "),
        tuple(int(x) for x in observed),
        n / bins,
        (float(low), float(high)),
    )
