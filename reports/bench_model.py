"""The model of ``bench.json``: speed and cost, validated, versioned, apart from any verdict.

All times are in seconds and all sizes in bytes. Raw times are kept beside what was made of them, so
that a reader can make it again.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conformance.errors import ReportError
from conformance.reports.writing import replace_text
from conformance.verdict import Verdict

BENCH_SCHEMA_VERSION: Final = "1.0"
FILE = "bench.json"
LARGEST_FILE = 2**28  # bytes

Outcome = Literal["pays", "does not pay", "cannot tell", "did not speculate"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Estimate(_Strict):
    """An estimate with its 95 % interval, which is null where there are too few samples for one."""

    estimate: float
    low: float | None
    high: float | None
    n: int


class Spread(_Strict):
    """A distribution of times: median and tails."""

    n: int
    median: Estimate
    p90: Estimate | None = Field(description="null below 29 samples")
    p99: Estimate | None = Field(description="null below 299 samples")


class ArmTimes(_Strict):
    """How fast one arm was."""

    arm: Literal["speculative", "control", "draft"]
    end_to_end: Spread = Field(description="of a call with all its requests")
    first_token: Spread
    per_token: Spread | None = Field(description="of a token after the first block of its request")
    pauses: Spread | None = Field(
        description="between blocks of a request, where the engine tells when tokens were there"
    )
    requests_per_second: Estimate
    tokens_per_second: Estimate = Field(description="output tokens of all requests of a call")
    outside: float | None = Field(
        description="median share of a call's time that the engine's own process did not see"
    )
    seconds: list[float] = Field(description="of every call, in the order of repeats")
    inside: list[float] | None = Field(description="the same as the engine's process says")
    first: list[list[float]] = Field(description="time to first token, of each request of a call")


class AcceptanceTimes(_Strict):
    """What the speculative arm's rounds say."""

    drafted: dict[int, int] = Field(description="blocks by number of proposals; 0 is a plain step")
    accepted: dict[int, int] = Field(description="blocks with proposals, by number accepted")
    tokens_per_block: float | None
    rate: Estimate | None = Field(description="accepted, of the proposals that were verified")
    of_proposed: float | None = Field(description="accepted, of all that were proposed")
    most: Estimate | None = Field(
        description="mean of sum min(p, q) where a proposal was verified, in float64"
    )
    sentence: str = Field(description="why `most`, or the rest, is not known; or what it says")


class CostTimes(_Strict):
    """The parts of a block, and what Leviathan's formula makes of them."""

    ratio: Estimate | None = Field(description="c: a step of the draft over one of the target")
    proposals: float | None = Field(description="mean number of proposals of a block")
    target: float | None = Field(description="seconds of a step of the target")
    draft: float | None = Field(description="seconds of a step of the draft")
    block: float | None = Field(description="seconds of a block")
    rest: float | None = Field(description="block less drafting less one step of the target")
    predicted: Estimate | None = Field(description="speed-up by the formula")
    from_blocks: float | None = Field(description="the same from the tokens blocks did emit")
    measured: Estimate | None = Field(description="speed-up after the first block")
    sentence: str


class CellModel(_Strict):
    """One engine at one decoding, batch size and prompt length."""

    id: str
    engine: str
    decoding: str
    batch: int
    prompt_length: int | None = Field(description="null where the prompts are the user's")
    new_tokens: int
    status: Literal["measured", "not supported", "error"]
    why: str
    outcome: Outcome | None
    sentence: str = Field(description="whether speculation pays here")
    speedup: Estimate | None = Field(
        description="end to end: time of the control arm over that of the speculative, in pairs"
    )
    repeats: int
    streamed: bool = Field(description="whether the engine tells when each token was there")
    arms: list[ArmTimes]
    acceptance: AcceptanceTimes | None
    cost: CostTimes | None
    others: float | None = Field(description="processors' worth of time that others used meanwhile")
    drift: float | None = Field(description="how much slower the second half was, if not by chance")
    load: tuple[float | None, float | None] = Field(description="load average before and after")
    prompts: str = Field(description="what was asked")


class MemoryModel(_Strict):
    """Largest resident memory of fresh processes, with the draft and without."""

    engine: str
    with_draft: list[int]
    without: list[int]
    added: int | None = Field(description="difference of the medians")
    target_files: int
    draft_files: int | None
    stand_in_files: int | None = Field(description="what stood in for the draft, where one did")
    sentence: str


class AuditModel(_Strict):
    """The exactness verdict beside a configuration's numbers, or none."""

    engine: str
    decoding: str
    verdict: Verdict | None
    sentence: str


class BenchEngine(_Strict):
    """Who was timed."""

    name: str
    card_name: str
    version: str
    method: str
    rule: str
    draft: str
    precision: str
    models: str
    probe: str | None
    error: str = ""


class MachineModel(_Strict):
    """Where."""

    system: str
    processor: str
    processors: int
    memory_bytes: int
    python: str


class BenchSettings(_Strict):
    """What was asked for."""

    batches: list[int]
    prompt_lengths: list[int]
    new_tokens: int
    prompts: str | None
    repeats: int
    warmup: int
    seconds: float
    seed: int
    confidence: float = 0.95


class BenchReport(_Strict):
    """A whole measurement."""

    schema_version: Literal["1.0"] = BENCH_SCHEMA_VERSION
    tool_version: str
    created: datetime
    seconds: float
    command: list[str]
    finished: bool
    headline: str = Field(description="whether speculation pays, over all that was measured")
    notes: list[str] = Field(description="what to keep in mind with these numbers")
    settings: BenchSettings
    machine: MachineModel
    environment: dict[str, str]
    engines: list[BenchEngine]
    audits: list[AuditModel]
    cells: list[CellModel]
    memory: list[MemoryModel]


def bench_schema() -> dict[str, Any]:
    """The JSON Schema of ``bench.json``."""
    schema = BenchReport.model_json_schema(mode="serialization")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"specdec-conformance bench {BENCH_SCHEMA_VERSION}"
    return schema


def write_bench(report: BenchReport, folder: Path) -> Path:
    """Write ``bench.json`` in one visible step.

    Raises
    ------
    ReportError
        If the folder cannot be written.
    """
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(path, report.model_dump_json(indent=1) + "\n")
    except OSError as exc:
        raise ReportError(f"cannot write {path}: {exc.strerror or exc}") from exc
    return path


def load_bench(path: Path) -> BenchReport:
    """Read and validate a ``bench.json``.

    Raises
    ------
    ReportError
        If it is missing, is not JSON, or does not fit the schema.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ReportError(f"{path} is too large for a bench.json")
        return BenchReport.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as exc:
        raise ReportError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except ValidationError as exc:  # before ValueError, whose subclass it is
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ReportError(f"{path} does not fit its schema: {where}: {first['msg']}") from exc
    except (ValueError, RecursionError) as exc:
        raise ReportError(f"{path} is not JSON: {exc}") from exc
