"""An engine hidden behind the interface of a server: its law is not told to anybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from conformance.adapters.openai_logprobs import Top
from conformance.adapters.reference import ReferenceEngine
from conformance.contract import Capabilities, EngineCard, ModelPair, Request
from conformance.decoding import Decoding
from conformance.law import softmax, warp
from conformance.plan import PROFILES, RunPlan
from conformance.served.plan import ServedCase, served_tests, sized
from conformance.served.server import SPECULATIVE, Answer, Ask, Met, TopAnswer, TopAsk
from conformance.served.target import target
from conformance.served.words import MODEL
from conformance.tinylm import TinyLlama

NAME = "served,url=http://a.invalid/v1,control=http://b.invalid/v1"


class Hidden:
    """Answers as a server with this engine would.

    Parameters
    ----------
    engine : ReferenceEngine
        Loaded or not.
    pair : ModelPair
        What it serves.
    prompts : dict of str to tuple of int
        Token ids of the prompts, which only this side knows.
    ends : int or None
        A token at which the model ends by itself.
    shown : bool
        Whether that token is in the answers, as with most servers.
    most : int
        Likeliest tokens told at a place.
    jitter, offset : float
        Rounding of the logits that are told, in nats: another with every answer; and one that a
        prefix always has when it is asked for, but not when it was generated token by token.
    """

    def __init__(
        self,
        engine: ReferenceEngine,
        pair: ModelPair,
        prompts: dict[str, tuple[int, ...]],
        ends: int | None = None,
        shown: bool = True,
        most: int = 20,
        jitter: float = 0.0,
        offset: float = 0.0,
    ) -> None:
        engine.load(pair)
        self.model, self.shown, self.most = TinyLlama.load(pair.target), shown, most
        self.jitter, self.offset = jitter, offset
        self._logits: dict[tuple[int, ...], np.ndarray] = {}
        self.engine, self.prompts, self.ends = engine, prompts, ends
        self.asked = 0
        self.known: dict[tuple[bool, str, int | None], Answer] = {}

    def prepare(self, decoding: Decoding, asks: Sequence[Ask], at_once: int = 4000) -> None:
        """Answer many requests ahead, of many runs together: each draws from its own seed."""
        for i in range(0, len(asks), at_once):
            part = asks[i : i + at_once]
            for a, answer in zip(part, self._generate(decoding, part), strict=True):
                self.known[a.arm == SPECULATIVE, a.text, a.seed] = answer

    def ask(self, decoding: Decoding, asks: Sequence[Ask]) -> list[Answer]:
        self.asked += len(asks)
        if self.known:
            return [self.known[a.arm == SPECULATIVE, a.text, a.seed] for a in asks]
        return self._generate(decoding, asks)

    def _generate(self, decoding: Decoding, asks: Sequence[Ask]) -> list[Answer]:
        requests = [
            Request(self.prompts[a.text], a.tokens, decoding, a.seed, a.arm == SPECULATIVE)
            for a in asks
        ]
        return [self._answer(c.tokens, c.rounds) for c in self.engine.generate(requests)]

    def _answer(self, tokens: Sequence[int], rounds: object) -> Answer:
        symbols = [int(t) for t in tokens]
        if self.ends in symbols:
            symbols = [*symbols[: symbols.index(self.ends) + self.shown], -1]
        counts = None
        if isinstance(rounds, Sequence) and rounds:
            counts = (sum(d for d, _ in rounds), sum(a for _, a in rounds))
        return Answer(tuple(symbols), counts)

    def tops(self, decoding: Decoding, asks: Sequence[TopAsk]) -> list[TopAnswer]:
        return [self._walk(decoding, a) for a in asks]

    def _walk(self, decoding: Decoding, a: TopAsk) -> TopAnswer:
        rng = np.random.default_rng(a.seed)
        prompt, tokens, tops = self.prompts[a.text], [], []
        while len(tokens) < a.tokens:
            if tokens and tokens[-1] == self.ends:
                break
            row = (*prompt, *a.prefix, *tokens)
            z = self._plain(row)
            told = z + rng.normal(0, self.jitter, len(z)) if self.jitter else z
            if self.offset and not tokens:
                fixed = np.random.default_rng(list(row)).normal(0, self.offset, len(z))
                told = told + fixed
            log = np.log(softmax(told))
            ids = np.argsort(-log)[: self.most]
            tops.append(Top(tuple(ids.tolist()), tuple(log[ids].tolist())))
            tokens.append(int(rng.choice(len(z), p=warp(z, decoding))))
        return TopAnswer(tuple(tokens), tuple(tops), bool(tokens) and tokens[-1] == self.ends)

    def _plain(self, row: tuple[int, ...]) -> np.ndarray:
        if row not in self._logits:
            self._logits[row] = self.model.logits(np.array([row]))[0, -1]
        return self._logits[row]

    def counted(self) -> None:
        return None

    def close(self) -> None:
        pass


def texts(count: int, vocab: int, seed: int = 0, length: int = 24) -> dict[str, tuple[int, ...]]:
    """Prompts and their ids."""
    rng = np.random.default_rng(seed)
    phrases = rng.integers(0, vocab, (count, 8))
    rows = np.tile(phrases, (1, length // 8)).tolist()
    return {" ".join(f"w{t}" for t in row): tuple(row) for row in rows}


def planned(
    prompts: dict[str, tuple[int, ...]],
    decoding: Decoding = Decoding(),  # noqa: B008 - frozen
    profile: str = "smoke",
    alpha: float = 1e-6,
    tokens: int = 8,
    requests: int | None = None,
    style: str = "vllm",
    seed: int = 0,
    logprobs: int = 0,
) -> RunPlan:
    """A plan of one case; `requests` an arm in the place of what the plan works out."""
    aim = replace(target(NAME), prompts=tuple(prompts), tokens=tokens)
    met = Met("1", "hidden", style, logprobs)
    claims = Capabilities(draft="none", processes=1)
    case = ServedCase(NAME, MODEL, decoding, EngineCard("served"), claims, aim=aim, met=met)
    case = replace(case, tests=served_tests(case, tokens))
    level = RunPlan((case,), PROFILES[profile], alpha, seed).level
    case = sized(case, PROFILES[profile], level)
    if requests is not None:
        assert case.workload is not None
        case = replace(case, workload=replace(case.workload, requests=requests))
    return RunPlan((case,), PROFILES[profile], alpha, seed)


def only(plan: RunPlan) -> ServedCase:
    (case,) = plan.cases
    assert isinstance(case, ServedCase)
    return case
