"""What a reader is shown of a served case's bets; nothing here decides a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from conformance.plan import RunPlan
from conformance.result import Trajectory
from conformance.served.evidence import ServedEvidence
from conformance.served.laws import ServedLaws
from conformance.served.order import Watch, answers, watch_of
from conformance.served.plan import LAW_GATE, LAW_GATE_TESTS, ServedCase
from conformance.served.server import AGAIN, CONTROL, SPECULATIVE

LOOKS = 40
WHOSE = {
    "both": (SPECULATIVE, CONTROL),
    SPECULATIVE: (SPECULATIVE,),
    CONTROL: (CONTROL, AGAIN),
}


def trajectories(
    plan: RunPlan,
    case: ServedCase,
    arms: Mapping[str, ServedEvidence],
    laws: ServedLaws | None,
) -> tuple[Trajectory, ...]:
    """The bets on the arms against each other, and on each against the law that the control server
    tells, as answers came in.

    Parameters
    ----------
    plan, case, arms, laws
        As for `conformance.served.judge.findings`.
    """
    watch = watch_of(plan, case, laws)
    every = max(1, sum(len(e.symbols) for e in arms.values()) // LOOKS)
    known = watch.law is not None and bool(watch.law.nodes.expected)
    courses = [_Course("both", -math.log10(plan.level))]
    if known:
        courses.append(_Course(SPECULATIVE, -math.log10(plan.level)))
        courses.append(_Course(CONTROL, -math.log10(LAW_GATE / LAW_GATE_TESTS)))
    number = 0
    for number, (arm, prompt, answer) in enumerate(answers(plan, case, arms), 1):
        watch.add(arm, prompt, answer)
        for course in courses:
            course.tokens += len(answer.symbols) * (arm in WHOSE[course.arm])
        if number % every == 0:
            _look(watch, courses)
    if number % every:
        _look(watch, courses)
    return tuple(Trajectory(c.arm, tuple(c.at), tuple(c.log10_e), c.needed) for c in courses)


class _Course:
    def __init__(self, arm: str, needed: float) -> None:
        self.arm, self.needed, self.tokens = arm, needed, 0
        self.at: list[int] = []
        self.log10_e: list[float] = []


def _look(watch: Watch, courses: list[_Course]) -> None:
    for course, log_e in zip(courses, _values(watch), strict=False):
        course.at.append(course.tokens)
        course.log10_e.append(log_e / math.log(10))


def _values(watch: Watch) -> Iterator[float]:
    yield watch.apart.log_e
    if watch.law is not None:
        yield watch.law.apart.log_e
        yield watch.law.gate.log_e
