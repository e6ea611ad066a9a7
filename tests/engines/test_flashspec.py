"""The flashspec adapter: what it asks of the library, and what it reports."""

from __future__ import annotations

import sys
from importlib import metadata

import numpy as np
import pytest
from light import loaded_by

from conformance.adapters import flashspec as adapter
from conformance.contract import Engine, Request
from conformance.decoding import Decoding
from conformance.errors import EngineLoadError, NotSupportedError, UnknownEngineError
from conformance.law import law_at
from conformance.probes import load_probe
from conformance.verdict import Verdict
from conformance.wire import encode_completions

pytestmark = pytest.mark.engines

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
library = pytest.importorskip("flashspec", reason="flashspec is not installed")

GREEDY = Decoding(greedy=True)
SAMPLING = Decoding()
HOT = Decoding(temperature=1.5)
PROMPT, NEW = 16, 8


class Loaded:
    def __init__(self, method, cache, name="near"):
        self.method, self.probe = method, load_probe(name, cache)
        self.engine = adapter.create(method)
        self.engine.load(self.probe.pair)

    def prompts(self, n, seed=0):
        rows = np.random.default_rng(seed).integers(0, self.probe.recipe.vocab_size, (n, PROMPT))
        rows[:, PROMPT // 2 :] = rows[:, : PROMPT // 2]  # something to look up
        return [tuple(row) for row in rows.tolist()]

    def requests(self, decoding, n=4, new=NEW, speculate=True, seed=100):
        return [
            Request(p, new, decoding, None if decoding.greedy else seed + i, speculate)
            for i, p in enumerate(self.prompts(n))
        ]

    def run(self, *args, **kwargs):
        return self.engine.generate(self.requests(*args, **kwargs))


@pytest.fixture(scope="module", params=list(adapter.METHODS))
def loaded(request, probe_cache):
    made = Loaded(request.param, probe_cache)
    yield made
    made.engine.close()


def tokens(completions):
    return [c.tokens for c in completions]


# --- before anything is loaded --------------------------------------------------------------------


def test_the_module_is_light():
    statement = (
        "from conformance.adapters.flashspec import create, METHODS\n"
        "for m in METHODS: assert create(m).card.version"
    )
    assert loaded_by(statement, "torch", "flashspec", "numpy") == []


@pytest.mark.parametrize("method", list(adapter.METHODS))
def test_the_card(method):
    engine = adapter.create(method)
    assert isinstance(engine, Engine)
    assert engine.card.version == metadata.version("flashspec") == library.__version__
    expected = "flashspec" if method == "draft-model" else f"flashspec:{method}"
    assert engine.card.name == expected
    assert ("lossy" in engine.card.rule) == (method == "typical")
    assert engine.capabilities.control


def test_no_method_is_the_draft_model():
    assert adapter.create("").card == adapter.create("draft-model").card


def test_an_unknown_method_lists_the_known_ones():
    with pytest.raises(UnknownEngineError, match=r"'mtp'.*prompt-lookup"):
        adapter.create("mtp")


@pytest.mark.parametrize("missing", ["torch", "transformers", "flashspec"])
def test_a_missing_library_says_what_to_install(missing, monkeypatch, probe_cache):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(EngineLoadError, match=r"pip install 'specdec-conformance\[flashspec\]'"):
        adapter.create("").load(load_probe("mid", probe_cache).pair)


def test_only_what_drafts_with_a_model_needs_one(probe_cache):
    pair = load_probe("mid", probe_cache).pair
    bare = type(pair)(pair.name, pair.target, None, 32, 512)
    with pytest.raises(EngineLoadError, match="draft"):
        adapter.create("composite").load(bare)
    adapter.create("prompt-lookup").load(bare)


def test_a_damaged_model_or_an_unknown_number_type_is_a_load_error(tmp_path, probe_cache):
    pair = load_probe("mid", probe_cache).pair
    (tmp_path / "config.json").write_text((pair.target / "config.json").read_text())
    with pytest.raises(EngineLoadError, match="cannot load"):
        adapter.create("").load(type(pair)(pair.name, tmp_path, pair.draft, 32, 512))
    with pytest.raises(EngineLoadError, match="float99"):
        adapter.create("", dtype="float99").load(pair)


def test_generate_needs_load():
    with pytest.raises(EngineLoadError, match="before load"):
        adapter.create("").generate([Request((1,), 1, GREEDY)])


# --- both arms of every method --------------------------------------------------------------------


@pytest.mark.parametrize("decoding", [GREEDY, SAMPLING, HOT], ids=str)
def test_tokens_and_rounds_add_up(loaded, decoding):
    for new in (1, 2, NEW):
        for speculate in (True, False):
            requests = loaded.requests(decoding, new=new, speculate=speculate)
            answers = loaded.engine.generate(requests)
            encode_completions(answers, requests)  # the contract's own check
            for c in answers:
                assert all(0 <= t < 32 for t in c.tokens)
                assert c.rounds is not None
                assert all(0 <= accepted <= drafted <= 6 for drafted, accepted in c.rounds)
                if not speculate:
                    assert c.rounds == ((0, 0),) * new


def test_drafts_are_both_accepted_and_rejected(loaded, probe_cache):
    if loaded.method == "prompt-lookup":
        # lookup is hardly ever right on a random model of 32 words; with two it has a chance
        loaded = Loaded(loaded.method, probe_cache, "worked-example")
    rounds = [r for c in loaded.run(SAMPLING, n=8, new=24) for r in c.rounds]
    assert max(drafted for drafted, _ in rounds) >= 5
    assert any(accepted >= 2 for _, accepted in rounds)
    assert any(accepted < drafted for drafted, accepted in rounds)


def test_greedy_arms_agree_away_from_near_ties(loaded):
    completions, control = loaded.run(GREEDY), loaded.run(GREEDY, speculate=False)
    compared = 0
    for prompt, a, b in zip(loaded.prompts(4), completions, control, strict=True):
        row = np.array([prompt + tuple(b.tokens[:-1])])
        logits = loaded.probe.target.logits(row)[0, PROMPT - 1 :]
        laws = law_at(logits, GREEDY, noise=loaded.probe.tolerance)
        clear = np.cumprod(~laws.ambiguous).astype(bool)
        compared += clear.sum()
        assert np.array_equal(np.array(a.tokens)[clear], np.array(b.tokens)[clear])
        assert np.array_equal(np.array(b.tokens)[clear], laws.probs.argmax(-1)[clear])
    assert compared > 25


@pytest.mark.parametrize("speculate", [True, False])
def test_a_seed_decides_the_answer(loaded, speculate):
    first = loaded.run(SAMPLING, speculate=speculate)
    if loaded.method != "bandit" or not speculate:  # a bandit chooses by the clock
        assert first == loaded.run(SAMPLING, speculate=speculate)
    other = loaded.run(SAMPLING, speculate=speculate, seed=900)
    assert sum(a == b for a, b in zip(tokens(first), tokens(other), strict=True)) < 2


def test_one_prompt_with_many_seeds_gives_many_answers(loaded):
    prompt = loaded.prompts(1)[0]
    for speculate in (True, False):
        batch = [Request(prompt, NEW, SAMPLING, seed, speculate) for seed in range(20)]
        assert len(set(tokens(loaded.engine.generate(batch)))) > 16


def test_decodings_do_not_leak_into_each_other(loaded):
    requests = [
        Request(p, NEW, d, None if d.greedy else 7 * i, speculate)
        for i, p in enumerate(loaded.prompts(2))
        for d in (GREEDY, HOT, SAMPLING)
        for speculate in (True, False)
    ]
    together = loaded.engine.generate(requests)
    for r, answer in zip(requests, together, strict=True):
        if not r.speculate or (loaded.method not in ("batch", "bandit")):
            assert loaded.engine.generate([r]) == [answer]


def test_nothing_is_logged_and_levels_are_restored(loaded, capfd):
    import logging

    log = logging.getLogger("flashspec")
    before = log.level
    capfd.readouterr()
    loaded.run(SAMPLING, n=2)
    assert "flashspec" not in capfd.readouterr().err
    assert log.level == before


@pytest.mark.parametrize(
    "text", ["top_k=5", "top_p=0.8", "min_p=0.1", "repetition_penalty=2", "logit_bias=3:1"]
)
def test_filters_are_neither_claimed_nor_taken(loaded, text):
    decoding = Decoding.parse(text)
    assert loaded.engine.capabilities.refuses(decoding) is not None
    for speculate in (True, False):
        with pytest.raises(NotSupportedError, match="temperature alone"):
            loaded.engine.generate([Request((1, 2), 2, decoding, 1, speculate)])


def test_an_output_that_ends_keeps_its_rounds(loaded):
    decoding, ended = Decoding(stop=(5, 17, 23)), 0
    wanted = loaded.requests(decoding, n=12, new=16)
    answers = loaded.engine.generate(wanted)
    encode_completions(answers, wanted)
    for answer in answers:
        assert answer.rounds
        assert not set(answer.tokens[:-1]) & set(decoding.stop)
        assert len(answer.tokens) == 16 or answer.tokens[-1] in decoding.stop
        ended += len(answer.tokens) < 16
    assert 2 < ended < 12


def test_an_empty_prompt_is_refused(loaded):
    with pytest.raises(NotSupportedError, match="prompt"):
        loaded.engine.generate([Request((), 4, SAMPLING, 1)])


# --- the library's own paths are really taken -----------------------------------------------------


@pytest.mark.parametrize("method", list(adapter.METHODS))
def test_the_path(method, probe_cache, monkeypatch):
    made = Loaded(method, probe_cache)
    taken = []
    for loop in ("_generate_single", "_generate_generic"):
        original = getattr(library.SpeculativeEngine, loop)

        def spy(self, *args, _loop=loop, _original=original):
            taken.append((_loop, self.drafter_strategy, self._config.sampling.seed))
            return _original(self, *args)

        monkeypatch.setattr(library.SpeculativeEngine, loop, spy)
    made.run(SAMPLING, n=3, speculate=False)
    assert taken == [("_generate_single", "bandit", 100 + i) for i in range(3)]
    taken.clear()
    made.run(SAMPLING, n=3)
    strategy = {"composite": "composite-g6-f2", "bandit": "arms"}.get(method, "bandit")
    loop = "_generate_generic" if method in ("batch", "typical") else "_generate_single"
    calls = 1 if method == "batch" else 3
    assert taken == [(loop, strategy, 100 + i) for i in range(calls)]


def test_a_composite_and_a_bandit_draft_in_more_than_one_way(probe_cache):
    for method, lengths in (("composite", {2, 6}), ("bandit", {2, 5})):
        rounds = [
            r for c in Loaded(method, probe_cache).run(SAMPLING, n=8, new=16) for r in c.rounds
        ]
        assert lengths <= {drafted for drafted, _ in rounds}


def test_drafts_are_drawn_at_the_requests_temperature(probe_cache):
    made = Loaded("draft-model", probe_cache)
    for decoding, expected in ((HOT, 1.5), (GREEDY, 0.0), (SAMPLING, 1.0)):
        made.run(decoding, n=1)
        assert made.engine._drafters[0]._temperature == expected


# --- rounds of many rows, which the library does not tell -----------------------------------------


@pytest.mark.parametrize("name", ["near", "worked-example"])
def test_rounds_read_off_the_tokens_are_the_librarys(name, probe_cache, monkeypatch):
    made = Loaded("batch", probe_cache, name)
    loop = sys.modules["flashspec.engine.speculative"]
    judge, told = loop.rejection_sample, []

    def spy(*, input_ids, gamma, **kwargs):
        answer = judge(input_ids=input_ids, gamma=gamma, **kwargs)
        left = PROMPT + NEW - input_ids.shape[1]  # of a block that is cut off nobody sees more
        told.extend((gamma, min(n, left)) for n in answer[1].tolist())
        return answer

    monkeypatch.setattr(loop, "rejection_sample", spy)
    answers = made.run(SAMPLING, n=16)
    assert sorted(r for c in answers for r in c.rounds) == sorted(told)
    assert len(told) > 30


def test_rounds_that_cannot_be_told_are_not_told():
    steps = adapter._Steps()

    def seen(*blocks):
        steps.seen = [(torch.tensor(c), torch.tensor(d)) for c, d in blocks]
        return steps.rounds([(1, 2), (3, 4)], [[5, 6, 7], [8, 9, 5]])

    both = ([[1, 2], [3, 4]], [[5, 6], [8, 1]])  # the first row emits 3 tokens, the second 2
    assert seen(both, ([[3, 4, 8, 9]], [[0, 0]])) == [[(2, 2)], [(2, 1), (2, 0)]]
    assert seen(both) is None  # the second row is not finished
    assert seen(both, ([[3, 4, 8]], [[0, 0]])) is None  # no row is that long
    assert seen(both, ([[3, 4, 8, 0]], [[0, 0]])) is None  # nobody's context


# --- why no filter is claimed ---------------------------------------------------------------------


def test_the_library_swallows_filters(probe_cache):
    """See docs/findings/flashspec-swallowed-filters.md; when this fails, filters can be claimed."""
    sampling = library.SamplingConfig(top_k=1, min_p=1.0, repetition_penalty=2.0, logit_bias={3: 5})
    for name in ("top_k", "min_p", "repetition_penalty", "logit_bias"):
        assert not hasattr(sampling, name)
    engine = Loaded("draft-model", probe_cache).engine
    outputs = []
    for top_p in (1.0, 0.01):
        config = library.FlashSpecConfig(
            device="cpu",
            compile=False,
            drafter_strategy="bandit",
            bandit=library.BanditConfig(n_arms=1),
            sampling=library.SamplingConfig(top_p=top_p, seed=5),
        )
        made = library.SpeculativeEngine(config, engine._drafters, engine._target)
        outputs.append(made.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=16).output_ids)
    assert torch.equal(*outputs)


# --- judged ---------------------------------------------------------------------------------------


def test_many_rows_are_exact(judge):
    results = judge("flashspec:batch", SAMPLING, GREEDY, probe="mid")
    assert [r.verdict.verdict for r in results] == [Verdict.EXACT] * 2


@pytest.mark.long
@pytest.mark.parametrize("method", [m for m in adapter.METHODS if m not in ("batch", "typical")])
def test_every_other_method_is_exact(judge, method):
    results = judge(f"flashspec:{method}", HOT, GREEDY, probe="mid")
    assert [r.verdict.verdict for r in results] == [Verdict.EXACT] * 2


@pytest.mark.long
def test_typical_acceptance_is_seen_to_be_lossy(judge):
    (result,) = judge("flashspec:typical", SAMPLING, probe="mid")
    assert result.verdict.verdict is Verdict.NOT_EXACT
