"""Exact engines of odd habits, which must never be called NOT EXACT; see ``held_out``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from held_out import CLAIMS, Wrapped, seeing
from numpy.typing import NDArray

from conformance.adapters.reference import Batch, ReferenceEngine
from conformance.contract import Completion, ModelPair, Request
from conformance.faults.steps import Block, Emitted, Steps, judged, streams
from conformance.law import Floats
from conformance.reference import Ints, acceptance, draw, residual
from conformance.tinylm import TinyLlama, Tokens

ANY = replace(CLAIMS, verification="any")


def shortened(b: Block, length: Ints) -> Emitted:
    """Only the first `length` proposals count, [B]; then a bonus token."""
    made = np.arange(b.k) < length[:, None]
    e = judged(replace(b, coins=np.where(made, b.coins, 2.0)))
    rows = np.flatnonzero((e.accepted == length) & (length < b.k))
    e.tokens[rows, length[rows]] = draw(b.p[rows, length[rows]], b.last[rows])
    return Emitted(e.tokens, e.accepted, length)


def by_history(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """One proposal more than were accepted last time."""
    last = np.array([r[-1][1] + 1 if (r := batch.rounds[i]) else 2 for i in rows])
    return shortened(b, np.minimum(last, b.k))


def by_entropy(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """As many proposals as the draft is sure of, at least one, and none after token 3."""
    entropy = -(b.q * np.log(np.maximum(b.q, 1e-300))).sum(axis=-1)
    length = np.maximum(np.cumprod(entropy < 2.0, axis=1).sum(axis=1), 1)
    return shortened(b, np.where(b.before == 3, 0, length))


def falls_back(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """No more proposals after a block that was rejected at once, until the request ends."""
    stuck = np.array([any(d and not a for d, a in batch.rounds[i]) for i in rows])
    return shortened(b, np.where(stuck, 0, b.k))


def no_bonus(b: Block) -> Emitted:
    """A block that was accepted whole has no bonus token: its last token counts as drawn."""
    e = judged(b)
    full = e.accepted == b.k
    e.tokens[full, b.k] = -1
    return Emitted(e.tokens, np.where(full, b.k - 1, e.accepted))


def siblings(b: Block) -> Emitted:
    """A second sample of the draft is tried where the first proposal fails (SpecInfer)."""
    e = judged(b)
    rows = np.flatnonzero(e.accepted == 0)
    p, q = residual(b.p[rows, 0], b.q[rows, 0]), b.q[rows, 0]
    x = draw(q, b.extra[rows, 0])
    a = acceptance(p, q)[np.arange(len(rows)), x]
    other = draw(residual(p, q), b.extra[rows, 2])
    e.tokens[rows, 0] = np.where(b.extra[rows, 1] < a, x, other)
    return e


def race(law: Floats, noise: Floats) -> Ints:
    """An exponential race: exact, and ranks tokens in no order. [B, V], [B, V] -> [B]"""
    return np.asarray((law / noise).argmax(axis=-1))


def racing(b: Block) -> Emitted:
    """Recovered and bonus tokens by a race, as most engines draw."""
    e = judged(b)
    rows, at = np.arange(len(b.last)), np.minimum(e.accepted, b.k - 1)
    law = np.where(
        (e.accepted == b.k)[:, None], b.p[:, b.k], residual(b.p[rows, at], b.q[rows, at])
    )
    noise = np.random.default_rng((b.last * 2**53).astype(np.uint64)).standard_exponential(
        law.shape
    )
    e.tokens[rows, e.accepted] = race(law, noise)
    return e


def narrow(b: Block) -> Emitted:
    """The rule in float32."""
    return judged(replace(b, p=b.p.astype(np.float32), q=b.q.astype(np.float32)))


def one_stream(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
    """A batch draws from one generator, row by row."""
    return streams(seeds[:1], len(seeds) * blocks, width).reshape(len(seeds), blocks, width)


class Drafting(Batch):
    """Other drafts: what they propose from is what the rule is told."""

    @staticmethod
    def change(batch: Batch, rows: Tokens, z: Floats) -> Floats:
        """The draft's logits."""
        raise NotImplementedError

    def _logits(self, which: int, rows: Tokens, start: Tokens, count: int) -> Floats:
        z = super()._logits(which, rows, start, count)
        return self.change(self, rows, z) if which == 1 else z


def drafting(change: Callable[[Batch, Tokens, Floats], Floats]) -> type[Batch]:
    """Batches with another draft."""
    return type("Other", (Drafting,), {"change": staticmethod(change)})


def alternating(batch: Batch, rows: Tokens, z: Floats) -> Floats:
    """Another draft model in every second block."""
    odd = np.array([len(batch.rounds[i]) % 2 for i in rows], dtype=bool)
    return np.where(odd[:, None, None], -0.5 * z, z)


def trimmed(batch: Batch, rows: Tokens, z: Floats) -> Floats:
    """The draft knows three quarters of the ids (FR-Spec)."""
    return np.where(np.arange(z.shape[-1]) < max(z.shape[-1] * 3 // 4, 1), z, -1e9)


def mixed_up(model: TinyLlama, seed: int) -> NDArray[np.intp]:
    """A permutation of the ids."""
    return np.random.default_rng(seed).permutation(model.shape.vocab_size)


class Permuted(Batch):
    """Inside, ids are in another order, so that inverse sums run through them differently."""

    def _block(self, rows: Tokens, u: Floats, extra: Floats) -> None:
        if self.k:
            order = mixed_up(self.target, 5)
            back = np.argsort(order)

            def propose(q: Floats, u: Floats) -> Ints:
                return order[draw(q[:, order], u)]

            def verify(b: Block) -> Emitted:
                e = judged(replace(b, p=b.p[..., order], q=b.q[..., order], drafts=back[b.drafts]))
                return Emitted(np.where(e.tokens >= 0, order[e.tokens], -1), e.accepted)

            self.steps = replace(self.steps, propose=propose, verify=verify)
        super()._block(rows, u, extra)


class Itself(ReferenceEngine):
    """The draft is the target."""

    def load(self, probe: ModelPair) -> None:
        """Load the target twice."""
        super().load(replace(probe, draft=probe.target))


def reordered(e: Wrapped, rs: Sequence[Request]) -> list[Completion]:
    """Requests are answered sorted by prompt and seed, in calls of five."""
    order = sorted(range(len(rs)), key=lambda i: (rs[i].prompt, rs[i].seed or 0))
    out: dict[int, Completion] = {}
    for begin in range(0, len(order), 5):
        mine = order[begin : begin + 5]
        out |= zip(mine, e.plainly([rs[i] for i in mine]), strict=True)
    return [out[i] for i in range(len(rs))]


def without_rounds(e: Wrapped, rs: Sequence[Request]) -> list[Completion]:
    """Rounds are not told."""
    return [replace(a, rounds=None) for a in e.plainly(rs)]


def merged_rounds(e: Wrapped, rs: Sequence[Request]) -> list[Completion]:
    """Two blocks are told as one: the token between them counts as accepted."""
    out = []
    for a in e.plainly(rs):
        r = list(a.rounds or ())
        pairs = [(r[i], r[i + 1]) for i in range(0, len(r) - 1, 2)]
        told = [(d1 + d2 + 1, a1 + a2 + 1) for (d1, a1), (d2, a2) in pairs]
        out.append(replace(a, rounds=told + ([r[-1]] if len(r) % 2 else [])))
    return out


def engine(
    steps: Steps | None = None, batch: type[Batch] = Batch, **more: object
) -> Callable[[], ReferenceEngine]:
    """How to make one."""
    return lambda: ReferenceEngine(steps or Steps(), capabilities=CLAIMS, batch=batch, **more)  # type: ignore[arg-type]


EXACT: dict[str, Callable[[], ReferenceEngine]] = {
    "length-by-history": engine(batch=seeing(by_history)),
    "length-by-entropy": engine(batch=seeing(by_entropy)),
    "falls-back": engine(batch=seeing(falls_back)),
    "no-bonus": engine(Steps(verify=no_bonus)),
    "siblings": engine(Steps(verify=siblings, extra=3)),
    "racing": engine(Steps(verify=racing)),
    "float32-rule": engine(Steps(verify=narrow)),
    "float32-models": engine(dtype=np.float32),
    "one-stream": engine(Steps(uniforms=one_stream)),
    "changing-drafts": engine(batch=drafting(alternating)),
    "trimmed-draft": engine(batch=drafting(trimmed)),
    "uniform-draft": engine(batch=drafting(lambda b, r, z: 0.0 * z)),
    "other-id-order": engine(batch=Permuted),
    "one-proposal": engine(proposals=1),
    "seven-proposals": engine(proposals=7),
    "its-own-draft": lambda: Itself(capabilities=CLAIMS),
    "reordered": lambda: Wrapped(reordered),
    "without-rounds": lambda: Wrapped(without_rounds),
    "merged-rounds": lambda: Wrapped(merged_rounds),
}  # fmt: skip
