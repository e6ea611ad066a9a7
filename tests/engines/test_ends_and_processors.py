"""What else of a decoding the engines claim: penalties, biases, masks, and what ends an output.

Whether they keep to it is for the suites ``ends`` and ``processors`` to say; those that run here
are of the smallest profile, and the verdicts are those of the findings (docs/findings).
"""

from __future__ import annotations

import json

import pytest

from conformance.adapters import xllamacpp as llama
from conformance.contract import Request
from conformance.decoding import PROCESSORS, Decoding
from conformance.errors import NotSupportedError, UnknownEngineError
from conformance.resolve import construct
from conformance.suite import SUITES

pytestmark = pytest.mark.engines

PENALTIES = {"repetition_penalty", "presence_penalty", "frequency_penalty"}
MASKS = {"logit_bias", "banned", "allowed"}
OPENVINO = {"stop", "min_new_tokens", "stop_strings", "grammar"}
CLAIMS = {
    "xllamacpp": MASKS | PENALTIES | {"stop", "grammar"},
    "openvino-genai": PENALTIES | OPENVINO,
    "openvino-genai:prompt-lookup": PENALTIES | OPENVINO,
    "mlx-lm": MASKS | PENALTIES | {"stop"},
    "flashspec": {"stop"},
    "flashspec:batch": {"stop"},
    "vllm": set(PROCESSORS),
    "vllm:draft-model": set(PROCESSORS),
}
STOP = Decoding(greedy=True, stop=(5, 17, 23))
SAMPLED_STOP = Decoding(stop=(5, 17, 23))
REPETITION = Decoding(repetition_penalty=2.0)
GREEDY_REPETITION = Decoding(greedy=True, repetition_penalty=2.0)
OCCURRENCE = Decoding(presence_penalty=1.5, frequency_penalty=0.75)
BIAS = Decoding(logit_bias=((2, 3.0), (7, 3.0), (11, -3.0), (19, 3.0)))
BANNED = Decoding(banned=(0, 3, 6, 9, 12, 15, 18, 21, 24, 27))
LEAST = Decoding(greedy=True, stop=(1, 5, 9, 13, 17, 21, 25, 27), min_new_tokens=2)


@pytest.mark.parametrize("name", list(CLAIMS))
def test_what_is_claimed(name):
    capabilities = construct(name).capabilities
    assert set(capabilities.processors) == CLAIMS[name]
    assert capabilities.dialect.repetition_over == "all"
    over = "all" if name in ("xllamacpp", "mlx-lm") else "output"
    assert capabilities.dialect.presence_over == over
    assert capabilities.dialect.penalty_window is None


# --- llama.cpp ------------------------------------------------------------------------------------


def asked(decoding, **options):
    engine = llama.create("", **options)
    engine._probe = type("Probe", (), {"vocab_size": 6})
    return json.loads(engine._ask(Request((1, 2), 3, decoding, 4)))


def test_llama_is_asked_for_all_of_it_and_for_nothing_else():
    plain = asked(Decoding())
    assert plain["samplers"][0] == "penalties"
    neutral = [plain[f"{name}_penalty"] for name in ("repeat", "presence", "frequency")]
    assert neutral == [1.0, 0.0, 0.0]
    assert plain["logit_bias"] == []
    decoding = Decoding(
        repetition_penalty=1.5,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        logit_bias=((1, 2.5), (3, 1.0)),
        banned=(3,),
        allowed=(0, 1, 3, 4),
    )
    body = asked(decoding, window="7")
    found = [body[f"{name}_penalty"] for name in ("repeat", "presence", "frequency")]
    assert found == [1.5, 0.25, -0.5]
    assert body["repeat_last_n"] == 7
    assert dict(map(tuple, body["logit_bias"])) == {1: 2.5, 2: False, 3: False, 5: False}


def test_the_window_of_llama_is_declared():
    assert llama.create("", window="8").capabilities.dialect.penalty_window == 8
    for window in ("-1", "all", "1.5", "٣"):
        with pytest.raises(UnknownEngineError, match="window"):
            llama.create("", window=window)


# --- the engines themselves -----------------------------------------------------------------------


@pytest.fixture
def ask(both_arms):
    """``ask("vllm", decoding)``: 12 tokens after each of eight prompts."""
    return lambda name, decoding, new=12: both_arms(name, decoding, prompts=8, tokens=new)


def answered(outcome):
    assert outcome.error is None, f"{outcome.error}\n{outcome.detail}"
    return [a["tokens"] for a in outcome.completions]


@pytest.mark.parametrize("name", ["xllamacpp", "openvino-genai", "mlx-lm", "flashspec"])
def test_an_output_ends_with_its_stop_token_and_is_what_it_was_until_then(ask, name):
    ended = 0
    wanted, outcome = ask(name, SAMPLED_STOP)
    whole = answered(ask(name, Decoding())[1])
    for request, tokens, free in zip(wanted, answered(outcome), whole, strict=True):
        assert len(tokens) == 12
        at = next((i for i, t in enumerate(tokens) if t in SAMPLED_STOP.stop), 12)
        if not request.speculate:  # a seed decides
            assert tokens[: at + 1] == free[: at + 1]
        if at < 12:  # what has ended goes on with its last token
            assert set(tokens[at:]) == {tokens[at]}
            ended += 1
    assert 4 < ended < 16


@pytest.mark.parametrize("name", ["xllamacpp", "mlx-lm"])
def test_masks_hold(ask, name):
    for tokens in answered(ask(name, BANNED)[1]):
        assert not set(tokens) & set(BANNED.banned)


@pytest.mark.parametrize(
    ("name", "decoding", "said"),
    [
        ("xllamacpp", Decoding(stop=tuple(range(7))), "at most 6 stop tokens"),
        ("openvino-genai", BIAS, "openvino-genai has no logit_bias"),
        ("flashspec", REPETITION, "temperature alone"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(ask, name, decoding, said):
    _, outcome = ask(name, decoding)
    assert isinstance(outcome.error, NotSupportedError)
    assert said in str(outcome.error)


@pytest.mark.long
def test_vllm_refuses_a_bias_in_its_own_words(ask):
    _, outcome = ask("vllm,repair=yes", BIAS)
    assert isinstance(outcome.error, NotSupportedError)
    assert "logit_bias sampling parameters are not yet supported with spec" in str(outcome.error)


def verdicts(judge, name, *decodings, **settings):
    return [str(case.verdict.verdict) for case in judge(name, *decodings, **settings)]


@pytest.mark.long
@pytest.mark.parametrize("name", ["xllamacpp", "xllamacpp:match"])
def test_llama_is_exact(judge, name):
    claimed = construct(name).capabilities
    wanted = [d for s in ("ends", "processors") for d in SUITES[s] if not claimed.refuses(d)]
    assert len(wanted) > 8
    assert set(verdicts(judge, name, *wanted)) == {"EXACT"}


@pytest.mark.long
def test_a_short_window_of_llama_is_exact(judge):
    assert verdicts(judge, "xllamacpp,window=8", REPETITION, OCCURRENCE) == ["EXACT"] * 2


@pytest.mark.long
@pytest.mark.parametrize("name", ["flashspec", "flashspec:batch", "flashspec:prompt-lookup"])
def test_flashspec_is_exact_to_its_end(judge, name):
    assert verdicts(judge, name, STOP, SAMPLED_STOP) == ["EXACT"] * 2


@pytest.mark.long
def test_openvino_loses_a_least_length(judge):
    """See docs/findings/openvino-genai-processors.md, and for what sampling does, the other one."""
    found = verdicts(judge, "openvino-genai", STOP, GREEDY_REPETITION, LEAST)
    assert found == ["EXACT", "EXACT", "NOT EXACT"]


@pytest.mark.long
def test_openvino_penalises_by_the_sign(judge):
    """See docs/findings/openvino-genai-processors.md."""
    (case,) = judge("openvino-genai:prompt-lookup", OCCURRENCE)
    assert str(case.verdict.verdict) == "INCONCLUSIVE"
    assert "Law mismatch" in case.verdict.why


@pytest.mark.long
def test_mlx_does_not_penalise_the_prompt(judge):
    """See docs/findings/mlx-lm-prompt-penalties.md."""
    found = verdicts(judge, "mlx-lm", STOP, SAMPLED_STOP, BIAS, BANNED, GREEDY_REPETITION)
    assert found == ["EXACT"] * 4 + ["NOT EXACT"]


@pytest.mark.long
def test_vllm_holds_a_bonus_token_to_a_length_that_is_reached(judge):
    """See docs/findings/vllm-min-tokens-bonus.md. It is rare: many ends and a good draft help."""
    late = Decoding(greedy=True, stop=tuple(range(1, 28, 2)), min_new_tokens=4)
    found = verdicts(judge, "vllm:draft-model", GREEDY_REPETITION, late, probe="near")
    assert found == ["EXACT", "NOT EXACT"]
