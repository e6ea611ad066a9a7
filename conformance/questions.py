"""What this suite does not ask at all, and why; every report says so.

Kept in one place, so that a reader of a report never takes for tested what no test has touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tier = Literal["engine", "verifier", "served"]


@dataclass(frozen=True, slots=True)
class Question:
    """One thing that is not asked.

    Parameters
    ----------
    what : str
        The question's subject.
    why : str
        Why it is not asked.
    tiers : tuple of {'engine', 'verifier', 'served'}
        Of which kinds of case it is true.
    """

    what: str
    why: str
    tiers: tuple[Tier, ...] = ("engine",)


NEVER_ASKED: tuple[Question, ...] = (
    Question(
        "the model in production",
        "laws must be known exactly, so small probe models stand in; a fault that only a model's "
        "size, vocabulary or architecture brings out is not seen",
    ),
    Question(
        "stop strings over pieces of words, and answers without the text that ended them",
        "a token of the probes is a whole word, and outputs are judged by their token ids",
    ),
    Question(
        "bad words of several tokens, grammars that are no regular language, JSON schemas",
        "a mask that changes along the output follows a small automaton over token ids here",
    ),
    Question(
        "contexts of thousands of tokens, and of wide sliding windows",
        "where long contexts are asked for they go to 1,173 positions, and greedy outputs to 512; "
        "a sliding window is one of 24 tokens, in every layer",
    ),
    Question(
        "requests that come and go, and batches of several decodings",
        "the requests of a call begin together and share their decoding",
    ),
    Question(
        "log-probabilities of the prompt, and of other tokens than those emitted",
        "where log-probabilities are asked for, those of the emitted tokens are compared with the "
        "law's",
    ),
    Question(
        "log-probabilities that a server returns",
        "tokens are judged, and nothing that is said about them",
        ("served",),
    ),
    Question(
        "several devices, other devices",
        "what was run is under 'How it was run'; another device, parallelism or precision is "
        "another engine",
        ("engine", "verifier", "served"),
    ),
    Question(
        "beam search",
        "answers are drawn, and none is chosen among others",
        ("engine", "served"),
    ),
    Question(
        "several answers to one request",
        "each request asks for one answer",
        ("served",),
    ),
    Question(
        "speed and cost",
        "exactness is another question; 'conformance bench' measures them",
        ("engine", "verifier", "served"),
    ),
    Question(
        "the engine around the rule",
        "a verifier is the acceptance rule alone: drafting, caches, random streams and the hand-"
        "over between blocks are tested by judging the whole engine",
        ("verifier",),
    ),
    Question(
        "the model's own law",
        "only the server knows it, so what speculation and plain sampling do wrong alike is not "
        "seen",
        ("served",),
    ),
)
