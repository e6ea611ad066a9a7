"""What each format shows of an honest report."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from conformance.errors import ReportError
from conformance.reports import Report, load_report, write_bundle
from conformance.reports.html import render_html
from conformance.reports.junit import render_junit
from conformance.reports.markdown import render_markdown
from conformance.reports.model import BarsModel, CaseModel
from conformance.reports.wording import headline, strongest_first, worst_first
from conformance.verdict import Verdict

Cases = Callable[..., CaseModel]
Reports = Callable[..., Report]


class Page(HTMLParser):
    """Elements in order, and ids, links and text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_html_says_the_verdict_first(report: Report) -> None:
    html = render_html(report)
    assert html.lstrip().startswith("<!doctype html>")
    text = " ".join(" ".join(Page(html[html.index("<body>") :]).text).split())
    assert "NOT EXACT A departure was found in 2 of 7 configurations tested." in text
    assert text.index("A departure was found") < text.index("What was tested")
    assert "1 in 1,000,000" in text
    assert "p = 3e-12" in text
    assert "2,304 answers" in text
    assert "IndexError: index 5 is out of bounds" in text
    assert "47.4%" in text


def test_html_needs_nothing_else(report: Report) -> None:
    html = render_html(report)
    page = Page(html)
    assert len(html.encode()) < 2_000_000
    loading = {"src", "srcset", "data", "poster", "background", "action", "formaction", "ping"}
    for tag, attributes in page.elements:
        assert not loading & set(attributes), tag
        assert tag not in ("link", "iframe", "object", "embed", "base", "img", "form")
        href = attributes.get("href") or attributes.get("xlink:href")
        if href is not None and not href.startswith("#"):
            assert tag == "a"
            assert href.startswith("https://")
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    policy = next(
        meta["content"] for meta in page.all("meta") if "http-equiv" in meta and meta["content"]
    )
    assert policy.startswith("default-src 'none';")


def test_html_ids_are_unique_and_links_arrive(report: Report) -> None:
    page = Page(render_html(report))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {a["href"] for a in page.all("a") if (a["href"] or "").startswith("#")}
    assert {f"#case-{i}" for i in range(1, 9)} <= targets
    assert {(target or "")[1:] for target in targets} <= set(ids)


def test_html_is_accessible(report: Report) -> None:
    page = Page(render_html(report))
    assert page.all("html")[0]["lang"] == "en"
    pictures = page.all("svg")
    assert len(pictures) == 6 * 8  # six judged cases
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in pictures)
    assert len(page.all("h1")) == 1
    scrolled = [a for tag, a in page.elements if tag == "div" and a.get("tabindex")]
    assert all(a["aria-label"] for a in scrolled)


def test_html_without_cases(report_of: Reports) -> None:
    html = render_html(report_of([]))
    assert "Nothing was tested, so nothing can be claimed." in html
    assert "INCONCLUSIVE" in html


def test_html_survives_a_table_that_cannot_be_drawn(case_of: Cases, report_of: Reports) -> None:
    broken = BarsModel(title="broken", labels=["a"], observed=[1, 2], expected=[3.0], draft=None)
    case = case_of(Verdict.EXACT, bars=[broken], pit=[])
    assert "Not drawn: this table" in render_html(report_of([case]))


def test_html_draws_a_few_tables_of_many(case_of: Cases, report_of: Reports) -> None:
    bars = case_of(Verdict.EXACT).bars[0]
    case = case_of(Verdict.EXACT, bars=[bars] * 20, pit=[])
    html = render_html(report_of([case]))
    assert html.count("<figcaption>Token at output index 1") == 4
    assert "16 more tables of this case" in html


def test_html_is_deterministic(report_of: Reports, case_of: Cases) -> None:
    report = report_of([case_of(Verdict.NOT_EXACT)])
    assert render_html(report) == render_html(report)


def test_what_needs_attention_comes_first(report: Report) -> None:
    order = [case.verdict for case in worst_first(report.cases)]
    assert order[:2] == [Verdict.NOT_EXACT] * 2
    assert order[-1] is Verdict.NOT_SUPPORTED
    findings = strongest_first(report.cases[1].findings)
    assert [f.test for f in findings[:3]] == ["draft leak", "PIT", "chi-square"]
    assert findings[-1].test == "support"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([Verdict.EXACT] * 3, "No departure was found in any of the 3 configurations tested."),
        ([Verdict.EXACT], "No departure was found in 1 of 1 configuration tested."),
        ([Verdict.EXACT, Verdict.ERROR], "The engine failed in 1 of 2 configurations tested."),
        ([Verdict.NOT_SUPPORTED], "Nothing was tested, so nothing can be claimed."),
        (
            [Verdict.INCONCLUSIVE, Verdict.NOT_SUPPORTED],
            "Nothing can be claimed about 1 of 1 configuration tested.",
        ),
    ],
)
def test_headline(
    verdicts: list[Verdict], expected: str, case_of: Cases, report_of: Reports
) -> None:
    assert headline(report_of([case_of(verdict) for verdict in verdicts])) == expected


def test_markdown_table_has_a_row_per_case(report: Report) -> None:
    text = render_markdown(report)
    assert text.startswith("## ❌ NOT EXACT: A departure was found in 2 of 7")
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    kinds = [token.type for token in tokens]
    assert kinds.count("table_open") == 1
    assert kinds.count("tr_open") == 1 + len(report.cases)
    assert kinds.count("td_open") == 5 * len(report.cases)
    assert kinds.count("fence") == 1
    assert "p = 1.4e-38" in text


def test_markdown_without_cases(report_of: Reports) -> None:
    assert "INCONCLUSIVE: Nothing was tested" in render_markdown(report_of([]))


def test_junit_counts(report: Report) -> None:
    root = ET.fromstring(render_junit(report).encode())
    counts = ("tests", "failures", "errors", "skipped")
    assert [root.get(name) for name in counts] == ["8", "3", "1", None]
    suites = {suite.get("name"): suite for suite in root}
    assert [suites["transformers"].get(name) for name in counts] == ["4", "1", "0", "1"]
    assert [suites["lookup"].get(name) for name in counts] == ["4", "2", "1", "0"]
    assert {f.get("type") for f in root.iter("failure")} == {"not-exact", "inconclusive"}
    names = [case.get("name") for case in root.iter("testcase")]
    assert len(set(names)) >= 7
    case = next(iter(root.iter("testcase")))
    assert case.get("classname") == "transformers"
    assert float(case.get("time", "nan")) == pytest.approx(107.75)
    total = sum(float(case.get("time", "nan")) for case in root.iter("testcase"))
    assert float(root.get("time", "nan")) == pytest.approx(total)


@pytest.mark.parametrize("verdicts", [[], [Verdict.NOT_SUPPORTED]])
def test_junit_is_red_where_nothing_was_judged(
    verdicts: list[Verdict], case_of: Cases, report_of: Reports
) -> None:
    root = ET.fromstring(render_junit(report_of([case_of(v) for v in verdicts])).encode())
    assert root.get("failures") == "1"
    failure = next(root.iter("failure"))
    assert failure.get("type") == "inconclusive"


def test_junit_is_green_only_when_exact(case_of: Cases, report_of: Reports) -> None:
    root = ET.fromstring(render_junit(report_of([case_of(Verdict.EXACT)])).encode())
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("1", "0", "0")


def test_the_model_comes_without_the_plots() -> None:
    code = "import sys, conformance.reports; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def test_bundle(report: Report, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "bundle"
    paths = write_bundle(report, folder)
    assert {kind: path.name for kind, path in paths.items()} == {
        "json": "report.json",
        "html": "report.html",
        "markdown": "report.md",
        "junit": "junit.xml",
        "badge": "badge.svg",
        "badge-json": "badge.json",
        "manifest": "manifest.json",
    }
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in paths.values())
    assert load_report(paths["json"]) == report


def test_bundle_replaces_and_leaves_other_files(
    case_of: Cases, report_of: Reports, tmp_path: Path
) -> None:
    (tmp_path / "evidence").mkdir()
    (tmp_path / "report.json").write_text("old", encoding="utf-8")
    report = report_of([case_of(Verdict.NOT_SUPPORTED)])
    assert load_report(write_bundle(report, tmp_path)["json"]) == report
    assert (tmp_path / "evidence").is_dir()


def test_bundle_that_cannot_be_written(report_of: Reports, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ReportError, match="cannot write"):
        write_bundle(report_of([]), tmp_path / "file")


def test_bundle_leaves_no_partial_file(report_of: Reports, tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()
    with pytest.raises(ReportError, match="cannot write"):
        write_bundle(report_of([]), tmp_path)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
