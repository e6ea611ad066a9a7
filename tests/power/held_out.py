"""Held-out faults: departures that no test of the suite was designed against.

They were written down and frozen before any of them was run, and are different in kind from those
of the catalogue. `FAULTS` holds whole engines; bare verifiers are in ``held_out_verifiers``, and
exact engines of odd habits in ``held_out_exact``. A fault that the suite misses stays here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.adapters.reference import Batch, ReferenceEngine
from conformance.contract import Capabilities, Completion, ModelPair, Request
from conformance.faults.steps import Block, Emitted, Steps, judged, streams
from conformance.law import Bools, Floats, softmax, warp
from conformance.reference import Ints, acceptance, draw, residual
from conformance.tinylm import TinyLlama, Tokens

ROWS = 64  # requests a call, as most adapters have it
CLAIMS = Capabilities(draft="model", max_batch=ROWS, verification="token")
Around = Callable[["Wrapped", Sequence[Request]], list[Completion]]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A fault: what it does, and a fresh engine that does it."""

    summary: str
    make: Callable[[], ReferenceEngine]


FAULTS: dict[str, HeldOut] = {}


# --- ways to be wrong -----------------------------------------------------------------------------


class Wrapped(ReferenceEngine):
    """Something goes wrong round the batches."""

    def __init__(self, around: Around) -> None:
        super().__init__(capabilities=CLAIMS)
        self.around = around

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer requests."""
        if not requests[0].speculate:
            return super().generate(requests)
        return self.around(self, requests)

    def plainly(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer them rightly."""
        return super().generate(requests)


def fault(name: str, summary: str, steps: Steps | None = None, batch: type[Batch] = Batch) -> None:
    """Enter an engine whose steps, or whose batches, are wrong."""
    FAULTS[name] = HeldOut(
        summary, lambda: ReferenceEngine(steps or Steps(), capabilities=CLAIMS, batch=batch)
    )


def seeing(wrong: Callable[[Batch, Tokens, Block], Emitted]) -> type[Batch]:
    """Batches whose verification also sees the batch and which of its rows are verified."""

    class Seeing(Batch):
        def _block(self, rows: Tokens, u: Floats, extra: Floats) -> None:
            self.steps = replace(self.steps, verify=lambda b: wrong(self, rows, b))
            super()._block(rows, u, extra)

    return Seeing


def changed(change: Callable[[Block], Block]) -> Steps:
    """Right verification of something wrong."""
    return Steps(verify=lambda b: judged(change(b)))


def accepting(b: Block, where: Bools) -> Block:
    """Proposals are accepted for certain where `where` holds. [B, 1] or [B, K]"""
    return replace(b, coins=np.where(where, -1.0, b.coins))


def recovering(b: Block, law: Callable[[Block, Ints, Ints], Floats], u: Floats) -> Emitted:
    """Right acceptance, then a replacement from another law or by another uniform."""
    e = judged(b)
    rows = np.flatnonzero(e.accepted < b.k)
    at = e.accepted[rows]
    e.tokens[rows, at] = draw(law(b, rows, at), u[rows])
    return e


def right_residual(b: Block, rows: Ints, at: Ints) -> Floats:
    """[b, V]"""
    return residual(b.p[rows, at], b.q[rows, at])


def normal(weights: Floats) -> Floats:
    """Weights that sum to 1."""
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def verdicts(b: Block, passed: Bools) -> Emitted:
    """Go on as long as `passed` holds, [B, K]; replacement and bonus are right."""
    return judged(replace(b, coins=np.where(passed, -1.0, 2.0)))


def ratios(b: Block) -> Floats:
    """min(1, p/q) of every proposal. [B, K]"""
    a = acceptance(b.p[:, : b.k], b.q)
    return np.asarray(np.take_along_axis(a, b.drafts[..., None], axis=-1)[..., 0])


# --- coins ----------------------------------------------------------------------------------------


def product_ratio(b: Block) -> Emitted:
    """All or nothing: one coin against the product of the ratios."""
    whole = b.coins[:, :1] < ratios(b).prod(axis=1, keepdims=True)
    return verdicts(b, np.repeat(whole, b.k, axis=1))


def minimum_ratio(b: Block) -> Emitted:
    """Every proposal is judged by the smallest ratio of its block."""
    return verdicts(b, b.coins < ratios(b).min(axis=1, keepdims=True))


def longer_of_two(b: Block) -> Emitted:
    """Two sets of coins are thrown, as by two workers, and the longer block is kept."""
    again = judged(replace(b, coins=b.extra[:, : b.k], last=b.extra[:, b.k]))
    e = judged(b)
    longer = again.accepted > e.accepted
    return Emitted(
        np.where(longer[:, None], again.tokens, e.tokens),
        np.where(longer, again.accepted, e.accepted),
    )


def second_try(b: Block) -> Emitted:
    """A rejected first proposal is proposed anew, once, instead of being replaced."""
    x = b.drafts.copy()
    lost = b.coins[:, 0] >= ratios(b)[:, 0]
    x[lost, 0] = draw(b.q[lost, 0], b.extra[lost, 0])
    coins = b.coins.copy()
    coins[lost, 0] = b.extra[lost, 1]
    # what follows was computed after the old proposal, so a new one ends the block
    coins[lost, 1:] = 2.0
    again = judged(replace(b, drafts=x, coins=coins))
    cut = lost & (again.accepted == 1)
    again.tokens[cut, 1:] = -1
    return Emitted(again.tokens, np.where(cut, 0, again.accepted))


def keep_uniforms(columns: slice) -> Callable[[tuple[int, ...], int, int], Floats]:
    """Some columns are drawn once a request and kept for all its blocks."""

    def uniforms(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
        u = streams(seeds, blocks, width)
        u[:, :, columns] = u[:, :1, columns]
        return u

    return uniforms


fault("one-coin", "one coin decides a whole block, against each ratio in turn",
      changed(lambda b: replace(b, coins=np.repeat(b.coins[:, :1], b.k, axis=1))))  # fmt: skip
fault("product-ratio", "a block is kept whole or not at all, by the product of its ratios",
      Steps(verify=product_ratio))  # fmt: skip
fault("minimum-ratio", "every proposal is judged by the smallest ratio of its block",
      Steps(verify=minimum_ratio))  # fmt: skip
fault("sorted-coins", "the coins of a block come sorted",
      changed(lambda b: replace(b, coins=np.sort(b.coins, axis=1))))  # fmt: skip
fault("antithetic-coins", "every second coin of a block is 1 less the one before",
      changed(lambda b: replace(b, coins=np.where(np.arange(b.k) % 2 == 1,
                                                  1 - np.roll(b.coins, 1, axis=1), b.coins))))  # fmt: skip
fault("coin-off-by-one", "a coin is also the uniform that drew the next proposal",
      changed(lambda b: replace(b, coins=np.concatenate(
          [b.proposing[:, 1:], b.coins[:, -1:]], axis=1))))  # fmt: skip
fault("last-from-proposal", "the replacement is drawn by the uniform that drew the first proposal",
      Steps(verify=lambda b: recovering(b, right_residual, b.proposing[:, 0])))  # fmt: skip
fault("bonus-from-coin", "the bonus token is drawn by the block's last coin",
      Steps(verify=lambda b: judged(replace(
          b, last=np.where(judged(b).accepted == b.k, b.coins[:, -1], b.last)))))  # fmt: skip
fault(
    "longer-of-two", "the longer of two verifications is kept", Steps(verify=longer_of_two, extra=5)
)
fault(
    "second-try",
    "a rejected first proposal is drafted anew, once",
    Steps(verify=second_try, extra=2),
)
fault(
    "coins-frozen", "the coins are drawn once a request", Steps(uniforms=keep_uniforms(slice(4, 8)))
)
fault("last-frozen", "the uniform of replacements is drawn once a request",
      Steps(uniforms=keep_uniforms(slice(-1, None))))  # fmt: skip


# --- the ratio and the residual -------------------------------------------------------------------


def raw(b: Block, logits: Floats, **fields: object) -> Floats:
    """The law with parts of the decoding left out."""
    if b.decoding.greedy:
        return warp(logits, b.decoding, b.dialect)
    return warp(logits, replace(b.decoding, **fields), b.dialect)  # type: ignore[arg-type]


def split(ratio: Callable[[Block], Block]) -> Steps:
    """Acceptance by changed laws, replacement and bonus by the right ones."""
    return Steps(verify=lambda b: verdicts(b, b.coins < ratios(ratio(b))))


def filtered(b: Block) -> Block:
    """The target keeps what the draft's filter kept."""
    q = np.concatenate([b.q, b.q[:, -1:]], axis=1)
    kept = np.where((q > 0) | (q.sum(-1, keepdims=True) == 0), b.p, 0.0)
    return replace(
        b, p=np.where(kept.sum(-1, keepdims=True) > 0, normal(np.maximum(kept, 1e-300)), b.p)
    )


def top_only(b: Block, n: int) -> Block:
    """What the draft's n likeliest leave out counts as 0, so p/q is infinite."""
    cut = np.sort(b.q, axis=-1)[..., -min(n, b.q.shape[-1])][..., None]
    return replace(b, q=np.where(b.q >= cut, b.q, 1e-12))


def unnormalised_q(b: Block) -> Block:
    """The filter's zeros, but the draft's law is not divided by what is left."""
    return replace(b, q=np.where(b.q > 0, raw(b, b.draft_logits, top_k=None, top_p=None), 0.0))


def clamped(eps: float) -> Steps:
    """max(p - q, eps) where max(p - q, 0) is meant."""
    return Steps(verify=lambda b: recovering(
        b, lambda b, r, a: normal(np.maximum(b.p[r, a] - b.q[r, a], eps)), b.last))  # fmt: skip


def without_last_id(b: Block) -> Block:
    """The last column is taken for padding."""
    p = b.p.copy()
    p[..., -1] = 0.0
    return replace(b, p=np.where(p.sum(-1, keepdims=True) > 0, normal(np.maximum(p, 1e-300)), b.p))


def two_decimals(law: Floats) -> Floats:
    """A law that came over the wire as logprobs of two decimals, not normalised again."""
    return np.asarray(np.where(law > 0, np.exp(np.round(np.log(np.maximum(law, 1e-300)), 2)), 0.0))


class Avoiding(Batch):
    """A draft with a ban on repeats that q does not tell of."""

    def _block(self, rows: Tokens, u: Floats, extra: Floats) -> None:
        before = self.tokens[rows, self.length[rows] - 1]

        def propose(q: Floats, u: Floats) -> Ints:
            nonlocal before
            other = np.arange(q.shape[1]) != before[:, None]
            left = np.where((q * other).sum(axis=1, keepdims=True) > 0, q * other, q)
            before = draw(normal(left), u)
            return before

        self.steps = replace(self.steps, propose=propose)
        super()._block(rows, u, extra)


fault("tempered-q-only", "acceptance takes p before temperature and q after it",
      split(lambda b: replace(b, p=raw(b, b.target_logits, temperature=1.0))))  # fmt: skip
fault("raw-q-in-residual", "the residual takes q before top-k and top-p, acceptance after",
      Steps(verify=lambda b: recovering(b, lambda b, r, a: residual(
          b.p[r, a], raw(b, b.draft_logits, top_k=None, top_p=None)[r, a]), b.last)))  # fmt: skip
fault("draft-s-nucleus", "the filter is computed on q and applied to p", changed(filtered))
fault("unnormalised-q", "q is filtered but not normalised in the ratio", split(unnormalised_q))
fault("refiltered-residual", "top-k and top-p are applied to the residual once more",
      Steps(verify=lambda b: recovering(b, lambda b, r, a: raw(
          b, np.log(np.maximum(right_residual(b, r, a), 1e-300)), temperature=1.0), b.last)))  # fmt: skip
fault("top-8-of-q", "of q only the 8 likeliest are known, the others count as 0",
      split(lambda b: top_only(b, 8)))  # fmt: skip
fault("top-20-of-q", "of q only the 20 likeliest are known, the others count as 0",
      split(lambda b: top_only(b, 20)))  # fmt: skip
fault("clamped-residual=1e-3", "the residual is clamped to at least 1e-3", clamped(1e-3))
fault("clamped-residual=1e-5", "the residual is clamped to at least 1e-5", clamped(1e-5))
fault("ratio-tolerance", "a ratio above 0.95 is taken for 1",
      Steps(verify=lambda b: verdicts(b, (b.coins < ratios(b)) | (ratios(b) > 0.95))))  # fmt: skip
fault("never-sure", "the acceptance probability is capped at 0.98",
      Steps(verify=lambda b: verdicts(b, b.coins < np.minimum(ratios(b), 0.98))))  # fmt: skip
fault("last-id-lost", "the target's last id is taken for padding", changed(without_last_id))
fault("logprobs-rounded", "q comes as logprobs of two decimals",
      split(lambda b: replace(b, q=two_decimals(b.q))))  # fmt: skip
fault("neighbour-q", "the last proposal's q is that of the row above",
      changed(lambda b: replace(b, q=np.concatenate(
          [b.q[:, :-1], np.roll(b.q[:, -1:], 1, axis=0)], axis=1))))  # fmt: skip
fault("draft-avoids-repeats", "the draft never proposes a token twice running; q says it might",
      batch=Avoiding)  # fmt: skip


# --- the target's law -----------------------------------------------------------------------------


def logits_changed(change: Callable[[Block, Floats], Floats]) -> Steps:
    """The verifier's logits are changed before the decoding is applied."""
    return changed(lambda b: replace(b, p=warp(change(b, b.target_logits), b.decoding, b.dialect)))


def penalised(b: Block, z: Floats, by: float) -> Floats:
    """The repetition penalty, on what the prompt contains."""
    seen = np.zeros((len(z), z.shape[-1]), dtype=bool)
    np.put_along_axis(seen, b.prompts, True, axis=1)
    return np.where(seen[:, None], np.where(z > 0, z / by, z * by), z)


def averaged(_: Block, z: Floats) -> Floats:
    """An average with the position before, within the block."""
    out = z.copy()
    out[:, 1:] = 0.95 * z[:, 1:] + 0.05 * z[:, :-1]
    return out


def biased(b: Block) -> Block:
    """Token 0 gains 0.002."""
    if b.decoding.greedy:
        return b
    p = b.p * 0.998
    p[..., 0] += 0.002
    return replace(b, p=p)


def noisy(b: Block) -> Emitted:
    """Gaussian noise of 0.3 on every logit, as from kernels that do not reproduce."""
    v = b.p.shape[-1]
    z = np.random.default_rng((b.last * 2**53).astype(np.uint64)).standard_normal(
        (*b.p.shape[:2], v)
    )
    p = warp(b.target_logits + 0.3 * z, b.decoding, b.dialect)
    return judged(replace(b, p=p))


def strict_top_k(b: Block) -> Block:
    """Keeps what is above the k-th largest logit, not the k-th itself."""
    k = b.decoding.top_k
    return b if k is None else replace(b, p=raw(b, b.target_logits, top_k=k - 1))


def near_argmax(b: Block) -> Emitted:
    """Greedy: a proposal within 0.02 nats of the largest logit will do."""
    if not b.decoding.greedy:
        return judged(b)
    z = b.target_logits[:, : b.k]
    mine = np.take_along_axis(z, b.drafts[..., None], axis=-1)[..., 0]
    return verdicts(b, mine >= z.max(axis=-1) - 0.02)


def greedy_late(b: Block) -> Emitted:
    """Greedy: the first proposal after output index 28 goes unchecked."""
    here = b.decoding.greedy & (b.index[:, : b.k] >= 29)
    return judged(accepting(b, here))


fault("penalty=1.05", "a repetition penalty of 1.05 from the model's own configuration",
      logits_changed(lambda b, z: penalised(b, z, 1.05)))  # fmt: skip
fault(
    "penalty=1.01",
    "a repetition penalty of 1.01",
    logits_changed(lambda b, z: penalised(b, z, 1.01)),
)
fault(
    "averaged-logits",
    "logits are averaged with those of the position before",
    logits_changed(averaged),
)
fault("token-0-gains", "token 0 gains a probability of 0.002", changed(biased))
fault("noisy-logits", "independent noise of 0.3 on every logit", Steps(verify=noisy))
fault("quantised-logits", "the verifier's logits are multiples of 1/8",
      logits_changed(lambda b, z: np.round(z * 8) / 8))  # fmt: skip
fault("strict-top-k", "the k-th likeliest token is filtered out", changed(strict_top_k))
fault("near-argmax", "greedy decoding accepts what is within 0.02 nats of the argmax",
      Steps(verify=near_argmax))  # fmt: skip
fault("greedy-late", "greedy decoding leaves proposals from output index 29 on unchecked",
      Steps(verify=greedy_late))  # fmt: skip


# --- rarely, or somewhere -------------------------------------------------------------------------


def some(share: float) -> Steps:
    """A block goes unverified with some probability."""
    return Steps(verify=lambda b: judged(accepting(b, b.extra[:, :1] < share)), extra=1)


def last_row(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """Only in a batch's last row."""
    return judged(accepting(b, (rows == ROWS - 1)[:, None]))


def after_two_full(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """Only after two blocks in a row that were accepted whole."""
    full = [len(r := batch.rounds[i]) > 1 and r[-1][1] == r[-2][1] == b.k for i in rows]
    return judged(accepting(b, np.array(full)[:, None]))


def after_two_empty(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """After two blocks with nothing accepted the first proposal is let through."""
    stuck = [len(r := batch.rounds[i]) > 1 and r[-1][1] == r[-2][1] == 0 for i in rows]
    first = np.arange(b.k) == 0
    return judged(accepting(b, np.array(stuck)[:, None] & first))


def first_after_full(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """After a bonus token the next proposal counts as verified."""
    full = [bool(r := batch.rounds[i]) and r[-1][1] == b.k for i in rows]
    return judged(accepting(b, np.array(full)[:, None] & (np.arange(b.k) == 0)))


def tail_unverified(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """The last token that is asked for is never checked."""
    return judged(accepting(b, b.index[:, : b.k] == batch.wanted - 1))


def compacted(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """When rows have finished, those after a gap read q of the row that was there before."""
    where = np.searchsorted(rows, np.minimum(rows, len(rows) - 1))
    gone = rows != np.arange(len(rows))
    q = np.where(gone[:, None, None], b.q[np.minimum(where, len(rows) - 1)], b.q)
    return judged(replace(b, q=q))


def crosstalk(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """One per cent of the row above is mixed into every target law."""
    return judged(replace(b, p=0.99 * b.p + 0.01 * np.roll(b.p, 1, axis=0)))


fault("some-blocks=0.02", "one block in fifty goes unverified", some(0.02))
fault("some-blocks=0.1", "one block in ten goes unverified", some(0.1))
fault("last-row", "the last row of a full batch goes unverified", batch=seeing(last_row))
fault(
    "after-two-full",
    "goes unverified after two blocks accepted whole",
    batch=seeing(after_two_full),
)
fault(
    "after-two-empty",
    "lets a proposal through after two empty blocks",
    batch=seeing(after_two_empty),
)
fault(
    "first-after-full",
    "the proposal after a bonus token goes unverified",
    batch=seeing(first_after_full),
)
fault("tail-unverified", "the last token asked for goes unverified", batch=seeing(tail_unverified))
fault("compacted-rows", "rows read another row's q once one has finished", batch=seeing(compacted))
fault("crosstalk", "1% of the neighbouring row's law", batch=seeing(crosstalk))


# --- random numbers across requests ---------------------------------------------------------------


def stratified(columns: slice) -> Steps:
    """Requests of a batch share out [0, 1): each uniform is right by itself, together too even."""

    def uniforms(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
        u = streams(seeds, blocks, width)
        n = len(seeds)
        order = np.argsort(u, axis=0).argsort(axis=0)
        u[:, :, columns] = ((order + u) / n)[:, :, columns]
        return u

    return Steps(uniforms=uniforms)


def overlapping(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
    """One stream, of which every request skips one block's numbers, not all its blocks'."""
    u = streams(seeds[:1], len(seeds) + blocks, width)[0]
    return np.stack([u[i : i + blocks] for i in range(len(seeds))])


def shared_columns(columns: slice) -> Steps:
    """All rows of a batch use the first row's numbers for something."""

    def uniforms(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
        u = streams(seeds, blocks, width)
        u[:, :, columns] = u[:1, :, columns]
        return u

    return Steps(uniforms=uniforms)


def low_bits(bits: int) -> Steps:
    """Seeds are cut to a few bits."""
    return Steps(uniforms=lambda s, n, w: streams(tuple(x % 2**bits for x in s), n, w))


def mirrored(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
    """Every second row has 1 less the uniforms of the row before."""
    u = streams(seeds, blocks, width)
    u[1::2] = 1 - u[: 2 * (len(u) // 2) : 2]
    return u


fault("stratified", "uniforms are stratified over the rows of a batch", stratified(slice(None)))
fault("stratified-coins", "coins are stratified over the rows of a batch", stratified(slice(4, 8)))
fault("mirrored-rows", "every second row has 1 - u", Steps(uniforms=mirrored))
fault("overlapping-streams", "the streams of consecutive requests overlap but for one block",
      Steps(uniforms=overlapping))  # fmt: skip
fault("batch-coins", "all rows of a batch throw the same coins", shared_columns(slice(4, 8)))
fault(
    "batch-last",
    "all rows of a batch draw replacements by one uniform",
    shared_columns(slice(-1, None)),
)
fault(
    "batch-draft",
    "all rows of a batch draw proposals by the same uniforms",
    shared_columns(slice(4)),
)
fault("seed-8-bits", "seeds are cut to 8 bits", low_bits(8))
fault("seed-12-bits", "seeds are cut to 12 bits", low_bits(12))
fault("seed-16-bits", "seeds are cut to 16 bits", low_bits(16))
fault("seed-20-bits", "seeds are cut to 20 bits", low_bits(20))


# --- round the batches ----------------------------------------------------------------------------


def around(name: str, summary: str, make: Callable[[], Around]) -> None:
    """Enter an engine that does something wrong round its batches; `make` gives it fresh state."""
    FAULTS[name] = HeldOut(summary, lambda: Wrapped(make()))


def reseeded(requests: Sequence[Request], seeds: Sequence[int]) -> list[Request]:
    """The same requests with other seeds."""
    return [
        r if r.seed is None else replace(r, seed=s) for r, s in zip(requests, seeds, strict=True)
    ]


def per_call() -> Around:
    return lambda e, rs: e.plainly(reseeded(rs, range(len(rs))))


def cycling(n: int) -> Around:
    count = iter(range(10**9))
    return lambda e, rs: e.plainly(reseeded(rs, [next(count) % n for _ in rs]))


def dice(requests: Sequence[Request]) -> Floats:
    """A uniform for each request that nothing else uses. [B]"""
    return np.random.default_rng([r.seed or 0 for r in requests]).random(len(requests))


def retried(unwanted: Callable[[list[Completion], Sequence[Request]], list[int]]) -> Around:
    """Some answers are thrown away, and made once more with another seed."""

    def generate(e: Wrapped, rs: Sequence[Request]) -> list[Completion]:
        out = e.plainly(rs)
        again = unwanted(out, rs)
        if again and rs[0].seed is not None:
            mine = [replace(rs[i], seed=(rs[i].seed or 0) ^ 0x2AAAAAAA) for i in again]
            for i, answer in zip(again, e.plainly(mine), strict=True):
                out[i] = answer
        return out

    return generate


def slow(share: float) -> Callable[[list[Completion], Sequence[Request]], list[int]]:
    """The requests of a batch with the most rounds, as after a timeout."""

    def unwanted(out: list[Completion], rs: Sequence[Request]) -> list[int]:
        rounds = np.array([len(a.rounds or ()) for a in out])
        return np.argsort(-rounds, kind="stable")[: int(share * len(out))].tolist()

    return unwanted


def twins(out: list[Completion], rs: Sequence[Request]) -> list[int]:
    """Answers that begin like an earlier one of the batch to the same prompt."""
    seen: set[tuple[object, ...]] = set()
    found = []
    for i, (a, r) in enumerate(zip(out, rs, strict=True)):
        key = (r.prompt, tuple(a.tokens[:3]))
        if key in seen:
            found.append(i)
        seen.add(key)
    return found


def swapped(share: float) -> Around:
    """Neighbours get each other's answers."""

    def generate(e: Wrapped, rs: Sequence[Request]) -> list[Completion]:
        out = e.plainly(rs)
        for i in np.flatnonzero(dice(rs)[:-1] < share):
            out[i], out[i + 1] = out[i + 1], out[i]
        return out

    return generate


def copied_beginnings(share: float, n: int) -> Callable[[], Around]:
    """Some requests go on from the first n tokens that an earlier one of their prompt got."""

    def make() -> Around:
        memory: dict[tuple[int, ...], tuple[int, ...]] = {}

        def generate(e: Wrapped, rs: Sequence[Request]) -> list[Completion]:
            out = e.plainly(rs)
            u = dice(rs)
            for i, r in enumerate(rs):
                if u[i] < share and r.prompt in memory:
                    head = memory[r.prompt][:n]
                    ask = replace(r, prompt=r.prompt + head, max_new_tokens=r.max_new_tokens - n)
                    (rest,) = e.plainly([ask])
                    rounds = [(0, 0)] * n + list(rest.rounds or ())
                    out[i] = Completion((*head, *rest.tokens), rounds=rounds)
                memory[r.prompt] = tuple(out[i].tokens)
            return out

        return generate

    return make


def short_hash(bits: int) -> Callable[[], Around]:
    """The prompt is looked up in a prefix cache by a short hash; the first to come is used."""

    def make() -> Around:
        memory: dict[int, tuple[int, ...]] = {}

        def generate(e: Wrapped, rs: Sequence[Request]) -> list[Completion]:
            keys = [hash(r.prompt) % 2**bits for r in rs]
            return e.plainly(
                [
                    replace(r, prompt=memory.setdefault(k, r.prompt))
                    for k, r in zip(keys, rs, strict=True)
                ]
            )

        return generate

    return make


around("stream-per-call", "random numbers start anew with every call", per_call)
around("stream-cycle=37", "every 37th request has the same stream", lambda: cycling(37))
around("stream-cycle=1000", "every 1000th request has the same stream", lambda: cycling(1000))
around(
    "timeout-retry=0.1",
    "the slowest tenth of a batch is answered once more",
    lambda: retried(slow(0.1)),
)
around(
    "timeout-retry=0.02",
    "the slowest of a batch is answered once more",
    lambda: retried(slow(0.02)),
)
around(
    "twins-retried",
    "an answer that begins like another in the batch is made anew",
    lambda: retried(twins),
)
around("answers-swapped=0.1", "one in ten is given its neighbour's answer", lambda: swapped(0.1))
around(
    "answers-swapped=0.02", "one in fifty is given its neighbour's answer", lambda: swapped(0.02)
)
around(
    "copied-beginnings=0.1",
    "one in ten goes on from another's first 4 tokens",
    copied_beginnings(0.1, 4),
)
around("copied-beginnings=0.02", "one in fifty goes on from another's first 4 tokens",
       copied_beginnings(0.02, 4))  # fmt: skip
around(
    "copied-firsts=0.1", "one in ten goes on from another's first token", copied_beginnings(0.1, 1)
)
around("short-hash=8", "prompts are cached under a hash of 8 bits", short_hash(8))
around("short-hash=14", "prompts are cached under a hash of 14 bits", short_hash(14))


# --- what a kernel or a cache remembers -----------------------------------------------------------


def remembered(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """The ratio of a token is remembered by (token, length of the prefix), for one batch."""
    memory = batch.__dict__.setdefault("memory", {})
    a = ratios(b)
    for i, j in np.ndindex(*a.shape):
        key = int(b.drafts[i, j]), int(b.index[i, j])
        a[i, j] = memory.setdefault(key, a[i, j])
    return verdicts(b, b.coins < a)


def decided_before(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """A proposal after a prefix seen before in the batch is accepted, or not, as it was then."""
    memory = batch.__dict__.setdefault("memory", {})
    passed = b.coins < ratios(b)
    for i, j in np.ndindex(*passed.shape):
        end = batch.length[rows[i]] + j + 1
        key = tuple(batch.tokens[rows[i], :end].tolist())
        passed[i, j] = memory.setdefault(key, bool(passed[i, j]))
    return verdicts(b, passed)


class Turned(TinyLlama):
    """A model whose positions can be off, row by row."""

    turn: Tokens | None = None

    def _rotate(self, x: Floats, at: Tokens) -> Floats:
        return super()._rotate(x, at if self.turn is None else at + self.turn[:, None])


class Slipping(Batch):
    """The target's position ids fall one behind with every rejection; the cache is right."""

    def _logits(self, which: int, rows: Tokens, start: Tokens, count: int) -> Floats:
        if which == 0 and self.k:
            assert isinstance(self.target, Turned)
            self.target.turn = -np.array([sum(a < d for d, a in self.rounds[i]) for i in rows])
        try:
            return super()._logits(which, rows, start, count)
        finally:
            if isinstance(self.target, Turned):
                self.target.turn = None


class Rotated(ReferenceEngine):
    """An engine whose target is `Turned`."""

    def load(self, probe: ModelPair) -> None:
        """Load both models."""
        super().load(probe)
        assert probe.draft is not None
        self._target = Turned.load(probe.target, self._dtype)


fault(
    "remembered-ratio", "ratios are remembered by token and prefix length", batch=seeing(remembered)
)
fault(
    "decided-before",
    "decisions are remembered by prefix, within a batch",
    batch=seeing(decided_before),
)
FAULTS["positions-slip"] = HeldOut(
    "position ids fall one behind with every rejection",
    lambda: Rotated(capabilities=CLAIMS, batch=Slipping),
)
