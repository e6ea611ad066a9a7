"""The JSON Schema file shipped beside the model, for readers that are not Python.

``python -m conformance.reports.schema_copy`` writes it anew after the model changed; a test
fails as long as the two differ.
"""

from __future__ import annotations

import json
from pathlib import Path

from conformance.reports.bench_model import BENCH_SCHEMA_VERSION, bench_schema
from conformance.reports.model import SCHEMA_VERSION, json_schema

SCHEMA_PATH = Path(__file__).parent / "schema" / f"report-{SCHEMA_VERSION}.json"
BENCH_PATH = SCHEMA_PATH.with_name(f"bench-{BENCH_SCHEMA_VERSION}.json")


def schema_text() -> str:
    """The content the shipped file must have."""
    return json.dumps(json_schema(), indent=2) + "\n"


def bench_text() -> str:
    """The same for ``bench.json``."""
    return json.dumps(bench_schema(), indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA_PATH.write_text(schema_text(), encoding="utf-8", newline="")
    BENCH_PATH.write_text(bench_text(), encoding="utf-8", newline="")
