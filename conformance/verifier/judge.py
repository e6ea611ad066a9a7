"""From a verifier's evidence to findings: every law by itself, and the whole grid together.

A fault of a verifier is the same fault at every law. So the statistics of all laws, which are
independent, are also added up: that is what certifies small departures.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from conformance.law import Floats
from conformance.plan import RunPlan
from conformance.reference import Ints
from conformance.statistics import certificate, effect, exact, pit
from conformance.statistics.exact import SMALLEST_P
from conformance.statistics.leak import LeakSum
from conformance.statistics.tables import (
    MIN_EXPECTED,
    Table,
    conditional_table,
    pooled_table,
    stacked,
)
from conformance.statistics.two_sample import two_sample
from conformance.verdict import Finding, Interval
from conformance.verifier.evidence import VerifierEvidence
from conformance.verifier.plan import GROUPS, VerifierCase, groups, position_scopes
from conformance.verifier.sample import LawSample, Strike, law_sample

BINS = 4096  # of the transforms pooled over the grid
SQUARE = 4  # independence is tested on a square of so many by so many cells
ARM = "speculative"
GRID = "whole grid"


@dataclass(slots=True)
class Pool:
    """What is added up over the grid."""

    first: list[Table] = field(default_factory=list)
    every: list[Table] = field(default_factory=list)
    ranks: dict[str, Ints] = field(default_factory=dict)
    leak: LeakSum = field(default_factory=LeakSum)
    rows: Ints = field(default_factory=lambda: np.zeros(SQUARE**2, np.int64))
    calls: Ints = field(default_factory=lambda: np.zeros(SQUARE**2, np.int64))
    strikes: list[Strike] = field(default_factory=list)
    blocks: int = 0
    accepted: int = 0
    rejected: int = 0
    drafted: int = 0
    longest: int = 0
    first_accepted: int = 0
    first_best: float = 0.0


def samples(case: VerifierCase, evidence: VerifierEvidence) -> Iterator[LawSample]:
    """Every law's sample, one at a time: the largest do not fit beside each other."""
    for name, tokens in evidence.tokens.items():
        yield law_sample(case.law(name), tokens, case.claims, evidence.run, evidence.batch[name])


class Judge:
    """Judges one verifier.

    Parameters
    ----------
    plan, case
        What was planned.
    evidence : VerifierEvidence
        What was gathered.
    """

    def __init__(self, plan: RunPlan, case: VerifierCase, evidence: VerifierEvidence) -> None:
        self.case, self.evidence = case, evidence
        self.seed, self.level, self.power = plan.seed, plan.level, plan.profile.power
        self.pool = Pool()
        self.findings: list[Finding] = []

    def run(self) -> list[Finding]:
        """Every finding that comes from sampling."""
        for sample in samples(self.case, self.evidence):
            self._count(sample)
            if not self.case.claims.greedy:
                self._law(sample)
                self._add(sample)
        grid = [] if self.case.claims.greedy else [*self._grid()]
        self.findings = [self._support(), *grid, *self.findings]
        return self.findings

    def rng(self, *what: str) -> np.random.Generator:
        """The generator that randomises one test's discrete p-values."""
        name = " / ".join((self.case.id, *what))
        return np.random.default_rng([self.seed, 4, zlib.crc32(name.encode())])

    # --- one law ----------------------------------------------------------------------------------

    def _law(self, s: LawSample) -> None:
        claims, name = self.case.claims, s.law.spec.name
        use = s.judged
        for scope, positions in position_scopes(s.law.spec, claims):
            part = use[:, positions.start : positions.stop]
            prefix = s.prefix[:, positions.start : positions.stop][part]
            token = s.tokens[:, positions.start : positions.stop][part]
            self._table(conditional_table(prefix, token, s.target), scope)
        self._table(_pairs(s), f"{name}, first two tokens")
        for test, u in s.transforms(use, self.rng("PIT", name)).items():
            if len(u) == 0:
                continue
            ks = pit.kolmogorov_smirnov(u)
            self.findings.append(
                self._finding(
                    test,
                    name,
                    n=len(u),
                    p_value=ks.p_value,
                    statistic=ks.distance,
                    detectable=certificate.ks_distance(self.level, self.power, len(u)),
                    detectable_unit="rank shift",
                )
            )
            hist = np.histogram(u, bins=BINS, range=(0, 1))[0]
            self.pool.ranks[test] = self.pool.ranks.get(test, 0) + hist
        sums = LeakSum()
        sums.add(s.prefix[use], s.tokens[use], s.target, s.draft)
        self.pool.leak = self.pool.leak.merge(sums)
        self.findings.append(self._leak(sums, name))

    def _table(self, table: Table, scope: str) -> None:
        for test in ("chi-square", "KL"):
            self.findings.append(self._fit(test, scope, table))

    def _fit(self, test: str, scope: str, table: Table, sized: bool = False) -> Finding:
        if table.df == 0:
            return Finding(
                test, scope, ARM, n=0, level=self.level, message="not judged: too few answers"
            )
        by = {"chi-square": exact.chi_square, "KL": exact.likelihood_ratio}[test]
        fit = by(table, self.rng(test, scope))
        kl = effect.kl_per_token(table) if sized or fit.p_value <= self.level else None
        return self._finding(
            test,
            scope,
            n=table.n,
            p_value=fit.p_value,
            statistic=fit.statistic,
            df=float(fit.df),
            effect={"kl_nats_per_token": kl} if kl else {},
            detectable=certificate.chi_square_tv(self.level, self.power, fit.df, table.n),
            detectable_unit="TV",
        )

    def _leak(self, sums: LeakSum, scope: str) -> Finding:
        found = sums.result()
        if found is None:
            return Finding(
                "draft leak",
                scope,
                ARM,
                n=0,
                level=self.level,
                message="not judged: target and draft are alike, or share no token",
            )
        half = 1.96 * found.se
        return self._finding(
            "draft leak",
            scope,
            n=found.n,
            p_value=found.p_value,
            statistic=found.z,
            effect={"leak": Interval(found.eps, found.eps - half, found.eps + half)},
            detectable=sums.detectable(self.level, self.power),
            detectable_unit="leak",
        )

    # --- the whole grid ---------------------------------------------------------------------------

    def _count(self, s: LawSample) -> None:
        pool, k = self.pool, s.tokens.shape[1] - 1
        accepted = s.emitted - 1
        if not self.case.claims.bonus:
            # without a bonus token the last emitted one may be the last proposal, accepted
            full = (s.emitted == k) & (s.tokens[:, k - 1] == s.proposed[:, k - 1])
            accepted = accepted + full
        pool.strikes += s.strikes
        pool.blocks += len(accepted)
        pool.drafted += k * len(accepted)
        pool.accepted += int(accepted.sum())
        pool.rejected += int((accepted < k).sum())
        pool.longest = max(pool.longest, int(accepted.max(initial=0)))
        pool.first_accepted += int((accepted > 0).sum())
        overlap = np.minimum(s.law.target[0, 0], s.law.draft[0, 0]).sum()
        pool.first_best += float(overlap) * len(accepted)

    def _add(self, s: LawSample) -> None:
        use = s.judged
        labels, prob = _grouped(s)
        prefix, cell = s.prefix[use], labels[s.prefix[use], s.tokens[use]]
        counts = np.bincount(prefix * GROUPS + cell, minlength=labels.shape[0] * GROUPS)
        counts = counts.reshape(-1, GROUPS)
        total = counts.sum(axis=1)
        self.pool.every.append(pooled_table(total, counts, prob))
        self.pool.first.append(pooled_table(total[:1], counts[:1], prob[:1]))
        self._neighbours(s)

    def _neighbours(self, s: LawSample) -> None:
        """Count first tokens of neighbouring rows, and of the same row in neighbouring calls,
        against each other: both are uniform numbers, and independent of one another.
        """
        first = np.zeros(s.tokens.shape, dtype=bool)
        first[:, 0] = True
        u = s.transforms(first, self.rng("independence", s.law.spec.name))["PIT by p"]
        cell = np.minimum((SQUARE * u).astype(np.int64), SQUARE - 1)
        batch = self.evidence.batch[s.law.spec.name]
        call, place = np.divmod(s.row, batch)
        at = np.full(int(s.row.max(initial=-1)) + 1 + batch, -1)
        at[s.row] = np.arange(len(s.row))
        for counts, mine, other in (
            (self.pool.rows, place % 2 == 0, s.row + 1),
            (self.pool.calls, call % 2 == 0, s.row + batch),
        ):
            ok = mine & (at[other] >= 0)
            if counts is self.pool.rows:
                ok &= place + 1 < batch
            np.add.at(counts, cell[ok] * SQUARE + cell[at[other[ok]]], 1)

    def _grid(self) -> Iterator[Finding]:
        pool = self.pool
        first, every = stacked(pool.first), stacked(pool.every)
        for test in ("chi-square", "KL"):
            yield self._fit(test, f"first position, {GRID}", first, sized=True)
        for test in ("chi-square", "KL"):
            yield self._fit(test, f"all positions, {GRID}", every, sized=True)
        for test, hist in pool.ranks.items():
            yield self._ranks(test, hist)
        yield self._leak(pool.leak, GRID)
        for scope, counts in (("rows of a call", pool.rows), ("consecutive calls", pool.calls)):
            yield self._independence(scope, counts.reshape(SQUARE, SQUARE))

    def _independence(self, scope: str, counts: Ints) -> Finding:
        """Whether one number tells of the other, given how often each fell where: a law that is
        wrong is no dependence.
        """
        statistic, df = 0.0, 0
        columns = np.arange(SQUARE)
        for i in range(SQUARE - 1):  # each row against those below it: independent exact tests
            first, later = (
                (np.zeros(n.sum(), dtype=np.int64), np.repeat(columns, n))
                for n in (counts[i], counts[i + 1 :].sum(axis=0))
            )
            fit, _ = two_sample(first, later, SQUARE, self.rng("independence", scope, str(i)))
            statistic, df = statistic + fit.statistic, df + fit.df
        if df == 0:
            return Finding(
                "independence", scope, ARM, n=0, level=self.level, message="not judged: no pairs"
            )
        return self._finding(
            "independence",
            scope,
            n=int(counts.sum()),
            p_value=max(float(stats.chi2.sf(statistic, df)), SMALLEST_P),
            statistic=statistic,
            df=float(df),
        )

    def _ranks(self, test: str, hist: Ints) -> Finding:
        # the distance at the edges of the bins is at most the whole distance, so that its p-value
        # errs on the safe side
        n = int(hist.sum())
        edges = np.arange(1, BINS) / BINS
        distance = float(np.abs(np.cumsum(hist)[:-1] / n - edges).max())
        return self._finding(
            test,
            GRID,
            n=n,
            p_value=max(float(stats.kstwo.sf(distance, n)), SMALLEST_P),
            statistic=distance,
            detectable=certificate.ks_distance(self.level, self.power, n) + 1 / BINS,
            detectable_unit="rank shift",
        )

    def _support(self) -> Finding:
        strikes = self.pool.strikes
        count = sum(s.count for s in strikes)
        kinds: dict[str, int] = {}
        for s in strikes:
            kinds[s.what] = kinds.get(s.what, 0) + s.count
        said = "; ".join(f"{n:,} times {what}" for what, n in kinds.items())
        examples = [e for s in strikes for e in s.examples]
        power, n = self.power, self.pool.blocks
        return Finding(
            "support",
            "all blocks",
            ARM,
            n=n + count,
            rejected=count > 0,
            detectable=certificate.zero_events_rate(power, n) if n else None,
            detectable_unit="rate",
            message=(
                f"{said}. For example: {examples[0]}"
                if count
                else "every block is one the laws can emit"
            ),
        )

    def _finding(self, test: str, scope: str, p_value: float, **fields: Any) -> Finding:
        rejected = p_value <= self.level
        message = (
            f"{test} on {scope} of the verifier: p = {p_value:.2g} is "
            + ("below" if rejected else "above")
            + f" this test's level {self.level:.2g}"
        )
        return Finding(
            test,
            scope,
            ARM,
            p_value=p_value,
            level=self.level,
            rejected=rejected,
            message=message,
            **fields,
        )


def _pairs(s: LawSample) -> Table:
    """The first two tokens of the completed strings, whose law is a product. One row."""
    n = len(s.tokens)
    p0, p1 = s.law.target[0, 0], s.law.target[1]
    heads = np.flatnonzero(n * p0 >= MIN_EXPECTED)
    law = p0[heads, None] * p1[s.law.context(1, heads)]  # [H, V]
    head, tail = np.nonzero(n * law >= MIN_EXPECTED)
    vocab = s.law.spec.vocab
    code = heads[head] * vocab + tail
    seen, times = np.unique(s.tokens[:, 0] * vocab + s.tokens[:, 1], return_counts=True)
    at = np.searchsorted(seen, code)
    hit = seen[np.minimum(at, len(seen) - 1)] == code if len(seen) else np.zeros(len(code), bool)
    count = np.where(hit, times[np.minimum(at, len(times) - 1)], 0) if len(seen) else 0 * code
    return pooled_table(np.array([n]), count[None], law[head, tail][None])


def _grouped(s: LawSample) -> tuple[Ints, Floats]:
    """Group of every token, [U, V], and the groups' probabilities, [U, GROUPS]."""
    made = [groups(p, q) for p, q in zip(s.target, s.draft, strict=True)]
    return np.stack([g for g, _ in made]), np.stack([m for _, m in made])
