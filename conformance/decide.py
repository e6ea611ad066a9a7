"""A case judged: from what was gathered to findings, verdict and pictures."""

from __future__ import annotations

import traceback
from dataclasses import replace

from conformance import siblings
from conformance.acceptance import acceptance
from conformance.again import TEST as REPRODUCIBILITY
from conformance.again import repeated
from conformance.cause import cause_of
from conformance.compare import compare_arms
from conformance.diagnosis import diagnose
from conformance.errors import ConformanceError, NotSupportedError
from conformance.evidence import Evidence
from conformance.forms import FORMS, PLAIN, SEVERAL, TOGETHER
from conformance.gather import Gathered
from conformance.greedy import GreedyJudge, compare_greedy
from conformance.judge import ArmJudge
from conformance.logprobs import added, judge_logprobs
from conformance.pictures import first_token_bars, pit_histograms, trajectory
from conformance.plan import AGAIN, ROUNDING, Case, RunPlan
from conformance.precision import with_measured_noise
from conformance.result import ArmFacts, CaseResult
from conformance.rules import size_of, verdict_of
from conformance.speculation import speculation_seen
from conformance.uneven import apart, missing
from conformance.uneven import finding as unevenness
from conformance.verdict import CaseVerdict, Finding, Speculation, Verdict


def unsampled(case: Case) -> CaseResult:
    """The result of a case that was not sampled: refused, or the engine could not be asked."""
    if case.error is not None:
        why = CaseVerdict(Verdict.ERROR, f"the engine could not be asked: {case.error}")
        return CaseResult(case, why, error=case.error)
    return CaseResult(
        case,
        CaseVerdict(Verdict.NOT_SUPPORTED, f"the engine does not claim {case.refusal}; not tested"),
    )


def decide(plan: RunPlan, gathered: Gathered, explain: bool = True) -> CaseResult:
    """Judge a case; a failure in judging is the case's ERROR, never the run's end.

    `explain` looks for the likely cause of a departure, which takes longer than finding it.
    """
    try:
        return _decide(plan, gathered, explain)
    except Exception as exc:  # whatever it is, the other cases have a right to their verdict
        return CaseResult(
            gathered.case,
            CaseVerdict(Verdict.ERROR, f"the evidence could not be judged: {exc}"),
            error=traceback.format_exc(),
        )


def _decide(plan: RunPlan, gathered: Gathered, explain: bool) -> CaseResult:
    case = gathered.case
    if gathered.error is not None:
        return _failed(case, gathered)
    complete = not gathered.stopped
    if complete and any(len(e.tokens) != e.planned for e in gathered.arms.values()):
        raise RuntimeError("requests were planned and have no answer")
    again = gathered.arms.get(AGAIN)
    asked = gathered.arms[TOGETHER if TOGETHER in gathered.arms else "speculative"]
    arms = apart(case, {arm: e for arm, e in gathered.arms.items() if arm != AGAIN})
    case = with_measured_noise(case, arms.pop(ROUNDING, arms.get("control")))
    gathered = replace(gathered, case=case, arms=arms)
    seen = speculation_seen(gathered.arms["speculative"])
    uneven = FORMS[case.form].uneven and complete
    shown = [unevenness(case, asked)] if uneven else []
    lacking = missing(case, asked) if uneven else ""
    if case.form == SEVERAL:
        shown = [siblings.finding(case, asked)]
        lacking = siblings.missing(case, asked) if complete else ""
    if case.decoding.greedy:
        return _decide_greedy(plan, gathered, seen, shown, lacking)
    judges = {arm: ArmJudge(plan, case, arm, e, complete) for arm, e in gathered.arms.items()}
    findings = shown + [f for judge in judges.values() for f in judge.findings()]
    if "control" in judges:
        findings.append(compare_arms(judges["speculative"], judges["control"]))
    if again is not None:
        findings.append(repeated(asked, again))
    spec = judges["speculative"]
    verdict = verdict_of(plan, case, findings, seen, bool(spec.tree.outside), lacking)
    if gathered.stopped and verdict.verdict is not Verdict.NOT_EXACT:
        raise RuntimeError("sampling was stopped early, but judging finds no reason for it")
    answers, cause = gathered.arms["speculative"], None
    if verdict.verdict is Verdict.NOT_EXACT:
        # a fault of seeds alone leaves the law as it is, and the catalogue is tried on requests
        # that are alike
        look = explain and any(f.rejected and f.test != REPRODUCIBILITY for f in findings)
        look &= case.form == PLAIN
        cause, told = cause_of(lambda: diagnose(spec, answers)) if look else (None, "")
        parts = (size_of(findings), told, verdict.why, _early(gathered) if gathered.stopped else "")
        verdict = replace(verdict, why=" ".join(part for part in parts if part))
    said, by_them = judge_logprobs(plan, case, arms)
    return CaseResult(
        case,
        added(verdict, by_them),
        findings=(*findings, *said),
        speculation=seen,
        arms=tuple(_facts(judges[arm], e) for arm, e in gathered.arms.items()),
        bars=first_token_bars(spec),
        pit=pit_histograms(spec),
        trajectories=tuple(trajectory(judge) for judge in judges.values()),
        acceptance=acceptance(spec.reading, answers),
        diagnosis=cause,
    )


def _decide_greedy(
    plan: RunPlan, gathered: Gathered, seen: Speculation, shown: list[Finding], lacking: str
) -> CaseResult:
    case = gathered.case
    judges = {arm: GreedyJudge(plan, case, arm, e) for arm, e in gathered.arms.items()}
    findings = shown + [f for judge in judges.values() for f in judge.findings()]
    if "control" in judges:
        findings.append(compare_greedy(judges["speculative"], judges["control"]))
    outside = bool(judges["speculative"].tree.outside)
    verdict = verdict_of(plan, case, findings, seen, outside, lacking)
    if verdict.verdict is Verdict.NOT_EXACT:
        parts = (size_of(findings), verdict.why)
        verdict = replace(verdict, why=" ".join(part for part in parts if part))
    said, by_them = judge_logprobs(plan, case, gathered.arms)
    return CaseResult(
        case,
        added(verdict, by_them),
        findings=(*findings, *said),
        speculation=seen,
        arms=tuple(_facts(judges[arm], e) for arm, e in gathered.arms.items()),
    )


def _early(gathered: Gathered) -> str:
    done, planned = (
        sum(count(e) for e in gathered.arms.values())
        for count in (lambda e: len(e.tokens), lambda e: e.planned)
    )
    return f"Sampling was stopped there, after {done:,} of {planned:,} requests."


def _failed(case: Case, gathered: Gathered) -> CaseResult:
    error = gathered.error
    assert error is not None
    found = apart(case, gathered.arms)
    answered = sum(len(e.tokens) for e in found.values())
    if not isinstance(error, NotSupportedError):
        verdict, why = Verdict.ERROR, _sentence(error)
    elif answered == 0:
        verdict, why = Verdict.NOT_SUPPORTED, f"the engine refused the configuration: {error}"
    else:  # who may pick the requests to refuse may pick those that would show the fault
        verdict = Verdict.ERROR
        why = f"the engine refused some requests after answering {answered:,} of the case: {error}"
    arms = tuple(  # what else was sampled beside them is in no report
        ArmFacts(arm, len(e.tokens), e.planned, int(e.asked_for.sum()), 0, e.seconds, e.sha256)
        for arm, e in found.items()
        if arm in case.arms
    )
    detail = gathered.detail or str(error)
    return CaseResult(case, CaseVerdict(verdict, why), arms=arms, error=detail)


def _sentence(error: ConformanceError) -> str:
    return {
        "BadAnswerError": f"the engine broke the contract: {error}",
        "EngineLoadError": f"the engine could not be loaded: {error}",
        "EvidenceError": f"its evidence cannot be gone on from: {error}",
    }.get(type(error).__name__, f"the engine failed: {error}")


def _facts(judge: ArmJudge | GreedyJudge, evidence: Evidence) -> ArmFacts:
    return ArmFacts(
        arm=judge.arm,
        requests=len(evidence.tokens),
        planned=evidence.planned,
        tokens=int(evidence.asked_for.sum()),
        set_aside=judge.set_aside,
        seconds=evidence.seconds,
        sha256=evidence.sha256,
    )
