"""Did requests really differ where a case is about that, and were they told apart?"""

from __future__ import annotations

import pytest

from conformance.reports.model import CaseModel
from conformance.suites.asking import ask

pytestmark = pytest.mark.conformance(question="uneven")


def test_requests_of_a_case_were_uneven(judged_case: CaseModel) -> None:
    """Lengths of prompts and outputs, sizes of calls, blocks that ends cut: counted."""
    ask(judged_case, "unevenness")


def test_every_token_is_one_the_law_can_emit(judged_case: CaseModel) -> None:
    """Whatever shared its call."""
    ask(judged_case, "support")
