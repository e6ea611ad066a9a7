"""Bundles that nobody touched: all agree."""

from __future__ import annotations

import numpy as np
import pytest
from bundles import SAMPLED, lines, run

from conformance.reports.verify import Status, verify_bundle
from conformance.tinylm import TinyLlama

KINDS = ("small", "mixed", "staged", "inconclusive", "verifiers", "served", "rounded", "expected")


@pytest.mark.parametrize("kind", KINDS)
def test_it_agrees(kind: str, request: pytest.FixtureRequest) -> None:
    found = verify_bundle(request.getfixturevalue(kind))
    assert lines(found, Status.DIFFERS) == []
    assert found.agrees


@pytest.mark.parametrize("probe", ["worked-example", "twin"])
def test_the_last_bit_of_the_law_changes_nothing(probe, tmp_path, monkeypatch, afresh) -> None:
    """Another processor, or another number of threads, adds numbers in another order. On these
    probes there are ties, which rounding must not break: equal laws, and ratios of 1.
    """
    bundle = run(tmp_path / "b", "reference", "--probe", probe, *SAMPLED)
    afresh()
    advance, rng = TinyLlama.advance, np.random.default_rng(0)

    def elsewhere(self, *given, **named):
        made = advance(self, *given, **named)
        return made * (1 + 2e-16 * rng.standard_normal(made.shape))

    monkeypatch.setattr(TinyLlama, "advance", elsewhere)
    found = [x for x in lines(verify_bundle(bundle), Status.DIFFERS) if "float_noise" not in x]
    assert found == []
