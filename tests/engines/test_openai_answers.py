"""The adapter of OpenAI-compatible servers: refusals, answers that are none, and the key."""

from __future__ import annotations

import traceback
from dataclasses import replace

import http_servers
import pytest
from http_servers import evidence, requests

from conformance.adapters import openai as adapter
from conformance.adapters import openai_http as transport
from conformance.contract import ModelPair
from conformance.decoding import Decoding
from conformance.errors import (
    BadAnswerError,
    EngineFailure,
    EngineLoadError,
    NotSupportedError,
)

serve, load = http_servers.imitate, http_servers.load
pytestmark = pytest.mark.skipif(not http_servers.available(), reason="no HTTP library is installed")
GREEDY = Decoding(greedy=True)
SAMPLING = Decoding()
FILTERED = Decoding(temperature=0.7, top_k=9, top_p=0.8, min_p=0.05)
KEY = "sk-Probe/0123456789+abcdefXYZ"
OWNERS = {"vllm": "vllm", "llama": "llamacpp", "sglang": "sglang"}


# --- refusals and answers that are none -----------------------------------------------------------


def test_a_refusal_at_once_is_not_supported_and_a_late_one_is_a_failure(serve, load):
    refused = {"min_p": 0.05}

    def refuse(answer, body):
        bad = refused.items() <= body.items()
        return (400, {"error": {"message": "min_p is not for speculation"}}) if bad else answer

    engine = load(url=serve(change=refuse).url)
    with pytest.raises(NotSupportedError, match="min_p is not for speculation"):
        engine.generate(requests(3, FILTERED))
    assert len(engine.generate(requests(3))) == 3
    refused = {"min_p": 0.0}
    with pytest.raises(EngineFailure, match="answered 400") as caught:
        engine.generate(requests(3))
    assert not isinstance(caught.value, NotSupportedError)


def several(*wanted):
    return [replace(r, answers=n) for r, n in zip(requests(len(wanted)), wanted, strict=True)]


def test_several_answers_come_from_one_request_in_their_order(serve, load):
    def turned(answer, body):
        return answer | {"choices": answer["choices"][::-1]}

    server, plain = serve(change=turned), serve()
    engine = load(url=server.url, control=plain.url)
    assert engine.capabilities.several
    asked = several(3, 1, 4)
    answers = engine.generate(asked)
    assert [b["n"] for b in sorted(evidence(server), key=lambda b: b["seed"])] == [3, 1, 4]
    alone = load(url=plain.url).generate(
        [replace(r, seed=r.seed + i, answers=1) for r in asked for i in range(r.answers)]
    )
    assert [a.tokens for a in answers] == [a.tokens for a in alone]
    assert len([a for a in answers if a.counts is not None]) == 1


@pytest.mark.parametrize("kept", [0, 1, 2, 4])
def test_another_number_of_choices_is_no_answer(serve, load, kept):
    def change(answer, body):
        some = (answer["choices"] * 2)[:kept] if body["n"] == 3 else answer["choices"]
        return answer | {"choices": some}

    with pytest.raises(BadAnswerError, match=f"{kept} choices where 3 were asked for"):
        load(url=serve(change=change).url).generate(several(3))


@pytest.mark.parametrize("owner", ["llamacpp", "sglang"])
def test_several_answers_are_refused_where_nothing_is_known_of_them(serve, load, owner):
    engine = load(url=serve(owner).url)
    assert not engine.capabilities.several
    with pytest.raises(NotSupportedError, match="several answers"):
        engine.generate(several(2))


def test_an_engine_that_dies_over_an_answer_is_not_asked_again(serve, load):
    def die(answer, body):
        return (503, {"error": "engine is dead"}) if body.get("seed") == 103 else answer

    server = serve(change=die)
    with pytest.raises(EngineFailure, match="answered 503: engine is dead"):
        load(url=server.url).generate(requests(8))
    assert sum(b.get("seed") == 103 for b in evidence(server)) == 1


def without(*path):
    def change(answer, body):
        inner = answer
        for step in path[:-1]:
            inner = inner[step]
        del inner[path[-1]]
        return answer

    return change


def with_ids(ids):
    def change(answer, body):
        answer["choices"][0]["token_ids"] = ids(answer["choices"][0]["token_ids"])
        return answer

    return change


BAD = {
    "no choices": without("choices"),
    "no ids": without("choices", 0, "token_ids"),
    "two choices": lambda a, b: a | {"choices": a["choices"] * 2},
    "choices of numbers": lambda a, b: a | {"choices": [7]},
    "choices null": lambda a, b: a | {"choices": None},
    "too few": with_ids(lambda ids: ids[:-1]),
    "too many": with_ids(lambda ids: [*ids, 1]),
    "none": with_ids(lambda ids: []),
    "strings": with_ids(lambda ids: [str(i) for i in ids]),
    "floats": with_ids(lambda ids: [float(i) for i in ids]),
    "booleans": with_ids(lambda ids: [True] * len(ids)),
    "nulls": with_ids(lambda ids: [None] * len(ids)),
    "an object": with_ids(lambda ids: {"ids": ids}),
    "another prompt": lambda a, b: a | {"usage": {"prompt_tokens": 13}},
}


@pytest.mark.parametrize("fault", list(BAD))
def test_answers_that_are_none(serve, load, fault):
    def change(answer, body):
        return answer if body.get("seed") != 103 else BAD[fault](answer, body)

    server = serve(change=change)
    engine = load(url=server.url)
    with pytest.raises(BadAnswerError, match="The answer was"):
        engine.generate(requests(8))
    assert sum(b.get("seed") == 103 for b in evidence(server)) == 1


def test_odd_extras_do_no_harm(serve, load):
    def change(answer, body):
        odd = {
            "timings": [],
            "usage": 3,
            "metrics": {"speculative_decoding": {"num_draft_tokens": "4"}},
        }
        return answer | odd | {"meta_info": None, "tokens_evaluated": "many"}

    assert len(load(url=serve(change=change).url).generate(requests(3))) == 3


@pytest.mark.parametrize("text", ["w1 w2 w3 hello w4", "w99 w1", "", "w1,w2", None])
def test_text_that_is_not_the_probes(serve, load, text):
    def change(answer, body):
        if body.get("seed") is not None:
            answer["choices"][0]["text"] = text
        return answer

    with pytest.raises(BadAnswerError):
        load(url=serve("somebody", change=change).url).generate(requests(2))


def test_ids_outside_the_vocabulary_are_evidence(serve, load):
    server = serve(change=with_ids(lambda ids: [10**6, *ids[1:]]))
    assert load(url=server.url).generate(requests(2))[0].tokens[0] == 10**6


def test_a_damaged_tokenizer(serve, tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 7}}}')
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(EngineLoadError, match="tokenizer"):
            adapter.create(url=serve().url).load(ModelPair("p", folder, None, 32, 512))


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"vllm:spec_decode_num_draft_tokens_total 5.0\n",
        b"vllm:spec_decode_num_draft_tokens_total e\nvllm:spec_decode_num_accepted_tokens 1",
        b"vllm:spec_decode_num_draft_tokens 1e999\nvllm:spec_decode_num_accepted_tokens 1",
    ],
)
def test_a_page_of_metrics_that_does_not_tell(page):
    assert adapter.metrics(page) is None


def test_metrics_of_several_engines_are_added():
    page = b"".join(
        b'vllm:spec_decode_num_%s_tokens_total{engine="%d"} %d.0\n' % (name, engine, value)
        for name, values in ((b"draft", (5, 7)), (b"accepted", (2, 4)))
        for engine, value in enumerate(values)
    )
    assert adapter.metrics(page) == (12, 6)


# --- the key --------------------------------------------------------------------------------------


def test_the_key_goes_to_both_servers_and_is_never_shown(serve, load, monkeypatch, capfd):
    monkeypatch.setenv(transport.KEY_VARIABLE, KEY)
    told = {"fault": False}

    def repeat(answer, body):
        return {"echo": {"Authorization": f"Bearer {KEY}"}} if told["fault"] else answer

    server, plain = serve(change=repeat, names=(KEY,)), serve(drafts=False, names=(KEY,))
    engine = load(url=server.url, control=plain.url, model="probe")
    engine.generate([*requests(2), *requests(2, speculate=False)])
    assert {c.headers["Authorization"] for s in (server, plain) for c in s.calls} == {
        f"Bearer {KEY}"
    }
    told["fault"] = True
    shown = [repr(engine), repr(engine.card), repr(engine.capabilities), repr(vars(engine))]
    for attempt in (lambda: engine.generate(requests(2)), lambda: load(url=server.url)):
        try:
            attempt()
        except EngineFailure as exc:
            shown += [str(exc), repr(exc), traceback.format_exc()]
        except EngineLoadError as exc:
            shown += [str(exc), repr(exc), traceback.format_exc()]
    assert len(shown) == 10
    assert "[key]" in "".join(shown)
    for text in [*shown, *capfd.readouterr()]:
        assert KEY[3:] not in text
    assert not any(KEY in c.path for c in server.calls)
