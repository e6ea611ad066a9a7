"""Engines that break the contract, each in one way; those that break their process or the law are
in ``processes.py`` and ``laws.py``.

They are the exact reference engine otherwise, so that what a verdict blames is what the class does.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from conformance import Capabilities, Completion, ModelPair, NotSupportedError, Request
from conformance.adapters.reference import ReferenceEngine


class Altered(ReferenceEngine):
    """Exact, then `answer` changes every answer of the speculative arm, and `both` of both."""

    both = False
    batch = 1024
    control = True

    def __init__(self) -> None:
        super().__init__(name=type(self).__name__)
        self.capabilities = Capabilities(max_batch=self.batch, control=self.control)
        self.calls = 0

    def generate(self, requests: Sequence[Request]) -> Any:
        self.calls += 1
        self.before(requests)
        answers = super().generate(requests)
        if not (self.both or requests[0].speculate):
            return answers
        return self.change([self.answer(a) for a in answers])

    def before(self, requests: Sequence[Request]) -> None: ...

    def answer(self, a: Completion) -> Any:
        return a

    def change(self, answers: list[Any]) -> Any:
        return answers


# --- raising --------------------------------------------------------------------------------------


class RaisesOnConstruct(ReferenceEngine):
    def __init__(self) -> None:
        raise RuntimeError("no licence key")


class RaisesOnLoad(ReferenceEngine):
    def load(self, probe: ModelPair) -> None:
        raise OSError("weights are not readable")


class Raises(Altered):
    error: BaseException = ValueError("cannot")

    def before(self, requests: Sequence[Request]) -> None:
        raise self.error


class RaisesMemoryError(Raises):
    error = MemoryError("out of memory on device 0")


class RaisesSystemExit(Raises):
    error = SystemExit(0)


class RaisesKeyboardInterrupt(Raises):
    error = KeyboardInterrupt()


class Unforeseen(BaseException):
    pass


class RaisesBaseException(Raises):
    error = Unforeseen("not even an Exception")


class RaisesUnprintable(Raises):
    error = ValueError("\x1b[2J\x1b]0;pwned\x07 \udcff <script>alert(1)</script>" + "x" * 10**6)


class RaisesOnThirdCall(Altered):
    batch = 4

    def before(self, requests: Sequence[Request]) -> None:
        if self.calls == 3:
            raise RuntimeError("third time unlucky")


class RaisesForSomePrompts(Altered):
    batch = 1

    def before(self, requests: Sequence[Request]) -> None:
        if any(r.prompt[0] % 2 for r in requests):
            raise RuntimeError("odd prompt")


class FailsOnOneToken(Altered):
    """Selection: what it does answer never holds the token, and would look like another law."""

    def change(self, answers: list[Any]) -> Any:
        if any(7 in a.tokens for a in answers):
            raise RuntimeError("token 7 has no text")
        return answers


# --- refusing -------------------------------------------------------------------------------------


class Refuses(Altered):
    def before(self, requests: Sequence[Request]) -> None:
        raise NotSupportedError("no such sampler here")


class VendorRefusal(NotSupportedError):
    pass


class RefusesInItsOwnWords(Altered):
    def before(self, requests: Sequence[Request]) -> None:
        raise VendorRefusal("compile with -DSAMPLERS")


class RefusesLater(Altered):
    batch = 4

    def before(self, requests: Sequence[Request]) -> None:
        if self.calls > 2:
            raise NotSupportedError("changed my mind")


class ClaimsNothing(Altered):
    def __init__(self) -> None:
        super().__init__()
        self.capabilities = Capabilities(greedy=False, sampling=False)


# --- answers that are none ------------------------------------------------------------------------


class AnswersNone(Altered):
    def change(self, answers: list[Any]) -> Any:
        return None


class AnswersNothing(Altered):
    def change(self, answers: list[Any]) -> Any:
        return []


class AnswersFewer(Altered):
    def change(self, answers: list[Any]) -> Any:
        return answers[:-1]


class AnswersMore(Altered):
    def change(self, answers: list[Any]) -> Any:
        return [*answers, answers[0]]


class AnswersGenerator(Altered):
    def change(self, answers: list[Any]) -> Any:
        return (a for a in answers)


class AnswersTuples(Altered):
    def answer(self, a: Completion) -> Any:
        return tuple(a.tokens)


class StringTokens(Altered):
    def answer(self, a: Completion) -> Any:
        return replace(a, tokens=[str(t) for t in a.tokens])


class FloatTokens(Altered):
    def answer(self, a: Completion) -> Any:
        return replace(a, tokens=[float(t) for t in a.tokens])


class NanTokens(Altered):
    def answer(self, a: Completion) -> Any:
        return replace(a, tokens=[float("nan")] * len(a.tokens))


class NoTokens(Altered):
    def answer(self, a: Completion) -> Any:
        return replace(a, tokens=())


class TooFewTokens(Altered):
    def answer(self, a: Completion) -> Any:
        return replace(a, tokens=a.tokens[:-1])


class TooManyTokens(Altered):
    def answer(self, a: Completion) -> Any:
        return replace(a, tokens=(*a.tokens, 0))


class EndlessTokens(Altered):
    def answer(self, a: Completion) -> Any:
        return replace(a, tokens=itertools.repeat(0))


class NumpyTokens(Altered):
    def answer(self, a: Completion) -> Any:
        rounds = np.array(a.rounds, dtype=np.int32)
        return replace(a, tokens=np.array(a.tokens, dtype=np.uint16), rounds=rounds)


# --- rounds ---------------------------------------------------------------------------------------


class NoRounds(Altered):
    def answer(self, a: Completion) -> Any:
        return replace(a, rounds=None)


class NeverSpeculates(Altered):
    """Falls back to plain decoding, and says so."""

    def answer(self, a: Completion) -> Any:
        return replace(a, rounds=[(0, 0)] * len(a.tokens))


class RoundsTooFew(Altered):
    def answer(self, a: Completion) -> Any:
        return replace(a, rounds=[(4, 0)] * (len(a.tokens) - 1))


class RoundsTooMany(Altered):
    def answer(self, a: Completion) -> Any:
        return replace(a, rounds=[(4, 4)] * len(a.tokens))


class RoundsNotPairs(Altered):
    def answer(self, a: Completion) -> Any:
        return replace(a, rounds=5)


class RoundsBeyondBelief(Altered):
    def answer(self, a: Completion) -> Any:
        return replace(a, rounds=[(2**80, 0)] * len(a.tokens))


class AcceptsMoreThanProposed(Altered):
    def answer(self, a: Completion) -> Any:
        return replace(a, rounds=[(0, len(a.tokens) - 1)])
