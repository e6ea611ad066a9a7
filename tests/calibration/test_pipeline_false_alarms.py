"""The whole pipeline on the exact engine: how often is it called NOT EXACT?

Plan, reference engine, evidence, verdict, as in a run from the command line but without worker
processes, at an alpha of 0.01, where false alarms are frequent enough to be counted. The reference
engine is exact, so a rejection is a false alarm.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace

import in_process
import pytest
from scipy import stats

from conformance.adapters.reference import ReferenceEngine
from conformance.decide import decide
from conformance.decoding import Decoding
from conformance.gather import Gathered
from conformance.plan import Case, Profile, RunPlan, make_plan
from conformance.recipes import RECIPES, Recipe
from conformance.result import CaseResult
from conformance.verdict import Finding, Verdict, run_verdict

ALPHA = 0.01
# An exact engine fails the count below with at most the first probability, and the finer look at
# each test's p-values with at most the second.
COUNT_LEVEL, UNIFORM_LEVEL = 1e-4, 1e-6
THRESHOLDS = (0.5, 0.1, 0.01)
# Valid at every stopping time, or by a union of looks: small p-values are rarer than stated.
AT_MOST_UNIFORM = ("e-process", "coincidences", "repeats")
PROFILE = Profile("tiny", delta=0.3, power=0.9, greedy_rate=0.01)
GREEDY = Decoding(greedy=True)
# Probes like the suite's own, but small, so that hundreds of runs take a minute. Few tokens also
# fill the tables at later output indices.
SMALL = Recipe(
    "small", 0.25, vocab_size=8, hidden=16, intermediate=16, layers=1, heads=2, kv_heads=1,
    init=0.6, entropy=1.4,
)  # fmt: skip
TWO = replace(SMALL, name="two", vocab_size=2, constant=((0.3, 0.7), (0.6, 0.4)))
ASKED = (
    ("small", Decoding()),
    ("small", Decoding(temperature=0.7, top_p=0.8)),
    ("small", Decoding(top_k=4)),
    ("two", Decoding()),
)


@pytest.fixture(autouse=True)
def _small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    for recipe in (SMALL, TWO):
        monkeypatch.setitem(RECIPES, recipe.name, recipe)


def run_many(
    probe: str, decoding: Decoding, seeds: range
) -> list[tuple[Verdict, tuple[Finding, ...]]]:
    """Verdict and findings of independent runs of one plan: greedy and one sampled decoding."""
    plan = make_plan(in_process.cases(probe, [GREEDY, decoding]), PROFILE, ALPHA, seed=1)
    greedy, sampled = plan.cases
    runs = [in_process.with_seed(plan, seed) for seed in seeds]
    engine = ReferenceEngine()
    # greedy decoding draws nothing, so every run has the same answers to the same prompts
    greedy_verdict = _decide(engine, plan, greedy).verdict.verdict
    arms = {a: in_process.gather_runs(engine, sampled, a, runs) for a in sampled.arms}
    out = []
    for i, run in enumerate(runs):
        result = decide(run, Gathered(sampled, {a: arms[a][i] for a in sampled.arms}))
        assert result.verdict.verdict is not Verdict.ERROR, result.error
        out.append((run_verdict([greedy_verdict, result.verdict.verdict]), result.findings))
    return out


def _decide(engine: ReferenceEngine, plan: RunPlan, case: Case) -> CaseResult:
    arms = {a: in_process.gather_runs(engine, case, a, [plan])[0] for a in case.arms}
    return decide(plan, Gathered(case, arms))


def check(runs: int, record: Callable[[str, object], None], name: str) -> None:
    verdicts: Counter[str] = Counter()
    p_values: dict[str, list[float]] = defaultdict(list)
    share = runs // len(ASKED)
    for i, (probe, decoding) in enumerate(ASKED):
        for verdict, findings in run_many(probe, decoding, range(1000 * i, 1000 * i + share)):
            verdicts[verdict.value] += 1
            for f in findings:
                if f.p_value is not None and f.n > 0 and f.level > 0:
                    p_values[f"{f.test} / {f.scope} / {f.arm}"].append(f.p_value)
    total = sum(verdicts.values())
    alarms = verdicts[Verdict.NOT_EXACT.value]
    low, high = in_process.clopper_pearson(alarms, total)
    print(f"{alarms} of {total} exact runs called NOT EXACT at alpha {ALPHA} {dict(verdicts)}")
    below = in_process.at_or_below(p_values, THRESHOLDS)
    record("false_alarms", f"{alarms} of {total} at alpha {ALPHA}")
    in_process.write_table(
        name,
        {
            "alpha": ALPHA, "runs": total, "verdicts": verdicts, "false_alarms": alarms,
            "interval_95": (low, high), "p_values_at_or_below": below,
        },
    )  # fmt: skip
    assert total == share * len(ASKED)
    assert verdicts[Verdict.EXACT.value] >= total / 4  # so the runs could have gone either way
    assert stats.binom.sf(alarms - 1, total, ALPHA) > COUNT_LEVEL
    # Each test by itself, one value a run: uniform, not merely rarely small.
    in_process.check_uniform(
        below,
        UNIFORM_LEVEL,
        lambda key: "greater" if key.partition(" / ")[0] in AT_MOST_UNIFORM else "two-sided",
    )


def test_the_check_fails_where_small_p_values_are_too_many_or_too_few() -> None:
    many = in_process.at_or_below({"test": [0.005] * 30 + [0.5] * 970}, (0.01,))
    assert many == {"test": {0.01: (30, 1000)}}
    few = in_process.at_or_below({"test": [0.5] * 2000}, (0.01,))
    with pytest.raises(AssertionError, match="test: 30 of 1000 p-values"):
        in_process.check_uniform(many, UNIFORM_LEVEL, lambda test: "greater")
    with pytest.raises(AssertionError, match="test: 0 of 2000 p-values"):
        in_process.check_uniform(few, UNIFORM_LEVEL, lambda test: "two-sided")
    in_process.check_uniform(few, UNIFORM_LEVEL, lambda test: "greater")


def test_false_alarms(record_property: Callable[[str, object], None]) -> None:
    check(200, record_property, "false_alarms")


@pytest.mark.long
def test_false_alarms_in_two_thousand_runs(
    record_property: Callable[[str, object], None],
) -> None:
    check(2000, record_property, "false_alarms_long")
