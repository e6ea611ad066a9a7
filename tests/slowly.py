"""An exact engine that takes its time, so that there is time to kill whoever waits for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from conformance import Completion, Request
from conformance.adapters.reference import reference


class Slowly:
    """Exact; eight requests at a time, and some milliseconds for them."""

    def __init__(self) -> None:
        self.inner = reference()
        self.card = replace(self.inner.card, name="slowly")
        self.capabilities = replace(self.inner.capabilities, max_batch=8)

    def load(self, probe: object) -> None:
        self.inner.load(probe)  # type: ignore[arg-type]

    def close(self) -> None:
        self.inner.close()

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        time.sleep(0.04)
        return self.inner.generate(requests)
