"""Which prompts are sampled, how often, and how far.

Sampled decodings repeat a few prompts many times, so that the tables at the first output indices
are full; the prompts are chosen from the laws alone, before anything is sampled, so that target
and draft really differ there and the law is not float-ambiguous. Every eighth request has a prompt
of its own, for what goes wrong at some prompts only. Greedy decoding, where repeating a prompt
tells nothing, takes many prompts and goes far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from conformance.errors import PlanError
from conformance.law import Floats
from conformance.oracle import Oracle
from conformance.processors import ended
from conformance.tinylm import Tokens

PROMPT_LENGTH = 24
PHRASE = 8  # a prompt is a phrase said three times, so that n-gram lookup always has a guess
SAMPLED_PROMPTS = 2
SAMPLED_TOKENS = 8
GREEDY_TOKENS = 32
OWN_PROMPT_EVERY = 8
MOST_OWN_PROMPTS = 2**14
CANDIDATES = 512
# Wanted at a sampled prompt: a law with a choice to make, and a draft that is neither the target
# nor hopeless, so that proposals are both accepted and rejected.
ENTROPY_AT_LEAST = 0.5
TV_BETWEEN = (0.10, 0.60)


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts, and how many requests of how many tokens they share.

    Parameters
    ----------
    prompts : tuple of tuple of int
        Distinct prompts of equal length.
    requests : int
        Requests in each arm.
    new_tokens : int
        Tokens a request asks for.
    repeated : int or None
        How many of the prompts, the first ones, are asked in turn; each of the others is asked
        once, by every `OWN_PROMPT_EVERY`-th request. None: all of them are asked in turn.
    """

    prompts: tuple[tuple[int, ...], ...]
    requests: int
    new_tokens: int
    repeated: int | None = None

    @property
    def prompt_array(self) -> Tokens:
        """The prompts. [P, L]"""
        return np.array(self.prompts, dtype=np.int64)

    @property
    def prompt_of(self) -> Tokens:
        """Which prompt each request has. [N]"""
        i = np.arange(self.requests)
        if self.repeated is None:
            return i % len(self.prompts)
        turn, place = np.divmod(i, OWN_PROMPT_EVERY)
        own = (place == OWN_PROMPT_EVERY - 1) & (self.repeated + turn < len(self.prompts))
        return np.where(own, self.repeated + turn, (i - turn) % self.repeated)

    @property
    def repeated_prompts(self) -> Tokens:
        """The prompts that are asked again and again. [P', L]"""
        return self.prompt_array[: self.repeated]

    def __str__(self) -> str:
        return (
            f"{self.requests:,} requests of {self.new_tokens} tokens over "
            f"{len(self.prompts)} prompts"
        )


def greedy_workload(oracle: Oracle, requests: int, seed: int) -> Workload:
    """Distinct prompts, each asked once."""
    prompts = _candidates(oracle, seed, requests)
    return Workload(tuple(map(tuple, prompts.tolist())), requests, GREEDY_TOKENS)


def share_before_end(oracle: Oracle, requests: int, seed: int) -> float:
    """Share of the tokens asked for that greedy outputs have before they end."""
    if not oracle.decoding.stop:
        return 1.0
    prompts = greedy_workload(oracle, requests, seed).prompt_array
    tokens = np.zeros((requests, 0), dtype=np.int64)
    for _ in range(GREEDY_TOKENS):
        law = oracle.target_laws(prompts, tokens).probs
        tokens = np.concatenate([tokens, law.argmax(axis=1)[:, None]], axis=1)
    return 1 - float(ended(tokens, oracle.decoding)[:, :-1].mean())


def sampled_workload(oracle: Oracle, prompts: Tokens, requests: int, seed: int) -> Workload:
    """Prompts asked again and again, and others asked once."""
    own = _own_prompts(oracle, seed, set(map(tuple, prompts.tolist())))
    own = own[: requests // OWN_PROMPT_EVERY]
    return Workload((*map(tuple, prompts.tolist()), *own), requests, SAMPLED_TOKENS, len(prompts))


def requests_for(each: int, prompts: int) -> int:
    """Requests among which every repeated prompt is asked at least `each` times."""
    return math.ceil((each * prompts + 1) * OWN_PROMPT_EVERY / (OWN_PROMPT_EVERY - 1))


def _own_prompts(oracle: Oracle, seed: int, asked: set[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Distinct prompts; the same list however many will be used, so that a run can go on."""
    drawn = map(tuple, _candidates(oracle, seed + 2**32, MOST_OWN_PROMPTS).tolist())
    return [p for p in dict.fromkeys(drawn) if p not in asked]


def sampled_prompts(oracle: Oracle, seed: int) -> Tokens:
    """Choose the prompts of a sampled case, from the laws alone. [P, L]

    Raises
    ------
    PlanError
        If no candidate has an unambiguous law with a choice to make.
    """
    prompts = _candidates(oracle, seed, CANDIDATES)
    none = np.zeros((len(prompts), 0), dtype=np.int64)
    laws = oracle.target_laws(prompts, none)
    usable = ~laws.ambiguous & (_entropy(laws.probs) >= ENTROPY_AT_LEAST)
    # the direct draft decides; a guess that is one-hot, or absent, has no TV to choose by
    draft = oracle.draft_laws(prompts, none, np.log(np.maximum(laws.probs, 1e-300))[:, None])
    if draft is not None and oracle.draft_kind != "lookup":
        tv = 0.5 * np.abs(laws.probs - draft[:, 0]).sum(axis=1)
        good = usable & (tv >= TV_BETWEEN[0]) & (tv <= TV_BETWEEN[1])
    elif draft is not None:
        chance = (laws.probs * draft[:, 0]).sum(axis=1)  # the guess's own probability
        good = usable & (chance >= TV_BETWEEN[0]) & (chance <= TV_BETWEEN[1])
    else:
        good = usable
    chosen = np.flatnonzero(good if good.sum() >= SAMPLED_PROMPTS else usable)[:SAMPLED_PROMPTS]
    if len(chosen) == 0:
        raise PlanError(
            f"under {oracle.decoding} no prompt of probe {oracle.probe.recipe.name} leaves a "
            "choice to make; use a less extreme decoding"
        )
    return prompts[chosen]


def _candidates(oracle: Oracle, seed: int, count: int) -> Tokens:
    rng = np.random.default_rng([seed, 2])
    phrase = rng.integers(0, oracle.probe.recipe.vocab_size, size=(count, PHRASE))
    return np.tile(phrase, (1, PROMPT_LENGTH // PHRASE))


def _entropy(p: Floats) -> Floats:
    return np.asarray(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=1))
