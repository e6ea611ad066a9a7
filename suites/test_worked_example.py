"""Does the engine get the smallest example right?

Two tokens, q = (.6, .4), p = (.3, .7) at every prefix: .3 + .4 accepted, .3 rejected, all of it
recovered as the second token, final (.3, .7). Asked where the draft is a model that can be given.
"""

from __future__ import annotations

import pytest

from conformance.reports.model import CaseModel
from conformance.suites.asking import ask

pytestmark = pytest.mark.conformance(question="worked-example")


def test_tokens_have_the_targets_frequencies(judged_case: CaseModel) -> None:
    """.3 and .7 at every output index."""
    ask(judged_case, "chi-square", "KL", scope="output index")


def test_nothing_leaks_from_the_draft(judged_case: CaseModel) -> None:
    """The output does not lean towards .6 and .4."""
    ask(judged_case, "draft leak")
