"""Bundles that nobody touched: all agree."""

from __future__ import annotations

import pytest
from bundles import lines

from conformance.reports.verify import Status, verify_bundle

KINDS = ("small", "mixed", "staged", "inconclusive", "verifiers", "served", "rounded", "expected")


@pytest.mark.parametrize("kind", KINDS)
def test_it_agrees(kind: str, request: pytest.FixtureRequest) -> None:
    found = verify_bundle(request.getfixturevalue(kind))
    assert lines(found, Status.DIFFERS) == []
    assert found.agrees
