"""From evidence to findings: the tests of one arm of one case.

Every test asks the same question, in its own way: is each emitted token a draw from the law at its
prefix? What it may spend of alpha was fixed by the plan.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from conformance.evidence import Evidence
from conformance.oracle import Oracle, Sample
from conformance.plan import JOINT_TOKENS, Case, RunPlan
from conformance.statistics import certificate, effect, exact, pit
from conformance.statistics.leak import detectable, leak
from conformance.statistics.tables import MIN_EXPECTED, Table, conditional_table, pooled_table
from conformance.statistics.two_sample import two_sample
from conformance.tinylm import Tokens
from conformance.verdict import Finding, Interval

SHOWN = 3  # examples of impossible or diverged tokens spelled out in a message


class ArmJudge:
    """Judges one arm of a sampled case.

    Parameters
    ----------
    plan, case, arm
        What was planned.
    evidence : Evidence
        What was gathered.
    """

    def __init__(self, plan: RunPlan, case: Case, arm: str, evidence: Evidence) -> None:
        assert case.workload is not None
        self.plan, self.case, self.arm = plan, case, arm
        self.level, self.power = plan.level, plan.profile.power
        self.prompts = case.workload.prompt_array
        self.oracle: Oracle = case.oracle
        self.sample: Sample = case.oracle.sample(self.prompts, evidence.prompt, evidence.tokens)

    def findings(self) -> list[Finding]:
        """Every planned finding of this arm, and support."""
        out = [support(self.sample, self.arm)]
        if self.case.decoding.greedy:
            return [*out, greedy_identity(self.sample, self.arm, self.power)]
        for t in range(self.sample.tokens.shape[1]):
            ok = self.sample.judged[:, t]
            table = conditional_table(
                self.sample.prefix[ok, t], self.sample.tokens[ok, t], self.sample.law
            )
            out += self._table(table, f"output index {t}")
        out += self._table(self._joint(JOINT_TOKENS), f"first {JOINT_TOKENS} tokens")
        return [*out, *self._all_tokens()]

    def rng(self, *what: str) -> np.random.Generator:
        """The generator that randomises one test's discrete p-values."""
        name = " / ".join((self.case.id, self.arm, *what))
        return np.random.default_rng([self.plan.seed, 3, zlib.crc32(name.encode())])

    def _table(self, table: Table, scope: str) -> Iterator[Finding]:
        kl = effect.kl_per_token(table)
        for test, fit_by in (("chi-square", exact.chi_square), ("KL", exact.likelihood_ratio)):
            if table.df == 0:
                yield self._unjudged(test, scope, "no prefix was reached often enough")
                continue
            fit = fit_by(table, self.rng(test, scope))
            yield self._finding(
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

    def _joint(self, m: int) -> Table:
        """Table of the first m tokens, one row a prompt; the law of a string is a product."""
        tokens, prompt = self.sample.tokens[:, :m], self.sample.prompt
        usable = self.sample.valid[:, m - 1]
        rows = [
            self._joint_row(p, tokens[usable & (prompt == p)]) for p in range(len(self.prompts))
        ]
        total = np.array([row[0] for row in rows])
        width = max(len(row[1]) for row in rows)
        counts, prob = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width))
        for i, (_, count, law) in enumerate(rows):
            counts[i, : len(count)], prob[i, : len(law)] = count, law
        return pooled_table(total, counts, prob)

    def _joint_row(self, p: int, tokens: Tokens) -> tuple[int, Tokens, np.ndarray]:
        """Grow the strings whose expectation is large enough; the others stay in the remainder."""
        strings, law = np.zeros((1, 0), np.int64), np.ones(1)
        for _ in range(tokens.shape[1]):
            laws = self.oracle.target_laws(np.repeat(self.prompts[[p]], len(strings), 0), strings)
            # a string that passes an ambiguous prefix has no law to be held to
            grown = law[:, None] * np.where(laws.ambiguous[:, None], 0.0, laws.probs)
            parent, token = np.nonzero(grown * len(tokens) >= MIN_EXPECTED)
            strings = np.concatenate([strings[parent], token[:, None]], axis=1)
            law = grown[parent, token]
        count = np.array([(tokens == s).all(axis=1).sum() for s in strings], dtype=np.int64)
        return len(tokens), count, law

    def _all_tokens(self) -> Iterator[Finding]:
        for test, u in self.transforms().items():
            if len(u) == 0:
                yield self._unjudged(test, "all tokens", "every law leaves no choice")
                continue
            ks = pit.kolmogorov_smirnov(u)
            yield self._finding(
                test,
                "all tokens",
                n=len(u),
                p_value=ks.p_value,
                statistic=ks.distance,
                detectable=certificate.ks_distance(self.level, self.power, len(u)),
                detectable_unit="rank shift",
            )
        if self.sample.draft is not None:
            yield self._leak()

    @cached_property
    def _open(self) -> tuple[Tokens, Tokens]:
        """Prefix and token wherever the law leaves a choice."""
        return self.sample.prefix[self.sample.open], self.sample.tokens[self.sample.open]

    def transforms(self) -> dict[str, np.ndarray]:
        """The probability integral transform of every token in each ranking, by test name."""
        law, draft = self.sample.law, self.sample.draft
        keys = {"PIT by p": law}
        if draft is not None:
            keys["PIT by q/p"] = pit.draft_key(law, draft)
        return {
            test: pit.transform(*self._open, law, key, self.rng(test)) for test, key in keys.items()
        }

    def _leak(self) -> Finding:
        assert self.sample.draft is not None
        laws = self.sample.law, self.sample.draft
        found = leak(*self._open, *laws)
        if found is None:
            return self._unjudged("draft leak", "all tokens", "the draft equals the target")
        half = 1.959964 * found.se
        return self._finding(
            "draft leak",
            "all tokens",
            n=found.n,
            p_value=found.p_value,
            statistic=found.z,
            effect={"leak": Interval(found.eps, found.eps - half, found.eps + half)},
            detectable=detectable(
                np.bincount(self._open[0], minlength=len(laws[0])), *laws, self.level, self.power
            ),
            detectable_unit="leak",
        )

    def _finding(self, test: str, scope: str, *, p_value: float, **fields: Any) -> Finding:
        rejected = p_value <= self.level
        message = (
            f"{test} on {scope}: p = {p_value:.2g}, "
            + ("below" if rejected else "above")
            + f" this test's level {self.level:.2g}"
        )
        return Finding(
            test,
            scope,
            self.arm,
            p_value=p_value,
            level=self.level,
            rejected=rejected,
            message=message,
            **fields,
        )

    def _unjudged(self, test: str, scope: str, why: str) -> Finding:
        return Finding(test, scope, self.arm, n=0, level=self.level, message=f"not judged: {why}")


def support(sample: Sample, arm: str) -> Finding:
    """One token that the law cannot emit is proof."""
    seen = sample.valid
    impossible = seen & ~sample.possible[sample.prefix, sample.tokens]
    examples = [
        f"request {i} emitted id {x} at output index {t}, outside the vocabulary"
        for i, t, x in sample.outside[:SHOWN]
    ]
    examples += [
        f"request {i} emitted token {sample.tokens[i, t]} at output index {t}, whose probability "
        "is 0"
        for i, t in list(zip(*np.nonzero(impossible), strict=True))[:SHOWN]
    ]
    count = int(impossible.sum()) + len(sample.outside)
    return Finding(
        "support",
        "all tokens",
        arm,
        n=int(seen.sum()) + len(sample.outside),
        rejected=count > 0,
        message=(
            f"{count:,} tokens the law cannot emit: {'; '.join(examples[:SHOWN])}"
            if count
            else "every token is one the law can emit"
        ),
    )


def greedy_identity(sample: Sample, arm: str, power: float) -> Finding:
    """Every token is the argmax at its own prefix, near ties set aside and counted.

    Laws are taken at the prefixes that were really emitted, so one divergence is one divergence
    and not every token after it.
    """
    judged = sample.judged
    best = sample.logits.argmax(axis=1)
    diverged = judged & (sample.tokens != best[sample.prefix])
    where = list(zip(*np.nonzero(diverged), strict=True))
    examples = []
    for i, t in where[:SHOWN]:
        logits = sample.logits[sample.prefix[i, t]]
        gap = logits.max() - logits[sample.tokens[i, t]]
        examples.append(
            f"request {i} output index {t}: token {sample.tokens[i, t]} is {gap:.3g} nats below "
            "the argmax"
        )
    n = int(judged.sum())
    near = int((sample.valid & ~judged).sum())
    rate = len(where) / n if n else 0.0
    return Finding(
        "greedy identity",
        "all tokens",
        arm,
        n=n,
        rejected=bool(where),
        effect={"diverged": Interval(rate, *_wilson(len(where), n))} if where else {},
        detectable=certificate.zero_events_rate(power, n) if n else None,
        detectable_unit="rate",
        message=(
            f"DIVERGED at {len(where):,} of {n:,} tokens: {'; '.join(examples)}"
            if where
            else f"IDENTICAL at {n:,} tokens, {near:,} near ties set aside"
        ),
    )


def _wilson(k: int, n: int) -> tuple[float, float]:
    from statsmodels.stats.proportion import proportion_confint  # noqa: PLC0415 - slow to import

    low, high = proportion_confint(k, n, method="wilson")
    return float(low), float(high)


def compare_arms(first: ArmJudge, second: ArmJudge, evidence: dict[str, Evidence]) -> Finding:
    """Two-sample test of the speculative against the control arm, whatever the law."""
    prompt = np.concatenate([evidence[j.arm].prompt for j in (first, second)])
    tokens = np.concatenate([evidence[j.arm].tokens for j in (first, second)])
    if first.case.decoding.greedy:
        return _compare_greedy(first, second)
    both = first.oracle.sample(first.prompts, prompt, tokens)
    cut = len(evidence[first.arm].tokens)
    halves = []
    for rows in (slice(None, cut), slice(cut, None)):
        ok = both.valid[rows]
        halves.append((both.prefix[rows][ok], both.tokens[rows][ok]))
    fit, n = two_sample(halves[0], halves[1], both.law.shape[1], first.rng("two-sample"))
    if fit.df == 0:
        return Finding("two-sample", "shared prefixes", "both", n=0, level=first.level)
    rejected = fit.p_value <= first.level
    return Finding(
        "two-sample",
        "shared prefixes",
        "both",
        n=n,
        p_value=fit.p_value,
        level=first.level,
        rejected=rejected,
        statistic=fit.statistic,
        df=float(fit.df),
        message=(
            "speculative and control arm "
            + ("differ" if rejected else "were not seen to differ")
            + f": p = {fit.p_value:.2g}"
        ),
    )


def _compare_greedy(first: ArmJudge, second: ArmJudge) -> Finding:
    """Where do the arms first part, and was it a near tie?"""
    a, b = first.sample, second.sample
    parted = a.tokens != b.tokens
    at = parted.argmax(axis=1)
    rows = np.flatnonzero(parted.any(axis=1))
    real = [i for i in rows if a.judged[i, at[i]]]
    return Finding(
        "two-sample",
        "shared prefixes",
        "both",
        n=len(a.tokens),
        rejected=bool(real),
        message=(
            f"speculative and control arm part at {len(real):,} of {len(a.tokens):,} prompts where "
            "no near tie explains it"
            if real
            else "speculative and control arm agree"
        ),
    )
