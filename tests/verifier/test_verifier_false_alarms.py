"""How often an exact verifier is called NOT EXACT, measured at an alpha that shows it."""

from __future__ import annotations

import pytest
from scipy import stats
from verifying import judged, named, plan_for, sampled

ALPHA = 0.05
RUNS = 200
LAWS = (("worked-example", 400), ("random-8", 400), ("near-32", 400), ("lookup-coin", 300))


@pytest.mark.long
def test_false_alarms() -> None:
    """Bonferroni holds the rate below alpha; every p-value by itself is uniform."""
    verifier = named("reference:verifier")
    alarms, p_values = 0, []
    for seed in range(RUNS):
        plan = plan_for(verifier, alpha=ALPHA, seed=seed, laws=LAWS)
        found = [f for f in sampled(judged(verifier, plan)) if f.p_value is not None]
        # 2 alpha / 2: a run's first stage spends half of alpha
        assert {f.level for f in found} == {ALPHA / 2 / len(plan.cases[0].tests)}
        alarms += any(f.rejected for f in found)
        p_values += [f.p_value for f in found if f.p_value is not None]
    assert stats.binom.sf(alarms - 1, RUNS, ALPHA) > 1e-4, f"{alarms} alarms in {RUNS} runs"
    for level in (0.01, 0.1, 0.5):
        share = sum(p <= level for p in p_values) / len(p_values)
        # p-values of one run share their tokens, so their number counts for less: by the runs
        assert abs(share - level) < 5 * (level * (1 - level) / (4 * RUNS)) ** 0.5, level
