"""A whole measurement: engine after engine, cell after cell, kept as it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from conformance.bench.asking import Asker, MakeAsker
from conformance.bench.assemble import SoFar, assemble, described, unknown
from conformance.bench.beside import audit, read_audit
from conformance.bench.machine import Quiet, drift, load_average
from conformance.bench.measure import Run, Source, measure
from conformance.bench.memory import memory_model
from conformance.bench.models import Models, models_for
from conformance.bench.most import most
from conformance.bench.plan import Cell, Settings, cells_of, check
from conformance.bench.prompts import Prompt, Prompts, read_prompts, tokenizer_of
from conformance.bench.summary import cell_model, unmeasured
from conformance.contract import Capabilities, EngineCard, ModelPair, Request
from conformance.errors import (
    ConformanceError,
    EngineLoadError,
    NotSupportedError,
    UnknownEngineError,
)
from conformance.launch import KEYED
from conformance.reports.bench_model import (
    BenchEngine,
    BenchReport,
    CellModel,
)
from conformance.resolve import split_options
from conformance.text import one_line


class Progress:
    """What a run tells while it goes on; does nothing by itself."""

    def cell(self, cell: Cell, done: int, of: int) -> None:
        """Rounds of a cell are done."""

    def memory(self, engine: str, done: int, of: int) -> None:
        """Processes of an engine were watched."""

    def result(self, model: CellModel) -> None:
        """A cell is finished."""


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
    so = SoFar()
    # every engine is asked who it is, and every workload read, before anything is timed
    ready = [_prepare(engine, settings, make) for engine in settings.engines]

    def report_so_far(finished: bool) -> BenchReport:
        return assemble(settings, so, created, time.monotonic() - began, command, finished)

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
            return _Ready(engine, unknown(engine, str(exc)))
    models = models_for(capabilities, settings.models, settings.probe)
    who = described(engine, card, capabilities, models)
    return _Ready(engine, who, card, capabilities, models, _listed(settings, models))


def _engine(
    ready: _Ready, settings: Settings, make: MakeAsker, so: SoFar, told: Progress
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
    served = is_server(engine)
    alone = models.alone() if capabilities.draft == "model" and capabilities.control else None
    alone = None if served else alone
    drafts: dict[str, Run] = {}
    if alone is not None and capabilities.processes == 1:
        drafts = _drafts_first(ready, cells, alone, settings, make, told)
        alone = None
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
                model = _cell(
                    cell, sources, capabilities, models, ready.listed, settings, told,
                    drafts.get(cell.id),
                )  # fmt: skip
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
    if settings.memory and not served:
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


def is_server(engine: str) -> bool:
    """Whether its models run where this suite does not load them."""
    return split_options(engine)[0].partition(":")[0] in KEYED


def _drafts_first(
    ready: _Ready,
    cells: tuple[Cell, ...],
    alone: ModelPair,
    settings: Settings,
    make: MakeAsker,
    told: Progress,
) -> dict[str, Run]:
    """The draft alone in every cell, of an engine that cannot have two processes at a time."""
    found: dict[str, Run] = {}
    assert ready.capabilities is not None
    assert ready.models is not None
    with _open(make, ready.engine) as asker:
        for cell in cells:
            if cell.refused(ready.capabilities, ready.models.pair.context, settings.new_tokens):
                continue
            vocab = ready.models.pair.vocab_size
            prompts = Prompts(ready.listed, cell.prompt_length, vocab, settings.seed)
            try:
                found[cell.id] = measure(
                    cell, [Source("draft", asker, alone)], prompts, settings, _nothing
                )
            except ConformanceError:
                return found  # a luxury: where the draft cannot be run alone, the arms still can
            told.cell(cell, 0, 1)
    return found


def _nothing(done: int, of: int) -> None:
    """No progress to tell: the cell has not begun."""
    del done, of


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
    alone: Run | None,
) -> CellModel:
    if alone is not None:  # as many of the arms as there are of the draft alone
        settings = replace(settings, repeats=min(settings.repeats, alone.repeats))
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
    if alone is not None:
        run = replace(run, calls=(*run.calls, *(c for c in alone.calls if c.repeat < run.repeats)))
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
