"""What the README shows is what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.cli import main
from conformance.reports.model import load_report

ROOT = Path(__file__).resolve().parents[1]
PAGES = [p.relative_to(ROOT) for p in (ROOT / "docs").rglob("*.md")]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_engine_shown_is_the_example_file() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    assert block == (ROOT / "examples/my_engine.py").read_text(encoding="utf-8")


def test_the_verifier_shown_is_the_example_file() -> None:
    page = (ROOT / "docs/verifiers.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    assert block == (ROOT / "examples/my_verifier.py").read_text(encoding="utf-8")


def test_the_engine_shown_is_judged_from_outside_the_repository(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the README's engine uses transformers")
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    (tmp_path / "vendor.py").write_text(block, encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "conformance", "run", "vendor.py:MyEngine"),
            *("--profile", "smoke", "-d", "temperature=1", "-d", "top_p=0.8", "--out", "out"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = load_report(tmp_path / "out/report.json")
    assert [c.verdict.value for c in report.cases] == ["EXACT", "NOT SUPPORTED"]
    assert report.cases[0].speculation.rejected > 0


def test_explain_prints_what_is_shown() -> None:
    result = CliRunner().invoke(main, ["explain", "--target", "0.3,0.7", "--draft", "0.6,0.4"])
    assert result.exit_code == 0
    for line in result.output.strip().splitlines():
        assert line.rstrip() in README


@pytest.mark.parametrize("page", ["README.md", *sorted(p.as_posix() for p in PAGES)])
def test_every_file_linked_to_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_commands_shown_are_understood() -> None:
    shown = set(re.findall(r"^conformance ([a-z]+)", README, flags=re.M))
    assert shown >= {"run", "plan", "engines", "explain"}
    assert shown <= set(main.commands)
