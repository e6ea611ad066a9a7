"""Reading evidence in chunks: nothing depends on how laws are cut, and nothing is kept too long."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import oracle as oracle_module
from conformance.decoding import Decoding, Dialect
from conformance.oracle import Oracle
from conformance.planned import STRATA
from conformance.probes import load_probe
from conformance.reading import EVERYWHERE, Reading, Uniforms
from conformance.statistics import pit
from conformance.statistics.tables import conditional_table

N, T = 400, 6


@pytest.fixture(scope="module")
def mid(probe_cache: Path) -> Oracle:
    return Oracle(load_probe("mid"), Decoding(temperature=0.9, top_k=12), Dialect())


@pytest.fixture(scope="module")
def sampled(mid: Oracle) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prompts, the prompt of each request, and tokens of which a few are beyond the law."""
    rng = np.random.default_rng(5)
    prompts = rng.integers(0, 32, (2, 10))
    prompt = np.arange(N) % 2
    tokens = np.zeros((N, 0), np.int64)
    from conformance.reference import draw

    for _ in range(T):
        law = mid.target_laws(prompts[prompt], tokens).probs
        tokens = np.concatenate([tokens, draw(law, rng.random(N))[:, None]], axis=1)
    tokens[3, 2], tokens[5, 4] = 40, -1
    return prompts, prompt, tokens


def read(mid: Oracle, sampled: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Reading:
    prompts, prompt, tokens = sampled
    rng = np.random.default_rng(6)
    tree = mid.tree(prompt, tokens)
    strata = dict.fromkeys(STRATA, np.arange(T) % 2 == 0) | {"even": np.zeros((N, T), bool)}
    strata = {name: np.broadcast_to(s, (N, T)) for name, s in strata.items()}
    uniforms = Uniforms(*(rng.random(N * T) for _ in range(3)))
    return Reading(mid, prompts, tree, uniforms, strata, len(prompts))


def test_chunks_change_nothing(
    mid: Oracle,
    sampled: tuple[np.ndarray, np.ndarray, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = read(mid, sampled)
    monkeypatch.setattr(oracle_module, "NUMBERS_AT_ONCE", 7 * T * 32)  # seven requests at a time
    cut = read(mid, sampled)
    for name in ("p", "q", "by_p", "by_draft", "by_id"):
        np.testing.assert_allclose(getattr(cut, name), getattr(whole, name), atol=1e-12)
    for name in ("judged", "open", "impossible"):
        assert (getattr(cut, name) == getattr(whole, name)).all()
    np.testing.assert_allclose(cut.ledger.sums, whole.ledger.sums, atol=1e-9)
    for t in range(T):
        one, other = whole.table(t), cut.table(t)
        assert one.n == other.n
        assert sorted(one.count) == sorted(other.count)
    for scope, sums in whole.leaks.items():
        one_leak, other_leak = sums.result(), cut.leaks[scope].result()
        if one_leak is None or other_leak is None:
            assert one_leak is other_leak
            assert scope == "even"
            continue
        assert one_leak.n == other_leak.n
        assert one_leak.p_value == pytest.approx(other_leak.p_value, rel=1e-6)


def test_it_agrees_with_the_laws_held_at_once(
    mid: Oracle, sampled: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    prompts, prompt, tokens = sampled
    whole, dense = read(mid, sampled), mid.sample(prompts, prompt, tokens)
    assert (whole.judged == dense.judged).all()
    assert (whole.open == dense.open).all()
    np.testing.assert_allclose(whole.p, dense.law[dense.prefix, dense.tokens])
    before = dense.tokens[:-1]  # what the request before said, at this request's own prefix
    np.testing.assert_allclose(whole.neighbour_p[1:], dense.law[dense.prefix[1:], before])
    assert (whole.neighbour[1:] == before).all()
    assert whole.judged[3].tolist() == [True, True, False, False, False, False]
    for t in (0, 1):
        ok = dense.judged[:, t]
        table = conditional_table(dense.prefix[ok, t], dense.tokens[ok, t], dense.law)
        assert whole.table(t).n == table.n
        assert whole.table(t).df == table.df
    leak = whole.leaks[EVERYWHERE].result()
    assert leak is not None
    assert leak.n == dense.open.sum()


def test_a_chunk_holds_no_more_laws_than_it_may(
    mid: Oracle,
    sampled: tuple[np.ndarray, np.ndarray, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts, prompt, tokens = sampled
    monkeypatch.setattr(oracle_module, "NUMBERS_AT_ONCE", 10 * T * 32)
    tree = mid.tree(prompt, tokens)
    sizes = [len(c.logits) for c in mid.chunks(prompts, tree)]
    assert sum(sizes) == len(tree.request)
    assert max(sizes) <= 10 * T


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_mass_before_a_token_is_the_sorted_sum(vocab: int, seed: int) -> None:
    """Ties in the key go to the smaller id, and p = 0 tokens have a place like any other."""
    rng = np.random.default_rng(seed)
    law = rng.dirichlet(np.ones(vocab), 3) * (rng.random((3, vocab)) < 0.8)
    key = rng.integers(0, 3, (3, vocab)).astype(float)
    row, x = rng.integers(0, 3, 20), rng.integers(0, vocab, 20)
    expected = []
    for r, t in zip(row, x, strict=True):
        order = sorted(range(vocab), key=lambda i: (-key[r, i], i))
        expected.append(sum(law[r, i] for i in order[: order.index(t)]))
    np.testing.assert_allclose(pit.mass_before(row, x, law, key), expected, atol=1e-12)
    below = [law[r, :t].sum() for r, t in zip(row, x, strict=True)]
    np.testing.assert_allclose(pit.mass_before_id(row, x, law), below, atol=1e-12)
    # so many tokens a row that ranks are sorted out rather than compared: the same ranks
    rows, tokens = (grid.ravel() for grid in np.indices((3, vocab)))
    pairs = np.stack([rows, tokens], axis=1)[..., None]
    one_by_one = [pit.mass_before(r, x, law, key)[0] for r, x in pairs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pit, "SORT_ABOVE", 0)
        np.testing.assert_allclose(pit.mass_before(rows, tokens, law, key), one_by_one, atol=1e-12)
