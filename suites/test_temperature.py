"""Does plain temperature sampling come out of speculation with the target's distribution?"""

from __future__ import annotations

import pytest

from conformance.reports.model import CaseModel
from conformance.suites.asking import ask

pytestmark = pytest.mark.conformance(question="temperature")


def test_each_output_index_conditional_on_its_prefix(judged_case: CaseModel) -> None:
    """Chi-square and KL at every output index."""
    ask(judged_case, "chi-square", "KL", scope="output index")


def test_all_positions_together(judged_case: CaseModel) -> None:
    """The probability integral transform in both rankings, over every token."""
    ask(judged_case, "PIT by p", "PIT by q/p")


def test_nothing_leaks_from_the_draft(judged_case: CaseModel) -> None:
    """The output does not lean towards the draft."""
    ask(judged_case, "draft leak")
