"""The parts a measurement is made of: models, memory, the machine, the most that is acceptable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from conformance.adapters.reference import ReferenceEngine
from conformance.bench import machine
from conformance.bench.measure import Timed
from conformance.bench.memory import Watch, high_water, resident
from conformance.bench.models import exact_model, models_for
from conformance.bench.most import most_acceptable
from conformance.contract import Capabilities, Request
from conformance.decoding import Decoding, Dialect
from conformance.oracle import Oracle
from conformance.probes import Probe, load_probe
from conformance.wire import encode_completions


@pytest.fixture(scope="module")
def probe(probe_cache: Path) -> Probe:
    return load_probe("mid", probe_cache)


@pytest.mark.parametrize(
    "decoding", [Decoding(), Decoding(greedy=True), Decoding(temperature=0.7, top_p=0.8)], ids=str
)
def test_the_most_is_the_mean_of_sum_min_p_q_where_proposals_were_verified(
    probe: Probe, decoding: Decoding
) -> None:
    """Against the oracle, token by token; and the exact engine accepts as much."""
    engine = ReferenceEngine()
    engine.load(probe.pair)
    prompts = [tuple(range(i, i + 12)) for i in range(20)]
    requests = [
        Request(p, 30, decoding, None if decoding.greedy else 100 + i, times=True)
        for i, p in enumerate(prompts)
    ]
    answers = tuple(encode_completions(engine.generate(requests), requests))
    call = Timed("speculative", "full", 0, 1.0, 1.0, answers, tuple(prompts))
    found = most_acceptable(probe.target, probe.draft, [call], decoding, Dialect())
    assert found.most is not None
    assert found.beyond is not None

    oracle = Oracle(probe, decoding, Dialect())
    tokens = np.array([a["tokens"] for a in answers])
    sample = oracle.sample(np.array(prompts), np.arange(20), tokens)
    assert sample.draft is not None
    overlaps: list[float] = []
    accepted = 0
    for i, answer in enumerate(answers):
        at = 0
        for k, n in answer["rounds"]:
            for j in range(k):
                if j <= n and at + j < 30:
                    u = sample.prefix[i, at + j]
                    overlaps.append(float(np.minimum(sample.law[u], sample.draft[u]).sum()))
                    accepted += j < n
            at += n + 1
    assert found.most.estimate == pytest.approx(np.mean(overlaps), abs=1e-9)
    assert found.most.n == len(overlaps)
    assert found.beyond.estimate == pytest.approx(accepted / len(overlaps) - np.mean(overlaps))
    if decoding.greedy:
        assert abs(found.beyond.estimate) < 1e-9


def test_only_a_plain_llama_is_computed_here(probe: Probe, tmp_path: Path) -> None:
    assert exact_model(probe.pair.target)[0] is not None
    config = json.loads((probe.pair.target / "config.json").read_text())
    for change in (
        {"model_type": "qwen2"},
        {"rope_scaling": {"type": "linear", "factor": 2}},
        {"tie_word_embeddings": True},
        {"head_dim": 64},
        {"attention_bias": True},
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        (tmp_path / "model.safetensors").write_bytes(
            (probe.pair.target / "model.safetensors").read_bytes()
        )
        model, why = exact_model(tmp_path)
        assert (model, bool(why)) == (None, True)


def test_the_stand_in_is_loaded_and_small(probe: Probe) -> None:
    models = models_for(Capabilities(), None, "mid")
    pair = models.with_stand_in()
    assert pair.target == models.pair.target
    engine = ReferenceEngine()
    engine.load(pair)
    (answer,) = engine.generate([Request((1, 2), 4, Decoding(), 1, speculate=False)])
    assert len(answer.tokens) == 4
    assert models.with_stand_in() == pair  # made once


def run_python(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )


def test_memory_is_the_largest_of_the_whole_tree() -> None:
    """A process that takes 64 MiB and gives them back, and its child that keeps 48."""
    child = "x = b'x' * (48 << 20); print('up', flush=True); input()"
    code = f"""
import subprocess, sys
kid = subprocess.Popen([sys.executable, '-I', '-c', {child!r}], stdin=subprocess.PIPE)
input()
y = b'y' * (64 << 20)
del y
print('done', flush=True)
input()
"""
    process = run_python(code)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "up\n"
        before = resident(process.pid)
        assert before > 48 << 20
        with Watch(process.pid) as watch:
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
        assert watch.peak >= 64 << 20
        assert watch.peak >= before
        assert high_water(process.pid) >= 64 << 20
    finally:
        process.kill()
        process.wait()
    assert resident(process.pid) == high_water(process.pid) == 0


def test_others_are_whoever_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters of the machine and of our processes, injected."""
    now = {"busy": 100.0, "own": 10.0, "at": 0.0}
    monkeypatch.setattr(machine, "_busy", lambda: now["busy"])
    monkeypatch.setattr(machine.Quiet, "_own", lambda _: now["own"])
    monkeypatch.setattr(machine.time, "monotonic", lambda: now["at"])
    quiet = machine.Quiet([])
    now.update(busy=130.0, own=25.0, at=10.0)
    assert quiet.others() == pytest.approx(1.5)
    now.update(busy=120.0, own=31.0)  # counters are read one after the other
    assert quiet.others() == 0.0


def drifting(rng: np.random.Generator, slower: float) -> Sequence[float]:
    return (rng.lognormal(0, 0.02, 30) * np.linspace(1, slower, 30)).tolist()


def test_drift_is_seen_and_noise_is_not() -> None:
    rng = np.random.default_rng(6)
    change = machine.drift(drifting(rng, 1.5))
    assert change is not None
    assert 0.15 < change < 0.35
    # where nothing drifts, 1 in 100 at most is called drift; far fewer, since 5 % are asked for
    assert sum(machine.drift(drifting(rng, 1.0)) is not None for _ in range(300)) <= 3
    assert machine.drift([1.0] * 5) is None


def test_this_machine_can_be_described() -> None:
    found = machine.this_machine()
    assert found.processors >= 1
    assert found.memory_bytes > 0
    assert found.processor
    load = machine.load_average()
    assert load is None or load >= 0
    assert any(p.pid == os.getpid() for p in machine.processes([os.getpid()]))
