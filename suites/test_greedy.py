"""Is greedy decoding the argmax, token for token, near ties aside?"""

from __future__ import annotations

import pytest

from conformance.reports.model import CaseModel
from conformance.suites.asking import ask

pytestmark = pytest.mark.conformance(question="greedy")


def test_every_token_is_the_argmax(judged_case: CaseModel) -> None:
    """IDENTICAL or NEAR-TIE at every position, judged at the prefix really emitted."""
    ask(judged_case, "greedy identity", "support")
