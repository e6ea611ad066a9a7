"""Where each fault of the catalogue is asked: the suite in which it shows, and what that asks.

Plans are those of ``conformance run reference --suite NAME``. Most faults show in a decoding. Some
need a probe of their own, where logits tie or outputs go far, and some need requests that are not
alike, which are asked in a form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import in_process

from conformance.decoding import Decoding
from conformance.diagnosis.candidates import applicable
from conformance.faults import FAULTS, Fault
from conformance.faults.siblings import SIBLINGS
from conformance.faults.windows import WINDOWS
from conformance.forms import (
    FORMS,
    LENGTHS,
    LONG,
    MIXED,
    PLAIN,
    RAGGED,
    SEVERAL,
    SLIDING,
    TWIN,
)
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.suite import IN_FORMS, LAW, PROBES, SUITES

PROBE_OF = {"tie": "tied", "far": "horizon"}  # by what a fault needs
# of the faults of requests that are not alike; all the others show in calls of many sizes
FORM_OF = {
    "one-token-prompt": LENGTHS,
    "prompt-cut-to-fit": LENGTHS,
    "plain-beside-speculating": MIXED,
    "kind-of-the-first": MIXED,
    "streams-begin-alike": TWIN,
    "page-ends-lost": LONG,
    "window-slides": LONG,
    **dict.fromkeys((fault.name for fault in SIBLINGS), SEVERAL),
    **dict.fromkeys((fault.name for fault in WINDOWS), SLIDING),
}
# Its tokens are exact, its rounds are not told right: then no pass, and no departure either.
INCONCLUSIVE = ("disabled",)
# Too small in a whole engine at the standard profile, in every size that leaves text readable; they
# are the verifier tier's.
VERIFIER_ONLY = ("low-precision-draw", "coarse-uniforms")


def kind_of(fault: str) -> Fault:
    """The catalogue's entry of ``NAME`` or ``NAME=x``."""
    return FAULTS[fault.partition("=")[0]]


def promised(fault: str, tier: str = "engine") -> bool:
    """Whether a pass rules it out: not where the catalogue says that its own size is too small."""
    kind = kind_of(fault)
    if kind.name in INCONCLUSIVE or (tier == "engine" and kind.name in VERIFIER_ONLY):
        return False
    return "=" in fault or kind.visible is None


def catalogue() -> list[str]:
    """Every fault, and beside those too small to show the size at which they do."""
    large = [f"{f.name}={f.visible:g}" for f in FAULTS.values() if f.visible is not None]
    return [*FAULTS, *large]


def shows(kind: Fault, case: Case) -> bool:
    """Whether the fault changes anything in a case."""
    if kind.needs == "form":
        return case.form == FORM_OF.get(kind.name, RAGGED)
    if kind.needs in PROBE_OF:
        return case.probe == PROBE_OF[kind.needs]
    if kind.needs == "logprobs":
        return case.decoding.logprobs
    return case.form == PLAIN and applicable(kind, case.decoding)


@cache
def suite_of(fault: str) -> str:
    """The suite that asks most in which a fault shows; ``law`` if it shows there, or nowhere."""
    kind = kind_of(fault)
    if kind.needs == "greedy":  # the suite that is about it, though ``law`` asks it too
        return "greedy"
    often = {suite: sum(shows(kind, case) for case in asked(suite)) for suite in SUITES}
    return LAW if often[LAW] else max(often, key=lambda suite: often[suite])


@cache
def asked(suite: str, probe: str = "mid") -> tuple[Case, ...]:
    """What a suite asks the reference engine, not yet planned."""
    found = in_process.cases("worked-example", [Decoding()]) if suite == LAW else []
    found += in_process.cases(probe, SUITES[suite])
    for other, decoding in PROBES.get(suite, ()):
        found += in_process.cases(other, [decoding])
    for form, decoding in IN_FORMS.get(suite, ()):
        found += in_process.cases(FORMS[form].probe or probe, [decoding], form)
    return tuple(found)


@cache
def plan_of(profile: str, suite: str = LAW, share: float = 1.0, probe: str = "mid") -> RunPlan:
    """What ``conformance run reference --suite NAME`` plans, with a share of its requests."""
    plan = make_plan(asked(suite, probe), PROFILES[profile], seed=0)
    return replace(plan, cases=tuple(reduced(case, share) for case in plan.cases))


def reduced(case: Case, share: float) -> Case:
    """A share of the requests of a case; all tests and their level stay."""
    assert case.workload is not None
    requests = math.ceil(share * case.workload.requests)
    return replace(case, workload=replace(case.workload, requests=requests))


def ordered(plan: RunPlan, fault: str) -> Sequence[Case]:
    """Where it shows first, and plain sampling before others: it kills most, and then the others
    need not be asked.
    """
    kind = kind_of(fault)
    return sorted(
        plan.cases,
        key=lambda c: (
            not shows(kind, c), c.probe != "mid", c.decoding != Decoding(), c.decoding.greedy,
        ),
    )  # fmt: skip
