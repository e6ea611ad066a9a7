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
        "stop strings",
        "outputs are judged by their token ids, and end at ids alone",
    ),
    Question(
        "grammars, bad words of several tokens, typical and epsilon cut-offs",
        "masks and biases are the same at every place of an output here",
    ),
    Question(
        "long prompts and long outputs",
        "prompts have some dozens of tokens and outputs at most 32; what begins at a page or "
        "window boundary further on is not seen",
    ),
    Question(
        "mixed batches and requests that come and go",
        "the requests of a batch share decoding, length and arm, and begin together",
    ),
    Question(
        "log probabilities that an engine returns",
        "tokens are judged, and nothing that is said about them",
        ("engine", "served"),
    ),
    Question(
        "several devices, other devices",
        "what was run is under 'How it was run'; another device, parallelism or precision is "
        "another engine",
        ("engine", "verifier", "served"),
    ),
    Question(
        "several answers to one request, beam search",
        "each request asks for one answer",
        ("engine", "served"),
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
