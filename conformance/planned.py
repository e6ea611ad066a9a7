"""The tests that a case will be judged by, fixed before anything is sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance import far
from conformance.forms import FAR, FORMS, SEVERAL, TWIN
from conformance.workload import SAMPLED_PROMPTS

if TYPE_CHECKING:
    from conformance.plan import Case

JOINT_TOKENS = 2
EVERYWHERE = "all tokens"
STRATA = ("first of a block", "later in a block", "bonus")
ACCEPTED = "accepted"
BY_ID = "PIT by id"
BLOCKS = "a block and the next one of the request before"
NEIGHBOURS = "neighbouring requests"
CONSECUTIVE = "consecutive tokens"
SIBLINGS = "answers to one request"
FIRST_AND_FURTHER = tuple(f"{which} {SIBLINGS}" for which in ("first", "further"))


@dataclass(frozen=True, slots=True)
class PlannedTest:
    """One test that will be judged, with its share of alpha."""

    test: str
    scope: str
    arm: str


def planned_tests(case: Case) -> tuple[PlannedTest, ...]:
    """The tests a case will be judged by; support and greedy identity spend no alpha."""
    if case.decoding.greedy:
        return ()
    aware = case.capabilities.draft != "none"
    tests = []
    for arm in case.arms:
        scopes = [f"output index {t}" for t in range(FORMS[case.form].tokens)]
        scopes.append(f"first {JOINT_TOKENS} tokens")
        ranked = ("PIT by p", "PIT by q/p") if aware else ("PIT by p",)
        tests += [PlannedTest(test, s, arm) for s in parts_of(case) for test in ranked]
        if case.form not in FAR:
            tests += [PlannedTest(test, s, arm) for s in scopes for test in ("chi-square", "KL")]
        tests += [PlannedTest(t, EVERYWHERE, arm) for t in ("PIT by p", "surprisal", "e-process")]
        tests += [PlannedTest("repeats", s, arm) for s, _ in repeat_lags(case)]
        tests += [
            PlannedTest(f"correlation by {ranking}", s, arm)
            for ranking in ("p", "id")
            for s in (*neighbours_of(case), CONSECUTIVE)
        ]
        tests += [
            PlannedTest(f"correlation by {ranking}", s, arm)
            for ranking in ("p", "id")
            for s, _ in apart_lags(case)
        ]
        tests += [PlannedTest("coincidences", s, arm) for s in neighbours_of(case)]
        if aware:
            tests += [PlannedTest(t, EVERYWHERE, arm) for t in ("PIT by q/p", "draft leak")]
    if aware and FORMS[case.form].uneven:
        tests.append(PlannedTest("draft leak", far.END, "speculative"))
    if aware and case.capabilities.verification == "token":
        # labels are then settled before the token is drawn, so each stratum is a fair sample
        tests += [PlannedTest(t, s, "speculative") for s in STRATA for t in ("draft leak", BY_ID)]
        tests.append(PlannedTest("correlation by id", BLOCKS, "speculative"))
    if "control" in case.arms:
        tests.append(PlannedTest("two-sample", "shared prefixes", "both"))
    return tuple(tests)


def parts_of(case: Case) -> tuple[str, ...]:
    """Parts of a case's tokens that are judged by themselves."""
    if case.form in FAR:
        return far.names(case.form)
    if FORMS[case.form].uneven:
        return (far.END,)
    return FIRST_AND_FURTHER if case.form == SEVERAL else ()


def neighbours_of(case: Case) -> tuple[str, ...]:
    """Answers one after the other that are compared."""
    return (NEIGHBOURS, SIBLINGS) if case.form == SEVERAL else (NEIGHBOURS,)


def repeat_lags(case: Case) -> tuple[tuple[str, int | None], ...]:
    """Which earlier request each one could repeat: by how many it comes before, or any (None)."""
    form = FORMS[case.form]
    if case.form == SEVERAL:  # the one before has the same prompt if it has the same request
        return (SIBLINGS, 1), ("any earlier request", None)
    prompts = len(far.STARTS.get(case.form, form.prompts)) or SAMPLED_PROMPTS
    lags: list[tuple[str, int | None]] = [
        ("the last request with the same prompt", prompts),
        ("any earlier request", None),
    ]
    batch = 0 if form.calls or case.form in FAR else case.capabilities.max_batch
    if batch > SAMPLED_PROMPTS and batch % SAMPLED_PROMPTS == 0:
        lags.append(("the same row of the last batch", batch))
    return tuple(lags)


def apart_lags(case: Case) -> tuple[tuple[str, int], ...]:
    """Further apart than neighbours, which tokens of a request are compared: where every proposal
    is accepted, blocks begin at known places, and the draft's stream may be the target's.
    """
    tokens = FORMS[case.form].tokens if case.form == TWIN else 0
    return tuple((f"tokens {lag} apart", lag) for lag in range(2, tokens))
