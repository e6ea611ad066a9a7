"""Are the log-probabilities that come with the tokens those of the law?"""

from __future__ import annotations

import pytest

from conformance.reports.model import CaseModel
from conformance.suites.asking import ask

pytestmark = pytest.mark.conformance(question="returned")


def test_all_tokens(judged_case: CaseModel) -> None:
    """Each number is that of its own token at its own place."""
    ask(judged_case, "returned logprobs", scope="all tokens")


def test_accepted_recovered_and_bonus_tokens(judged_case: CaseModel) -> None:
    """Each kind by itself."""
    ask(judged_case, "returned logprobs")
