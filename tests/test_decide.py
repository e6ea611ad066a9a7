"""From findings to a verdict: the rules that no whole run happens to show."""

from __future__ import annotations

import pytest

from conformance.contract import Capabilities, EngineCard
from conformance.decide import SEEN_AT_LEAST, size_of, verdict_of
from conformance.decoding import Decoding
from conformance.plan import PROFILES, Case, RunPlan
from conformance.verdict import Finding, Interval, Speculation, Verdict

CASE = Case("engine", "mid", Decoding(), EngineCard("engine"), Capabilities())
PLAN = RunPlan((CASE,), PROFILES["standard"], 1e-6, 0)
SEEN = Speculation(True, 100, 400, SEEN_AT_LEAST, SEEN_AT_LEAST, 4)
CERTIFIED = Finding("chi-square", "output index 0", "speculative", 2000, 0.5, detectable=0.1)


def _rejected(arm: str) -> Finding:
    return Finding("chi-square", "output index 3", arm, 2000, 1e-12, 1e-9, True, message=arm)


@pytest.mark.parametrize(
    ("rejected", "verdict", "says"),
    [
        ((), Verdict.EXACT, "no departure"),
        (("speculative",), Verdict.NOT_EXACT, "Strongest evidence"),
        (("speculative", "both"), Verdict.NOT_EXACT, "Strongest evidence"),
        (("both",), Verdict.NOT_EXACT, "Each arm by itself agrees"),
        (("control",), Verdict.INCONCLUSIVE, "Law mismatch"),
        (("speculative", "control"), Verdict.INCONCLUSIVE, "Law mismatch"),
        (("speculative", "control", "both"), Verdict.NOT_EXACT, "Law mismatch"),
    ],
)
def test_which_arm_rejected_decides(rejected: tuple[str, ...], verdict: Verdict, says: str) -> None:
    found = verdict_of(PLAN, CASE, [CERTIFIED, *map(_rejected, rejected)], SEEN)
    assert found.verdict is verdict
    assert says in found.why


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (Speculation(), "reported no rounds"),
        (Speculation(True, 9, 36, SEEN_AT_LEAST - 1, 99, 4), "hardly seen"),
        (Speculation(True, 9, 36, 99, SEEN_AT_LEAST - 1, 4), "hardly seen"),
    ],
)
def test_nothing_passes_without_speculation_seen(seen: Speculation, says: str) -> None:
    found = verdict_of(PLAN, CASE, [CERTIFIED], seen)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert says in found.why


def test_nothing_passes_without_a_certificate() -> None:
    assert verdict_of(PLAN, CASE, [], SEEN).verdict is Verdict.INCONCLUSIVE


def test_a_thin_certificate_does_not_pass() -> None:
    thin = Finding("chi-square", "output index 0", "speculative", 20, 0.5, detectable=0.5)
    found = verdict_of(PLAN, CASE, [thin], SEEN)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "0.5 where profile standard wants 0.12" in found.why


@pytest.mark.parametrize(
    ("eps", "says"),
    [(0.2, "leans to the draft by 20.0%"), (-0.2, "leans away from the draft by 20.0%")],
)
def test_the_size_says_which_way(eps: float, says: str) -> None:
    leak = Finding(
        "draft leak", "all tokens", "speculative", 10, 1e-12, 1e-9, True,
        effect={"leak": Interval(eps, eps - 0.01, eps + 0.01)},
    )  # fmt: skip
    assert says in size_of([leak])
    assert "19.0% to 21.0%" in size_of([leak])
