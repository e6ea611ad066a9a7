"""Held-out faults of suites greedy, ends, stop-strings and law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from held_out_making import accepting, changed
from held_out_suites_making import engine, fault, of_drafts

from conformance.adapters.reference import Batch
from conformance.decoding import Decoding
from conformance.ends import completes, patterns
from conformance.faults.steps import Answer, Block, Filled, Steps, blocks_until, up_to
from conformance.law import Floats, softmax, warp
from conformance.processors import History
from conformance.tinylm import Cache, Tokens

# --- greedy ---------------------------------------------------------------------------------------


def sure_draft(b: Block) -> Block:
    """What the draft is surer of than 0.7 is not sent to the target."""
    return accepting(b, of_drafts(softmax(b.draft_logits), b) >= 0.7)


class NoRepeats(Batch):
    """A default of the model's own configuration: no three tokens may come twice."""

    def _warp(self, logits: Floats, rows: Tokens, end: Tokens, target: bool) -> Floats:
        z = logits.copy()
        for i, at in np.ndindex(*z.shape[:2]) if target and self.k else ():
            text = self.tokens[rows[i], : end[i] + at]
            pairs = (text[:-2] == text[-2]) & (text[1:-1] == text[-1])
            z[i, at, text[2:][pairs]] -= 50.0
        return super()._warp(z, rows, end, target)


def int8(cache: Cache, filled: Filled) -> None:
    """Keys and values further back than 64 tokens are kept in 8 bits."""
    for row, end in zip(filled.rows, filled.length, strict=True):
        for kept in (cache.keys, cache.values):
            old = kept[:, row, : max(int(end) - 64, 0)]
            scale = np.maximum(np.abs(old).max(axis=-1, keepdims=True), 1e-30) / 127
            kept[:, row, : old.shape[1]] = np.round(old / scale) * scale


fault("sure-draft", "greedy", "", "proposals that the draft is sure of are not verified",
      engine(changed(sure_draft)))  # fmt: skip
fault("no-repeat-3-grams", "greedy", "", "three tokens that have come once may not come again",
      engine(batch=NoRepeats))  # fmt: skip
fault("old-cache-int8", "greedy", "horizon", "the cache of tokens 64 back is kept in 8 bits",
      engine(Steps(cached=int8)))  # fmt: skip


# --- ends -----------------------------------------------------------------------------------------


class BlocksCounted(Batch):
    """The least length is counted in blocks, one a step."""

    def _history(self, rows: Tokens, end: Tokens, n: int) -> History:
        history = super()._history(rows, end, n)
        if not self.k or not self.decoding.min_new_tokens:
            return history
        blocks = np.array([len(self.rounds[row]) for row in rows])
        return replace(history, index=np.repeat(blocks[:, None], n, axis=1))


def stop_trusted(b: Block) -> Block:
    """Where the draft ends, the output ends: its stop tokens are not verified."""
    return accepting(b, np.isin(b.drafts, b.decoding.stop))


def last_of_block(answer: Answer, decoding: Decoding) -> Answer:
    """The output is cut at the last stop token of a block, not at the first."""
    tokens, rounds = answer
    found = [t for t in range(decoding.min_new_tokens, len(tokens)) if tokens[t] in decoding.stop]
    if not found:
        return answer
    reach = sum(accepted + 1 for _, accepted in rounds[: blocks_until(rounds, found[0])])
    return up_to(answer, max(t for t in found if t < reach))


fault("minimum-by-blocks", "ends", "min_new_tokens=2", "a least length counts blocks, not tokens",
      engine(batch=BlocksCounted))  # fmt: skip
fault("stop-trusted", "ends", "temperature", "a stop token that is proposed is not verified",
      engine(changed(stop_trusted)))  # fmt: skip
fault("stop-last-of-block", "ends", "min_new_tokens=2", "of a block's stop tokens the last counts",
      engine(Steps(end=last_of_block)))  # fmt: skip


# --- stop strings ---------------------------------------------------------------------------------


def short_buffer(answer: Answer, decoding: Decoding) -> Answer:
    """Text is searched from two characters before a new word on."""
    text = ""
    for t, token in enumerate(answer[0]):
        text = f"{text[-2:]} w{token}" if t else f"w{token}"
        if any(s in text for s in decoding.stop_strings):
            return up_to(answer, t)
    return answer


class PromptSearched(Batch):
    """The last word of the prompt is searched as well."""

    def _answers(self) -> list[Answer]:
        out = super()._answers()
        strings = self.decoding.stop_strings
        for row, (tokens, _) in enumerate(out) if self.k else ():
            text = [int(self.tokens[row, self.prompt_length[row] - 1]), *tokens]
            if completes(text, 1, strings):
                out[row] = up_to(out[row], 0)
        return out


def resetting(answer: Answer, decoding: Decoding) -> Answer:
    """A word that breaks a match that had begun is not looked at as the beginning of another."""
    tokens, strings = answer[0], decoding.stop_strings
    of_two = tuple(s for s in strings if " " in s)
    of_one = tuple(s for s in strings if " " not in s)
    begin = {before[0] for before, _ in patterns(of_two)}
    begun = False
    for t, token in enumerate(tokens):
        if completes(tokens, t, of_two if begun else of_one):
            return up_to(answer, t)
        begun = not begun and token in begin
    return answer


fault("strings-short-buffer", "stop-strings", "temperature",
      "text is searched from two characters before a new word on",
      engine(Steps(end=short_buffer)))  # fmt: skip
fault("strings-after-prompt", "stop-strings", "temperature",
      "a stop string may begin in the prompt", engine(batch=PromptSearched))  # fmt: skip
fault("strings-matcher-resets", "stop-strings", "temperature",
      "what breaks a match that had begun is not looked at as the beginning of another",
      engine(Steps(end=resetting)))  # fmt: skip


# --- law ------------------------------------------------------------------------------------------


def padded(b: Block) -> Block:
    """The vocabulary is padded to 64; padding has logit 0, and an id there becomes the last one."""
    vocab = b.p.shape[-1]
    more = np.zeros((*b.p.shape[:2], max(64 - vocab, 0)))
    p = warp(np.concatenate([b.target_logits, more], axis=-1), b.decoding, b.dialect)
    left = p[..., :vocab].copy()
    left[..., -1] += p[..., vocab:].sum(axis=-1)
    return replace(b, p=left)


def resumed(cache: Cache, filled: Filled) -> None:
    """Now and then a request is set aside and taken up again, without one token of its cache."""
    lost = (7 * filled.rows + filled.length) % 20 == 0
    for kept in (cache.keys, cache.values):
        kept[:, filled.rows[lost], filled.length[lost] - 2] = 0.0


fault("padding-clamped", "law", "mid temperature=1",
      "padded columns take part, and count as the last id", engine(changed(padded)))  # fmt: skip
fault("resumed-without-one", "law", "mid temperature=1",
      "one block in twenty a request loses one token of its cache",
      engine(Steps(cached=resumed)))  # fmt: skip
