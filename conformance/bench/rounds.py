"""What the rounds of the speculative arm say: how long blocks are, and how much of them is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conformance import wire
from conformance.acceptance import chances
from conformance.bench.intervals import Measured, clustered_rate
from conformance.bench.measure import Timed
from conformance.decoding import Decoding, Dialect
from conformance.law import Floats, warp
from conformance.tinylm import TinyLlama

MOST_WORK = 4e11  # multiplications spent on one cell's laws


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


def most_acceptable(
    target: TinyLlama,
    draft: TinyLlama,
    calls: Sequence[Timed],
    decoding: Decoding,
    dialect: Dialect,
) -> Measured | None:
    """Mean of sum min(p, q) over the prefixes at which a proposal was verified.

    No exact rule that verifies one token after the other can accept more, and rejection sampling
    accepts just that on average. Laws are float64. As many requests are used as `MOST_WORK` pays
    for, in the order in which they were asked; None if that is none, or nothing was verified.
    """
    hits: list[float] = []
    tried: list[float] = []
    work = 0.0
    parameters = _parameters(target) + _parameters(draft)
    for call in calls:
        for prompt, completion in zip(call.prompts, call.completions, strict=True):
            work += parameters * (len(prompt) + len(completion["tokens"]))
            if work > MOST_WORK and hits:
                break
            at = _verified(completion)
            if len(at) == 0 or max(completion["tokens"]) >= target.shape.vocab_size:
                continue
            p, q = (
                warp(_logits(model, prompt, completion["tokens"], at), decoding, dialect)
                for model in (target, draft)
            )
            hits.append(float(chances(p, q)[:, 0].sum()))
            tried.append(float(len(at)))
    return clustered_rate(np.array(hits), np.array(tried)) if hits else None


def _verified(completion: wire.Json) -> np.ndarray:
    """Output indices at which a proposal was verified."""
    at: list[int] = []
    begin = 0
    for k, n in completion["rounds"]:
        at += range(begin, begin + min(n + 1, k))
        begin += n + 1
    return np.array([t for t in at if t < len(completion["tokens"])], dtype=np.int64)


def _logits(
    model: TinyLlama, prompt: Sequence[int], tokens: Sequence[int], at: np.ndarray
) -> Floats:
    """Logits after the prompt and the first ``at`` tokens. [n, V]"""
    whole = np.array([[*prompt, *tokens[:-1]]], dtype=np.int64)
    return np.asarray(model.logits(whole)[0][len(prompt) - 1 + at])


def _parameters(model: TinyLlama) -> float:
    s = model.shape
    kv = s.kv_heads * s.head_dim
    layer = 2 * s.hidden * s.hidden + 2 * s.hidden * kv + 3 * s.hidden * s.intermediate
    return float(s.layers * layer + s.hidden * s.vocab_size)
