"""What ``conformance engines`` lists; the tier itself is judged by `conformance.served.decide`."""

from __future__ import annotations

from collections.abc import Sequence

from conformance._version import __version__
from conformance.contract import Capabilities, Completion, EngineCard, ModelPair, Request
from conformance.errors import EngineLoadError


class Listed:
    """A card and capabilities, and nothing that could be loaded."""

    card = EngineCard("served", __version__, "a server against itself without speculation")
    capabilities = Capabilities(draft="none", processes=1)

    def load(self, probe: ModelPair) -> None:
        """Refuse: a server of this tier has its own model.

        Raises
        ------
        EngineLoadError
            Always.
        """
        raise EngineLoadError(f"served has a model of its own and cannot load {probe.name}")

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Refuse, as `load` does.

        Raises
        ------
        EngineLoadError
            Always.
        """
        raise EngineLoadError(f"served cannot answer {len(requests)} requests here")

    def close(self) -> None:
        """Nothing to free."""


def create() -> Listed:
    """Make it."""
    return Listed()
