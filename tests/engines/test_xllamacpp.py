"""The adapter of llama.cpp: its claims, its conversion, and the real engine behind it."""

from __future__ import annotations

import dataclasses
import json
import sys
import types

import numpy as np
import pytest
from light import loaded_by
from safetensors.numpy import load_file, save_file

from conformance import launch
from conformance.adapters import gguf_probe
from conformance.adapters import xllamacpp as adapter
from conformance.adapters.xllamacpp_methods import PROPOSALS
from conformance.contract import Engine, Request
from conformance.decoding import Decoding
from conformance.errors import EngineLoadError, NotSupportedError, UnknownEngineError
from conformance.law import law_at
from conformance.pool import Task
from conformance.probes import load_probe

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


def prompts(n, words, length=12):
    rows = np.random.default_rng(length).integers(0, words, (n, length))
    return [tuple(row) for row in rows.tolist()]


# --- before anything is loaded --------------------------------------------------------------------


def test_the_module_is_light():
    statement = (
        "from conformance.adapters.xllamacpp import create, METHODS\n"
        "for m in METHODS: assert create(m).card.version"
    )
    assert loaded_by(statement, "xllamacpp", "gguf", "numpy", "safetensors") == []


@pytest.mark.parametrize("method", list(adapter.METHODS))
def test_the_card(method):
    engine = adapter.create(method)
    assert isinstance(engine, Engine)
    expected = "xllamacpp" if method == "draft-model" else f"xllamacpp:{method}"
    assert engine.card.name == expected
    assert engine.capabilities.draft == ("lookup" if method.startswith("ngram") else "model")
    assert engine.capabilities.dialect.order[-1] == "temperature"
    assert ("lossy" in engine.card.rule) == (method == "synthetic")


def test_no_method_is_the_draft_model():
    assert adapter.create("").card == adapter.create("draft-model").card


def test_the_order_of_samplers_is_the_declared_one():
    engine = adapter.create("", order="temperature-first")
    assert engine.capabilities.dialect.order[0] == "temperature"
    asked = json.loads(engine._ask(Request((1, 2), 3, FILTERED, 4)))
    order = [w.replace("typical_p", "typ_p") for w in engine.capabilities.dialect.order]
    assert asked["samplers"] == ["penalties", *order]
    assert (asked["temperature"], asked["top_k"], asked["top_p"], asked["min_p"]) == (
        1.5,
        12,
        0.85,
        0.03,
    )


@pytest.mark.parametrize("named", [{"method": "mtp"}, {"order": "random"}], ids=str)
def test_what_is_unknown_lists_what_is_known(named):
    with pytest.raises(UnknownEngineError, match=r"ngram-simple|temperature-first"):
        adapter.create(**named)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"gpu_layers": "-1"}, "gpu_layers must be all or a whole number"),
        ({"gpu_layers": "1000"}, "gpu_layers must be"),
        ({"gpu_layers": "some"}, "gpu_layers must be"),
        ({"cache": "q8_0"}, "no cache 'q8_0'; there are float32, float16, bfloat16"),
        ({"threads": "0"}, "threads must be"),
    ],
)
def test_options_that_mean_nothing(option, said):
    with pytest.raises(UnknownEngineError, match=said):
        adapter.create(**option)


def test_less_than_single_precision_is_declared():
    assert adapter.create().capabilities.precision == "float32"
    assert adapter.create().capabilities.processes is None
    assert adapter.create(cache="float16").capabilities.precision == "lower"
    on_gpu = adapter.create(gpu_layers="all").capabilities
    assert (on_gpu.precision, on_gpu.processes) == ("lower", 1)


def test_layers_for_a_gpu_that_is_not_there_are_refused(monkeypatch, probe_cache):
    """The engine would say nothing and compute them on the CPU."""
    kinds = ["GGML_BACKEND_DEVICE_TYPE_CPU: 0"]
    devices = [{"type": f"<ggml_backend_dev_type.{kind}>"} for kind in kinds]
    library = types.SimpleNamespace(get_device_info=lambda: devices)
    monkeypatch.setitem(sys.modules, "xllamacpp", library)
    with pytest.raises(EngineLoadError, match="sees no GPU here, only CPU"):
        adapter.create(gpu_layers="2").load(load_probe("mid", probe_cache).pair)
    adapter.create(gpu_layers="0")._check_device(library)
    devices.append({"type": "<ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_GPU: 1>"})
    adapter.create(gpu_layers="2")._check_device(library)


def test_only_what_drafts_with_a_model_needs_one(probe_cache):
    pair = dataclasses.replace(load_probe("mid", probe_cache).pair, draft=None)
    with pytest.raises(EngineLoadError, match="draft"):
        adapter.create("").load(pair)


def test_a_missing_library_is_a_load_error(monkeypatch, probe_cache):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(EngineLoadError, match="xllamacpp"):
        adapter.create("").load(load_probe("mid", probe_cache).pair)


def test_generate_needs_load():
    with pytest.raises(EngineLoadError, match="before load"):
        adapter.create("").generate([Request((1,), 1, GREEDY)])


def test_rounds_are_read_off_the_totals():
    totals = [(0, 0), (4, 1), (4, 1), (4, 1), (8, 5), (8, 5), (8, 5), (8, 5), (8, 5), (9, 5)]
    assert adapter._rounds(totals) == ((0, 0), (4, 1), (0, 0), (4, 4), (1, 0))
    assert adapter._rounds([]) == ()


def test_words_are_read_back_or_refused():
    assert gguf_probe.word_ids("w0w31w7") == [0, 31, 7]
    assert gguf_probe.word_ids("") == []
    for text in ("0", " w1", "w1 w", "w1x", "w"):
        with pytest.raises(ValueError, match=r"."):
            gguf_probe.word_ids(text)


# --- the conversion -------------------------------------------------------------------------------


def test_heads_are_reordered_from_halves_to_neighbours():
    rows = np.arange(2 * 6)[:, None]  # two heads of six coordinates
    turned = gguf_probe._interleave(rows, heads=2)[:, 0].tolist()
    assert turned == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def test_a_model_that_is_no_plain_llama_is_refused(tmp_path, probe_cache):
    source = load_probe("mid", probe_cache).pair.target
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    for change in ({"num_hidden_layers": 1}, {"model_type": "qwen3"}):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ValueError, match="no plain Llama"):
            gguf_probe.gguf_file(tmp_path, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())  # nothing half written is left


def test_the_rotary_base_is_read_wherever_it_stands_and_never_scaled():
    assert gguf_probe._rope_base({"rope_theta": 5e5}) == 5e5
    told = {"rope_theta": 1e4, "rope_type": "default"}
    assert gguf_probe._rope_base({"rope_parameters": told}) == 1e4
    for config in (
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_parameters": told | {"rope_type": "linear", "factor": 2.0}},
    ):
        with pytest.raises(ValueError, match="is scaled"):
            gguf_probe._rope_base(config)
    with pytest.raises(ValueError, match="no rope_theta"):
        gguf_probe._rope_base({})


def test_other_number_types_are_refused(tmp_path, probe_cache):
    source = load_probe("mid", probe_cache).pair.target
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    weights = {k: v.astype(np.float16) for k, v in load_file(source / "model.safetensors").items()}
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"float16, not float32"):
        gguf_probe.write_gguf(tmp_path, tmp_path / "model.gguf")


def test_a_damaged_or_missing_model_is_a_load_error(tmp_path, probe_cache):
    with pytest.raises(EngineLoadError, match="as GGUF"):
        adapter._converted(tmp_path)
    source = load_probe("mid", probe_cache).pair.target
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(EngineLoadError, match="as GGUF"):
        adapter._converted(tmp_path)


# --- the engine itself ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(probe_cache):
    """Ask the engine in its own process: ``run("xllamacpp:match", "mid", requests)``."""
    from conformance.pool import Worker

    absent = launch.missing("xllamacpp")
    if absent:
        pytest.skip(absent)
    made = Worker(timeout=120)

    def ask(name, probe, asked, raw=False):
        outcome = made.generate(Task("test", name, load_probe(probe, probe_cache).pair, asked))
        if raw:
            return outcome
        assert outcome.error is None, f"{outcome.error}\n{outcome.detail}"
        return outcome.completions

    yield ask
    made.close()


def law_of_greedy(probe, prompt, tokens):
    """How far each token is below the largest logit, in nats. [T]"""
    rows = np.array([[*prompt, *tokens[:-1]]])
    logits = probe.target.logits(rows)[0, len(prompt) - 1 :]
    return logits.max(axis=1) - np.take_along_axis(logits, np.array(tokens)[:, None], 1)[:, 0]


def test_the_type_of_the_cache_reaches_the_engine(run, probe_cache):
    """Greedy tokens of a float16 cache differ from those of a float32 cache somewhere, at a near
    tie.
    """
    probe = load_probe("mid", probe_cache)
    asked = requests(prompts(60, 32), GREEDY, new=32)
    exact = run("xllamacpp", "mid", asked)
    other = run("xllamacpp,cache=float16,threads=2", "mid", asked)
    assert any(a["tokens"] != b["tokens"] for a, b in zip(exact, other, strict=True))
    for r, a in zip(asked, exact, strict=True):
        assert law_of_greedy(probe, r.prompt, a["tokens"]).max() < 1e-3
    for r, a in zip(asked, other, strict=True):
        assert law_of_greedy(probe, r.prompt, a["tokens"]).max() < 0.2


def test_a_gpu_is_refused_where_there_is_none(run):
    asked = requests(prompts(1, 32), GREEDY)
    outcome = run("xllamacpp,gpu_layers=all", "mid", asked, raw=True)
    if outcome.error is None:
        pytest.skip("there is a GPU here")
    assert "sees no GPU" in str(outcome.error)


def names():
    return ["xllamacpp" if m == "draft-model" else f"xllamacpp:{m}" for m in adapter.METHODS]


@pytest.mark.parametrize("name", names())
def test_rounds_add_up_and_drafts_are_both_accepted_and_rejected(run, name):
    probe, words = ("small", 6) if "ngram" in name else ("mid", 32)
    rounds = []
    for new in (1, 2, 24):
        answers = run(name, probe, requests(prompts(40, words), new=new))
        for answer in answers:
            assert len(answer["tokens"]) == new
            assert all(0 <= t < words for t in answer["tokens"])
            assert sum(accepted + 1 for _, accepted in answer["rounds"]) == new
            rounds += answer["rounds"]
    # a draft of an n-gram cache is as long as its own constant says
    longest = 8 if name.endswith("cache") else PROPOSALS
    assert all(0 <= accepted <= drafted <= longest for drafted, accepted in rounds)
    assert any(accepted for _, accepted in rounds)
    assert any(accepted < drafted for drafted, accepted in rounds)


def test_the_control_arm_drafts_nothing(run):
    for answer in run("xllamacpp", "mid", requests(prompts(8, 32), speculate=False)):
        assert not answer.get("rounds")
        assert len(answer["tokens"]) == NEW


@pytest.mark.parametrize("name", ["xllamacpp", "xllamacpp:match"])
@pytest.mark.parametrize("decoding", [SAMPLING, FILTERED, GREEDY], ids=str)
def test_a_seed_decides_the_answer(run, name, decoding):
    asked = requests(prompts(16, 32), decoding)
    first = run(name, "mid", asked)
    assert run(name, "mid", asked[::-1])[::-1] == first  # whatever else is in flight


MATCHING = [n for n in names() if n not in ("xllamacpp", "xllamacpp:synthetic")]


@pytest.mark.parametrize("name", MATCHING)
def test_matching_emits_what_plain_sampling_would(run, name):
    # sample and match draws from the target alone: the control arm of the same seed is the answer
    probe, words = ("small", 6) if "ngram" in name else ("mid", 32)
    rows = prompts(24, words)
    for decoding in (SAMPLING, FILTERED):
        spoken, plain = (
            [a["tokens"] for a in run(name, probe, requests(rows, decoding, speculate=s))]
            for s in (True, False)
        )
        # but for float32 sums in another order, which move a token once in many thousands
        assert sum(a != b for a, b in zip(spoken, plain, strict=True)) <= 1


def test_one_prompt_with_many_seeds_gives_many_answers(run):
    row = prompts(1, 32) * 40
    for name in ("xllamacpp", "xllamacpp:match"):
        for speculate in (True, False):
            answers = run(name, "mid", requests(row, speculate=speculate))
            assert len({tuple(a["tokens"]) for a in answers}) > 36


@pytest.mark.parametrize("name", ["xllamacpp", "xllamacpp:match"])
def test_greedy_is_the_argmax_away_from_near_ties(run, name, probe_cache):
    probe, rows = load_probe("mid", probe_cache), prompts(12, 32)
    for speculate in (True, False):
        answers = run(name, "mid", requests(rows, GREEDY, speculate=speculate))
        tokens = np.array([a["tokens"] for a in answers])
        logits = probe.target.logits(np.concatenate([np.array(rows), tokens], axis=1))
        laws = law_at(logits[:, len(rows[0]) - 1 : -1], GREEDY, noise=probe.tolerance)
        clear = ~laws.ambiguous
        assert clear.mean() > 0.9
        assert (tokens == laws.probs.argmax(-1))[clear].all()


def test_decodings_do_not_leak_into_each_other(run):
    row = prompts(1, 32)[0]
    mixed = tuple(
        Request(row, NEW, d, None if d.greedy else i, speculate)
        for i in range(6)
        for d in (GREEDY, SAMPLING, FILTERED)
        for speculate in (True, False)
    )
    together = run("xllamacpp", "mid", mixed)
    for request, answer in zip(mixed, together, strict=True):
        assert run("xllamacpp", "mid", (request,)) == (answer,)


def test_an_empty_prompt_is_refused(run):
    outcome = run("xllamacpp", "mid", (Request((), 4, SAMPLING, 1),), raw=True)
    assert isinstance(outcome.error, NotSupportedError)


def test_what_does_not_fit_is_an_error_and_not_a_short_answer(run):
    outcome = run("xllamacpp", "mid", requests(prompts(1, 32, 500), new=40), raw=True)
    assert outcome.error is not None
    assert not isinstance(outcome.error, NotSupportedError)


@pytest.mark.parametrize("name", ["xllamacpp", "xllamacpp:match"])
def test_exact_at_the_size_that_smoke_rules_out(judge, name):
    for case in judge(name, SAMPLING, FILTERED, GREEDY):
        assert str(case.verdict.verdict) == "EXACT", case


def test_the_engines_own_lossy_knob_is_found(judge):
    (case,) = judge("xllamacpp:synthetic", SAMPLING)
    assert str(case.verdict.verdict) == "NOT EXACT"
    assert sum(arm.requests for arm in case.arms) < sum(arm.planned for arm in case.arms)
