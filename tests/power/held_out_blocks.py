"""Held-out faults of a block: coins, ratio, residual, and the laws they are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from held_out_making import (
    accepting,
    changed,
    fault,
    normal,
    ratios,
    recovering,
    right_residual,
    verdicts,
)

from conformance.adapters.reference import Batch
from conformance.faults.steps import Block, Emitted, Steps, judged, streams
from conformance.law import Floats, warp
from conformance.reference import Ints, draw, residual
from conformance.tinylm import Tokens

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
fault(
    "antithetic-coins",
    "every second coin of a block is 1 less the one before",
    changed(
        lambda b: replace(
            b, coins=np.where(np.arange(b.k) % 2 == 1, 1 - np.roll(b.coins, 1, axis=1), b.coins)
        )
    ),
)
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
fault(
    "refiltered-residual",
    "top-k and top-p are applied to the residual once more",
    Steps(
        verify=lambda b: recovering(
            b,
            lambda b, r, a: raw(
                b, np.log(np.maximum(right_residual(b, r, a), 1e-300)), temperature=1.0
            ),
            b.last,
        )
    ),
)
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
