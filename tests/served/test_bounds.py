"""What the likeliest tokens tell of a law, against laws of which everything is known."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.decoding import Decoding, Dialect
from conformance.law import softmax, warp
from conformance.served.bounds import bounds

ORDERS = (
    ("temperature", "top_k", "top_p", "min_p"),
    ("temperature", "min_p", "top_k", "top_p"),
    ("top_k", "top_p", "min_p", "temperature"),
)
EXACTLY = 1e-3  # what is said of rounding leaves this much


def told(logits, most):
    log = np.log(softmax(logits))
    ids = np.argsort(-log)[:most]
    return ids, log[ids]


def test_the_law_is_between_the_bounds_whatever_was_not_returned():
    rng = np.random.default_rng(0)
    for trial in range(3000):
        vocab = int(rng.choice([12, 60, 400]))
        z = rng.normal(0, rng.choice([1, 2.5]), vocab)
        noise = float(rng.choice([0, 0.03]))
        seen = z + rng.uniform(-noise, noise, vocab) / 2
        d = Decoding(
            temperature=float(rng.choice([1, 0.7, 0.3, 1.5])),
            top_k=int(rng.choice([0, 2, 5, 30])) or None,
            top_p=float(rng.choice([0, 0.5, 0.9, 0.99])) or None,
            min_p=float(rng.choice([0, 0.05, 0.2])) or None,
        )
        dialect = Dialect(ORDERS[trial % 3], rng.choice(["keep", "drop"]))
        found = bounds(*told(seen, min(int(rng.choice([3, 8, 20, 60])), vocab)), d, dialect, noise)
        law = warp(z, d, dialect)[found.ids]
        law = np.append(law, 1 - law.sum())
        # noise itself is not in the bounds, but for the edges
        slack = np.exp(4 * noise / d.temperature)
        assert (law <= found.most * slack + 1e-7).all(), (trial, d)
        assert (law >= found.least / slack - 1e-7).all(), (trial, d)


PEAKED = np.log(np.array([0.4, 0.25, 0.15, 0.08, 0.05, 0.03, 0.02, 0.01, 0.006, 0.004]))


@pytest.mark.parametrize(
    ("decoding", "order"),
    [
        ("temperature=1", 0),
        ("temperature=2,top_k=3", 0),
        ("temperature=0.5,top_k=3", 2),
        ("temperature=1,top_p=0.7", 0),
        ("temperature=2,top_p=0.7", 2),  # the nucleus of the plain law
        ("temperature=0.7,top_k=3,top_p=0.6", 0),
        ("temperature=2,min_p=0.4", 0),
        ("temperature=0.6,top_p=0.8", 0),
    ],
)
def test_what_is_known_exactly(decoding, order):
    found = bounds(*told(PEAKED, 5), Decoding.parse(decoding), Dialect(ORDERS[order]))
    assert found.width < EXACTLY
    law = warp(PEAKED, Decoding.parse(decoding), Dialect(ORDERS[order]))
    assert np.allclose(found.probs[:-1], law[found.ids], atol=EXACTLY)


@pytest.mark.parametrize(
    "decoding",
    [
        "temperature=2",
        "temperature=1,top_k=8",
        "temperature=1,top_p=0.985",
        "temperature=1,min_p=0.02",
    ],
)
def test_what_is_not_known(decoding):
    assert bounds(*told(PEAKED, 5), Decoding.parse(decoding), Dialect()).width > 0.01
    # and is, where there are no others
    whole = bounds(*told(PEAKED, 10), Decoding.parse(decoding), Dialect(), missing=(0.0, 0.0))
    assert whole.width < EXACTLY


def test_a_cold_temperature_is_known_but_for_little():
    found = bounds(*told(PEAKED, 5), Decoding(temperature=0.5), Dialect())
    assert EXACTLY < found.width < 0.02


def test_a_token_at_an_edge_may_be_kept_or_not():
    z = np.log(np.array([0.5, 0.2, 0.199, 0.101]))
    clear = bounds(*told(z, 4), Decoding(top_k=2), Dialect(), noise=1e-3)
    assert clear.ids.tolist() == [0, 1]
    near = bounds(*told(z, 4), Decoding(top_k=2), Dialect(), noise=1e-2)
    assert near.ids.tolist() == [0, 1, 2]
    assert (near.low[1:3] == 0).all()
    assert near.low[0] > 0
    assert near.most[1] == pytest.approx(0.2 / 0.7, abs=1e-3)
    # the last of those returned has a neighbour that was not
    last = bounds(*told(z, 2), Decoding(top_k=2), Dialect(), noise=1e-2)
    assert last.low[1] == 0
    assert last.high[-1] > 0


def test_a_tie_at_the_edge_is_not_decided():
    z = np.log(np.array([0.5, 0.2, 0.2, 0.1]))
    found = bounds(*told(z, 4), Decoding(top_k=2), Dialect())
    assert (found.low[1:3] == 0).all()
