"""What is done to logits before they are warped, and where outputs end: against plain loops, and
against the processors that transformers itself builds.
"""

from __future__ import annotations

import json
from dataclasses import replace

import in_process
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.adapters.reference import ReferenceEngine
from conformance.contract import Capabilities, Completion, Request
from conformance.decoding import PROCESSORS, Decoding, Dialect
from conformance.errors import BadAnswerError, InvalidDecodingError
from conformance.processors import ended, processed
from conformance.wire import decode_requests, encode_completions, encode_requests

V = 7
ids = st.integers(0, V - 1)


@st.composite
def decodings(draw):
    stop = draw(st.lists(ids, unique=True, max_size=2))
    kept = draw(st.sampled_from([(), (1, 3, 4, 6), (0, 2, 5)]))
    return Decoding(
        logit_bias=tuple(draw(st.dictionaries(ids, st.floats(-5, 5), max_size=3)).items()),
        repetition_penalty=draw(st.none() | st.floats(0.2, 5)),
        presence_penalty=draw(st.none() | st.floats(-2, 2)),
        frequency_penalty=draw(st.none() | st.floats(-2, 2)),
        banned=draw(st.sampled_from([(), (1,), (0, 5)])),
        allowed=kept,
        stop=tuple(stop),
        min_new_tokens=draw(st.integers(0, 3)) if stop else 0,
    )


dialects = st.builds(
    Dialect,
    repetition_over=st.sampled_from(["all", "output"]),
    presence_over=st.sampled_from(["all", "output"]),
    penalty_window=st.none() | st.integers(1, 5),
)


def plainly(z, prompt, output, decoding, dialect):
    """One row, token by token, as the words of `Decoding` say it."""
    z = list(z)
    stops = [t for t in range(decoding.min_new_tokens, len(output)) if output[t] in decoding.stop]
    if stops:
        return [0.0 if i == output[-1] else -np.inf for i in range(len(z))]

    def counted(over):
        text = prompt + output if over == "all" else output
        return text if dialect.penalty_window is None else text[-dialect.penalty_window :]

    for token, bias in decoding.logit_bias:
        z[token] += bias
    for token in set(counted(dialect.repetition_over)):
        if decoding.repetition_penalty is not None:
            factor = decoding.repetition_penalty
            z[token] = z[token] / factor if z[token] > 0 else z[token] * factor
    for token in set(counted(dialect.presence_over)):
        times = counted(dialect.presence_over).count(token)
        z[token] -= decoding.presence_penalty or 0.0
        z[token] -= (decoding.frequency_penalty or 0.0) * times
    for token in range(len(z)):
        early = len(output) < decoding.min_new_tokens and token in decoding.stop
        kept = token in decoding.allowed or not decoding.allowed
        if early or not kept or token in decoding.banned:
            z[token] = -np.inf
    return z


@given(decodings(), dialects, st.integers(0, 2**32 - 1))
@settings(max_examples=300, deadline=None)
def test_every_place_of_every_row(decoding, dialect, seed):
    rng = np.random.default_rng(seed)
    prompts, tokens = rng.integers(0, V, (3, 4)), rng.integers(0, V, (3, 5))
    logits = rng.normal(size=(3, 6, V)) * 3
    before = logits.copy()
    found = processed(logits, prompts, tokens, decoding, dialect)
    assert np.array_equal(logits, before)  # the caller's are not changed
    for b in range(3):
        for t in range(6):
            output = tokens[b, :t].tolist()
            expected = plainly(logits[b, t], prompts[b].tolist(), output, decoding, dialect)
            np.testing.assert_allclose(found[b, t], expected, rtol=1e-12, atol=1e-12)


def test_after_an_end_nothing_is_left_to_choose():
    decoding = Decoding(stop=(2,), min_new_tokens=1)
    tokens = np.array([[2, 5, 2, 2, 2], [1, 2, 2, 3, 3]])
    assert ended(tokens, decoding).tolist() == [
        [False, False, True, True, True],
        [False, True, True, True, True],
    ]
    z = processed(np.zeros((2, 6, V)), np.zeros((2, 3), int), tokens, decoding, Dialect())
    certain = np.isfinite(z).sum(axis=-1) == 1
    assert certain.tolist() == [[False, False, False, True, True, True], [False] * 2 + [True] * 4]
    assert z[1, 4].argmax() == 3  # what was emitted after the end is impossible, once
    assert np.isneginf(z[0, 0, 2])  # held back


@given(decodings())
def test_what_is_printed_reads_back(decoding):
    assert Decoding.parse(str(decoding)) == decoding
    assert set(decoding.processors) <= set(PROCESSORS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stop=3;3", "distinct token ids"),
        ("stop=-1", "distinct token ids"),
        ("stop=a", "token ids, as in 3;7"),
        ("repetition_penalty=0", "must be in"),
        ("repetition_penalty=nan", "must be in"),
        ("presence_penalty=inf", "within"),
        ("logit_bias=3", "token ids with biases"),
        ("logit_bias=3:1000", "within"),
        ("min_new_tokens=2", "needs stop tokens"),
        ("min_new_tokens=-1,stop=3", "must be >= 0"),
        ("allowed=3,banned=3", "every token that is allowed"),
        ("greedy=1", "cannot read"),
        ("greedy,temperature=2", "cannot be combined"),
    ],
)
def test_nonsense_is_named(text, message):
    with pytest.raises(InvalidDecodingError, match=message):
        Decoding.parse(text)


def test_only_what_is_claimed_is_asked():
    claims = Capabilities(processors=("stop",))
    assert claims.refuses(Decoding(stop=(3,))) is None
    assert claims.refuses(Decoding(stop=(3,), min_new_tokens=2)) == "min_new_tokens"
    assert claims.refuses(Decoding(greedy=True, repetition_penalty=1.2)) == "repetition_penalty"


# --- the wire -------------------------------------------------------------------------------------


def asked(decoding, wanted=6, speculate=True):
    return Request((1, 2, 3), wanted, decoding, None, speculate)


def test_an_older_engine_is_told_nothing_new():
    (plain,) = encode_requests([asked(Decoding(temperature=0.5))])
    assert set(plain["decoding"]) == {"greedy", "temperature", "top_k", "top_p", "min_p"}


@given(decodings())
def test_requests_come_back(decoding):
    sent = json.loads(json.dumps(encode_requests([asked(decoding)])))
    (back,) = decode_requests(sent)
    # a penalty of 0, a least length of 0: nothing was asked for
    assert encode_requests([back]) == encode_requests([asked(decoding)])


STOP = Decoding(stop=(7,), min_new_tokens=2)


@pytest.mark.parametrize(
    ("tokens", "padded"),
    [
        ((1, 2, 7), [1, 2, 7, 7, 7, 7]),
        ((1, 7, 7), [1, 7, 7, 7, 7, 7]),  # held back at index 1, ended at 2
        ((1, 2, 3, 4, 5, 6), [1, 2, 3, 4, 5, 6]),
        ((1, 2, 7, 4), [1, 2, 7, 4, 4, 4]),  # what comes after an end is evidence
        ((1, 7), [1, 7, 7, 7, 7, 7]),  # and so is an end that came too early
    ],
)
def test_short_answers_go_on_with_their_last_token(tokens, padded):
    (read,) = encode_completions([Completion(tokens, rounds=[(0, 0)] * len(tokens))], [asked(STOP)])
    assert read["tokens"] == padded


@pytest.mark.parametrize("tokens", [(1, 2, 3), (1, 7, 3), ()])
def test_short_answers_without_an_end_are_none(tokens):
    with pytest.raises(BadAnswerError, match=r"no stop token ends it|nothing"):
        encode_completions([Completion(tokens)], [asked(STOP)])


def test_rounds_account_for_the_tokens_up_to_the_end():
    fine = Completion((1, 2, 7), rounds=[(4, 4)])
    encode_completions([fine], [asked(STOP)])
    with pytest.raises(BadAnswerError, match="that emit 2 tokens"):
        encode_completions([Completion((1, 2, 7), rounds=[(4, 1)])], [asked(STOP)])


# --- against transformers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(repetition_penalty=1.7, logit_bias=((3, 2.0), (9, -4.0))),
        Decoding(repetition_penalty=0.6, banned=(1, 2), temperature=0.7, top_k=9),
        Decoding(allowed=(1, 4, 9, 16, 25), stop=(4, 16), min_new_tokens=2),
        Decoding(stop=(5, 9), min_new_tokens=3, top_p=0.8, repetition_penalty=1.3),
    ],
    ids=str,
)
def test_the_law_is_that_of_transformers_own_processors(decoding, probe_cache):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from conformance.adapters.transformers import create
    from conformance.law import warp
    from conformance.probes import load_probe

    engine = create()
    engine.load(load_probe("mid", probe_cache).pair)
    caught = []

    def loop(model, input_ids, *, logits_processor, **_):
        caught.append(logits_processor)
        return input_ids

    prompt = [1, 2, 3, 3]
    engine._target.generate(
        torch.tensor([prompt]),
        generation_config=engine._config(decoding, 6, speculate=False),
        custom_generate=loop,
    )
    rng = np.random.default_rng(0)
    stops = np.array(decoding.stop, dtype=int)
    for _ in range(20):
        tokens = rng.choice(np.setdiff1d(np.arange(32), stops), 5)[None]  # goes on
        z = rng.normal(size=(1, 6, 32)) * 3
        mine = warp(processed(z, np.array([prompt]), tokens, decoding, Dialect()), decoding)
        for t in range(6):
            text = torch.tensor([prompt + tokens[0, :t].tolist()])
            theirs = caught[0](text, torch.tensor(z[:, t])).softmax(-1).numpy()
            np.testing.assert_allclose(mine[:, t], theirs, atol=1e-12)


# --- the reference engine -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(greedy=True, repetition_penalty=1.8, stop=(5, 17)),
        Decoding(greedy=True, presence_penalty=1.0, frequency_penalty=0.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("dialect", [Dialect(), Dialect(penalty_window=6, presence_over="all")])
def test_greedy_outputs_are_the_laws_own(decoding, dialect, probe_cache):
    """Block by block with caches and ragged histories, against one prefix at a time."""
    claims = Capabilities(draft="model", max_batch=64, dialect=dialect, processors=PROCESSORS)
    engine = ReferenceEngine(capabilities=claims)
    (case,) = in_process.cases("mid", [decoding])
    case = replace(case, capabilities=claims)
    engine.load(case.oracle.probe.pair)
    prompts = np.random.default_rng(1).integers(0, 32, (12, 10))
    answers = engine.generate(
        [Request(tuple(p), 16, decoding, None, speculate=True) for p in prompts.tolist()]
    )
    assert any(len(a.tokens) < 16 for a in answers) == bool(decoding.stop)
    for prompt, answer in zip(prompts, answers, strict=True):
        for t in range(len(answer.tokens)):
            tokens = np.array(answer.tokens[:t], dtype=np.int64)[None]
            law = case.oracle.target_laws(prompt[None], tokens)
            assert law.ambiguous[0] or answer.tokens[t] == law.probs[0].argmax()
