"""Which prompts are sampled, how often, and how far.

Sampled decodings repeat a few prompts many times, so that the tables at the first output indices
are full; the prompts are chosen from the laws alone, before anything is sampled, so that target
and draft really differ there and the law is not float-ambiguous. Every eighth request has a prompt
of its own, for what goes wrong at some prompts only. Greedy decoding, where repeating a prompt
tells nothing, takes many prompts and goes far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np

from conformance.ends import patterns
from conformance.errors import PlanError
from conformance.far import STARTS
from conformance.forms import FAR, FORMS, LONG, PLAIN, TO_THE_END
from conformance.law import Bools, Floats
from conformance.oracle import NONE, Oracle
from conformance.processors import ended
from conformance.tinylm import Tokens

PROMPT_LENGTH = 24
PHRASE = 8  # a prompt is a phrase said three times, so that n-gram lookup always has a guess
SAMPLED_PROMPTS = 2
OWN_PROMPT_EVERY = 8
MOST_OWN_PROMPTS = 2**14
CANDIDATES = 512
LONG_CANDIDATES = 8  # of prompts that take more time to look at
SHORT = 64  # tokens
# Lengths of the prompts that an uneven workload asks once, from one of these ranges in turn; the
# last goes to the end of the context.
OWN_LENGTHS = ((1, 8), (9, 64), (65, 200), (201, TO_THE_END))
UNEVEN_GREEDY_REQUESTS = 256  # at least, so that there are calls of several sizes
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
        Distinct prompts; of equal length unless the form is uneven.
    requests : int
        Requests in each arm, in both together if `paired`. Where the form asks for several answers
        to a request, answers: each is counted as a request of its own, like the others of its kind.
    new_tokens : int
        Tokens a request asks for; the most that one does if the form is uneven.
    repeated : int or None
        How many of the prompts, the first ones, are asked in turn; each of the others is asked
        once, by every `OWN_PROMPT_EVERY`-th request. None: all of them are asked in turn.
    form : str
        A key of `FORMS`.
    paired : bool
        Whether requests 2 i and 2 i + 1 are one of each arm, with the same prompt.
    """

    prompts: tuple[tuple[int, ...], ...]
    requests: int
    new_tokens: int
    repeated: int | None = None
    form: str = PLAIN
    paired: bool = False

    @property
    def prompt_array(self) -> Tokens:
        """The prompts, the shorter ones padded at their end with `NONE`. [P, L]"""
        longest = max(map(len, self.prompts))
        return np.array([(*p, *[NONE] * (longest - len(p))) for p in self.prompts], dtype=np.int64)

    @property
    def lengths(self) -> Tokens:
        """Tokens that each request asks for: every number in turn, with every prompt. [N]"""
        if not FORMS[self.form].uneven:
            return np.full(self.requests, self.new_tokens)
        i = np.arange(self.requests)
        return (7 * i + 5 * (i // self.new_tokens)) % self.new_tokens + 1

    @property
    def asked(self) -> Tokens:
        """Where each question begins that is put to the engine: its first answer. [Q]"""
        sizes = FORMS[self.form].answers
        if not sizes:
            return np.arange(self.requests)
        turn = np.cumsum((0, *sizes))
        starts = np.arange(self.requests // turn[-1] + 1)[:, None] * turn[-1] + turn[:-1]
        return np.asarray(starts[starts < self.requests])

    @property
    def answers(self) -> Tokens:
        """How many answers each question is given. [Q]"""
        return np.diff(self.asked, append=self.requests)

    @property
    def answer_of(self) -> Tokens:
        """Which answer to its question each one is, from 0. [N]"""
        starts, i = self.asked, np.arange(self.requests)
        return np.asarray(i - starts[np.searchsorted(starts, i, side="right") - 1])

    def whole(self, answers: int) -> Workload:
        """The same with so many answers, or the few more that make the last question whole."""
        sizes = FORMS[self.form].answers
        if sizes:
            starts = replace(self, requests=answers + max(sizes)).asked
            answers = int(starts[np.searchsorted(starts, answers)])
        return replace(self, requests=answers)

    @property
    def speculates(self) -> Bools | None:
        """Which requests do, where both arms are asked together: one of each pair, the first or the
        second in no period (after Thue and Morse). [N]
        """
        if not self.paired:
            return None
        pair, second = np.divmod(np.arange(self.requests), 2)
        odd = np.array([int(j).bit_count() % 2 for j in pair], dtype=np.int64)
        return np.asarray(odd == second)

    def calls(self, begin: int, most: int) -> Iterator[tuple[int, int]]:
        """Which requests share a call, from one on, as (begin, end); none has more than `most`."""
        sizes = FORMS[self.form].calls
        ends = [*self.asked.tolist(), self.requests] if FORMS[self.form].answers else None
        for asked in count_up(sizes, most) if sizes else count(begin + most, most):
            # a call has whole questions
            edge = asked if ends is None else ends[min(asked, len(ends) - 1)]
            if begin >= self.requests:
                return
            if edge > begin:
                yield begin, min(edge, self.requests)
                begin = edge

    @property
    def prompt_of(self) -> Tokens:
        """Which prompt each request has. [N]"""
        if self.paired:
            one = replace(self, requests=-(-self.requests // 2), paired=False)
            return np.repeat(one.prompt_of, 2)[: self.requests]
        if FORMS[self.form].answers:
            each = self.answers
            one = replace(self, requests=len(each), form=PLAIN)
            return np.repeat(one.prompt_of, each)
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
        said = f"{self.requests:,} requests of {self.new_tokens} tokens over {len(self.prompts)}"
        long = [len(p) for p in self.prompts]
        if answers := FORMS[self.form].answers:
            said = said.replace("requests", "answers") + " prompts"
            return f"{len(self.asked):,} requests for 1 to {max(answers)}: {said}"
        if not FORMS[self.form].uneven:
            far = f" of {min(long)} to {max(long)} tokens" if self.form in FAR else ""
            return f"{said} prompts{far}"
        return (
            f"{said.replace(' of ', ' of 1 to ')} prompts of {min(long)} to {max(long)} tokens, "
            f"in calls of {_sizes(FORMS[self.form].calls)}"
        )


def _sizes(calls: tuple[int, ...]) -> str:
    return "one request" if calls == (1,) else f"{min(calls)} to {max(calls)} requests"


def count_up(sizes: tuple[int, ...], most: int) -> Iterator[int]:
    """Where calls end whose sizes are these in turn, but at most so large. Without end."""
    edge = 0
    for turn in count():
        edge += min(sizes[turn % len(sizes)], most)
        yield edge


def greedy_workload(
    oracle: Oracle, requests: int, seed: int, form: str = PLAIN, spare: int = 0
) -> Workload:
    """Distinct prompts, each asked once; they leave `spare` places of the context, at least."""
    if FORMS[form].uneven:
        tokens = oracle.probe.recipe.greedy_tokens
        requests = max(2 * requests, UNEVEN_GREEDY_REQUESTS)
        own = islice(_uneven_prompts(oracle, seed, set(), tokens + spare), requests)
        return Workload(tuple(own), requests, tokens, form=form)
    prompts = _candidates(oracle, seed, requests)
    tokens = oracle.probe.recipe.greedy_tokens
    return Workload(tuple(map(tuple, prompts.tolist())), requests, tokens)


def share_before_end(oracle: Oracle, requests: int, seed: int) -> float:
    """Share of the tokens asked for that greedy outputs have before they end."""
    if not (oracle.decoding.stop or oracle.decoding.stop_strings):
        return 1.0
    prompts = greedy_workload(oracle, requests, seed).prompt_array
    tokens = np.zeros((requests, 0), dtype=np.int64)
    for _ in range(oracle.probe.recipe.greedy_tokens):
        law = oracle.target_laws(prompts, tokens).probs
        tokens = np.concatenate([tokens, law.argmax(axis=1)[:, None]], axis=1)
    return 1 - float(ended(tokens, oracle.decoding)[:, :-1].mean())


def sampled_workload(
    oracle: Oracle, prompts: Tokens, requests: int, seed: int, form: str = PLAIN, spare: int = 0
) -> Workload:
    """Prompts asked again and again, and others asked once."""
    shape = FORMS[form]
    if shape.uneven:
        asked = [tuple(x for x in p if x != NONE) for p in prompts.tolist()]
        drawn = _uneven_prompts(oracle, seed + 2**32, set(asked), shape.tokens + spare)
        own = list(islice(drawn, requests // OWN_PROMPT_EVERY))
        return Workload((*asked, *own), requests, shape.tokens, len(asked), form)
    own = _own_prompts(oracle, seed, set(map(tuple, prompts.tolist())))
    again = map(tuple, prompts.tolist())
    work = Workload((*again, *own), requests, shape.tokens, len(prompts), form)
    work = work.whole(requests)
    used = len(prompts) + len(work.asked) // OWN_PROMPT_EVERY
    return replace(work, prompts=work.prompts[:used])


def long_workload(oracle: Oracle, requests: int, seed: int, form: str = LONG) -> Workload:
    """A few prompts that end before the borders of `conformance.far`, asked in turn."""
    tokens, vocab = FORMS[form].tokens, oracle.probe.recipe.vocab_size
    prompts = [
        _of_length(np.random.default_rng([seed, 2, length]), vocab, length, 1)[0]
        for length in STARTS[form]
    ]
    return Workload(tuple(tuple(p.tolist()) for p in prompts), requests, tokens, form=form)


def requests_for(each: int, prompts: int, form: str = PLAIN) -> int:
    """Requests among which every repeated prompt is asked at least `each` times."""
    found = math.ceil((each * prompts + 1) * OWN_PROMPT_EVERY / (OWN_PROMPT_EVERY - 1))
    if FORMS[form].answers:
        none_own = ((),) * (prompts + found)  # lengths do not matter
        while _fewest(Workload(none_own, found, 1, prompts, form)) < each:
            found += max(FORMS[form].answers)
    return found


def _fewest(work: Workload) -> int:
    """How often the repeated prompt that is asked least is asked."""
    return int(np.bincount(work.prompt_of)[: work.repeated].min())


def _own_prompts(oracle: Oracle, seed: int, asked: set[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Distinct prompts; the same list however many will be used, so that a run can go on."""
    drawn = map(tuple, _candidates(oracle, seed + 2**32, MOST_OWN_PROMPTS).tolist())
    return [p for p in dict.fromkeys(drawn) if p not in asked]


def sampled_prompts(oracle: Oracle, seed: int, form: str = PLAIN, spare: int = 0) -> Tokens:
    """Choose the prompts of a sampled case, from the laws alone, padded as `Workload.prompt_array`.
    [P, L]

    Raises
    ------
    PlanError
        If no candidate has an unambiguous law with a choice to make.
    """
    shape = FORMS[form]
    if shape.uneven:
        sized = (_candidates_of(oracle, seed, n, shape.tokens + spare) for n in shape.prompts)
        good = [p[_good(oracle, p, 1)] for p in sized]
        found = [tuple(p[0].tolist()) for p in good if len(p)]
        return Workload(tuple(found), 1, 1).prompt_array if found else _none_left(oracle)
    prompts = _candidates(oracle, seed, CANDIDATES)
    chosen = _good(oracle, prompts, SAMPLED_PROMPTS)
    return prompts[chosen] if len(chosen) else _none_left(oracle)


def _none_left(oracle: Oracle) -> Tokens:
    raise PlanError(
        f"under {oracle.decoding} no prompt of probe {oracle.probe.recipe.name} leaves a "
        "choice to make; use a less extreme decoding"
    )


def _good(oracle: Oracle, prompts: Tokens, wanted: int) -> Tokens:
    """Which of the prompts to take, the first ones that will do. [at most `wanted`]"""
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
    return np.flatnonzero(good if good.sum() >= wanted else usable)[:wanted]


def _candidates_of(oracle: Oracle, seed: int, length: int, left: int) -> Tokens:
    """Candidates of one length; `TO_THE_END` leaves so many places of the context and no more."""
    recipe = oracle.probe.recipe
    if length == TO_THE_END:
        length = recipe.context - left
    rng = np.random.default_rng([seed, 2, length])
    rows = CANDIDATES if length <= SHORT else LONG_CANDIDATES
    return _of_length(rng, recipe.vocab_size, length, rows)


def _of_length(rng: np.random.Generator, vocab: int, length: int, rows: int) -> Tokens:
    """Prompts of one length: whatever, and at the end a phrase said again, as far as it fits."""
    phrase = np.tile(rng.integers(0, vocab, size=(rows, PHRASE)), (1, PROMPT_LENGTH // PHRASE))
    before = rng.integers(0, vocab, size=(rows, max(length - PROMPT_LENGTH, 0)))
    return np.concatenate([before, phrase], axis=1)[:, -length:]


def _uneven_prompts(
    oracle: Oracle, seed: int, asked: set[tuple[int, ...]], left: int
) -> Iterator[tuple[int, ...]]:
    """Distinct prompts of many lengths that leave so many places of the context at least, without
    end; the same first ones however many are used.
    """
    recipe, known = oracle.probe.recipe, set(asked)
    for i in count():
        rng = np.random.default_rng([seed, 2, i, left])
        low, high = OWN_LENGTHS[i % len(OWN_LENGTHS)]
        length = int(rng.integers(low, (high or recipe.context - left) + 1))
        prompt = tuple(_of_length(rng, recipe.vocab_size, length, 1)[0].tolist())
        if prompt not in known:
            known.add(prompt)
            yield prompt


def _candidates(oracle: Oracle, seed: int, count: int) -> Tokens:
    rng = np.random.default_rng([seed, 2])
    vocab = oracle.probe.recipe.vocab_size
    phrase = rng.integers(0, vocab, size=(count, PHRASE))
    # whether a stop string may begin in the prompt is understood in two ways, so that none does
    begin = [x for before, _ in patterns(oracle.decoding.stop_strings) for x in before]
    free = np.setdiff1d(np.arange(vocab), begin)
    if begin and len(free):
        bad = np.isin(phrase[:, -1], begin)
        phrase[bad, -1] = free[phrase[bad, 0] % len(free)]
    return np.tile(phrase, (1, PROMPT_LENGTH // PHRASE))


def _entropy(p: Floats) -> Floats:
    return np.asarray(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=1))
