"""How the suites ask: look up the findings a question is about, and fail with their sentences."""

from __future__ import annotations

import pytest

from conformance.reports.model import CaseModel, FindingModel


def ask(case: CaseModel, *tests: str, scope: str = "") -> None:
    """Fail if one of these tests rejected in the speculative arm.

    Parameters
    ----------
    case : CaseModel
        A judged case.
    tests : str
        Names of tests, as in a finding.
    scope : str
        Only findings whose scope starts with this.
    """
    asked = [
        f
        for f in case.findings
        if f.arm == "speculative" and f.test in tests and f.scope.startswith(scope)
    ]
    assert asked, f"{case.id} was never asked about {', '.join(tests)}"
    answered = [f for f in asked if f.n > 0]
    if not answered:
        pytest.skip(f"not judged: {asked[0].message}")
    rejected = [f for f in answered if f.rejected]
    if rejected:
        _fail(case, rejected)


def _fail(case: CaseModel, rejected: list[FindingModel]) -> None:
    sentences = "\n".join(f"- {f.message}" for f in rejected)
    pytest.fail(f"{case.verdict.value}: {case.why}\n{sentences}", pytrace=False)
