"""What a run spends its time on: the engine, judging, and everything else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from conformance.contract import ModelPair
from conformance.pool import Worker
from conformance.runner import RunResult, Settings, judge_cases, prepare, run_planned

# Engine, profile and workers. The models of a probe are so small that the time of a fast engine is
# hardly more than what it takes to judge it: the last row.
RUNS = (
    ("reference", "smoke", 1),
    ("transformers", "standard", 1),
    ("transformers", "standard", 2),
    ("xllamacpp", "standard", 1),
)


def shares(engine: str, profile: str = "smoke", jobs: int = 2) -> dict[str, Any]:
    """Run an engine, and judge its evidence once more to see what judging costs alone.

    Parameters
    ----------
    engine, profile, jobs
        As typed after ``conformance run``.

    Returns
    -------
    dict
        Seconds. ``engine_seconds`` and ``starting`` (an engine's process, its imports, its models)
        are summed over workers; ``overhead`` is what else `jobs` workers' wall time went to, as a
        share of those two.
    """
    settings = Settings(engines=(engine,), profile=profile, jobs=jobs)
    begin = time.perf_counter()
    plan = prepare(settings)
    planning = time.perf_counter() - begin
    with TemporaryDirectory() as folder:
        with starting() as started:
            result = run_planned(settings, Path(folder))
        begin = time.perf_counter()
        again = list(judge_cases(plan, Path(folder), jobs=1))
        judging = time.perf_counter() - begin
    inside = engine_seconds(result)
    own = inside + sum(started)
    return {
        "engine": engine,
        "profile": profile,
        "jobs": jobs,
        "verdict": str(result.verdict.value),
        "cases": len(again),
        "tokens": sum(a.tokens for r in result.results for a in r.arms),
        "wall": result.seconds,
        "engine_seconds": inside,
        "starting": sum(started),
        "planning": planning,
        "judging": judging,
        "overhead": (jobs * result.seconds - own) / own,
    }


def engine_seconds(result: RunResult) -> float:
    """Seconds inside the engine, summed over cases, arms and workers."""
    return float(sum(a.seconds for r in result.results for a in r.arms))


@contextmanager
def starting() -> Iterator[list[float]]:
    """Seconds that workers wait for engines to start and to load their models."""
    seconds: list[float] = []
    load = Worker.load

    def timed(worker: Worker, engine: str, pair: ModelPair) -> None:
        begin = time.perf_counter()
        load(worker, engine, pair)
        seconds.append(time.perf_counter() - begin)

    with patch.object(Worker, "load", timed):
        yield seconds
