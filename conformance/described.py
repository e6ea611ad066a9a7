"""What engines said of themselves when a run was planned: kept in ``run.json``.

The plan of a run follows from what was asked for and from this. Whoever has both can plan it again
without the engine, and see that no case, no test and no request was left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from conformance import introduction
from conformance.contract import Capabilities, EngineCard
from conformance.errors import EvidenceError
from conformance.plan import Case, RunPlan
from conformance.served.plan import ServedCase
from conformance.served.server import Met
from conformance.served.target import LONGEST_PROMPT, MOST_PROMPTS
from conformance.verifier import VerifierCapabilities
from conformance.verifier import wire as verifier_wire
from conformance.verifier.plan import VerifierCase

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Described:
    """Who is tested, and what it claims.

    Parameters
    ----------
    card : EngineCard
        Who it is.
    capabilities : Capabilities or VerifierCapabilities
        What it claims.
    injects : bool
        Whether a verifier can be given its random numbers.
    error : str or None
        Why it could not be asked; what it claims is then unknown.
    met : Met or None
        What a server said of itself.
    prompts : tuple of str
        What a server with a model of its own is asked.
    environment : tuple of (str, str)
        What it runs on.
    """

    card: EngineCard
    capabilities: Capabilities | VerifierCapabilities
    injects: bool = False
    error: str | None = None
    met: Met | None = None
    prompts: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


_MET = TypeAdapter(Met | None)


def of_plan(plan: RunPlan) -> dict[str, Json]:
    """What every engine of a plan said, by name, as plain data."""
    said = {case.engine: _of_case(case) for case in reversed(plan.cases)}
    plain: dict[str, Json] = json.loads(json.dumps(said))
    return plain


def _of_case(case: Case) -> Json:
    if isinstance(case, VerifierCase):
        data = verifier_wire.describe(case.card, case.claims, case.injects)
    else:
        data = introduction.describe(case.card, case.capabilities)
    data["error"] = case.error
    data["environment"] = dict(case.environment)
    if isinstance(case, ServedCase):
        data["met"] = None if case.met is None else asdict(case.met)
        data["prompts"] = list(case.aim.prompts) if case.aim else []
    return data


def read(name: str, data: Mapping[str, Any]) -> Described:
    """The inverse, for one engine; nothing in the file is taken on trust.

    Raises
    ------
    EvidenceError
        If it is not what `of_plan` writes.
    """
    try:
        error = data["error"]
        if error is not None and not isinstance(error, str):
            raise TypeError(f"error must be a string, not {error!r:.100}")
        ran_on = introduction.read_environment(dict(data))
        if "verifier" in data:
            card, claims, injects = verifier_wire.read_description(dict(data))
            return Described(card, claims, injects, error, environment=ran_on)
        card, capabilities = introduction.read_description(dict(data))
        if "met" not in data:
            return Described(card, capabilities, error=error, environment=ran_on)
        met = _MET.validate_python(data["met"])
        return Described(card, capabilities, error=error, met=met, prompts=_texts(data["prompts"]))
    except introduction.UNREADABLE as exc:
        raise EvidenceError(f"what run.json says of {name} cannot be read: {exc}") from exc


def _texts(data: object) -> tuple[str, ...]:
    if not isinstance(data, list) or not all(isinstance(t, str) for t in data):
        raise TypeError("prompts must be a list of strings")
    if len(data) > MOST_PROMPTS or max(map(len, data), default=0) > LONGEST_PROMPT:
        raise ValueError("there are too many prompts, or one is too long")
    return tuple(data)
