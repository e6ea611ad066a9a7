"""``conformance run --resume`` of a served case: interrupted, and at a new stage."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from imitated import Telling, name

from conformance.adapters import openai_http as transport
from conformance.cli import main
from conformance.served.evidence import first_answers, load_served
from conformance.served.laws import LAWS, load_laws
from conformance.served.server import ARMS

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        not any(__import__("importlib").util.find_spec(n) for n in transport.LIBRARIES),
        reason="no HTTP library is installed",
    ),
]
SMOKE = ("-d", "temperature=1", "--profile", "smoke", "--jobs", "1", "--quiet")


def run(*words):
    return CliRunner().invoke(main, ["run", *map(str, words)])


def report(folder):
    return json.loads((folder / "report.json").read_text())


def rarely(answer, body):
    """Drafts are counted in one answer of 38: too few at first."""
    seen = body.get("seed") is not None and body["seed"] % 38 == 0
    counts = {"num_draft_tokens": 16 * seen, "num_accepted_draft_tokens": int(seen)}
    return answer | {"metrics": {"speculative_decoding": counts}}


def files(folder):
    """Evidence by arm."""
    return {p.name.split(".")[-2]: p for p in (folder / "evidence").iterdir()}


@pytest.fixture
def servers(start):
    return start(Telling(change=rarely)), start(Telling())


def test_more_samples_settle_what_was_inconclusive(servers, pair, tmp_path):
    typed = name(*servers, pair)
    first = run(typed, *SMOKE, "--out", tmp_path)
    assert first.exit_code == 2, first.output
    (case,) = report(tmp_path)["cases"]
    assert case["verdict"] == "INCONCLUSIVE"
    assert "hardly seen" in case["why"]
    assert case["claim"] == "relative"
    before = {arm: load_served(files(tmp_path)[arm]) for arm in ARMS}
    told = load_laws(files(tmp_path)[LAWS])
    asked = [len(s.posts()) for s in servers]

    more = run("--resume", tmp_path, "--quiet")
    assert more.exit_code == 0, more.output
    after = report(tmp_path)
    (settled,) = after["cases"]
    assert settled["verdict"] == "EXACT"
    assert settled["stage"] == after["settings"]["stage"] == 2
    spent = {f["level"] for f in settled["findings"] if f["level"]}
    assert list(spent) == [pytest.approx(1e-6 / 4 / after["settings"]["tests"])]
    # what was answered is kept, and what comes is new, in the same order
    n = case["arms"][0]["requests"]
    whole = -(-case["needed"] // 2) * 2
    for arm, old in before.items():
        new = load_served(files(tmp_path)[arm])
        assert (len(old.symbols), len(new.symbols)) == (n, whole)
        assert np.array_equal(new.symbols[:n], old.symbols)
        assert np.array_equal(new.seeds[:n], old.seeds)
        assert len(np.unique(new.seeds)) == len(new.seeds)
    spec, control = (len(s.posts()) - k for s, k in zip(servers, asked, strict=True))
    assert spec == whole - n + 1  # and one to see who is there
    # the law: what was told stays, and prefixes that are worth it now are asked for
    learnt = load_laws(files(tmp_path)[LAWS])
    assert learnt.at(1).sha256 == told.sha256
    assert learnt.reasons == ("", "")
    new = len(learnt.nodes) - len(told.nodes)
    assert new > 0
    assert set(learnt.stages[-new:]) == {2}
    # and two to see who is there, and two for the tokens of the prompts
    assert control == 2 * (whole - n) + 4 + new


@pytest.mark.parametrize("laws", [True, False])
def test_an_interrupted_addition_ends_like_an_undisturbed_one(servers, pair, tmp_path, laws):
    typed = name(*servers, pair)
    assert run(typed, *SMOKE, "--out", tmp_path / "a").exit_code == 2
    for folder in ("b", "c"):  # the same first stage three times, without asking again
        (tmp_path / folder / "evidence").mkdir(parents=True)
        for path in (*(tmp_path / "a").glob("*.json"), *(tmp_path / "a" / "evidence").iterdir()):
            to = tmp_path / folder / path.relative_to(tmp_path / "a")
            to.write_bytes(path.read_bytes())
    assert run("--resume", tmp_path / "a", "--quiet").exit_code == 0
    assert run("--resume", tmp_path / "b", "--quiet").exit_code == 0
    # as if killed in the middle of the second stage: its report is not there yet
    for arm in ARMS:
        e = load_served(files(tmp_path / "b")[arm])
        first_answers(e, len(e.symbols) * 3 // 4 // 2 * 2).save(files(tmp_path / "b")[arm])
    if not laws:  # or before the law of the second stage was saved
        path = files(tmp_path / "b")[LAWS]
        load_laws(path).at(1).save(path)
        for arm in ARMS:
            first_stage = files(tmp_path / "c")[arm]
            files(tmp_path / "b")[arm].write_bytes(first_stage.read_bytes())
    (tmp_path / "b" / "report.json").unlink()
    done = run("--resume", tmp_path / "b", "--quiet")
    assert done.exit_code == 0, done.output
    one, other = report(tmp_path / "a"), report(tmp_path / "b")
    assert other["settings"] == one["settings"]
    (a,), (b,) = one["cases"], other["cases"]
    assert [x["sha256"] for x in a["arms"]] == [x["sha256"] for x in b["arms"]]
    assert a["findings"] == b["findings"]
