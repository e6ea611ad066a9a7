"""From findings to a verdict: the rules that no whole run happens to show."""

from __future__ import annotations

import pytest

from conformance.contract import Capabilities, EngineCard
from conformance.decoding import Decoding
from conformance.plan import PROFILES, Case, RunPlan
from conformance.rules import AIMED_AT, SEEN_AT_LEAST, size_of, verdict_of
from conformance.verdict import Finding, Interval, Speculation, Verdict
from conformance.workload import Workload

WORKLOAD = Workload(((1, 2, 3),), 2000, 8)
CASE = Case("engine", "mid", Decoding(), EngineCard("engine"), Capabilities(), WORKLOAD)
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
        (Speculation(), "reported neither rounds nor counts"),
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


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.02, 0.02, Verdict.INCONCLUSIVE),
        (0.25, 0.4, Verdict.EXACT),
        (-0.3, 0.4, Verdict.EXACT),  # too few tokens to tell
    ],
)
def test_accepted_tokens_must_look_like_the_drafts(
    probe_cache: object, low: float, high: float, verdict: Verdict
) -> None:
    lean = Finding(
        "draft leak", "accepted", "speculative", 900, 0.5,
        effect={"leak": Interval((low + high) / 2, low, high)},
    )  # fmt: skip
    found = verdict_of(PLAN, CASE, [CERTIFIED, lean], SEEN)
    assert found.verdict is verdict
    assert ("cannot be believed" in found.why) == (verdict is Verdict.INCONCLUSIVE)
    assert found.needed is None


def test_an_inconclusive_case_says_how_many_more() -> None:
    thin = Finding("chi-square", "output index 0", "speculative", 2000, 0.5, detectable=0.24)
    found = verdict_of(PLAN, CASE, [thin], SEEN)
    assert found.needed == 8800  # four times as many, and a tenth for the addition's own alpha
    assert "about 6,800 more requests an arm" in found.why
    few = Speculation(True, 9, 36, 10, 99, 4)
    seldom = verdict_of(PLAN, CASE, [CERTIFIED], few)
    assert seldom.needed == 2000 * AIMED_AT / 10
    none = verdict_of(PLAN, CASE, [CERTIFIED], Speculation(True, 9, 36, 0, 99, 4))
    assert none.needed is None
    assert "no number of samples is known to help" in none.why


def test_the_distance_is_told_where_it_is_seen_most_clearly() -> None:
    def table(t: int, low: float) -> Finding:
        sizes = {
            "tv": Interval(low + 0.02, low, low + 0.05),
            "kl_nats_per_token": Interval(2, 1, 3),
        }
        return Finding("chi-square", f"output index {t}", "speculative", 99, 0.5, effect=sizes)

    said = size_of([table(0, 0.0), table(3, 0.1), table(5, 0.04)])
    assert said == (
        "At output index 3 it is off by a total variation of 0.120 (95% interval 0.100 to 0.150), "
        "2 nats per token (1 to 3)."
    )
    assert size_of([table(0, 0.0)]) == ""
