"""Runs of the second held-out set: plan, calls, evidence and verdict are those of
``conformance run --suite NAME``, with the suite in which each should show. Run as
``python held_out_suites_runs.py --help``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "verifier"))
sys.path.insert(0, str(Path(__file__).parent))

import held_out_suites
import held_out_suites_exact
import in_process
import places
from held_out_runs import Outcome, outcome, run_seeds
from held_out_suites import CLAIMS, InSuite

from conformance.adapters.reference import ReferenceEngine
from conformance.decide import decide
from conformance.errors import BadAnswerError
from conformance.evidence import Evidence
from conformance.gather import Gathered
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.result import CaseResult
from conformance.verdict import Verdict

ALPHA = 1e-6


@cache
def plan_of(profile: str, suite: str, alpha: float) -> RunPlan:
    """What ``conformance run --suite NAME`` plans for an engine with these claims."""
    cases = [replace(case, capabilities=CLAIMS) for case in places.asked(suite)]
    return make_plan(cases, PROFILES[profile], alpha, seed=0)


@cache
def control_of(profile: str, suite: str, alpha: float, seed: int, i: int) -> Evidence:
    """The control arm of case i, which is right whatever is held out, unless arms share calls."""
    plan = in_process.with_seed(plan_of(profile, suite, alpha), seed)
    return in_process.gather_calls(ReferenceEngine(), plan, plan.cases[i], "control")


def name_of(case: Case) -> str:
    """What is looked at for where a fault is to show: form, probe and decoding."""
    return f"{case.form} {case.probe} {case.decoding}"


def judge_all(
    what: InSuite, seed: int, profile: str, alpha: float, first_only: bool
) -> Iterator[CaseResult]:
    """The judged cases of one run, where it should show first, until one is NOT EXACT."""
    plan = in_process.with_seed(plan_of(profile, what.suite, alpha), seed)
    order = sorted(range(len(plan.cases)), key=lambda i: what.where not in name_of(plan.cases[i]))
    for i in order[:1] if first_only else order:
        case, arms = plan.cases[i], {}
        try:
            for arm in case.sampled_arms:
                arms[arm] = (
                    control_of(profile, what.suite, alpha, seed, i)
                    if arm == "control"
                    else in_process.gather_calls(what.make(), plan, case, arm)
                )
            found = Gathered(case, arms)
        except BadAnswerError as exc:
            found = Gathered(case, arms, exc)
        result = decide(plan, found, explain=False)
        # an error of our own would not be the fault's
        assert result.verdict.verdict is not Verdict.ERROR or found.error, result.error
        yield result
        if result.verdict.verdict in (Verdict.NOT_EXACT, Verdict.ERROR):
            return


def run(
    what: InSuite,
    seed: int,
    profile: str = "standard",
    alpha: float = ALPHA,
    first_only: bool = False,
) -> Outcome:
    """One run of an engine; of the case where it should show alone, if so asked."""
    return outcome(judge_all(what, seed, profile, alpha, first_only))


def main(given: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["faults", "exact"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--profile", default="standard", choices=list(PROFILES))
    parser.add_argument("--first-only", action="store_true", help="the case where it shows alone")
    parser.add_argument("--alpha", type=float, default=ALPHA)
    parser.add_argument("--out", type=Path)
    said = parser.parse_args(given)
    known = held_out_suites.FAULTS if said.kind == "faults" else held_out_suites_exact.EXACT
    seeds = range(said.first, said.first + said.seeds)
    asked = {"profile": said.profile, "alpha": said.alpha, "first_only": said.first_only}
    for name in said.names or known:
        run_seeds(name, partial(run, known[name], **asked), seeds, said.out)


if __name__ == "__main__":
    main()
