"""The adapter of MLX-LM: its claims, its rounds, and the real engine behind it."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest
from light import loaded_by

from conformance import launch
from conformance.adapters import mlx_lm as adapter
from conformance.contract import Engine, Request
from conformance.decoding import Decoding
from conformance.errors import EngineLoadError, UnknownEngineError
from conformance.law import law_at
from conformance.pool import Task, Worker
from conformance.probes import load_probe
from conformance.verdict import Verdict

pytestmark = pytest.mark.engines

GREEDY = Decoding(greedy=True)
SAMPLING = Decoding()
FILTERED = Decoding(temperature=1.5, top_k=12, top_p=0.85, min_p=0.03)
NEW = 10


def requests(prompts, decoding=SAMPLING, new=NEW, speculate=True, seed=100):
    return tuple(
        Request(p, new, decoding, None if decoding.greedy else seed + i, speculate)
        for i, p in enumerate(prompts)
    )


def prompts(n, length=12):
    rows = np.random.default_rng(length).integers(0, 32, (n, length))
    return [tuple(row) for row in rows.tolist()]


# --- before anything is loaded --------------------------------------------------------------------


def test_the_module_is_light():
    statement = "from conformance.adapters.mlx_lm import create\nassert create().card.version"
    assert loaded_by(statement, "mlx", "mlx_lm", "numpy") == []


def test_the_card():
    engine = adapter.create()
    assert isinstance(engine, Engine)
    assert engine.card == adapter.create("draft-model", device="gpu").card
    assert (engine.card.name, engine.card.rule) == ("mlx-lm", "exact")
    assert engine.capabilities.dialect.order == ("top_p", "min_p", "top_k", "temperature")


@pytest.mark.parametrize("named", [{"method": "mtp"}, {"device": "cuda"}], ids=str)
def test_what_is_unknown_lists_what_is_known(named):
    with pytest.raises(UnknownEngineError, match=r"draft-model|cpu and gpu"):
        adapter.create(**named)


def test_it_needs_a_draft(probe_cache):
    pair = dataclasses.replace(load_probe("mid", probe_cache).pair, draft=None)
    with pytest.raises(EngineLoadError, match="draft"):
        adapter.create().load(pair)


@pytest.mark.parametrize("missing", ["mlx.core", "mlx_lm.generate"])
def test_a_missing_library_says_what_to_install(missing, monkeypatch, probe_cache):
    if missing == "mlx_lm.generate":
        monkeypatch.setitem(sys.modules, "mlx.core", FakeArrays())
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(EngineLoadError, match=r"pip install 'mlx\[cpu\]' mlx-lm"):
        adapter.create().load(load_probe("mid", probe_cache).pair)


class FakeArrays:
    cpu = "cpu"

    def set_default_device(self, device):
        assert device == "cpu"


def test_generate_needs_load():
    with pytest.raises(EngineLoadError, match="before load"):
        adapter.create().generate([Request((1,), 1, GREEDY)])


@pytest.mark.parametrize(
    ("told", "wanted", "rounds"),
    [
        ("", 0, ()),
        ("t", 1, ((1, 0),)),
        ("d", 1, ((1, 1),)),
        ("tt", 2, ((2, 0), (1, 0))),
        ("dt", 2, ((2, 1),)),
        ("td", 2, ((2, 0), (1, 1))),
        ("dddt", 4, ((3, 3),)),  # the whole block, and the bonus token
        ("ddtdddtdd", 9, ((3, 2), (3, 3), (2, 2))),
        ("tttddd", 6, ((3, 0), (3, 0), (3, 0), (3, 3))),
    ],
)
def test_blocks_are_rebuilt_from_who_proposed_what(told, wanted, rounds):
    assert adapter.blocks((x == "d" for x in told), wanted) == rounds


# --- the engine itself ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(probe_cache):
    """Ask the engine in its own process: ``run(requests)``."""
    absent = launch.missing("mlx-lm")
    if absent:
        pytest.skip(absent)
    made = Worker(timeout=120)

    def ask(asked, raw=False, probe="near"):
        outcome = made.generate(Task("test", "mlx-lm", load_probe(probe, probe_cache).pair, asked))
        if raw:
            return outcome
        assert outcome.error is None, f"{outcome.error}\n{outcome.detail}"
        return outcome.completions

    yield ask
    made.close()


def tokens(answers):
    return [tuple(a["tokens"]) for a in answers]


def test_rounds_add_up_and_drafts_are_both_accepted_and_rejected(run):
    rounds = []
    for new in (1, 2, 3, 24):
        for answer in run(requests(prompts(8), new=new)):
            assert len(answer["tokens"]) == new
            assert all(0 <= t < 32 for t in answer["tokens"])
            assert all(0 <= a <= d <= adapter.PROPOSALS for d, a in answer["rounds"])
            assert sum(a + 1 for _, a in answer["rounds"]) in (new, new + 1)
            rounds += answer["rounds"]
    assert any(accepted == adapter.PROPOSALS for _, accepted in rounds)
    assert sum(accepted == 0 for _, accepted in rounds) > 20


@pytest.mark.parametrize("speculate", [True, False])
def test_a_seed_decides_the_answer(run, speculate):
    first = run(requests(prompts(8), speculate=speculate))
    assert first == run(requests(prompts(8), speculate=speculate))
    other = run(requests(prompts(8), speculate=speculate, seed=900))
    assert sum(a == b for a, b in zip(tokens(first), tokens(other), strict=True)) < 2
    rows = run(requests([prompts(1)[0]] * 20, speculate=speculate))
    assert len(set(tokens(rows))) > 16


def test_the_control_arm_has_no_rounds(run):
    answers = run(requests(prompts(3), speculate=False))
    assert all(not a["rounds"] and len(a["tokens"]) == NEW for a in answers)


def test_greedy_arms_agree_away_from_near_ties(run, probe_cache):
    probe = load_probe("near", probe_cache)
    compared = 0
    for spec, plain, prompt in zip(
        tokens(run(requests(prompts(6), GREEDY))),
        tokens(run(requests(prompts(6), GREEDY, speculate=False))),
        prompts(6),
        strict=True,
    ):
        logits = probe.target.logits(np.array([prompt + plain[:-1]]))[0, len(prompt) - 1 :]
        laws = law_at(logits, GREEDY, noise=probe.tolerance)
        clear = np.cumprod(~laws.ambiguous).astype(bool)
        compared += clear.sum()
        assert np.array_equal(np.array(spec)[clear], np.array(plain)[clear])
        assert np.array_equal(np.array(plain)[clear], laws.probs.argmax(-1)[clear])
    assert compared > 40


def test_a_cache_that_outgrows_its_first_block(run):
    """The library's caches are enlarged every 256 tokens, here in the middle of a block."""
    long = prompts(2, length=250)
    spec, plain = (tokens(run(requests(long, GREEDY, speculate=s))) for s in (True, False))
    assert spec == plain


def test_a_refusal_is_loud_and_what_comes_after_it_is_answered(run):
    whole = Decoding(top_k=32)
    for speculate in (True, False):
        outcome = run(requests(prompts(1), whole, speculate=speculate), raw=True)
        assert outcome.error is not None
        assert "top_k of 32 for 32 tokens" in str(outcome.error)
    # the library's own refusal would leave its random stream unusable
    assert len(run(requests(prompts(1), Decoding(top_k=31)))[0]["tokens"]) == NEW


def test_it_is_exact(judge):
    results = judge("mlx-lm", SAMPLING, FILTERED, GREEDY, probe="mid")
    assert [r.verdict.verdict for r in results] == [Verdict.EXACT] * len(results)
    assert len(results) == 3
