"""The adapter of OpenAI-compatible servers, against llama.cpp's own server on loopback."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from conformance import launch
from conformance.adapters import openai as adapter
from conformance.adapters import openai_http as transport
from conformance.contract import Request
from conformance.decoding import Decoding
from conformance.errors import EngineFailure, EngineLoadError
from conformance.law import law_at
from conformance.probes import load_probe
from conformance.runner import Settings, judge_cases, prepare
from conformance.wire import encode_completions

pytestmark = pytest.mark.engines

if not any(importlib.util.find_spec(name) for name in transport.LIBRARIES):
    pytest.skip("no HTTP library is installed", allow_module_level=True)

GREEDY = Decoding(greedy=True)
SAMPLING = Decoding()
FILTERED = Decoding(temperature=0.7, top_k=9, top_p=0.8, min_p=0.05)
KEY = "sk-Probe/0123456789+abcdefXYZ"


@pytest.fixture(scope="module")
def start(probe_cache):
    """Start servers on a probe; ended afterwards."""
    python = launch.environment("xllamacpp")
    if python is None:
        pytest.skip(launch.missing("xllamacpp") or "xllamacpp is not in an environment of its own")
    spec = importlib.util.find_spec("conformance")
    env = os.environ | {"PYTHONPATH": str(Path(spec.submodule_search_locations[0]).parent)}
    script = Path(__file__).with_name("llama_server.py")
    folder = load_probe("mid", probe_cache).folder
    running = []

    def begin(*arguments):
        process = subprocess.Popen(
            [python, "-P", str(script), str(folder), *arguments],
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
def speculating(start):
    return start("exact")


@pytest.fixture(scope="module")
def plain(start):
    return start("control")


@pytest.fixture
def load(probe_cache):
    made = []

    def begin(**options):
        made.append(adapter.create(**options))
        made[-1].load(load_probe("mid", probe_cache).pair)
        return made[-1]

    yield begin
    for engine in made:
        engine.close()


def requests(n, decoding=SAMPLING, speculate=True, new=8, seed=100):
    rows = np.random.default_rng(seed).integers(0, 32, (n, 12)).tolist()
    return [
        Request(tuple(row), new, decoding, None if decoding.greedy else seed + i, speculate)
        for i, row in enumerate(rows)
    ]


def chosen_ids(tokens, laws):
    return np.take_along_axis(laws, np.array(tokens)[:, None], axis=1)[:, 0]


@pytest.mark.parametrize("style", ["auto", "openai"])
def test_it_is_greedy_where_it_should_be(speculating, plain, load, style, probe_cache):
    engine = load(url=speculating, control=plain, style=style)
    assert engine.card.version.startswith("llamacpp ")
    probe, compared, drafted = load_probe("mid", probe_cache), 0, 0
    for speculate in (True, False):
        wanted = requests(12, GREEDY, speculate, new=12)
        answers = engine.generate(wanted)
        encode_completions(answers, wanted)
        for r, a in zip(wanted, answers, strict=True):
            drafted += a.counts[0] if a.counts else 0
            rows = np.array([[*r.prompt, *a.tokens[:-1]]])
            logits = probe.target.logits(rows)[0, len(r.prompt) - 1 :]
            laws = law_at(logits, GREEDY, noise=probe.tolerance)
            clear = ~laws.ambiguous
            compared += clear.sum()
            assert (chosen_ids(a.tokens, laws.probs)[clear] == 1).all()
    assert compared > 250
    assert drafted > 50


@pytest.mark.parametrize("style", ["auto", "openai"])
def test_a_bias_is_by_token_in_either_protocol(speculating, plain, load, style):
    engine = load(url=speculating, control=plain, style=style)
    pulled = Decoding(greedy=True, logit_bias=((5, 60.0),))
    for speculate in (True, False):
        for a in engine.generate(requests(3, pulled, speculate)):
            assert set(a.tokens) == {5}


def test_it_keeps_to_the_support_and_to_its_seeds(speculating, plain, load, probe_cache):
    engine = load(url=speculating, control=plain)
    probe, order = load_probe("mid", probe_cache), engine.capabilities.dialect
    for speculate in (True, False):
        wanted = requests(24, FILTERED, speculate)
        answers = engine.generate(wanted)
        for r, a in zip(wanted, answers, strict=True):
            rows = np.array([[*r.prompt, *a.tokens[:-1]]])
            logits = probe.target.logits(rows)[0, len(r.prompt) - 1 :]
            laws = law_at(logits, FILTERED, dialect=order, noise=probe.tolerance)
            p = chosen_ids(a.tokens, laws.probs)
            assert (p[~laws.ambiguous] > 0).all()
        same = [Request(wanted[0].prompt, 8, SAMPLING, 5, speculate)] * 4
        assert len({tuple(a.tokens) for a in engine.generate(same)}) == 1
        apart = [Request(wanted[0].prompt, 8, SAMPLING, i, speculate) for i in range(20)]
        assert len({tuple(a.tokens) for a in engine.generate(apart)}) > 17


def test_it_wants_its_key(start, load, monkeypatch):
    locked = start("control", KEY)
    with pytest.raises(EngineFailure, match="wants a key: set CONFORMANCE_API_KEY"):
        load(url=locked, draft="none").generate(requests(1))
    monkeypatch.setenv(transport.KEY_VARIABLE, KEY[::-1])
    with pytest.raises(EngineFailure, match="refuses the key in CONFORMANCE_API_KEY") as caught:
        load(url=locked, draft="none")
    assert KEY[::-1] not in str(caught.value)
    monkeypatch.setenv(transport.KEY_VARIABLE, KEY)
    assert len(load(url=locked, draft="none").generate(requests(2))) == 2


def test_it_has_no_switch_of_that_name(speculating, load):
    with pytest.raises(EngineLoadError, match="although it was asked not to"):
        load(url=speculating, control="off-switch", switch="speculative.n_max=0")


def judged(url, plain, folder, *decodings):
    name = f"openai,url={url},control={plain}"
    asked = prepare(Settings((name,), decodings, profile="smoke", probe="mid"))
    return judge_cases(asked, folder, jobs=1)


def test_it_is_exact(speculating, plain, tmp_path):
    nucleus = Decoding(temperature=0.7, top_p=0.8)
    for case in judged(speculating, plain, tmp_path, SAMPLING, nucleus):
        assert case.verdict.verdict == "EXACT", case.verdict


@pytest.mark.long
def test_it_is_exact_in_what_else_it_is_asked_for(speculating, plain, tmp_path):
    asked = (
        Decoding(greedy=True, stop=(5, 17, 23)),
        Decoding(stop=(5, 17, 23)),
        Decoding(presence_penalty=1.5, frequency_penalty=0.75),
        Decoding(temperature=0.8, top_p=0.9, repetition_penalty=1.5, logit_bias=((4, 2.0),)),
        Decoding(banned=(0, 3, 6, 9, 12, 15, 18, 21, 24, 27)),
    )
    for case in judged(speculating, plain, tmp_path, *asked):
        assert case.verdict.verdict == "EXACT", case.verdict


def test_acceptance_that_is_made_up_is_not_exact(start, plain, tmp_path):
    made_up = start("made-up")  # the server's own switch for benchmarks: it accepts at a set rate
    (case,) = judged(made_up, plain, tmp_path, SAMPLING)
    assert case.verdict.verdict == "NOT EXACT", case.verdict
