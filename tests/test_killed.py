"""A run that is killed goes on as if it had not been."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance.parts import Parts

HERE = Path(__file__).parent
TIERS = ("engine", "served", "verifier")


def killed(tier: str, folder: Path, *times: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", str(HERE / "killed.py"), tier, str(folder), *times],
        env=os.environ | {"PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("tier", TIERS)
def test_killed_at_some_steps(tier: str, tmp_path: Path, probe_cache: Path) -> None:
    """Nothing that was saved is lost, torn, twice there or in another order; see killed.py."""
    steps, _, times, _ = killed(tier, tmp_path, "5").split()
    assert int(steps) > 80
    assert int(times) >= 5


@pytest.mark.long
@pytest.mark.parametrize("tier", TIERS)
def test_killed_at_every_step(tier: str, tmp_path: Path, probe_cache: Path) -> None:
    """Before every change of the file system and within every file, and then once more."""
    steps, _, times, _ = killed(tier, tmp_path).split()
    assert int(times) >= int(steps)


def sums(folder: Path) -> list[list[str]]:
    report = json.loads((folder / "report.json").read_bytes())
    return [[a["sha256"] for a in case["arms"]] for case in report["cases"]]


@pytest.mark.long
def test_the_command_killed_at_random_moments(tmp_path: Path, probe_cache: Path) -> None:
    """With worker processes, and the clock that saves; as a person would lose it."""
    command = [sys.executable, "-P", "-m", "conformance", "run"]
    asked = [f"{HERE / 'slowly.py'}:Slowly", "--profile", "smoke", "--jobs", "2"]
    asked += [word for d in ("temperature=1", "greedy") for word in ("-d", d)]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    begun = time.monotonic()
    done = subprocess.run([*command, *asked, "--out", str(whole), "-q"], check=False)
    assert done.returncode == 0
    took = time.monotonic() - begun
    kills, seen = 0, 0
    for moment in range(40):
        more = (
            ["--resume", str(cut)] if (cut / "run.json").exists() else [*asked, "--out", str(cut)]
        )
        with subprocess.Popen([*command, *more, "-q"]) as process:
            try:
                process.wait(took * (random.uniform(0.2, 0.9) if moment < 5 else 10))
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
        seen += len(list((cut / "evidence").glob("*.part.parquet")))
        if process.returncode == 0:
            break
    assert kills >= 2
    assert seen > 0
    assert sums(cut) == sums(whole)
    for path in (cut / "evidence").iterdir():
        assert Parts(path).listed() == {}


# A verdict of each kind, and each tier that can be asked without a server.
RUNS = (
    ("reference", "-d", "temperature=1", "-d", "greedy"),
    ("faulty:resample-from-p", "-d", "temperature=1"),
    ("faulty:disabled", "-d", "temperature=0.7,top_p=0.8"),
    ("reference", "-d", "temperature=1,stop=5;17;23"),
    ("faulty:lenient=0.9:verifier",),
)


def found(folder: Path) -> list[tuple[object, ...]]:
    """Verdicts with all that they rest on, of every case."""
    report = json.loads((folder / "report.json").read_bytes())
    parts = ("id", "verdict", "why", "ruled_out", "needed", "speculation", "findings", "diagnosis")
    for case in report["cases"]:
        for arm in case["arms"]:
            del arm["seconds"]
    return [
        (report["verdict"], report["why"], case["arms"], *(case[part] for part in parts))
        for case in report["cases"]
    ]


@pytest.mark.long
@pytest.mark.parametrize("number", range(50))
def test_a_run_killed_at_a_random_moment(
    number: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, probe_cache: Path
) -> None:
    asked = RUNS[number % len(RUNS)]
    command = [sys.executable, "-P", "-m", "conformance", "run"]
    more = ["--profile", "smoke", "--jobs", "1", "-q"]
    whole = tmp_path_factory.getbasetemp() / f"whole-{number % len(RUNS)}"
    begun = time.monotonic()
    if not whole.exists():
        status = subprocess.run([*command, *asked, *more, "--out", str(whole)], check=False)
        (whole / "took").write_text(f"{status.returncode} {time.monotonic() - begun}")
    status_of_whole, took = (whole / "took").read_text().split()
    cut = tmp_path / "cut"
    with subprocess.Popen([*command, *asked, *more, "--out", str(cut)]) as process:
        try:
            process.wait(random.uniform(0, float(took)))
        except subprocess.TimeoutExpired:
            process.kill()
    if (cut / "run.json").exists():
        again = [*command, "--resume", str(cut), "-q", "--jobs", "1"]
    else:
        again = [*command, *asked, *more, "--out", str(cut)]
    done = subprocess.run(again, check=False)
    assert done.returncode == int(status_of_whole)
    assert found(cut) == found(whole)
