"""Named departures from the exact algorithm.

Each fault is a `Rule` that differs from the exact one in a line. They stand for mistakes that
engines shipped; the suite's own tests must kill every one of them, and a user can run any of them
through the very same contract as a real engine: ``conformance run faulty:accept-all``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from conformance.errors import UnknownEngineError
from conformance.law import Floats
from conformance.reference import Rule, acceptance, residual


@dataclass(frozen=True, slots=True)
class Fault:
    """A catalogued departure.

    Parameters
    ----------
    name : str
        As in ``faulty:NAME``.
    summary : str
        What it does wrong, in one sentence.
    seen : str
        A public thread in which it was reported.
    make : callable
        Builds the rule from the fault's parameter.
    parameter : float or None
        Default of the parameter; None where there is none.
    """

    name: str
    summary: str
    seen: str
    make: Callable[[float], Rule]
    parameter: float | None = None


def _accept_all(_: float) -> Rule:
    return Rule("accept-all", lambda p, q: np.ones_like(p), residual)


def _lenient(factor: float) -> Rule:
    def accept(p: Floats, q: Floats) -> Floats:
        ratio = np.divide(p, q * factor, out=np.zeros_like(p), where=q > 0)
        return np.minimum(1.0, ratio)

    return Rule("lenient", accept, residual)


def _resample_from_p(_: float) -> Rule:
    return Rule("resample-from-p", acceptance, lambda p, q: p)


FAULTS: dict[str, Fault] = {
    f.name: f
    for f in (
        Fault(
            "accept-all",
            "every proposal is accepted, so the draft's law is emitted",
            "openvino.genai #2331",
            _accept_all,
        ),
        Fault(
            "lenient",
            "the acceptance ratio p/q is divided by a factor below 1, so too much is accepted",
            "vllm #5131",
            _lenient,
            parameter=0.9,
        ),
        Fault(
            "resample-from-p",
            "after a rejection the token is drawn from p instead of the residual max(p - q, 0)",
            "Spec-RL #14",
            _resample_from_p,
        ),
    )
}


def parse_fault(text: str) -> tuple[Fault, Rule]:
    """Read ``name`` or ``name=value``.

    Raises
    ------
    UnknownEngineError
        If the name is not in the catalogue, or the value is not a number in (0, 1].
    """
    name, given, raw = text.partition("=")
    if name not in FAULTS:
        raise UnknownEngineError(f"no fault named {name!r}; the catalogue has {', '.join(FAULTS)}")
    fault = FAULTS[name]
    if not given:
        return fault, fault.make(fault.parameter if fault.parameter is not None else 1.0)
    if fault.parameter is None:
        raise UnknownEngineError(f"fault {name} takes no parameter, got {raw!r}")
    try:
        value = float(raw)
    except ValueError:
        value = float("nan")
    if not 0 < value <= 1:
        raise UnknownEngineError(f"fault {name} takes a number in (0, 1], not {raw!r}")
    return fault, fault.make(value)
