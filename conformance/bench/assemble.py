"""From what was measured to the report's model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version

from conformance._version import __version__
from conformance.bench.machine import this_machine
from conformance.bench.models import Models
from conformance.bench.notes import notes
from conformance.bench.plan import Settings
from conformance.bench.summary import headline
from conformance.contract import Capabilities, EngineCard
from conformance.reports.bench_model import (
    AuditModel,
    BenchEngine,
    BenchReport,
    BenchSettings,
    CellModel,
    MachineModel,
    MemoryModel,
)
from conformance.text import one_line

PACKAGES = ("numpy", "scipy", "psutil")


@dataclass
class SoFar:
    """What has been measured so far."""

    engines: list[BenchEngine] = field(default_factory=list)
    audits: list[AuditModel] = field(default_factory=list)
    cells: list[CellModel] = field(default_factory=list)
    memory: list[MemoryModel] = field(default_factory=list)


def described(
    engine: str, card: EngineCard, capabilities: Capabilities, models: Models
) -> BenchEngine:
    """Who is timed, and with what."""
    return BenchEngine(
        name=engine, card_name=card.name, version=card.version, method=card.method, rule=card.rule,
        draft=capabilities.draft, precision=capabilities.precision, models=models.pair.name,
        probe=models.probe,
    )  # fmt: skip


def unknown(engine: str, error: str) -> BenchEngine:
    """An engine that could not be asked who it is."""
    return BenchEngine(
        name=engine, card_name=engine, version="unknown", method="", rule="", draft="",
        precision="", models="", probe=None, error=one_line(error, 600),
    )  # fmt: skip


def assemble(
    settings: Settings,
    so: SoFar,
    created: datetime,
    seconds: float,
    command: tuple[str, ...],
    finished: bool,
) -> BenchReport:
    """The report so far, or at the end."""
    return BenchReport(
        tool_version=__version__,
        created=created,
        seconds=seconds,
        command=list(command),
        finished=finished,
        headline=headline(so.cells),
        notes=notes(settings, so.engines, so.cells),
        settings=BenchSettings(
            batches=list(settings.batches),
            prompt_lengths=[] if settings.prompts else list(settings.prompt_lengths),
            new_tokens=settings.new_tokens,
            prompts=None if settings.prompts is None else str(settings.prompts),
            repeats=settings.repeats,
            warmup=settings.warmup,
            seconds=settings.seconds,
            seed=settings.seed,
        ),
        machine=MachineModel(**asdict(this_machine())),
        environment={name: _version(name) for name in PACKAGES},
        engines=list(so.engines),
        audits=list(so.audits),
        cells=list(so.cells),
        memory=list(so.memory),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
