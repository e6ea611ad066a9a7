"""What a suite asks: decodings, chosen so that an engine which leaves a step out shows it.

The suite ``law`` is sampling itself. Around it, each in a suite of its own, is what else shapes an
output: where it ends, and what is done to logits before they are warped. Token ids are those of
probes of 32 tokens; strengths are such that the law without the step is off by a total variation
of .2 or more on average (the tests measure that).
"""

from __future__ import annotations

from collections.abc import Iterable

from conformance.decoding import DEFAULT_DECODINGS, Decoding
from conformance.errors import PlanError

STOPS = (5, 17, 23)
# so many that holding them back changes the law by enough
MANY = (1, 3, 5, 9, 13, 15, 17, 21, 25, 27)
# ... and so many that an output ends as soon as it may, about the end of a first block
MOST = (1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27)
LAW = "law"
SUITES: dict[str, tuple[Decoding, ...]] = {
    LAW: DEFAULT_DECODINGS,
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
}
ALL = "all"


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
