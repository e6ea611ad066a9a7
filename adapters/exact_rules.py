"""Other exact ways to speculate, which the suite must never fail: ``exact:NAME``.

Standard speculative sampling is not the only exact rule. Each engine here emits exactly the
target's law by another road, several of them with an acceptance rate that would look wrong. They
are the counterpart of the faults: who judges by acceptance rates, or expects one rule, fails them.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

import numpy as np

from conformance.adapters.reference import PROPOSALS, Batch, ReferenceEngine
from conformance.contract import Capabilities
from conformance.decoding import PROCESSORS, ROADS, Decoding
from conformance.errors import UnknownEngineError
from conformance.faults.rules import one_hot
from conformance.faults.steps import Block, Emitted, Steps, judged
from conformance.law import Bools, Floats
from conformance.processors import History, apply
from conformance.reference import Ints, draw
from conformance.tinylm import Tokens

CONFIDENT = 0.4  # a draft whose likeliest token is below this stops proposing
CANDIDATES = 2  # children of every node of the tree


def likeliest(q: Floats, u: Floats) -> Ints:
    """A deterministic proposal: the draft's likeliest token. [B, V] -> [B]"""
    return np.asarray(q.argmax(axis=-1))


def sample_and_match(b: Block) -> Emitted:
    """Draw from p at every position; go on as long as the draw is what was proposed."""
    u = np.concatenate([b.coins, b.last[:, None]], axis=1)
    drawn = np.stack([draw(b.p[:, i], u[:, i]) for i in range(b.k + 1)], axis=1)  # [B, K + 1]
    accepted = np.cumprod(drawn[:, : b.k] == b.drafts, axis=1).sum(axis=1)
    return Emitted(np.where(np.arange(b.k + 1) <= accepted[:, None], drawn, -1), accepted)


def without_q(b: Block) -> Emitted:
    """Accept x with probability p(x), else draw from p without x: any proposal is one-hot."""
    return judged(replace(b, q=one_hot(b.drafts, b.p.shape[-1])))


def until_unsure(b: Block) -> Emitted:
    """Blocks end where the draft is unsure of its next proposal, before it is made."""
    drafted = np.cumprod(b.q.max(axis=-1) >= CONFIDENT, axis=1).sum(axis=1)  # [B]
    made = np.arange(b.k) < drafted[:, None]
    e = judged(replace(b, coins=np.where(made, b.coins, 2.0)))
    rows = np.flatnonzero((e.accepted == drafted) & (drafted < b.k))
    e.tokens[rows, drafted[rows]] = draw(b.p[rows, drafted[rows]], b.last[rows])
    return Emitted(e.tokens, e.accepted, drafted)


def block_weights(p: Floats, q: Floats, x: Ints) -> tuple[Floats, Floats]:
    """Weights and acceptance probabilities of block verification.

    Sun et al., *Block Verification Accelerates Speculative Decoding* (2024), Algorithm 2: its
    running ratio, p_i there, and the probability h_i that the first i proposals are kept.

    Parameters
    ----------
    p : (B, K + 1, V) float64
        Target laws.
    q : (B, K, V) float64
        Draft laws.
    x : (B, K) int64
        Proposals.

    Returns
    -------
    weights : (B, K + 1) float64
        ``weights[:, i]`` belongs to the first i proposals; 1 for none.
    h : (B, K) float64
        ``h[:, i]`` is the probability of keeping i + 1 proposals, should none longer be kept.
    """
    k = x.shape[1]
    weights, h = np.ones((len(x), k + 1)), np.zeros((len(x), k))
    at = np.arange(len(x))
    for i in range(k):
        ratio = p[at, i, x[:, i]] / q[at, i, x[:, i]]
        weights[:, i + 1] = np.minimum(weights[:, i] * ratio, 1.0)
        if i == k - 1:
            h[:, i] = weights[:, k]
            continue
        w = weights[:, i + 1]
        left = np.maximum(w[:, None] * p[:, i + 1] - q[:, i + 1], 0.0).sum(axis=-1)
        below = left + 1.0 - w
        # w = 1 and p = q: nothing is left to correct, and the first proposals are sure
        h[:, i] = np.where(below > 0, left / np.where(below > 0, below, 1.0), 1.0)
    return weights, h


def block_residual(p: Floats, q: Floats, weight: Floats) -> Floats:
    """The law after a kept beginning of weight w: max(w p - q, 0) normalised. [B, V]"""
    r = np.maximum(weight[:, None] * p - q, 0.0)
    mass = r.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(mass > 0, r / np.where(mass > 0, mass, 1.0), p))


def block_verification(b: Block) -> Emitted:
    """Keep the longest beginning whose coin allows it, judging beginnings as a whole."""
    weights, h = block_weights(b.p, b.q, b.drafts)
    kept = np.where(b.coins < h, np.arange(1, b.k + 1), 0).max(axis=1)  # [B]
    rows, at = np.arange(len(kept)), np.minimum(kept, b.k - 1)
    recovered = block_residual(b.p[rows, at], b.q[rows, at], weights[rows, at])
    law = np.where((kept == b.k)[:, None], b.p[:, b.k], recovered)
    tokens = np.full((len(kept), b.k + 1), -1)
    tokens[:, : b.k] = np.where(np.arange(b.k) < kept[:, None], b.drafts, -1)
    tokens[rows, kept] = draw(law, b.last)
    return Emitted(tokens, kept)


def among_candidates(
    p: Floats, candidates: Ints, coins: Floats, last: Floats
) -> tuple[Ints, Bools]:
    """One level of a tree of deterministic candidates, verified one after the other.

    Each is accepted with its probability under what is left of p; a rejected one is set to zero
    and p renormalised (a one-hot draft's residual).

    Parameters
    ----------
    p : (B, V) float64
        Target laws.
    candidates : (B, M) int64
        Distinct tokens, in the order in which they are tried.
    coins : (B, M) float64
        Uniforms that decide acceptance.
    last : (B,) float64
        Uniforms for the replacement.

    Returns
    -------
    token : (B,) int64
        The accepted candidate or the replacement.
    accepted : (B,) bool
        Whether it is a candidate.
    """
    left = p.copy()
    token, done = np.full(len(p), -1), np.zeros(len(p), dtype=bool)
    rows = np.arange(len(p))
    for m in range(candidates.shape[1]):
        x = candidates[:, m]
        mass = left.sum(axis=-1)
        hit = ~done & (coins[:, m] * mass < left[rows, x])
        token[hit], done = x[hit], done | hit
        left[rows[~done], x[~done]] = 0.0
    token[~done] = draw(left[~done], last[~done])
    return token, done


class TreeBatch(Batch):
    """A tree of the draft's likeliest tokens, walked level by level.

    An engine verifies all nodes in one pass; only the path that is accepted decides anything, so
    asking for its laws one by one emits the same.
    """

    def _block(self, rows: Tokens, u: Floats, extra: Floats) -> None:
        if self.k == 0:
            super()._block(rows, u, extra)
            return
        coins = extra.reshape(len(rows), self.k, CANDIDATES + 1)
        accepted = np.zeros(len(rows), dtype=np.int64)
        alive = np.arange(len(rows))
        for level in range(self.k):
            if alive.size == 0:
                break
            mine = rows[alive]
            at = self.length[mine]
            q = self._proposing(mine, at, 2 if level == 0 else 1)
            candidates = np.argsort(-q, axis=-1, kind="stable")[:, :CANDIDATES]
            p = self._warp(self._logits(0, mine, at - 1, 1), mine, at, target=True)[:, 0]
            c = coins[alive, level]
            token, matched = among_candidates(p, candidates, c[:, :-1], c[:, -1])
            self._append(mine, token[:, None])
            alive = alive[matched]
            accepted[alive] += 1
        if alive.size:
            mine = rows[alive]
            at = self.length[mine]
            p = self._warp(self._logits(0, mine, at - 1, 1), mine, at, target=True)[:, 0]
            self._append(mine, draw(p, u[alive, -1])[:, None])
        for row, count in zip(rows, accepted.tolist(), strict=True):
            self.rounds[row].append((self.k, count))


@dataclass(frozen=True, slots=True)
class ExactRule:
    """An exact way to speculate.

    Parameters
    ----------
    name : str
        As in ``exact:NAME``.
    summary : str
        What it does, in one sentence.
    source : str
        Where it is from.
    steps : Steps
        How it does each step.
    batch : type
        What advances the requests.
    by_token : bool
        Whether proposals are settled one after the other (see `Capabilities.verification`).
    """

    name: str
    summary: str
    source: str
    steps: Steps
    batch: type[Batch] = Batch
    by_token: bool = True


def _slipping(accepted: Ints, k: int) -> Ints:
    return np.asarray(np.minimum(k - accepted, 1))


def _target_alone(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    return apply(logits, history, decoding) if target else logits


EXACT_RULES: dict[str, ExactRule] = {
    r.name: r
    for r in (
        ExactRule(
            "sample-and-match",
            "draws from the target and goes on as long as the draw is what was proposed",
            "llama.cpp, common sampler",
            Steps(verify=sample_and_match),
        ),
        ExactRule(
            "without-q",
            "accepts x with probability p(x) and else draws from p without x, whatever the draft",
            "vLLM, draft_probs=None",
            Steps(verify=without_q),
        ),
        ExactRule(
            "argmax-draft",
            "proposes the draft's likeliest token and judges it as the one-hot draft it is",
            "prompt lookup, greedy drafts",
            Steps(propose=likeliest, verify=without_q),
        ),
        ExactRule(
            "top-k-tree",
            "tries the draft's likeliest tokens in turn, setting to zero and renormalising",
            "SpecInfer (Miao et al., 2023), for deterministic candidates",
            Steps(extra=PROPOSALS * (CANDIDATES + 1)),
            batch=TreeBatch,
        ),
        ExactRule(
            "damaged-draft",
            "the draft's cache keeps rejected proposals: only the acceptance rate suffers",
            "",
            Steps(draft_gap=_slipping),
        ),
        ExactRule(
            "unmasked-draft",
            "the draft knows no penalties, biases, masks or grammar: the target rejects more",
            "vLLM, structured outputs; most engines with a draft model",
            Steps(process=_target_alone),
        ),
        ExactRule(
            "block-verification",
            "judges a block as a whole and accepts more than one token at a time could",
            "Sun et al., Block Verification Accelerates Speculative Decoding (2024)",
            Steps(verify=block_verification),
            by_token=False,
        ),
        ExactRule(
            "variable-length",
            "stops proposing where the draft is unsure",
            "transformers, assistant_confidence_threshold",
            Steps(verify=until_unsure),
        ),
    )
}


def exact(name: str) -> ReferenceEngine:
    """The engine ``exact:NAME``.

    Raises
    ------
    UnknownEngineError
        If there is no such rule.
    """
    if name not in EXACT_RULES:
        close = difflib.get_close_matches(name, EXACT_RULES, n=2) or list(EXACT_RULES)
        raise UnknownEngineError(f"no exact rule named {name!r}; there is {', '.join(close)}")
    rule = EXACT_RULES[name]
    claims = Capabilities(
        draft="model",
        max_batch=1024,
        verification="token" if rule.by_token else "any",
        processors=PROCESSORS,
        reproducible=True,
        greedy_roads=ROADS,
        lengths=True,
        ragged=True,
        several=True,
        sliding=True,
        mixed=True,
        unseeded=True,
        long=True,
        typical_p=True,
        epsilon_cutoff=True,
        eta_cutoff=True,
        logprobs="processed" if rule.batch is Batch else "none",
    )
    return ReferenceEngine(rule.steps, f"exact:{name}", "exact", claims, rule.batch)
