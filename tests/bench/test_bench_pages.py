"""What people and programs read: the verdict beside the numbers, text that is safe, a schema."""

from __future__ import annotations

import io
import itertools
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
from fakes import FakeAsker, Pace
from rich.console import Console

from conformance.bench.plan import Settings
from conformance.bench.run import run_bench
from conformance.cli.bench_terminal import print_bench
from conformance.decoding import Decoding
from conformance.errors import ReportError
from conformance.reports import bench_model, schema_copy
from conformance.reports.bench_bundle import write_bench_bundle
from conformance.reports.bench_html import render_bench_html
from conformance.reports.bench_markdown import render_bench_markdown
from conformance.reports.bench_model import BenchReport, bench_schema, load_bench
from conformance.reports.model import dump_json, load_report

SETTINGS = Settings(
    ("fake",),
    (Decoding(), Decoding(greedy=True)),
    batches=(1, 9),
    prompt_lengths=(8,),
    new_tokens=20,
    repeats=12,
    memory=False,
)


def measured(settings: Settings = SETTINGS) -> BenchReport:
    return run_bench(settings, lambda _: FakeAsker(Pace()), lambda _: None)


@pytest.fixture(scope="module")
def report() -> BenchReport:
    return measured()


def on_terminal(report: BenchReport) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_bench(console, report, {})
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return re.sub(r"\s+", " ", text)


class Page(HTMLParser):
    """Tags with their attributes, and the text of each."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_not_audited_is_said_wherever_numbers_are(report: BenchReport) -> None:
    assert [a.verdict for a in report.audits] == [None, None]
    page = Page(render_bench_html(report))
    for heading in ("fake, temperature=1", "fake, greedy"):
        section = page.text.split(heading, 1)[1]
        assert "not audited" in section[: section.index("Speed-up (95 %)")]
    assert page.text.count("not audited") == 2 + 2  # at each table, and at each setting's details
    text = render_bench_markdown(report)
    assert text.count("Not audited:") == 2
    assert text.count(r"(not audited)") == 2
    assert on_terminal(report).count("Exactness: Not audited") == 2


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """An exactness report in which the fake was judged."""
    source = Path(__file__).parents[2] / "reports/published/mlx-lm-0.32.2-standard.json"
    found = load_report(source)
    engine = found.engines[0].model_copy(
        update={"name": "fake", "card_name": "fake", "version": "1.0"}
    )
    case = found.cases[0].model_copy(update={"engine": "fake", "decoding": "temperature=1"})
    report = found.model_copy(update={"engines": [engine], "cases": [case]})
    (tmp_path / "report.json").write_text(dump_json(report))
    return tmp_path


def test_a_verdict_is_shown_only_for_the_same_engine_version_and_decoding(judged: Path) -> None:
    report = measured(replace(SETTINGS, beside=judged))
    first, second = report.audits
    assert first.verdict is not None
    assert first.sentence.startswith(f"{first.verdict.value} on probe ")
    assert second.verdict is None
    assert "no verdict on greedy" in second.sentence
    assert f"Exactness: {first.verdict.value}" in on_terminal(report)
    assert first.verdict.value in render_bench_html(report)

    whole = json.loads((judged / "report.json").read_text())
    whole["engines"][0]["version"] = "0.9"
    (judged / "report.json").write_text(json.dumps(whole))
    audit = measured(replace(SETTINGS, beside=judged)).audits[0]
    assert (audit.verdict, "judged fake 0.9; fake 1.0 is timed" in audit.sentence) == (None, True)
    # options are part of a configuration
    settings = replace(SETTINGS, beside=judged, engines=("fake,dtype=bfloat16",))
    audit = measured(settings).audits[0]
    assert (audit.verdict, "judged fake, not fake,dtype" in audit.sentence) == (None, True)


def test_a_verdict_on_other_models_says_so(judged: Path) -> None:
    settings = replace(SETTINGS, beside=judged, probe="near")
    assert "was not what was judged" in measured(settings).audits[0].sentence


def test_a_report_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"no report\.json"):
        measured(replace(SETTINGS, beside=tmp_path))


def test_speed_is_called_no_verdict(report: BenchReport) -> None:
    assert "no verdict on exactness" in Page(render_bench_html(report)).text
    assert "no verdict on exactness" in render_bench_markdown(report)


def test_the_page_is_whole_and_can_be_read_without_seeing_it(report: BenchReport) -> None:
    html = render_bench_html(report)
    page = Page(html)
    names = [tag for tag, _ in page.tags]
    assert "script" not in names
    assert not [a for _, a in page.tags for k in a if k == "src" or k.startswith("on")]
    assert [a["lang"] for tag, a in page.tags if tag == "html"] == ["en"]
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
        if tag == "th":
            assert attributes["scope"] in ("row", "col")
        if tag == "a" and str(attributes.get("href", "")).startswith("#"):
            assert str(attributes["href"])[1:] in ids
        if attributes.get("aria-labelledby"):
            assert attributes["aria-labelledby"] in ids
    assert names.count("svg") == 2 * 2 + 2  # of each decoding, and of each measured setting
    for svg in re.findall(r"<svg.*?</svg>", html, re.S):
        ET.fromstring(svg)
    headings = [int(n[1]) for n in names if re.fullmatch(r"h[1-6]", n)]
    assert headings[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(headings))


def test_text_of_others_is_harmless(report: BenchReport) -> None:
    attack = "<script>alert(1)</script>\x1b[31m|`"
    hostile = report.model_copy(
        update={
            "engines": [e.model_copy(update={"card_name": attack}) for e in report.engines],
            "audits": [a.model_copy(update={"sentence": attack}) for a in report.audits],
            "cells": [
                c.model_copy(update={"sentence": attack, "prompts": attack}) for c in report.cells
            ],
            "command": [attack],
        }
    )
    html = render_bench_html(hostile)
    assert "<script" not in html
    assert "\x1b" not in html
    text = render_bench_markdown(hostile)
    assert "<script" not in re.sub(r"`[^`]*`", "", text)
    assert "\x1b" not in text
    assert "\x1b" not in on_terminal(hostile)


def test_it_fits_its_schema_and_reads_back(report: BenchReport, tmp_path: Path) -> None:
    files = write_bench_bundle(report, tmp_path)
    data = json.loads(files["json"].read_text())
    jsonschema.Draft202012Validator(bench_schema()).validate(data)
    assert load_bench(files["json"]) == report
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bench.html", "bench.json", "bench.md"]


def test_the_shipped_schema_is_the_models() -> None:
    assert schema_copy.BENCH_PATH.read_text(encoding="utf-8") == schema_copy.bench_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "not JSON"), ("[" * 100_000, "not JSON"), ("{}", "does not fit"), ("[]", "not fit")],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=said):
        load_bench(path)
    with pytest.raises(ReportError, match="cannot read"):
        load_bench(tmp_path / "none.json")


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_model, "LARGEST_FILE", 10)
    path = tmp_path / "bench.json"
    path.write_text("{" + " " * 20 + "}")
    with pytest.raises(ReportError, match="too large"):
        load_bench(path)
