"""What the run was asked, and who was asked: changed in ``run.json`` alone, and in everything."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import edit_report, edit_run, lines, reseal, rewrite, run, wrong
from safetensors.numpy import load_file, save_file

from conformance.probes import open_probe, rounding_text
from conformance.reports.build import _probe
from conformance.reports.model import load_report
from conformance.reports.verify import Status, verify_bundle

pytestmark = pytest.mark.long  # run by 'make test-bundles', and by CI

Json = Any
NAME = "reference"


def claims(run_file: Json, name: str = "reference") -> Json:
    return run_file["described"][name]["capabilities"]


def added(run_file: Json, n: int, by: str = "reference") -> None:
    key = f"{by} / mid / temperature=1"
    run_file["stages"].append({**run_file["stages"][-1], key: n})


FORGERIES: dict[str, Callable[[Json], object]] = {
    "profile": lambda r: r.update(profile="standard"),
    "alpha": lambda r: r.update(alpha=1e-9),
    "a larger alpha": lambda r: r.update(alpha=1e-2),
    "seed": lambda r: r.update(seed=7),
    "jobs": lambda r: r.update(jobs=9),
    "decodings": lambda r: r["decodings"].pop(),
    "another decoding": lambda r: r["decodings"].append("temperature=0.9"),
    "decodings left to the suite": lambda r: r.update(decodings=None),
    "an engine more": lambda r: r["engines"].append("exact:block-verification"),
    "another engine": lambda r: r.update(engines=["exact:block-verification"]),
    "nobody is described": lambda r: r["described"].clear(),
    "probe": lambda r: r.update(probe="far"),
    "tool version": lambda r: r.update(tool_version="0.0.1"),
    "requests at the first stage": lambda r: r["stages"][0].update(x=5),
    "many requests": lambda r: r["stages"][0].update({"reference / mid / temperature=1": 10**7}),
    "a stage": lambda r: r["stages"].append({}),
    "a stage with requests": lambda r: added(r, 1000),
    "a stage with many": lambda r: added(r, 10**7),
    "thirty stages": lambda r: [added(r, 500 + i) for i in range(30)],
    "version": lambda r: r["described"]["reference"]["card"].update(version="7"),
    "no control arm": lambda r: claims(r, NAME).update(control=False),
    "no greedy": lambda r: claims(r, NAME).update(greedy=False),
    "no sampling": lambda r: claims(r, NAME).update(sampling=False),
    "low precision": lambda r: claims(r, NAME).update(precision="bfloat16"),
    "draft": lambda r: claims(r, NAME).update(draft="none"),
    "verification": lambda r: claims(r, NAME).update(verification="any"),
    "batch": lambda r: claims(r, NAME).update(max_batch=64),
    "dialect": lambda r: claims(r, NAME)["dialect"].update(top_p_crossing="drop"),
    "an error": lambda r: r["described"][NAME].update(error="could not be asked"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_the_report_does_not_follow(name, forged) -> None:
    folder = forged("small")
    before = (folder / "run.json").read_bytes()
    edit_run(folder, FORGERIES[name])
    assert (folder / "run.json").read_bytes() != before
    assert wrong(folder)


# What makes other questions, or other numbers of them: nobody has answered those.
OTHER_QUESTIONS = {
    "profile", "alpha", "seed", "another decoding", "decodings left to the suite",
    "an engine more", "probe", "requests at the first stage", "many requests", "a stage",
    "a stage with requests", "a stage with many", "thirty stages", "low precision",
    "nobody is described",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(OTHER_QUESTIONS))
def test_no_report_follows_from_other_questions(name, forged) -> None:
    """The suite itself writes the report anew; the evidence still is that of the old questions."""
    folder = forged("small")
    edit_run(folder, FORGERIES[name])
    with contextlib.suppress(Exception):  # so far from anything that there is nothing to write
        rewrite(folder)
    assert wrong(folder)


@pytest.mark.parametrize("name", ["no greedy", "no sampling", "an error"])
def test_what_is_not_claimed_is_said_to_be_untested(name, forged) -> None:
    """Whoever forges the claims themselves gets what an engine that claims so little gets."""
    folder = forged("small")
    edit_run(folder, FORGERIES[name])
    for path in (folder / "evidence").glob("*"):
        if name != "no greedy" or "greedy" in path.name:
            path.unlink()
    reseal(folder)
    rewrite(folder)
    found = verify_bundle(folder)
    untested = [c for c in found.untested if NAME in c]
    if name == "an error":
        assert found.verdict != "EXACT"
    assert untested
    told = lines(found, Status.STATED)
    assert all(any(c in line and "no pass" in line for line in told) for c in untested)


def test_claims_are_said_to_be_the_runs_word(small) -> None:
    told = lines(verify_bundle(small), Status.STATED)
    assert any(
        line.startswith(f"engine {NAME}") and "precision float32" in line and "control" in line
        for line in told
    )


def test_a_rounding_that_was_never_measured(forged) -> None:
    """Low precision excuses what the control arm shows; without that there is no excuse."""
    folder = forged("rounded")
    for path in (folder / "evidence").glob("*.rounding.*"):
        path.unlink()
    reseal(folder)
    assert any("rounding arm is missing" in line for line in wrong(folder))


WRONG = "faulty:resample-from-p"


def test_leaving_an_engine_out_leaves_too_many_answers(forged) -> None:
    """The plan of a smaller run has larger levels and fewer requests."""
    folder = forged("expected")

    edit_run(folder, lambda asked: asked["engines"].remove(WRONG))
    assert any("whom nobody asked for" in line for line in wrong(folder))
    edit_run(folder, lambda asked: asked["described"].pop(WRONG))
    assert any("nobody asked for" in line for line in wrong(folder))
    for path in (folder / "evidence").glob("*resample*"):
        path.unlink()
    reseal(folder)
    rewrite(folder)
    told = wrong(folder)
    assert any("did not ask for" in line or "rows" in line or "nobody" in line for line in told)


# --- expected failures ----------------------------------------------------------------------------


def test_an_expectation_of_afterwards(forged) -> None:
    folder = forged("expected")
    edit_run(folder, lambda r: r["expectations"][0].update(case="*"))
    assert wrong(folder)
    rewrite(folder)
    found = verify_bundle(folder)
    assert lines(found, Status.DIFFERS) == []
    (line,) = (x for x in lines(found, Status.STATED) if x.startswith("expected failures"))
    assert "left out of the exit status" in line


def test_an_expectation_that_has_expired_since(forged) -> None:
    folder = forged("expected")
    today = load_report(folder / "report.json").created.date()
    edit_run(folder, lambda r: r["expectations"][0].update(expires=str(today)))
    assert wrong(folder)
    edit_run(folder, lambda r: r["expectations"][0].update(expires="2020-01-01"))
    rewrite(folder)
    found = verify_bundle(folder)
    assert lines(found, Status.DIFFERS) == []
    assert load_report(folder / "report.json").exit_code == 1


def test_a_run_that_is_dated_back(forged) -> None:
    """On its day the entry held, says the run; that it holds no longer is said as well."""
    folder = forged("expected")
    edit_run(folder, lambda r: r["expectations"][0].update(expires="2020-01-01"))
    edit_report(folder, lambda r: r.update(created="2019-06-01T00:00:00Z"))
    rewrite(folder)
    found = verify_bundle(folder)
    (line,) = (x for x in lines(found, Status.STATED) if x.startswith("expected failures"))
    assert "as of 2019-06-01" in line
    assert "expired since: * / temperature=1" in line


# --- probes ---------------------------------------------------------------------------------------


def reweigh(folder: Path, by: float, model: str = "target") -> None:
    """Other weights, with checksums that fit everywhere."""
    path = folder / "probes" / "mid" / model / "model.safetensors"
    weights = load_file(path)
    weights["lm_head.weight"] = (weights["lm_head.weight"] * np.float32(1 + by)).astype(np.float32)
    save_file(weights, path, metadata={"format": "pt"})
    refit(folder)


def refit(folder: Path) -> None:
    made = _probe(open_probe("mid", folder / "probes" / "mid")).model_dump()
    edit_report(folder, lambda report: report.update(probes=[made]))


@pytest.mark.parametrize("model", ["target", "draft"])
@pytest.mark.parametrize("by", [0.3, 1e-4])
def test_other_weights_are_found(by, model, forged) -> None:
    folder = forged("small")
    reweigh(folder, by, model)
    assert any(line.startswith("probe mid: its weights are off by") for line in wrong(folder))
    assert any(line.startswith("plan: not worked out") for line in wrong(folder))


def test_weights_that_were_rounded_elsewhere_are_told(forged) -> None:
    """Another processor may round a weight otherwise when it makes the probe; the law is then that
    of the weights in the bundle.
    """
    folder = forged("small")
    reweigh(folder, 1e-6)
    rewrite(folder)
    found = verify_bundle(folder)
    assert lines(found, Status.DIFFERS) == []
    assert any(
        line.startswith("probe mid: weights as the recipe makes them, to within")
        for line in lines(found, Status.AGREES)
    )


def test_a_probe_of_another_recipe(forged, probe_cache) -> None:
    from conformance.probes import load_probe

    folder = forged("small")
    shutil.rmtree(folder / "probes" / "mid")
    near = load_probe("near", probe_cache)
    for name in near.checksums():
        target = folder / "probes" / "mid" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(near.folder / name, target)
    refit(folder)
    assert any(line.startswith("probe mid") for line in wrong(folder))


@pytest.mark.parametrize("name", ["target/config.json", "draft/tokenizer.json"])
def test_a_probe_with_another_file(name, forged) -> None:
    folder = forged("small")
    path = folder / "probes" / "mid" / name
    path.write_text(path.read_text() + " ")
    refit(folder)
    assert any(f"{name} is not what the recipe makes" in line for line in wrong(folder))


def test_a_probe_with_a_file_more(forged) -> None:
    folder = forged("small")
    (folder / "probes" / "mid" / "target" / "tokenizer.model").write_bytes(b"\0")
    refit(folder)
    assert any("its files are not those of its recipe" in line for line in wrong(folder))


ROUNDING = {
    "hundredfold": {"float32": 4e-3},
    "nothing": {"float32": 0.0},
    "not there": {},
    "another precision": {"float32": 4e-5, "float8": 1e-3},
    "negative": {"float32": -1.0},
    "no number": {"float32": "x"},
}


@pytest.mark.parametrize("name", ROUNDING)
def test_rounding_errors_that_no_processor_has(name, forged) -> None:
    """A larger one sets more tokens aside at edges; a smaller one finds fault with an exact engine
    at near ties.
    """
    folder = forged("small")
    path = folder / "probes" / "mid" / "rounding.json"
    path.write_text(json.dumps(ROUNDING[name], indent=1) + "\n")
    reseal(folder)
    assert any(line.startswith("probe mid") for line in wrong(folder))


def test_another_processor_rounds_otherwise(forged) -> None:
    """It is judged with the rounding of the one that sampled."""
    folder = forged("small")
    path = folder / "probes" / "mid" / "rounding.json"
    told = json.loads(path.read_text())
    path.write_text(rounding_text({"float32": told["float32"] * 1.5}))
    reseal(folder)
    assert any(line.startswith("probes: probes[0].float_noise") for line in wrong(folder))
    rewrite(folder)
    assert wrong(folder) == []
    assert load_report(folder / "report.json").probes[0].float_noise == 1.5 * told["float32"]


def test_a_file_beside_a_probes_models(forged) -> None:
    folder = forged("small")
    (folder / "probes" / "mid" / "notes.txt").write_text("x")
    reseal(folder)
    assert any("its files are not those of its recipe" in line for line in wrong(folder))


def test_a_probe_that_is_missing(forged) -> None:
    folder = forged("small")
    shutil.rmtree(folder / "probes")
    reseal(folder)
    assert any(line.startswith("probe mid") for line in wrong(folder))
    edit_report(folder, lambda report: report.update(probes=[]))
    assert wrong(folder)


def test_another_run_of_the_same_engine_agrees(tmp_path, probe_cache) -> None:
    """A tester who tries seeds until one passes leaves a bundle like any other: it is said that
    this cannot be seen.
    """
    from conformance.reports.verify.check import LIMITS

    folder = run(tmp_path / "again", "reference", "-d", "greedy", "--seed", "99")
    assert wrong(folder) == []
    assert any("no other run" in limit for limit in LIMITS)
