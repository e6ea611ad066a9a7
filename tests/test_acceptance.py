"""Acceptance beside what exact methods predict, and the course of the e-process."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from in_process import cases, gather_runs

from conformance.acceptance import Acceptance, acceptance
from conformance.adapters.exact_rules import exact
from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.chances import chances
from conformance.decoding import Decoding
from conformance.evidence import Evidence
from conformance.judge import ArmJudge
from conformance.pictures import trajectory
from conformance.plan import PROFILES, Case, RunPlan, make_plan

PLAIN = Decoding()


@cache
def planned() -> tuple[RunPlan, Case]:
    plan = make_plan(cases("mid", [PLAIN]), PROFILES["smoke"], seed=3)
    return plan, plan.cases[0]


def gathered(engine: ReferenceEngine, arm: str = "speculative") -> Evidence:
    plan, case = planned()
    return gather_runs(engine, case, arm, [plan])[0]


def judged(evidence: Evidence, arm: str = "speculative", **claims: object) -> ArmJudge:
    plan, case = planned()
    if claims:
        case = replace(case, capabilities=replace(case.capabilities, **claims))
    return ArmJudge(plan, case, arm, evidence)


@cache
def seen(name: str) -> Acceptance:
    kind, _, rest = name.partition(":")
    made = {"exact": exact, "faulty": faulty}
    evidence = gathered(made[kind](rest) if rest else ReferenceEngine())
    found = acceptance(judged(evidence).reading, evidence)
    assert found is not None
    return found


def spread(rate: float, n: int) -> float:
    return math.sqrt(rate * (1 - rate) / n)


def test_chances_by_hand() -> None:
    law, draft = np.array([[0.3, 0.7]]), np.array([[0.6, 0.4]])
    assert chances(law, draft) == pytest.approx(np.array([[0.7, 0.46, 0.3]]))


@pytest.mark.parametrize(
    ("engine", "attains"),
    [
        ("reference", "rejection"),
        ("exact:sample-and-match", "matching"),
        ("exact:argmax-draft", "likeliest"),
    ],
)
def test_exact_engines_attain_what_is_predicted_of_them(engine: str, attains: str) -> None:
    found = seen(engine)
    assert found.verified
    assert found.places[0].place == "all proposals"
    for at in found.places:
        if at.proposals >= 100:
            expected = getattr(at, attains)
            assert abs(at.rate.estimate - expected) < 5 * spread(expected, at.proposals)
            assert at.rate.low <= at.rate.estimate <= at.rate.high
    every = found.places[0]
    others = {"rejection", "matching", "likeliest"} - {attains}
    for other in others:  # and the three are told apart
        expected = getattr(every, other)
        assert abs(every.rate.estimate - expected) > 5 * spread(expected, every.proposals)


def test_places_add_up() -> None:
    first, *places = seen("reference").places
    assert len(places) == 4
    assert sum(at.proposals for at in places) == first.proposals
    assert sum(at.accepted for at in places) == first.accepted
    # a later proposal is looked at only if those before it were accepted
    assert [at.proposals for at in places] == sorted((at.proposals for at in places), reverse=True)


def test_a_lenient_engine_accepts_more() -> None:
    at = seen("faulty:lenient=0.5").places[0]
    assert at.rate.low > at.rejection + 0.05


def test_counts_are_shown_as_what_they_are() -> None:
    evidence = gathered(ReferenceEngine())
    assert evidence.rounds is not None
    counts = np.zeros((len(evidence.tokens), 2), np.int64)
    counts[0] = evidence.rounds[:, 1:].sum(axis=0)
    told = replace(evidence, rounds=None, counts=counts)
    found = acceptance(judged(told).reading, told)
    assert found is not None
    assert not found.verified
    assert len(found.places) == 1
    assert found.places[0].proposals == counts[0, 0]
    assert found.places[0].rate.estimate < found.places[0].rejection
    nonsense = replace(told, counts=counts[:, ::-1].copy())  # more accepted than drafted
    assert acceptance(judged(nonsense).reading, nonsense) is None
    silent = replace(told, counts=None)
    assert acceptance(judged(silent).reading, silent) is None


@pytest.mark.parametrize("draft", ["none", "lookup", "early-exit"])
def test_nothing_is_predicted_where_the_draft_is_not_known(draft: str) -> None:
    evidence = gathered(ReferenceEngine())
    assert acceptance(judged(evidence, draft=draft).reading, evidence) is None


@pytest.mark.parametrize("name", ["", "stale-cache"])
def test_the_course_ends_where_the_finding_says(name: str) -> None:
    judge = judged(gathered(faulty(name) if name else ReferenceEngine()))
    finding = next(f for f in judge.findings() if f.test == "e-process")
    course = trajectory(judge)
    assert course.arm == "speculative"
    assert len(course.tokens) == len(course.log10_e) < 50
    assert list(course.tokens) == sorted(course.tokens)
    assert course.tokens[-1] == finding.n
    assert finding.statistic is not None
    assert max(0.0, *course.log10_e) * math.log(10) == pytest.approx(finding.statistic)
    assert (max(course.log10_e) >= course.needed) == finding.rejected == bool(name)
    again = trajectory(judged(gathered(faulty(name) if name else ReferenceEngine())))
    assert again == course
