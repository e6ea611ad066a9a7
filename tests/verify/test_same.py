"""When a number of a report is the one that was worked out again."""

from __future__ import annotations

import pytest

from conformance.reports.verify.same import differences


def apart(told: object, found: object, name: str = "p_value") -> list[str]:
    return list(differences({name: told}, {name: found}))


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (0.25, 0.25 * (1 + 1e-7)),
        # the statistic is off by less than one in a million
        (8.47e-166, 8.47e-166 * (1 + 3e-4)),
        (0.0, 0.0),
        (None, None),
    ],
)
def test_what_rounding_explains(told, found) -> None:
    assert apart(told, found) == []
    assert apart(found, told) == []


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (0.25, 0.25 * (1 + 1e-5)),
        (1e-9, 1.1e-9),
        (8.47e-166, 8.47e-166 * 1.01),
        (0.0, 1e-300),
        (0.5, None),
        (1e-7, 2e-7),  # both next to nothing, as estimates, and one of them above a level
    ],
)
def test_what_it_does_not(told, found) -> None:
    assert apart(told, found)
    assert apart(found, told)


def test_estimates_are_not_p_values() -> None:
    assert apart(1e-12, 2e-12, "estimate") == []
    assert apart(1e-3, 1.001e-3, "estimate")
