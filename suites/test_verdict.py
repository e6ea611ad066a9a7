"""All in all: is the case EXACT?

A case can pass every single test and still not be EXACT: speculation was never seen, the evidence
is too thin, or plain sampling itself departs from the declared law. That fails here, with the
sentence that says why.
"""

from __future__ import annotations

import pytest

from conformance.reports.model import CaseModel

pytestmark = pytest.mark.conformance(question="every")


def test_case_is_exact(judged_case: CaseModel) -> None:
    """The verdict over every test of the case."""
    if judged_case.verdict.value != "EXACT":
        pytest.fail(f"{judged_case.verdict.value}: {judged_case.why}", pytrace=False)
