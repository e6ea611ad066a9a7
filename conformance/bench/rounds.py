"""What the rounds of the speculative arm say: how long blocks are, and how much of them is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conformance import wire
from conformance.bench.intervals import Measured, clustered_rate
from conformance.law import Floats


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of some requests.

    Parameters
    ----------
    drafted : Counter of int
        Blocks by number of proposals; 0 is a plain step.
    accepted : Counter of int
        Blocks with a proposal by number of accepted ones.
    looked_at, kept : (n,) float64
        Proposals that were verified, and accepted, of every request: after a rejection the rest of
        a block is thrown away unseen.
    """

    drafted: Counter[int]
    accepted: Counter[int]
    looked_at: Floats
    kept: Floats

    @property
    def rate(self) -> Measured | None:
        """Of proposals that were verified, how many were accepted."""
        return clustered_rate(self.kept, self.looked_at)

    @property
    def proposals(self) -> int:
        """Tokens proposed."""
        return sum(k * n for k, n in self.drafted.items())

    @property
    def tokens_per_block(self) -> float:
        """Tokens that a block emits, the one that the target adds included."""
        return 1 + float(self.kept.sum()) / max(1, sum(self.drafted.values()))


def blocks_of(completions: Sequence[wire.Json]) -> Blocks | None:
    """Read the rounds; None if any request came without."""
    rounds = [c.get("rounds") for c in completions]
    if not rounds or any(r is None for r in rounds):
        return None
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    looked_at, kept = np.zeros(len(rounds)), np.zeros(len(rounds))
    for i, pairs in enumerate(rounds):
        for k, n in pairs or ():
            drafted[k] += 1
            if k:
                accepted[n] += 1
            looked_at[i] += min(n + 1, k)
            kept[i] += n
    return Blocks(drafted, accepted, looked_at, kept)


def counted_rate(completions: Sequence[wire.Json]) -> tuple[int, int] | None:
    """Drafted and accepted tokens of an engine that tells no more; None if not even that."""
    counts = [c["counts"] for c in completions if c.get("counts") is not None]
    if not counts:
        return None
    drafted, accepted = (int(n) for n in np.array(counts, dtype=np.int64).sum(axis=0))
    return drafted, accepted
