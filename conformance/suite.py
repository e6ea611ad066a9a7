"""What a suite asks: decodings, chosen so that an engine which leaves a step out shows it.

The suite ``law`` is sampling itself. Around it, each in a suite of its own, is what else shapes an
output: where it ends, and what is done to logits before they are warped. Token ids are those of
probes of 32 tokens; strengths are such that the law without the step is off by a total variation
of .2 or more on average (the tests measure that).
"""

from __future__ import annotations

from collections.abc import Iterable

from conformance.contract import Draft
from conformance.decoding import DEFAULT_DECODINGS, ROADS, Decoding
from conformance.errors import PlanError
from conformance.forms import LENGTHS, LONG, MIXED, RAGGED, SEVERAL, SLIDING, TWIN

STOPS = (5, 17, 23)
# so many that holding them back changes the law by enough
MANY = (1, 3, 5, 9, 13, 15, 17, 21, 25, 27)
# ... and so many that an output ends as soon as it may, about the end of a first block
MOST = (1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27)
# Grammars. Engines read them as text, where one word may be how another begins: w1 of w10. So where
# one of 10 .. 19 may come, 1 may come as well; likewise 2 and 3.
_LOW = "(0|4|5|6|7|8|9|1|11|13|15|17|19)"
_HIGH = "(2|20|22|24|26|28|3|30)"
# two halves of the vocabulary in turn
TURNS = "((1|4|6|8|10|12|14|16|18)(2|5|7|9|20|21|23|25|27|29))*"
# one or two low words, then a high one: what may come depends on two tokens back
PHRASES = f"({_LOW}{_LOW}?{_HIGH})*"
# two phrases at most, so that outputs end inside a block, or have to
SENTENCE = f"{_LOW}{_HIGH}({_LOW}{_HIGH})?"
LAW = "law"
# Words, and pairs of words, which begin in one block and may end in the next; some end inside a
# token: w4 w12 contains "w4 w1". More outputs end by a pair than by a word.
STRINGS = ("w7", "w23", "w4 w1", "w8 w2", "w9 w1", "w11 w2", "w20 w1", "w26 w2")
SUITES: dict[str, tuple[Decoding, ...]] = {
    LAW: DEFAULT_DECODINGS,
    "greedy": tuple(Decoding(greedy=True, road=road) for road in ("", *ROADS)),
    "ends": (
        Decoding(greedy=True, stop=STOPS),
        Decoding(stop=STOPS),
        Decoding(stop=MANY, min_new_tokens=2),
        Decoding(greedy=True, stop=MOST, min_new_tokens=4),
    ),
    "processors": (
        Decoding(repetition_penalty=2.0),
        Decoding(greedy=True, repetition_penalty=2.0),
        # below 0, so that what was said is said again: above it, the first tokens show little
        Decoding(presence_penalty=-1.5, frequency_penalty=-0.5),
        Decoding(logit_bias=((2, 3.0), (7, 3.0), (11, -3.0), (19, 3.0))),
        Decoding(banned=(0, 3, 6, 9, 12, 15, 18, 21, 24, 27)),
        Decoding(allowed=(1, 2, 5, 7, 10, 13, 17, 19, 22, 25)),
        Decoding(temperature=0.8, top_p=0.9, repetition_penalty=1.5, logit_bias=((4, 2.0),)),
    ),
    # Filters beyond those of the law, and several together. No four of them can all matter much at
    # one place, where the tightest decides; so each is in a combination that would differ by a
    # total variation of .2 without it, whether temperature comes first or last.
    "cutoffs": (
        Decoding(temperature=3.0, top_k=8, top_p=0.7),
        Decoding(temperature=4.0, top_k=8, top_p=0.9),
        Decoding(temperature=2.0, min_p=0.2),
        Decoding(typical_p=0.5),
        Decoding(temperature=2.0, epsilon_cutoff=0.04),
        Decoding(eta_cutoff=0.2),
        # here either half of its least is the least at a fifth of the places
        Decoding(temperature=0.6, eta_cutoff=0.05),
        Decoding(temperature=2.0, min_p=0.2, typical_p=0.6),
    ),
    "stop-strings": (
        Decoding(greedy=True, stop_strings=STRINGS),
        Decoding(stop_strings=STRINGS),
    ),
    "structured": (
        Decoding(grammar=TURNS),
        Decoding(greedy=True, grammar=TURNS),
        Decoding(temperature=0.8, top_p=0.9, grammar=PHRASES),
        Decoding(grammar=SENTENCE, stop=(29,)),
    ),
    "logprobs": (
        Decoding(greedy=True, logprobs=True),
        Decoding(temperature=0.7, logprobs=True),
        Decoding(temperature=0.7, top_p=0.8, logprobs=True),
        Decoding(temperature=0.8, repetition_penalty=1.5, logprobs=True),
    ),
}
# Questions that need a probe of their own: largest logits that tie, and long outputs. A draft of
# another vocabulary needs a probe of its own for everything.
PROBES: dict[str, tuple[tuple[str, Decoding], ...]] = {
    "greedy": (
        ("tied", Decoding(greedy=True)),
        ("tied", Decoding(greedy=True, road="top-k-1")),
        ("horizon", Decoding(greedy=True)),
    ),
}
# Questions about requests that are not alike, or not the usual ones: in another form.
IN_FORMS: dict[str, tuple[tuple[str, Decoding], ...]] = {
    "lengths": ((LENGTHS, Decoding()), (LENGTHS, Decoding(greedy=True))),
    "batches": (
        (RAGGED, Decoding()),
        (RAGGED, Decoding(temperature=0.7, top_p=0.8)),
        (RAGGED, Decoding(greedy=True)),
        (MIXED, Decoding()),
        (SEVERAL, Decoding()),
        (SEVERAL, Decoding(temperature=0.7, top_p=0.8)),
    ),
    "streams": ((TWIN, Decoding()),),
    "long": ((LONG, Decoding()), (SLIDING, Decoding())),
}
SUITES |= dict.fromkeys(IN_FORMS, ())
ALL = "all"


def on_probes(suite: str, draft: Draft) -> tuple[tuple[str, Decoding], ...]:
    """What a suite asks on other probes than the method's own."""
    return () if draft == "other-vocabulary" else PROBES.get(suite, ())


def named(suites: Iterable[str]) -> tuple[str, ...]:
    """Suites as they are asked for, without repetitions; ``all`` stands for every one.

    Raises
    ------
    PlanError
        If there is no suite of that name.
    """
    chosen = dict.fromkeys(s for name in suites for s in (SUITES if name == ALL else (name,)))
    if unknown := [name for name in chosen if name not in SUITES]:
        raise PlanError(f"no suite {unknown[0]!r}; there are {', '.join(SUITES)} and {ALL}")
    return tuple(chosen)
