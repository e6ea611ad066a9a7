"""The rules that make a verdict of findings, and the sentences that say why."""

from __future__ import annotations

import math

from conformance import far
from conformance.forms import FAR, TWIN
from conformance.plan import Case, RunPlan
from conformance.planned import ACCEPTED
from conformance.precision import beyond_rounding, note, strays
from conformance.verdict import CaseVerdict, Finding, Speculation, Verdict

# Fewer accepted or rejected proposals than this and a pass would say little about either.
SEEN_AT_LEAST = 30
# Tokens accepted by an exact rule lean to the draft by a quarter or more on our probes, whatever
# the rule; tokens that were only said to be accepted, not at all.
LEANS_AT_LEAST = 0.1
LEANING_VOCAB = 16
AIMED_AT = 48  # a Poisson count of this mean is below SEEN_AT_LEAST once in three hundred times


def verdict_of(
    plan: RunPlan,
    case: Case,
    findings: list[Finding],
    seen: Speculation,
    outside: bool = False,
    lacking: str = "",
) -> CaseVerdict:
    """Apply the rules, in this order.

    A rejection in the speculative arm alone is NOT EXACT, and so is a difference between the arms
    that only their comparison shows. If plain sampling departs from the law
    too, the declared dialect is wrong and the two arms are compared with each other instead; but
    no dialect explains ids `outside` the vocabulary in the speculative arm.
    Without a rejection, EXACT still needs speculation to have been seen, nothing to be `lacking`
    that the case is about, and the certificate to reach what the profile states.
    """
    rejected = [f for f in findings if f.rejected]
    if not outside and (few := strays(case, findings)):
        return CaseVerdict(Verdict.INCONCLUSIVE, few)
    if case.capabilities.low_precision and not outside:
        rejected, visible = beyond_rounding(findings, plan.level)
        if visible and not rejected:
            return CaseVerdict(
                Verdict.INCONCLUSIVE,
                f"the rounding of {case.capabilities.precision} is itself visible at this number "
                f"of samples ({_strongest(visible)}); the speculative arm departs no further than "
                "the control arm does",
            )
    if rejected:
        return _departed(case, rejected, outside)
    if lacking:
        return CaseVerdict(
            Verdict.INCONCLUSIVE, f"no test rejected, but these were never seen: {lacking}"
        )
    return _not_rejected(plan, case, findings, seen)


def _departed(case: Case, rejected: list[Finding], outside: bool) -> CaseVerdict:
    """Something rejected: is it the speculation, or the law it was held to?"""
    spec = [f for f in rejected if f.arm == "speculative"]
    control = [f for f in rejected if f.arm == "control"]
    apart = [f for f in rejected if f.arm == "both"]
    if spec and (outside or not control):
        alone = (
            ""
            if "control" in case.arms
            else " Without a control arm, a wrongly declared dialect cannot be told apart."
        )
        return CaseVerdict(Verdict.NOT_EXACT, _strongest(spec) + alone)
    if not control:
        return CaseVerdict(
            Verdict.NOT_EXACT, f"Each arm by itself agrees with the law, but {apart[0].message}."
        )
    mismatch = (
        "Law mismatch: plain sampling, without speculation, departs from the law in the "
        f"declared dialect ({_strongest(control)})"
    )
    if apart:
        return CaseVerdict(Verdict.NOT_EXACT, f"{apart[0].message}. Besides: {mismatch}")
    return CaseVerdict(
        Verdict.INCONCLUSIVE,
        f"{mismatch}. The two arms were not seen to differ: either the adapter declares its "
        "dialect wrongly, or the engine's sampling itself does not do what was asked.",
    )


def _not_rejected(
    plan: RunPlan, case: Case, findings: list[Finding], seen: Speculation
) -> CaseVerdict:
    """Nothing rejected: was there enough to see?"""
    if not seen.reported:
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            "no test rejected, but the engine reported neither rounds nor counts, so nothing shows "
            "that speculation happened; return Completion.rounds",
        )
    # of a twin every proposal may be accepted, and by the usual rule is
    rarer = seen.accepted if case.form == TWIN else min(seen.accepted, seen.rejected)
    if rarer < SEEN_AT_LEAST:
        assert case.workload is not None
        needed = math.ceil(case.workload.requests * AIMED_AT / rarer) if rarer else None
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            f"no test rejected, but speculation was hardly seen: {seen.drafted:,} tokens proposed, "
            f"{seen.accepted:,} accepted, {seen.rejected:,} blocks rejected "
            f"(at least {SEEN_AT_LEAST} accepted and {SEEN_AT_LEAST} rejected are needed)"
            + (_more(case, needed) if needed else "; no number of samples is known to help"),
            needed=needed,
        )
    if _invented(case, findings):
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            "no test rejected, but the tokens that are reported as accepted do not lean to the "
            "draft at all, as tokens that a draft proposed must: the reported rounds cannot be "
            "believed, so nothing shows that speculation happened",
        )
    return _passed(plan, case, findings)


def _invented(case: Case, findings: list[Finding]) -> bool:
    """Whether rounds were made up: accepted tokens are what the draft proposed, so that they lean
    to it under any rule; in a tiny vocabulary a tree of proposals may hold every token.
    """
    if case.capabilities.draft != "model" or case.oracle.probe.recipe.vocab_size < LEANING_VOCAB:
        return False
    lean = [f.effect["leak"] for f in findings if f.scope == ACCEPTED and f.effect]
    return bool(lean) and lean[0].high < LEANS_AT_LEAST


def _passed(plan: RunPlan, case: Case, findings: list[Finding]) -> CaseVerdict:
    ruled_out = certificate_lines(case, findings)
    decisive = (
        ("greedy identity", "all tokens")
        if case.decoding.greedy
        else ("chi-square", "output index 0")
    )
    first = _certificate(findings, *decisive)
    if case.form in FAR:
        shown = [_certificate(findings, "PIT by p", region) for region in far.names(case.form)]
        first = None if None in shown else max(s for s in shown if s is not None)
    wanted = plan.profile.greedy_rate if case.decoding.greedy else plan.profile.delta
    if first is None or first > wanted:
        got = "nothing" if first is None else f"{first:.3g}"
        needed = _needed(case, first, wanted)
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            f"no test rejected, but the evidence certifies {got} where profile "
            f"{plan.profile.name} wants {wanted:g}"
            + (_more(case, needed) if needed else "; no number of samples is known to help"),
            ruled_out,
            needed=needed,
        )
    return CaseVerdict(
        Verdict.EXACT,
        "no departure was found, and one of the sizes stated would have been" + note(case),
        ruled_out,
    )


def _needed(case: Case, certified: float | None, wanted: float) -> int | None:
    """Requests an arm with which the certificate should reach what is wanted."""
    if certified is None:
        return None
    assert case.workload is not None
    # a rate is certified by 1 / n, a total variation by 1 / sqrt(n); an addition also spends less
    # alpha, and uses up a few more tokens at near ties
    power = 1 if case.decoding.greedy else 2
    return math.ceil(case.workload.requests * 1.1 * (certified / wanted) ** power)


def _more(case: Case, needed: int) -> str:
    assert case.workload is not None
    more = max(needed - case.workload.requests, 1)
    return f"; about {more:,} more requests an arm should settle it (conformance run --resume)"


def certificate_lines(case: Case, findings: list[Finding]) -> tuple[str, ...]:
    """What a pass rules out, with the profile's power, in words and most telling first."""
    lines = []
    if case.decoding.greedy:
        rate = _certificate(findings, "greedy identity", "all tokens")
        if rate is not None:
            lines.append(f"{rate:.2%} of the greedy tokens, or more, not being the argmax")
    first = _certificate(findings, "chi-square", "output index 0")
    if first is not None:
        lines.append(f"a first token off by total variation {first:.3f} or more")
    leaked = _certificate(findings, "draft leak", "all tokens")
    if leaked is not None:
        lines.append(f"{leaked:.1%} or more of the draft leaking into the output")
    shift = _certificate(findings, "PIT by p", "all tokens")
    if shift is not None:
        lines.append(
            f"likely tokens gaining or losing a share of {shift:.3f} or more, over all positions"
        )
    lines += [
        f"{scope}: likely tokens gaining or losing a share of {got:.3f} or more"
        for scope in (far.names(case.form) if case.form in FAR else ())
        if (got := _certificate(findings, "PIT by p", scope)) is not None
    ]
    return tuple(lines)


def _certificate(findings: list[Finding], test: str, scope: str) -> float | None:
    for f in findings:
        if (f.test, f.scope, f.arm) == (test, scope, "speculative"):
            return f.detectable
    return None


def size_of(findings: list[Finding]) -> str:
    """How large the departure is, in words: leak, total variation and divergence, as far as each
    is seen.
    """
    mine = [f for f in findings if f.arm == "speculative"]
    return " ".join(part for part in (_leak_of(mine), _distance_of(mine), _rate_of(mine)) if part)


def _leak_of(findings: list[Finding]) -> str:
    for f in findings:
        if (f.test, f.scope) == ("draft leak", "all tokens") and f.effect:
            e = f.effect["leak"]
            if e.high < 0:
                return (
                    f"The output leans away from the draft by {-e.estimate:.1%} (95% interval "
                    f"{-e.high:.1%} to {-e.low:.1%})."
                )
            if e.low > 0:
                return (
                    f"The output leans to the draft by {e.estimate:.1%} (95% interval {e.low:.1%} "
                    f"to {e.high:.1%})."
                )
    return ""


def _distance_of(findings: list[Finding]) -> str:
    """At the output index where the departure is seen most clearly."""
    tables = [f for f in findings if f.test == "chi-square" and f.effect.get("tv")]
    seen = [f for f in tables if f.effect["tv"].low > 0 and f.scope.startswith("output index")]
    if not seen:
        return ""
    f = max(seen, key=lambda f: f.effect["tv"].low)
    tv, kl = f.effect["tv"], f.effect.get("kl_nats_per_token")
    says = (
        f"At {f.scope} it is off by a total variation of {tv.estimate:.3f} (95% interval "
        f"{tv.low:.3f} to {tv.high:.3f})"
    )
    if kl is not None:
        says += f", {kl.estimate:.2g} nats per token ({kl.low:.2g} to {kl.high:.2g})"
    return says + "."


def _rate_of(findings: list[Finding]) -> str:
    for f in findings:
        if f.test == "greedy identity" and f.rejected:
            return f"{f.effect['diverged'].estimate:.1%} of the greedy tokens are not the argmax."
    return ""


def _strongest(rejected: list[Finding]) -> str:
    """The most telling rejected finding: a proof, then the smallest p-value."""
    best = min(rejected, key=lambda f: (f.p_value is not None, f.p_value or 0.0))
    also = len(rejected) - 1
    more = f" ({also} more rejected)" if also else ""
    return f"Strongest evidence: {best.message}{more}."
