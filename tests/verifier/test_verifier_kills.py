"""Wrong rules are killed by the tests of the distribution, and the right cause is named."""

from __future__ import annotations

import pytest
from verifying import first_kill, judged, named, plan_for, sampled

from conformance.errors import UnknownEngineError
from conformance.faults import rule_faults
from conformance.result import CaseResult
from conformance.verdict import Verdict

RULES = sorted(rule_faults())
QUICK = {"accept-all", "lenient", "resample-from-p"}  # `make test-kills` runs all


def rejections(result: CaseResult) -> int:
    """Tests of the distribution that rejected: what is proved by hand does not count here."""
    return sum(f.rejected for f in sampled(result))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in RULES]
)
def test_rule(name: str) -> None:
    verifier = named(f"faulty:{name}:verifier")
    result = judged(verifier, plan_for(verifier))
    assert result.verdict.verdict is Verdict.NOT_EXACT
    assert rejections(result) > 0
    assert f"Likely cause: {name}" in result.verdict.why
    assert "and it fits" in result.verdict.why
    assert "declares itself not exact" in result.verdict.why


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("misaligned-q", "first tokens are off by no more than chance"),
        ("misaligned-p", "recovered tokens are not drawn from the residual"),
        ("first-unverified", "more first proposals are accepted"),
        ("bonus-from-q", "bonus tokens are not drawn from p"),
        ("sum-for-cumprod", "None of the acceptance rules in the catalogue fits"),
        ("recovered-from-last", "recovered tokens are not drawn from the residual"),
        ("rejected-zeroed", "recovered tokens are not drawn from the residual"),
        ("coin-reused", "recovered tokens are not drawn from the residual"),
    ],
)
def test_where(name: str, place: str) -> None:
    verifier = named(f"faulty:{name}:verifier")
    result = judged(verifier, plan_for(verifier))
    assert result.verdict.verdict is Verdict.NOT_EXACT
    assert rejections(result) > 0
    assert place in result.verdict.why


@pytest.mark.long
def test_small_leniency_at_the_standard_profile() -> None:
    verifier = named("faulty:lenient=0.98:verifier")
    result = judged(verifier, plan_for(verifier, "standard"))
    grid = [f for f in sampled(result) if f.scope == "whole grid" and f.rejected]
    assert {f.test for f in grid} >= {"draft leak", "PIT by q/p"}
    assert "Likely cause: lenient=0.98 (" in result.verdict.why


@pytest.mark.parametrize(
    "name",
    [
        *("stale-cache", "temperature-twice", "shared-stream", "raw-q"),
        # a verifier can verify as they do, and would be exact: they need a decoding, or a form
        *("near-argmax-drawn", "late-unverified", "min-p-ignored", "streams-begin-alike"),
    ],
)
def test_faults_of_the_engine_are_not_the_verifier_s(name: str) -> None:
    with pytest.raises(UnknownEngineError, match=r"in the engine around|no fault named"):
        named(f"faulty:{name}:verifier")


@pytest.mark.parametrize("name", ["lenient=0.8", "resample-from-p"])
def test_what_rejects_first_rejects_in_the_whole_run(name: str) -> None:
    """The kill matrix asks no further than the first law that rejects."""
    verifier = named(f"faulty:{name}:verifier")
    plan = plan_for(verifier, "smoke", seed=3)
    first = first_kill(verifier, plan)
    whole = judged(verifier, plan)
    assert first
    assert set(first) <= {f.test for f in whole.findings if f.rejected}


def test_nothing_rejects_first_where_the_rule_is_exact() -> None:
    verifier = named("reference:verifier")
    assert first_kill(verifier, plan_for(verifier, "smoke", seed=4)) == ()
