"""Speed in a comparison: told where both folders have a bench.json, and never part of worse."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from click.testing import CliRunner

from conformance.cli import main
from conformance.reports import Report
from conformance.reports.bench_model import (
    ArmTimes,
    BenchReport,
    BenchSettings,
    CellModel,
    Estimate,
    MachineModel,
    Spread,
    write_bench,
)
from conformance.reports.diff import diff_reports
from conformance.reports.diff_bench import RATE, SPEEDUP
from conformance.reports.diff_markdown import render_diff
from conformance.reports.model import dump_json


def known(value: float, half: float | None = None) -> Estimate:
    low, high = (None, None) if half is None else (value - half, value + half)
    return Estimate(estimate=value, low=low, high=high, n=40)


def bench(speedup: Estimate, rate: Estimate, engine: str = "transformers") -> BenchReport:
    times = Spread(n=40, median=known(0.1), p90=None, p99=None)
    arm = ArmTimes(
        arm="speculative", end_to_end=times, first_token=times, per_token=None, pauses=None,
        requests_per_second=rate, tokens_per_second=rate, outside=None, seconds=[0.1], inside=None,
        first=[[0.1]],
    )  # fmt: skip
    cell = CellModel(
        id=f"{engine} / greedy / 1", engine=engine, decoding="greedy", batch=1, prompt_length=16,
        new_tokens=64, status="measured", why="", outcome="pays", sentence="", speedup=speedup,
        repeats=40, streamed=False, arms=[arm], acceptance=None, cost=None, others=None, drift=None,
        load=(None, None), prompts="",
    )  # fmt: skip
    return BenchReport(
        tool_version="0.1.0", created=dt.datetime(2025, 6, 1, tzinfo=dt.UTC), seconds=1.0,
        command=[], finished=True, headline="", notes=[],
        settings=BenchSettings(batches=[1], prompt_lengths=[16], new_tokens=64, prompts=None,
                               repeats=40, warmup=1, seconds=1.0, seed=0),
        machine=MachineModel(system="", processor="", processors=1, memory_bytes=1, python=""),
        environment={}, engines=[], audits=[], cells=[cell], memory=[],
    )  # fmt: skip


def test_slower_is_told_and_is_not_worse(report: Report) -> None:
    fast, slow = bench(known(1.8, 0.1), known(100)), bench(known(0.9, 0.1), known(40))
    diff = diff_reports(report, report, strict=True, benches=(fast, slow))
    assert diff.exit_code == 0
    assert [(s.what, s.values, s.change) for s in diff.speed] == [
        (SPEEDUP, (1.8, 0.9), "shrank"),
        (RATE, (100.0, 40.0), None),
    ]
    assert SPEEDUP not in render_diff(diff)
    text = render_diff(diff, speed=True)
    assert f"{SPEEDUP} 1.8 (95%: 1.7 to 1.9), now 0.9 (95%: 0.8 to 1), shrank" in text
    assert f"{RATE} 100, now 40 |" in text


def test_it_takes_a_measurement_on_both_sides(report: Report) -> None:
    one = bench(known(1.8, 0.1), known(100))
    assert diff_reports(report, report, benches=(one, None)).speed == []
    other = bench(known(1.8, 0.1), known(100), engine="another")
    assert diff_reports(report, report, benches=(one, other)).speed == []


def test_the_command_reads_them_from_the_folders(report: Report, tmp_path: Path) -> None:
    for name, value in (("old", 1.8), ("new", 1.2)):
        write_bench(bench(known(value, 0.1), known(100)), tmp_path / name)
        (tmp_path / name / "report.json").write_text(dump_json(report), encoding="utf-8")

    def run(*words: str) -> str:
        folders = (str(tmp_path / "old"), str(tmp_path / "new"))
        return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["diff", *folders, *words]).output

    assert "speed-up over no speculation 1.8 (95%: 1.7 to 1.9), now 1.2" in run("--speed")
    (tmp_path / "new" / "bench.json").write_text("{", encoding="utf-8")
    assert "bench.json is not JSON" in " ".join(run().split())
