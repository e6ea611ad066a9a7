"""What will be timed, decided before anything is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from conformance.contract import Capabilities
from conformance.decoding import Decoding
from conformance.errors import PlanError

FEWEST_REPEATS = 6  # the fewest pairs of which a median has a 95 % interval
MOST_CELLS = 1000
DEFAULT_DECODINGS = (Decoding(), Decoding(greedy=True))


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for.

    Parameters
    ----------
    engines : tuple of str
        As typed.
    decodings : tuple of Decoding
        Configurations.
    batches : tuple of int
        Requests of one call.
    prompt_lengths : tuple of int
        Of random prompts; not used with `prompts`.
    new_tokens : int
        Tokens of every request.
    prompts : Path or None
        A workload in JSON lines.
    repeats : int
        Pairs of calls in every cell, at most.
    warmup : int
        Rounds of all arms that are thrown away first.
    seconds : float
        A cell that would take longer has fewer repeats, not below `FEWEST_REPEATS`.
    models : pair of Path, or None
        The user's own target and draft.
    probe : str or None
        A probe in their place; the method's own by default.
    beside : Path or None
        Folder with the ``report.json`` of an exactness run.
    memory : bool
        Whether memory is measured.
    seed : int
        Of prompts, order and random numbers.
    timeout : float
        Seconds for one answer of an engine.
    python : str or None
        As for ``conformance run``.
    """

    engines: tuple[str, ...]
    decodings: tuple[Decoding, ...] = DEFAULT_DECODINGS
    batches: tuple[int, ...] = (1, 4)
    prompt_lengths: tuple[int, ...] = (16, 64, 256)
    new_tokens: int = 64
    prompts: Path | None = None
    repeats: int = 30
    warmup: int = 3
    seconds: float = 60.0
    models: tuple[Path, Path] | None = None
    probe: str | None = None
    beside: Path | None = None
    memory: bool = True
    seed: int = 0
    timeout: float = 300.0
    python: str | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One engine at one decoding, batch size and prompt length.

    Parameters
    ----------
    engine : str
        As typed.
    decoding : Decoding
        Configuration.
    batch : int
        Requests of one call.
    prompt_length : int or None
        None where the prompts are the user's.
    """

    engine: str
    decoding: Decoding
    batch: int
    prompt_length: int | None

    @property
    def id(self) -> str:
        """How it is called in a report."""
        prompts = "own prompts" if self.prompt_length is None else f"prompt {self.prompt_length}"
        return f"{self.engine} / {self.decoding} / batch {self.batch} / {prompts}"

    def refused(self, capabilities: Capabilities, context: int, new_tokens: int) -> str | None:
        """Why it is not measured at all, or None."""
        lacks = capabilities.refuses(self.decoding)
        if lacks:
            return f"not claimed by this engine: {lacks}"
        if self.batch > capabilities.max_batch:
            return (
                f"not supported by this engine: it takes at most {capabilities.max_batch} requests "
                "in a call"
            )
        if self.prompt_length is not None and self.prompt_length + new_tokens > context:
            return (
                f"{self.prompt_length} tokens and {new_tokens} to generate are more than the "
                f"models' context of {context}"
            )
        return None


def cells_of(settings: Settings, engine: str) -> tuple[Cell, ...]:
    """The cells of one engine, in the order in which they are measured."""
    lengths: tuple[int | None, ...] = (None,) if settings.prompts else settings.prompt_lengths
    return tuple(
        Cell(engine, d, b, n) for d in settings.decodings for n in lengths for b in settings.batches
    )


def check(settings: Settings) -> None:
    """Refuse what cannot be measured.

    Raises
    ------
    PlanError
        Naming what is wrong.
    """
    from conformance.builtin import builtin_verifier  # noqa: PLC0415
    from conformance.resolve import split_options  # noqa: PLC0415

    if settings.models and settings.probe:
        raise PlanError("give either --models or --probe, not both")
    for name in settings.engines:
        base = split_options(name)[0]
        if builtin_verifier(base) is not None:
            raise PlanError(f"{name} is an acceptance rule alone, which has no speed of its own")
        if base == "served":
            raise PlanError(
                "served has models of its own and is compared with itself in 'conformance run'; "
                "bench takes engines that load a model pair"
            )
    if any(d.stop for d in settings.decodings):
        raise PlanError("answers that are timed must be equally long: leave stop out")
    if settings.repeats < FEWEST_REPEATS:
        raise PlanError(
            f"{settings.repeats} repeats are too few: a median has no interval below "
            f"{FEWEST_REPEATS}"
        )
    count = len(settings.engines) * len(cells_of(settings, ""))
    if count > MOST_CELLS:
        raise PlanError(f"{count:,} combinations are more than {MOST_CELLS:,}: ask for fewer")
