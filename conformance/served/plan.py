"""What a served case asks, fixed before sampling: prompts, tests, and how many requests.

How many are needed follows from a bound that holds for any model, so that no pilot has to be paid
for. The laws of the opening (the first two tokens, or the first characters) are compared in at most
`OPENINGS` + 1 groups a prompt, so the test has at most `OPENINGS` degrees of freedom a prompt.
With n answers of the speculative arm and twice as many of the control arm, its noncentrality is at
least (2 n / 3) 4 TV^2, by Cauchy-Schwarz; TV is the mean over prompts, weighted by their answers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from conformance.contract import Capabilities, EngineCard
from conformance.decoding import Decoding
from conformance.errors import ConformanceError, PlanError, UnknownEngineError
from conformance.plan import PROFILES, Case, Profile, RunPlan
from conformance.planned import PlannedTest
from conformance.served.server import ARMS, Met, Server, Unit, refusal, width
from conformance.served.target import Target, target
from conformance.served.words import BY_LAW, MODEL, RULED_OUT
from conformance.statistics import certificate
from conformance.verifier import plan as others
from conformance.workload import Workload

# The first token alone would not do: most engines draw it with the prompt, before they speculate.
OPENING: dict[Unit, int] = {"token": 2, "character": 8}
OPENINGS = 16
EVERYWHERE = "whole answers"
FREQUENT = "whole answers, weighted by frequency"
PREVIOUS = "the last request with the same prompt"
GATE = 1e-3  # chance that a control arm which agrees with itself is said not to; costs no alpha
GATE_TESTS = 5
# Tests against the law that the control server tells, and the chance that a control arm which has
# this law is said not to; what is lost then is these tests.
BY = ", by log-probabilities"
TOLD = "log-probabilities"  # the finding that says what was told
LAW_GATE = 1e-2
LAW_GATE_TESTS = 5
WALKS = 4  # whole answers that each prompt is asked for, to have the law told
REPEATS = 3  # answers wanted at a prefix, on the way to a longer one or asked for it alone
MOST_NODES = 512  # prefixes
# Exact scores lose a little power to their randomisation, and prompts at which the model has no
# choice tell nothing.
MARGIN = 1.15
FEWEST_EACH = 40  # answers of an arm to a prompt
GREEDY_TOKENS = 32


@dataclass(frozen=True)
class ServedCase(Case):
    """A server and its control arm under one decoding.

    Parameters
    ----------
    aim : Target or None
        Where they are; None if what was typed could not be used.
    met : Met or None
        As they answered; None if they did not.
    texts : tuple of str
        The prompts of this case.
    """

    aim: Target | None = None
    met: Met | None = None
    texts: tuple[str, ...] = field(default=(), repr=False)

    @property
    def arms(self) -> tuple[str, ...]:
        """Each is asked as often as the others."""
        return ARMS

    @property
    def unit(self) -> Unit:
        """What a symbol is."""
        return self.met.unit if self.met else "token"

    @property
    def by_law(self) -> bool:
        """Whether the control server is asked for its law."""
        told = self.met is not None and self.met.logprobs > 0 and not self.decoding.greedy
        # penalties and biases come before what is told of the plain softmax
        processed = self.aim is not None and self.aim.processed
        return told and (processed or not self.decoding.processors)

    @property
    def width(self) -> int:
        """Symbols looked at in an answer."""
        return width(self.unit, self.workload.new_tokens) if self.workload else 0


class Answers(Workload):
    """Requests in three arms."""

    def __str__(self) -> str:
        return (
            f"{self.requests:,} requests of {self.new_tokens} tokens in each of {len(ARMS)} arms, "
            f"over {len(self.prompts)} prompts"
        )


Known = tuple[Met | None, str | None, tuple[str, ...]]  # met, error, prompts


def served_cases(
    name: str, decodings: Sequence[Decoding], known: Known | None = None
) -> list[ServedCase]:
    """The cases of a server, not yet planned; it is asked who it is, if that is not `known`.

    Raises
    ------
    UnknownEngineError, PlanError
        If what was typed means nothing.
    """
    card = EngineCard("served", method="a server against itself without speculation")
    if known is None:
        aim = target(name)
        met, error = _meet(aim)
    else:
        met, error, prompts = known
        aim = target(name, prompts)
    if met is not None:
        card = replace(card, version=met.version)
    claims = Capabilities(draft="none", processes=1)
    return [
        ServedCase(
            name,
            MODEL,
            d,
            card,
            claims,
            refusal=refusal(met, d) if met else None,
            error=error,
            aim=aim,
            met=met,
        )
        for d in decodings
    ]


def _meet(aim: Target) -> tuple[Met | None, str | None]:
    try:
        server = Server(aim)
        server.close()
    except (UnknownEngineError, PlanError):
        raise
    except Exception as exc:  # whatever a server can cause is its cases' ERROR
        error = str(exc) if isinstance(exc, ConformanceError) else f"{type(exc).__name__}: {exc}"
        return None, error
    return server.met, None


def opening(unit: Unit) -> str:
    """What the certificate is about."""
    return f"first {OPENING[unit]} {unit}s"


def bands(unit: Unit, symbols: int) -> Iterator[tuple[str, range]]:
    """Output indices tested together, doubling."""
    begin = 0
    while begin < symbols:
        end = min(max(2 * begin, 1), symbols)
        last = f" to {end - 1}" if end - 1 > begin else ""
        yield f"{unit} {begin}{last}", range(begin, end)
        begin = end


def served_tests(case: ServedCase, tokens: int) -> tuple[PlannedTest, ...]:
    """The tests a case spends alpha on; greedy identity is one."""
    if case.decoding.greedy:
        return (PlannedTest("greedy identity", EVERYWHERE, "both"),)
    scopes = [opening(case.unit), *(s for s, _ in bands(case.unit, width(case.unit, tokens)))]
    tests = [PlannedTest("two-sample", s, "both") for s in (*scopes, EVERYWHERE, FREQUENT)]
    tests += [PlannedTest(t, EVERYWHERE, "both") for t in ("sharpening", "e-process")]
    tests.append(PlannedTest("coincidences", PREVIOUS, "speculative"))
    return (*tests, *(_law_tests(case) if case.by_law else ()))


def _law_tests(case: ServedCase) -> Iterator[PlannedTest]:
    for scope in (opening(case.unit), EVERYWHERE, FREQUENT):
        yield PlannedTest("chi-square", f"{scope}{BY}", "speculative")
    for test in ("sharpening", "e-process"):
        yield PlannedTest(test, f"{EVERYWHERE}{BY}", "speculative")
    if case.decoding.truncates:
        yield PlannedTest("support", f"tokens outside the law{BY}", "both")


def plan_all(
    cases: Sequence[Case],
    profile: str,
    alpha: float,
    seed: int,
    stage: int = 1,
    requests: Mapping[str, int] | None = None,
) -> RunPlan:
    """Plan servers beside engines and verifiers: one alpha over the tests of all.

    Raises
    ------
    PlanError
        As `conformance.plan.make_plan`.
    """
    mine = [
        c if c.error or c.refusal else replace(c, tests=served_tests(c, _tokens(c)))
        for c in cases
        if isinstance(c, ServedCase)
    ]
    rest = [c for c in cases if not isinstance(c, ServedCase)]
    if not mine:
        return others.plan_run(cases, profile, alpha, seed, stage, requests)
    if not 0 < alpha < 1:
        raise PlanError(f"alpha must be in (0, 1), not {alpha:g}")
    if len({c.id for c in cases}) < len(cases):
        raise PlanError("the same server and decoding was asked for twice")
    planned: dict[str, Case] = {}
    if rest:
        count = others.plan_run(rest, profile, alpha, seed, stage, requests).test_count
        share = count / max(count + sum(len(c.tests) for c in mine), 1)
        part = others.plan_run(rest, profile, alpha * share, seed, stage, requests)
        planned = {c.id: c for c in part.cases}
    stated = PROFILES[profile]
    level = RunPlan((*planned.values(), *mine), stated, alpha, seed, stage).level
    for c in mine:
        done = c.error or c.refusal
        planned[c.id] = c if done else sized(c, stated, level, (requests or {}).get(c.id, 0))
    return RunPlan(tuple(planned[c.id] for c in cases), stated, alpha, seed, stage)


def _tokens(case: ServedCase) -> int:
    assert case.aim is not None
    return GREEDY_TOKENS if case.decoding.greedy else case.aim.tokens


def sized(case: ServedCase, profile: Profile, level: float, at_least: int = 0) -> ServedCase:
    """The case with its prompts and its number of requests."""
    assert case.aim is not None
    texts = case.aim.prompts
    if case.decoding.greedy:
        tokens = math.log(1 - profile.power) / math.log1p(-profile.greedy_rate)
        wanted = math.ceil(1.1 * tokens / GREEDY_TOKENS)
        texts = _joined(texts, max(wanted, at_least))
        n = len(texts)
    else:
        n = max(requests_needed(level, profile, len(texts)), at_least)
        n = math.ceil(n / len(texts)) * len(texts)
    prompts = tuple(tuple(map(ord, t)) for t in texts)
    return replace(case, texts=texts, workload=Answers(prompts, n, _tokens(case)))


def requests_needed(level: float, profile: Profile, prompts: int) -> int:
    """Requests an arm with which the opening certifies the profile's delta for any model."""
    n = certificate.chi_square_n(level, profile.power, OPENINGS * prompts, profile.delta)
    return max(math.ceil(MARGIN * 1.5 * n), FEWEST_EACH * prompts)


def _joined(texts: tuple[str, ...], wanted: int) -> tuple[str, ...]:
    """As many distinct prompts, made of those given one after the other."""
    longer = (
        "\n".join(words) for k in itertools.count(2) for words in itertools.product(texts, repeat=k)
    )
    found = dict.fromkeys(texts)
    while len(found) < wanted:
        found[next(longer)] = None
    return tuple(found)


def forecast_lines(case: ServedCase, plan: RunPlan) -> Iterator[str]:
    """What a pass will rule out, and what it costs."""
    assert case.workload is not None
    n, power = case.workload.requests, plan.profile.power
    yield f"{len(ARMS) * n:,} requests in all"
    if case.decoding.greedy:
        tokens = n * case.workload.new_tokens
        rate = certificate.zero_events_rate(power, tokens)
        yield f"{RULED_OUT}{rate:.2%} of greedy tokens changed"
        return
    df = OPENINGS * len(case.texts)
    tv = certificate.chi_square_tv(plan.level, power, df, int(np.floor(2 * n / 3)))
    yield f"{RULED_OUT}{opening(case.unit)} off by TV {tv:.3f}, less where there are few choices"
    if case.by_law:
        tv = certificate.chi_square_tv(plan.level, power, df, n)
        short = WALKS * len(case.texts) + REPEATS * MOST_NODES
        yield f"{BY_LAW}: off by TV {tv:.3f}, where {case.met and case.met.logprobs} tokens tell it"
        yield f"up to {short:,} requests more, mostly of one token, for the control server's law"
    elif case.met and case.met.no_law:
        yield f"its log-probabilities are not used: {case.met.no_law}"
