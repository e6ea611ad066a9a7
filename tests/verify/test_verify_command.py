"""``conformance verify`` as a person, or a pipeline, calls it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bundles import BOTH, RARELY, SAMPLED, edit_report, lines, run
from click.testing import CliRunner, Result

from conformance.cli import main
from conformance.reports.verify import Status, verify_bundle

pytestmark = pytest.mark.long  # run by 'make test-bundles', and by CI


def verify(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, words)])


def test_status_0_and_what_is_said(mixed) -> None:
    """Of a run that found something: the status is that of the bundle, and not of the run."""
    done = verify(mixed)
    assert done.exit_code == 0, done.output
    assert "VERIFIED" in done.output
    assert "The run's verdict is NOT EXACT." in done.output
    assert "NOT TESTED, and no pass: 6 of 12 cases" in done.output
    assert "What no bundle can show:" in done.output
    assert "made up to fit the law" in done.output


def test_status_1(forged) -> None:
    folder = forged("small")
    edit_report(folder, lambda r: r["cases"][0].update(why="perfect"))
    done = verify(folder)
    assert done.exit_code == 1
    assert "NOT VERIFIED" in done.output
    assert "DIFFERS  case reference" in done.output
    assert "Bundle SHA-256" not in done.output


def test_status_2(tmp_path, small) -> None:
    done = verify(tmp_path)
    assert done.exit_code == 2
    assert "is no bundle" in done.output
    for name in ("report.json", "report.html"):  # what earlier versions left
        shutil.copyfile(small / name, tmp_path / name)
    assert verify(tmp_path).exit_code == 2
    assert verify(tmp_path / "nowhere").exit_code == 2
    assert verify().exit_code == 2


def test_a_run_that_has_not_ended(small, tmp_path) -> None:
    folder = tmp_path / "cut"
    folder.mkdir()
    for name in ("run.json", "evidence", "probes"):
        source = small / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, folder / name)
    done = verify(folder)
    assert done.exit_code == 2
    assert "conformance run --resume" in done.output


def test_an_addition_that_has_not_ended(forged) -> None:
    folder = forged("inconclusive")
    (folder / "report.json").rename(folder / "report.previous.json")
    done = verify(folder)
    assert done.exit_code == 2
    assert "has not ended" in done.output


def test_a_report_that_was_taken_away(forged) -> None:
    folder = forged("small")
    (folder / "report.json").unlink()
    done = verify(folder)
    assert done.exit_code == 1
    assert "file report.json: is listed and missing" in done.output


def test_json(mixed) -> None:
    done = verify("--json", mixed)
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["agrees"] is True
    assert told["verdict"] == "NOT EXACT"
    assert told["cases"] == 12
    assert len(told["untested"]) == 6
    assert len(told["sha256"]) == 64
    assert {c["status"] for c in told["checks"]} == {"agrees", "stated"}
    assert told["cannot_be_seen"]


def test_json_of_what_differs(forged) -> None:
    folder = forged("small")
    edit_report(folder, lambda r: r.update(exit_code=3))
    done = verify("--json", folder)
    assert done.exit_code == 1
    told = json.loads(done.output)
    assert told["agrees"] is False
    assert [c["what"] for c in told["checks"] if c["status"] == "differs"] == ["verdict"]


def test_the_checksum_that_was_published(small) -> None:
    sha256 = verify_bundle(small).sha256
    assert sha256 is not None
    assert verify("--sha256", sha256, small).exit_code == 0
    done = verify("--sha256", "0" * 64, small)
    assert done.exit_code == 1
    assert "DIFFERS  bundle: SHA-256" in done.output


def elsewhere(bundle: Path, **environment: str) -> dict:
    """Verify in another process, without this one's caches."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "conformance", "verify", "--json", str(bundle)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.stdout, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("threads", ["1", "2"])
def test_elsewhere(threads, small, tmp_path, monkeypatch) -> None:
    """Another folder, another cache of probes, another working directory, other threads."""
    folder = shutil.copytree(small, tmp_path / "moved to" / "here")
    monkeypatch.chdir(tmp_path)
    told = elsewhere(
        folder,
        CONFORMANCE_CACHE=str(tmp_path / "cache"),
        OMP_NUM_THREADS=threads,
        OPENBLAS_NUM_THREADS=threads,
    )
    assert told["agrees"], [c for c in told["checks"] if c["status"] == "differs"]


def test_a_bundle_that_cannot_be_written(small, tmp_path) -> None:
    folder = shutil.copytree(small, tmp_path / "sealed")
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert verify(folder).exit_code == 0
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)


CONFIGURATIONS = [
    ("reference", *BOTH),
    ("faulty:lenient=0.9", *SAMPLED),
    ("faulty:threshold", *SAMPLED),
    ("exact:block-verification", "-d", "temperature=0.7,top_p=0.8"),
    ("exact:sample-and-match", "-d", "top_k=4"),
    ("exact:top-k-tree", *SAMPLED),
    ("faulty:raw-q", "-d", "temperature=1.3,min_p=0.05"),
    ("faulty:stale-cache", "-d", "greedy"),
    ("reference", "--probe", "twin", *SAMPLED),
    ("reference", "--probe", "far", *SAMPLED),
    ("reference", "--probe", "worked-example", *SAMPLED),
    ("reference", "--probe", "small", *BOTH),
    ("reference", "--probe", "table", *SAMPLED),
    ("reference", "--alpha", "0.01", *SAMPLED),
    ("reference:verifier",),
    ("exact:sample-and-match", "faulty:lenient=0.8:verifier", *SAMPLED),
    (RARELY, *SAMPLED),
    ("reference",),
]


def configuration(number: int) -> tuple[str, ...]:
    """Another configuration and another seed for every number."""
    return (*CONFIGURATIONS[number % len(CONFIGURATIONS)], "--seed", str(number))


@pytest.mark.parametrize("number", [1, 3, 8, 10, 13])
def test_other_configurations_agree(number, tmp_path, probe_cache) -> None:
    bundle = run(tmp_path / "b", *configuration(number))
    found = verify_bundle(bundle)
    assert lines(found, Status.DIFFERS) == []


@pytest.mark.long
@pytest.mark.parametrize("number", range(200))
def test_two_hundred_untouched_bundles_agree(number, tmp_path, probe_cache) -> None:
    bundle = run(tmp_path / "b", *configuration(1000 + number))
    found = verify_bundle(bundle)
    assert lines(found, Status.DIFFERS) == []
    assert found.agrees
    shutil.rmtree(bundle)
