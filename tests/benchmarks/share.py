"""What a run spends its time on: inside the engine, judging, and everything else."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from conformance.runner import RunResult, Settings, judge_cases, prepare, run_planned


def shares(engine: str, profile: str = "smoke", jobs: int = 2) -> dict[str, Any]:
    """Run an engine, and judge its evidence once more to see what judging costs alone.

    Parameters
    ----------
    engine, profile, jobs
        As typed after ``conformance run``.

    Returns
    -------
    dict
        Seconds. ``engine`` is summed over workers; ``outside`` is the share of the wall time that
        `jobs` workers did not spend inside the engine.
    """
    settings = Settings(engines=(engine,), profile=profile, jobs=jobs)
    begin = time.perf_counter()
    plan = prepare(settings)
    planning = time.perf_counter() - begin
    with TemporaryDirectory() as folder:
        result = run_planned(settings, Path(folder))
        begin = time.perf_counter()
        again = list(judge_cases(plan, Path(folder), jobs=1))
        judging = time.perf_counter() - begin
    inside = engine_seconds(result)
    return {
        "engine": engine,
        "profile": profile,
        "jobs": jobs,
        "verdict": str(result.verdict.value),
        "cases": len(again),
        "tokens": sum(a.tokens for r in result.results for a in r.arms),
        "wall": result.seconds,
        "engine_seconds": inside,
        "planning": planning,
        "judging": judging,
        "outside": 1 - inside / jobs / result.seconds,
    }


def engine_seconds(result: RunResult) -> float:
    """Seconds inside the engine, summed over cases, arms and workers."""
    return float(sum(a.seconds for r in result.results for a in r.arms))
