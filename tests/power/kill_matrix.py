"""The kill matrix: how often is each fault of the catalogue called NOT EXACT, and by what?

Plan, engine, evidence and verdict are those of ``conformance run faulty:NAME --suite NAME``, with
the suite in which the fault shows, at the default alpha; only the worker processes are left out.
The number of requests is the profile's own, or a share of it: at a quarter a run costs a quarter,
and a fault that is always killed there is killed all the more by the whole. One that is not is run
anew with all of the requests, and that is what counts. Run as ``python kill_matrix.py --help``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "verifier"))

import in_process
import verifying
from places import catalogue, ordered, plan_of, promised, suite_of

from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.decide import decide
from conformance.errors import BadAnswerError, UnknownEngineError
from conformance.evidence import Evidence
from conformance.gather import Gathered
from conformance.plan import PROFILES, Case, RunPlan
from conformance.result import CaseResult
from conformance.verdict import Verdict, run_verdict

FIRST_SEED = 1000


@cache
def control_of(plan: RunPlan, case: Case) -> Evidence:
    """A control arm, which no fault of the catalogue touches unless both arms share their calls."""
    return in_process.gather_calls(ReferenceEngine(), plan, case, "control")


def gathered(plan: RunPlan, case: Case, engine: ReferenceEngine) -> Gathered:
    """Every arm of a case, as far as the engine keeps the contract."""
    arms = {}
    try:
        for arm in case.sampled_arms:
            arms[arm] = (
                control_of(plan, case)
                if arm == "control"
                else in_process.gather_calls(engine, plan, case, arm)
            )
    except BadAnswerError as exc:
        return Gathered(case, arms, exc)
    return Gathered(case, arms)


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
    plan = plan_of(task.profile, suite_of(task.name), task.share)
    plan = in_process.with_seed(plan, task.seed)
    engine = faulty(task.name)
    for case in ordered(plan, task.name):
        found = gathered(plan, case, engine)
        result = decide(plan, found, task.explain)
        # an error of our own would not be the fault's
        assert result.verdict.verdict is not Verdict.ERROR or found.error, result.error
        yield result
        if task.first_only and result.verdict.verdict in (Verdict.NOT_EXACT, Verdict.ERROR):
            return


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
            cases.append(f"{r.case.probe} / {r.case.configuration}")
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
    for name in catalogue():
        with suppress(UnknownEngineError):
            verifying.named(f"faulty:{name}:verifier")
            found.append(name)
    return found


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of every fault.

    `explained` is the number of runs in which the cause is asked for, `share` that of the profile's
    requests, at the engine tier.
    """

    tier: str
    profile: str
    runs: int
    first_only: bool = True
    explained: int = 0
    share: float = 1.0

    @property
    def label(self) -> str:
        """Profile and share."""
        return self.profile if self.share == 1 else f"{self.profile} at {self.share:.0%}"

    def tasks(self, fault: str, done: int) -> list[Task]:
        """The runs of a fault, but for those done."""
        return [
            Task(
                fault,
                self.profile,
                FIRST_SEED + r,
                self.first_only,
                r < self.explained,
                self.share,
            )
            for r in range(done, self.runs)
        ]


def run_fault(asked: Asked, row: Killed, pool: Executor) -> Killed:
    """Go on with a row; anew, with all requests, if the fault survives with a share of them."""
    tasks = asked.tasks(row.fault, row.runs)
    run_one = one if asked.tier == "engine" else one_verifier
    for task, run in zip(tasks, pool.map(run_one, tasks), strict=True):
        row.runs += 1
        row.killed += run.verdict in (Verdict.NOT_EXACT, Verdict.ERROR)
        row.passed += run.verdict is Verdict.EXACT
        row.by.update(run.tests)
        row.cases.update(run.cases)
        row.explained += task.explain
        row.named += run.named
        print(f"{row.fault:28} {run.verdict.value:12} {' '.join(run.tests)}", flush=True)
    if row.killed < row.runs and asked.share < 1:
        whole = replace(asked, share=1.0)
        return run_fault(whole, Killed(asked.tier, row.fault, whole.label), pool)
    return row


def matrix(
    asked: Asked, faults: Sequence[str], jobs: int = 1, before: Sequence[Killed] = ()
) -> Iterator[list[Killed]]:
    """All rows, each time that a fault is done; what was run before is not run again."""
    rows = {row.fault: row for row in before}
    with ProcessPoolExecutor(jobs) as pool:
        for fault in faults:
            row = rows.get(fault, Killed(asked.tier, fault, asked.label))
            # no share is of use where a fault survived with it, or is not promised to be killed
            whole = row.profile == asked.profile or not promised(fault, asked.tier)
            mine = replace(asked, share=1.0) if whole else asked
            rows[fault] = run_fault(mine, replace(row, profile=mine.label), pool)
            yield list(rows.values())


def as_rows(found: Sequence[Killed]) -> list[dict[str, Any]]:
    """Plain data, with an exact interval for every rate."""
    return [
        asdict(replace(k, by=dict(k.by), cases=dict(k.cases)))  # type: ignore[arg-type]
        | {"interval_95": in_process.clopper_pearson(k.killed, k.runs)}
        for k in found
    ]


def from_rows(rows: Sequence[dict[str, Any]]) -> list[Killed]:
    """What `as_rows` made."""
    kept = [{k: v for k, v in row.items() if k != "interval_95"} for row in rows]
    return [Killed(**r | {"by": Counter(r["by"]), "cases": Counter(r["cases"])}) for r in kept]


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
    parser.add_argument(
        "--out", type=Path, help="written after every fault; what is there already is gone on from"
    )
    said = parser.parse_args()
    asked = Asked(
        said.tier, said.profile, said.runs, not said.every_case, said.explained, said.share
    )
    faults = said.faults or (catalogue() if said.tier == "engine" else bare())
    before = []
    if said.out and said.out.exists():
        before = from_rows(json.loads(said.out.read_text(encoding="utf-8")))
    for rows in matrix(asked, faults, said.jobs, before):
        if said.out:
            said.out.write_text(json.dumps(as_rows(rows), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
