"""Evidence on disk: gone on from where it is the planned one, and refused where it is not."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from conformance.decide import decide
from conformance.decoding import Decoding
from conformance.errors import BadAnswerError, EvidenceError
from conformance.evidence import Evidence, first_requests, load_evidence, selected
from conformance.gather import Gathered, arm_seeds, evidence_path, gather, questions
from conformance.parts import Parts, reason
from conformance.plan import Case, RunPlan
from conformance.runner import Settings, prepare
from conformance.verdict import Verdict


@pytest.fixture(scope="module")
def plan(probe_cache: Path) -> RunPlan:
    return prepare(Settings(("reference",), (Decoding(),), profile="smoke"))


@pytest.fixture
def stored(plan: RunPlan, tmp_path: Path) -> Path:
    """A folder with evidence of both arms, of tokens that nobody sampled."""
    store(plan, tmp_path)
    return tmp_path


def store(plan: RunPlan, folder: Path) -> None:
    for case in plan.cases:
        for arm in case.sampled_arms:
            asked = case.asked(arm)
            work = asked.workload
            assert work is not None
            Evidence(
                tokens=np.zeros((work.requests, work.new_tokens), np.int64),
                prompt=work.prompt_of,
                seeds=arm_seeds(plan, asked, arm),
                rounds=None,
                seconds=1.0,
                planned=work.requests,
                question=questions(asked),
                case=asked.id,
                arm=arm,
            ).save(evidence_path(folder, case, arm))


def change(path: Path, **fields: object) -> None:
    old = load_evidence(path)
    values = {n: getattr(old, n) for n in Evidence.__dataclass_fields__} | fields
    Evidence(**values).save(path)  # type: ignore[arg-type]


def refused(plan: RunPlan, folder: Path) -> str:
    """Why the only case's evidence is not gone on from; it is that case's ERROR."""
    (gathered,) = gather(plan, plan.cases, folder)
    assert isinstance(gathered.error, EvidenceError)
    result = decide(plan, gathered)
    assert result.verdict.verdict is Verdict.ERROR
    assert str(gathered.error) in result.verdict.why
    return str(gathered.error)


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
    other = prepare(Settings(("reference",), (Decoding(),), profile="smoke", seed=1))
    assert "under another plan (its seeds differ)" in refused(other, stored)


def test_greedy_evidence_of_another_seed_is_refused(tmp_path: Path) -> None:
    """Nothing but the prompts tells it apart: no request has a seed."""
    greedy = (Decoding(greedy=True),)
    store(prepare(Settings(("reference",), greedy, profile="smoke", seed=1)), tmp_path)
    plan = prepare(Settings(("reference",), greedy, profile="smoke"))
    assert "under another plan (its questions differ)" in refused(plan, tmp_path)


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        ("tokens", lambda e: {"tokens": e.tokens[:, :1]}),
        ("prompts", lambda e: {"prompt": e.prompt[::-1].copy()}),
        ("seeds", lambda e: {"seeds": e.seeds[::-1].copy()}),
        (
            "seeds",
            lambda e: {
                n: getattr(selected(e, np.arange(len(e.tokens)) > 0), n)
                for n in Evidence.__dataclass_fields__
            },
        ),
        ("questions", lambda e: {"question": None}),
        ("questions", lambda e: {"question": e.question + 1}),
        ("case", lambda e: {"case": "another"}),
        ("arm", lambda e: {"arm": "speculative"}),
    ],
)
def test_evidence_that_is_not_the_planned_is_refused(
    plan: RunPlan, stored: Path, what: str, damage: object
) -> None:
    """Other requests than the first of the planned ones, or fewer tokens of each."""
    path = evidence_path(stored, plan.cases[0], "control")
    change(path, **damage(load_evidence(path)))  # type: ignore[operator]
    assert f"its {what} differ" in refused(plan, stored)


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
    assert load_evidence(path).sha256 == control.sha256
    assert control.batch is not None
    assert (np.diff(control.batch) >= 0).all()
    assert control.seconds == pytest.approx(load_evidence(path).seconds)


def test_parts_are_gone_on_from_and_become_one_file(plan: RunPlan, stored: Path) -> None:
    """Also past parts that are stale, and without those behind a gap."""
    (case,) = plan.cases
    path = evidence_path(stored, case, "control")
    whole = load_evidence(path)
    ones = dataclasses.replace(whole, tokens=np.ones_like(whole.tokens))
    parts = Parts(path)
    number = np.arange(len(whole.tokens))
    first_requests(whole, 40).save(path)
    for begin, end, rows in ((20, 40, ones), (40, 56, whole), (56, 80, whole), (88, 96, ones)):
        selected(rows, (begin <= number) & (number < end)).save(parts.part(begin), begin)
    half = path.with_name(f".{path.name}.0badcafe.half")
    half.write_bytes(b"PAR1")
    (gathered,) = gather(plan, plan.cases, stored)
    control = gathered.arms["control"]
    assert control.tokens[:80].sum() == 0
    assert (control.tokens[80:] > 1).any()  # sampled, not taken from behind the gap
    assert load_evidence(path).sha256 == control.sha256
    assert parts.listed() == {}
    assert not half.exists()


def test_a_failure_stands(plan: RunPlan, stored: Path) -> None:
    """Whoever may answer a failed request again may choose among the answers; also where the
    process was killed before it had said so of every arm.
    """
    (case,) = plan.cases
    parts = {arm: Parts(evidence_path(stored, case, arm)) for arm in case.sampled_arms}
    few = first_requests(load_evidence(parts["speculative"].path), 50)
    few.save(parts["speculative"].failed, more=reason(BadAnswerError("no tokens"), "a trace"))
    for _ in range(2):
        (again,) = gather(plan, plan.cases, stored)
        assert isinstance(again.error, BadAnswerError)
        assert (str(again.error), again.detail) == ("no tokens", "a trace")
        assert len(again.arms["speculative"].tokens) == 50
        assert len(again.arms["control"].tokens) == few.planned
        names = {p.name for p in (stored / "evidence").iterdir()}
        assert names == {p.failed.name for p in parts.values()}


@pytest.mark.parametrize("keep", [0, 10, -1])
def test_damaged_evidence_is_refused(plan: RunPlan, stored: Path, keep: int) -> None:
    path = evidence_path(stored, plan.cases[0], "speculative")
    path.write_bytes(path.read_bytes()[:keep])
    assert "cannot read evidence" in refused(plan, stored)


def test_damaged_evidence_is_its_own_cases_error_alone(tmp_path: Path) -> None:
    plan = prepare(Settings(("reference",), (Decoding(), Decoding(top_k=4)), profile="smoke"))
    store(plan, tmp_path)
    one, other = plan.cases
    path = evidence_path(tmp_path, one, "speculative")
    path.unlink()
    path.mkdir()
    found: dict[str, Gathered] = {g.case.id: g for g in gather(plan, plan.cases, tmp_path)}
    assert isinstance(found[one.id].error, EvidenceError)
    assert found[other.id].error is None
    assert path.is_dir()
    shutil.rmtree(path)


def test_what_has_come_is_saved_when_a_person_stops_it(plan: RunPlan, tmp_path: Path) -> None:
    (case,) = plan.cases
    claims = dataclasses.replace(case.capabilities, max_batch=64)
    case = dataclasses.replace(case, capabilities=claims)
    answered: list[int] = []

    def stop(case: Case, arm: str, requests: int) -> None:
        answered.append(requests)
        if sum(answered) > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(gather(plan, [case], tmp_path, progress=stop))
    kept = [Parts(evidence_path(tmp_path, case, arm)).listed() for arm in case.sampled_arms]
    assert all(list(k) in ([0], []) for k in kept)
    assert sum(len(load_evidence(k[0]).tokens) for k in kept if k) == sum(answered) < 200
