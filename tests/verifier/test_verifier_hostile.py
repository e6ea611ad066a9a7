"""What breaks the contract is that case's ERROR; what the laws cannot emit is a proof."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import broken
import pytest
from verifying import _Here, judged, named, plan_for

from conformance.errors import BadAnswerError, EngineFailure, EngineLoadError
from conformance.result import CaseResult
from conformance.verdict import Verdict
from conformance.verifier import gather, wire
from conformance.verifier.book import Book, jobs_of
from conformance.verifier.contract import Verifier
from conformance.verifier.decide import decide
from conformance.verifier.gather import Gathered, describe, gather_case
from conformance.verifier.plan import VerifierCase
from conformance.verifier.serve import Server

FILE = Path(broken.__file__)
FEW = (("random-8", 1024), ("disjoint-12", 1024), ("coin", 1024))


def through_a_process(
    name: str, timeout: float = 60.0, laws: tuple[tuple[str, int], ...] = FEW
) -> CaseResult:
    engine = f"{FILE}:{name}"
    plan = plan_for(getattr(broken, name)(), laws=laws)
    (planned,) = plan.cases
    case = replace(planned, engine=engine)
    assert isinstance(case, VerifierCase)
    plan = replace(plan, cases=(case,))
    return decide(plan, gather_case(case, 0, timeout=timeout))


def here(name: str, laws: tuple[tuple[str, int], ...] = FEW) -> CaseResult:
    verifier: Verifier = getattr(broken, name)()
    return judged(verifier, plan_for(verifier, laws=laws))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("WrongShape", "has shape"),
        ("OneRowMissing", "has shape"),
        ("NotANumber", "whole numbers, not float64"),
        ("Floats", "whole numbers, not float64"),
        ("Nothing", "has shape ()"),
        ("Raises", "no such luck"),
        ("Dies", "exit status 3"),
    ],
)
def test_error(name: str, said: str) -> None:
    result = through_a_process(name)
    assert result.verdict.verdict is Verdict.ERROR
    assert said in result.verdict.why


def test_hang() -> None:
    result = through_a_process("Hangs", timeout=5.0)
    assert result.verdict.verdict is Verdict.ERROR
    assert "did not answer within 5 seconds" in result.verdict.why


@pytest.mark.parametrize("name", ["Chatters", "WritesOnInputs"])
def test_harmless(name: str) -> None:
    assert through_a_process(name, laws=()).verdict.verdict is Verdict.EXACT


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("AfterPadding", "a token after padding"),
        ("Padded", "an id outside the vocabulary"),
        ("Negative", "an id outside the vocabulary"),
        ("Huge", "an id outside the vocabulary"),
        ("Silent", "emitted nothing"),
        ("GoesOn", "went on after a token that was not proposed"),
        ("OffThePath", "went on after a token that was not proposed"),
    ],
)
def test_single_strike(name: str, said: str) -> None:
    result = here(name)
    assert result.verdict.verdict is Verdict.NOT_EXACT
    (support,) = (f for f in result.findings if f.test == "support")
    assert support.rejected
    assert said in support.message


def test_one_seed_for_all_calls() -> None:
    result = here("OneSeed")
    (found,) = (f for f in result.findings if f.scope == "consecutive calls")
    assert found.rejected
    (rows,) = (f for f in result.findings if f.scope == "rows of a call")
    assert not rows.rejected


def test_rows_of_a_call_share_random_numbers() -> None:
    result = here("SharedRows")
    (found,) = (f for f in result.findings if f.scope == "rows of a call")
    assert found.rejected


def test_claims_to_be_reproducible() -> None:
    result = here("Moody")
    assert result.verdict.verdict is Verdict.NOT_EXACT
    assert "blocks differ when the same calls are repeated" in result.verdict.why


def test_not_speculating_is_not_a_pass() -> None:
    result = here("NeverAccepts")
    assert result.verdict.verdict is Verdict.INCONCLUSIVE
    assert "0 were accepted" in result.verdict.why


def test_a_refused_law_is_listed() -> None:
    result = through_a_process("Refuses")
    refused = [f for f in result.findings if "bad luck" in f.message]
    assert [f.scope for f in refused] == ["disjoint-12"]
    assert result.verdict.verdict is Verdict.INCONCLUSIVE
    assert "laws were refused" in result.verdict.why


def test_refusing_every_law_is_no_pass() -> None:
    result = here("RefusesAll")
    assert result.verdict.verdict is Verdict.NOT_SUPPORTED


def test_unreadable_claims() -> None:
    with pytest.raises(EngineFailure, match="max_batch must be a whole number"):
        describe(f"{FILE}:BadClaims")
    with pytest.raises(EngineLoadError, match="VerifierCapabilities"):
        describe(f"{FILE}:OtherClaims")
    with pytest.raises(EngineLoadError, match="lacks card"):
        describe(f"{FILE}:NoCard")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"tokens": 7},
        {"tokens": "?"},
        {"tokens": "AAAA"},
        {"tokens": "eJxjYGBgAAAABAAB"},
        {"tokens": "eJztwQENAAAAwqD3T20ON6AAAAAAAAAAAIA/Ay+IAAE="},
    ],
)
def test_unreadable_answers(answer: dict[str, object]) -> None:
    with pytest.raises(BadAnswerError):
        wire.read_tokens(answer, 3, 2)


def test_a_lost_block_is_an_error() -> None:
    """Planned, not refused and not there: never a verdict on the others."""
    verifier = named("reference:verifier")
    plan = plan_for(verifier)
    (case,) = plan.cases
    assert isinstance(case, VerifierCase)
    book, worker = Book(case, plan.seed, None), _Here(Server(verifier))
    for job in jobs_of(case, plan.seed):
        if (job.name, job.begin) != ("coin", 0):
            gather._do(worker, job, book, lambda rows: None)
    lost = decide(plan, Gathered(case, book.evidence(), book.error))
    assert lost.verdict.verdict is Verdict.ERROR
    assert "law coin were planned and have no answer" in lost.verdict.why


def test_a_defect_while_sampling_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of our own, in a thread of ours, ends the run and not just the thread."""

    def fails(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(gather, "_do", fails)
    verifier = named("reference:verifier")
    (case,) = plan_for(verifier).cases
    assert isinstance(case, VerifierCase)
    with pytest.raises(ZeroDivisionError, match="ours"):
        gather.gather_case(case, 0)
