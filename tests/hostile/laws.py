"""Engines that sample from another law, each in one way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engines import Altered  # a file's neighbours can be imported

from conformance import Completion, Request
from conformance.adapters.reference import faulty
from conformance.decoding import Decoding

VOCAB = 32  # of the probe that these are judged on


class _Replaces(Altered):
    both = True
    by = 0

    def answer(self, a: Completion) -> Any:
        return replace(a, tokens=(*a.tokens[:-1], self.by))


class EmitsVocabularySize(_Replaces):
    by = VOCAB


class EmitsHugeId(_Replaces):
    by = 2**80


class PadsWithMinusOne(_Replaces):
    by = -1


class SameSeedForAll(Altered):
    def generate(self, requests: Sequence[Request]) -> Any:
        return super().generate([replace(r, seed=1) for r in requests])


class CachesByPrompt(Altered):
    batch = 16
    control = False

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[tuple[int, ...], Completion] = {}

    def change(self, answers: list[Any]) -> Any:
        return [self.known.setdefault(p, a) for p, a in zip(self.asked, answers, strict=True)]

    def before(self, requests: Sequence[Request]) -> None:
        self.asked = [r.prompt for r in requests]


class WrongInTheSecondHalf(Altered):
    control = False

    def change(self, answers: list[Any]) -> Any:
        half = len(answers) // 2
        draft = faulty("accept-all")
        draft._target, draft._draft = self._target, self._draft
        return answers[:half] + draft.generate(self.asked[half:])

    def before(self, requests: Sequence[Request]) -> None:
        self.asked = list(requests)


class AnotherDialect(Altered):
    """Both arms sample colder than was asked: plain sampling is not in the declared dialect."""

    def generate(self, requests: Sequence[Request]) -> Any:
        return super().generate([replace(r, decoding=Decoding(temperature=0.5)) for r in requests])


class AnotherDialectAndWrong(AnotherDialect):
    """And speculation adds a departure of its own."""

    def change(self, answers: list[Any]) -> Any:
        n = len(answers[0].tokens)
        return [replace(a, tokens=(a.tokens[0],) * n) for a in answers]


class LiesAboutRounds(Altered):
    """Emits the draft's tokens and claims rounds that look like honest work."""

    control = False

    def generate(self, requests: Sequence[Request]) -> Any:
        draft = faulty("accept-all")
        draft._target, draft._draft = self._target, self._draft
        n = requests[0].max_new_tokens
        return [replace(a, rounds=[(4, 1)] * ((n + 1) // 2)) for a in draft.generate(requests)]
