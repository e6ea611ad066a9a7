"""The exact engine under every suite: how often is it called NOT EXACT?

As in `test_pipeline_false_alarms`, but with what the suites around the law ask: ends, processors,
grammars, log-probabilities, and requests that are not alike, in the calls that are planned.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import in_process
import pytest
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1] / "power"))

from places import asked

from conformance.adapters.reference import ReferenceEngine
from conformance.decide import decide
from conformance.forms import PLAIN
from conformance.gather import Gathered
from conformance.plan import Case, Profile, RunPlan, make_plan
from conformance.result import CaseResult
from conformance.suite import IN_FORMS, LAW, SUITES
from conformance.verdict import Verdict, run_verdict

ALPHA = 0.01
# An exact engine fails the count with at most the first probability, the p-values with the second.
COUNT_LEVEL, SMALL_LEVEL = 1e-4, 1e-6
THRESHOLDS = (0.1, 0.01)
PROFILE = Profile("tiny", delta=0.4, power=0.9, greedy_rate=0.05)
AROUND = tuple(suite for suite in SUITES if suite != LAW)


def results(plan: RunPlan, case: Case, seeds: range) -> Iterator[CaseResult]:
    """The case in independent runs of one plan."""
    engine, runs = ReferenceEngine(), [in_process.with_seed(plan, seed) for seed in seeds]
    if case.form == PLAIN:
        found = {a: in_process.gather_runs(engine, case, a, runs) for a in case.sampled_arms}
        arms = [{a: found[a][i] for a in found} for i in range(len(runs))]
    else:
        arms = [
            {a: in_process.gather_calls(engine, run, case, a) for a in case.sampled_arms}
            for run in runs
        ]
    for run, mine in zip(runs, arms, strict=True):
        result = decide(run, Gathered(case, mine), explain=False)
        assert result.verdict.verdict is not Verdict.ERROR, result.error
        yield result


def run_suite(suite: str, runs: int) -> tuple[list[Verdict], dict[str, list[float]]]:
    """Verdicts of independent runs of a suite, and the p-values of each test in them."""
    plan = make_plan(asked(suite), PROFILE, ALPHA, seed=1)
    verdicts: list[list[Verdict]] = [[] for _ in range(runs)]
    p_values: dict[str, list[float]] = defaultdict(list)
    for case in plan.cases:
        once = case.decoding.greedy and case.form == PLAIN  # draws nothing: the same in every run
        found = list(results(plan, case, range(1 if once else runs)))
        for i in range(runs):
            verdicts[i].append(found[0 if once else i].verdict.verdict)
        for f in (f for result in found for f in result.findings):
            if f.p_value is not None and f.n > 0 and f.level > 0:
                p_values[f.test].append(f.p_value)
    return [run_verdict(mine) for mine in verdicts], p_values


def check(runs: int, in_forms: int, record: Callable[[str, object], None], name: str) -> None:
    tables, alarms, passed, total = [], 0, 0, 0
    p_values: dict[str, list[float]] = defaultdict(list)
    for suite in AROUND:
        verdicts, found = run_suite(suite, in_forms if suite in IN_FORMS else runs)
        said = Counter(v.value for v in verdicts)
        tables.append({"suite": suite, "runs": len(verdicts), "verdicts": said})
        print(f"{suite}: {dict(said)}", flush=True)
        alarms, total = alarms + said[Verdict.NOT_EXACT.value], total + len(verdicts)
        passed += said[Verdict.EXACT.value]
        for test, values in found.items():
            p_values[test] += values
    below = in_process.at_or_below(p_values, THRESHOLDS)
    print(below)
    record("false_alarms", f"{alarms} of {total} at alpha {ALPHA}")
    in_process.write_table(
        name,
        {
            "alpha": ALPHA, "runs": total, "false_alarms": alarms, "suites": tables,
            "p_values_at_or_below": below,
        },
    )  # fmt: skip
    assert passed >= total / 4  # so the runs could have gone either way
    assert stats.binom.sf(alarms - 1, total, ALPHA) > COUNT_LEVEL
    in_process.check_uniform(below, SMALL_LEVEL, lambda test: "greater")


@pytest.mark.long
def test_false_alarms_of_every_suite(record_property: Callable[[str, object], None]) -> None:
    check(12, 2, record_property, "false_alarms_suites")
