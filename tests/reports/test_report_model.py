"""The schema that is shipped, and reading reports back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from conformance.errors import ReportError
from conformance.reports import Report, load_report
from conformance.reports.model import dump_json, json_schema
from conformance.reports.schema_copy import SCHEMA_PATH, schema_text


def test_shipped_schema_is_the_models() -> None:
    assert SCHEMA_PATH.read_text(encoding="utf-8") == schema_text(), (
        "run: python -m conformance.reports.schema_copy"
    )


def test_schema_is_valid_and_describes_a_report(report: Report) -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    data = json.loads(dump_json(report))
    jsonschema.validate(data, schema)
    data["cases"][0]["verdict"] = "PERFECT"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)


def test_round_trip(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(dump_json(report), encoding="utf-8")
    assert load_report(path) == report
    assert dump_json(load_report(path)) == dump_json(report)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot read"):
        load_report(tmp_path / "report.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[1, 2"])
def test_what_is_not_json(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(ReportError, match="not JSON"):
        load_report(path)


def _drop(data: dict[str, Any]) -> None:
    del data["cases"][0]["why"]


def _extend(data: dict[str, Any]) -> None:
    data["surprise"] = 1


def _age(data: dict[str, Any]) -> None:
    data["schema_version"] = "0.9"


def _not_finite(data: dict[str, Any]) -> None:
    data["seconds"] = float("nan")


def _bad_verdict(data: dict[str, Any]) -> None:
    data["cases"][0]["verdict"] = "PERFECT"


@pytest.mark.parametrize("damage", [_drop, _extend, _age, _not_finite, _bad_verdict])
def test_what_does_not_fit_the_schema(damage: Any, report: Report, tmp_path: Path) -> None:
    data = json.loads(dump_json(report))
    damage(data)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ReportError, match="does not fit"):
        load_report(path)


@pytest.mark.parametrize("content", ["[]", "null", "3", '"text"'])
def test_json_of_another_kind(content: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ReportError, match="does not fit"):
        load_report(path)
