"""How often proposals are accepted, beside what target and draft would predict.

For information only: whether an engine is exact does not depend on it, and an exact rule may accept
fewer or more than the usual one. But where it accepts far from what its own rule would, something
is wrong: in the rule, or in the probabilities it is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.evidence import Evidence
from conformance.law import Floats
from conformance.reading import Reading
from conformance.statistics.proportion import wilson
from conformance.strata import FIRST, LATER, block_places
from conformance.verdict import Interval

SHOWN_PLACES = 8
EVERY_PROPOSAL = "all proposals"


@dataclass(frozen=True, slots=True)
class AcceptedAt:
    """Proposals at one place of the block.

    Parameters
    ----------
    place : str
        ``"all proposals"``, or which one of the block.
    proposals, accepted : int
        How many were judged, and how many of them were accepted.
    rate : Interval
        Their ratio.
    rejection, matching, likeliest : float
        What would be accepted on average at the same prefixes, by each of `chances.METHODS`; None
        where it was not worked out.
    """

    place: str
    proposals: int
    accepted: int
    rate: Interval
    rejection: float
    matching: float | None = None
    likeliest: float | None = None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Observed against predicted acceptance; `places` begins with all of them.

    `verified` says that proposals are counted which were looked at: a rejection makes the rest of
    its block pointless. Without rounds all that were drafted are counted, so that the ratio is
    smaller.
    """

    places: tuple[AcceptedAt, ...]
    verified: bool


def acceptance(reading: Reading, evidence: Evidence) -> Acceptance | None:
    """What the speculative arm's rounds, or counts, say; None where they say nothing, or the
    draft's law is not known.
    """
    if reading.chances is None:
        return None
    places = block_places(evidence)
    if places is None:
        return _counted(reading, evidence)
    kind, position, accepted = places
    verified = ((kind == FIRST) | (kind == LATER)) & reading.judged
    rows = [_at(EVERY_PROPOSAL, reading.chances[verified], accepted[verified])]
    for j in range(min(SHOWN_PLACES, int(position[verified].max(initial=-1)) + 1)):
        here = verified & (position == j)
        rows.append(_at(f"proposal {j + 1} of a block", reading.chances[here], accepted[here]))
    found = tuple(row for row in rows if row is not None)
    return Acceptance(found, verified=True) if found else None


def _counted(reading: Reading, evidence: Evidence) -> Acceptance | None:
    if evidence.counts is None or reading.chances is None or not reading.judged.any():
        return None
    drafted, accepted = (int(n) for n in evidence.counts.sum(axis=0))
    if not 0 < drafted >= accepted >= 0:
        return None
    everywhere = reading.chances[reading.judged].mean(axis=0)
    return Acceptance((accepted_at(EVERY_PROPOSAL, drafted, accepted, *everywhere),), False)


def _at(place: str, chance: Floats, accepted: np.ndarray) -> AcceptedAt | None:
    if len(chance) == 0:
        return None
    return accepted_at(place, len(chance), int(accepted.sum()), *chance.mean(axis=0))


def accepted_at(place: str, proposals: int, accepted: int, *chance: float) -> AcceptedAt:
    """One place, with an interval."""
    rate = Interval(accepted / proposals, *wilson(accepted, proposals))
    return AcceptedAt(place, proposals, accepted, rate, *(float(c) for c in chance))
