"""The kill matrix: how often is each fault of the catalogue called NOT EXACT, and by what?

Plan, engine, evidence and verdict are those of ``conformance run faulty:NAME --suite NAME``, with
the suite in which the fault shows, at the default alpha; only the worker processes are left out.

To see a kill rate of .999 takes thousands of runs. So a fault is run with a share s of the
profile's requests first. All of them are 1/s such samples, each judged at the same level; whoever
is killed by one of those with probability k survives all of them with probability (1 - k)^(1/s),
and the whole sample tells no less than its parts: see `whole_at_least`, and `share_check.py`, which
holds that against runs. A fault for which a share is too small is run with more. Run as
``python kill_matrix.py --help``.
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
from scipy import stats

from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.decide import decide
from conformance.errors import BadAnswerError, UnknownEngineError
from conformance.evidence import Evidence
from conformance.gather import Gathered
from conformance.plan import PROFILES, Case, RunPlan
from conformance.reports.measured import SURE
from conformance.result import CaseResult
from conformance.verdict import Verdict, run_verdict

FIRST_SEED = 1000
# shares that are tried in turn, and runs with each: enough to show `SURE`, but for the whole
LADDER = (
    *((share, 12) for share in (1 / 256, 1 / 64, 1 / 16, 1 / 8)),
    *((1 / 4, 24), (1 / 2, 150), (1.0, 24)),
)
SMALLEST = {"standard": 1 / 16}  # of fewer requests no test would make anything
UNPROMISED = ((1.0, 2),)  # for faults that no pass rules out: what becomes of them with everything
KILLED = (Verdict.NOT_EXACT, Verdict.ERROR)
CONFIDENCE = 0.99  # one-sided, that a rate is at least what is said


def whole_at_least(killed: int, runs: int, share: float) -> float:
    """Lower bound of the kill rate with all requests, from runs with a share of them."""
    if not runs:
        return 0.0
    test = stats.binomtest(killed, runs, alternative="greater")
    low = float(test.proportion_ci(CONFIDENCE, method="exact").low)
    return 1 - (1 - low) ** (1 / share)


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
    counts the runs in which each test rejected, `cases` those in which each case did. `share` is
    that of the requests.
    """

    tier: str
    fault: str
    profile: str
    share: float = 1.0
    runs: int = 0
    killed: int = 0
    passed: int = 0
    by: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)

    def could_show(self, runs: int) -> float:
        """The bound that is left if all further runs, of so many, are kills."""
        return whole_at_least(self.killed + runs - self.runs, runs, self.share)


@dataclass(frozen=True, slots=True)
class Task:
    """One run: of a fault at a profile, with a share of its requests."""

    name: str
    profile: str
    seed: int
    first_only: bool = True
    share: float = 1.0


def judge_all(task: Task, explain: bool = False) -> Iterator[CaseResult]:
    """The judged cases of one run; their causes too, which takes longer."""
    plan = plan_of(task.profile, suite_of(task.name), task.share)
    plan = in_process.with_seed(plan, task.seed)
    engine = faulty(task.name)
    for case in ordered(plan, task.name):
        found = gathered(plan, case, engine)
        result = decide(plan, found, explain)
        # an error of our own would not be the fault's
        assert result.verdict.verdict is not Verdict.ERROR or found.error, result.error
        yield result
        if task.first_only and result.verdict.verdict in KILLED:
            return


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run of one fault."""

    verdict: Verdict
    tests: tuple[str, ...]
    cases: tuple[str, ...]


def one(task: Task) -> Run:
    """One run of one fault."""
    tests, cases, verdicts = set(), [], []
    for r in judge_all(task):
        verdicts.append(r.verdict.verdict)
        if r.verdict.verdict is Verdict.NOT_EXACT:
            cases.append(f"{r.case.probe} / {r.case.configuration}")
            tests |= {f.test for f in r.findings if f.rejected and f.arm != "control"}
        elif r.verdict.verdict is Verdict.ERROR:
            tests.add("contract")
    return Run(run_verdict(verdicts), tuple(sorted(tests)), tuple(cases))


def one_verifier(task: Task) -> Run:
    """As `one`, for the bare acceptance rule with the fault."""
    name = task.name
    verifier = verifying.named(f"faulty:{name}:verifier")
    plan = verifying.plan_for(verifier, task.profile, seed=task.seed, share=task.share)
    if task.first_only and (tests := verifying.first_kill(verifier, plan)):
        return Run(Verdict.NOT_EXACT, tests, ())
    result = verifying.judged(verifier, plan)
    tests = tuple(sorted({f.test for f in result.findings if f.rejected}))
    return Run(result.verdict.verdict, tests, ())


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
    """What is asked of every fault: shares and numbers of runs, one after the other until one
    suffices.
    """

    tier: str
    profile: str
    ladder: tuple[tuple[float, int], ...] = LADDER
    first_only: bool = True

    def tasks(self, row: Killed, runs: int) -> list[Task]:
        """The runs of a row, but for those done."""
        seeds = range(FIRST_SEED + row.runs, FIRST_SEED + runs)
        return [Task(row.fault, self.profile, s, self.first_only, row.share) for s in seeds]


def run_row(asked: Asked, row: Killed, runs: int, pool: Executor, jobs: int) -> None:
    """Go on with a row, as long as it can show what it is to show, or there is no larger share."""
    run_one = one if asked.tier == "engine" else one_verifier
    tasks = asked.tasks(row, runs)
    while tasks and (row.share == 1 or row.could_show(runs) >= SURE):
        for run in pool.map(run_one, tasks[:jobs]):
            row.runs += 1
            row.killed += run.verdict in KILLED
            row.passed += run.verdict is Verdict.EXACT
            row.by.update(run.tests)
            row.cases.update(run.cases)
            told = f"{row.fault:28} {row.share:<8g} {run.verdict.value:12} {' '.join(run.tests)}"
            print(told, flush=True)
        tasks = tasks[jobs:]


def run_fault(asked: Asked, before: Killed | None, fault: str, pool: Executor, jobs: int) -> Killed:
    """Try the shares in turn; go on with the one of `before`."""
    ladder = asked.ladder if promised(fault, asked.tier) else UNPROMISED
    for share, runs in ladder:
        if before is not None and share < before.share:
            continue
        row = Killed(asked.tier, fault, asked.profile, share)
        if before is not None and before.share == share:
            row = before
        run_row(asked, row, runs, pool, jobs)
        if whole_at_least(row.killed, row.runs, share) >= SURE:
            break
    return row


def matrix(
    asked: Asked, faults: Sequence[str], jobs: int = 1, before: Sequence[Killed] = ()
) -> Iterator[list[Killed]]:
    """All rows, each time that a fault is done; what was run before is not run again."""
    rows = {row.fault: row for row in before}
    with ProcessPoolExecutor(jobs) as pool:
        for fault in faults:
            rows[fault] = run_fault(asked, rows.get(fault), fault, pool, jobs)
            yield list(rows.values())


def as_rows(found: Sequence[Killed]) -> list[dict[str, Any]]:
    """Plain data, with the bound of every rate."""
    return [
        asdict(replace(k, by=dict(k.by), cases=dict(k.cases)))  # type: ignore[arg-type]
        | {"whole": whole_at_least(k.killed, k.runs, k.share)}
        for k in found
    ]


def from_rows(rows: Sequence[dict[str, Any]]) -> list[Killed]:
    """What `as_rows` made."""
    kept = [{k: v for k, v in row.items() if k != "whole"} for row in rows]
    return [Killed(**r | {"by": Counter(r["by"]), "cases": Counter(r["cases"])}) for r in kept]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", help="NAME or NAME=x; default: all")
    parser.add_argument("--tier", default="engine", choices=["engine", "verifier"])
    parser.add_argument("--profile", default="standard", choices=list(PROFILES))
    parser.add_argument("--runs", type=int, help="with each share, in the place of the usual")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every-case", action="store_true", help="do not stop at the first kill")
    parser.add_argument(
        "--shares",
        type=float,
        nargs="+",
        help="of the requests, tried in turn; default: "
        + ", ".join(f"1/{1 / share:g}" for share, _ in LADDER),
    )
    parser.add_argument(
        "--out", type=Path, help="written after every fault; what is there already is gone on from"
    )
    said = parser.parse_args()
    shares = sorted(said.shares or (s for s, _ in LADDER if s >= SMALLEST.get(said.profile, 0)))
    ladder = tuple((share, said.runs or dict(LADDER).get(share, 24)) for share in shares)
    asked = Asked(said.tier, said.profile, ladder, not said.every_case)
    faults = said.faults or (catalogue() if said.tier == "engine" else bare())
    if said.profile == "audit" and not said.faults:  # one that survives takes all of the requests
        faults = [name for name in faults if promised(name, said.tier)]
    before = []
    if said.out and said.out.exists():
        before = from_rows(json.loads(said.out.read_text(encoding="utf-8")))
    for rows in matrix(asked, faults, said.jobs, before):
        if said.out:
            said.out.write_text(json.dumps(as_rows(rows), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
