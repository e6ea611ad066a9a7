"""Is the fault that was run the one that a diagnosis names?

Each fault of the catalogue that an engine can be diagnosed for is run in the suite in which it
shows, and the first case that is NOT EXACT is asked for its cause, as ``conformance run`` does. Run
as ``python naming.py --help``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from kill_matrix import FIRST_SEED, Task, judge_all
from places import catalogue, kind_of, promised

from conformance.cause import Cause
from conformance.diagnosis.candidates import UNANSWERABLE
from conformance.verdict import Verdict

# no cause is looked for in a form, of log-probabilities, or on a probe that has but one use
ELSEWHERE = ("form", "logprobs", "tie", "far")


@dataclass(slots=True)
class Named:
    """Runs of one fault that were NOT EXACT.

    `fits` counts those whose likely cause it was, alone or among those that look the same; `near`
    those in which it was so the nearest, and none fitted; `said` what was named instead.
    """

    fault: str
    profile: str
    share: float
    explained: int = 0
    fits: int = 0
    near: int = 0
    said: Counter[str] = field(default_factory=Counter)

    def add(self, cause: Cause | None) -> None:
        """Count one run; not one that was killed where no cause is looked for, as in greedy
        decoding.
        """
        if cause is None:
            return
        self.explained += 1
        fault = kind_of(self.fault).name
        if fault not in {cause.fault, *cause.alike}:
            self.said[cause.fault or cause.standing] += 1
        elif cause.standing == "fits":
            self.fits += 1
        else:
            self.near += 1


def askable() -> list[str]:
    """Faults of which the cause is looked for."""
    return [
        name
        for name in catalogue()
        if promised(name)
        and kind_of(name).needs not in ELSEWHERE
        and kind_of(name).name not in UNANSWERABLE
    ]


def cause_of(task: Task) -> tuple[bool, Cause | None]:
    """Whether the run was NOT EXACT, and the cause that was named."""
    for result in judge_all(task, explain=True):
        if result.verdict.verdict is Verdict.NOT_EXACT:
            return True, result.diagnosis
    return False, None


def rows(
    faults: Sequence[str], profile: str, share: float, runs: int, jobs: int
) -> Iterator[Named]:
    """One row a fault."""
    with ProcessPoolExecutor(jobs) as pool:
        for name in faults:
            task = partial(Task, name, profile, share=share)
            row = Named(name, profile, share)
            tasks = [task(seed) for seed in range(FIRST_SEED, FIRST_SEED + runs)]
            for killed, cause in pool.map(cause_of, tasks):
                if killed:
                    row.add(cause)
            yield row


def as_row(row: Named) -> dict[str, Any]:
    """Plain data."""
    return asdict(replace(row, said=dict(row.said)))  # type: ignore[arg-type]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", help="NAME or NAME=x; default: all that can be named")
    parser.add_argument("--profile", default="standard")
    parser.add_argument("--share", type=float, default=0.25, help="of the profile's requests")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="what is there already is not run again")
    said = parser.parse_args()
    done: list[dict[str, Any]] = []
    if said.out and said.out.exists():
        done = json.loads(said.out.read_text(encoding="utf-8"))
    wanted = said.faults or askable()
    left = [name for name in wanted if name not in {row["fault"] for row in done}]
    for row in rows(left, said.profile, said.share, said.runs, said.jobs):
        print(f"{row.fault:28} {row.fits} fit, {row.near} near, {dict(row.said)}", flush=True)
        done.append(as_row(row))
        if said.out:
            said.out.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
