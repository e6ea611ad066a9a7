"""Every exact rule emits exactly the target's law: shown by enumeration, not by sampling.

A block's random numbers are integrated over a grid of midpoints. Where every probability is a
multiple of 1/4, what a rule decides changes only at lines of the grid, so
the sum over the grid is the integral.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import in_process
import numpy as np
import pytest

from conformance.adapters.exact_rules import (
    EXACT_RULES,
    among_candidates,
    block_residual,
    block_verification,
    block_weights,
    exact,
)
from conformance.adapters.reference import ReferenceEngine
from conformance.builtin import BUILTINS
from conformance.contract import Request
from conformance.decoding import Decoding
from conformance.errors import UnknownEngineError
from conformance.faults.steps import EXACT_STEPS, Block, Steps
from conformance.judge import ArmJudge
from conformance.law import Floats
from conformance.plan import PROFILES, Case, make_plan
from conformance.probes import load_probe
from conformance.reference import Model, Prefix
from conformance.resolve import resolve

GRID = 12  # thresholds are ratios of quarters: their denominators divide 12
PARTS = 4
LISTED = [n for n in EXACT_RULES if n not in ("top-k-tree", "block-verification")]


def random_model(v: int, seed: int, parts: int) -> Model:
    """Laws in multiples of 1 / parts that depend on the whole prefix."""
    seen: dict[Prefix, Floats] = {}

    def law(prefix: Prefix) -> Floats:
        if prefix not in seen:
            rng = np.random.default_rng([seed, len(prefix), *prefix])
            seen[prefix] = rng.multinomial(parts, rng.dirichlet(np.ones(v))) / parts
        return seen[prefix]

    return law


def block_of(target: Model, draft: Model, x: Prefix, u: Floats) -> Block:
    """The block that proposes x, once for every row of random numbers u. [n, K + 1]"""
    k, n = len(x), len(u)
    p = np.array([target(x[:i]) for i in range(k + 1)])
    q = np.array([draft(x[:i]) for i in range(k)])
    many = {name: np.repeat(a[None], n, axis=0) for name, a in (("p", p), ("q", q))}
    return Block(
        **many,
        drafts=np.repeat(np.array([x]), n, axis=0),
        proposing=u[:, :k],
        coins=u[:, :k],
        last=u[:, k],
        extra=np.zeros((n, 0)),
        target_logits=many["p"],
        draft_logits=many["q"],
        decoding=Decoding(),
        start=np.zeros(n, dtype=np.int64),
        prompts=np.zeros((n, 1), dtype=np.int64),
        before=np.zeros(n, dtype=np.int64),
    )


def emitted_strings(
    steps: Steps, target: Model, draft: Model, v: int, k: int, grid: int
) -> dict[Prefix, float]:
    """Probability of every string that one block can emit."""
    nodes = (np.arange(grid) + 0.5) / grid
    u = np.array(list(itertools.product(nodes, repeat=k + 1)))
    law: dict[Prefix, float] = {}
    for x in itertools.product(range(v), repeat=k):
        chance = 1.0
        for i in range(k):
            q = draft(x[:i])
            # a proposal that is not drawn has all of the probability, or none
            certain = steps.propose is not EXACT_STEPS.propose
            chance *= float(steps.propose(q[None], np.zeros(1))[0] == x[i]) if certain else q[x[i]]
        if chance == 0:
            continue
        tokens = steps.verify(block_of(target, draft, x, u)).tokens
        strings, counts = np.unique(tokens, axis=0, return_counts=True)
        for row, count in zip(strings.tolist(), counts, strict=True):
            s = tuple(t for t in row if t >= 0)
            law[s] = law.get(s, 0.0) + chance * count / len(u)
    return law


def largest_error(law: dict[Prefix, float], target: Model, v: int, k: int) -> float:
    """Of the strings of k + 1 tokens, each block continued by ordinary sampling."""
    worst = 0.0
    for s in itertools.product(range(v), repeat=k + 1):
        steps = [float(target(s[:i])[s[i]]) for i in range(k + 1)]
        got = sum(law.get(s[:m], 0.0) * float(np.prod(steps[m:])) for m in range(1, k + 2))
        worst = max(worst, abs(got - float(np.prod(steps))))
    return worst


@pytest.mark.parametrize("name", ["the reference", *LISTED])
@pytest.mark.parametrize("seed", range(8))
def test_a_block_has_the_law_of_strings(name: str, seed: int) -> None:
    steps = EXACT_STEPS if name == "the reference" else EXACT_RULES[name].steps
    target, draft = random_model(3, 2 * seed, PARTS), random_model(3, 2 * seed + 1, PARTS)
    law = emitted_strings(steps, target, draft, v=3, k=2, grid=GRID)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert largest_error(law, target, 3, 2) < 1e-12


def test_the_integral_sees_a_rule_that_is_not_exact() -> None:
    target, draft = random_model(3, 0, PARTS), random_model(3, 1, PARTS)

    def always(b: Block) -> Any:
        return EXACT_STEPS.verify(replace(b, coins=np.full_like(b.coins, -1.0)))

    law = emitted_strings(Steps(verify=always), target, draft, v=3, k=2, grid=GRID)
    assert largest_error(law, target, 3, 2) > 0.01


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_block_verification_has_the_law_of_strings(k: int, seed: int) -> None:
    """From its acceptance probabilities and residuals, to the last digit."""
    v = 3

    def model(which: int) -> Model:
        def law(prefix: Prefix) -> Floats:
            rng = np.random.default_rng([which, seed, len(prefix), *prefix])
            p = rng.dirichlet(np.full(v, 0.6))
            return np.asarray(p / p.sum())

        return law

    target, draft = model(0), model(1)
    law: dict[Prefix, float] = {}
    kept_tokens = 0.0
    for x in itertools.product(range(v), repeat=k):
        b = block_of(target, draft, x, np.zeros((1, k + 1)))
        weights, h = block_weights(b.p, b.q, b.drafts)
        chance = float(np.prod([draft(x[:i])[x[i]] for i in range(k)]))
        for kept in range(k + 1):
            here = h[0, kept - 1] if kept else 1.0
            share = chance * float(here * np.prod(1 - h[0, kept:]))
            kept_tokens += share * kept
            ends = b.p[:, k] if kept == k else block_residual(
                b.p[:, kept], b.q[:, kept], weights[:, kept]
            )  # fmt: skip
            for y in range(v):
                s = (*x[:kept], y)
                law[s] = law.get(s, 0.0) + share * float(ends[0, y])
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert largest_error(law, target, v, k) < 1e-12
    # and it is worth having: no fewer tokens are accepted than one at a time
    one_by_one = 0.0
    for m in range(1, k + 1):
        for x in itertools.product(range(v), repeat=m):
            one_by_one += float(
                np.prod([min(target(x[:i])[x[i]], draft(x[:i])[x[i]]) for i in range(m)])
            )
    assert kept_tokens >= one_by_one - 1e-12
    assert k == 1 or kept_tokens > one_by_one


def test_block_verification_samples_from_what_was_enumerated() -> None:
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.ones(3), 3), rng.dirichlet(np.ones(3), 2)
    x = (0, 2)
    b = block_of(lambda s: p[len(s)], lambda s: q[len(s)], x, rng.random((200_000, 3)))
    emitted = block_verification(b)
    weights, h = (a[0] for a in block_weights(b.p[:1], b.q[:1], b.drafts[:1]))
    expected = [(1 - h[0]) * (1 - h[1]), h[0] * (1 - h[1]), h[1]]
    got = np.bincount(emitted.accepted, minlength=3) / len(b.last)
    np.testing.assert_allclose(got, expected, atol=6 * 0.5 / np.sqrt(len(b.last)))
    ones = emitted.tokens[emitted.accepted == 1, 1]
    law = block_residual(p[None, 1], q[None, 1], weights[None, 1])[0]
    got = np.bincount(ones, minlength=3) / len(ones)
    np.testing.assert_allclose(got, law, atol=6 * 0.5 / np.sqrt(len(ones)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("m", [1, 2])
def test_a_level_of_the_tree_emits_p(seed: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.multinomial(PARTS, rng.dirichlet(np.ones(4))) / PARTS
    nodes = (np.arange(GRID) + 0.5) / GRID
    u = np.array(list(itertools.product(nodes, repeat=m + 1)))
    for candidates in itertools.permutations(range(4), m):
        token, accepted = among_candidates(
            np.repeat(p[None], len(u), axis=0),
            np.repeat(np.array([candidates]), len(u), axis=0),
            u[:, :m],
            u[:, m],
        )
        np.testing.assert_allclose(np.bincount(token, minlength=4) / len(u), p, atol=1e-12)
        assert set(token[accepted].tolist()) <= set(candidates)


@pytest.mark.parametrize("name", EXACT_RULES)
def test_each_is_an_engine_with_rounds(name: str) -> None:
    engine = resolve(f"exact:{name}")
    assert isinstance(engine, ReferenceEngine)
    engine.load(load_probe("mid").pair)
    asked = [Request((1, 2, 3, 4), 9, Decoding(), seed, True) for seed in range(40)]
    answers = engine.generate(asked)
    again = engine.generate(asked[:3])
    assert [a.tokens for a in again] == [a.tokens for a in answers[:3]]
    for a in answers:
        assert a.rounds is not None
        assert len(a.tokens) == 9
        emitted = [accepted + 1 for _, accepted in a.rounds]
        assert sum(emitted) >= 9 > sum(emitted[:-1])
        assert all(0 <= accepted <= drafted <= 4 for drafted, accepted in a.rounds)
    assert sum(accepted for a in answers for _, accepted in a.rounds or ()) > 0
    if name == "variable-length":
        assert len({drafted for a in answers for drafted, _ in a.rounds or ()}) > 2


@pytest.mark.long
@pytest.mark.parametrize("decoding", [Decoding(), Decoding(temperature=0.7, top_p=0.8)], ids=str)
@pytest.mark.parametrize("name", EXACT_RULES)
def test_each_passes_every_test_of_a_run(name: str, decoding: Decoding) -> None:
    engine = exact(name)
    asked = Case(engine.card.name, "mid", decoding, engine.card, engine.capabilities)
    plan = make_plan([asked], PROFILES["standard"], seed=3)
    case = plan.cases[0]
    evidence = in_process.gather_runs(engine, case, "speculative", [plan])[0]
    assert [f for f in ArmJudge(plan, case, "speculative", evidence).findings() if f.rejected] == []


def test_exact_rules_are_listed_and_named() -> None:
    assert BUILTINS["exact"].methods == tuple(EXACT_RULES)
    with pytest.raises(UnknownEngineError, match="no exact rule named 'blocks'; there is sample"):
        exact("blocks")
    with pytest.raises(UnknownEngineError, match="no exact rule named ''; there is sample-and-m"):
        exact("")
