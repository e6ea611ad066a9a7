"""The adapter of OpenAI-compatible servers: penalties, biases, masks and ends in four protocols.

The servers are imitations; a real one is judged in test_openai_llama.py.
"""

from __future__ import annotations

import dataclasses

import http_servers
import pytest
from http_servers import evidence, requests

from conformance.adapters import openai_processors as processors
from conformance.adapters.gguf_probe import EVERY
from conformance.decoding import Decoding
from conformance.errors import BadAnswerError, NotSupportedError

serve, load = http_servers.imitate, http_servers.load
pytestmark = pytest.mark.skipif(not http_servers.available(), reason="no HTTP library is installed")
OWNERS = {"vllm": "vllm", "llama": "llamacpp", "sglang": "sglang", "openai": "somebody"}
ALL = Decoding(
    logit_bias=((3, 1.5), (30, -2.0)),
    repetition_penalty=1.5,
    presence_penalty=0.25,
    frequency_penalty=-0.5,
    banned=(2,),
    allowed=(1, 2, 3, 4, 5, 30),
    stop=(5, 17),
    min_new_tokens=2,
)
NOTHING = {"logit_bias": (), "banned": (), "allowed": (), "stop": (), "min_new_tokens": 0}
NOTHING |= dict.fromkeys(processors.PENALTIES)
SENT = {
    "vllm": {
        "logit_bias": {"3": 1.5, "30": -2.0},
        "repetition_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "allowed_token_ids": [1, 3, 4, 5, 30],
        "stop_token_ids": [5, 17],
        "min_tokens": 2,
    },
    "llama": {
        "logit_bias": [[3, 1.5], [30, -2.0]]
        + [[t, False] for t in range(32) if t not in (1, 3, 4, 5, 30)],
        "repeat_penalty": 1.5,
        "repeat_last_n": EVERY,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "stop": ["w5", "w17"],
    },
    "sglang": {
        "logit_bias": {"3": 1.5, "30": -2.0},
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "stop_token_ids": [5, 17],
        "ignore_eos": False,
        "min_new_tokens": 2,
    },
    "openai": {
        "logit_bias": {"3": 1.5, "30": -2.0},
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
    },
}


def without(claimed):
    """`ALL`, without what is not claimed."""
    return dataclasses.replace(ALL, **{k: v for k, v in NOTHING.items() if k not in claimed})


def ending(answer, body):
    """A server that ends every output with the token 5, but for the trial of two tokens."""
    if len(body.get("prompt", body.get("input_ids"))) == 2:
        return answer
    for place in (answer, *answer.get("choices", ())):
        for name in ("tokens", "output_ids", "token_ids"):
            if name in place:
                place[name] = [0, 0, 5]
    return answer


@pytest.mark.parametrize("style", list(OWNERS))
def test_every_style_asks_for_what_it_claims(serve, load, style):
    server = serve(OWNERS[style], change=None if style == "openai" else ending)
    engine = load(url=server.url, style=style)
    claimed = engine.capabilities.processors
    assert set(claimed) == set(getattr(processors, style.upper()))
    (answer,) = engine.generate(requests(1, without(claimed)))
    if style != "openai":
        assert answer.tokens == (0, 0, 5)
    body = evidence(server)[0]
    body = body.get("sampling_params", body)
    assert SENT[style].items() <= body.items()
    over = "all" if style == "llama" else "output"
    assert engine.capabilities.dialect.presence_over == over
    assert engine.capabilities.dialect.repetition_over == "all"


@pytest.mark.parametrize("style", list(OWNERS))
def test_without_them_nothing_is_asked_for(serve, load, style):
    server = serve(OWNERS[style])
    load(url=server.url, style=style).generate(requests(1))
    body = evidence(server)[0]
    body = body.get("sampling_params", body)
    assert not {"stop", "stop_token_ids", "allowed_token_ids", "logit_bias"} & {
        name for name, value in body.items() if value not in ([], {})
    }
    for name in ("presence_penalty", "frequency_penalty"):
        assert body[name] == 0.0
    for name in ("repetition_penalty", "repeat_penalty"):
        assert body.get(name, 1.0) == 1.0


@pytest.mark.parametrize(
    ("style", "asked"),
    [
        ("llama", {"stop": (5,), "min_new_tokens": 1}),
        ("sglang", {"repetition_penalty": 1.5}),
        ("sglang", {"banned": (1,)}),
        ("openai", {"stop": (5,)}),
        ("openai", {"allowed": (1,)}),
    ],
    ids=str,
)
def test_what_is_not_claimed_is_refused(serve, load, style, asked):
    server = serve(OWNERS[style])
    engine = load(url=server.url, style=style)
    assert engine.capabilities.refuses(Decoding(**asked)) in asked
    with pytest.raises(NotSupportedError, match="the protocol of this server has no"):
        engine.generate(requests(1, Decoding(**asked)))
    assert not evidence(server)


def test_llama_cannot_end_at_a_text_that_is_part_of_another(serve, load):
    server = serve("llamacpp")
    with pytest.raises(NotSupportedError, match="token 1 is part of another"):
        load(url=server.url).generate(requests(1, Decoding(stop=(1,))))
    assert not evidence(server)


@pytest.mark.parametrize("style", ["vllm", "llama", "sglang"])
def test_an_answer_is_short_for_a_stop_token_alone(serve, load, style):
    server = serve(OWNERS[style], change=ending)
    engine = load(url=server.url, style=style)
    with pytest.raises(BadAnswerError, match="3 tokens where 8 were asked for"):
        engine.generate(requests(1, Decoding(stop=(17,))))
