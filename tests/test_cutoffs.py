"""Typical, epsilon and eta cut-offs, against their definitions and where rounding moves them."""

from __future__ import annotations

import math
from dataclasses import replace

import in_process
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.decoding import FILTERS, WARPS, Decoding, Dialect
from conformance.law import law_at, softmax, warp
from conformance.reference import draw
from conformance.suite import SUITES

FIRST = Dialect()
LAST = Dialect(order=("top_k", "top_p", "min_p", "temperature", "typical_p"))
CUTOFFS = [
    Decoding(typical_p=0.5),
    Decoding(typical_p=0.2),
    Decoding(epsilon_cutoff=0.05),
    Decoding(epsilon_cutoff=0.6),
    Decoding(eta_cutoff=0.2),
    Decoding(temperature=2.0, min_p=0.2, typical_p=0.6),
]
laws = st.lists(st.floats(-6, 6), min_size=2, max_size=8, unique=True)


def support(z, decoding):
    return set(np.flatnonzero(warp(z, decoding)).tolist())


@given(laws, st.floats(0.05, 0.95))
def test_epsilon_keeps_what_is_as_likely(z, epsilon):
    p = softmax(np.array(z))
    assert support(z, Decoding(epsilon_cutoff=epsilon)) == {
        i for i, x in enumerate(p) if x >= epsilon or x == p.max()
    }


@given(laws, st.floats(0.001, 0.9))
def test_eta_looks_at_the_entropy(z, eta):
    p = softmax(np.array(z))
    entropy = -sum(x * math.log(x) for x in p)
    least = min(eta, math.sqrt(eta) * math.exp(-entropy))
    kept = support(z, Decoding(eta_cutoff=eta))
    clear = [i for i, x in enumerate(p) if abs(x - least) > 1e-12]
    assert kept & set(clear) == {i for i in clear if p[i] >= least or p[i] == p.max()}


@given(laws, st.floats(0.05, 0.95))
def test_typical_keeps_what_is_nearest_to_the_entropy(z, mass):
    p = softmax(np.array(z))
    entropy = -sum(x * math.log(x) for x in p)
    far = [abs(-math.log(x) - entropy) for x in p]
    kept = support(z, Decoding(typical_p=mass))
    nearest = sorted(range(len(p)), key=lambda i: far[i])
    assert {far[i] for i in kept} == {far[i] for i in nearest[: len(kept)]}
    total = sum(p[i] for i in kept)
    most = max(far[i] for i in kept)
    assert total >= mass - 1e-12
    # without the last one, and what is exactly as far, it would not be reached
    assert sum(p[i] for i in kept if far[i] < most) < mass + 1e-12


@pytest.mark.parametrize("noise", [1e-3, 1e-5])
@pytest.mark.parametrize("decoding", CUTOFFS, ids=str)
def test_logits_that_move_by_the_noise_move_nothing_that_is_judged(decoding, noise):
    rng = np.random.default_rng(0)
    z = 2 * rng.standard_normal((300, 32))
    found = law_at(z, decoding, FIRST, noise)
    assert found.ambiguous.mean() < 0.5
    for _ in range(20):
        moved = warp(z + rng.uniform(-noise, noise, z.shape), decoding) > 0
        assert not (moved & ~found.possible).any()
        sure = ~found.ambiguous
        assert (moved[sure] == (found.probs[sure] > 0)).all()


def test_an_edge_that_is_met_exactly_is_ambiguous():
    even = np.log([[0.4, 0.3, 0.2, 0.1]])
    assert law_at(even, Decoding(epsilon_cutoff=0.2), FIRST, 1e-4).ambiguous.all()
    assert not law_at(even, Decoding(epsilon_cutoff=0.15), FIRST, 1e-4).ambiguous.any()
    assert law_at(even, Decoding(min_p=0.5), FIRST, 1e-4).ambiguous.all()


def test_a_dialect_of_before_orders_the_first_four():
    old = ("top_k", "top_p", "min_p", "temperature")
    assert Dialect(order=old).order == old
    assert Dialect(order=old).warps == (*old, *WARPS[4:])
    turned = (*old, "eta_cutoff")
    assert Dialect(order=turned).warps == (*turned, "typical_p", "epsilon_cutoff")


@pytest.fixture(scope="module")
def logits():
    """The target's logits along texts of its own. [n, V]"""
    (case,) = in_process.cases("mid", [Decoding()])
    rng = np.random.default_rng(1)
    prompts = np.tile(rng.integers(0, 32, (200, 8)), (1, 3))
    tokens, found = np.zeros((200, 0), np.int64), []
    for _ in range(4):
        law = case.oracle.target_laws(prompts, tokens).probs
        found.append(np.log(law))
        tokens = np.concatenate([tokens, draw(law, rng.random(200))[:, None]], axis=1)
    return np.concatenate(found)


def distance(logits, one, other, dialect):
    return 0.5 * np.abs(warp(logits, one, dialect) - warp(logits, other, dialect)).sum(1).mean()


@pytest.mark.parametrize("dialect", [FIRST, LAST], ids=["temperature first", "temperature last"])
@pytest.mark.parametrize("step", ["temperature", "top_k", "top_p", "min_p"])
def test_every_step_matters_in_some_combination(logits, step, dialect):
    """By .2 in total variation, in a question in which there is another filter or a temperature."""
    plain = Decoding()
    found = [
        distance(logits, d, replace(d, **{step: getattr(plain, step)}), dialect)
        for d in SUITES["cutoffs"]
        if getattr(d, step) != getattr(plain, step)
    ]
    assert max(found) >= 0.2


HALVES = Decoding(temperature=0.6, eta_cutoff=0.05)


@pytest.mark.parametrize("step", ["typical_p", "epsilon_cutoff", "eta_cutoff"])
def test_every_cutoff_matters_wherever_it_is_asked(logits, step):
    for d in SUITES["cutoffs"]:
        if getattr(d, step) is not None and d != HALVES:
            assert distance(logits, d, replace(d, **{step: None}), FIRST) >= 0.2


def test_either_half_of_the_least_in_eta_decides_somewhere(logits):
    """Elsewhere entropy is so high that eta itself never is the least."""
    assert HALVES in SUITES["cutoffs"]
    p = warp(logits, HALVES.without(["eta_cutoff"]), FIRST)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1, keepdims=True)
    halves = np.full_like(entropy, 0.05), np.sqrt(0.05) * np.exp(-entropy)
    kept = [(p >= least) | (p == p.max(axis=1, keepdims=True)) for least in halves]
    assert (kept[0] | kept[1] == (warp(logits, HALVES, FIRST) > 0)).all()
    for half in kept:
        assert ((kept[0] | kept[1]) != half).any(axis=1).mean() > 0.1


def test_the_order_matters(logits):
    """A temperature on the other side of the filters is another law."""
    for d in SUITES["cutoffs"][:3]:
        first, last = warp(logits, d, FIRST), warp(logits, d, LAST)
        assert 0.5 * np.abs(first - last).sum(1).mean() >= 0.2


def test_warps_are_those_of_the_library():
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    z = 2 * np.random.default_rng(2).standard_normal((200, 32))
    for values, made in (
        ({"typical_p": 0.4}, process.TypicalLogitsWarper(0.4)),
        ({"epsilon_cutoff": 0.03}, process.EpsilonLogitsWarper(0.03)),
        ({"eta_cutoff": 0.05}, process.EtaLogitsWarper(0.05)),
    ):
        theirs = made(None, torch.tensor(z)).softmax(-1).numpy()
        assert np.abs(theirs - warp(z, Decoding(**values))).max() < 1e-12
    assert WARPS[1:] == FILTERS
