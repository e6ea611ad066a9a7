"""What happens to logits before they are warped, and at the end of an output, in float64.

Penalties depend on what has occurred, so that the law under them is one of the whole prefix.
An end is part of the law too: it is an ordinary token that may come at any place, and after it
nothing is left to choose. Outputs that have ended are continued by their last token, and the law
there is certain of that token, so that sequences keep one length and nothing is judged after an
end but whether it was one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from conformance.decoding import Decoding, Dialect
from conformance.ends import patterns
from conformance.grammar import DEAD, START, Automaton, automaton
from conformance.law import Bools, Floats, Laws
from conformance.tinylm import Tokens


@dataclass(frozen=True, slots=True)
class History:
    """What came before n places of B sequences, as far as processors look at it.

    Parameters
    ----------
    repetition, presence : (B, n, V) int64
        How often every token counts for the repetition penalty, and for the other two.
    index : (B, n) int64
        Output index of each place.
    state : (B, n) int64 or None
        The grammar's state at each place; None where there is no grammar.
    """

    repetition: Tokens
    presence: Tokens
    index: Tokens
    state: Tokens | None = None


def processed(
    logits: Floats, prompts: Tokens, tokens: Tokens, decoding: Decoding, dialect: Dialect
) -> Floats:
    """Logits as they are warped, ends included.

    Parameters
    ----------
    logits : (B, m + 1, V) float64
        Raw, after each prompt and after each further token.
    prompts : (B, L) int64
        Prompts.
    tokens : (B, m) int64
        What was emitted after them.
    decoding, dialect
        What was asked, and how the engine understands it.

    Returns
    -------
    (B, m + 1, V) float64
        Tokens that must not occur are -inf.
    """
    if not decoding.processors:
        return logits
    vocab, window = logits.shape[-1], dialect.penalty_window
    none = np.zeros((1, 1, 1), dtype=np.int64)
    repeats = decoding.repetition_penalty is not None
    z = apply(
        logits,
        History(
            counts(prompts, tokens, vocab, dialect.repetition_over, window) if repeats else none,
            counts(prompts, tokens, vocab, dialect.presence_over, window)
            if penalised(decoding)
            else none,
            np.arange(tokens.shape[1] + 1)[None],
            states(tokens, decoding, vocab) if decoding.grammar else None,
        ),
        decoding,
    )
    over = ended(tokens, decoding)  # [B, m]
    z[:, 1:][over] = -np.inf
    row, at = np.nonzero(over)
    z[row, at + 1, tokens[row, at]] = 0.0
    return z


def apply(logits: Floats, history: History, decoding: Decoding) -> Floats:
    """Biases, the repetition penalty, the frequency and presence penalties, masks and the grammar,
    in this order.

    Parameters
    ----------
    logits : (B, n, V) float64
        Raw.
    history : History
        What came before.
    decoding : Decoding
        What was asked.
    """
    z = logits.copy()
    vocab = z.shape[-1]
    for token, bias in decoding.logit_bias:
        if token < vocab:
            z[..., token] += bias
    penalty = decoding.repetition_penalty
    if penalty is not None:
        z = np.where(history.repetition > 0, np.where(z > 0, z / penalty, z * penalty), z)
    if penalised(decoding):
        times = history.presence
        z = z - (decoding.presence_penalty or 0.0) * (times > 0)
        z = z - (decoding.frequency_penalty or 0.0) * times
    z[..., _outside(decoding, vocab)] = -np.inf
    if decoding.min_new_tokens:
        held_back = np.isin(np.arange(vocab), decoding.stop)
        early = np.broadcast_to(history.index < decoding.min_new_tokens, z.shape[:-1])
        z[early[..., None] & held_back] = -np.inf
    if history.state is not None:
        allowed = table(decoding, vocab)[1][history.state]
        z = np.where(allowed, z, -np.inf)
    return z


@lru_cache(maxsize=64)
def table(decoding: Decoding, vocab: int) -> tuple[Tokens, Bools]:
    """A grammar as arrays.

    Returns
    -------
    follows : (S, V) int64
        The state after each token.
    allowed : (S, V) bool
        Which tokens may come. Where one has come that may not, nothing is held to the grammar any
        longer: that token has condemned the engine.
    """
    made: Automaton = automaton(decoding.grammar, decoding.stop, vocab)
    follows = np.full((len(made.follows), vocab), DEAD, dtype=np.int64)
    for state, then in enumerate(made.follows):
        follows[state, list(then.keys())] = list(then.values())
    allowed = follows != DEAD
    allowed[DEAD] = True
    return follows, allowed


def states(tokens: Tokens, decoding: Decoding, vocab: int, start: Tokens | int = START) -> Tokens:
    """The grammar's state before each token and after the last. [B, m] -> [B, m + 1]"""
    follows, _ = table(decoding, vocab)
    out = np.empty((len(tokens), tokens.shape[1] + 1), dtype=np.int64)
    out[:, 0] = start
    for i in range(tokens.shape[1]):
        out[:, i + 1] = follows[out[:, i], tokens[:, i]]
    return out


def resamples(decoding: Decoding, dialect: Dialect) -> bool:
    """Whether a grammar's law is not that of masked logits: where a token is drawn first and the
    grammar asked afterwards, filters have looked at all tokens.
    """
    return bool(decoding.grammar) and dialect.grammar == "resample" and decoding.truncates


def resampled(free: Laws, masked: Laws, allowed: Bools) -> Laws:
    """The law of drawing without the grammar, and once more with it if it has no place for that.

    Parameters
    ----------
    free, masked : Laws
        Without and with the mask; (U, V).
    allowed : (U, V) bool
        Tokens that the grammar has a place for.
    """
    probs = drawn_again(free.probs, masked.probs, allowed)
    possible = (free.possible & allowed) | masked.possible
    return Laws(probs, possible, free.ambiguous | masked.ambiguous)


def drawn_again(free: Floats, masked: Floats, allowed: Bools) -> Floats:
    """The same of laws alone. [..., V]"""
    kept = np.where(allowed, free, 0.0)
    return np.asarray(kept + (1 - kept.sum(axis=-1, keepdims=True)) * masked)


def penalised(decoding: Decoding) -> bool:
    """Whether there is a presence or a frequency penalty."""
    return decoding.presence_penalty is not None or decoding.frequency_penalty is not None


def ends(tokens: Tokens, decoding: Decoding) -> Bools:
    """Which tokens end an output, or would if it had not ended. [B, m]"""
    found = np.isin(tokens, np.array(decoding.stop, dtype=np.int64))
    size = tokens.shape[1]
    ids = np.arange(int(tokens.max(initial=0)) + 1) if decoding.stop_strings else ()
    for before, last in patterns(decoding.stop_strings):
        at = np.isin(tokens, [i for i in ids if f"w{i}".startswith(last)])
        for back, token in enumerate(reversed(before), start=1):
            earlier = np.zeros_like(at)
            earlier[:, back:] = tokens[:, : max(size - back, 0)] == token
            at &= earlier
        found |= at
    return np.asarray(found)


def ended(tokens: Tokens, decoding: Decoding) -> Bools:
    """Whether the output has ended with, or before, each token. [B, m]"""
    stops = ends(tokens, decoding)
    stops[:, : decoding.min_new_tokens] = False
    return np.asarray(np.logical_or.accumulate(stops, axis=1))


def counts(prompts: Tokens, tokens: Tokens, vocab: int, over: str, window: int | None) -> Tokens:
    """How often every token has occurred before each place. [B, m + 1, V]"""
    text = np.concatenate([prompts, tokens], axis=1) if over == "all" else tokens
    begin = prompts.shape[1] if over == "all" else 0
    one_hot = np.zeros((len(text), text.shape[1] + 1, vocab), dtype=np.int64)
    np.put_along_axis(one_hot[:, 1:], text[..., None], 1, axis=-1)
    total = np.cumsum(one_hot, axis=1)  # [B, L + m + 1, V], before each token and after the last
    if window is not None:
        total[:, window:] -= total[:, : total.shape[1] - window].copy()
    return np.asarray(total[:, begin:])


def longest_gain(decoding: Decoding) -> float:
    """By how much a rounding error of a raw logit may grow, at most."""
    repetition = decoding.repetition_penalty or 1.0
    return max(1.0, repetition, 1 / repetition)


def _outside(decoding: Decoding, vocab: int) -> Bools:
    """Tokens that may never occur. [V]"""
    out = np.zeros(vocab, dtype=bool)
    if decoding.allowed:
        out[:] = True
        out[[token for token in decoding.allowed if token < vocab]] = False
    out[[token for token in decoding.banned if token < vocab]] = True
    return out
