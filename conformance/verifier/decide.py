"""A verifier's verdict, and the run of its cases."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from conformance.acceptance import Acceptance, accepted_at
from conformance.cause import Cause, cause_of
from conformance.errors import EngineLoadError, EvidenceError, NotSupportedError
from conformance.gather import Progress, evidence_path
from conformance.pictures import binned, counted
from conformance.plan import RunPlan
from conformance.result import ArmFacts, Bars, CaseResult, Histogram
from conformance.rules import SEEN_AT_LEAST
from conformance.verdict import CaseVerdict, Finding, Speculation, Verdict
from conformance.verifier import edges
from conformance.verifier.diagnosis import diagnose
from conformance.verifier.gather import Gathered, gather_case
from conformance.verifier.judge import ARM, GRID, Judge, samples
from conformance.verifier.plan import FIRST, VERIFIER_PROFILES, VerifierCase
from conformance.verifier.sample import LawSample

SHOWN_BARS = 6
SHOWN_VOCAB = 32
PIT_BINS = 32


def judge_verifiers(
    plan: RunPlan,
    cases: Sequence[VerifierCase],
    folder: Path,
    jobs: int = 1,
    timeout: float = 300.0,
    progress: Progress | None = None,
    python: str | None = None,
) -> Iterator[CaseResult]:
    """Sample and judge verifiers; the counterpart of `gather` and `decide` for engines."""
    for case in cases:
        asked = case

        def told(rows: int, asked: VerifierCase = asked) -> None:
            if progress:
                progress(asked, ARM, rows)

        path = evidence_path(folder, case, ARM)
        yield decide(plan, gather_case(case, plan.seed, jobs, timeout, told, python, path))


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
    verdict, how = Verdict.ERROR, "the verifier failed"
    if isinstance(error, NotSupportedError):
        verdict, how = Verdict.NOT_SUPPORTED, "the verifier refused"
    elif isinstance(error, EngineLoadError):
        how = "the verifier could not be loaded"
    elif isinstance(error, EvidenceError):
        how = "its evidence cannot be gone on from"
    elif type(error).__name__ == "BadAnswerError":
        how = "the verifier broke the contract"
    return CaseResult(
        gathered.case,
        CaseVerdict(verdict, f"{how}: {error}"),
        arms=(_facts(gathered),),
        error=error.detail or str(error),
    )


def _decide(plan: RunPlan, gathered: Gathered) -> CaseResult:
    case, evidence = gathered.case, gathered.evidence
    if not evidence.tokens:
        why = "; ".join(dict.fromkeys(evidence.refused.values()))
        refused = CaseVerdict(Verdict.NOT_SUPPORTED, f"the verifier refused every law: {why}")
        return CaseResult(case, refused, findings=tuple(_left_out(gathered)))
    for name, rows in case.blocks:
        if name not in evidence.refused and len(evidence.tokens.get(name, ())) != rows:
            raise RuntimeError(f"blocks of law {name} were planned and have no answer")
    judge = Judge(plan, case, evidence)
    findings = [*judge.run(), *_edges(case, gathered), *_again(gathered), *_left_out(gathered)]
    pool = judge.pool
    seen = Speculation(
        reported=True,
        blocks=pool.blocks,
        drafted=pool.drafted,
        accepted=pool.accepted,
        rejected=pool.rejected,
        longest=pool.longest,
    )
    findings.append(_acceptance(judge))
    verdict, cause = _verdict(plan, judge, findings, seen)
    return CaseResult(
        case,
        verdict,
        findings=tuple(findings),
        speculation=seen,
        arms=(_facts(gathered),),
        bars=tuple(_bars(judge)),
        pit=tuple(_histograms(judge)),
        acceptance=_accepted(judge),
        diagnosis=cause,
    )


def _verdict(
    plan: RunPlan, judge: Judge, findings: list[Finding], seen: Speculation
) -> tuple[CaseVerdict, Cause | None]:
    case = judge.case
    rejected = [f for f in findings if f.rejected]
    if rejected:
        cause, told = None, _too_rare(judge)
        if any(f.p_value is not None for f in rejected):
            cause, told = cause_of(lambda: diagnose(judge, rejected))
        why = " ".join(x for x in (_declared(case), *_reasons(rejected, told)) if x)
        return CaseVerdict(Verdict.NOT_EXACT, why), cause
    return _not_rejected(plan, case, findings, seen), None


def _not_rejected(
    plan: RunPlan, case: VerifierCase, findings: list[Finding], seen: Speculation
) -> CaseVerdict:
    if min(seen.accepted, seen.rejected) < SEEN_AT_LEAST:
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            f"no test rejected, but of {seen.drafted:,} proposals {seen.accepted:,} were accepted, "
            f"and {seen.rejected:,} blocks ended in a rejection (at least {SEEN_AT_LEAST} of each "
            "are needed)",
        )
    lines, reached, wanted = _certificates(plan, case, findings)
    if reached is None or reached > wanted:
        got = "nothing" if reached is None else f"{reached:.3g}"
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            f"no test rejected, but the evidence certifies {got} where profile "
            f"{plan.profile.name} wants {wanted:g}: laws were refused, or not claimed",
            lines,
        )
    return CaseVerdict(
        Verdict.EXACT, "no departure was found, and one of the sizes stated would have been", lines
    )


def _declared(case: VerifierCase) -> str:
    rule = case.card.rule
    return "" if rule == "exact" else f"It declares itself not exact ({rule})."


def _too_rare(judge: Judge) -> str:
    tested = sum(f.p_value is not None for f in judge.findings)
    return (
        f"All {tested:,} tests of the distribution passed; what was found is too rare for "
        "them, and a proof by itself."
    )


def _reasons(rejected: list[Finding], told: str) -> Iterator[str]:
    """Size, place, cause and the strongest evidence, as far as each is known."""
    by_test = {(f.test, f.scope): f for f in rejected}
    leaked = by_test.get(("draft leak", GRID))
    if leaked is not None:
        e = leaked.effect["leak"]
        way, sign = ("to", 1) if e.estimate >= 0 else ("away from", -1)
        low, high = sorted((sign * e.low, sign * e.high))
        yield (
            f"The output leans {way} the draft by {sign * e.estimate:.2%} (95% interval {low:.2%} "
            f"to {high:.2%})."
        )
    proofs = [f for f in rejected if f.p_value is None]
    yield told
    for proof in proofs[:3]:
        yield f"{proof.message}."
    tests = [f for f in rejected if f.p_value is not None]
    if tests:
        best = min(tests, key=lambda f: f.p_value or 0.0)
        yield f"Strongest test: {best.message} ({len(tests) - 1} more rejected)."


def _certificates(
    plan: RunPlan, case: VerifierCase, findings: list[Finding]
) -> tuple[tuple[str, ...], float | None, float]:
    """What a pass rules out, the size that decides, and the size wanted."""
    found = {(f.test, f.scope): f.detectable for f in findings}
    profile = VERIFIER_PROFILES[plan.profile.name]
    rate = found.get(("support", "all blocks"))
    if case.claims.greedy:
        line = f"a token other than the argmax in {rate or 1:.2%} of the blocks, or more"
        return (line,), rate, profile.greedy_rate
    parts = (
        (
            FIRST,
            "a first token off by total variation {:.4f} or more, averaged over the laws, between "
            "five groups of tokens ranked by q/p",
        ),
        (
            ("chi-square", f"all positions, {GRID}"),
            "any position's token off by total variation {:.4f} or more, likewise",
        ),
        (("draft leak", GRID), "{:.2%} or more of the draft leaking into the output"),
        (
            ("PIT by q/p", GRID),
            "tokens the draft overrates gaining or losing a share of {:.4f} or more",
        ),
        (("PIT by p", GRID), "likely tokens gaining or losing a share of {:.4f} or more"),
        (("support", "all blocks"), "a block no exact verifier emits, once in {:.0e} or more"),
    )
    lines = [text.format(found[key]) for key, text in parts if found.get(key) is not None]
    return tuple(lines), found.get(FIRST), profile.delta


# --- findings that are no samples -----------------------------------------------------------------


def _edges(case: VerifierCase, gathered: Gathered) -> Iterator[Finding]:
    for edge in edges.EDGES:
        scope = edge.name
        tokens = gathered.evidence.edges.get(edge.name)
        if tokens is None:
            unclaimed = edge.refused(case.claims, case.injects)
            why = (
                f"not asked: {unclaimed}"
                if unclaimed
                else f"refused by the verifier: {gathered.evidence.refused.get(scope, 'no reason')}"
            )
            yield Finding("edge", scope, ARM, n=0, message=why)
            continue
        wrong = edge.departures(tokens)
        yield Finding(
            "edge",
            scope,
            ARM,
            n=len(tokens),
            rejected=bool(wrong),
            message=(
                f"{scope}: {wrong[0]} ({len(wrong):,} of {len(tokens):,} answers); {edge.why}"
                if wrong
                else "answered rightly"
            ),
        )


def _again(gathered: Gathered) -> Iterator[Finding]:
    again, case = gathered.evidence.again, gathered.case
    if again is None or not gathered.evidence.tokens:
        return
    first = next(iter(gathered.evidence.tokens.values()))[: len(again)]
    differ = int((first != again).any(axis=1).sum())
    yield Finding(
        "reproducibility",
        "same call, same seed",
        ARM,
        n=len(again),
        rejected=case.claims.reproducible and differ > 0,
        message=(
            f"{differ:,} of {len(again):,} blocks differ when the same calls are repeated with "
            "the same seeds, which it claims they do not"
            if differ
            else "the same seeds gave the same tokens"
        ),
    )


def _left_out(gathered: Gathered) -> Iterator[Finding]:
    for name, why in gathered.case.not_asked:
        yield Finding("law", name, ARM, n=0, message=f"not asked, not claimed: {why}")
    for name, why in gathered.evidence.refused.items():
        yield Finding("law", name, ARM, n=0, message=f"refused by the verifier: {why}")


def _acceptance(judge: Judge) -> Finding:
    """Efficiency, which no verdict depends on."""
    pool = judge.pool
    blocks = max(pool.blocks, 1)
    return Finding(
        "acceptance",
        "first position, whole grid",
        ARM,
        n=pool.blocks,
        message=(
            f"{pool.first_accepted / blocks:.1%} of the first proposals were accepted; "
            f"the overlap of p and q, which the usual rule attains, is "
            f"{pool.first_best / blocks:.1%}. Not judged"
        ),
    )


def _accepted(judge: Judge) -> Acceptance | None:
    pool = judge.pool
    if not pool.blocks:
        return None
    mean = pool.first_best / pool.blocks
    row = accepted_at("proposal 1 of a block", pool.blocks, pool.first_accepted, mean)
    return Acceptance((row,), verified=True)


def _facts(gathered: Gathered) -> ArmFacts:
    evidence, case = gathered.evidence, gathered.case
    blocks = sum(len(t) for t in evidence.tokens.values())
    return ArmFacts(
        arm=ARM,
        requests=blocks,
        planned=case.workload.requests if case.workload else blocks,
        tokens=sum(int((t >= 0).sum()) for t in evidence.tokens.values()),
        set_aside=0,
        seconds=evidence.seconds,
        sha256=evidence.sha256,
    )


# --- plots ----------------------------------------------------------------------------------------


def _bars(judge: Judge) -> Iterator[Bars]:
    """First-token counts of the smallest laws."""
    if judge.case.claims.greedy:
        return
    small = [n for n in judge.evidence.tokens if judge.case.law(n).spec.vocab <= SHOWN_VOCAB]
    keep = replace(judge.evidence, tokens={n: judge.evidence.tokens[n] for n in small[:SHOWN_BARS]})
    for s in samples(judge.case, keep):
        yield _bar(s)


def _bar(s: LawSample) -> Bars:
    p, q = s.law.target[0, 0], s.law.draft[0, 0]
    observed = np.bincount(s.tokens[:, 0], minlength=len(p))
    return counted(f"First token, law {s.law.spec.name}", observed, p, q)


def _histograms(judge: Judge) -> Iterator[Histogram]:
    for test, fine in judge.pool.ranks.items():
        yield binned(test, fine.reshape(PIT_BINS, -1).sum(axis=1))
