"""The report as JUnit XML, which every CI system reads.

A gate must not turn green on what was not shown: INCONCLUSIVE is a failure, and a run that fails
with no red case of its own (nothing was judged, or an expectation has expired) gets one.

What readers make of it, and so what is written: GitHub's test reporters and Jenkins show suites.
GitLab shows ``classname`` and ``name``, compares branches by them and drops all but the first of
two that are equal, so that names have nothing in them that changes with the number of samples. A
failure that was expected is skipped, with the reason as its message and the evidence as output, as
pytest writes it: each of them shows that apart from what passed, and none turns red. Jenkins' xunit
plugin validates, and knows neither ``skipped`` on the root nor ``file`` or properties on a case.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from datetime import UTC

from conformance.reports.expectations import beside, excused, sentences
from conformance.reports.model import CaseModel, FindingModel, Report
from conformance.reports.text import p_text
from conformance.reports.wording import strongest_first
from conformance.text import excerpt, one_line
from conformance.verdict import Verdict

# verdict -> element and type attribute; EXACT has none
_OUTCOMES = {
    Verdict.NOT_EXACT: ("failure", "not-exact"),
    Verdict.INCONCLUSIVE: ("failure", "inconclusive"),
    Verdict.ERROR: ("error", "error"),
    Verdict.NOT_SUPPORTED: ("skipped", ""),
}
_COUNTERS = {"failure": "failures", "error": "errors", "skipped": "skipped"}
_ERROR_LIMIT = 10_000


def render_junit(report: Report) -> str:
    """Render a report as JUnit XML: a test suite per engine, a test case per case.

    Parameters
    ----------
    report : Report
        What to render.

    Returns
    -------
    str
        An XML document, declaration included.
    """
    root = ET.Element("testsuites", name="specdec-conformance")
    for engine in dict.fromkeys(case.engine for case in report.cases):
        cases = [case for case in report.cases if case.engine == engine]
        suite = _suite(root, report, one_line(engine, 200))
        for case in cases:
            _case(suite, case)
    shown_red = root.find(".//failure") is not None or root.find(".//error") is not None
    if report.exit_code != 0 and not shown_red:
        _run_case(root, report)
    for suite in root:
        _count(suite, suite)
    _count(root, root)
    del root.attrib["skipped"]
    ET.indent(root)
    body = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _suite(root: ET.Element, report: Report, name: str) -> ET.Element:
    suite = ET.SubElement(root, "testsuite", name=name)
    created = report.created.astimezone(UTC).replace(tzinfo=None)
    suite.set("timestamp", created.isoformat(timespec="seconds"))
    suite.set("hostname", "localhost")  # Ant's word for a host that is nobody's business
    properties = ET.SubElement(suite, "properties")
    settings = report.settings
    for key, value in (
        ("verdict", report.verdict.value),
        ("exit_code", str(report.exit_code)),
        ("tool_version", report.tool_version),
        ("profile", settings.profile),
        ("alpha", f"{settings.alpha:g}"),
        ("seed", str(settings.seed)),
    ):
        ET.SubElement(properties, "property", name=key, value=one_line(value, 200))
    return suite


def _case(suite: ET.Element, case: CaseModel) -> None:
    element = ET.SubElement(
        suite,
        "testcase",
        classname=one_line(case.engine, 200),
        name=one_line(f"{case.decoding} [{case.probe}]" if case.probe else case.decoding, 400),
        time=f"{sum(arm.seconds for arm in case.arms):.3f}",
    )
    why = one_line(case.why, 1000)
    evidence = [_line(f) for f in strongest_first(case.findings) if f.rejected]
    if case.error is not None:
        evidence.append(excerpt(case.error, _ERROR_LIMIT))
    told = [f"{case.verdict.value}: {why}", *filter(None, [one_line(case.workload)])]
    if excused(case):
        message = one_line(f"{case.verdict.value}, {beside(case)}", 1000)
        ET.SubElement(element, "skipped", message=message, type="expected")
        ET.SubElement(element, "system-out").text = "\n".join([*told, *evidence])
    elif case.verdict in _OUTCOMES:
        tag, kind = _OUTCOMES[case.verdict]
        outcome = ET.SubElement(element, tag, message=why)
        if kind:
            outcome.set("type", kind)
        said = one_line(beside(case), 1000)
        outcome.text = "\n".join([*told, *filter(None, [said]), *evidence])
    else:
        lines = [*told, *(one_line(text) for text in case.ruled_out)]
        if case.expected:
            now = one_line(beside(case), 1000)
            lines.append(now)
            if case.expected.entry.strict:
                ET.SubElement(element, "failure", message=now, type="passes-now").text = now
        ET.SubElement(element, "system-out").text = "\n".join(lines)


def _run_case(root: ET.Element, report: Report) -> None:
    """Add the failing test case of a run that no case of its own turns red."""
    suite = _suite(root, report, "run")
    element = ET.SubElement(
        suite, "testcase", classname="conformance", name="run verdict", time="0.000"
    )
    exact = report.verdict is Verdict.EXACT
    kind = "expectation" if exact else report.verdict.value.lower().replace(" ", "-")
    said = [one_line(s, 1000) for s in sentences(report.cases, report.expectations)]
    message = said[-1] if said else one_line(report.why, 1000)
    outcome = ET.SubElement(element, "failure", message=message, type=kind)
    outcome.text = "\n".join([f"{report.verdict.value}: {one_line(report.why, 1000)}", *said])


def _line(finding: FindingModel) -> str:
    p = "proof" if finding.p_value is None else f"p = {p_text(finding.p_value)}"
    return one_line(
        f"- {finding.test}, {finding.scope}, {finding.arm} arm, n = {finding.n:,}, {p}: "
        f"{finding.message}",
        1000,
    )


def _count(target: ET.Element, scope: ET.Element) -> None:
    cases = scope.findall(".//testcase")
    target.set("tests", str(len(cases)))
    for tag, attribute in _COUNTERS.items():
        target.set(attribute, str(len(scope.findall(f".//testcase/{tag}"))))
    target.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")
