"""A whole measurement: engine after engine, cell after cell, kept as it goes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from conformance._version import __version__
from conformance.bench.asking import Asker, MakeAsker
from conformance.bench.beside import audit, read_audit
from conformance.bench.machine import Quiet, drift, load_average, this_machine
from conformance.bench.measure import Run, Source, measure
from conformance.bench.memory import memory_model
from conformance.bench.models import Models, models_for
from conformance.bench.most import most
from conformance.bench.notes import notes
from conformance.bench.plan import Cell, Settings, cells_of, check
from conformance.bench.prompts import Prompt, Prompts, read_prompts, tokenizer_of
from conformance.bench.summary import cell_model, headline, unmeasured
from conformance.contract import Capabilities, EngineCard, Request
from conformance.errors import (
    ConformanceError,
    EngineLoadError,
    NotSupportedError,
    UnknownEngineError,
)
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


class Progress:
    """What a run tells while it goes on; does nothing by itself."""

    def cell(self, cell: Cell, done: int, of: int) -> None:
        """Rounds of a cell are done."""

    def memory(self, engine: str, done: int, of: int) -> None:
        """Processes of an engine were watched."""

    def result(self, model: CellModel) -> None:
        """A cell is finished."""


@dataclass
class _So:
    """What has been measured so far."""

    engines: list[BenchEngine] = field(default_factory=list)
    audits: list[AuditModel] = field(default_factory=list)
    cells: list[CellModel] = field(default_factory=list)
    memory: list[MemoryModel] = field(default_factory=list)


def run_bench(
    settings: Settings,
    make: MakeAsker,
    keep: Callable[[BenchReport], None],
    progress: Progress | None = None,
    command: tuple[str, ...] = (),
) -> BenchReport:
    """Measure everything that was asked for.

    Parameters
    ----------
    settings : Settings
        What.
    make : callable
        Makes an asker of an engine.
    keep : callable
        Is given the report so far after every cell, with `finished` False, so that an interruption
        costs one cell at most.
    progress : Progress, optional
        Is told how far it is.
    command : tuple of str
        For the report.

    Raises
    ------
    ConformanceError
        For what a person got wrong; an engine's failure is a cell's.
    """
    check(settings)
    told = progress or Progress()
    report = read_audit(settings.beside)
    began, created = time.monotonic(), datetime.now(UTC)
    so = _So()
    # every engine is asked who it is, and every workload read, before anything is timed
    ready = [_prepare(engine, settings, make) for engine in settings.engines]

    def report_so_far(finished: bool) -> BenchReport:
        return _report(settings, so, created, time.monotonic() - began, command, finished)

    for one in ready:
        so.engines.append(one.described)
        name = one.described.probe or one.described.models
        so.audits += [audit(report, one.engine, one.card, str(d), name) for d in settings.decodings]
        for _ in _engine(one, settings, make, so, told):
            keep(report_so_far(False))
    return report_so_far(True)


@dataclass(frozen=True, slots=True)
class _Ready:
    """An engine that is about to be measured; without `card` it could not be asked."""

    engine: str
    described: BenchEngine
    card: EngineCard | None = None
    capabilities: Capabilities | None = None
    models: Models | None = None
    listed: tuple[Prompt, ...] = ()


def _prepare(engine: str, settings: Settings, make: MakeAsker) -> _Ready:
    with _open(make, engine) as asker:
        try:
            card, capabilities = asker.describe()
        except UnknownEngineError:
            raise
        except ConformanceError as exc:
            return _Ready(engine, _unknown(engine, str(exc)))
    models = models_for(capabilities, settings.models, settings.probe)
    described = _described(engine, card, capabilities, models)
    return _Ready(engine, described, card, capabilities, models, _listed(settings, models))


def _engine(
    ready: _Ready, settings: Settings, make: MakeAsker, so: _So, told: Progress
) -> Iterator[None]:
    """Measure one engine; yields whenever there is something new to keep."""
    engine, capabilities, models = ready.engine, ready.capabilities, ready.models
    cells = cells_of(settings, engine)

    def failed(why: str, rest: tuple[Cell, ...], status: str = "error") -> None:
        for cell in rest:
            so.cells.append(unmeasured(cell, settings.new_tokens, status, why))
            told.result(so.cells[-1])

    if capabilities is None or models is None:
        failed(ready.described.error, cells)
        yield
        return
    alone = models.alone() if capabilities.draft == "model" and capabilities.control else None
    with _open(make, engine) as asker, _open(make, engine) as second:
        sources = [Source("speculative", asker, models.pair)]
        if capabilities.control:
            sources.append(Source("control", asker, models.pair))
        if alone is not None:
            sources.append(Source("draft", second, alone))
        for i, cell in enumerate(cells):
            refused = cell.refused(capabilities, models.pair.context, settings.new_tokens)
            if refused:
                failed(refused, (cell,), "not supported")
                continue
            try:
                model = _cell(cell, sources, capabilities, models, ready.listed, settings, told)
                so.cells.append(model)
                told.result(model)
            except NotSupportedError as exc:
                why = one_line(f"refused by this engine: {exc}", 600)
                failed(why, (cell,), "not supported")
            except EngineLoadError as exc:  # nothing of it will be different at the next cell
                failed(one_line(str(exc), 600), cells[i:])
                yield
                return
            except ConformanceError as exc:
                failed(one_line(str(exc), 600), (cell,))
            yield
    if settings.memory:
        so.memory.append(
            memory_model(
                lambda: make(engine),
                engine,
                capabilities,
                models,
                _memory_requests(settings, capabilities, models, ready.listed),
                lambda done, of: told.memory(engine, done, of),
            )
        )
        yield


@contextmanager
def _open(make: MakeAsker, engine: str) -> Iterator[Asker]:
    asker = make(engine)
    try:
        yield asker
    finally:
        asker.close()


def _cell(
    cell: Cell,
    sources: list[Source],
    capabilities: Capabilities,
    models: Models,
    listed: tuple[Prompt, ...],
    settings: Settings,
    told: Progress,
) -> CellModel:
    prompts = Prompts(listed, cell.prompt_length, models.pair.vocab_size, settings.seed)
    before = load_average()
    while True:
        pids = [s.asker.pid for s in sources]
        quiet = Quiet([p for p in pids if p is not None])
        try:
            run = measure(
                cell, sources, prompts, settings, lambda done, of: told.cell(cell, done, of)
            )
            break
        except ConformanceError:
            # the draft by itself is a luxury: where it cannot be run, the arms still can
            if sources[-1].arm != "draft" or not _fails(sources[-1], cell, prompts):
                raise
            sources.pop()
    others = quiet.others()
    plain = [c.seconds for c in run.calls if c.arm == "control" and c.kind == "full"]
    return cell_model(
        cell,
        run,
        capabilities,
        settings.new_tokens,
        most(cell, run, capabilities, models),
        others=others,
        drift=drift(plain),
        load=(before, load_average()),
        prompts=_words(prompts, cell, run),
    )


def _fails(source: Source, cell: Cell, prompts: Prompts) -> bool:
    request = Request(prompts.batch(0, 1)[0][:1], 1, cell.decoding, 1, speculate=False)
    try:
        source.asker.ask(source.pair, [request])
    except ConformanceError:
        return True
    return False


def _memory_requests(
    settings: Settings, capabilities: Capabilities, models: Models, listed: tuple[Prompt, ...]
) -> tuple[Request, Request]:
    """One request with speculation, and the same without."""
    decoding = next(
        (d for d in settings.decodings if not capabilities.refuses(d)), settings.decodings[0]
    )
    room = models.pair.context - settings.new_tokens
    length = None if listed else max(1, min(max(settings.prompt_lengths), room))
    prompt = Prompts(listed, length, models.pair.vocab_size, settings.seed).batch(0, 1)[0]
    seed = None if decoding.greedy else 1
    speculating = Request(prompt, settings.new_tokens, decoding, seed)
    return speculating, replace(speculating, speculate=False)


def _listed(settings: Settings, models: Models) -> tuple[Prompt, ...]:
    if settings.prompts is None:
        return ()
    pair = models.pair
    return read_prompts(
        settings.prompts,
        pair.vocab_size,
        pair.context - settings.new_tokens,
        lambda: tokenizer_of(pair.target),
    )


def _words(prompts: Prompts, cell: Cell, run: Run) -> str:
    if not prompts.listed:
        return f"random token ids, {prompts.length} a prompt, another for every request"
    used = min(len(prompts.listed), run.repeats * cell.batch)
    lengths = [len(p) for p in prompts.listed[:used]]
    text = f"{used:,} of {len(prompts.listed):,} prompts brought, {min(lengths)} to {max(lengths)} "
    text += "tokens"
    if run.repeats * cell.batch > len(prompts.listed):
        text += "; some were asked more than once, and an engine may remember them"
    return text


def _described(
    engine: str, card: EngineCard, capabilities: Capabilities, models: Models
) -> BenchEngine:
    return BenchEngine(
        name=engine, card_name=card.name, version=card.version, method=card.method, rule=card.rule,
        draft=capabilities.draft, precision=capabilities.precision, models=models.pair.name,
        probe=models.probe,
    )  # fmt: skip


def _unknown(engine: str, error: str) -> BenchEngine:
    return BenchEngine(
        name=engine, card_name=engine, version="unknown", method="", rule="", draft="",
        precision="", models="", probe=None, error=one_line(error, 600),
    )  # fmt: skip


def _report(
    settings: Settings,
    so: _So,
    created: datetime,
    seconds: float,
    command: tuple[str, ...],
    finished: bool,
) -> BenchReport:
    return BenchReport(
        tool_version=__version__,
        created=created,
        seconds=seconds,
        command=list(command or sys.argv),
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
