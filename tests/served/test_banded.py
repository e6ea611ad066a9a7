"""Tests against laws that are known within bounds, or with noise: simulated."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from conformance.statistics import exact
from conformance.statistics.banded import Row, banded
from conformance.statistics.tables import Table

RUNS = 1500
LAW = np.array([0.3, 0.22, 0.16, 0.12, 0.08, 0.12])  # the last is the rest
LEVELS = (0.2, 0.05, 0.01)


def row(counts, low=LAW, high=LAW, expected=None):
    n = counts.sum() if expected is None else expected
    return Row(float(n), counts, np.asarray(low), np.asarray(high))


def rates(p):
    return [float((np.asarray(p) <= level).mean()) for level in LEVELS]


def at_most(p, slack=1.0):
    for level in LEVELS:
        most = stats.binom.isf(1e-5, len(p), min(level * slack, 1))
        assert (np.asarray(p) <= level).sum() <= most, (level, rates(p))


def test_without_bounds_it_is_the_exact_test():
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = rng.multinomial(400, LAW)
        mine = banded([row(counts)], np.random.default_rng(1))
        table = Table(np.array([400]), np.zeros(5, np.int64), counts[:5], LAW[:5])
        wanted = exact.chi_square(table, np.random.default_rng(1))
        assert mine.chi_square().statistic == pytest.approx(wanted.statistic)
        assert mine.chi_square().p_value == pytest.approx(wanted.p_value)


def test_p_values_are_uniform_whatever_number_of_answers_comes():
    """Rows that depend on one another, and some that are hardly reached."""
    rng = np.random.default_rng(0)
    p = {"chi-square": [], "weighted": [], "direction": []}
    for _ in range(RUNS):
        first = rng.multinomial(300, LAW)
        below = [rng.multinomial(n, LAW) for n in first[:3]]
        rows = [row(first)] + [row(c, expected=300 * q) for c, q in zip(below, LAW, strict=False)]
        found = banded(rows, rng)
        assert len(found.lowest) > 8
        p["chi-square"].append(found.chi_square().p_value)
        p["weighted"].append(found.by_frequency().p_value)
        p["direction"].append(found.direction().p_value)
    for what, found in p.items():
        at_most(found, 1.1 if what == "weighted" else 1.0)
        if what != "weighted":
            assert stats.kstest(found, "uniform").pvalue > 1e-4, what


def test_cells_and_weights_are_planned():
    """From what is expected; what came instead changes neither."""
    few, many = (np.random.default_rng(n).multinomial(n, LAW) for n in (0, 700))
    first, second = (banded([row(c, expected=100)], np.random.default_rng(0)) for c in (few, many))
    assert len(first.lowest) == len(second.lowest) == 4  # the fifth is expected 8 times
    assert np.array_equal(first.information, second.information)
    assert np.array_equal(first.sharpening, second.sharpening)


@pytest.mark.parametrize("where", ["low corner", "high corner", "another one for every answer"])
def test_no_law_within_the_bounds_is_a_departure(where):
    rng = np.random.default_rng(1)
    low, high = LAW * [0.9, 0.9, 0.7, 0.9, 0.0, 0.8], LAW * [1.1, 1.1, 1.3, 1.1, 1.4, 1.2]
    p, directions = [], []
    for _ in range(RUNS):
        if where == "another one for every answer":
            laws = rng.uniform(low, high, (400, 6))
        else:
            laws = np.tile(np.where([1, 1, 0, 0, 1, 0], low, high), (400, 1))
            laws = laws if where == "low corner" else np.tile(low + high - laws[0], (400, 1))
        laws /= laws.sum(axis=1, keepdims=True)
        symbols = (laws.cumsum(axis=1) < rng.random((400, 1))).sum(axis=1)
        counts = np.bincount(symbols, minlength=6)
        found = banded([row(counts, low, high)], rng)
        p.append(found.chi_square().p_value)
        directions.append(found.direction().p_value)
    at_most(p)
    at_most(directions)


def test_what_is_outside_the_bounds_is_found():
    rng = np.random.default_rng(2)
    low, high = LAW * 0.98, LAW * 1.02
    other = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    found = banded([row(rng.multinomial(1000, other), low, high)], rng)
    assert found.chi_square().p_value < 1e-12
    assert found.direction().p_value < 1e-3
    assert found.direction().statistic > 0


def test_what_the_law_excludes_is_found():
    law = np.array([0.6, 0.4, 0.0])
    rng = np.random.default_rng(3)
    assert banded([row(np.array([300, 200, 0]), law, law)], rng).chi_square().p_value > 1e-3
    assert banded([row(np.array([200, 200, 100]), law, law)], rng).chi_square().p_value < 1e-12


@pytest.mark.parametrize("noise", [0.02, 0.08])
def test_errors_of_the_size_that_is_allowed_are_no_departure(noise):
    rng = np.random.default_rng(4)
    p, weighted, directions, plain = [], [], [], []
    for _ in range(RUNS):
        rows = []
        for _ in range(4):
            true = LAW * np.exp(rng.normal(0, noise, 6))
            rows.append(row(rng.multinomial(2000, true / true.sum())))
        seed = int(rng.integers(2**31))
        found = banded(rows, np.random.default_rng(seed), noise=noise)
        p.append(found.chi_square().p_value)
        weighted.append(found.by_frequency().p_value)
        directions.append(found.direction().p_value)
        plain.append(banded(rows, np.random.default_rng(seed)).chi_square().p_value)
    for found in (p, weighted, directions):
        at_most(found, 1.2)  # errors that are normal, and probabilities that are not linear in them
    if noise > 0.05:
        assert (np.array(plain) <= 0.01).mean() > 0.5


@pytest.mark.parametrize(("noise", "band"), [(0.0, 0.0), (0.03, 0.0), (0.0, 0.03)])
def test_a_departure_of_the_size_stated_is_caught(noise, band):
    """The worst shape: spread over all cells; and the told law as far off as allowed."""
    rng = np.random.default_rng(5)
    level, power, each, rows = 1e-6, 0.9, 1500, 4
    law = np.full(9, 1 / 9)
    low, high = law * (1 - band), law * (1 + band)
    empty = [Row(each, np.zeros(9, np.int64), low, high)] * rows
    planned = banded(empty, rng, noise=noise)
    assert planned.detectable(level, power) is None  # nothing was answered
    sign = np.array([1, -1, 1, -1, 1, -1, 1, -1, 0])
    caught, runs = 0, 120
    for _ in range(runs):
        counts = [rng.multinomial(each, law) for _ in range(rows)]
        reached = banded([Row(each, c, low, high) for c in counts], rng, noise=noise).detectable(
            level, power
        )
        told = law * np.exp(rng.normal(0, noise, 9))
        off = law + sign * 2 * reached / 8
        assert 0.5 * np.abs(off - law).sum() == pytest.approx(reached)
        counts = [rng.multinomial(each, off) for _ in range(rows)]
        told /= told.sum()
        rows_told = [Row(each, c, told * (1 - band), told * (1 + band)) for c in counts]
        caught += banded(rows_told, rng, noise=noise).chi_square().p_value <= level
    assert stats.binom.cdf(caught, runs, power) > 1e-3, caught
