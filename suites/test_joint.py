"""Are the first tokens right jointly, not only one by one?"""

from __future__ import annotations

import pytest

from conformance.reports.model import CaseModel
from conformance.suites.asking import ask

pytestmark = pytest.mark.conformance(question="joint")


def test_first_tokens_jointly(judged_case: CaseModel) -> None:
    """Chi-square and KL of whole strings of first tokens."""
    ask(judged_case, "chi-square", "KL", scope="first")
