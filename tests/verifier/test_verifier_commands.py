"""Verifiers through the commands and the pytest plugin, as a person uses them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.cli import main
from conformance.errors import UnknownEngineError
from conformance.plan import RunPlan
from conformance.reports import load_report
from conformance.runner import Settings, prepare
from conformance.verdict import Verdict
from conformance.verifier.decide import decide
from conformance.verifier.evidence import load_verifier_evidence
from conformance.verifier.gather import gather_case
from conformance.verifier.plan import VERIFIER_PROFILES, VerifierCase

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_verifier.py"


def run(*words: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, list(words))
    return result.exit_code, result.output


def test_run_leaves_a_bundle(tmp_path: Path) -> None:
    code, said = run(
        "run", "reference:verifier", "faulty:accept-all:verifier", "--profile", "smoke",
        "-j", "1", "--out", str(tmp_path),
    )  # fmt: skip
    assert code == 1, said
    report = load_report(tmp_path / "report.json")
    by_engine = {c.engine: c for c in report.cases}
    assert by_engine["reference:verifier"].verdict is Verdict.EXACT
    wrong = by_engine["faulty:accept-all:verifier"]
    assert wrong.verdict is Verdict.NOT_EXACT
    assert "Likely cause: accept-all" in wrong.why
    assert report.settings.delta == VERIFIER_PROFILES["smoke"].delta
    assert report.probes == []
    assert report.settings.tests == sum(1 for c in report.cases for f in c.findings if f.level > 0)
    (evidence,) = (tmp_path / "evidence").glob("reference*.parquet")
    assert load_verifier_evidence(evidence).sha256 == by_engine["reference:verifier"].arms[0].sha256
    for name in ("report.html", "report.md", "junit.xml"):
        assert "reference:verifier" in (tmp_path / name).read_text(encoding="utf-8")


def test_plan_says_how_many_and_how_long() -> None:
    code, said = run("plan", "reference:verifier", "--profile", "smoke", "-j", "1")
    assert code == 0, said
    assert "blocks over 30 laws" in said
    assert "Estimated time inside the engine" in said


def test_engines_and_verifiers_share_one_alpha() -> None:
    both = prepare(Settings(("reference", "reference:verifier"), profile="smoke"))
    alone = prepare(Settings(("reference:verifier",), profile="smoke"))
    verifier = [c for c in both.cases if isinstance(c, VerifierCase)]
    assert len(verifier) == 1
    assert both.alpha == alone.alpha
    assert both.test_count > alone.test_count
    assert both.level == pytest.approx(both.alpha / 2 / both.test_count)
    assert both.profile.delta > alone.profile.delta
    assert blocks(both) >= blocks(alone)


def blocks(plan: RunPlan) -> int:
    return sum(n for c in plan.cases if isinstance(c, VerifierCase) for _, n in c.blocks)


def test_the_example_is_exact() -> None:
    engine = f"{EXAMPLE}:MyVerifier"
    plan = prepare(Settings((engine,), profile="smoke"))
    (case,) = plan.cases
    assert isinstance(case, VerifierCase)
    result = decide(plan, gather_case(case, plan.seed))
    assert result.verdict.verdict is Verdict.EXACT, result.verdict.why


def test_unknown_verifier_is_the_caller_s_mistake() -> None:
    with pytest.raises(UnknownEngineError, match="no fault named"):
        prepare(Settings(("faulty:no-such-fault:verifier",), profile="smoke"))


def test_plugin(pytester: pytest.Pytester) -> None:
    arguments = ("--pyargs", "conformance.suites", "--conformance-profile", "smoke", "-q")
    good = pytester.runpytest_subprocess(*arguments, "--engine", "reference:verifier")
    good.stdout.fnmatch_lines(["*EXACT*reference:verifier*", "run verdict: EXACT"])
    assert good.ret == 0
    bad = pytester.runpytest_subprocess(*arguments, "--engine", "faulty:resample-from-p:verifier")
    bad.stdout.fnmatch_lines(["run verdict: NOT EXACT", "FAILED*test_verifier*test_distribution*"])
    bad.stdout.no_fnmatch_line("FAILED*test_independence*")
    assert bad.ret == 1
