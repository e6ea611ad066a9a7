"""A served case judged by the law that its control server tells; see `conformance.served.bounds`.

Whether the law is that of plain sampling is for the control arm to say: it goes through the same
tests, with twice as many answers, and where it departs no test of this module but one counts. The
one is *support*: tokens that the law excludes, compared between the arms, which needs no law.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from scipy import stats

from conformance.plan import RunPlan
from conformance.served.bets import LawWatch
from conformance.served.evidence import ServedEvidence
from conformance.served.laws import ServedLaws
from conformance.served.nodes import Node, Nodes
from conformance.served.plan import (
    BY,
    EVERYWHERE,
    FREQUENT,
    LAW_GATE,
    LAW_GATE_TESTS,
    OPENING,
    OPENINGS,
    TOLD,
    ServedCase,
    opening,
)
from conformance.served.server import AGAIN, CONTROL, END, SPECULATIVE
from conformance.statistics import effect
from conformance.statistics.banded import Banded, Row, banded
from conformance.statistics.exact import SMALLEST_P, Fit
from conformance.statistics.tables import Ints
from conformance.statistics.tree import ABSENT
from conformance.text import clean, one_line
from conformance.verdict import Finding, Interval

LONGEST_REASON = 400
LEAST_TOLD = 1e-4  # nats; smaller noise is that of single precision
Arms = Mapping[str, ServedEvidence]


def law_findings(
    plan: RunPlan,
    case: ServedCase,
    arms: Arms,
    laws: ServedLaws,
    watch: LawWatch,
    complete: bool,
) -> list[Finding]:
    """What was told of the law, and what the tests by it say, of both arms.

    Parameters
    ----------
    plan, case, arms, laws
        As for `conformance.served.judge.findings`.
    watch : LawWatch
        Bets on all that is in the arms.
    complete : bool
        Whether everything planned was asked; else the bet alone may reject.
    """
    told = _told(watch.nodes, laws)
    if not watch.nodes.expected:
        return [told]
    level = plan.level if complete else 0.0
    spec = _Counted(watch.nodes, case, (arms[SPECULATIVE],))
    control = _Counted(watch.nodes, case, (arms[CONTROL], arms[AGAIN]))
    ended = spec.ended | control.ended
    gate = [
        _gated(f, complete)
        for f in _tests(plan, case, control, ended, 0.0, "control", watch.gate.log_e, 2)
    ]
    found = list(_tests(plan, case, spec, ended, level, SPECULATIVE, watch.apart.log_e, 1))
    found = [replace(f, level=plan.level) if f.test == "e-process" else f for f in found]
    found = [replace(f, rejected=f.p_value is not None and f.p_value <= f.level) for f in found]
    if wrong := [f for f in gate if f.rejected]:
        said = f"not counted, the control arm departs from this law as well ({wrong[0].message}): "
        found = [replace(f, rejected=False, message=said + f.message) for f in found]
    if case.decoding.truncates:
        found.append(_support(spec, control, level))
    return [told, *found, *gate]


def _nats(noise: float) -> str:
    return f"{noise:.2g} nats" if noise >= LEAST_TOLD else f"less than {LEAST_TOLD:g} nats"


def _told(nodes: Nodes, laws: ServedLaws) -> Finding:
    """What is known, and what not, and why not; no test."""
    known = len(nodes.expected)
    said = (
        f"the law is known at {known:,} places from {len(laws.nodes):,} answers of up to "
        f"{laws.most:,} log-probabilities; allowed error {_nats(nodes.noise)}"
    )
    if not known:
        said = "the law could not be had"
    if why := nodes.unknown.most_common(1):
        reason, n = why[0]
        said += f"; at {n:,} places it is not known, mostly because {reason}"
    if laws.reasons and laws.reasons[-1]:
        said += f"; {clean(one_line(laws.reasons[-1], LONGEST_REASON))}"
    return Finding(TOLD, f"{EVERYWHERE}{BY}", "control", n=known, message=said)


class _Counted:
    """An arm's answers at the nodes whose laws are known."""

    def __init__(self, nodes: Nodes, case: ServedCase, parts: tuple[ServedEvidence, ...]) -> None:
        self.nodes, self.arms = nodes, len(parts)
        self.counts: dict[Node, Ints] = {}
        self.ended: set[Node] = set()  # nodes at which an answer ended: no law is of that
        self.openings: list[dict[tuple[int, ...], int]] = [{} for _ in case.texts]
        self.answers = np.zeros(len(case.texts), dtype=np.int64)
        self.outside = np.zeros(len(case.texts), dtype=np.int64)  # with a token the law excludes
        self._cells = {
            node: {int(t): c for c, t in enumerate(nodes.laws[node].ids)} for node in nodes.expected
        }
        for e in parts:
            for p, row in zip(e.prompt.tolist(), e.symbols.tolist(), strict=True):
                self._add(p, [s for s in row if s != ABSENT])

    def _add(self, prompt: int, symbols: list[int]) -> None:
        begin = tuple(symbols[: OPENING["token"]])
        self.answers[prompt] += 1
        known = self.openings[prompt]
        known[begin] = known.get(begin, 0) + 1
        for depth, symbol in enumerate(symbols):
            node = (prompt, tuple(symbols[:depth]))
            cells = self._cells.get(node)
            if cells is None:
                return
            if symbol == END:
                self.ended.add(node)
                return
            if node not in self.counts:
                self.counts[node] = np.zeros(len(cells) + 1, dtype=np.int64)
            cell = cells.get(symbol, len(cells))
            self.counts[node][cell] += 1
            self.outside[prompt] += cell == len(cells) and self.nodes.laws[node].high[-1] == 0


def _tests(
    plan: RunPlan,
    case: ServedCase,
    counted: _Counted,
    ended: set[Node],
    level: float,
    arm: str,
    log_e: float,
    arms: int,
) -> Iterator[Finding]:
    """Every test of one arm; `arms` is how many samples it is."""
    rng = np.random.default_rng([plan.seed, zlib.crc32(case.id.encode()), 11, arms])
    noise = counted.nodes.noise
    pairs = list(_openings(case, counted, ended, arms))
    begin = banded(pairs, rng, most=OPENINGS, noise=noise * math.sqrt(2))
    tree = banded(list(_rows(counted, ended, arms)), rng, noise=noise)
    first = _fit(opening(case.unit), begin, begin.chi_square(), level, arm)
    if arm == SPECULATIVE and first.n:
        first = replace(
            first,
            detectable=begin.detectable(plan.level, plan.profile.power),
            detectable_unit="TV",
            effect=_size(begin, rng),
            message=f"{first.message}; noise allowed: {_nats(noise)}",
        )
    yield first
    yield _fit(EVERYWHERE, tree, tree.chi_square(), level, arm)
    yield _fit(FREQUENT, tree, tree.by_frequency(), level, arm)
    direction = tree.direction()
    if direction is not None:
        way = "sharper" if direction.statistic > 0 else "flatter"
        said = _fit(EVERYWHERE, tree, direction, level, arm)
        hit = f"the {arm} arm is {way} than the law (p = {direction.p_value:.2g})"
        yield replace(said, test="sharpening", message=hit if said.rejected else said.message)
    p = max(math.exp(-max(log_e, 0.0)), SMALLEST_P)
    yield Finding(
        "e-process",
        f"{EVERYWHERE}{BY}",
        arm,
        n=tree.table.n,
        p_value=p,
        level=level,
        rejected=p <= level,
        statistic=log_e,
        message=f"a bet against the law has log e = {log_e:.1f}",
    )


def _fit(scope: str, cells: Banded, fit: Fit, level: float, arm: str) -> Finding:
    if not len(cells.lowest):
        said = f"{scope}{BY}: no law is known where enough answers are expected"
        return Finding("chi-square", f"{scope}{BY}", arm, n=0, message=said)
    hit = fit.p_value <= level
    said = "departs from the law" if hit else "no departure from the law"
    return Finding(
        "chi-square",
        f"{scope}{BY}",
        arm,
        n=cells.table.n,
        p_value=fit.p_value,
        level=level,
        rejected=hit,
        statistic=fit.statistic,
        df=fit.df,
        message=f"{said} ({scope}{BY}, p = {fit.p_value:.2g})",
    )


def _gated(f: Finding, complete: bool) -> Finding:
    """As a finding of the gate, with its own level; before the planned end only the bet says."""
    level = LAW_GATE / LAW_GATE_TESTS
    looked = complete or f.test == "e-process"
    hit = looked and f.p_value is not None and f.p_value <= level
    said = f"control against its own log-probabilities, level {level:g}: {f.message}"
    return replace(f, level=0.0, rejected=hit, message=said)


def _rows(counted: _Counted, ended: set[Node], arms: int) -> Iterator[Row]:
    for node, expected in counted.nodes.expected.items():
        if not _over(node, ended):
            law = counted.nodes.laws[node]
            none = np.zeros(len(law.ids) + 1, dtype=np.int64)
            yield Row(arms * expected, counted.counts.get(node, none), law.low, law.high)


def _over(node: Node, ended: set[Node]) -> bool:
    """Whether answers end there, or before."""
    p, prefix = node
    return any((p, prefix[:k]) in ended for k in range(len(prefix) + 1))


def _openings(case: ServedCase, counted: _Counted, ended: set[Node], arms: int) -> Iterator[Row]:
    """The first two tokens together, a row for each prompt."""
    nodes = counted.nodes
    for p in range(len(case.texts)):
        root: Node = (p, ())
        if root not in nodes.expected or _over(root, ended):
            continue
        law = nodes.laws[root]
        cell: dict[tuple[int, ...], int] = {}
        low: list[float] = []
        high: list[float] = []
        for c, t in enumerate(law.ids.tolist()):
            child = (p, (t,))
            if child in nodes.expected and not _over(child, ended):
                after = nodes.laws[child]
                for k, u in enumerate(after.ids.tolist()):
                    cell[t, u] = len(low) + k
                least, most = after.least, after.most
            else:
                least = most = np.ones(1)
            cell[(t,)] = len(low) + len(least) - 1  # any other token after it
            low += (law.low[c] * least).tolist()
            high += (law.high[c] * most).tolist()
        counts = np.zeros(len(low) + 1, dtype=np.int64)
        for begin, n in counted.openings[p].items():
            counts[cell.get(begin, cell.get(begin[:1], len(low)))] += n
        yield Row(
            arms * nodes.expected[root],
            counts,
            np.array([*low, law.low[-1]]),
            np.array([*high, law.high[-1]]),
        )


def _size(cells: Banded, rng: np.random.Generator) -> dict[str, Interval]:
    """Total variation from the law, wherever in its bounds that is."""
    found = effect.total_variation(cells.table, rng)
    if found is None:
        return {}
    # a mean square of relative errors bounds the total variation that they make
    off = cells.width + math.sqrt(float(cells.noise.sum()) / max(cells.table.n, 1)) / 2
    low, high = max(found.low - off, 0.0), min(found.high + off, 1.0)
    return {"tv": replace(found, low=low, high=high)}


def _support(spec: _Counted, control: _Counted, level: float) -> Finding:
    """Answers with a token that the law excludes: has the speculative arm more of them?

    Given how many answers to a prompt have one, which arm they are of is a matter of chance where
    the arms have the same law, whatever it is: hypergeometric, and the sum over the prompts is a
    convolution.
    """
    scope = f"tokens outside the law{BY}"
    if not spec.counts:
        return Finding("support", scope, "both", n=0, message="the law excludes no token")
    mass = np.ones(1)
    for ours, theirs, n, m in zip(
        spec.outside, control.outside, spec.answers, control.answers, strict=True
    ):
        both = int(ours + theirs)
        mass = np.convolve(mass, stats.hypergeom.pmf(np.arange(both + 1), n + m, both, n))
    seen = int(spec.outside.sum())
    p = min(max(math.fsum(mass[seen:]), SMALLEST_P), 1.0)
    hit = p <= level
    return Finding(
        "support",
        scope,
        "both",
        n=int(spec.answers.sum()),
        p_value=p,
        level=level,
        rejected=hit,
        message=(
            f"a token that the law excludes is in {seen:,} of {spec.answers.sum():,} answers of "
            f"the speculative arm and {control.outside.sum():,} of {control.answers.sum():,} of "
            "the control arm"
        ),
    )
