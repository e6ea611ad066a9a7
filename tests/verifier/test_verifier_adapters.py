"""The adapters of verifiers from elsewhere, where they are installed."""

from __future__ import annotations

import importlib.util

import pytest
from verifying import judged, named, plan_for, sampled

from conformance.builtin import VERIFIERS, builtin_verifier
from conformance.errors import EngineLoadError, UnknownEngineError
from conformance.verdict import Verdict
from conformance.verifier import edges
from conformance.verifier.plan import asked

FEW = (
    ("worked-example", 600),
    ("random-8", 600),
    ("near-32", 600),
    ("poor-guess-8", 600),
    ("zero-in-target-24", 600),
)
LOOKUP = (("lookup-16", 600), ("lookup-poor-8", 600))


def installed(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def test_transformers_accepts_the_impossible_on_a_coin_of_zero() -> None:
    """Its comparison is ``r <= p/q``, and torch's uniforms can be 0."""
    installed("transformers")
    verifier = named("transformers:verifier")
    result = judged(verifier, plan_for(verifier, laws=FEW[:3]))
    assert not any(f.rejected for f in sampled(result))
    found = [f.scope for f in result.findings if f.rejected]
    assert found == ["zero coin of torch, certain draft"]
    assert result.verdict.verdict is Verdict.NOT_EXACT
    assert "too rare for them" in result.verdict.why


def test_the_same_without_this_suite() -> None:
    """The finding reproduced by calling the library, and nothing else."""
    installed("transformers")
    import torch
    from transformers.generation.utils import _speculative_sampling

    p = torch.tensor([[[0.0, 0.5, 0.5], [0.2, 0.3, 0.5]]])
    q = torch.tensor([[[1.0, 0.0, 0.0]]])
    for seed in edges.ZERO_COIN_SEEDS:
        torch.manual_seed(seed)
        tokens, n = _speculative_sampling(torch.tensor([[0]]), q.log(), 1, p.log())
        # once upstream compares with <, this fails: the finding is then to be withdrawn
        assert tokens[0, 0] == 0, "transformers no longer accepts a token of probability 0"
        assert n == 1


@pytest.mark.parametrize(
    ("name", "needs", "lossy"),
    [
        ("flashspec:verifier", "flashspec", False),
        ("flashspec:rejection_sample", "flashspec", False),
        ("flashspec:rejection_step_onehot", "flashspec", False),
        ("economize:rejection", "economize", False),
        ("economize:rejection-tree", "economize", False),
        ("economize:greedy", "economize", False),
        ("economize:greedy-tree", "economize", False),
        ("economize:typical", "economize", True),
        ("economize:accept-all", "economize", True),
    ],
)
def test_other_libraries(name: str, needs: str, lossy: bool) -> None:
    installed(needs)
    verifier = named(name)
    asked_of = {s.name for s in asked(verifier.capabilities)}
    laws = tuple((law, n) for law, n in (*FEW, *LOOKUP) if law in asked_of)
    result = judged(verifier, plan_for(verifier, laws=laws))
    # so few blocks never certify a pass, except where one token is proof
    passes = Verdict.EXACT if verifier.capabilities.greedy else Verdict.INCONCLUSIVE
    assert result.verdict.verdict is (Verdict.NOT_EXACT if lossy else passes), result.verdict.why
    assert lossy == ("It declares itself not exact (lossy" in result.verdict.why)
    assert lossy == any(f.rejected for f in result.findings)


def test_names() -> None:
    for name in VERIFIERS:
        assert builtin_verifier(name) is VERIFIERS[name]
    fault = builtin_verifier("faulty:lenient=0.8:verifier")
    assert fault is not None
    assert fault.argument == "lenient=0.8"
    assert builtin_verifier("transformers") is None
    assert builtin_verifier("faulty:accept-all") is None
    with pytest.raises(UnknownEngineError, match="no exact rule named 'none'"):
        named("exact:none:verifier")


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "flashspec.sampling.rejection", None)
    with pytest.raises(EngineLoadError, match=r"pip install 'specdec-conformance\[flashspec\]'"):
        named("flashspec:verifier")
