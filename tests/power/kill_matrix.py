"""The kill matrix: how often is each fault of the catalogue called NOT EXACT, and by what?

Plan, engine, evidence and verdict are those of ``conformance run faulty:NAME --suite NAME``, with
the suite in which the fault shows, at the default alpha; only the worker processes are left out.
The number of requests is the profile's own, or a share of it: at a quarter a run costs a quarter,
and a fault that is always killed there is killed all the more by the whole. Run as
``python kill_matrix.py --help``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "verifier"))

import in_process
import verifying

from conformance.adapters.reference import faulty
from conformance.decide import decide
from conformance.decoding import Decoding
from conformance.diagnosis.candidates import applicable
from conformance.errors import BadAnswerError, UnknownEngineError
from conformance.evidence import Evidence
from conformance.faults import FAULTS
from conformance.gather import Gathered
from conformance.plan import AGAIN, PROFILES, Case, RunPlan, make_plan
from conformance.result import CaseResult
from conformance.suite import LAW, SUITES
from conformance.verdict import Verdict, run_verdict


@cache
def plan_of(profile: str, suite: str = LAW, share: float = 1.0, probe: str = "mid") -> RunPlan:
    """What ``conformance run reference --suite NAME`` plans, with a share of its requests."""
    asked = in_process.cases("worked-example", [Decoding()]) if suite == LAW else []
    asked += in_process.cases(probe, SUITES[suite])
    plan = make_plan(asked, PROFILES[profile], seed=0)
    return replace(plan, cases=tuple(reduced(case, share) for case in plan.cases))


def reduced(case: Case, share: float) -> Case:
    """A share of the requests of a case; all tests and their level stay."""
    assert case.workload is not None
    requests = math.ceil(share * case.workload.requests)
    return replace(case, workload=replace(case.workload, requests=requests))


def suite_of(fault: str) -> str:
    """The first suite that has a decoding under which a fault shows."""
    kind = FAULTS[fault.partition("=")[0]]
    if kind.needs in SUITES:  # of which the tokens tell nothing
        return kind.needs
    return next((s for s, asked in SUITES.items() if any(applicable(kind, d) for d in asked)), LAW)


@cache
def control_of(plan: RunPlan, case: Case) -> Evidence:
    """A control arm, which no fault of the catalogue touches."""
    return in_process.gather_runs(faulty("accept-all"), case, "control", [plan])[0]


@dataclass(slots=True)
class Killed:
    """Runs of one fault.

    `killed` counts NOT EXACT and broken contracts, `passed` EXACT; the rest was inconclusive. `by`
    counts the runs in which each test rejected, `cases` those in which each case did.
    """

    tier: str
    fault: str
    profile: str
    runs: int = 0
    killed: int = 0
    passed: int = 0
    by: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    explained: int = 0
    named: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """One run: of a fault at a profile, with a share of its requests.

    `explain` names the cause as well, which takes much longer.
    """

    name: str
    profile: str
    seed: int
    first_only: bool = True
    explain: bool = False
    share: float = 1.0


def judge_all(task: Task) -> Iterator[CaseResult]:
    """The judged cases of one run."""
    name, explain = task.name, task.explain
    plan = in_process.with_seed(plan_of(task.profile, suite_of(name), task.share), task.seed)
    engine = faulty(name)
    for case in ordered(plan, name):
        arms = {"control": control_of(plan, case)}
        try:
            spec = in_process.gather_runs(engine, case, "speculative", [plan])[0]
        except BadAnswerError as exc:
            yield decide(plan, Gathered(case, arms, exc))
            continue
        if case.again is not None:
            asked = case.asked(AGAIN)
            arms[AGAIN] = in_process.gather_runs(engine, asked, AGAIN, [plan])[0]
        result = decide(plan, Gathered(case, {"speculative": spec} | arms), explain)
        yield result
        if task.first_only and result.verdict.verdict is Verdict.NOT_EXACT:
            return


def ordered(plan: RunPlan, name: str) -> Sequence[Case]:
    """Where it shows first, and plain sampling before others: it kills most, and then the others
    need not be asked.
    """
    kind = FAULTS[name.partition("=")[0]]
    return sorted(
        plan.cases,
        key=lambda c: (
            not applicable(kind, c.decoding), c.probe != "mid", c.decoding != Decoding(),
            c.decoding.greedy,
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run of one fault."""

    verdict: Verdict
    tests: tuple[str, ...]
    cases: tuple[str, ...]
    named: bool


def one(task: Task) -> Run:
    """One run of one fault."""
    tests, cases, named, verdicts = set(), [], False, []
    for r in judge_all(task):
        verdicts.append(r.verdict.verdict)
        if r.verdict.verdict is Verdict.NOT_EXACT:
            cases.append(f"{r.case.probe} / {r.case.decoding}")
            tests |= {f.test for f in r.findings if f.rejected and f.arm != "control"}
            fault = task.name.partition("=")[0]
            named |= any(f"{said} {fault} " in r.verdict.why for said in ("cause:", "nearest is"))
        elif r.verdict.verdict is Verdict.ERROR:
            tests.add("contract")
    return Run(run_verdict(verdicts), tuple(sorted(tests)), tuple(cases), named)


def one_verifier(task: Task) -> Run:
    """As `one`, for the bare acceptance rule with the fault."""
    name = task.name
    verifier = verifying.named(f"faulty:{name}:verifier")
    plan = verifying.plan_for(verifier, task.profile, seed=task.seed)
    if task.first_only and not task.explain and (tests := verifying.first_kill(verifier, plan)):
        return Run(Verdict.NOT_EXACT, tests, (), False)
    result = verifying.judged(verifier, plan)
    return Run(
        result.verdict.verdict,
        tuple(sorted({f.test for f in result.findings if f.rejected})),
        (),
        f"cause: {name.partition('=')[0]}" in result.verdict.why,
    )


def bare() -> list[str]:
    """Faults that a verifier can have."""
    found = []
    for name in FAULTS:
        with suppress(UnknownEngineError):
            verifying.named(f"faulty:{name}:verifier")
            found.append(name)
    return found


def matrix(
    tier: str,
    faults: Sequence[str],
    profile: str,
    runs: int,
    jobs: int = 1,
    first_only: bool = True,
    explained: int = 0,
    share: float = 1.0,
) -> list[Killed]:
    """Run every fault `runs` times, and ask for the cause in the first `explained` of them."""
    tasks = [
        Task(f, profile, 1000 + r, first_only, r < explained, share)
        for f in faults
        for r in range(runs)
    ]
    label = profile if share == 1 else f"{profile} with {share:.0%} of its requests"
    rows = {f: Killed(tier, f, label) for f in faults}
    run_one = one if tier == "engine" else one_verifier
    with ProcessPoolExecutor(jobs) as pool:
        for task, run in zip(tasks, pool.map(run_one, tasks), strict=True):
            row = rows[task.name]
            row.runs += 1
            row.killed += run.verdict in (Verdict.NOT_EXACT, Verdict.ERROR)
            row.passed += run.verdict is Verdict.EXACT
            row.by.update(run.tests)
            row.cases.update(run.cases)
            row.explained += task.explain
            row.named += run.named
            print(f"{task.name:28} {run.verdict.value:12} {' '.join(run.tests)}", flush=True)
    return list(rows.values())


def as_rows(found: Sequence[Killed]) -> list[dict[str, object]]:
    """Plain data, with an exact interval for every rate."""
    return [
        asdict(replace(k, by=dict(k.by), cases=dict(k.cases)))  # type: ignore[arg-type]
        | {"interval_95": in_process.clopper_pearson(k.killed, k.runs)}
        for k in found
    ]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", help="NAME or NAME=x; default: all")
    parser.add_argument("--tier", default="engine", choices=["engine", "verifier"])
    parser.add_argument("--profile", default="standard", choices=list(PROFILES))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every-case", action="store_true", help="do not stop at the first kill")
    parser.add_argument("--explained", type=int, default=0, help="runs that name the cause")
    parser.add_argument("--share", type=float, default=1.0, help="of the requests; engine tier")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    faults = asked.faults or (list(FAULTS) if asked.tier == "engine" else bare())
    found = matrix(
        asked.tier,
        faults,
        asked.profile,
        asked.runs,
        asked.jobs,
        not asked.every_case,
        asked.explained,
        asked.share,
    )
    rows = as_rows(found)
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
