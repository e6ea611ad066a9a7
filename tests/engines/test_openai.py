"""The adapter of OpenAI-compatible servers: what it asks of them, and what it reads.

The servers are imitations; test_openai_llama.py has a real one.
"""

from __future__ import annotations

import subprocess
import sys

import http_servers
import pytest
from http_servers import Imitation, evidence, requests

from conformance.adapters import openai as adapter
from conformance.contract import Engine
from conformance.decoding import Decoding
from conformance.errors import (
    EngineFailure,
    EngineLoadError,
    NotSupportedError,
    UnknownEngineError,
)
from conformance.probes import load_probe
from conformance.wire import encode_completions

serve, load = http_servers.imitate, http_servers.load
pytestmark = pytest.mark.skipif(not http_servers.available(), reason="no HTTP library is installed")
GREEDY = Decoding(greedy=True)
SAMPLING = Decoding()
FILTERED = Decoding(temperature=0.7, top_k=9, top_p=0.8, min_p=0.05)
KEY = "sk-Probe/0123456789+abcdefXYZ"
OWNERS = {"vllm": "vllm", "llama": "llamacpp", "sglang": "sglang"}


# --- before anything is asked ---------------------------------------------------------------------


def test_the_module_is_light():
    code = (
        "import sys; from conformance.adapters.openai import create\n"
        "e = create(); print(e.card.name, e.card.version, e.capabilities.draft)\n"
        "print([m for m in ('numpy', 'torch', 'httpx', 'httpx2') if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.split("\n")[:2] == ["openai unknown model", "[]"]
    assert isinstance(adapter.create(), Engine)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "eagle"}, "no methods"),
        ({"style": "chat"}, "option style"),
        ({"draft": "eagle"}, "option draft"),
        ({"precision": "half"}, "option precision"),
        ({"concurrency": "0"}, "option concurrency must be a whole number from 1 to 1024"),
        ({"concurrency": "2.5"}, "option concurrency"),
        ({"timeout": "nan"}, "option timeout"),
        ({"timeout": "-1"}, "option timeout"),
        ({"retries": "many"}, "option retries"),
        ({"rate": "inf"}, "option rate"),
        ({"order": "top_k+top_p"}, "option order"),
        ({"order": "top_k+top_p+min_p+heat"}, "option order"),
        ({"control": "off-switch"}, "goes with switch"),
        ({"switch": "a=1"}, "goes with switch"),
        ({"control": "off-switch", "switch": "a"}, "PATH=VALUE"),
        ({"control": "off-switch", "switch": "a//b=1"}, "PATH=VALUE"),
        ({"url": "localhost"}, "option url"),
        ({"url": "http://a/v1", "control": "b"}, "option control"),
        ({"url": "http://a/v1", "control": "http://a/v1"}, "the same server"),
        ({"url": "http://a/v1", "control": "http://A:80/v1/"}, "the same server"),
        ({"url": "https://a:443/v1", "control": "https://a./v1"}, "the same server"),
    ],
)
def test_options_that_mean_nothing(options, said):
    with pytest.raises(UnknownEngineError, match=said):
        adapter.create(**options)


def test_there_is_no_option_for_the_key():
    for name in ("key", "api_key", "token"):
        with pytest.raises(TypeError) as caught:
            adapter.create(**{name: KEY})
        assert KEY not in str(caught.value)


def test_without_an_address(probe_cache):
    with pytest.raises(EngineLoadError, match="needs the server's address"):
        adapter.create().load(load_probe("mid", probe_cache).pair)
    with pytest.raises(EngineLoadError, match="before load"):
        adapter.create(url="http://127.0.0.1:9/v1").generate(requests())


# --- who the server is ----------------------------------------------------------------------------


@pytest.mark.parametrize("style", list(OWNERS))
def test_the_card_asks_the_server(serve, load, style):
    server, plain = serve(OWNERS[style]), serve(OWNERS[style], drafts=False)
    engine = load(url=server.url, control=plain.url)
    assert engine.card.version == f"{OWNERS[style]} 1.2.3"
    assert engine.card.method == "draft model, over HTTP"
    order = engine.capabilities.dialect.order
    assert order[0] == ("top_k" if style == "llama" else "temperature")
    assert engine.capabilities.control
    assert engine.capabilities.processes == 1
    assert not load(url=server.url).capabilities.control
    assert load(url=server.url, precision="bfloat16").capabilities.low_precision


def test_the_order_that_is_declared_is_the_order_that_is_sent(serve, load):
    server = serve("llamacpp", drafts=False)
    order = ("min_p", "temperature", "top_p", "top_k")
    engine = load(url=server.url, order="+".join(order))
    assert engine.capabilities.dialect.order == order
    assert server.posts()[0].body["samplers"] == ["penalties", *order]


def test_several_models_need_a_name(serve, load):
    server = serve(names=("a", "b"))
    with pytest.raises(EngineLoadError, match=r"\['a', 'b'\].*option model"):
        load(url=server.url)
    load(url=server.url, model="b")
    assert server.posts()[-1].body["model"] == "b"
    load(url=server.url, model="adapter-of-b")  # not every server lists what it serves
    assert server.posts()[-1].body["model"] == "adapter-of-b"


def test_a_server_that_is_not_there(load):
    with pytest.raises(EngineFailure, match="cannot connect"):
        load(url="http://127.0.0.1:9/v1", retries="1")


# --- what is asked, and what is read --------------------------------------------------------------


@pytest.mark.parametrize("style", list(OWNERS))
def test_every_style_asks_for_all_of_a_decoding(serve, load, style):
    server = serve(OWNERS[style])
    engine = load(url=server.url)
    engine.generate(requests(1, FILTERED))
    body = evidence(server)[0]
    sampling = body.get("sampling_params", body)
    names = ("temperature", "top_k", "top_p", "min_p")
    assert [sampling[name] for name in names] == [0.7, 9, 0.8, 0.05]
    engine.generate(requests(1, GREEDY))
    sampling = evidence(server)[-1].get("sampling_params", evidence(server)[-1])
    off = 0 if style == "llama" else -1
    assert [sampling[name] for name in names] == [0.0, off, 1.0, 0.0]
    assert "seed" not in sampling
    assert "sampling_seed" not in sampling


@pytest.mark.parametrize("style", list(OWNERS))
def test_one_post_for_each_request_with_a_seed_of_its_own(serve, load, style):
    server = serve(OWNERS[style])
    wanted = requests(40)
    answers = load(url=server.url).generate(wanted)
    sent = evidence(server)
    seeds = {b.get("seed", b.get("sampling_params", {}).get("sampling_seed")) for b in sent}
    assert seeds == {r.seed for r in wanted}
    by_seed = {r.seed: r.prompt for r in wanted}
    for b in sent:
        seed = b.get("seed", b.get("sampling_params", {}).get("sampling_seed"))
        assert tuple(b.get("prompt", b.get("input_ids"))) == by_seed[seed]
    imitation = Imitation(OWNERS[style])
    assert [list(a.tokens) for a in answers] == [imitation._tokens(8, r.seed) for r in wanted]
    encode_completions(answers, wanted)


@pytest.mark.parametrize("style", list(OWNERS))
def test_drafts_are_counted(serve, load, style):
    server, plain = serve(OWNERS[style]), serve(OWNERS[style], drafts=False)
    engine = load(url=server.url, control=plain.url)
    both = [*requests(5, speculate=False), *requests(10)]
    for _ in range(2):  # by difference, so each batch counts its own
        answers = engine.generate(both)
        assert all(a.counts is None for a in answers[:5])
        counts = [a.counts for a in answers[5:] if a.counts is not None]
        assert [sum(c) for c in zip(*counts, strict=True)] == [40, 20]
        encode_completions(answers, both)


def test_what_vllm_counts_by_request_is_preferred(serve, load):
    def tell(answer, body):
        told = {"num_draft_tokens": 6, "num_accepted_draft_tokens": 1, "num_spec_tokens": 3}
        return answer | {"metrics": {"speculative_decoding": told}}

    answers = load(url=serve(change=tell).url).generate(requests(3))
    assert [a.counts for a in answers] == [(6, 1)] * 3


def test_what_tensorrt_llm_counts(serve, load):
    def tell(answer, body):
        told = {"num_draft_tokens": 6, "num_accepted_draft_tokens": 1}
        answer["choices"][0] |= {
            "token_ids": [1] * body["max_tokens"],
            "speculative_decoding": told,
        }
        return answer

    answers = load(url=serve("tensorrt_llm", change=tell).url).generate(requests(2))
    assert [a.counts for a in answers] == [(6, 1)] * 2


def test_newer_sglang(serve, load):
    def rename(answer, body):
        told = {"spec_num_proposed_drafts": 8, "spec_num_correct_drafts": 3}
        return answer | {"meta_info": answer["meta_info"] | told}

    answers = load(url=serve("sglang", change=rename).url).generate(requests(2))
    assert [a.counts for a in answers] == [(8, 3)] * 2


def test_a_server_that_counts_nothing(serve, load):
    answers = load(url=serve("somebody", drafts=False).url).generate(requests(3))
    assert [a.counts for a in answers] == [None] * 3


@pytest.mark.parametrize("spaces", [True, False])
def test_plain_servers_answer_in_text(serve, load, spaces):
    def glue(answer, body):
        text = answer["choices"][0]["text"]
        answer["choices"][0]["text"] = text if spaces else text.replace(" ", "")
        return answer

    server = serve("somebody", change=glue)
    answers = load(url=server.url).generate(requests(5))
    assert [list(a.tokens) for a in answers] == [
        Imitation("x")._tokens(8, 100 + i) for i in range(5)
    ]
    assert evidence(server)[0]["prompt"] == list(requests(1)[0].prompt)


def test_a_server_that_takes_text_alone(serve, load):
    def text_only(answer, body):
        if not isinstance(body["prompt"], str):
            return 422, {"error": "prompt must be a string"}
        return answer

    server = serve("somebody", change=text_only)
    wanted = requests(3)
    answers = load(url=server.url).generate(wanted)
    assert len(answers[0].tokens) == 8
    prompts = {c.body["prompt"] for c in server.posts() if len(c.body["prompt"]) > 8}
    assert {" ".join(f"w{i}" for i in r.prompt) for r in wanted} <= prompts
    with pytest.raises(NotSupportedError, match="no top_k"):
        load(url=server.url).generate(requests(1, Decoding(top_k=3)))
    assert not load(url=server.url, style="openai").capabilities.min_p


# --- the control arm ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("switch", "found"),
    [
        ("speculative.n_max=0", {"speculative.n_max": 0}),
        ("speculative/enabled=false", {"speculative": {"enabled": False}}),
        ("mode=plain", {"mode": "plain"}),
    ],
)
def test_an_off_switch(serve, load, switch, found):
    def obey(answer, body):
        if found.items() <= body.items():
            del answer["timings"]["draft_n"], answer["timings"]["draft_n_accepted"]
        return answer

    server = serve("llamacpp", change=obey)
    engine = load(url=server.url, control="off-switch", switch=switch)
    on, off = engine.generate([*requests(1), *requests(1, speculate=False)])
    assert (on.counts, off.counts) == ((4, 2), None)


def test_an_off_switch_that_is_ignored_is_noticed(serve, load):
    server = serve("llamacpp")
    with pytest.raises(EngineLoadError, match="although it was asked not to"):
        load(url=server.url, control="off-switch", switch="speculative.n_max=0")


def test_without_a_control_arm(serve, load):
    with pytest.raises(NotSupportedError, match="no control arm"):
        load(url=serve().url).generate(requests(1, speculate=False))
