from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.decoding import WARPS, Decoding, Dialect, parse_decodings
from conformance.errors import ConformanceError, InvalidDecodingError

decodings = st.just(Decoding(greedy=True)) | st.builds(
    Decoding,
    temperature=st.floats(1e-6, 1e6),
    top_k=st.none() | st.integers(1, 200_000),
    top_p=st.none() | st.floats(0, 1, exclude_min=True),
    min_p=st.none() | st.floats(0, 1),
)


@given(decodings)
def test_what_is_printed_is_read_back(decoding):
    assert Decoding.parse(str(decoding)) == decoding


@given(decodings, st.permutations(range(4)))
def test_order_and_spaces_do_not_matter(decoding, order):
    words = str(decoding).split(",")
    shuffled = [words[i] for i in order if i < len(words)]
    assert Decoding.parse(" , ".join(shuffled).replace("=", " = ")) == Decoding.parse(str(decoding))


@pytest.mark.parametrize(
    "text",
    [
        "", " , ", "greedy,top_k=3", "greedy=1", "top_q=3", "temperature", "temperature=",
        "temperature=hot", "temperature=0", "temperature=-1", "temperature=nan", "temperature=inf",
        "top_k=0", "top_k=-1", "top_k=2.5", "top_k=x", "top_p=0", "top_p=1.0001", "top_p=nan",
        "min_p=-0.1", "min_p=1.1", "min_p=nan", "top_k=3,top_k=3", "temperature=1;top_k=2",
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_a_sentence(text):
    with pytest.raises(InvalidDecodingError) as caught:
        Decoding.parse(text)
    assert isinstance(caught.value, ConformanceError)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) > 15


@pytest.mark.parametrize(
    "values",
    [
        {"greedy": True, "temperature": 0.5},
        {"greedy": True, "top_k": 1},
        {"greedy": True, "min_p": 0.0},
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"top_k": 0},
        {"top_k": True},
        {"top_k": 1.5},
        {"top_k": math.nan},
        {"top_k": math.inf},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.5},
        {"min_p": 2.0},
    ],
)
def test_values_outside_their_range_are_refused(values):
    with pytest.raises(InvalidDecodingError):
        Decoding(**values)


def test_repetitions_are_dropped_in_order():
    parsed = parse_decodings(["top_k=3", "greedy", "temperature=1,top_k=3", "temperature=1"])
    assert parsed == (Decoding(top_k=3), Decoding(greedy=True), Decoding())


@pytest.mark.parametrize(
    ("decoding", "expected"),
    [
        (Decoding(), False),
        (Decoding(greedy=True), False),
        (Decoding(temperature=0.1), False),
        (Decoding(top_k=3), True),
        (Decoding(top_p=1.0), True),
        (Decoding(min_p=0.0), True),
    ],
)
def test_truncates(decoding, expected):
    assert decoding.truncates is expected


@given(st.permutations(WARPS))
def test_a_dialect_takes_every_order(order):
    assert Dialect(order=tuple(order)).order == tuple(order)


@pytest.mark.parametrize(
    "values",
    [
        {"order": ()},
        {"order": ("temperature", "top_k", "top_p")},
        {"order": ("temperature", "top_k", "top_p", "top_p")},
        {"order": (*WARPS, "min_p")},
        {"order": ("temperature", "top_k", "top_p", "typical")},
        {"top_p_crossing": "maybe"},
        {"top_k_ties": "random"},
    ],
)
def test_a_dialect_without_sense_is_refused(values):
    with pytest.raises(InvalidDecodingError):
        Dialect(**values)
