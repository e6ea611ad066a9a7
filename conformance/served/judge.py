"""The findings of a served case, from its evidence alone."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from scipy import stats

from conformance.plan import RunPlan
from conformance.result import Bars
from conformance.served.by_law import law_findings
from conformance.served.evidence import ServedEvidence
from conformance.served.laws import ServedLaws
from conformance.served.order import Watch, replayed
from conformance.served.plan import (
    EVERYWHERE,
    FREQUENT,
    GATE,
    GATE_TESTS,
    OPENING,
    OPENINGS,
    PREVIOUS,
    ServedCase,
    bands,
    opening,
)
from conformance.served.server import AGAIN, CONTROL, END, SPECULATIVE
from conformance.statistics import certificate
from conformance.statistics.exact import SMALLEST_P, Fit
from conformance.statistics.tables import Ints
from conformance.statistics.tree import ABSENT, Bools, Cells, compared, followed
from conformance.text import clean, one_line
from conformance.verdict import Finding, Interval

Arms = Mapping[str, ServedEvidence]
SHOWN_PROMPTS, SHOWN_BARS = 4, 12
HALVES = 2


class Samples:
    """Two samples of sequences, stacked."""

    def __init__(self, first: ServedEvidence, *second: ServedEvidence) -> None:
        both = (first, *second)
        self.symbols: Ints = np.concatenate([e.symbols for e in both])
        self.prompt: Ints = np.concatenate([e.prompt for e in both])
        self.first: Bools = np.arange(len(self.prompt)) < len(first.prompt)
        self.unit = "character" if first.unit == "character" else "token"

    def opening(self) -> Ints:
        """What each answer begins with, as one symbol. [N, 1]"""
        begin = self.symbols[:, : OPENING["character" if self.unit == "character" else "token"]]
        return np.asarray(np.unique(begin, axis=0, return_inverse=True)[1]).reshape(-1, 1)


def findings(
    plan: RunPlan,
    case: ServedCase,
    arms: Arms,
    complete: bool,
    laws: ServedLaws | None = None,
) -> Iterator[Finding]:
    """Every test of a sampled decoding; and for the gate, those of control against control.

    Where sampling was `stopped` early the bet alone may reject: it is the one that may be looked at
    whenever one likes.
    """
    watch = replayed(plan, case, dict(arms), laws)
    main = Samples(arms[SPECULATIVE], arms[CONTROL], arms[AGAIN])
    level = plan.level if complete else 0.0
    rng = _rng(plan, case, 0)
    yield from _two_samples(plan, case, main, level, rng)
    yield _bet(case, watch, plan.level, gate=False)
    yield _coincidences(arms[SPECULATIVE], level, "speculative")
    rng = _rng(plan, case, 1)
    for f in _two_samples(plan, case, Samples(arms[CONTROL], arms[AGAIN]), 0.0, rng, gate=True):
        if f.scope in (opening(case.unit), EVERYWHERE):
            yield f
    yield _bet(case, watch, GATE / GATE_TESTS, gate=True)
    yield _gated(_coincidences(arms[CONTROL], 0.0, "control"))
    if watch.law is not None and laws is not None:
        yield from law_findings(plan, case, arms, laws, watch.law, complete)


def _rng(plan: RunPlan, case: ServedCase, what: int) -> np.random.Generator:
    return np.random.default_rng([plan.seed, zlib.crc32(case.id.encode()), 5, what])


def _gated(f: Finding) -> Finding:
    """The same, as a finding of the gate: it spends no alpha, and has a level of its own."""
    hit = f.p_value is not None and f.p_value <= GATE / GATE_TESTS
    said = f"control against control, level {GATE / GATE_TESTS:g}: {f.message}"
    return Finding(
        f.test, f.scope, "control", f.n, f.p_value, 0.0, hit, f.statistic, f.df, message=said
    )


def _two_samples(
    plan: RunPlan,
    case: ServedCase,
    samples: Samples,
    level: float,
    rng: np.random.Generator,
    gate: bool = False,
) -> Iterator[Finding]:
    begin = compared(samples.opening(), samples.prompt, samples.first, rng, OPENINGS)
    tree = compared(samples.symbols, samples.prompt, samples.first, rng)
    arm = "control" if gate else "both"
    first = _fit(opening(case.unit), begin, begin.chi_square(), level, arm)
    if not gate and len(begin.z):
        df, n = len(begin.z), max(int(begin.effective), 1)
        tv = certificate.chi_square_tv(plan.level, plan.profile.power, df, n)
        told = f"{first.message}; {_share(begin, samples):.0%} of the answers begin alike enough"
        first = replace(
            first, detectable=tv, detectable_unit="TV", effect=_distance(samples), message=told
        )
    yield _gated(first) if gate else first
    if not gate:
        for scope, depths in bands(case.unit, case.width):
            cells = tree.at(depths)
            yield _fit(scope, cells, cells.chi_square(), level, arm)
    whole = _fit(EVERYWHERE, tree, tree.chi_square(), level, arm)
    yield _gated(whole) if gate else whole
    if not gate:
        yield _fit(FREQUENT, tree, tree.by_frequency(), level, arm)
    direction = tree.direction()
    if direction is not None:
        sharp = _direction(tree, direction, level, arm)
        yield _gated(sharp) if gate else sharp


def _fit(scope: str, cells: Cells, fit: Fit, level: float, arm: str) -> Finding:
    if not len(cells.z):
        said = "no symbol is frequent enough to be compared"
        return Finding("two-sample", scope, arm, n=0, message=f"{scope}: {said}")
    hit = fit.p_value <= level
    said = "the arms differ" if hit else "no difference between the arms"
    return Finding(
        "two-sample",
        scope,
        arm,
        n=cells.n,
        p_value=fit.p_value,
        level=level,
        rejected=hit,
        statistic=fit.statistic,
        df=fit.df,
        message=f"{said} ({scope}, p = {fit.p_value:.2g})",
    )


def _direction(cells: Cells, fit: Fit, level: float, arm: str) -> Finding:
    hit = fit.p_value <= level
    way = "sharper" if fit.statistic > 0 else "flatter"
    said = f"the speculative arm is {way} than plain sampling" if hit else "neither arm is sharper"
    return Finding(
        "sharpening",
        EVERYWHERE,
        arm,
        n=cells.n,
        p_value=fit.p_value,
        level=level,
        rejected=hit,
        statistic=fit.statistic,
        message=f"{said} (p = {fit.p_value:.2g})",
    )


def _bet(case: ServedCase, watch: Watch, level: float, gate: bool) -> Finding:
    del case
    pairs = watch.gate if gate else watch.apart
    p = max(math.exp(-max(pairs.log_e, 0.0)), SMALLEST_P)
    hit = p <= level
    said = "a bet on a difference was won" if hit else "no bet on a difference was won"
    found = Finding(
        "e-process",
        EVERYWHERE,
        "both",
        n=pairs.n,
        p_value=p,
        level=level,
        rejected=hit,
        statistic=pairs.log_e,
        message=f"{said} (log e = {pairs.log_e:.1f} after {pairs.n:,} pairs)",
    )
    return _gated(found) if gate else found


def _coincidences(e: ServedEvidence, level: float, arm: str) -> Finding:
    seen = followed(e.symbols, e.prompt, 1)
    if seen is None:
        return Finding("coincidences", PREVIOUS, arm, n=0, message="nothing to compare")
    hit = seen.p_value <= level
    said = (
        f"{seen.observed:,} of {seen.n:,} symbols agree with those of {PREVIOUS}, "
        f"{seen.expected:,.0f} are expected"
    )
    return Finding(
        "coincidences",
        PREVIOUS,
        arm,
        n=seen.n,
        p_value=seen.p_value,
        level=level,
        rejected=hit,
        statistic=seen.statistic,
        message=said,
    )


def _share(begin: Cells, samples: Samples) -> float:
    """Share of all answers whose beginning is a cell of its own."""
    return float(begin.joint.sum()) / max(len(samples.prompt), 1)


def _distance(samples: Samples) -> dict[str, Interval]:
    """Mean total variation of the openings, estimated so that it is not too large: which openings
    the first arm favours is taken from one half of the answers, and how much from the other.
    """
    code = samples.opening()[:, 0]
    total, variance, weight = 0.0, 0.0, 0.0
    for p in np.unique(samples.prompt):
        mine = np.flatnonzero(samples.prompt == p)
        for half in range(HALVES):
            parts = []
            for arm in (True, False):
                rows = mine[samples.first[mine] == arm]
                parts.append((code[rows[half::HALVES]], code[rows[1 - half :: HALVES]]))
            (fit_a, use_a), (fit_b, use_b) = parts
            if min(map(len, (fit_a, use_a, fit_b, use_b))) == 0:
                continue
            size = int(code.max()) + 1
            more = np.bincount(fit_a, minlength=size) / len(fit_a) > np.bincount(
                fit_b, minlength=size
            ) / len(fit_b)
            a, b, w = float(more[use_a].mean()), float(more[use_b].mean()), float(len(mine))
            total += w * (a - b)
            variance += w * w * (a * (1 - a) / len(use_a) + b * (1 - b) / len(use_b))
            weight += w
    if not weight:
        return {}
    tv = total / weight
    half_width = float(stats.norm.isf(0.025)) * math.sqrt(variance) / weight
    return {"tv": Interval(tv, tv - half_width, tv + half_width)}


# --- pictures -------------------------------------------------------------------------------------


def opening_bars(case: ServedCase, arms: Arms) -> tuple[Bars, ...]:
    """What the answers to a few prompts begin with; expected is what the control arm did."""
    spec, control = arms[SPECULATIVE], (arms[CONTROL], arms[AGAIN])
    k = OPENING[case.unit]
    out = []
    for p in range(min(SHOWN_PROMPTS, len(case.texts))):
        mine = [tuple(r) for r in spec.symbols[spec.prompt == p][:, :k].tolist()]
        plain = [tuple(r) for e in control for r in e.symbols[e.prompt == p][:, :k].tolist()]
        if not mine or not plain:
            continue
        both = mine + plain
        common = sorted(set(both), key=lambda s: (-both.count(s), s))[:SHOWN_BARS]
        share = len(mine) / len(plain)
        observed = [mine.count(s) for s in common]
        expected = [plain.count(s) * share for s in common]
        if len(set(both)) > len(common):
            observed.append(len(mine) - sum(observed))
            expected.append(len(mine) - sum(expected))
        labels = [_label(s, case.unit) for s in common]
        out.append(
            Bars(
                title=f"{opening(case.unit)} after {one_line(case.texts[p], 60)!r}; expected: the "
                "control arm's share",
                labels=(*labels, *(["others"] if len(observed) > len(common) else [])),
                observed=tuple(observed),
                expected=tuple(expected),
                draft=None,
            )
        )
    return tuple(out)


def _label(symbols: tuple[int, ...], unit: str) -> str:
    kept = [s for s in symbols if s != ABSENT]
    if unit == "token":
        return " ".join("end" if s == END else str(s) for s in kept)
    return clean("".join("␃" if s == END else chr(s) for s in kept))
