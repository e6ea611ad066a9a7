"""Engines that end otherwise than with a verdict on their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from conformance import Completion, NotSupportedError, Request
from conformance.adapters.reference import faulty, reference
from conformance.tinylm import TinyLlama


class _Wraps:
    """The reference, in small batches."""

    name = "difficult"

    def __init__(self) -> None:
        self.inner = reference()
        self.card = replace(self.inner.card, name=self.name)
        self.capabilities = replace(self.inner.capabilities, max_batch=64)
        self.calls = 0

    def load(self, probe: object) -> None:
        self.inner.load(probe)  # type: ignore[arg-type]

    def close(self) -> None:
        self.inner.close()

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.calls += 1
        self.before(requests)
        return list(self.inner.generate(requests))

    def before(self, requests: Sequence[Request]) -> None:
        del requests


class Refuses(_Wraps):
    """Claims no greedy decoding, and refuses the rest when it is asked."""

    name = "refuses"

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, greedy=False)

    def before(self, requests: Sequence[Request]) -> None:
        raise NotSupportedError("this build has no sampling")


class Accepts(_Wraps):
    """Accepts every proposal, in batches so small that it can be stopped between them."""

    name = "accepts"

    def __init__(self) -> None:
        super().__init__()
        self.inner = faulty("accept-all")
        self.capabilities = replace(self.capabilities, max_batch=16)


class Fails(_Wraps):
    """Answers a few batches, and then no more; greedy ones never."""

    name = "fails"

    def before(self, requests: Sequence[Request]) -> None:
        # whether a worker has had other cases before must not matter
        if self.calls > 3 or requests[0].decoding.greedy:
            raise RuntimeError("out of blocks")


class Broken(_Wraps):
    """Cannot even be constructed."""

    def __init__(self) -> None:
        raise RuntimeError("no such device")


class Rounds(_Wraps):
    """Computes in bfloat16: the weights are rounded when they are loaded."""

    name = "rounds"

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, precision="bfloat16", max_batch=1024)

    def load(self, probe: object) -> None:
        super().load(probe)
        for name, folder in (("_target", "target"), ("_draft", "draft")):
            path = getattr(probe, folder)
            setattr(self.inner, name, TinyLlama.load(path, np.float32, "bfloat16"))


class Looks(_Wraps):
    """Says that it drafts by lookup; what it drafts with does not show in exact output."""

    name = "looks"

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, draft="lookup", verification="any")


class Counts(_Wraps):
    """Tells how many tokens were drafted and accepted, and nothing of its blocks."""

    name = "counts"

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [_counted(c) for c in super().generate(requests)]


def _counted(answer: Completion) -> Completion:
    if answer.rounds is None:
        return answer
    drafted, accepted = (sum(pair[i] for pair in answer.rounds) for i in (0, 1))
    return replace(answer, rounds=None, counts=(drafted, accepted))
