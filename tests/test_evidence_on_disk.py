"""Evidence on disk: gone on from where it is the planned one, and refused where it is not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from conformance.decoding import Decoding
from conformance.errors import EvidenceError
from conformance.evidence import Evidence, first_requests, load_evidence
from conformance.gather import arm_seeds, evidence_path, gather
from conformance.plan import RunPlan
from conformance.runner import Settings, prepare


@pytest.fixture(scope="module")
def plan(probe_cache: Path) -> RunPlan:
    return prepare(Settings(("reference",), (Decoding(),), "smoke"))


@pytest.fixture
def stored(plan: RunPlan, tmp_path: Path) -> Path:
    """A folder with evidence of both arms, of tokens that nobody sampled."""
    (case,) = plan.cases
    work = case.workload
    assert work is not None
    for arm in case.arms:
        Evidence(
            tokens=np.zeros((work.requests, work.new_tokens), np.int64),
            prompt=work.prompt_of,
            seeds=arm_seeds(plan, case, arm),
            rounds=None,
            seconds=1.0,
            planned=work.requests,
        ).save(evidence_path(tmp_path, case, arm))
    return tmp_path


def change(path: Path, **fields: object) -> None:
    old = load_evidence(path)
    values = {n: getattr(old, n) for n in Evidence.__dataclass_fields__} | fields
    Evidence(**values).save(path)


def test_seeds_are_distinct_and_half_of_them_a_bit_from_another(plan: RunPlan) -> None:
    """And the first ones stay the same when there are more: a run can go on."""
    (case,) = plan.cases
    assert case.workload is not None
    more = dataclasses.replace(
        case, workload=dataclasses.replace(case.workload, requests=2 * case.workload.requests)
    )
    seeds, longer = (arm_seeds(plan, c, "speculative") for c in (case, more))
    assert np.array_equal(longer[: len(seeds)], seeds)
    assert len(np.unique(longer)) == len(longer)
    assert seeds.min() >= 0
    assert seeds.max() < 2**31
    apart = np.bitwise_xor(seeds[2:], seeds[:-2])
    one_bit = np.array([bin(x).count("1") == 1 for x in apart])
    assert one_bit[np.arange(2, len(seeds)) % 4 >= 2].mean() > 0.99
    assert set(np.log2(apart[one_bit]).astype(int)) == set(range(31))


def test_evidence_on_disk_is_not_sampled_again(plan: RunPlan, stored: Path) -> None:
    (gathered,) = gather(plan, plan.cases, stored)
    assert gathered.arms["speculative"].tokens.sum() == 0  # else the engine was asked


def test_evidence_of_another_plan_is_refused(plan: RunPlan, stored: Path) -> None:
    other = prepare(Settings(("reference",), (Decoding(),), "smoke", seed=1))
    with pytest.raises(EvidenceError, match=r"under another plan \(its seeds differ\)"):
        list(gather(other, other.cases, stored))


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        ("tokens", lambda e: {"tokens": e.tokens[:, :1]}),
        ("prompts", lambda e: {"prompt": e.prompt[::-1].copy()}),
        ("seeds", lambda e: {"seeds": e.seeds[::-1].copy()}),
        (
            "seeds",
            lambda e: {"seeds": e.seeds[1:], "prompt": e.prompt[1:], "tokens": e.tokens[1:]},
        ),
    ],
)
def test_evidence_that_is_not_the_planned_is_refused(
    plan: RunPlan, stored: Path, what: str, damage: object
) -> None:
    """Other requests than the first of the planned ones, or fewer tokens of each."""
    path = evidence_path(stored, plan.cases[0], "control")
    change(path, **damage(load_evidence(path)))  # type: ignore[operator]
    with pytest.raises(EvidenceError, match=f"its {what} differ"):
        list(gather(plan, plan.cases, stored))


def test_what_is_missing_on_disk_is_sampled(plan: RunPlan, stored: Path) -> None:
    path = evidence_path(stored, plan.cases[0], "control")
    few = first_requests(load_evidence(path), 50)
    few.save(path)
    (gathered,) = gather(plan, plan.cases, stored)
    control = gathered.arms["control"]
    assert len(control.tokens) == control.planned
    assert control.tokens[:50].sum() == 0
    assert control.tokens[50:].sum() > 0
    assert gathered.arms["speculative"].tokens.sum() == 0


@pytest.mark.parametrize("keep", [0, 10, -1])
def test_damaged_evidence_is_refused(plan: RunPlan, stored: Path, keep: int) -> None:
    path = evidence_path(stored, plan.cases[0], "speculative")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(EvidenceError, match="cannot read evidence"):
        list(gather(plan, plan.cases, stored))
