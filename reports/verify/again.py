"""Judging a case again from its evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from conformance import decide as engines
from conformance.errors import EvidenceError
from conformance.evidence import Evidence, first_requests
from conformance.gather import Gathered, arm_seeds, evidence_path, kept_evidence
from conformance.plan import Case, RunPlan
from conformance.result import CaseResult
from conformance.served import decide as servers
from conformance.served.evidence import ServedEvidence, load_served
from conformance.served.gather import Gathered as ServedGathered
from conformance.served.gather import replayed, schedule
from conformance.served.plan import ServedCase
from conformance.served.server import ARMS
from conformance.verifier import decide as verifiers
from conformance.verifier.evidence import load_verifier_evidence
from conformance.verifier.gather import Gathered as VerifierGathered
from conformance.verifier.judge import ARM
from conformance.verifier.plan import VerifierCase
from conformance.watch import Watch


def judge_again(
    plan: RunPlan, case: Case, folder: Path, last: tuple[RunPlan, Case] | None = None
) -> CaseResult:
    """The verdict that a case's evidence gives, without the engine.

    Parameters
    ----------
    plan : RunPlan
        At the stage to be judged.
    case : Case
        One of its cases, with a workload.
    folder : Path
        The bundle.
    last : (RunPlan, Case), optional
        The same at the stage up to which evidence was gathered, if that is a later one; answers
        that came after the stage to be judged are then left out.

    Raises
    ------
    EvidenceError
        If evidence is missing, damaged, incomplete without a reason, or another case's.
    """
    if isinstance(case, VerifierCase):  # never added to
        evidence = load_verifier_evidence(evidence_path(folder, case, ARM))
        if (evidence.run, evidence.law_seed) != (plan.seed, case.law_seed):
            raise EvidenceError("the evidence was drawn with other seeds than the run's")
        return verifiers.decide(plan, VerifierGathered(case, evidence))
    if isinstance(case, ServedCase):
        return _served(plan, case, folder, last or (plan, case))
    arms = {}
    for arm in case.sampled_arms:
        found = _arm(*(last or (plan, case)), arm, folder)
        workload = case.asked(arm).workload
        assert workload is not None
        arms[arm] = first_requests(replace(found, planned=workload.requests), workload.requests)
    return _engine(plan, case, arms)


def _arm(plan: RunPlan, case: Case, arm: str, folder: Path) -> Evidence:
    asked = case.asked(arm)
    path = evidence_path(folder, case, arm)
    found = kept_evidence(asked, arm_seeds(plan, asked, arm), path)
    if found is None:
        raise EvidenceError(f"the evidence of the {arm} arm is missing ({path.name})")
    return found


def _engine(plan: RunPlan, case: Case, arms: dict[str, Evidence]) -> CaseResult:
    short = {arm: e for arm, e in arms.items() if len(e.tokens) < e.planned}
    if short and not _stopped(plan, case, arms):
        missing = ", ".join(
            f"{e.planned - len(e.tokens):,} of {e.planned:,} requests of the {arm} arm"
            for arm, e in short.items()
        )
        raise EvidenceError(f"requests have no answer ({missing}), and nothing shows why")
    return engines.decide(plan, Gathered(case, arms, stopped=bool(short)))


def _stopped(plan: RunPlan, case: Case, arms: dict[str, Evidence]) -> bool:
    """Whether the bets on this evidence allowed to stop there."""
    watch = Watch(plan, case)
    for arm in case.arms:
        watch.add(arm, arms[arm].tokens, arms[arm].prompt)
    return watch.settled()


def _served(
    plan: RunPlan, case: ServedCase, folder: Path, last: tuple[RunPlan, Case]
) -> CaseResult:
    """A server's case: its arms were asked in one order, and are cut where the stage ended."""
    last_plan, asked = last
    assert isinstance(asked, ServedCase)
    assert case.workload is not None
    arm_of, prompt_of = schedule(last_plan, asked)
    arms = {arm: load_served(evidence_path(folder, case, arm)) for arm in ARMS}
    done = sum(len(e.symbols) for e in arms.values())
    for k, (arm, e) in enumerate(arms.items()):
        n = len(e.symbols)
        for what, found, planned in (
            ("requests", n, int((arm_of[:done] == k).sum())),
            ("seeds", e.seeds, arm_seeds(last_plan, asked, arm)[:n]),
            ("prompts", e.prompt, prompt_of[arm_of == k][:n]),
            ("texts", e.texts, asked.texts),
            ("unit", e.unit, asked.unit),
            ("width", e.symbols.shape[1], asked.width),
        ):
            if not np.array_equal(np.asarray(found), np.asarray(planned)):
                raise EvidenceError(f"the {what} of the {arm} arm are not those planned")
    most = case.workload.requests
    arms = {arm: _first(e, most) for arm, e in arms.items()}
    early = any(len(e.symbols) < most for e in arms.values())
    if early and not replayed(plan, case, arms).settled():
        raise EvidenceError("requests have no answer, and nothing shows why")
    return servers.decide(plan, ServedGathered(case, arms, stopped=early))


def _first(evidence: ServedEvidence, n: int) -> ServedEvidence:
    return replace(
        evidence,
        symbols=evidence.symbols[:n],
        prompt=evidence.prompt[:n],
        seeds=evidence.seeds[:n],
        counts=None if evidence.counts is None else evidence.counts[:n],
        planned=n,
    )
