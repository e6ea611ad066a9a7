"""The built wheel, installed in a clean environment and run from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.wheel, pytest.mark.xdist_group("wheel")]

ROOT = Path(__file__).resolve().parents[1]


def _run(*command: str | Path, cwd: Path, ok: tuple[int, ...] = (0,)) -> str:
    keep = ("PATH", "HOME", "LANG", "CONFORMANCE_CACHE")
    env = {k: v for k, v in os.environ.items() if k in keep or k.startswith("PIP_")}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode in ok, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # from a copy: building leaves build/ and egg-info behind, which the checkout may be using
    source = folder / "source"
    code = ("conformance", "adapters", "suites", "reports")
    names = (*code, "pyproject.toml", "README.md", "LICENSE")
    source.mkdir()
    for name in names:
        subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
    # the wheel is built from the sdist, so that both are known to be complete
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    venv = tmp_path_factory.mktemp("clean") / "venv"
    _run(sys.executable, "-m", "venv", venv, cwd=wheel.parent)
    _run(venv / "bin/python", "-m", "pip", "install", "-q", f"{wheel}[xdist]", "-c",
         ROOT / "constraints.txt", cwd=wheel.parent)  # fmt: skip
    return venv / "bin"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def test_wheel_holds_one_package_and_its_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {n.split("/")[0] for n in names}
    assert {t for t in top if not t.endswith(".dist-info")} == {"conformance"}
    assert "conformance/py.typed" in names
    assert "conformance/reports/schema/report-1.2.json" in names
    assert "conformance/protocol.schema.json" in names
    assert "conformance/adapters/requirements/xllamacpp.txt" in names
    for module in ("adapters/transformers.py", "suites/test_greedy.py", "cli/__init__.py"):
        assert f"conformance/{module}" in names
    assert any(n.endswith("report.html.j2") for n in names)
    metadata = next(n for n in names if n.endswith(".dist-info/METADATA"))
    assert "License-Expression: Apache-2.0" in zipfile.ZipFile(wheel).read(metadata).decode()


def test_clean_install_judges_an_engine(installed: Path, empty: Path) -> None:
    out = _run(
        installed / "conformance", "run", "reference", "--profile", "smoke", "-d", "temperature=1",
        "--out", empty / "out", cwd=empty,
    )  # fmt: skip
    assert "EXACT" in out
    report = json.loads((empty / "out/report.json").read_text())
    assert report["verdict"] == "EXACT"
    assert report["environment"]["torch"] == "not installed"
    assert (empty / "out/report.html").stat().st_size > 10_000


def test_clean_install_runs_the_suites(installed: Path, empty: Path) -> None:
    out = _run(
        installed / "pytest", "--pyargs", "conformance.suites", "--engine", "reference",
        "--conformance-profile", "smoke", "--decoding", "greedy", "-n", "2", cwd=empty,
    )  # fmt: skip
    assert "run verdict: EXACT" in out


def test_missing_engine_dependency_is_an_error_with_advice(installed: Path, empty: Path) -> None:
    out = _run(
        installed / "conformance", "run", "transformers", "--profile", "smoke", "-d", "greedy",
        cwd=empty, ok=(2,),
    )  # fmt: skip
    assert "ERROR" in out
    assert "specdec-conformance[transformers]" in " ".join(out.split())
