"""Are several answers to one request really several, and does none tell of another?"""

from __future__ import annotations

import pytest

from conformance.reports.model import CaseModel
from conformance.suites.asking import ask

pytestmark = pytest.mark.conformance(question="several")


def test_several_answers_were_asked_for_and_given(judged_case: CaseModel) -> None:
    """Counted, and so is speculation in the answers beyond the first."""
    ask(judged_case, "several answers")


def test_first_and_further_answers_by_themselves(judged_case: CaseModel) -> None:
    """Each follows the law."""
    ask(judged_case, "PIT by p", "PIT by q/p")


def test_answers_to_one_request_are_independent(judged_case: CaseModel) -> None:
    """None follows the one before it further than chance has it, nor draws as it did."""
    ask(
        judged_case,
        "repeats",
        "correlation by p",
        "correlation by id",
        "coincidences",
        scope="answers to one request",
    )
