"""From findings to a case's verdict, with the sentence that says why."""

from __future__ import annotations

import traceback
from dataclasses import replace

import numpy as np
from scipy import stats

from conformance.diagnosis import diagnose
from conformance.errors import ConformanceError, NotSupportedError
from conformance.evidence import Evidence, speculation_seen
from conformance.gather import Gathered
from conformance.judge import ArmJudge, compare_arms
from conformance.plan import Case, RunPlan
from conformance.result import ArmFacts, Bars, CaseResult, Histogram
from conformance.verdict import CaseVerdict, Finding, Speculation, Verdict

# Fewer accepted or rejected proposals than this and a pass would say little about either.
SEEN_AT_LEAST = 30
PIT_BINS = 20


def unsampled(case: Case) -> CaseResult:
    """The result of a case that was not sampled: refused, or the engine could not be asked."""
    if case.error is not None:
        why = CaseVerdict(Verdict.ERROR, f"the engine could not be asked: {case.error}")
        return CaseResult(case, why, error=case.error)
    return CaseResult(
        case,
        CaseVerdict(Verdict.NOT_SUPPORTED, f"the engine does not claim {case.refusal}; not tested"),
    )


def decide(plan: RunPlan, gathered: Gathered) -> CaseResult:
    """Judge a case; a failure in judging is the case's ERROR, never the run's end."""
    try:
        return _decide(plan, gathered)
    except Exception as exc:  # whatever it is, the other cases have a right to their verdict
        return CaseResult(
            gathered.case,
            CaseVerdict(Verdict.ERROR, f"the evidence could not be judged: {exc}"),
            error=traceback.format_exc(),
        )


def _decide(plan: RunPlan, gathered: Gathered) -> CaseResult:
    case = gathered.case
    if gathered.error is not None:
        return _failed(case, gathered)
    judges = {arm: ArmJudge(plan, case, arm, e) for arm, e in gathered.arms.items()}
    findings = [f for judge in judges.values() for f in judge.findings()]
    if "control" in judges:
        findings.append(compare_arms(judges["speculative"], judges["control"], gathered.arms))
    seen = speculation_seen(gathered.arms["speculative"])
    outside = bool(judges["speculative"].sample.outside)
    verdict = verdict_of(plan, case, findings, seen, outside)
    if verdict.verdict is Verdict.NOT_EXACT:
        cause = diagnose(judges["speculative"], gathered.arms["speculative"])
        parts = (size_of(findings), cause, verdict.why)
        verdict = replace(verdict, why=" ".join(part for part in parts if part))
    spec = judges["speculative"]
    return CaseResult(
        case,
        verdict,
        findings=tuple(findings),
        speculation=seen,
        arms=tuple(_facts(judges[arm], e) for arm, e in gathered.arms.items()),
        bars=_bars(spec),
        pit=_histograms(spec),
    )


def _failed(case: Case, gathered: Gathered) -> CaseResult:
    error = gathered.error
    assert error is not None
    answered = sum(len(e.tokens) for e in gathered.arms.values())
    if not isinstance(error, NotSupportedError):
        verdict, why = Verdict.ERROR, _sentence(error)
    elif answered == 0:
        verdict, why = Verdict.NOT_SUPPORTED, f"the engine refused the configuration: {error}"
    else:  # who may pick the requests to refuse may pick those that would show the fault
        verdict = Verdict.ERROR
        why = f"the engine refused some requests after answering {answered:,} of the case: {error}"
    arms = tuple(
        ArmFacts(arm, len(e.tokens), e.planned, int(e.tokens.size), 0, e.seconds, e.sha256)
        for arm, e in gathered.arms.items()
    )
    detail = gathered.detail or str(error)
    return CaseResult(case, CaseVerdict(verdict, why), arms=arms, error=detail)


def _sentence(error: ConformanceError) -> str:
    return {
        "BadAnswerError": f"the engine broke the contract: {error}",
        "EngineLoadError": f"the engine could not be loaded: {error}",
    }.get(type(error).__name__, f"the engine failed: {error}")


def verdict_of(
    plan: RunPlan,
    case: Case,
    findings: list[Finding],
    seen: Speculation,
    outside: bool = False,
) -> CaseVerdict:
    """Apply the rules, in this order.

    A rejection in the speculative arm alone is NOT EXACT, and so is a difference between the arms
    that only their comparison shows. If plain sampling departs from the law
    too, the declared dialect is wrong and the two arms are compared with each other instead; but
    no dialect explains ids `outside` the vocabulary in the speculative arm.
    Without a rejection, EXACT still needs speculation to have been seen and the certificate to
    reach what the profile states.
    """
    rejected = [f for f in findings if f.rejected]
    if rejected:
        return _departed(case, rejected, outside)
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
        f"{mismatch}. The two arms were not seen to differ. Correct the adapter's dialect.",
    )


def _not_rejected(
    plan: RunPlan, case: Case, findings: list[Finding], seen: Speculation
) -> CaseVerdict:
    """Nothing rejected: was there enough to see?"""
    if not seen.reported:
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            "no test rejected, but the engine reported no rounds, so nothing shows that "
            "speculation happened; return Completion.rounds",
        )
    if min(seen.accepted, seen.rejected) < SEEN_AT_LEAST:
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            f"no test rejected, but speculation was hardly seen: {seen.drafted:,} tokens proposed, "
            f"{seen.accepted:,} accepted, {seen.rejected:,} blocks rejected "
            f"(at least {SEEN_AT_LEAST} accepted and {SEEN_AT_LEAST} rejected are needed)",
        )
    return _passed(plan, case, findings)


def _passed(plan: RunPlan, case: Case, findings: list[Finding]) -> CaseVerdict:
    ruled_out = certificate_lines(case, findings)
    decisive = (
        ("greedy identity", "all tokens")
        if case.decoding.greedy
        else ("chi-square", "output index 0")
    )
    first = _certificate(findings, *decisive)
    wanted = plan.profile.greedy_rate if case.decoding.greedy else plan.profile.delta
    if first is None or first > wanted:
        got = "nothing" if first is None else f"{first:.3g}"
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            f"no test rejected, but the evidence certifies {got} where profile "
            f"{plan.profile.name} wants {wanted:g}; gather more",
            ruled_out,
        )
    return CaseVerdict(
        Verdict.EXACT,
        "no departure was found, and one of the sizes stated would have been",
        ruled_out,
    )


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
    return tuple(lines)


def _certificate(findings: list[Finding], test: str, scope: str) -> float | None:
    for f in findings:
        if (f.test, f.scope, f.arm) == (test, scope, "speculative"):
            return f.detectable
    return None


def size_of(findings: list[Finding]) -> str:
    """How large the departure is, where a test can say so in words."""
    for f in findings:
        if f.arm == "speculative" and f.rejected and f.test == "draft leak":
            e = f.effect["leak"]
            if e.estimate < 0:
                return (
                    f"The output leans away from the draft by {-e.estimate:.1%} (95% interval "
                    f"{-e.high:.1%} to {-e.low:.1%})."
                )
            return (
                f"The output leans to the draft by {e.estimate:.1%} (95% interval {e.low:.1%} to "
                f"{e.high:.1%})."
            )
        if f.arm == "speculative" and f.rejected and f.test == "greedy identity":
            return f"{f.effect['diverged'].estimate:.1%} of the greedy tokens are not the argmax."
    return ""


def _strongest(rejected: list[Finding]) -> str:
    """The most telling rejected finding: a proof, then the smallest p-value."""
    best = min(rejected, key=lambda f: (f.p_value is not None, f.p_value or 0.0))
    also = len(rejected) - 1
    more = f" ({also} more rejected)" if also else ""
    return f"Strongest evidence: {best.message}{more}."


# --- facts and plots ------------------------------------------------------------------------------


def _facts(judge: ArmJudge, evidence: Evidence) -> ArmFacts:
    sample = judge.sample
    return ArmFacts(
        arm=judge.arm,
        requests=len(evidence.tokens),
        planned=evidence.planned,
        tokens=int(evidence.tokens.size),
        set_aside=int((sample.valid & sample.ambiguous[sample.prefix]).sum()),
        seconds=evidence.seconds,
        sha256=evidence.sha256,
    )


def _bars(judge: ArmJudge) -> tuple[Bars, ...]:
    """First-token counts of every prompt; nothing to draw under greedy decoding."""
    sample = judge.sample
    if judge.case.decoding.greedy:
        return ()
    bars = []
    for p in range(len(judge.prompts)):
        rows = (sample.prompt == p) & sample.valid[:, 0]
        if not rows.any():
            continue
        node, n = sample.prefix[rows, 0][0], int(rows.sum())
        law = sample.law[node]
        observed = np.bincount(sample.tokens[rows, 0], minlength=len(law))
        shown = [x for x in np.argsort(-law, kind="stable") if law[x] > 0 or observed[x] > 0]
        bars.append(
            Bars(
                title=f"First token after prompt {p + 1}",
                labels=tuple(str(x) for x in shown),
                observed=tuple(int(observed[x]) for x in shown),
                expected=tuple(float(n * law[x]) for x in shown),
                draft=None
                if sample.draft is None
                else tuple(float(n * sample.draft[node, x]) for x in shown),
            )
        )
    return tuple(bars)


def _histograms(judge: ArmJudge) -> tuple[Histogram, ...]:
    """The transforms that the PIT tests judge, binned for the eye."""
    if judge.case.decoding.greedy:
        return ()
    out = []
    for test, u in judge.transforms().items():
        n = len(u)
        if n == 0:
            continue
        observed = np.histogram(u, bins=PIT_BINS, range=(0, 1))[0]
        # Bonferroni over the bins: all of them inside with probability 99 %
        low, high = stats.binom.interval(1 - 0.01 / PIT_BINS, n, 1 / PIT_BINS)
        out.append(
            Histogram(
                test.removeprefix("PIT by "),
                tuple(int(x) for x in observed),
                n / PIT_BINS,
                (float(low), float(high)),
            )
        )
    return tuple(out)
