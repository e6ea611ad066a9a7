"""Is the acceptance rule alone exact, on every law of the grid and at the edges?"""

from __future__ import annotations

import pytest

from conformance.reports.model import CaseModel
from conformance.suites.asking import ask

pytestmark = pytest.mark.conformance(question="verifier")


def test_emits_only_what_the_laws_can(judged_case: CaseModel) -> None:
    """No token of probability 0, none outside the vocabulary, nothing after padding."""
    ask(judged_case, "support")


def test_edges(judged_case: CaseModel) -> None:
    """Events too rare for sampling: a coin of 0, an empty residual, the ends of the last draw."""
    ask(judged_case, "edge")


def test_distribution(judged_case: CaseModel) -> None:
    """Every law by itself and the whole grid together, by every test of the distribution."""
    ask(judged_case, "chi-square", "KL", "PIT by p", "PIT by q/p", "draft leak")


def test_independence(judged_case: CaseModel) -> None:
    """Rows of a call, and calls with different seeds, do not know of each other."""
    ask(judged_case, "independence")
