"""Is a grammar kept to inside a block, and is the law the masked one?"""

from __future__ import annotations

import pytest

from conformance.reports.model import CaseModel
from conformance.suites.asking import ask

pytestmark = pytest.mark.conformance(question="structured")


def test_no_forbidden_token_is_ever_emitted(judged_case: CaseModel) -> None:
    """One token that the grammar has no place for is proof."""
    ask(judged_case, "support")


def test_the_law_is_the_masked_one(judged_case: CaseModel) -> None:
    """Masked and renormalised: at every output index, over all positions, or the argmax."""
    ask(judged_case, "chi-square", "KL", "PIT by p", "PIT by q/p", "greedy identity")
