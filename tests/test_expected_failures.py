"""Expected failures in both places where they are declared: ``conformance run`` and pytest."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import pytest
from click.testing import CliRunner, Result

# a session within this process must not be the first to import what cannot be imported twice
from conformance.cli import main
from conformance.probes import CACHE_VARIABLE
from conformance.reports import build, bundle, html, load_report  # noqa: F401
from conformance.store import Store  # noqa: F401

ENTRY = """
[[expected]]
case = "{case}"
verdict = "{verdict}"
reason = "wrong on purpose"
link = "https://example.org/issues/1"
expires = {expires}
strict = {strict}
"""
FONTS = matplotlib.get_cachedir()  # else plotting begins by listing the machine's fonts
SUITES = ("--pyargs", "conformance.suites", "--conformance-profile=smoke", "-p", "no:cacheprovider")
BROKEN = """
from conformance.adapters.reference import ReferenceEngine

class Broken(ReferenceEngine):
    def generate(self, requests):
        raise RuntimeError("out of memory")
"""


def write(
    folder: Path,
    case: str,
    verdict: str = "NOT EXACT",
    expires: str = "2999-12-31",
    strict: str = "false",
) -> Path:
    path = folder / "expectations.toml"
    text = ENTRY.format(case=case, verdict=verdict, expires=expires, strict=strict)
    path.write_text(text, encoding="utf-8")
    return path


def run(out: Path, expectations: Path, *engines: str) -> Result:
    words = ("-d", "greedy", "--profile", "smoke", "-j", "1", "-q")
    return CliRunner().invoke(
        main, ["run", *engines, *words, "--out", str(out), "--expectations", str(expectations)]
    )


def test_run_leaves_a_true_report_and_exit_status_0(tmp_path: Path) -> None:
    file = write(tmp_path, "faulty:accept-all / * / greedy")
    result = run(tmp_path / "out", file, "faulty:accept-all", "reference")
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "1 case failed as expected; the only other one judged is EXACT" in said
    report = load_report(tmp_path / "out" / "report.json")
    assert report.verdict.value == "NOT EXACT"
    assert report.exit_code == 0
    failed, passed = report.cases
    assert failed.verdict.value == "NOT EXACT"
    assert failed.expected is not None
    assert failed.expected.entry.reason == "wrong on purpose"
    assert passed.expected is None
    assert report.expectations is not None
    assert len(report.expectations.entries) == 1


def test_run_with_nothing_else_judged_is_exit_status_2(tmp_path: Path) -> None:
    result = run(tmp_path / "out", write(tmp_path, "*"), "faulty:accept-all")
    assert result.exit_code == 2
    assert "no other was judged" in " ".join(result.output.split())


def test_a_malformed_file_is_said_before_anything_is_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.json").write_text("an earlier one", encoding="utf-8")
    file = write(tmp_path, "*", verdict="EXACT")
    result = run(tmp_path / "out", file, "reference")
    assert result.exit_code == 2
    assert "entry 1: 'verdict' is one or several of NOT EXACT" in result.output
    assert (tmp_path / "out" / "report.json").read_text(encoding="utf-8") == "an earlier one"


@pytest.fixture
def session(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, probe_cache: Path
) -> pytest.Pytester:
    monkeypatch.setenv(CACHE_VARIABLE, str(probe_cache))
    monkeypatch.setenv("MPLCONFIGDIR", FONTS)
    (pytester.path / "eng.py").write_text(BROKEN, encoding="utf-8")
    return pytester


def ask(session: pytest.Pytester, file: Path, *words: str) -> pytest.RunResult:
    return session.runpytest_inprocess(
        *SUITES, "--decoding=greedy", f"--expectations={file}", "-rxX", *words
    )


def test_pytest_shows_an_expected_failure_as_xfail(session: pytest.Pytester) -> None:
    file = write(session.path, "faulty:accept-all*")
    engines = ("--engine=faulty:accept-all", "--engine=reference")
    result = ask(session, file, *engines, "--conformance-out=out")
    assert result.ret == 0, result.stdout.str()
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"passed", "skipped", "xfailed"}
    assert outcomes["xfailed"] == 2
    result.stdout.fnmatch_lines(
        [
            "*expected: wrong on purpose, https://example.org/issues/1, until 2999-12-31",
            "1 case failed as expected; the only other one judged is EXACT: exit status 0.",
            "run verdict: NOT EXACT",
            "XFAIL *test_case_is_exact* expected: wrong on purpose*",
        ]
    )
    report = json.loads((session.path / "out/report.json").read_text())
    assert (report["verdict"], report["exit_code"]) == ("NOT EXACT", 0)


def test_pytest_excuses_an_error_only_where_one_was_foreseen(session: pytest.Pytester) -> None:
    engines = ("--engine=eng.py:Broken", "--engine=reference")
    result = ask(session, write(session.path, "eng*", verdict="ERROR"), *engines)
    assert result.ret == 0, result.stdout.str()
    assert set(result.parseoutcomes()) == {"passed", "skipped", "xfailed"}
    result = ask(session, write(session.path, "eng*"), *engines)
    assert result.ret == 2
    assert "errors" in result.parseoutcomes()
    result.stdout.fnmatch_lines(["*expected to be NOT EXACT and is ERROR, which is not excused*"])


@pytest.mark.parametrize(
    ("strict", "code", "outcome"), [("false", 0, "xpassed"), ("true", 1, "failed")]
)
def test_pytest_reports_what_passes_now(
    session: pytest.Pytester, strict: str, code: int, outcome: str
) -> None:
    file = write(session.path, "reference*", strict=strict)
    result = ask(session, file, "--engine=reference")
    assert result.ret == code, result.stdout.str()
    assert result.parseoutcomes()[outcome] == 1
    result.stdout.fnmatch_lines(["reference / * passes now: remove the entry."])


def test_pytest_is_not_excused_by_an_entry_that_has_expired(session: pytest.Pytester) -> None:
    file = write(session.path, "faulty*", expires="2020-01-31")
    result = ask(session, file, "--engine=faulty:accept-all", "--engine=reference")
    assert result.ret == 1
    assert "xfailed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["The entry 'faulty*' expired on 2020-01-31*"])


def test_pytest_says_what_is_wrong_with_the_file(session: pytest.Pytester) -> None:
    file = write(session.path, "*", expires='"soon"')
    result = ask(session, file, "--engine=reference")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*entry 1: 'expires' must be a day*"])
