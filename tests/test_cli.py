"""The command line: what a person types, sees, and gets as exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance import environments
from conformance.cli import main
from conformance.probes import load_probe

SMOKE = ("--profile", "smoke", "--jobs", "1")


def _invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(w) for w in words])


def test_help_and_version_load_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['conformance', '--help']\n"
        "from conformance.cli import main\n"
        "import conformance.plugin\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'scipy', 'matplotlib', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "plan" in done.stdout


def test_explain_reworked_with_other_numbers() -> None:
    result = _invoke("explain", "-p", "0.5,0.3,0.2", "-q", "0.2,0.8,0", "--tokens", "x,y,z")
    assert result.exit_code == 0
    assert "accepted with probability 0.5 " in " ".join(result.output.split())
    assert "x 0.6, z 0.4" in result.output


@pytest.mark.parametrize(
    ("p", "q", "says"),
    [
        ("0.3,0.6", "0.5,0.5", "sums to 0.9"),
        ("0.3,0.7", "0.2,0.3,0.5", "same vocabulary"),
        ("0.3,x", "0.5,0.5", "cannot read"),
        ("-0.5,1.5", "0.5,0.5", "negative"),
        ("nan,1", "0.5,0.5", "finite"),
    ],
)
def test_explain_says_what_is_wrong(p: str, q: str, says: str) -> None:
    result = _invoke("explain", f"--target={p}", f"--draft={q}")
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "nosuch"), "no engine named"),
        (("run", "no/such.py:Engine"), "no file"),
        (("run", "reference", "-d", "temperature=-1"), "temperature must be"),
        (("run", "reference", "-d", "top_p=0"), "top_p must be"),
        (("run", "reference", "--alpha", "2"), "alpha must be"),
        (("run", "reference", "--probe", "nosuch"), "unknown probe"),
        (("run", "faulty:nosuch"), "no fault named"),
        (("run", "reference", "-d", "temperature=0.0001,top_k=1"), "leaves a choice"),
        (("run",), "give either engines to judge, or --resume DIR"),
        (("plan",), "Missing argument"),
    ],
)
def test_what_a_person_gets_wrong_is_one_sentence(
    words: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    where = ("--out", tmp_path) if len(words) > 1 else ()
    result = _invoke(*words, *where)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_run_leaves_a_whole_bundle(tmp_path: Path) -> None:
    result = _invoke("run", "reference", *SMOKE, "-d", "greedy", "-d", "top_k=4", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "EXACT" in result.output
    names = {p.name for p in tmp_path.iterdir()}
    assert {"report.json", "report.html", "report.md", "junit.xml", "evidence"} <= names
    report = json.loads((tmp_path / "report.json").read_text())
    arms = {(a["arm"], a["requests"]) for c in report["cases"] for a in c["arms"]}
    # two cases of two arms, and what is asked again with the same seeds
    assert len(list((tmp_path / "evidence").iterdir())) == 5
    assert {arm for arm, _ in arms} == {"speculative", "control"}


def test_run_names_the_broken_step(tmp_path: Path) -> None:
    result = _invoke("run", "faulty:resample-from-p", *SMOKE, "-d", "temperature=1",
                     "--out", tmp_path)  # fmt: skip
    assert result.exit_code == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert "Likely cause: resample-from-p" in report["cases"][0]["why"]


def test_old_evidence_is_never_judged_again(tmp_path: Path) -> None:
    words = ("-d", "temperature=1", "--out", tmp_path)
    assert _invoke("run", "faulty:accept-all", *SMOKE, *words).exit_code == 1
    assert _invoke("run", "reference", *SMOKE, *words).exit_code == 0
    names = [p.name for p in (tmp_path / "evidence").iterdir()]
    assert all("reference" in n for n in names)


def test_plan_is_what_run_does(tmp_path: Path) -> None:
    planned = _invoke("plan", "reference", *SMOKE, "-d", "temperature=1", "--no-timing")
    assert planned.exit_code == 0
    _invoke("run", "reference", *SMOKE, "-d", "temperature=1", "--out", tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    requests = report["cases"][0]["arms"][0]["requests"]
    assert f"{requests:,} x 8 tokens" in " ".join(planned.output.split())


def test_plan_estimates_a_time() -> None:
    planned = _invoke("plan", "reference", *SMOKE, "-d", "greedy")
    assert planned.exit_code == 0
    assert "Estimated time inside the engine" in planned.output


def test_engines_lists_every_method() -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, ["engines"])
    assert result.exit_code == 0
    for name in ("transformers:universal", "transformers:early-exit", "faulty:lenient=0.9"):
        assert name in result.output


def test_schema_is_json() -> None:
    assert json.loads(_invoke("schema").output)["title"].startswith("specdec-conformance report")


@pytest.mark.parametrize(
    ("raised", "status", "says"),
    [
        (ZeroDivisionError("ours"), 2, "a defect of conformance"),
        (KeyboardInterrupt(), 130, "Interrupted: no verdict"),
    ],
)
def test_exit_status_1_is_for_not_exact_alone(
    raised: BaseException, status: int, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("conformance.runner.run_planned", fail)
    result = _invoke("run", "reference", *SMOKE, "--out", tmp_path)
    assert result.exit_code == status
    assert says in result.output


def test_an_engines_words_are_not_markup(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("raise RuntimeError('[/red] [bold]x[/bold] \x1b[2J')\n")
    for words in (("plan",), ("run", "--out", tmp_path / "out")):
        result = _invoke(*words, f"{tmp_path / 'loud.py'}:Engine", *SMOKE, "-d", "greedy")
        assert result.exit_code == (0 if words == ("plan",) else 2), result.output
        assert "[/red]" in result.output
        assert "\x1b" not in result.output


def test_the_files_of_a_probe(tmp_path: Path) -> None:
    done = _invoke("probe", "small", "--to", str(tmp_path / "served"))
    assert done.exit_code == 0, done.output
    probe = load_probe("small")
    for part in ("target", "draft"):
        written = tmp_path / "served" / part / "model.safetensors"
        assert written.read_bytes() == (probe.folder / part / "model.safetensors").read_bytes()
    (tmp_path / "file").touch()
    assert _invoke("probe", "small", "--to", str(tmp_path / "file" / "x")).exit_code == 2
    assert "unknown probe" in _invoke("probe", "none", "--to", str(tmp_path)).output


def test_the_files_of_a_probe_as_gguf(tmp_path: Path) -> None:
    if environments.python_of("xllamacpp") is None:
        pytest.skip("the package gguf is in the environment of xllamacpp, which was not made")
    done = _invoke("probe", "small", "--to", str(tmp_path), "--gguf")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "draft.gguf").read_bytes()[:4] == b"GGUF"
