"""From evidence to findings: the tests of one arm of one sampled case.

Every test asks the same question, in its own way: is each emitted token a draw from the law at its
prefix? What it may spend of alpha was fixed by the plan.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from conformance import far, siblings
from conformance.betting import course
from conformance.evidence import Evidence
from conformance.forms import FAR, FORMS, SEVERAL
from conformance.greedy import support
from conformance.law import Bools, Floats
from conformance.oracle import NONE, Oracle
from conformance.plan import Case, RunPlan
from conformance.planned import (
    ACCEPTED,
    BLOCKS,
    BY_ID,
    CONSECUTIVE,
    EVERYWHERE,
    JOINT_TOKENS,
    NEIGHBOURS,
    SIBLINGS,
    STRATA,
    apart_lags,
    repeat_lags,
)
from conformance.reading import Reading, Uniforms
from conformance.statistics import certificate, effect, eprocess, exact, pit
from conformance.statistics.independence import (
    Coincidences,
    Correlation,
    coincidences,
    correlation_at_lag,
)
from conformance.statistics.repeats import Repeats, repeats_anywhere, repeats_at_lag
from conformance.statistics.tables import MIN_EXPECTED, Table, pooled_table
from conformance.strata import BONUS, FIRST, LATER, block_places, slanted
from conformance.tinylm import Tokens
from conformance.verdict import Finding


class ArmJudge:
    """Judges one arm of a sampled case.

    Parameters
    ----------
    plan, case, arm
        What was planned.
    evidence : Evidence
        What was gathered.
    complete : bool
        Whether all that was planned is there. Where sampling was stopped early, only support and
        the e-process may reject; every other test assumes the planned end.
    """

    def __init__(
        self, plan: RunPlan, case: Case, arm: str, evidence: Evidence, complete: bool = True
    ) -> None:
        assert case.workload is not None
        self.plan, self.case, self.arm, self.complete = plan, case, arm, complete
        self.level, self.power = plan.level, plan.profile.power
        self.prompts = case.workload.prompt_array
        self.repeated = len(case.workload.repeated_prompts)
        self.oracle: Oracle = case.oracle
        self.answer = evidence.answer_of
        self.tree = case.oracle.tree(evidence.prompt, evidence.tokens, evidence.lengths)
        self.strata = self._strata(evidence)
        uniforms = Uniforms(
            *(
                self.rng(f"PIT by {ranking}").random(evidence.tokens.size)
                for ranking in ("p", "q/p", "id")
            )
        )
        self.reading = Reading(
            case.oracle, self.prompts, self.tree, uniforms, self.strata | self._ends, self.repeated
        )

    def _strata(self, evidence: Evidence) -> dict[str, Bools]:
        """Tokens by place in the block, where the engine reported rounds. [N, T] each"""
        if self.arm != "speculative" or self.case.capabilities.draft == "none":
            return {}
        places = block_places(evidence)
        if places is None:
            return {}
        kind, _, accepted = places
        found = kind == FIRST, kind == LATER, kind == BONUS, accepted
        return dict(zip((*STRATA, ACCEPTED), found, strict=True))

    @property
    def _long(self) -> Tokens:
        """Length of each request's prompt. [N]"""
        return np.asarray((self.prompts != NONE).sum(axis=1)[self.tree.prompt])

    @cached_property
    def _ends(self) -> dict[str, Bools]:
        """Tokens at the end of the context, where prompts go there. [N, T]"""
        if not FORMS[self.case.form].uneven:
            return {}
        context = self.case.oracle.probe.recipe.context
        return {far.END: far.at_end(self._long, self.tree.tokens.shape[1], context)}

    @property
    def _token_wise(self) -> bool:
        """Whether places in a block are claimed to be settled before their tokens."""
        return self.case.capabilities.verification == "token"

    @cached_property
    def course(self) -> list[tuple[int, float]]:
        """Tokens looked at and the logarithm of the e-process, at every look."""
        tokens = np.cumsum(self.reading.open.sum(axis=1))
        return [(int(tokens[n - 1]), value) for n, value in course(self.reading.ledger)]

    @cached_property
    def set_aside(self) -> int:
        """Tokens at float-ambiguous prefixes."""
        return int((self.tree.valid & ~self.reading.judged).sum())

    def findings(self) -> list[Finding]:
        """Every planned finding of this arm, and support."""
        out = [support(self.tree, self.reading.impossible, self.arm), self._betting()]
        out += [] if self.case.form in FAR else self._tables()
        out += self._parts()
        out += self._transforms()
        out.append(self._surprisal())
        out += [self._leak(scope) for scope in self._leak_scopes()]
        out += [self._ranks(scope) for scope in self._leak_scopes() if scope in STRATA]
        out += self._independence()
        return out

    def rng(self, *what: str) -> np.random.Generator:
        """The generator that randomises one test's discrete p-values."""
        name = " / ".join((self.case.id, self.arm, *what))
        return np.random.default_rng([self.plan.seed, 3, zlib.crc32(name.encode())])

    def transforms(self) -> dict[str, Floats]:
        """The probability integral transform of every token in each ranking, by test name."""
        reading = self.reading
        out = {"PIT by p": reading.by_p[reading.open]}
        if reading.by_draft is not None:
            out["PIT by q/p"] = reading.by_draft[reading.open]
        return out

    def _parts(self) -> Iterator[Finding]:
        """The law at places far from the beginning, region by region; at the end of the context; or
        in further answers.
        """
        reading, parts = self.reading, dict[str, Bools]()
        if self.case.form in FAR:
            parts = far.regions(self._long, self.tree.tokens.shape[1], self.case.form)
        elif self.case.form == SEVERAL:
            parts = siblings.parts(self.answer)
        else:
            parts = self._ends
        for scope, use in parts.items():
            for test, u in (("PIT by p", reading.by_p), ("PIT by q/p", reading.by_draft)):
                if u is not None:
                    yield self._uniform(test, scope, u[reading.open & use], "no token is there")

    # --- tables -----------------------------------------------------------------------------------

    def _tables(self) -> Iterator[Finding]:
        for t in range(self.tree.tokens.shape[1]):
            yield from self._table(self.reading.table(t), f"output index {t}")
        yield from self._table(self._joint(JOINT_TOKENS), f"first {JOINT_TOKENS} tokens")

    def _table(self, table: Table, scope: str) -> Iterator[Finding]:
        sizes = {
            "tv": effect.total_variation(table, self.rng("TV", scope)),
            "kl_nats_per_token": effect.kl_per_token(table),
        }
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
                effect={name: size for name, size in sizes.items() if size is not None},
                detectable=certificate.chi_square_tv(self.level, self.power, fit.df, table.n),
                detectable_unit="TV",
            )

    def _joint(self, m: int) -> Table:
        """Table of the first m tokens, one row a repeated prompt; the law of a string is a
        product.
        """
        tokens, prompt = self.tree.tokens[:, :m], self.tree.prompt
        usable = self.tree.valid[:, m - 1]
        rows = [self._joint_row(p, tokens[usable & (prompt == p)]) for p in range(self.repeated)]
        total = np.array([row[0] for row in rows])
        width = max(len(row[1]) for row in rows)
        counts, prob = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width))
        for i, (_, count, law) in enumerate(rows):
            counts[i, : len(count)], prob[i, : len(law)] = count, law
        return pooled_table(total, counts, prob)

    def _joint_row(self, p: int, tokens: Tokens) -> tuple[int, Tokens, Floats]:
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

    # --- all tokens -------------------------------------------------------------------------------

    def _betting(self) -> Finding:
        """The e-process: may reject at any time, so also where sampling was stopped early."""
        log_e = max([0.0, *(value for _, value in self.course)])
        n = int(self.reading.open.sum())
        p_value = eprocess.p_value(log_e)
        rejected = p_value <= self.level
        against = f"a bet against the law gained a factor of 10^{log_e / np.log(10):.1f}"
        return Finding(
            "e-process",
            EVERYWHERE,
            self.arm,
            n=n,
            p_value=p_value,
            level=self.level,
            rejected=rejected,
            statistic=log_e,
            message=f"{against}, "
            + ("more" if rejected else "less")
            + f" than the {1 / self.level:.2g} it needs",
        )

    def _transforms(self) -> Iterator[Finding]:
        for test, u in self.transforms().items():
            yield self._uniform(test, EVERYWHERE, u, "every law leaves no choice")

    def _uniform(self, test: str, scope: str, u: Floats, none: str, judged: bool = True) -> Finding:
        """Are transforms uniform? `none` says why there may be none."""
        if len(u) == 0:
            return self._unjudged(test, scope, none)
        ks = pit.kolmogorov_smirnov(u)
        return self._finding(
            test,
            scope,
            n=len(u),
            p_value=ks.p_value,
            statistic=ks.distance,
            detectable=certificate.ks_distance(self.level, self.power, len(u)),
            detectable_unit="rank shift",
            judged=judged,
        )

    def _surprisal(self) -> Finding:
        found = self.reading.surprisal.result()
        if found is None:
            return self._unjudged("surprisal", EVERYWHERE, "every law leaves no choice")
        return self._finding(
            "surprisal",
            EVERYWHERE,
            n=found.n,
            p_value=found.p_value,
            statistic=found.z,
            effect={"surprisal_nats_per_token": found.excess},
            detectable=found.detectable(self.level, self.power),
            detectable_unit="nats per token",
        )

    def _leak_scopes(self) -> Iterator[str]:
        """Those with tokens, and those that were planned."""
        if self.reading.by_draft is None:
            return
        yield EVERYWHERE
        planned = self._token_wise and self.arm == "speculative"
        yield from (s for s in STRATA if planned or s in self.strata)
        if self.arm == "speculative":
            yield from self._ends
        if ACCEPTED in self.strata:
            yield ACCEPTED

    def _leak(self, scope: str) -> Finding:
        sums = self.reading.leaks.get(scope)
        found = sums.result() if sums else None
        if found is None:
            return self._unjudged("draft leak", scope, "no token tells draft from target there")
        # Accepted tokens lean to the draft whatever the rule, and without the claim that a place in
        # a block is settled before its token no stratum is a fair sample
        fair = scope in (EVERYWHERE, far.END) or (scope in STRATA and self._token_wise)
        return self._finding(
            "draft leak",
            scope,
            n=found.n,
            p_value=found.p_value,
            statistic=found.z,
            effect={"leak": found.interval},
            detectable=sums.detectable(self.level, self.power) if fair and sums else None,
            detectable_unit="leak",
            judged=fair,
        )

    def _ranks(self, scope: str) -> Finding:
        """The law at one place of the block, in the order of token ids."""
        u = np.zeros(0)
        if scope in self.strata:
            u = self.reading.by_id[self.reading.open & self.strata[scope]]
        return self._uniform(BY_ID, scope, u, "there is no such token", self._token_wise)

    def _blocks(self) -> Finding:
        """Do the first draws of a block go with those of the next block of the request before?

        A stream that is cut wrongly between requests gives one request's numbers to the next.
        """
        first, together = self.strata.get(STRATA[0]), None
        if first is not None:
            together = correlation_at_lag(*slanted(self.reading.by_id, first & self.reading.open))
        if together is None:
            return self._unjudged("correlation by id", BLOCKS, "there are too few blocks")
        return self._dependence(
            "correlation by id", BLOCKS, together, "correlation", "correlation", self._token_wise
        )

    def _independence(self) -> Iterator[Finding]:
        """Do requests, or tokens, tell of one another what their laws do not?"""
        r, tree = self.reading, self.tree
        follow = tree.prefix, tree.tokens, r.p, r.judged
        for scope, lag in repeat_lags(self.case):
            rng, repeats = self.rng("repeats", scope), None
            if lag is None:
                repeats = repeats_anywhere(*follow, rng)
            elif lag < len(tree.tokens):
                repeats = repeats_at_lag(*follow, lag, rng)
            yield self._dependence("repeats", scope, repeats, "repeated", "of requests repeated")
        # neighbours have different prompts: what they share is not what they say but the draw, and
        # samplers draw by inverting the distribution function of tokens by id or sorted by p
        near, several = (tree.prefix[1:] != tree.prefix[:-1]), self.case.form == SEVERAL
        for ranking, u in (("p", r.by_p), ("id", r.by_id)):
            looked: list[tuple[str, Floats, Bools]] = [(NEIGHBOURS, u, r.open)]
            looked.append((CONSECUTIVE, u.T, r.open.T))
            if several:
                apart = siblings.walled(u, self.answer), siblings.walled(r.open, self.answer)
                looked.append((SIBLINGS, *apart))
            for scope, turned, use in looked:
                together, test = correlation_at_lag(turned, use), f"correlation by {ranking}"
                yield self._dependence(test, scope, together, "correlation", "correlation")
            for scope, lag in apart_lags(self.case):
                together = correlation_at_lag(u.T, r.open.T, lag)
                test = f"correlation by {ranking}"
                yield self._dependence(test, scope, together, "correlation", "correlation")
        near &= r.open[1:] & r.judged[:-1]
        pairs = [(NEIGHBOURS, near)]
        pairs += [(SIBLINGS, near & (self.answer[1:, None] > 0))] if several else []
        for scope, compared in pairs:
            equal = None
            if compared.any():
                equal = coincidences(tree.tokens[1:], r.neighbour[1:], r.neighbour_p[1:], compared)
            yield self._dependence("coincidences", scope, equal, "excess", "of pairs")
        aware = self.reading.by_draft is not None
        if self.arm == "speculative" and aware and (self._token_wise or self.strata):
            yield self._blocks()

    def _dependence(
        self,
        test: str,
        scope: str,
        found: Repeats | Correlation | Coincidences | None,
        effect_name: str,
        unit: str,
        judged: bool = True,
    ) -> Finding:
        if found is None:
            return self._unjudged(test, scope, "no two requests could be compared")
        size = found.correlation if isinstance(found, Correlation) else found.rate
        return self._finding(
            test,
            scope,
            n=found.n,
            p_value=found.p_value,
            statistic=float(found.statistic),
            effect={effect_name: size},
            detectable=found.detectable(self.level, self.power),
            detectable_unit=unit,
            judged=judged,
        )

    # --- findings ---------------------------------------------------------------------------------

    def _finding(
        self, test: str, scope: str, *, p_value: float, judged: bool = True, **fields: Any
    ) -> Finding:
        if not (judged and self.complete):
            why = "sampling was stopped early" if judged else "labels may depend on the tokens"
            message = f"{test} on {scope}: p = {p_value:.2g}, for information only ({why})"
            return Finding(test, scope, self.arm, p_value=p_value, message=message, **fields)
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
