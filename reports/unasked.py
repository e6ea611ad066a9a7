"""Questions that a run did not ask, or got no answer to, each with its reason.

Untested must never look like passed. So the list is made from what was planned and what came of
it, and not from what anybody remembered to write down.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from conformance.decoding import LATER_FILTERS, Decoding
from conformance.forms import FORMS
from conformance.plan import Case, RunPlan
from conformance.processors import penalised
from conformance.questions import NEVER_ASKED, Tier
from conformance.reports.details import Status, UnaskedModel
from conformance.reports.model import CaseModel, FindingModel
from conformance.served.words import MODEL
from conformance.verdict import Verdict
from conformance.verifier.plan import VerifierCase

Found = tuple[Status, str, str]


# Kinds of decoding that an engine can be asked for; those a run asked for are its own choice.
_KINDS: tuple[tuple[str, Callable[[Decoding], bool]], ...] = (
    ("greedy decoding", lambda d: d.greedy),
    ("temperature 1 without filters", lambda d: d == Decoding()),
    ("a temperature other than 1", lambda d: not d.greedy and d.temperature != 1.0),
    ("top-k", lambda d: d.top_k is not None),
    ("top-p", lambda d: d.top_p is not None),
    ("min-p", lambda d: d.min_p is not None),
    ("typical, epsilon and eta cut-offs", lambda d: bool({*LATER_FILTERS} & {*d.filters})),
    ("stop strings", lambda d: bool(d.stop_strings)),
    ("the roads to greedy decoding", lambda d: bool(d.road)),
    ("a grammar", lambda d: bool(d.grammar)),
    ("returned log-probabilities", lambda d: d.logprobs),
    ("stop tokens", lambda d: bool(d.stop)),
    ("a least length", lambda d: d.min_new_tokens > 0),
    ("the repetition penalty", lambda d: d.repetition_penalty is not None),
    ("presence and frequency penalties", penalised),
    ("logit bias", lambda d: bool(d.logit_bias)),
    ("banned or allowed tokens", lambda d: bool(d.banned or d.allowed)),
)
NOT_ASKED_FOR = "no such decoding was asked for (options --suite and -d)"
NO_SUITE = "no such suite was asked for (option --suite)"
_NUMBERED = re.compile(r"output index (\d+)")
_STARTS: tuple[tuple[str, Status], ...] = (
    ("not asked, not claimed: ", "not claimed"),
    ("refused by the verifier: ", "refused"),
    ("not asked: ", "not claimed"),
    ("not judged: ", "not reached"),
)


def unasked(plan: RunPlan, cases: Sequence[CaseModel]) -> list[UnaskedModel]:
    """List what was not asked or not answered.

    Parameters
    ----------
    plan : RunPlan
        What was fixed before sampling.
    cases : sequence of CaseModel
        What came of it.

    Returns
    -------
    list of UnaskedModel
        Equal questions with equal reasons are one entry, with the cases they concern.
    """
    planned = {case.id: case for case in plan.cases}
    merged: dict[Found, list[str]] = {}
    for case in cases:
        for found in _of_case(planned[case.id], case):
            ids = merged.setdefault(found, [])
            if case.id not in ids:
                ids.append(case.id)
    shown = [planned[case.id] for case in cases]
    whole: list[Found] = [*_not_in_this_run(shown), *_never(shown)]
    merged |= {found: [] for found in whole}
    return [
        UnaskedModel(status=status, question=question, why=why, cases=ids)
        for (status, question, why), ids in merged.items()
    ]


def _of_case(planned: Case, case: CaseModel) -> Iterator[Found]:
    asked = f"decoding {case.decoding}"
    if planned.refusal is not None:
        yield "not claimed", asked, f"the engine does not claim {planned.refusal}"
        return
    if case.verdict is Verdict.NOT_SUPPORTED:
        yield "refused", asked, case.why
        return
    if case.verdict is Verdict.ERROR:
        yield "not reached", f"every test of {case.decoding}", case.why
        return
    yield from _unclaimed(planned)
    yield from _unjudged(case.findings)


def _unclaimed(planned: Case) -> Iterator[Found]:
    """Tests that need a claim which is not made."""
    if isinstance(planned, VerifierCase) or planned.probe == MODEL:
        return
    claims = planned.capabilities
    if not claims.control:
        yield (
            "not claimed",
            "comparison with the same engine, not speculating",
            "the engine says that it cannot switch speculation off",
        )
    if planned.decoding.greedy:
        return
    if claims.draft == "none":
        yield (
            "not claimed",
            "tests that look towards the draft",
            "the engine does not say where its proposals come from",
        )
    elif claims.verification != "token":
        yield (
            "not claimed",
            "first, later and bonus tokens of a block, each by itself",
            "the engine does not claim to verify proposals one after the other",
        )
    if claims.max_batch == 1:
        yield "not claimed", "several requests at once", "the engine takes one request at a time"


def _unjudged(findings: Iterable[FindingModel]) -> Iterator[Found]:
    """Planned tests that had nothing to judge, by test and reason."""
    scopes: dict[tuple[Status, str, str], dict[str, None]] = {}
    stopped = False
    for finding in findings:
        stopped |= "sampling was stopped early" in finding.message
        if finding.n > 0 or finding.rejected:
            continue
        for start, status in _STARTS:
            if finding.message.startswith(start):
                key = status, finding.test, finding.message.removeprefix(start)
                scopes.setdefault(key, {})[finding.scope] = None
                break
    alike: dict[tuple[Status, str, str], list[str]] = {}  # tests of the same places
    for (status, test, why), places in scopes.items():
        alike.setdefault((status, _together(list(places)), why), []).append(test)
    for (status, where, why), tests in alike.items():
        yield status, f"{_listed(tests)}: {where}", why
    if stopped:
        yield (
            "not reached",
            "every test that needs the planned number of samples",
            "sampling was stopped as soon as a departure was certain",
        )


def _together(scopes: list[str]) -> str:
    """Join scopes; output indices as one."""
    numbers = [m[1] for scope in scopes if (m := _NUMBERED.fullmatch(scope))]
    rest = [scope for scope in scopes if not _NUMBERED.fullmatch(scope)]
    if numbers:
        rest.insert(0, f"output {'index' if len(numbers) == 1 else 'indices'} {_listed(numbers)}")
    return ", ".join(rest)


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _not_in_this_run(cases: Sequence[Case]) -> Iterator[Found]:
    """Decodings, and forms of requests, that nobody asked for, engine by engine."""
    mine: dict[str, list[Case]] = {}
    for case in cases:
        if not isinstance(case, VerifierCase):
            mine.setdefault(case.engine, []).append(case)
    missing: dict[tuple[str, str], list[str]] = {}
    for engine, asked in mine.items():
        for kind, holds in _KINDS:
            if not any(holds(c.decoding) for c in asked):
                missing.setdefault((kind, NOT_ASKED_FOR), []).append(engine)
        for form in FORMS.values() if all(c.probe != MODEL for c in asked) else ():
            if form.about and not any(c.form == form.name for c in asked):
                missing.setdefault((form.about, NO_SUITE), []).append(engine)
    for (kind, why), engines in missing.items():
        whom = "" if len(engines) == len(mine) else f" of {', '.join(engines)}"
        yield "not in this run", f"{kind}{whom}", why


def _never(cases: Sequence[Case]) -> Iterator[Found]:
    tiers: set[Tier] = {
        "verifier" if isinstance(c, VerifierCase) else "served" if c.probe == MODEL else "engine"
        for c in cases
    }
    for question in NEVER_ASKED:
        if tiers & set(question.tiers):
            yield "not asked by this suite", question.what, question.why
