"""What a diagnosis found, in fields that a report can show one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from conformance.faults.fault import Fault

Standing = Literal["fits", "nearest", "unexplained", "not compared"]


@dataclass(frozen=True, slots=True)
class Cause:
    """The likely cause of a departure. Nothing here decides a verdict.

    Parameters
    ----------
    standing : {'fits', 'nearest', 'unexplained', 'not compared'}
        Whether the best fault of the catalogue predicts the evidence; is merely the nearest to it;
        beats exactness by too little to be offered; or whether no fault could be compared.
    fault, summary, shows, seen, note : str
        The fault's name and what the catalogue says of it; `seen` is the public thread in which it
        was reported. Empty where there is none.
    size : float or None
        Its size, where it has one.
    alike : tuple of str
        Other faults that explain the evidence about as well.
    runner_up : str
        The best fault that explains it less well.
    odds_runner_up, odds_exact : float or None
        Odds over the runner-up and over exactness, as powers of ten.
    fit_p : float or None
        How often evidence would look so unlike the fault if the fault were the cause.
    place : str
        Where the departure shows, in a sentence or two.
    """

    standing: Standing
    fault: str = ""
    summary: str = ""
    shows: str = ""
    seen: str = ""
    note: str = ""
    size: float | None = None
    alike: tuple[str, ...] = ()
    runner_up: str = ""
    odds_runner_up: float | None = None
    odds_exact: float | None = None
    fit_p: float | None = None
    place: str = ""


def named(fault: Fault, fits: bool, **fields: object) -> Cause:
    """A cause that the catalogue knows."""
    return Cause(
        "fits" if fits else "nearest",
        fault.name,
        fault.summary,
        fault.shows,
        fault.seen,
        fault.note,
        **fields,  # type: ignore[arg-type]
    )


def cause_of(look: Callable[[], tuple[Cause | None, str]]) -> tuple[Cause | None, str]:
    """What a diagnosis found, and in words; a failure in looking for the cause takes nothing from
    the verdict.
    """
    try:
        return look()
    except Exception as exc:
        return None, f"The cause could not be looked for ({type(exc).__name__}: {exc})."
