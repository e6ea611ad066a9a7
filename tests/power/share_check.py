"""Does the whole of the requests kill as often as its shares promise?

`kill_matrix.whole_at_least` takes the rate k with a share s of the requests for a rate of at least
1 - (1 - k)^(1/s) with all of them. Here faults that are small on purpose are run with a small share
and with a larger one, and the rate with the larger is held against what the smaller promises. Run
as ``python share_check.py --help``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kill_matrix import FIRST_SEED, KILLED, Task, one

# sizes at which a share kills sometimes: by the e-process, by sums over all tokens, by tables, by
# repeats, by what is impossible, by two samples
SMALL = (
    "lenient=0.8", "strict=0.8", "drift", "sharpened-every", "tail-lost=0.005", "bonus-late",
    "neighbours-share", "penalty-sign", "bonus-unfiltered", "unseeded-as-before",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compared:
    """Kills of one fault with a share of the requests and with a larger one."""

    fault: str
    profile: str
    shares: tuple[float, float]
    runs: int
    killed: tuple[int, int]

    @property
    def promised(self) -> float:
        """The rate with the larger share that the smaller one's rate promises."""
        small, large = self.shares
        return float(1 - (1 - self.killed[0] / self.runs) ** (large / small))


def compared(
    faults: Sequence[str], profile: str, shares: tuple[float, float], runs: int, jobs: int
) -> Iterator[Compared]:
    """One row a fault; no seed is used twice."""
    with ProcessPoolExecutor(jobs) as pool:
        for name in faults:
            killed = []
            for number, share in enumerate(shares):
                seeds = range(FIRST_SEED + number * runs, FIRST_SEED + (number + 1) * runs)
                tasks = [Task(name, profile, seed, share=share) for seed in seeds]
                killed.append(sum(run.verdict in KILLED for run in pool.map(one, tasks)))
            yield Compared(name, profile, shares, runs, (killed[0], killed[1]))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", default=SMALL)
    parser.add_argument("--profile", default="standard")
    parser.add_argument("--shares", type=float, nargs=2, default=(1 / 16, 1 / 4))
    parser.add_argument("--runs", type=int, default=30, help="with each share")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    said = parser.parse_args()
    done = []
    shares = (said.shares[0], said.shares[1])
    for row in compared(said.faults, said.profile, shares, said.runs, said.jobs):
        done.append(asdict(row) | {"promised": row.promised})
        print(row, f"{row.promised:.3f}", flush=True)
        if said.out:
            said.out.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
