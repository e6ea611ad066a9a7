"""Named departures from the exact algorithm.

Each stands for a mistake that an engine shipped, or could: it is the reference with one step done
wrong. The suite's own tests must kill them, and a user can run any of them through the very same
contract as a real engine: ``conformance run faulty:accept-all``. Where they differ from the
reference is `conformance.faults.steps`.
"""

from __future__ import annotations

import difflib

from conformance.errors import UnknownEngineError
from conformance.faults.around import AROUND
from conformance.faults.fault import Fault, Span
from conformance.faults.greedy import GREEDY
from conformance.faults.masks import MASKS
from conformance.faults.positions import POSITIONS
from conformance.faults.probabilities import PROBABILITIES
from conformance.faults.returned import RETURNED
from conformance.faults.rules import RULES
from conformance.faults.siblings import SIBLINGS
from conformance.faults.state import STATE
from conformance.faults.strings import STRINGS
from conformance.faults.uneven import UNEVEN
from conformance.faults.windows import WINDOWS
from conformance.reference import Rule

__all__ = ["FAULTS", "Fault", "Span", "parse_fault", "rule_faults"]

FAULTS: dict[str, Fault] = {
    f.name: f
    for f in (
        *RULES,
        *PROBABILITIES,
        *POSITIONS,
        *STATE,
        *AROUND,
        *GREEDY,
        *MASKS,
        *RETURNED,
        *UNEVEN,
        *SIBLINGS,
        *WINDOWS,
        *STRINGS,
    )
}


def parse_fault(text: str) -> tuple[Fault, Rule | None]:
    """Read ``name`` or ``name=value``: the fault of that size, and its rule if it is in the rule.

    Raises
    ------
    UnknownEngineError
        If the name is not in the catalogue, or the value is not one the fault can have.
    """
    name, given, raw = text.partition("=")
    if name not in FAULTS:
        raise UnknownEngineError(f"no fault named {name!r}{_hint(name)}")
    fault = FAULTS[name]
    if given:
        if fault.span is None:
            raise UnknownEngineError(f"fault {name} takes no parameter, got {raw!r}")
        try:
            value = float(raw)
        except ValueError:
            value = float("nan")
        if not fault.span.holds(value):
            raise UnknownEngineError(f"fault {name} takes {fault.span}, not {raw!r}")
        fault = fault.sized(value)
    return fault, fault.rule()


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name, FAULTS, n=3, cutoff=0.5)
    close += [f for f in FAULTS if name and name in f and f not in close][: 3 - len(close)]
    suggestion = f"; did you mean {' or '.join(close)}?" if close else ";"
    return f"{suggestion} 'conformance faults' lists all {len(FAULTS)}"


def rule_faults() -> dict[str, Rule]:
    """The faults that are an acceptance rule, at their default parameters, by name."""
    rules = {name: fault.rule() for name, fault in FAULTS.items()}
    return {name: rule for name, rule in rules.items() if rule is not None}
