"""The grid of laws, and what both processes make of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from verifying import judged, named, plan_for

from conformance.errors import EvidenceError
from conformance.reference import draw
from conformance.verifier import VerifierCapabilities, draws
from conformance.verifier.evidence import load_verifier_evidence
from conformance.verifier.gather import gather_case
from conformance.verifier.grid import GRID, make_law, refused
from conformance.verifier.plan import GROUPS, VerifierCase, groups
from conformance.verifier.sample import law_sample

SMALL = [s.name for s in GRID if s.vocab <= 1000]
CLAIMS = VerifierCapabilities()


@pytest.mark.parametrize("name", [s.name for s in GRID])
def test_laws(name: str) -> None:
    law = make_law(name, 0)
    k, c, v = law.spec.block, law.spec.contexts, law.spec.vocab
    assert law.target.shape == (k + 1, c, v)
    assert law.draft.shape == (k, c, v)
    for table in (law.target, law.draft):
        assert (table >= 0).all()
        np.testing.assert_allclose(table.sum(axis=-1), 1, atol=1e-12)
    assert (law.draft.max(axis=-1) == 1).all() == law.spec.certain
    make_law.cache_clear()
    assert np.array_equal(make_law(name, 0).target, law.target)
    if name != "worked-example":
        assert not np.array_equal(make_law(name, 1).target, law.target)


def test_the_grid_has_the_kinds_that_matter() -> None:
    laws = {name: make_law(name, 0) for name in SMALL}
    assert np.array_equal(laws["twin-12"].target[:-1], laws["twin-12"].draft)
    disjoint = laws["disjoint-12"]
    assert not (disjoint.target[:-1] * disjoint.draft).any()
    assert ((laws["zero-in-target-24"].target[:-1] == 0) & (disjoint_free(laws))).any()
    assert (
        (laws["zero-in-draft-24"].draft == 0) & (laws["zero-in-draft-24"].target[:-1] > 0)
    ).any()
    # a neighbouring step's law is another one: in the position, and in the token before
    shifted = laws["shifted-10"].target
    assert np.abs(shifted[0] - shifted[1]).sum() > 0.5
    assert np.abs(shifted[1, 0] - shifted[1, 1]).sum() > 0.5
    assert {s.block for s in GRID} >= {1, 2, 3, 4, 5, 16}
    assert max(s.vocab for s in GRID) == 150_000


def disjoint_free(laws: dict[str, object]) -> np.ndarray:
    law = laws["zero-in-target-24"]
    return np.asarray(law.draft > 0)  # type: ignore[attr-defined]


def test_claims_decide_what_is_asked() -> None:
    few = VerifierCapabilities(max_block=4, max_vocab=100, one_hot=False)
    why = {s.name: refused(s, few) for s in GRID}
    assert why["random-8"] is None
    assert why["long-6"] == "blocks of 16"
    assert why["flat-1000"] == "a vocabulary of 1,000"
    assert why["lookup-16"] == "blocks of 6"
    assert why["lookup-coin"] == "None for the draft's laws"
    assert why["bfloat16-16"] == "bfloat16 beside its own precision"


@pytest.mark.parametrize("name", ["random-8", "poor-guess-8", "coin"])
def test_proposals_follow_the_draft(name: str) -> None:
    law = make_law(name, 0)
    chunk = draws.Chunk(name, 3, 8192, 128)
    x = draws.proposals(5, law, draws.Sampler(law.draft), chunk)
    again = draws.proposals(5, law, draws.Sampler(law.draft), chunk)
    assert np.array_equal(x, again)
    first = np.bincount(x[:, 0], minlength=law.spec.vocab) / len(x)
    np.testing.assert_allclose(first, law.draft[0, 0], atol=0.03)
    p, q = draws.given_laws(law, x)
    for row in (0, 17):
        for i in range(law.spec.block + 1):
            c = 0 if i == 0 else x[row, i - 1] % law.spec.contexts
            assert np.array_equal(p[row, i], law.target[i, c])
            if i < law.spec.block:
                assert np.array_equal(q[row, i], law.draft[i, c])
    seeds = draws.call_seeds(5, law, chunk)
    assert len(set(seeds)) == chunk.calls == 64
    assert seeds.min() >= 0
    assert seeds.max() < 2**31


def test_sampler_agrees_with_the_reference() -> None:
    rng = np.random.default_rng(0)
    table = rng.dirichlet(np.ones(9), 4) * (rng.random((4, 9)) < 0.6)
    table[:, 3] += 0.1
    table /= table.sum(axis=1, keepdims=True)
    row, u = rng.integers(0, 4, 1000), rng.random(1000)
    u[:2] = 0.0, 1 - 2.0**-53
    assert np.array_equal(draws.Sampler(table).draw(row, u), draw(table[row], u))


def test_groups_keep_the_mass() -> None:
    rng = np.random.default_rng(0)
    for vocab in (2, 3, 40, 150_000):
        p, q = rng.dirichlet(np.ones(vocab), 2)
        label, prob = groups(p, q)
        np.testing.assert_allclose(np.bincount(label, p, GROUPS), prob, atol=1e-12)
        np.testing.assert_allclose(prob.sum(), 1, atol=1e-12)
        over = [(q / p)[label == g].min() for g in range(GROUPS - 1) if (label == g).any()]
        assert over == sorted(over, reverse=True)


def test_huge_vocabulary_is_judged_row_by_row() -> None:
    law = make_law("zipf-150000", 0)
    verifier = named("reference:verifier")
    rows = 40
    (chunk,) = draws.chunks(law.spec, rows, verifier.capabilities)
    each = draws.numbers_per_row(law.spec, tree=False)
    assert chunk.batch * each <= draws.CALL_NUMBERS
    result = judged(verifier, plan_for(verifier, laws=(("zipf-150000", rows),)))
    (support,) = (f for f in result.findings if f.test == "support")
    assert support.n == rows


def test_completed_blocks_have_no_padding() -> None:
    law, verifier = make_law("random-8", 0), named("reference:verifier")
    tokens = np.full((500, law.spec.block + 1), -1)
    (chunk,) = draws.chunks(law.spec, 500, verifier.capabilities)
    x = draws.proposals(0, law, draws.Sampler(law.draft), chunk)
    tokens[:, 0] = law.target[0, 0].argmax()
    sample = law_sample(law, tokens, verifier.capabilities, 0, chunk.batch)
    assert (sample.emitted == 1).all()
    assert np.array_equal(sample.proposed, x)
    assert sample.tokens.min() >= 0
    second = np.bincount(sample.tokens[:, 1], minlength=8) / 500
    expected = law.target[1, law.target[0, 0].argmax() % law.spec.contexts]
    np.testing.assert_allclose(second, expected, atol=0.1)


def test_evidence_survives_the_disk(tmp_path: Path) -> None:
    verifier = named("reference:verifier")
    laws = (("random-8", 300), ("zipf-32000", 50))
    plan = plan_for(verifier, laws=laws)
    (case,) = plan.cases
    assert isinstance(case, VerifierCase)
    evidence = gather_case(case, 0).evidence
    path = tmp_path / "evidence.parquet"
    evidence.save(path)
    back = load_verifier_evidence(path)
    assert back.sha256 == evidence.sha256
    assert all(np.array_equal(back.tokens[n], evidence.tokens[n]) for n, _ in laws)
    assert back.batch == evidence.batch
    back.tokens["random-8"][0, 0] += 1
    assert back.sha256 != evidence.sha256
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(EvidenceError, match="cannot read evidence"):
        load_verifier_evidence(path)
