"""Does the law hold far from the beginning: beyond 256, 512 and 1024 positions, or several sliding
windows?
"""

from __future__ import annotations

import pytest

from conformance.reports.model import CaseModel
from conformance.suites.asking import ask

pytestmark = pytest.mark.conformance(question="far")


def test_every_region_by_itself(judged_case: CaseModel) -> None:
    """The probability integral transform, in both rankings, between one border and the next."""
    ask(judged_case, "PIT by p", "PIT by q/p")


def test_nothing_leaks_from_the_draft(judged_case: CaseModel) -> None:
    """The output does not lean towards the draft."""
    ask(judged_case, "draft leak")
