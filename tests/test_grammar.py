"""Grammars over token ids: read, made into automata, and written for engines that take texts."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.decoding import Decoding
from conformance.errors import InvalidDecodingError
from conformance.grammar import DEAD, START, automaton, spelled, tree_of
from conformance.processors import states, table
from conformance.suite import SUITES

VOCAB = 4
LETTERS = "abcd"
WORDS = [w for n in range(5) for w in itertools.product(range(VOCAB), repeat=n)]

grammars = st.recursive(
    st.sampled_from(["0", "1", "2", "3", "."]),
    lambda inner: (
        st.builds("({}|{})".format, inner, inner)
        | st.builds("{} {}".format, inner, inner)
        | st.builds("({}){}".format, inner, st.sampled_from("*+?"))
    ),
    max_leaves=6,
)


def as_regex(grammar: str) -> str:
    """The same language over letters, in Python's own notation."""
    return (
        re.sub(r"\d", lambda m: LETTERS[int(m[0])], grammar)
        .replace(" ", "")
        .replace(".", f"[{LETTERS}]")
    )


@given(grammars)
def test_sentences_are_those_of_the_regular_expression(grammar):
    """A stop token, 4, so that every language may end."""
    made = automaton(grammar, (VOCAB,), VOCAB + 1)
    pattern = re.compile(as_regex(grammar))
    whole = {w for w in WORDS if pattern.fullmatch("".join(LETTERS[i] for i in w))}
    for word in WORDS:
        state = made.state_of(word)
        ends = state != DEAD and made.ends[state]
        assert ends == (word in whole), word
        assert (made.after(state, VOCAB) != DEAD) == ends  # the stop token, and only there
        if state == DEAD:
            assert not any(w[: len(word)] == word for w in whole)
        else:  # some way on, or the end
            assert made.allowed(state)


@given(grammars, st.lists(st.lists(st.integers(0, VOCAB), max_size=6), min_size=1, max_size=4))
def test_states_of_many_outputs_are_those_of_each(grammar, outputs):
    length = min(map(len, outputs))
    tokens = np.array([o[:length] for o in outputs], dtype=np.int64).reshape(len(outputs), length)
    decoding = Decoding(grammar=grammar, stop=(VOCAB,))
    made = automaton(grammar, (VOCAB,), VOCAB + 1)
    found = states(tokens, decoding, VOCAB + 1)
    assert found.shape == (len(outputs), length + 1)
    for row, out in zip(tokens.tolist(), found.tolist(), strict=True):
        assert out == [made.state_of(row[:i]) for i in range(length + 1)]
    _, allowed = table(decoding, VOCAB + 1)
    assert allowed[DEAD].all()
    assert np.flatnonzero(allowed[START]).tolist() == made.allowed(START)


@pytest.mark.parametrize(
    ("grammar", "stop", "said"),
    [
        ("(1|2", (), r"a '\)' at character 5"),
        ("1)", (), r"no '\)' without its '\('"),
        ("1 x", (), "a token id at character 3"),
        ("1|", (), "a token id where there is none"),
        ("*", (), "a token id at character 1"),
        ("99999999999", (), "a token id"),
        ("(" * 200 + "1" + ")" * 199, (), "groups within groups"),
        ("1 " * 300, (), "at most 400 characters"),
        ("(.|1)* 1" + " ." * 9, (2,), "too many states"),
        ("1 2", (), "none of 4 tokens may follow"),
        ("1* 3", (3,), "stop token 3 is also a letter"),
    ],
)
def test_what_is_no_grammar_is_refused_with_a_sentence(grammar, stop, said):
    with pytest.raises(InvalidDecodingError, match=said):
        Decoding(grammar=grammar, stop=stop)


def test_a_token_that_the_model_lacks_is_none():
    assert automaton("(1|9)*", (), 4).allowed(START) == [1]
    with pytest.raises(InvalidDecodingError, match="none of 4 tokens"):
        automaton("(1 9)*", (), 4)


@pytest.mark.parametrize("values", [{"banned": (1,)}, {"allowed": (1,)}])
def test_masks_and_grammars_are_not_combined(values):
    with pytest.raises(InvalidDecodingError, match="not combined with a grammar"):
        Decoding(grammar="1*", **values)


def test_it_is_typed_and_printed_alike():
    decoding = Decoding.parse("temperature=0.8, grammar=(1|2)(3 4)*5 *, stop=7, logprobs")
    assert decoding.grammar == "(1|2)(3 4)*5 *"
    assert decoding.processors == ("stop", "grammar")
    assert Decoding.parse(str(decoding)) == decoding
    with pytest.raises(InvalidDecodingError, match="grammar must be a grammar over token ids"):
        Decoding.parse("grammar=")


def test_in_the_words_of_engines():
    grammar = "(4|5)(6 7)*8?9+"
    assert spelled(grammar, "w{}".format, 32) == "(w4|w5)(w6w7)*(w8)?(w9)+"
    gbnf = spelled(grammar, '"w{}"'.format, 32, " ")
    assert gbnf == '("w4"|"w5") ("w6" "w7")* ("w8")? ("w9")+'
    assert spelled(".", "w{}".format, 3) == "(w0|w1|w2)"


@pytest.mark.parametrize("decoding", [d for d in SUITES["structured"] if not d.greedy], ids=str)
def test_grammars_of_the_suite_read_alike_as_texts(decoding):
    """Engines that read texts allow a word where it begins another: 1 of 1x, 2 of 2x, 3 of 3x.
    Wherever one of those may come, its beginning may as well, so that both readings agree.
    """
    made = automaton(decoding.grammar, decoding.stop, 32)
    for state in range(START, len(made.follows)):
        allowed = set(made.allowed(state)) - set(decoding.stop)
        assert {int(str(t)[0]) for t in allowed if t >= 10} <= allowed
    assert tree_of(decoding.grammar)
