"""llama.cpp's own server with a draft model, against itself without; nothing knows its law."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from conformance import launch
from conformance.adapters import openai_http as transport
from conformance.adapters.openai_styles import STYLES
from conformance.decoding import Decoding, Dialect
from conformance.gather import evidence_path
from conformance.law import warp
from conformance.probes import load_probe
from conformance.runner import Settings, judge_cases, prepare
from conformance.served.laws import LAWS, load_laws
from conformance.served.nodes import Nodes
from conformance.served.plan import BY
from conformance.served.words import BY_LAW, CLAIM, PASSED_BY_LAW

pytestmark = pytest.mark.engines

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


@pytest.fixture(scope="module")
def by_lookup(start):
    return start("ngram")  # drafts by n-grams, and keeps what the target samples itself


FILTERED = Decoding(temperature=0.7, top_k=9, top_p=0.8)


def held_to_its_law(result):
    assert result.verdict.verdict == "EXACT", result.verdict
    assert result.verdict.why.startswith(PASSED_BY_LAW), result.verdict
    assert any(line.startswith(BY_LAW) for line in result.verdict.ruled_out)
    gate = [f for f in result.findings if f.scope.endswith(BY) and f.arm == "control"]
    assert not any(f.rejected for f in gate)


@pytest.mark.parametrize("draft", ["speculating", "by_lookup"])
def test_the_law_of_its_log_probabilities(draft, plain, prompts, tmp_path, request):
    """By 20 of 32 tokens: warped here."""
    url = request.getfixturevalue(draft)
    (result,) = judged(url, plain, prompts, tmp_path, FILTERED, logprobs=20)
    held_to_its_law(result)


@pytest.mark.long
@pytest.mark.parametrize(
    ("decoding", "typed"),
    [
        (Decoding(temperature=0.8), {"logprobs": 20}),  # within bounds
        (Decoding(temperature=1.3), {}),  # all tokens
        (Decoding(temperature=1.3), {"processed": "yes", "logprobs": 12}),
        (FILTERED, {"processed": "yes", "logprobs": 12}),
    ],
)
def test_every_way_to_have_the_law(decoding, typed, speculating, plain, prompts, tmp_path):
    (result,) = judged(speculating, plain, prompts, tmp_path, decoding, **typed)
    held_to_its_law(result)


def test_the_law_is_that_of_the_model(plain, prompts, tmp_path, probe_cache):
    """What the server tells, against logits computed here."""
    (result,) = judged(plain_twin(plain), plain, prompts, tmp_path, FILTERED, logprobs=20)
    laws = load_laws(evidence_path(tmp_path, result.case, LAWS))
    nodes = Nodes(result.case, laws)
    assert nodes.noise < 1e-3
    probe = load_probe("mid", probe_cache)
    dialect = Dialect(order=STYLES["llama"].order, top_k_ties="lowest-id")
    compared = 0
    for (p, prefix), law in nodes.laws.items():
        ids = [int(w) for w in re.findall(r"w(\d+)", result.case.texts[p])]
        logits = probe.target.logits(np.array([[*ids, *prefix]]))[0, -1]
        wanted = warp(logits, FILTERED, dialect)
        off = np.abs(law.probs[:-1] - wanted[law.ids])
        assert off.max() <= law.width + 1e-3
        compared += 1
    assert compared > 100


def plain_twin(plain):
    """The same server by another name."""
    return plain.replace("127.0.0.1", "localhost")


def test_acceptance_that_is_made_up_departs_from_the_law_too(made_up, plain, prompts, tmp_path):
    (result,) = judged(made_up, plain, prompts, tmp_path, Decoding(temperature=0.8))
    assert result.verdict.verdict == "NOT EXACT"
    by_law = [f for f in result.findings if f.scope.endswith(BY) and f.arm == "speculative"]
    assert any(f.rejected for f in by_law)


def test_one_server_whose_switch_does_nothing_is_an_error(speculating, prompts, tmp_path):
    (result,) = judged(
        speculating, "off-switch", prompts, tmp_path, Decoding(), switch="no_such_thing=1"
    )
    assert result.verdict.verdict == "ERROR"
    assert "speculates although it should not" in result.verdict.why
