"""Every exact rule passes, block verification among them."""

from __future__ import annotations

import numpy as np
import pytest
from verifying import judged, named, plan_for, smallest

from conformance import EngineCard
from conformance.law import Floats
from conformance.reference import Ints, draw
from conformance.verdict import Verdict
from conformance.verifier import VerifierCapabilities
from conformance.verifier.decide import decide
from conformance.verifier.gather import describe, gather_case
from conformance.verifier.plan import VerifierCase, plan_run, verifier_case


class OneHotTree:
    """A tree of certain candidates: each accepted with what is left of p, else set to zero."""

    card = EngineCard(name="one-hot-tree")
    capabilities = VerifierCapabilities(draft_probs=False, max_vocab=64, tree=True)

    def verify(self, target_probs: Floats, draft_probs: object, x: Ints, seed: int) -> Ints:
        raise NotImplementedError

    def renormalised(self, p: Floats) -> Floats:
        return np.asarray(p / p.sum())

    def verify_tree(
        self, target_probs: Floats, draft_probs: None, x: Ints, parents: Ints, seed: int
    ) -> Ints:
        rng = np.random.default_rng(seed)
        out = np.full((len(x), x.shape[1] + 1), -1)
        for row, tokens in enumerate(x):
            node, n = -1, 0
            while True:
                p = target_probs[row, node + 1].copy()
                chosen = -1
                for child in np.flatnonzero(parents == node):
                    if rng.random() < p[tokens[child]]:
                        chosen = int(child)
                        break
                    p[tokens[child]] = 0.0
                    if p.sum() > 0:
                        p = self.renormalised(p)
                if chosen < 0:
                    break
                out[row, n], node, n = tokens[chosen], chosen, n + 1
            out[row, n] = draw(p[None], np.array([rng.random()]))[0]
        return out


class WithoutRenormalising(OneHotTree):
    """The second candidate is accepted with p as it was, which is too seldom."""

    def renormalised(self, p: Floats) -> Floats:
        return p


@pytest.mark.parametrize(
    "name",
    [
        "reference:verifier",
        "exact:sample-and-match:verifier",
        "exact:without-q:verifier",
        "exact:variable-length:verifier",
        "exact:block-verification:verifier",
    ],
)
def test_exact(name: str) -> None:
    verifier = named(name)
    result = judged(verifier, plan_for(verifier))
    assert result.verdict.verdict is Verdict.EXACT, result.verdict.why
    planned = {(t.test, t.scope) for t in plan_for(verifier).cases[0].tests}
    assert {(f.test, f.scope) for f in result.findings if f.level > 0} == planned


def test_deterministic_tree() -> None:
    good, bad = OneHotTree(), WithoutRenormalising()
    result = judged(good, plan_for(good))
    assert result.verdict.verdict is Verdict.EXACT, result.verdict.why
    result = judged(bad, plan_for(bad))
    assert result.verdict.verdict is Verdict.NOT_EXACT


def test_processes_give_what_this_process_gives() -> None:
    engine = "reference:verifier"
    card, claims, injects = describe(engine)  # type: ignore[misc]
    assert injects
    plan = plan_run([verifier_case(engine, card, claims, injects)], "smoke", 1e-6, 0)
    (case,) = plan.cases
    assert isinstance(case, VerifierCase)
    there = decide(plan, gather_case(case, 0, jobs=2))
    here = judged(named(engine), plan)
    assert there.verdict == here.verdict
    assert smallest(there) == smallest(here)
    assert there.arms[0].sha256 == here.arms[0].sha256
