"""The GitHub Action and the GitLab template: what they say, and that their scripts do it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from conformance.probes import CACHE_VARIABLE

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
TEMPLATE = ROOT / "ci" / "gitlab.yml"
ENTRY = """
[[expected]]
case = "faulty:accept-all*"
reason = "wrong on purpose"
link = "https://example.org/issues/1"
expires = 2999-12-31
"""
# names that would run something, or be taken for an option, if a shell or click read them so
HOSTILE = ("$(touch pwned)", "`touch pwned`", "; touch pwned #", '"; touch pwned; "', "--help")


@pytest.fixture(scope="module")
def action() -> dict[str, Any]:
    found = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    found = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    assert list(found) == [".conformance"]
    mine = found[".conformance"]
    assert isinstance(mine, dict)
    return mine


class Runner:
    """The steps of the action, run as GitHub runs them, in a folder of its own."""

    def __init__(self, action: dict[str, Any], folder: Path, inputs: Mapping[str, str]) -> None:
        known = {name: spec.get("default", "") for name, spec in action["inputs"].items()}
        assert inputs.keys() <= known.keys()
        self.context = {f"inputs.{name}": value for name, value in {**known, **inputs}.items()}
        self.context["github.action_path"] = str(ROOT)
        self.steps = {step["name"]: step for step in action["runs"]["steps"] if "name" in step}
        self.folder = folder
        for name in ("out.txt", "summary.md"):
            (folder / name).touch()

    def step(self, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        step = self.steps[name]
        assert step["shell"] == "bash"
        given = {k: self._filled(v) for k, v in step["env"].items()}
        files = {
            "GITHUB_OUTPUT": str(self.folder / "out.txt"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
        }
        path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        (self.folder / "step.sh").write_text(step["run"], encoding="utf-8")
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "step.sh"]
        return subprocess.run(
            command, cwd=self.folder, env={**os.environ, **path, **files, **given, **environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def outputs(self) -> dict[str, str]:
        text = (self.folder / "out.txt").read_text(encoding="utf-8")
        return dict(line.split("=", 1) for line in text.splitlines())

    def _filled(self, text: str) -> str:
        return re.sub(r"\$\{\{ *([\w.-]+) *\}\}", lambda m: self.context[m[1]], text)


@pytest.fixture
def act(action: dict[str, Any], tmp_path: Path) -> Callable[..., Runner]:
    return lambda **inputs: Runner(action, tmp_path, inputs)


def fake(folder: Path, name: str) -> Path:
    """A program that writes down its arguments, one a line, and does nothing."""
    (folder / "fake").mkdir(exist_ok=True)
    path = folder / "fake" / name
    path.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > words.txt\n', encoding="utf-8")
    path.chmod(0o755)
    return path.parent


def words(folder: Path) -> list[str]:
    return (folder / "words.txt").read_text(encoding="utf-8").splitlines()


def test_no_input_is_ever_part_of_a_script(action: dict[str, Any]) -> None:
    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
        assert ("run" in step) != ("uses" in step)
        if "run" in step:
            assert step["shell"] == "bash"
            used = set(re.findall(r"\$\{?([A-Z][A-Z_]+)", step["run"]))
            given = set(step["env"]) | {"GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"}
            assert used <= given
            assert set(step["env"]) <= used


def test_every_input_and_output_is_wired(action: dict[str, Any]) -> None:
    text = json.dumps(action["runs"])
    for name, spec in action["inputs"].items():
        assert f"inputs.{name}" in text, name
        assert spec["description"]
        assert spec.get("required") or isinstance(spec["default"], str)
    ids = {step.get("id") for step in action["runs"]["steps"]}
    for name, spec in action["outputs"].items():
        step, output = re.fullmatch(
            r"\$\{\{ steps\.(\w+)\.outputs\.([\w-]+) \}\}", spec["value"]
        ).groups()  # type: ignore[union-attr]
        assert step in ids
        assert output == name
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", s["uses"]) for s in action["runs"]["steps"]
               if "uses" in s)  # fmt: skip
    # the report is shown and kept whatever the verdict
    assert [s["if"] for s in action["runs"]["steps"] if "always()" in s.get("if", "")] == [
        "always()",
        "always() && inputs.artifact != ''",
    ]


def test_the_action_installs_what_is_asked(act: Callable[..., Runner], tmp_path: Path) -> None:
    folder = fake(tmp_path, "python")
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    runner = act(
        requirements="\n  numpy>=2 \n# not this\n./my engine\n", extras="transformers,xdist"
    )
    assert runner.step("Install", PATH=path).returncode == 0
    assert words(tmp_path) == [
        "-m", "pip", "install", "--disable-pip-version-check", "--quiet",
        f"{ROOT}[transformers,xdist]", "-c", f"{ROOT}/constraints.txt", "numpy>=2", "./my engine",
    ]  # fmt: skip
    assert act(pinned="false").step("Install", PATH=path).returncode == 0
    assert words(tmp_path)[5:] == [str(ROOT)]
    for wrong in ({"extras": "x];touch pwned"}, {"requirements": "--index-url=http://e.example"}):
        done = act(**wrong).step("Install", PATH=path)
        assert done.returncode == 2
        assert "::error::" in done.stdout


@pytest.mark.parametrize("hostile", HOSTILE)
def test_the_action_runs_nothing_that_an_input_holds(
    hostile: str, act: Callable[..., Runner], tmp_path: Path
) -> None:
    folder = fake(tmp_path, "conformance")
    path = f"{folder}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}"
    names = ("engines", "profile", "decodings", "suites", "expectations", "out")
    runner = act(**dict.fromkeys(names, hostile))
    assert runner.step("Judge", PATH=path).returncode == 0
    assert words(tmp_path) == [
        "run", f"--profile={hostile}", f"--out={hostile}", f"--expectations={hostile}",
        f"--decoding={hostile}", f"--suite={hostile}", "--", hostile,
    ]  # fmt: skip
    assert runner.step("Summary").returncode == 0
    assert runner.outputs() == {"verdict": "", "exit-code": "0"}
    assert not (tmp_path / "pwned").exists()


def test_an_earlier_report_lends_no_verdict(act: Callable[..., Runner], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.json").write_text('{"verdict": "EXACT"}', encoding="utf-8")
    runner = act(engines="no-such-engine", out="out")
    done = runner.step("Judge")
    assert done.returncode == 2, done.stderr
    assert runner.outputs() == {"verdict": "", "exit-code": "2"}


@pytest.mark.long
def test_the_action_judges(act: Callable[..., Runner], tmp_path: Path, probe_cache: Path) -> None:
    (tmp_path / "e.toml").write_text(ENTRY, encoding="utf-8")
    cases = [
        ("reference", "", "EXACT", 0),
        ("faulty:accept-all", "", "NOT EXACT", 1),
        ("reference\n  faulty:accept-all\n", "e.toml", "NOT EXACT", 0),
    ]
    for engines, expectations, verdict, code in cases:
        runner = act(
            engines=engines,
            profile="smoke",
            decodings="greedy\n",
            suites="law",
            expectations=expectations,
        )
        (tmp_path / "out.txt").write_text("", encoding="utf-8")
        done = runner.step("Judge", **{CACHE_VARIABLE: str(probe_cache)})
        assert done.returncode == code, done.stderr
        assert runner.outputs() == {"verdict": verdict, "exit-code": str(code)}
        assert runner.step("Summary").returncode == 0
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert [line[:12] for line in summary.splitlines() if line.startswith("## ")] == [
        "## ✅ EXACT: ",
        "## ❌ NOT EXA",
        "## ❌ NOT EXA",
    ]
    assert "1 case failed as expected" in summary


def gitlab(
    job: dict[str, Any], part: str, folder: Path, path: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    (script,) = job[part]
    assert variables.keys() <= job["variables"].keys()
    environment = {**os.environ, **job["variables"], **variables, "PATH": path}
    shell = shutil.which("sh") or "sh"
    return subprocess.run(
        [shell, "-c", script], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_the_gitlab_job_keeps_the_report_whatever_the_verdict(job: dict[str, Any]) -> None:
    kept = job["artifacts"]
    assert kept["when"] == "always"
    (folder,) = kept["paths"]
    assert f"--out={folder.rstrip('/')}" in job["script"][0]
    assert kept["reports"]["junit"] == f"{folder}junit.xml"
    text = "\n".join(job["before_script"] + job["script"])
    assert set(re.findall(r"\$(SPECDEC_\w+)", text)) == job["variables"].keys()
    # the package's own variables mean other things
    assert not [name for name in job["variables"] if name.startswith("CONFORMANCE")]


def test_the_gitlab_job_installs_what_is_asked(job: dict[str, Any], tmp_path: Path) -> None:
    path = f"{fake(tmp_path, 'python')}{os.pathsep}{os.environ['PATH']}"
    done = gitlab(job, "before_script", tmp_path, path, SPECDEC_REQUIREMENTS=".\n# no\nnumpy>=2")
    assert done.returncode == 0, done.stderr
    assert words(tmp_path)[5:] == ["specdec-conformance", ".", "numpy>=2"]
    done = gitlab(job, "before_script", tmp_path, path, SPECDEC_REQUIREMENTS="--pre")
    assert done.returncode == 2


@pytest.mark.parametrize("hostile", HOSTILE)
def test_the_gitlab_job_runs_nothing_that_a_variable_holds(
    hostile: str, job: dict[str, Any], tmp_path: Path
) -> None:
    path = f"{fake(tmp_path, 'conformance')}{os.pathsep}{os.environ['PATH']}"
    names = ("ENGINES", "PROFILE", "DECODINGS", "SUITES", "EXPECTATIONS")
    given = {f"SPECDEC_{name}": hostile for name in names}
    done = gitlab(job, "script", tmp_path, path, **given)
    assert done.returncode == 0, done.stderr
    assert words(tmp_path) == [
        "run", f"--profile={hostile}", "--out=conformance-report", f"--expectations={hostile}",
        f"--decoding={hostile}", f"--suite={hostile}", "--", hostile,
    ]  # fmt: skip
    assert not (tmp_path / "pwned").exists()


@pytest.mark.long
def test_the_gitlab_job_judges(
    job: dict[str, Any], tmp_path: Path, probe_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(probe_cache))
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    for engine, code in (("reference", 0), ("faulty:accept-all", 1)):
        done = gitlab(
            job, "script", tmp_path, path,
            SPECDEC_ENGINES=engine, SPECDEC_PROFILE="smoke", SPECDEC_DECODINGS="greedy",
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert (tmp_path / "conformance-report" / "junit.xml").exists()
