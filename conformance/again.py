"""The same requests with the same seeds, once more: what an engine claims to answer alike."""

from __future__ import annotations

from conformance.evidence import Evidence
from conformance.verdict import Finding

TEST = "reproducibility"


def repeated(speculative: Evidence, again: Evidence) -> Finding:
    """Compare the first answers with those given when the same was asked again, in batches of
    another size.
    """
    first = min(len(again.tokens), len(speculative.tokens))
    seeded = speculative.seeds[:first] >= 0
    n = int(seeded.sum())
    other = speculative.tokens[:first] != again.tokens[:first]
    differ = int(other.any(axis=1)[seeded].sum())
    return Finding(
        TEST,
        "same request, same seed",
        "speculative",
        n=n,
        rejected=differ > 0,
        message=(
            f"{differ:,} of {n:,} requests are answered otherwise when they are asked again with "
            "the same seed, which the engine claims they are not"
            if differ
            else f"{n:,} requests asked again with the same seed were answered alike"
        ),
    )
