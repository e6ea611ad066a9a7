"""llama.cpp's own server with a draft model, against itself without; nothing knows its law."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from conformance import launch
from conformance.adapters import openai_http as transport
from conformance.decoding import Decoding
from conformance.probes import load_probe
from conformance.runner import Settings, judge_cases, prepare
from conformance.served.words import CLAIM

if not any(importlib.util.find_spec(name) for name in transport.LIBRARIES):
    pytest.skip("no HTTP library is installed", allow_module_level=True)


@pytest.fixture(scope="module")
def start(probe_cache):
    """Start servers; ended afterwards."""
    python = launch.environment("xllamacpp")
    if python is None:
        pytest.skip(launch.missing("xllamacpp") or "xllamacpp is not in an environment of its own")
    spec = importlib.util.find_spec("conformance")
    env = os.environ | {"PYTHONPATH": str(Path(spec.submodule_search_locations[0]).parent)}
    script = Path(__file__).parent.parent / "engines" / "llama_server.py"
    folder = load_probe("mid", probe_cache).folder
    running = []

    def begin(kind):
        process = subprocess.Popen(
            [python, "-P", str(script), str(folder), kind],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        running.append(process)
        return process.stdout.readline().strip() + "/v1"

    yield begin
    for process in running:
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture(scope="module")
def plain(start):
    return start("control")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """Texts that this model's tokenizer can read: words without white space."""
    rows = np.random.default_rng(0).integers(0, 32, (16, 8)).tolist()
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("".join("".join(f"w{t}" for t in row) * 3 + "\n" for row in rows))
    return path


def judged(url, plain, prompts, folder, *decodings, **options):
    more = "".join(f",{k}={v}" for k, v in options.items())
    name = f"served,url={url},control={plain},prompts={prompts}{more}"
    asked = prepare(Settings((name,), decodings, profile="smoke"))
    return list(judge_cases(asked, folder, jobs=1))


@pytest.fixture(scope="module")
def speculating(start):
    return start("exact")


@pytest.fixture(scope="module")
def made_up(start):
    return start("made-up")  # accepts at a set rate, whatever is proposed


def test_speculation_is_exact_relative_to_control(speculating, plain, prompts, tmp_path):
    greedy = Decoding(greedy=True)
    for result in judged(speculating, plain, prompts, tmp_path, greedy, Decoding(temperature=0.8)):
        assert result.verdict.verdict == "EXACT", result.verdict
        assert result.verdict.why.startswith(CLAIM)
        assert result.case.card.version.startswith("llamacpp ")
        assert result.speculation.accepted > 30


@pytest.mark.parametrize("style", ["auto", "text"])
def test_acceptance_that_is_made_up_is_not_exact(made_up, plain, prompts, tmp_path, style):
    (result,) = judged(made_up, plain, prompts, tmp_path, Decoding(temperature=0.8), style=style)
    assert result.verdict.verdict == "NOT EXACT", result.verdict


def test_one_server_whose_switch_does_nothing_is_an_error(speculating, prompts, tmp_path):
    (result,) = judged(
        speculating, "off-switch", prompts, tmp_path, Decoding(), switch="no_such_thing=1"
    )
    assert result.verdict.verdict == "ERROR"
    assert "speculates although it should not" in result.verdict.why
