"""Laws at prefixes: the probe's models, teacher-forced over what an engine emitted.

An engine's tokens form a tree of prefixes. Every distinct prefix gets a number, one law of the
target, and one law of the draft where the draft is known, whatever the engine did there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from conformance.contract import Draft
from conformance.decoding import Decoding, Dialect
from conformance.law import Bools, Floats, Laws, law_at, warp
from conformance.prefixes import lookup_guess, number_prefixes
from conformance.probes import Probe
from conformance.processors import longest_gain, processed, resampled, resamples, states, table
from conformance.recipes import MISSING, OWN
from conformance.tinylm import TinyLlama, Tokens

ROWS_AT_ONCE = 1024
NUMBERS_AT_ONCE = 2**23  # in one array of laws; 64 MiB, and some ten such arrays are in use
EARLY_EXIT_LAYERS = 1
CERTAIN = 1 - 1e-9  # a law with a token likelier than this leaves no choice
NONE = -1  # stands behind the end of a prompt that is shorter than others


@dataclass(frozen=True)
class Tree:
    """What an arm emitted, as a tree of numbered prefixes.

    Parameters
    ----------
    tokens : (N, T) int64
        Emitted tokens; ids outside the vocabulary are replaced by 0 and not `valid`.
    prefix : (N, T) int64
        Number of the prefix each token followed, 0 .. U - 1.
    valid : (N, T) bool
        False from the first id outside the vocabulary on: no law exists after it; and beyond the
        tokens that a request asked for.
    prompt : (N,) int64
        Which prompt each request had.
    request, index : (U,) int64
        The first request with each prefix, and the output index it is at.
    outside : tuple of (int, int, int)
        ``(request, output index, id)`` of ids outside the vocabulary.
    """

    tokens: Tokens
    prefix: Tokens
    valid: Bools
    prompt: Tokens
    request: Tokens
    index: Tokens
    outside: tuple[tuple[int, int, int], ...] = ()

    @cached_property
    def _by_prefix(self) -> tuple[Tokens, Tokens]:
        """Flat token positions sorted by prefix, and where each prefix begins among them."""
        flat = self.prefix.ravel()
        order = np.argsort(flat, kind="stable")
        return order, np.searchsorted(flat[order], np.arange(len(self.request) + 1))

    def instances(self, begin: int, end: int) -> Tokens:
        """Flat positions of the tokens that followed the prefixes `begin` .. `end` - 1."""
        order, starts = self._by_prefix
        return order[starts[begin] : starts[end]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The laws of the prefixes numbered `begin` .. `begin` + u - 1; arrays are [u, V].

    `logits` are as processors leave them, `raw` as the target has them; those are kept where
    log-probabilities are asked for.
    """

    begin: int
    laws: Laws
    draft: Floats | None
    logits: Floats
    raw: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class Sample(Tree):
    """What an arm emitted, with every law held at once.

    Parameters
    ----------
    law, draft : (U, V) float64
        Target and draft laws by prefix number; `draft` is None where unknown.
    possible : (U, V) bool
        Tokens the law can emit, rounding allowed for.
    ambiguous : (U,) bool
        Prefixes set aside by the ambiguity band.
    logits : (U, V) float64
        The target's raw logits.
    """

    law: Floats
    draft: Floats | None
    possible: Bools
    ambiguous: Bools
    logits: Floats

    @property
    def judged(self) -> Bools:
        """Tokens that tests other than support may use. [N, T]"""
        return self.valid & ~self.ambiguous[self.prefix]

    @property
    def open(self) -> Bools:
        """Judged tokens whose law leaves a choice; elsewhere nothing can be seen. [N, T]"""
        return np.asarray(self.judged & (self.law.max(axis=1) <= CERTAIN)[self.prefix])


class Oracle:
    """The laws of one probe under one decoding, in an engine's dialect.

    Parameters
    ----------
    probe : Probe
        Target and draft.
    decoding, dialect
        What was asked, and how the engine understands it.
    draft : {'model', 'lookup', 'early-exit', 'other-vocabulary', 'none'}
        Which draft law the draft-aware tests look towards. Any choice that the prefix alone
        decides keeps them valid; the right one makes them sharp.
    noise : float, optional
        Rounding of a logit, in nats, of an engine in low precision; the probe's own by default.
    """

    def __init__(
        self,
        probe: Probe,
        decoding: Decoding,
        dialect: Dialect,
        draft: Draft = "model",
        noise: float | None = None,
    ) -> None:
        self.probe, self.decoding, self.dialect, self.draft_kind = probe, decoding, dialect, draft
        self.noise = noise

    @property
    def rounding(self) -> float:
        """How far rounding may move a logit that is warped, in nats."""
        return self.raw_rounding * longest_gain(self.decoding)

    @property
    def raw_rounding(self) -> float:
        """The same of a logit as the target has it."""
        return self.probe.tolerance if self.noise is None else self.noise

    def _laws(self, logits: Floats) -> Laws:
        measured = self.noise is not None
        return law_at(logits, self.decoding, self.dialect, self.rounding, edges_only=measured)

    def _processed(self, logits: Floats, prompts: Tokens, tokens: Tokens) -> Floats:
        return processed(logits, prompts, tokens, self.decoding, self.dialect)

    def target_laws(self, prompts: Tokens, tokens: Tokens) -> Laws:
        """Laws after each of B prefixes: a prompt and a string of m >= 0 tokens. [B, L], [B, m]"""
        raw, logits = self._both(prompts, tokens)
        last = np.arange(len(tokens)), np.full(len(tokens), tokens.shape[1])
        return self._drawn(logits, raw, prompts, tokens, last)

    def _both(self, prompts: Tokens, tokens: Tokens) -> tuple[Floats, Floats]:
        """The target's logits after each prompt and each further token, as they are and as they are
        warped. [B, m + 1, V] each
        """
        size = len(prompts), tokens.shape[1] + 1, self.probe.recipe.vocab_size
        raw, logits = np.zeros(size), np.zeros(size)
        for rows, given in by_length(prompts):
            raw[rows] = _after(self.probe.target, given, tokens[rows])
            logits[rows] = self._processed(raw[rows], given, tokens[rows])
        return raw, logits

    def _drawn(
        self,
        logits: Floats,
        raw: Floats,
        prompts: Tokens,
        tokens: Tokens,
        at: tuple[Tokens, Tokens],
    ) -> Laws:
        """The laws at some places of B sequences, as the engine draws from them."""
        laws = self._laws(logits[at])
        if not resamples(self.decoding, self.dialect):
            return laws
        without = replace(self.decoding, grammar="")
        free = processed(raw, prompts, tokens, without, self.dialect)[at]
        vocab = logits.shape[-1]
        allowed = table(self.decoding, vocab)[1][states(tokens, self.decoding, vocab)[at]]
        return resampled(self._laws(free), laws, allowed)

    def draft_laws(self, prompts: Tokens, tokens: Tokens, logits: Floats) -> Floats | None:
        """Draft laws at every position, [B, m + 1, V]; None where there is none to look towards."""
        if self.draft_kind == "none":
            return None
        out = np.zeros((len(prompts), tokens.shape[1] + 1, self.probe.recipe.vocab_size))
        for rows, given in by_length(prompts):
            out[rows] = self._draft_laws(given, tokens[rows], logits[rows])
        return out

    def _draft_laws(self, prompts: Tokens, tokens: Tokens, logits: Floats) -> Floats:
        vocab = self.probe.recipe.vocab_size
        match self.draft_kind:
            case "model":
                raw = _after(self.probe.draft, prompts, tokens)
                return self._warp(self._processed(raw, prompts, tokens))
            case "early-exit":
                raw = _after(self.probe.target, prompts, tokens, EARLY_EXIT_LAYERS)
                return self._warp(self._processed(raw, prompts, tokens))
            case "other-vocabulary":
                shared, unknown = vocab - MISSING, vocab - MISSING + OWN - 1
                given, emitted = (np.where(t < shared, t, unknown) for t in (prompts, tokens))
                known = _after(self.probe.draft, given, emitted)[..., :shared]
                padded = np.full((*known.shape[:-1], vocab), -np.inf)
                padded[..., :shared] = known
                # where every token that is left is one the draft lacks, it has no law
                own = self._processed(padded, prompts, tokens)
                known_law = np.isfinite(own).any(axis=-1, keepdims=True)
                return self._warp(np.where(known_law, own, logits))
            case "lookup":
                guess = lookup_guess(np.concatenate([prompts, tokens], axis=1), prompts.shape[1])
                one_hot = np.zeros((*guess.shape, vocab))
                np.put_along_axis(one_hot, guess[..., None].clip(0), 1.0, axis=-1)
                # without a match nothing is proposed; the target's law says "no direction"
                return np.where((guess < 0)[..., None], self._warp(logits), one_hot)
            case "none":
                raise ValueError("there is no draft")

    def _warp(self, logits: Floats) -> Floats:
        return warp(logits, self.decoding, self.dialect)

    def tree(self, prompt: Tokens, emitted: Tokens, lengths: Tokens | None = None) -> Tree:
        """Number the prefixes of what was emitted; no law is computed.

        Parameters
        ----------
        prompt : (N,) int64
            Which prompt each request had.
        emitted : (N, T) int64
            The engine's tokens.
        lengths : (N,) int64, optional
            How many tokens each request asked for; what is beyond them is not valid. All of them
            by default.
        """
        vocab = self.probe.recipe.vocab_size
        inside = (emitted >= 0) & (emitted < vocab)
        valid = np.cumprod(inside, axis=1).astype(bool)
        tokens = np.where(valid, emitted, 0)
        asked = np.ones_like(valid)
        if lengths is not None:
            asked = np.arange(emitted.shape[1]) < lengths[:, None]
        outside = tuple(
            (int(i), int(t), int(emitted[i, t]))
            for i, t in zip(*np.nonzero(~inside & asked), strict=True)
            if t == 0 or valid[i, t - 1]
        )
        valid &= asked
        prefix, request, index = number_prefixes(prompt, tokens)
        return Tree(tokens, prefix, valid, prompt, request, index, outside)

    def chunks(self, prompts: Tokens, tree: Tree) -> Iterator[Chunk]:
        """The laws of a tree's prefixes, in order, a bounded number of them at a time.

        Parameters
        ----------
        prompts : (P, L) int64
            Distinct prompts; shorter ones are padded at their end with `NONE`.
        tree : Tree
            From `tree`.
        """
        length = tree.tokens.shape[1]
        # what attention looks at is an array too, and grows with the square of the length
        wide = max(self.probe.recipe.vocab_size, length + prompts.shape[1])
        numbers = max(1, length) * wide
        step = max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // numbers))
        # prefixes are numbered by their first request, so a slice of requests owns a slice of them
        for begin in range(0, len(tree.tokens), step):
            rows = slice(begin, begin + step)
            low, high = np.searchsorted(tree.request, [begin, begin + step])
            if low == high:
                continue
            at = tree.request[low:high] - begin, tree.index[low:high]
            given = prompts[tree.prompt[rows]]
            before = tree.tokens[rows, :-1]
            raw, logits = self._both(given, before)
            draft = self.draft_laws(given, before, logits)
            laws = self._drawn(logits, raw, given, before, at)
            yield Chunk(
                int(low),
                laws,
                None if draft is None else draft[at],
                logits[at],
                raw[at] if self.decoding.logprobs else None,
            )

    def sample(self, prompts: Tokens, prompt: Tokens, emitted: Tokens) -> Sample:
        """Every law of what was emitted, held at once; for few requests and small vocabularies.

        Parameters
        ----------
        prompts : (P, L) int64
            Distinct prompts.
        prompt : (N,) int64
            Which one each request had.
        emitted : (N, T) int64
            The engine's tokens.
        """
        tree = self.tree(prompt, emitted)
        chunks = list(self.chunks(prompts, tree))
        known = [c.draft for c in chunks if c.draft is not None]
        return Sample(
            **{f.name: getattr(tree, f.name) for f in fields(tree)},
            law=np.concatenate([c.laws.probs for c in chunks]),
            draft=np.concatenate(known) if known else None,
            possible=np.concatenate([c.laws.possible for c in chunks]),
            ambiguous=np.concatenate([c.laws.ambiguous for c in chunks]),
            logits=np.concatenate([c.logits for c in chunks]),
        )


def free_tokens(tree: Tree, chunk: Chunk, at: Tokens) -> tuple[Bools, Bools]:
    """Which tokens of a chunk may be judged, and which of those had a choice. [n] each

    Parameters
    ----------
    tree, chunk
        What was emitted, and the laws of some of its prefixes.
    at : (n,) int64
        Flat positions of tokens that followed those prefixes.
    """
    row = tree.prefix.flat[at] - chunk.begin
    judged = tree.valid.flat[at] & ~chunk.laws.ambiguous[row]
    return judged, judged & (chunk.laws.probs.max(axis=1) <= CERTAIN)[row]


def by_length(prompts: Tokens) -> Iterator[tuple[Tokens, Tokens]]:
    """Prompts of equal length together: which ones, [b], and without their padding, [b, l]."""
    each = (prompts != NONE).sum(axis=1)
    for length in np.unique(each):
        rows = np.flatnonzero(each == length)
        yield rows, prompts[rows, :length]


def _after(model: TinyLlama, prompts: Tokens, tokens: Tokens, layers: int | None = None) -> Floats:
    """Logits after each prompt and after each further token, [B, L], [B, m] -> [B, m + 1, V]."""
    if len(prompts) == 0:
        return np.zeros((0, tokens.shape[1] + 1, model.shape.vocab_size))
    distinct, back = np.unique(prompts, axis=0, return_inverse=True)
    length = prompts.shape[1]
    small = model.new_cache(len(distinct), length + tokens.shape[1])
    first = model.advance(distinct, small, np.zeros(len(distinct), np.int64), layers)[:, -1:]
    cache = small.repeat(back.reshape(-1))
    first = first[back.reshape(-1)]
    if tokens.shape[1] == 0:
        return first
    rest = model.advance(tokens, cache, np.full(len(tokens), length), layers)
    return np.concatenate([first, rest], axis=1)
