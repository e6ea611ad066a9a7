"""What engines return of their tokens, and the grammars they keep to: asked rightly, read rightly.

Whether they are right is for the suites ``logprobs`` and ``structured`` to say; what is known of
them is held to here at a few requests.
"""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from conformance import returned
from conformance.adapters import (
    openai_told,
    openvino_texts,
    transformers_extra,
    vllm_extra,
    xllamacpp_extra,
)
from conformance.adapters import xllamacpp as llama
from conformance.adapters.openai_styles import STYLES
from conformance.contract import Completion, Request
from conformance.decoding import Decoding, Dialect
from conformance.errors import NotSupportedError, UnknownEngineError
from conformance.grammar import DEAD, automaton
from conformance.oracle import Oracle
from conformance.probes import load_probe
from conformance.resolve import construct
from conformance.suite import SUITES

pytestmark = pytest.mark.engines

TURNS = SUITES["structured"][0]
SENTENCE = SUITES["structured"][3]
FILTERED = Decoding(temperature=0.7, top_p=0.8, logprobs=True)
KINDS = {
    "transformers": "processed",
    "transformers,logprobs=raw": "raw",
    "xllamacpp": "raw",
    "xllamacpp,logprobs=processed": "processed",
    "openvino-genai": "raw",
    "vllm": "raw",
    "vllm,logprobs=processed": "processed",
    "mlx-lm": "none",
    "flashspec": "none",
}
GRAMMARS = {"transformers", "xllamacpp", "openvino-genai", "vllm"}


@pytest.mark.parametrize("name", list(KINDS))
def test_what_is_claimed(name):
    claims = construct(name).capabilities
    assert claims.logprobs == KINDS[name]
    assert ("grammar" in claims.processors) == (name.partition(",")[0] in GRAMMARS)
    assert claims.dialect.grammar == ("resample" if name.startswith("xllamacpp") else "mask")
    later = [claims.typical_p, claims.epsilon_cutoff, claims.eta_cutoff]
    told = {"transformers": [True] * 3, "xllamacpp": [True, False, False]}
    assert later == told.get(name.partition(",")[0], [False] * 3)


@pytest.mark.parametrize("name", ["transformers", "xllamacpp", "vllm"])
def test_there_are_two_kinds(name):
    with pytest.raises(UnknownEngineError, match="logprobs"):
        construct(f"{name},logprobs=both")


# --- asked and read -------------------------------------------------------------------------------


def test_llama_is_asked_for_them_and_for_a_grammar():
    engine = llama.create("", logprobs="processed")
    body = json.loads(engine._ask(Request((1, 2), 3, FILTERED, 4)))
    assert (body["logprobs"], body["post_sampling_probs"]) == (1, True)
    plain = json.loads(engine._ask(Request((1, 2), 3, Decoding(typical_p=0.5), 4)))
    assert {"logprobs", "grammar"}.isdisjoint(plain)
    assert plain["typical_p"] == 0.5
    assert plain["samplers"] == ["penalties", "top_k", "typ_p", "top_p", "min_p", "temperature"]
    told = json.loads(engine._ask(Request((1, 2), 3, Decoding(grammar="((1|12)+ 2?)*"), 4)))
    assert told["grammar"] == 'root ::= ((("w1"|"w12"))+ ("w2")?)*'


def test_llama_says_nothing_of_a_token_or_a_probability():
    told = xllamacpp_extra.told
    assert told({"logprobs": {"content": [{"logprob": -1.5}]}}, 1) == [-1.5]
    assert told({"logprobs": {"content": [{"prob": 0.5}]}}, 1) == [math.log(0.5)]
    assert told({"logprobs": {"content": [{"prob": 0.0}]}}, 1) == [-math.inf]
    for nothing in ({"logprobs": None}, {}, {"logprobs": {"content": []}}):
        assert np.isnan(told(nothing, 2)).all()
    certain = Request((1,), 2, Decoding(greedy=True, logprobs=True))
    with pytest.raises(NotSupportedError, match="probability 1"):
        xllamacpp_extra.refuse(certain, "processed")
    xllamacpp_extra.refuse(certain, "raw")


def test_vllm_is_asked_for_the_token_s_own():
    made = SimpleNamespace(
        sampling_params=SimpleNamespace(StructuredOutputsParams=lambda **said: said)
    )
    asked = vllm_extra.asked(made, Request((1,), 2, Decoding(grammar="(1|2)*", logprobs=True)), 4)
    assert asked == {
        "logprobs": 0,
        "structured_outputs": {"regex": "((w1|w2))*"},
        "detokenize": False,
    }
    assert vllm_extra.asked(made, Request((1,), 2, Decoding()), 4) == {"detokenize": False}
    with pytest.raises(NotSupportedError, match="end of a sequence"):
        vllm_extra.asked(made, Request((1,), 2, Decoding(grammar="1 2", stop=(3,))), 4)


def test_vllm_answers_with_a_table_a_token():
    def output(ids, *tables):
        given = [{t: SimpleNamespace(logprob=x) for t, x in table.items()} for table in tables]
        return SimpleNamespace(token_ids=ids, logprobs=given)

    assert vllm_extra.told(SimpleNamespace(token_ids=[1], logprobs=None)) is None
    assert vllm_extra.told(output([3, 1], {3: -0.5, 4: -1}, {1: -2.0})) == [-0.5, -2.0]
    short = vllm_extra.told(output([3, 1, 2], {3: -0.5}, {7: -2.0}))
    assert short[0] == -0.5
    assert np.isnan(short[1:]).all()


def test_openvino_is_asked_in_words_with_a_blank_behind():
    library = SimpleNamespace(StructuredOutputConfig=lambda **said: said)
    config = SimpleNamespace()
    openvino_texts.say(library, config, Decoding(grammar="((1|12) 2?)*"), 32)
    assert vars(config) == {"structured_output_config": {"regex": "((w1 |w12 )(w2 )?)*"}}
    config = SimpleNamespace()
    openvino_texts.say(library, config, Decoding(stop_strings=("w7", "w4 w1")), 32)
    assert vars(config) == {
        "stop_strings": {"w7", "w4 w1"},
        "include_stop_str_in_output": True,
    }
    openvino_texts.say(library, untouched := SimpleNamespace(), Decoding(), 32)
    assert vars(untouched) == {}


@pytest.mark.parametrize(
    ("came", "held", "made"),
    [
        ([1, 4, 2], 0, [1, 4, 2]),
        ([1, 0, 2, 0], 0, [1, 2]),
        ([0, 0, 3, 1, 4], 2, [1, 1, 3, 1, 2]),
        ([0, 2, 4, 1], 2, None),  # handed out already, and an end found behind it
        ([0, 3, 3], 2, [1, 4, 1]),
        ([0, 0, 0, 4], 3, None),
        ([0, 0, 1, 4], 2, [1, 1, 1, 2]),
        ([5], 2, [5]),
    ],
)
def test_openvino_holds_tokens_back_for_stop_strings(came, held, made):
    told = openvino_texts.blocks(range(sum(came)), came, held)
    assert (told and [len(block) for block in told]) == made
    assert told is None or [t for block in told for t in block] == list(range(sum(came)))


def test_transformers_is_told_what_may_come():
    allowed = transformers_extra.grammar(SENTENCE, 2, 32)["prefix_allowed_tokens_fn"]
    made = automaton(SENTENCE.grammar, SENTENCE.stop, 32)
    for said in ([], [4], [4, 2], [4, 2, 29], [4, 2, 4, 2]):
        assert allowed(0, np.array([9, 9, *said])) == made.allowed(made.state_of(said))
    assert allowed(0, np.array([9, 9, 31])) == list(range(32))  # nothing helps any more
    assert transformers_extra.grammar(Decoding(), 2, 32) == {}


# --- the engines themselves -----------------------------------------------------------------------


@pytest.fixture
def ask(both_arms):
    """``ask("vllm", decoding)``: 8 tokens after each of four prompts, which are to come."""

    def run(name, decoding, new=8):
        wanted, outcome = both_arms(name, decoding, prompts=4, tokens=new)
        assert outcome.error is None, f"{outcome.error}\n{outcome.detail}"
        return wanted, outcome.completions

    return run


@pytest.mark.parametrize(
    "name",
    [
        "transformers",
        "xllamacpp",
        "openvino-genai:prompt-lookup",
        pytest.param("vllm:draft-model,repair=yes", marks=pytest.mark.long),
    ],
)
def test_numbers_are_the_law_s_or_missing(ask, probe_cache, name):
    """Except where it is known that they are not there: llama.cpp has none for tokens that it
    speculated.
    """
    wanted, said = ask(name, FILTERED)
    claims = construct(name).capabilities
    plain = Decoding() if claims.logprobs == "raw" else FILTERED
    oracle = Oracle(load_probe("mid", probe_cache), plain, Dialect(order=claims.dialect.order))
    missing = 0
    for request, answer in zip(wanted, said, strict=True):
        tokens, told = answer["tokens"], returned.numbers(answer["logprobs"])
        for t, (token, number) in enumerate(zip(tokens, told, strict=True)):
            law = oracle.target_laws(np.array([request.prompt]), np.array([tokens[:t]], np.int64))
            if math.isnan(number):
                assert request.speculate
                missing += 1
            elif not law.ambiguous[0]:
                assert number == pytest.approx(math.log(law.probs[0, token]), abs=2e-3)
    assert (missing > 0) == (name == "xllamacpp")


@pytest.mark.parametrize(
    "name",
    [
        "transformers",
        "xllamacpp",
        "openvino-genai:prompt-lookup",
        pytest.param("vllm:draft-model,repair=yes", marks=pytest.mark.long),
    ],
)
def test_no_token_that_the_grammar_forbids(ask, name):
    made = automaton(TURNS.grammar, (), 32)
    for answer in ask(name, TURNS, 12)[1]:
        assert made.state_of(answer["tokens"]) != DEAD


# --- over HTTP ------------------------------------------------------------------------------------


def test_servers_are_asked_for_them():
    told = Request((1,), 2, FILTERED)
    body = {"response_fields": ["tokens"]}
    asked = openai_told.asked(body, told, STYLES["llama"], "raw")
    assert (asked["n_probs"], asked["post_sampling_probs"]) == (1, False)
    assert asked["response_fields"] == ["tokens", "completion_probabilities"]
    after = openai_told.asked(body, told, STYLES["llama"], "processed")
    assert after["post_sampling_probs"] is True
    assert openai_told.asked({}, told, STYLES["vllm"], "raw") == {"logprobs": 0}
    assert openai_told.asked(body, Request((1,), 2, Decoding()), STYLES["llama"], "raw") == body
    with pytest.raises(NotSupportedError, match="not known what log-probabilities"):
        openai_told.asked({}, told, STYLES["sglang"], "raw")
    kinds = {name: openai_told.kind(style, "raw") for name, style in STYLES.items()}
    assert {name for name, kind in kinds.items() if kind == "raw"} == {"vllm", "llama"}
    assert set(kinds.values()) == {"raw", "none"}
    with pytest.raises(UnknownEngineError, match="option logprobs"):
        construct("openai,logprobs=both")


@pytest.mark.parametrize(
    ("style", "answer", "expected"),
    [
        ("llama", {"completion_probabilities": [{"logprob": -1.0}, {"prob": 0.5}]}, [-1, -0.693]),
        ("llama", {"completion_probabilities": [{"logprob": -1.0}]}, [-1, None]),
        ("llama", {"completion_probabilities": [{"logprob": "-1"}, 7]}, [None, None]),
        ("llama", {"completion_probabilities": [{"logprob": 0}] * 3}, [None, None]),
        ("llama", {}, [None, None]),
        ("vllm", {"choices": [{"logprobs": {"token_logprobs": [-1, -2.5]}}]}, [-1, -2.5]),
        ("vllm", {"choices": [{"logprobs": {"token_logprobs": [None, True]}}]}, [None, None]),
        ("vllm", {"choices": [{"logprobs": None}]}, [None, None]),
        ("vllm", {"choices": "none"}, [None, None]),
    ],
)
def test_what_servers_say_is_read_and_what_they_do_not_is_missing(style, answer, expected):
    plain = Completion((4, 5), counts=(3, 1))
    said = openai_told.told(plain, answer, Request((1,), 2, FILTERED), STYLES[style])
    assert (said.tokens, said.counts) == ((4, 5), (3, 1))
    assert [None if math.isnan(x) else round(x, 3) for x in said.logprobs] == expected
    assert openai_told.told(plain, answer, Request((1,), 2, Decoding()), STYLES[style]) is plain
