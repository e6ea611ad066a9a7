"""What an engine told of its blocks, counted: was speculation seen to happen?"""

from __future__ import annotations

from conformance.evidence import Evidence
from conformance.verdict import Speculation

LONGEST_BLOCK = 16


def speculation_seen(evidence: Evidence) -> Speculation:
    """Count what the engine reported of its blocks."""
    if evidence.rounds is None:
        return _counted(evidence)
    drafted, accepted = evidence.rounds[:, 1], evidence.rounds[:, 2]
    blocks = drafted > 0
    return Speculation(
        reported=True,
        blocks=int(blocks.sum()),
        drafted=int(drafted.sum()),
        accepted=int(accepted.sum()),
        rejected=int((blocks & (accepted < drafted)).sum()),
        longest=int(accepted.max(initial=0)),
    )


def _counted(evidence: Evidence) -> Speculation:
    """What totals tell. How many blocks ended in a rejection they do not; one loses the rest
    of its block: as many proposals as are left to ask for, and hardly more than LONGEST_BLOCK.
    """
    if evidence.counts is None:
        return Speculation()
    drafted, accepted = (int(n) for n in evidence.counts.sum(axis=0))
    return Speculation(
        reported=True,
        drafted=drafted,
        accepted=accepted,
        rejected=(drafted - accepted) // max(1, min(evidence.tokens.shape[1], LONGEST_BLOCK)),
    )
