"""The compatibility page says what the published reports say, and nothing else."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.cli import main
from conformance.errors import ReportError
from conformance.reports.markdown import escape
from conformance.reports.model import Report, dump_json, load_report
from conformance.reports.published import PAGE, publish, render_page, rows_of
from conformance.verdict import Verdict

PUBLISHED = Path(__file__).parents[2] / "reports" / "published"


def test_the_page_in_this_repository_is_what_its_reports_say() -> None:
    reports = list(PUBLISHED.glob("*.json"))
    assert reports
    for path in reports:
        assert load_report(path).cases
    assert (PUBLISHED / PAGE).read_text(encoding="utf-8") == render_page(PUBLISHED)


def test_a_report_is_copied_and_every_case_has_a_row(report: Report, tmp_path: Path) -> None:
    bundle, folder = tmp_path / "bundle", tmp_path / "published"
    bundle.mkdir()
    (bundle / "report.json").write_text(dump_json(report), encoding="utf-8")
    done = CliRunner().invoke(main, ["publish", str(bundle), "--to", str(folder)])
    assert done.exit_code == 0, done.output
    (copy,) = folder.glob("*.json")
    published = load_report(copy)
    without = {"cases": [c.model_copy(update={"error": None}) for c in report.cases]}
    assert published.model_copy(
        update={"cases": [c.model_copy(update={"error": None}) for c in published.cases]}
    ) == report.model_copy(update=without)
    # of a traceback the last line: the others name files of the machine it was on
    assert {c.error for c in published.cases if c.error} == {
        c.error.strip().splitlines()[-1] for c in report.cases if c.error
    }
    assert "File " not in copy.read_text(encoding="utf-8")
    assert re.fullmatch(r"[A-Za-z0-9.-]+\.json", copy.name)
    page = (folder / PAGE).read_text(encoding="utf-8")
    left = [c for c in report.cases if c.verdict is Verdict.NOT_SUPPORTED]
    assert left
    assert page.count(f"]({copy.name}) |") == len(report.cases) - len(left)
    for case in report.cases:
        assert (case.verdict.value in page) or case in left
    assert all(f"{escape(c.decoding, 120)} (" in page for c in left)
    # the first table counts them
    rows = [
        line
        for line in page.splitlines()
        if re.search(r"\|\s+(\d* \| ){5}|\| (\d* \| ){4}\d*", line)
    ]
    counted = sum(int(n) for line in rows for n in re.findall(r"(?<=\| )\d+(?= \|)", line))
    assert counted == len(report.cases)


def test_a_later_report_of_the_same_thing_replaces_an_earlier_one(
    report: Report, tmp_path: Path
) -> None:
    later = report.model_copy(
        update={
            "created": report.created + dt.timedelta(days=1),
            "settings": report.settings.model_copy(update={"profile": "audit"}),
        }
    )
    for made in (later, report):
        source = tmp_path / "report.json"
        source.write_text(dump_json(made), encoding="utf-8")
        publish(source, tmp_path / "published")
    rows = rows_of(tmp_path / "published")
    assert {r.report.settings.profile for r in rows} == {"audit"}
    assert len(rows) == len(report.cases)


def test_a_hostile_name_is_no_path_and_no_markup(report: Report, tmp_path: Path) -> None:
    engine = report.engines[0]
    evil = "../../x|<img src=y>"
    changed = report.model_copy(
        update={
            "engines": [engine.model_copy(update={"name": evil, "version": "../1"})],
            "cases": [report.cases[0].model_copy(update={"engine": evil})],
        }
    )
    source = tmp_path / "report.json"
    source.write_text(dump_json(changed), encoding="utf-8")
    path = publish(source, tmp_path / "published")
    assert path.parent == tmp_path / "published"
    page = (tmp_path / "published" / PAGE).read_text(encoding="utf-8")
    assert "<img" not in page


def test_what_cannot_be_published(report: Report, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot read report"):
        publish(tmp_path / "nothing", tmp_path)
    (tmp_path / "report.json").write_text(
        dump_json(report.model_copy(update={"cases": []})), encoding="utf-8"
    )
    with pytest.raises(ReportError, match="holds no case"):
        publish(tmp_path, tmp_path / "published")
