"""Size, place and likely cause of a verifier's departure.

At a position that was drafted, an acceptance rule emits a law that follows from p and q
(`conformance.reference.emitted_law`). So the evidence has a likelihood under the exact rule and
under every rule of the catalogue, and their ratio is the odds of one explanation against another.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from conformance.cause import Cause, named
from conformance.faults import FAULTS, rule_faults
from conformance.law import Floats
from conformance.reference import EXACT, Ints, Rule, emitted_law, residual
from conformance.statistics import exact
from conformance.statistics.tables import Table, pooled_table, stacked
from conformance.verdict import Finding, Interval
from conformance.verifier.grid import LARGE
from conformance.verifier.judge import Judge, samples
from conformance.verifier.plan import GROUPS, groups
from conformance.verifier.sample import LawSample

# An explanation is offered when it beats the law by this many nats, and is said to fit when the
# evidence does not depart from it in turn.
CONVINCING = 20.0
FITS = 1e-4
SUSPECT = 1e-6  # of a stratum that is named; nothing but words depends on it
RESAMPLED = 400
SIZES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.95, 0.98, 0.99)  # of a fault, as shares of its span
SHOWN = 4
RAREST = 1e-12


@dataclass(slots=True)
class _Facts:
    """What is added up over the laws."""

    gain: dict[str, float] = field(default_factory=dict)
    fit: dict[str, list[Table]] = field(default_factory=dict)
    strata: dict[str, list[Table]] = field(default_factory=dict)
    first: list[tuple[int, Ints, Floats]] = field(default_factory=list)
    accepted: float = 0.0
    expected: float = 0.0
    spread: float = 0.0


def diagnose(judge: Judge, rejected: list[Finding]) -> tuple[Cause, str]:
    """How large the departure is, where it shows, and which fault explains it."""
    facts = _Facts()
    rules = candidates()
    for s in samples(judge.case, judge.evidence):
        if s.law.spec.vocab <= LARGE and len(s.tokens):
            _look(facts, s, rules)
    place = _place(facts, judge, rejected)
    cause, told = _cause(facts, judge)
    words = " ".join(part for part in (_size(facts, judge), place, told) if part)
    return replace(cause, place=place), words


def candidates() -> dict[str, Rule]:
    """Every acceptance rule of the catalogue, those with a size in several."""
    rules = {"exact": EXACT} | rule_faults()
    for name in rule_faults():
        span = FAULTS[name].span
        for share in SIZES if span and not span.whole else ():
            assert span is not None
            value = span.low + share * (span.high - span.low)
            rule = FAULTS[name].rule(value)
            if rule is not None and span.holds(value):
                rules[f"{name}={value:g}"] = rule
    return rules


def _look(facts: _Facts, s: LawSample, rules: dict[str, Rule]) -> None:
    width, c = s.tokens.shape[1], s.law.spec.contexts
    emitted = np.arange(width) < s.emitted[:, None]
    drafted = emitted & (np.arange(width) < width - 1)
    vocab = s.law.spec.vocab
    counts = _tally(s.prefix[drafted], s.tokens[drafted], len(s.target), vocab)[: (width - 1) * c]
    p, q = s.target[: (width - 1) * c], s.draft[: (width - 1) * c]
    label = np.stack([groups(a, b)[0] for a, b in zip(p, q, strict=True)])
    seen = np.flatnonzero(counts.any(axis=1))
    base = np.log(np.maximum(p, RAREST))
    for name, rule in rules.items():
        law = np.maximum(emitted_law(p, q, rule), 0.0)
        gain = float((counts * (np.log(np.maximum(law, RAREST)) - base)).sum())
        facts.gain[name] = facts.gain.get(name, 0.0) + gain
        facts.fit.setdefault(name, []).append(_grouped(counts[seen], law[seen], label[seen]))
    at_first = _gather(counts[0], label[0]).astype(np.int64), _gather(p[0], label[0])
    facts.first.append((int(counts[0].sum()), *at_first))
    _strata(facts, s, emitted)


def _strata(facts: _Facts, s: LawSample, emitted: np.ndarray) -> None:
    """Bonus tokens, and recovered tokens against the residual, each by itself."""
    width, vocab, rows = s.tokens.shape[1], s.law.spec.vocab, np.arange(len(s.tokens))
    k = width - 1
    last = s.emitted - 1
    stop = (rows, last)
    bonus = last == k
    strata = {
        "bonus tokens": (s.prefix[:, k][bonus], s.tokens[:, k][bonus], s.target, s.draft),
    }
    if s.proposed.shape[1] == k and not s.law.spec.certain:
        gone = ~bonus & (s.tokens[stop] != s.proposed[rows, np.minimum(last, k - 1)])
        left = residual(s.target, s.draft)
        strata["recovered tokens"] = (s.prefix[stop][gone], s.tokens[stop][gone], left, s.draft)
    for name, (prefix, token, law, key) in strata.items():
        counts = _tally(prefix, token, len(s.target), vocab)
        seen = np.flatnonzero(counts.any(axis=1))
        if seen.size:
            label = np.stack([groups(s.target[r], key[r])[0] for r in seen])
            table = _grouped(counts[seen], law[seen], label)
            facts.strata.setdefault(name, []).append(table)
    overlap = float(np.minimum(s.target[0], s.draft[0]).sum())
    facts.accepted += float((s.emitted > 1).sum())
    facts.expected += overlap * len(rows)
    facts.spread += overlap * (1 - overlap) * len(rows)


def _tally(prefix: Ints, token: Ints, rows: int, vocab: int) -> Ints:
    flat = np.bincount(prefix * vocab + token, minlength=rows * vocab)
    return flat.reshape(rows, vocab).astype(np.int64)


def _gather(values: np.ndarray, label: Ints) -> np.ndarray:
    return np.bincount(label, values, GROUPS)


def _grouped(counts: Ints, law: Floats, label: Ints) -> Table:
    """Counts and law by group; what a law gives to no group counts against it elsewhere."""
    grouped = np.stack([_gather(c, g) for c, g in zip(counts, label, strict=True)])
    mass = np.stack([_gather(m, g) for m, g in zip(law, label, strict=True)])
    return pooled_table(counts.sum(axis=1), grouped.astype(np.int64), mass)


# --- in words -------------------------------------------------------------------------------------


def total_variation(
    facts: list[tuple[int, Ints, Floats]], rng: np.random.Generator
) -> tuple[Interval, float]:
    """Mean total variation at the first position, over groups of tokens.

    Returns
    -------
    interval : Interval
        A basic bootstrap interval.
    chance : float
        What an exact verifier exceeds once in a hundred times.
    """
    n = np.array([m for m, _, _ in facts], dtype=float)
    counts = np.stack([c for _, c, _ in facts]).astype(np.int64)
    law = np.stack([p for _, _, p in facts])

    def mean(c: Ints) -> float:
        tv = 0.5 * np.abs(c / np.maximum(n, 1)[:, None] - law).sum(axis=1)
        return float((n * tv).sum() / n.sum())

    seen = mean(counts)
    share = counts / np.maximum(n, 1)[:, None]
    drawn = [mean(rng.multinomial(n.astype(np.int64), share)) for _ in range(RESAMPLED)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    interval = Interval(
        max(2 * seen - float(np.mean(drawn)), 0.0),
        max(2 * seen - float(high), 0.0),
        max(2 * seen - float(low), 0.0),
    )
    exact_law = law / law.sum(axis=1, keepdims=True)
    by_chance = [mean(rng.multinomial(n.astype(np.int64), exact_law)) for _ in range(RESAMPLED)]
    return interval, float(np.quantile(by_chance, 0.99))


def _size(facts: _Facts, judge: Judge) -> str:
    usable = [f for f in facts.first if f[0] > 0]
    if not usable:
        return ""
    tv, chance = total_variation(usable, judge.rng("total variation"))
    if tv.estimate <= chance:
        return (
            "Between groups of tokens ranked by q/p, first tokens are off by no more than chance "
            "explains."
        )
    return (
        f"First tokens are off by a total variation of {tv.estimate:.4f} on average (95% interval "
        f"{tv.low:.4f} to {tv.high:.4f})."
    )


def _place(facts: _Facts, judge: Judge, rejected: list[Finding]) -> str:
    laws = list(dict.fromkeys(f.scope.split(",")[0] for f in rejected if "grid" not in f.scope))
    laws = [n for n in laws if n in judge.evidence.tokens]
    where = []
    if laws:
        more = f" and {len(laws) - SHOWN} more" if len(laws) > SHOWN else ""
        where.append(f"it shows by itself in the laws {', '.join(laws[:SHOWN])}{more}")
    if facts.spread > 0:
        z = (facts.accepted - facts.expected) / np.sqrt(facts.spread)
        if abs(z) > 6:
            how = "more" if z > 0 else "fewer"
            where.append(f"{how} first proposals are accepted than p and q overlap")
    for name, tables in facts.strata.items():
        table = stacked(tables)
        if table.df and exact.chi_square(table, judge.rng("stratum", name)).p_value < SUSPECT:
            law = "the residual" if name == "recovered tokens" else "p"
            where.append(f"{name} are not drawn from {law}")
    return f"Where: {'; '.join(where)}." if where else ""


def _cause(facts: _Facts, judge: Judge) -> tuple[Cause, str]:
    """In fields, and in words."""
    if not facts.gain or judge.case.claims.tree:  # a tree's law follows from other rules
        return Cause("not compared"), ""
    order = sorted((n for n in facts.gain if n != "exact"), key=lambda n: -facts.gain[n])
    first = order[0]
    fault = FAULTS[first.partition("=")[0]]
    second = next(n for n in order if n.partition("=")[0] != fault.name)
    if facts.gain[first] < CONVINCING:
        return Cause("unexplained"), "No acceptance rule in the catalogue explains it."
    table = stacked(facts.fit[first])
    fit_p = exact.chi_square(table, judge.rng("fit")).p_value
    fits = fit_p >= FITS
    odds = float((facts.gain[first] - facts.gain[second]) / np.log(10))
    _, _, size = first.partition("=")
    cause = named(
        fault,
        fits,
        size=float(size) if size else fault.parameter,
        runner_up=second,
        odds_runner_up=odds,
        odds_exact=float(facts.gain[first] / np.log(10)),
        fit_p=fit_p,
    )
    if not fits:
        return cause, (
            f"None of the acceptance rules in the catalogue fits; the nearest is {first}, favoured "
            f"over {second} by odds of 10^{odds:.0f} to 1."
        )
    return cause, (
        f"Likely cause: {first} ({fault.summary}), favoured over {second} by odds of "
        f"10^{odds:.0f} to 1, and it fits."
    )
