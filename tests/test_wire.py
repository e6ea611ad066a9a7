"""What crosses the pipe comes out as it went in, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import evidence, introduction, speculation, stacked, wire
from conformance.contract import Capabilities, Completion, EngineCard, ModelPair, Request
from conformance.decoding import WARPS, Decoding, Dialect
from conformance.errors import BadAnswerError

REQUEST = Request((1,), 2, Decoding(), 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
DECODINGS = st.sampled_from(
    [
        Decoding(greedy=True),
        Decoding(),
        Decoding(temperature=0.7, top_p=0.8),
        Decoding(top_k=3, min_p=0.05),
    ]
)
REQUESTS = st.builds(
    Request,
    prompt=st.lists(st.integers(0, 2**31), max_size=5).map(tuple),
    max_new_tokens=st.integers(1, 6),
    decoding=DECODINGS,
    seed=st.none() | st.integers(0, 2**31 - 1),
    speculate=st.booleans(),
)
DIALECTS = st.builds(
    Dialect,
    order=st.permutations(WARPS).map(tuple),
    top_p_crossing=st.sampled_from(["keep", "drop"]),
    top_k_ties=st.sampled_from(["keep", "lowest-id"]),
)
CAPABILITIES = st.builds(
    Capabilities,
    draft=st.sampled_from(["model", "lookup", "early-exit", "other-vocabulary", "none"]),
    control=st.booleans(),
    max_batch=st.integers(),
    dialect=DIALECTS,
    sampling=st.booleans(),
    greedy=st.booleans(),
    top_k=st.booleans(),
    top_p=st.booleans(),
    min_p=st.booleans(),
)


def piped(data: Any) -> Any:
    return json.loads(json.dumps(data))


@given(st.lists(REQUESTS, max_size=4))
def test_requests_round_trip(requests: list[Request]) -> None:
    assert wire.decode_requests(piped(wire.encode_requests(requests))) == requests


@given(st.floats(1e-3, 1e3), st.none() | st.floats(1e-6, 1), st.none() | st.floats(0, 1))
def test_a_decoding_is_asked_as_it_is_judged(
    temperature: float, top_p: float | None, min_p: float | None
) -> None:
    """The law is computed for the case's decoding; the engine is asked through its text."""
    decoding = Decoding(temperature=temperature, top_p=top_p, min_p=min_p)
    (back,) = wire.decode_requests(piped(wire.encode_requests([Request((1,), 1, decoding, 1)])))
    assert back.decoding == decoding


@given(st.builds(EngineCard, TEXT, TEXT, TEXT, TEXT, TEXT), CAPABILITIES)
def test_descriptions_round_trip(card: EngineCard, capabilities: Capabilities) -> None:
    described = piped(introduction.describe(card, capabilities))
    assert introduction.read_description(described) == (card, capabilities)


@given(TEXT, st.none() | st.just(Path("/a/draft")), st.integers(1), st.integers(1))
def test_pairs_round_trip(name: str, draft: Path | None, vocab: int, context: int) -> None:
    pair = ModelPair(name, Path("/a b/ü"), draft, vocab, context)
    assert wire.decode_pair(piped(wire.encode_pair(pair))) == pair


@st.composite
def blocks(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """Rounds, and a number of tokens that they can have emitted."""
    rounds = draw(
        st.lists(
            st.integers(0, 5).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))),
            min_size=1,
            max_size=5,
        )
    )
    emitted = sum(a + 1 for _, a in rounds)
    return draw(st.integers(emitted - rounds[-1][1], emitted)), rounds


@given(blocks(), st.data())
def test_completions_round_trip(
    block: tuple[int, list[tuple[int, int]]], data: st.DataObject
) -> None:
    wanted, rounds = block
    # any integer may come back: what is outside the vocabulary is evidence
    tokens = data.draw(st.lists(st.integers(), min_size=wanted, max_size=wanted))
    request = Request((1,), wanted, Decoding(), 1)
    sent = wire.encode_completions([Completion(tokens, rounds=rounds)], [request])
    (read,) = wire.read_completions(piped({"completions": sent}), [request])
    assert read == {"tokens": tokens, "rounds": [list(r) for r in rounds], "counts": None}


@given(blocks(), st.integers(1, 5))
def test_rounds_that_do_not_add_up(block: tuple[int, list[tuple[int, int]]], off: int) -> None:
    _, rounds = block
    emitted = sum(a + 1 for _, a in rounds)
    for wanted in (emitted + off, emitted - rounds[-1][1] - off):
        if wanted < 1:
            continue
        request = Request((1,), wanted, Decoding(), 1)
        with pytest.raises(BadAnswerError, match=f"emit .* tokens, but has {wanted}"):
            wire.encode_completions([Completion([0] * wanted, rounds=rounds)], [request])


def test_the_control_arm_has_no_rounds() -> None:
    request = Request((1,), 1, Decoding(), 1, speculate=False)
    for rounds in ((), [(0, 0)], None):
        (sent,) = wire.encode_completions([Completion([3], rounds=rounds)], [request])
        assert sent == {"tokens": [3], "rounds": None, "counts": None}
    for bad, sentence in (([(4, 0)], "engine speculated although"), (5, "must be pairs")):
        with pytest.raises(BadAnswerError, match=sentence):
            wire.encode_completions([Completion([3], rounds=bad)], [request])  # type: ignore[arg-type]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["completions", "tokens", "rounds", "x"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["completions", "x"]), JSON, max_size=2))
def test_anything_else_is_a_bad_answer(answer: dict[str, Any]) -> None:
    """The parent's half believes nothing, and says so in the one way that is an engine's fault."""
    with pytest.raises(BadAnswerError):
        wire.read_completions(answer, [Request((1,), 2, Decoding(), 1)])


@given(st.dictionaries(st.sampled_from(["card", "capabilities", "x"]), JSON, max_size=3))
def test_any_other_description_is_unreadable(data: dict[str, Any]) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
        introduction.read_description(data)


@given(st.text(), st.integers(20, 100))
def test_plain_text_can_be_stored_and_ends(text: str, longest: int) -> None:
    plain = wire.plain_text(text, longest)
    assert plain.encode("utf-8")[:0] == b""
    assert len(plain) <= longest + 40
    if len(text) <= longest and text.isascii():
        assert plain == text


def test_a_control_arm_that_speculates_is_no_control_arm() -> None:
    request = Request((1, 2), 2, Decoding(), seed=1, speculate=False)
    with pytest.raises(BadAnswerError, match="although Request"):
        wire.encode_completions([Completion((3, 4), rounds=((4, 1),))], [request])
    plain = wire.encode_completions([Completion((3, 4), rounds=((0, 0), (0, 0)))], [request])
    assert plain == [{"tokens": [3, 4], "rounds": None, "counts": None}]
    with pytest.raises(BadAnswerError, match="although Request"):
        wire.encode_completions([Completion((3, 4), counts=(4, 1))], [request])


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ((3, 4), "accepted <= drafted"),
        ((-1, -1), "accepted <= drafted"),
        ((3,), "accepted <= drafted"),
        ((3, 2, 1), "accepted <= drafted"),
        ((10**13, 1), "accepted <= drafted"),
        ((3.0, 1), "must be whole numbers"),
        (7, "must be whole numbers"),
    ],
)
def test_counts_that_are_none(counts: Any, sentence: str) -> None:
    with pytest.raises(BadAnswerError, match=sentence):
        wire.encode_completions([Completion([1, 2], counts=counts)], [REQUEST])


def test_counts_are_seen_speculation_without_rounds() -> None:
    sent = wire.encode_completions(
        [Completion([1, 2], counts=(400, 240)), Completion([1, 2])], [REQUEST, REQUEST]
    )
    kept = stacked.stack_counts([c["counts"] for c in sent])
    assert kept is not None
    tokens = np.array([c["tokens"] for c in sent])
    none = np.zeros(2, np.int64)
    made = evidence.Evidence(tokens, none, none, None, 1.0, 2, kept)
    seen = speculation.speculation_seen(made)
    # each rejection loses two proposals at most, since no request has more tokens
    assert (seen.reported, seen.drafted, seen.accepted, seen.rejected) == (True, 400, 240, 80)
    longer = evidence.continued(made, made)
    assert speculation.speculation_seen(longer).drafted == 800
    assert speculation.speculation_seen(evidence.first_requests(longer, 2)).drafted == 400
    assert stacked.stack_counts([None, None]) is None
