"""A served case's verdict, and the run of its cases."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from conformance.errors import EvidenceError, NotSupportedError
from conformance.gather import Progress, evidence_path
from conformance.plan import RunPlan
from conformance.result import ArmFacts, CaseResult
from conformance.rules import AIMED_AT, SEEN_AT_LEAST
from conformance.served.evidence import ServedEvidence, load_served
from conformance.served.gather import Gathered, gather, replayed
from conformance.served.greedy import greedy_findings
from conformance.served.judge import findings, opening_bars
from conformance.served.laws import kept_laws
from conformance.served.pictures import trajectories
from conformance.served.plan import BY, OPENINGS, TOLD, ServedCase, opening
from conformance.served.server import AGAIN, ARMS, CONTROL, SPECULATIVE, Source
from conformance.served.words import BY_LAW, CLAIM, MISMATCH, PASSED, PASSED_BY_LAW, RULED_OUT
from conformance.speculation import LONGEST_BLOCK
from conformance.statistics.tree import ABSENT
from conformance.verdict import CaseVerdict, Finding, Speculation, Verdict


def judge_served(
    plan: RunPlan,
    cases: Sequence[ServedCase],
    folder: Path,
    progress: Progress | None = None,
    source: Callable[[ServedCase], Source] | None = None,
) -> Iterator[CaseResult]:
    """Sample and judge servers; the counterpart of `gather` and `decide` for engines."""

    def told(case: ServedCase, arm: str, requests: int) -> None:
        if progress:
            progress(case, arm, requests)

    for case in cases:
        yield decide(plan, gather(plan, case, folder, told, source(case) if source else None))


def judge_again(plan: RunPlan, case: ServedCase, folder: Path) -> CaseResult:
    """The verdict from the evidence on disk, without the server.

    Raises
    ------
    EvidenceError
        If evidence is missing or damaged.
    """
    arms = {arm: load_served(evidence_path(folder, case, arm)) for arm in ARMS}
    laws = kept_laws(plan, case, folder)
    early = any(len(e.symbols) < e.planned for e in arms.values())
    stopped = early and replayed(plan, case, arms, laws).settled()
    return decide(plan, Gathered(case, arms, stopped=stopped, laws=laws))


def decide(plan: RunPlan, gathered: Gathered) -> CaseResult:
    """Judge a case; a failure in judging is the case's ERROR, never the run's end."""
    try:
        return _failed(gathered) if gathered.error else _decide(plan, gathered)
    except Exception as exc:  # whatever it is, the other cases have a right to their verdict
        return CaseResult(
            gathered.case,
            CaseVerdict(Verdict.ERROR, f"the evidence could not be judged: {exc}"),
            error=traceback.format_exc(),
        )


def _failed(gathered: Gathered) -> CaseResult:
    error = gathered.error
    assert error is not None
    answered = sum(len(e.symbols) for e in gathered.arms.values())
    verdict, how = Verdict.ERROR, "the server failed"
    if isinstance(error, NotSupportedError) and not answered:
        verdict, how = Verdict.NOT_SUPPORTED, "the server refused"
    elif type(error).__name__ == "BadAnswerError":
        how = "the server gave an answer that is none"
    elif type(error).__name__ == "EngineLoadError":
        how = "the server cannot be asked"
    elif isinstance(error, EvidenceError):
        how = "its evidence cannot be gone on from"
    return CaseResult(
        gathered.case,
        CaseVerdict(verdict, f"{how}: {error}"),
        arms=_facts(gathered),
        error=error.detail or str(error),
    )


def _decide(plan: RunPlan, gathered: Gathered) -> CaseResult:
    case, arms = gathered.case, gathered.arms
    complete = not gathered.stopped
    if complete and any(len(e.symbols) != e.planned for e in arms.values()):
        raise RuntimeError("requests were planned and have no answer")
    seen = _seen(case, arms[SPECULATIVE])
    greedy = case.decoding.greedy
    found = tuple(
        greedy_findings(plan, case, arms)
        if greedy
        else findings(plan, case, arms, complete, gathered.laws)
    )
    verdict = _greedy_verdict if greedy else _verdict
    return CaseResult(
        case,
        verdict(plan, case, found, seen, gathered.stopped),
        findings=found,
        speculation=seen,
        arms=_facts(gathered),
        bars=() if greedy else opening_bars(case, arms),
        trajectories=() if greedy else trajectories(plan, case, arms, gathered.laws),
    )


def _verdict(
    plan: RunPlan,
    case: ServedCase,
    found: Sequence[Finding],
    seen: Speculation,
    stopped: bool,
) -> CaseVerdict:
    """Apply the rules, in this order: the control arm must agree with itself; a difference between
    the arms is NOT EXACT, and so is one from the law that the control arm tells and has; EXACT
    needs speculation to have been seen and the certificate to reach what the profile states.
    """
    gate = [f for f in found if f.rejected and f.arm == "control" and BY not in f.scope]
    apart = [f for f in found if f.rejected and f.arm != "control"]
    if gate:
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            f"the control arm does not agree with itself ({gate[0].message}): requests that share "
            "random numbers, or a law that changes with time or load. Nothing can be compared "
            "with it",
        )
    if apart:
        early = "Sampling was stopped there." if stopped else ""
        parts = (_size(case, found), _strongest(apart), early, _mismatch(found))
        return CaseVerdict(Verdict.NOT_EXACT, " ".join(p for p in parts if p))
    if stopped:
        raise RuntimeError("sampling was stopped early, but judging finds no reason for it")
    if missing := _unseen(case, seen):
        return missing
    first = next((f for f in found if f.scope == opening(case.unit) and f.arm == "both"), None)
    reached = None if first is None else first.detectable
    if reached is None or reached > plan.profile.delta:
        return _too_little(plan, case, reached)
    line = (
        f"{RULED_OUT}{opening(case.unit)} off by a total variation of {reached:.3f} or more, mean "
        f"over the prompts that leave a choice, between the {OPENINGS} commonest and the rest"
    )
    return _passed(case, found, line)


def _passed(case: ServedCase, found: Sequence[Finding], line: str) -> CaseVerdict:
    """A pass, with what the law that the control server tells adds to it."""
    by_law = next((f for f in found if f.scope == f"{opening(case.unit)}{BY}"), None)
    told = next((f for f in found if f.test == TOLD), None)
    if mismatch := _mismatch(found):
        return CaseVerdict(Verdict.EXACT, f"{PASSED}. {mismatch}", (line,))
    if by_law is None or by_law.detectable is None:
        why = case.met.no_law if case.met is not None else ""
        more = told.message if told is not None else f"its log-probabilities were not used: {why}"
        return CaseVerdict(Verdict.EXACT, f"{PASSED}. {more[0].upper()}{more[1:]}", (line,))
    second = (
        f"{BY_LAW}: {opening(case.unit)} off by a total variation of {by_law.detectable:.3f} or "
        f"more, between the {OPENINGS} commonest and the rest, mean over the prompts whose law is "
        "known"
    )
    return CaseVerdict(Verdict.EXACT, PASSED_BY_LAW, (line, second))


def _mismatch(found: Sequence[Finding]) -> str:
    """Said where the control arm departs from its own log-probabilities."""
    wrong = [f for f in found if f.rejected and f.arm == "control" and BY in f.scope]
    return f"Besides, {MISMATCH} ({wrong[0].message})." if wrong else ""


def _greedy_verdict(
    plan: RunPlan,
    case: ServedCase,
    found: Sequence[Finding],
    seen: Speculation,
    stopped: bool,
) -> CaseVerdict:
    del stopped
    apart, gate = found
    if apart.rejected:
        return CaseVerdict(
            Verdict.NOT_EXACT,
            f"{CLAIM[0].upper()}{CLAIM[1:]}, {apart.message}; {gate.message}.",
        )
    if apart.effect["diverged"].estimate > 0:
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            f"{apart.message}; {gate.message}. Rounding at near ties can do that, and without "
            "logits a near tie cannot be told from a fault (option ties)",
        )
    if missing := _unseen(case, seen):
        return missing
    rate = apart.detectable
    if rate is None or rate > plan.profile.greedy_rate:
        assert case.workload is not None
        needed = None
        if rate is not None:
            needed = math.ceil(case.workload.requests * 1.1 * rate / plan.profile.greedy_rate)
        got = "nothing" if rate is None else f"a rate of {rate:.3g}"
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            f"every answer is the control arm's, but the evidence certifies {got} where profile "
            f"{plan.profile.name} wants {plan.profile.greedy_rate:g}: the answers are short",
            needed=needed,
        )
    line = f"{RULED_OUT}{rate:.2%} of the greedy {case.unit}s, or more, being others"
    return CaseVerdict(Verdict.EXACT, PASSED, (line,))


def _size(case: ServedCase, found: Sequence[Finding]) -> str:
    for f in found:
        tv = f.effect.get("tv")
        if tv is not None and tv.low > 0 and (f.rejected or BY not in f.scope):
            what = BY_LAW if BY in f.scope else CLAIM
            return (
                f"{what[0].upper()}{what[1:]}, the {opening(case.unit)} are off "
                f"by a total variation of {tv.estimate:.3f} or more (95% interval {tv.low:.3f} to "
                f"{tv.high:.3f})."
            )
    return f"{CLAIM[0].upper()}{CLAIM[1:]}, the output is another."


def _strongest(apart: Sequence[Finding]) -> str:
    best = min(apart, key=lambda f: f.p_value or 0.0)
    sharp = [f.message for f in apart if f.test == "sharpening" and f is not best]
    also = f"; {sharp[0]}" if sharp else ""
    more = f" ({len(apart) - 1} more rejected)" if len(apart) > 1 else ""
    return f"Strongest evidence: {best.message}{also}{more}."


def _unseen(case: ServedCase, seen: Speculation) -> CaseVerdict | None:
    if not seen.reported:
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            f"{CLAIM}, no difference was found, but neither the answers nor a page of metrics "
            "count drafted tokens, so nothing shows that speculation happened",
        )
    rarer = min(seen.accepted, seen.rejected)
    if rarer >= SEEN_AT_LEAST:
        return None
    assert case.workload is not None
    return CaseVerdict(
        Verdict.INCONCLUSIVE,
        f"{CLAIM}, no difference was found, but speculation was hardly seen: {seen.drafted:,} "
        f"tokens proposed, {seen.accepted:,} accepted, {seen.rejected:,} blocks rejected (at least "
        f"{SEEN_AT_LEAST} accepted and {SEEN_AT_LEAST} rejected are needed)",
        needed=math.ceil(case.workload.requests * AIMED_AT / rarer) if rarer else None,
    )


def _too_little(plan: RunPlan, case: ServedCase, reached: float | None) -> CaseVerdict:
    assert case.workload is not None
    got, needed = "nothing", None
    if reached is not None:
        got = f"a total variation of {reached:.3g}"
        needed = math.ceil(case.workload.requests * 1.1 * (reached / plan.profile.delta) ** 2)
    return CaseVerdict(
        Verdict.INCONCLUSIVE,
        f"{CLAIM}, no difference was found, but the evidence certifies {got} where profile "
        f"{plan.profile.name} wants {plan.profile.delta:g}: at too few of the prompts does the "
        "model choose between a few beginnings; give others with the option prompts",
        needed=needed,
    )


def _seen(case: ServedCase, e: ServedEvidence) -> Speculation:
    """What the counters say; as where an engine tells totals only."""
    if e.drafts is None:
        return Speculation()
    assert case.workload is not None
    drafted, accepted = e.drafts
    block = max(1, min(case.workload.new_tokens, LONGEST_BLOCK))
    return Speculation(
        reported=True, drafted=drafted, accepted=accepted, rejected=(drafted - accepted) // block
    )


def _facts(gathered: Gathered) -> tuple[ArmFacts, ...]:
    """Both control samples are one arm of the report, with the checksums of both, and of what the
    control server told of its law.
    """
    out, arms, laws = [], gathered.arms, gathered.laws
    for name, parts in ((SPECULATIVE, (SPECULATIVE,)), (CONTROL, (CONTROL, AGAIN))):
        found = [arms[p] for p in parts if p in arms]
        if found:
            out.append(
                ArmFacts(
                    arm=name,
                    requests=sum(len(e.symbols) for e in found),
                    planned=sum(e.planned for e in found),
                    tokens=sum(int((e.symbols != ABSENT).sum()) for e in found),
                    set_aside=0,
                    seconds=found[0].seconds / len(ARMS) * len(found),
                    sha256=" ".join(
                        [e.sha256 for e in found]
                        + ([laws.sha256] if laws is not None and name == CONTROL else [])
                    ),
                )
            )
    return tuple(out)
