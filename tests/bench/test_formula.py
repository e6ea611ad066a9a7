"""Leviathan's formula against a simulation of the algorithm it describes."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.bench.formula import expected_tokens, predicted_speedup


def simulated_tokens(a: float, k: int, blocks: int, rng: np.random.Generator) -> float:
    accepted = np.cumprod(rng.random((blocks, k)) < a, axis=1).sum(axis=1)
    return float(accepted.mean()) + 1


@pytest.mark.parametrize(("a", "k"), [(0.8, 4), (0.3, 7), (0.95, 2), (0.0, 3), (1.0, 5)])
def test_expected_tokens_are_those_of_a_simulation(a: float, k: int) -> None:
    n = 200_000
    found = simulated_tokens(a, k, n, np.random.default_rng(1))
    # no block's length has a standard deviation above (k + 1) / 2
    assert expected_tokens(a, k) == pytest.approx(found, abs=5 * (k + 1) / 2 / n**0.5)


def test_the_theorem() -> None:
    # (1 - a^(k+1)) / ((1 - a) (k c + 1)), Leviathan et al., theorem 3.8
    a, k, c = 0.7, 5, 0.1
    theorem = (1 - a ** (k + 1)) / ((1 - a) * (k * c + 1))
    assert predicted_speedup(a, {k: 17}, c) == pytest.approx(theorem)


def test_blocks_of_several_lengths_are_weighed_by_their_time() -> None:
    a, c = 0.6, 0.2
    rng = np.random.default_rng(2)
    lengths = rng.choice([0, 1, 5], size=200_000, p=[0.2, 0.3, 0.5])
    tokens = sum(
        simulated_tokens(a, int(k), int(n), rng) * n
        for k, n in zip(*np.unique(lengths, return_counts=True), strict=True)
    )
    seconds = (lengths * c + 1).sum()
    blocks = {int(k): int(n) for k, n in zip(*np.unique(lengths, return_counts=True), strict=True)}
    assert predicted_speedup(a, blocks, c) == pytest.approx(tokens / seconds, rel=0.01)


def test_a_draft_as_dear_as_the_target_never_pays() -> None:
    assert all(predicted_speedup(a, {4: 1}, 1.0) <= 1 for a in (0.0, 0.5, 0.9, 1.0))


def test_nothing_is_predicted_of_no_block() -> None:
    with pytest.raises(ValueError, match="no block"):
        predicted_speedup(0.5, {4: 0}, 0.1)
