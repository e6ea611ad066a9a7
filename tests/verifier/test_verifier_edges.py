"""The edges: what sampling cannot reach."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from verifying import judged, named, plan_for

from conformance import EngineCard
from conformance.adapters.reference_verifier import ReferenceVerifier
from conformance.law import Floats
from conformance.reference import Ints, acceptance, residual
from conformance.verdict import Verdict
from conformance.verifier import VerifierCapabilities, edges
from conformance.verifier.serve import Server

FEW = (("random-8", 400),)


def refuted(verifier: Any) -> set[str]:
    """Edges at which a verifier departs."""
    result = judged(verifier, plan_for(verifier, laws=FEW))
    found = {f.scope for f in result.findings if f.test == "edge" and f.rejected}
    assert not found or result.verdict.verdict is Verdict.NOT_EXACT
    return found


class Careless(ReferenceVerifier):
    """The exact rule with one comparison, or one guard, of the reader's choice."""

    def __init__(
        self, inclusive: bool = False, left: bool = False, guard: float = 0.0, raw: bool = False
    ) -> None:
        super().__init__()
        self.inclusive, self.left, self.guard, self.raw = inclusive, left, guard, raw

    def _verify(
        self, p: Floats, q: Floats | None, x: Ints, coins: Floats, last: Floats, extra: Floats
    ) -> Ints:
        if q is None:
            q = np.zeros((*x.shape, p.shape[-1]))
            np.put_along_axis(q, x[..., None], 1.0, axis=-1)
        k = x.shape[1]
        a = np.take_along_axis(acceptance(p[:, :k], q), x[..., None], axis=-1)[..., 0]
        passed = coins <= a if self.inclusive else coins < a
        n = np.cumprod(passed, axis=1).sum(axis=1)
        out = np.full((len(x), k + 1), -1)
        for row, m in enumerate(n):
            out[row, :m] = x[row, :m]
            out[row, m] = self.drawn(p[row], q[row], int(m), k, float(last[row]))
        return out

    def drawn(self, p: Floats, q: Floats, m: int, k: int, u: float) -> int:
        law = p[m] if m == k else residual(p[m], q[m])
        if self.guard and m < k:
            r = np.maximum(p[m] - q[m], 0.0)
            law = r / max(r.sum(), self.guard)
        cdf = np.cumsum(law)
        u = u if self.raw else u * cdf[-1]
        return int(np.searchsorted(cdf, u, side="left" if self.left else "right"))


def test_the_exact_rule_passes() -> None:
    assert refuted(named("reference:verifier")) == set()
    assert refuted(Careless()) == set()


def test_an_inclusive_coin() -> None:
    assert "coin of 0 against p = 0" in refuted(Careless(inclusive=True))
    assert "coin of 0 against p = 0" in refuted(named("faulty:zero-coin:verifier"))


def test_a_draw_that_can_hit_a_token_of_probability_0() -> None:
    assert "last uniform at either end" in refuted(Careless(left=True))


def test_a_draw_past_the_end() -> None:
    assert "sums that are not exactly 1" in refuted(Careless(raw=True))


def test_an_empty_residual() -> None:
    assert "nothing left after a rejection" in refuted(Careless(guard=1e-9))


class Torchy:
    """The exact rule on torch's generator, with the comparison of one's choice."""

    def __init__(self, inclusive: bool) -> None:
        self.inclusive = inclusive
        self.card = EngineCard(name="torchy")
        self.capabilities = VerifierCapabilities(max_vocab=16, max_block=4, dtypes=("float32",))

    def verify(self, p: Floats, q: Floats | None, x: Ints, seed: int) -> Ints:
        import torch

        torch.manual_seed(seed)
        coins = torch.rand(x.shape).double().numpy()
        last = torch.rand(len(x)).double().numpy()
        rule: Any = Careless(inclusive=self.inclusive)
        draft = None if q is None else q.astype(np.float64)
        return np.asarray(rule._verify(p.astype(np.float64), draft, x, coins, last, None))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_zero_coins_of_torch() -> None:
    import torch

    for seed in edges.ZERO_COIN_SEEDS:
        torch.manual_seed(seed)
        assert float(torch.rand(1)) == 0.0
    assert refuted(Torchy(inclusive=False)) == set()
    wanted = {"zero coin of torch, certain draft", "zero coin of torch, no draft"}
    assert refuted(Torchy(inclusive=True)) == wanted


def test_what_is_not_asked_says_why() -> None:
    verifier = named("exact:without-q:verifier")
    result = judged(verifier, plan_for(verifier, laws=FEW))
    said = {f.scope: f.message for f in result.findings if f.test == "edge" and f.n == 0}
    assert said["coin of 0 against p = 0"] == "not asked: no injected uniforms"
    assert said["sums off by the rounding of bfloat16"] == "not asked: bfloat16 is not claimed"


def test_every_edge_has_a_right_answer() -> None:
    server = Server(named("reference:verifier"))
    for edge in edges.EDGES:
        if edge.dtype is None:
            answer = server.answer({"op": "edge", "edge": edge.name})
            assert answer["tokens"]
        for laws in (edge.p, edge.q):
            assert laws is None or (laws >= 0).all()
        if edge.wanted is not None:
            assert edge.departures(edge.wanted) == []
            assert edge.departures(np.where(edge.wanted == 1, 2, edge.wanted))
