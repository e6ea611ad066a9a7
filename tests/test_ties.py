"""Numbers without the digits in which processors differ."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.statistics.ties import DIGITS, settled

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 2.0**-1022]


def by_definition(values):
    """So many binary digits of the mantissa, rounded."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(np.ldexp(mantissa, DIGITS)), exponent - DIGITS)


def test_it_rounds_to_so_many_digits():
    rng = np.random.default_rng(0)
    wide = rng.standard_normal(10_000) * 10.0 ** rng.integers(-300, 300, 10_000)
    for values in (rng.random((20, 500)), wide, np.array(SPECIAL)):
        before = values.copy()
        np.testing.assert_array_equal(settled(values), by_definition(values))
        np.testing.assert_array_equal(values, before)  # in a copy


def test_rounding_is_forgotten_and_nothing_else():
    values = np.random.default_rng(1).random(10_000)
    near = np.nextafter(values, 1)
    assert np.mean(settled(values) == settled(near)) > 0.9999
    assert not np.any(settled(values) == settled(values * (1 + 4e-9)))
    np.testing.assert_array_equal(settled(settled(values)), settled(values))


@pytest.mark.parametrize("value", [np.float64(0.3), np.array(0.3, np.float32)])
def test_single_numbers_and_single_precision(value):
    out = settled(value)
    assert out.shape == ()
    assert out == pytest.approx(value, rel=1e-9)
