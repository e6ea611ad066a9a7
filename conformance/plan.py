"""The plan of a run: everything that is fixed before sampling.

Cases, the tests that will be judged in each, the share of alpha every test gets, and how many
requests that takes. A profile states the departure that a pass must rule out and the probability
of catching it; the number of requests follows from the probe's own law.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from conformance import far
from conformance.contract import Capabilities, EngineCard, Precision
from conformance.decoding import Decoding
from conformance.errors import PlanError
from conformance.forms import FAR, FORMS, MIXED, PLAIN, TOGETHER
from conformance.oracle import Oracle
from conformance.planned import PlannedTest, planned_tests
from conformance.probes import Probe, load_probe, open_probe
from conformance.recipes import RECIPES
from conformance.statistics import certificate
from conformance.statistics.tables import cells_expected
from conformance.workload import (
    Workload,
    greedy_workload,
    long_workload,
    requests_for,
    sampled_prompts,
    sampled_workload,
    share_before_end,
)

DEFAULT_ALPHA = 1e-6
FAR_REQUESTS = 8  # long greedy outputs at least, so that a fault at some prompts is not missed
ROUNDING, AGAIN = "rounding", "again"
AGAIN_REQUESTS = 64
ROUNDING_REQUESTS = 64
# The law, and with it the degrees of freedom, is known at the prompts only up to a few tokens set
# aside; a plan asks for this much more than the formula so as not to end a hair short.
MARGIN = 1.03


@dataclass(frozen=True, slots=True)
class Profile:
    """How much a pass must rule out.

    Parameters
    ----------
    name : str
        ``"smoke"``, ``"standard"`` or ``"audit"``.
    delta : float
        Total variation at the first output token that must be caught ...
    power : float
        ... with at least this probability.
    greedy_rate : float
        Share of greedy tokens that, if changed, must be caught with that probability.
    """

    name: str
    delta: float
    power: float
    greedy_rate: float


PROFILES = {
    p.name: p
    for p in (
        Profile("smoke", delta=0.25, power=0.99, greedy_rate=0.01),
        Profile("standard", delta=0.12, power=0.99, greedy_rate=0.005),
        Profile("audit", delta=0.03, power=0.999, greedy_rate=0.001),
    )
}


@lru_cache(maxsize=32)
def _probe(name: str, precision: Precision, folder: Path | None) -> Probe:
    """One probe a process: the laws are those of the weights read before any engine saw them."""
    probe = load_probe(name) if folder is None else open_probe(name, folder / name)
    return replace(probe, precision=precision)


@dataclass(frozen=True)
class Case:
    """Engine x probe x decoding, with its workload and the tests it will be judged by.

    `refusal` names what the engine does not claim; such a case is listed and not sampled.
    `error` is set where the engine could not even be asked. `noise` is the rounding of a logit in
    nats where the engine computes in low precision and it was measured; None where it is that of
    float32, which the probe knows. `rounding` is the workload it is measured on: greedy requests to
    the engine without speculation, beside those of a sampled case. `probes` is a folder to take
    the probe from, in the place of the cache. `environment` is what the engine runs on: names and
    versions, as far as it says. `form` is what its requests have in common, a key of `FORMS`.
    """

    engine: str
    probe: str
    decoding: Decoding
    card: EngineCard
    capabilities: Capabilities
    workload: Workload | None = None
    tests: tuple[PlannedTest, ...] = ()
    refusal: str | None = None
    error: str | None = None
    noise: float | None = None
    rounding: Workload | None = None
    probes: Path | None = None
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    form: str = PLAIN

    @property
    def id(self) -> str:
        """Unique in a run."""
        return f"{self.engine} / {self.probe} / {self.configuration}"

    @property
    def configuration(self) -> str:
        """Decoding, and form where it is not the usual one."""
        return f"{self.decoding}" + ("" if self.form == PLAIN else f" / {self.form}")

    @property
    def slug(self) -> str:
        """The id as a file name: readable, short enough, and still unique."""
        digest = hashlib.sha256(self.id.encode()).hexdigest()[:8]
        return re.sub(r"[^A-Za-z0-9.=+-]+", "_", self.id)[-80:] + "-" + digest

    @property
    def has_probe(self) -> bool:
        """Whether a pair of our own models is sampled: not the laws, or the model, of others."""
        return self.probe in RECIPES

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that will be judged."""
        return ("speculative", "control") if self.capabilities.control else ("speculative",)

    @property
    def sampled_arms(self) -> tuple[str, ...]:
        """The arms that will be sampled: those judged, what rounding is measured on, and what is
        asked again.
        """
        beside = ((ROUNDING, self.rounding), (AGAIN, self.again))
        judged = (TOGETHER,) if self.form == MIXED else self.arms
        return (*judged, *(name for name, work in beside if work is not None))

    @property
    def again(self) -> Workload | None:
        """The first requests, where the engine claims to answer them alike every time."""
        if self.workload is None or self.decoding.greedy or not self.capabilities.reproducible:
            return None
        requests = min(AGAIN_REQUESTS, self.workload.requests)
        return replace(self.workload.whole(requests), paired=self.form == MIXED)

    def asked(self, arm: str) -> Case:
        """The case as one of its arms is asked it."""
        if arm == AGAIN:
            return replace(self, workload=self.again)
        if arm == TOGETHER and self.workload is not None:
            both = replace(self.workload, requests=2 * self.workload.requests, paired=True)
            return replace(self, workload=both)
        if arm != ROUNDING:
            return self
        return replace(self, decoding=Decoding(greedy=True), workload=self.rounding)

    @cached_property
    def oracle(self) -> Oracle:
        """The laws of this case."""
        return Oracle(
            _probe(self.probe, self.capabilities.precision, self.probes),
            self.decoding,
            self.capabilities.dialect,
            self.capabilities.draft,
            self.noise,
        )


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything fixed before sampling.

    Parameters
    ----------
    cases : tuple of Case
        In the order in which they will be sampled.
    profile : Profile
        What a pass must rule out.
    alpha : float
        Probability that an exact engine is called NOT EXACT anywhere in the run, at most.
    seed : int
        Of every random number in the run.
    stage : int
        1 for a run; one more each time samples are added to what was inconclusive. Stage s spends
        alpha / 2**s, so that looking again, however often, keeps the whole within alpha.
    """

    cases: tuple[Case, ...]
    profile: Profile
    alpha: float
    seed: int
    stage: int = 1

    @property
    def test_count(self) -> int:
        """Tests among which alpha is split."""
        return sum(len(c.tests) for c in self.cases)

    @property
    def level(self) -> float:
        """Every test's share of alpha."""
        return float(self.alpha / 2.0**self.stage / max(self.test_count, 1))


def probe_for(capabilities: Capabilities, probe: str | None = None) -> str:
    """The probe a method is tested on: the one asked for, or the one its draft needs."""
    if probe is not None:
        return probe
    return "other-vocabulary" if capabilities.draft == "other-vocabulary" else "mid"


def make_plan(
    cases: Sequence[Case],
    profile: Profile,
    alpha: float = DEFAULT_ALPHA,
    seed: int = 0,
    stage: int = 1,
    requests: Mapping[str, int] | None = None,
) -> RunPlan:
    """Split alpha, choose prompts and work out how many requests every case needs.

    Parameters
    ----------
    cases : sequence of Case
        What is asked.
    profile : Profile
        What a pass must rule out.
    alpha, seed, stage
        As in `RunPlan`.
    requests : mapping of str to int, optional
        By case id: requests an arm that were found to be needed, where they are more.

    Raises
    ------
    PlanError
        If there is no case, or alpha is not in (0, 1).
    """
    if not cases:
        raise PlanError("nothing to do: no engine, or no decoding, was given")
    if not 0 < alpha < 1:
        raise PlanError(f"alpha must be in (0, 1), not {alpha:g}")
    if len({c.id for c in cases}) < len(cases):
        raise PlanError("the same engine, probe and decoding was asked for twice")
    planned = [replace(c, tests=() if c.refusal or c.error else planned_tests(c)) for c in cases]
    level = RunPlan(tuple(planned), profile, alpha, seed, stage).level
    sized = tuple(
        c
        if c.refusal or c.error
        else replace(c, workload=_workload(c, profile, level, seed, (requests or {}).get(c.id, 0)))
        for c in planned
    )
    return RunPlan(tuple(_with_rounding(c, seed) for c in sized), profile, alpha, seed, stage)


def _with_rounding(case: Case, seed: int) -> Case:
    claims = case.capabilities
    if case.workload is None or case.decoding.greedy or not claims.low_precision:
        return case
    if not (claims.control and claims.greedy):
        return case  # judging says that nothing can be said
    return replace(case, rounding=greedy_workload(case.oracle, ROUNDING_REQUESTS, seed))


def _workload(case: Case, profile: Profile, level: float, seed: int, at_least: int = 0) -> Workload:
    left = case.capabilities.spare
    if case.decoding.greedy:
        tokens = np.log(1 - profile.power) / np.log1p(-profile.greedy_rate)
        # A law that is near-tied is set aside; a tenth of the tokens is more than ever was in
        # single precision, and a little over half of them in bfloat16; of those of a probe that
        # ties on purpose, a good third.
        recipe = case.oracle.probe.recipe
        spare = (2.5 if case.capabilities.low_precision else 1.1) * (1.7 if recipe.tied else 1.0)
        wanted = int(np.ceil(spare * tokens / recipe.greedy_tokens))
        wanted = max(wanted, FAR_REQUESTS if recipe.far else 1)
        wanted = int(np.ceil(wanted / share_before_end(case.oracle, wanted, seed)))
        return greedy_workload(case.oracle, max(wanted, at_least), seed, case.form, left)
    if case.form in FAR:
        each = FORMS[case.form].tokens
        needed = far.requests_needed(each, level, profile.power, profile.delta, case.form)
        return long_workload(case.oracle, max(needed, at_least), seed, case.form)
    prompts = sampled_prompts(case.oracle, seed, case.form, left)
    laws = case.oracle.target_laws(prompts, np.zeros((len(prompts), 0), np.int64)).probs
    requests = requests_for(_each(laws, profile, level), len(prompts), case.form)
    requests = max(requests, at_least)
    return sampled_workload(case.oracle, prompts, requests, seed, case.form, left)


def _each(laws: np.ndarray, profile: Profile, level: float) -> int:
    """Smallest number of answers to every repeated prompt whose chi-square at the first token
    certifies delta.
    """
    each = 50
    while True:
        df, judged = first_table(laws, each)
        needed = np.inf
        if df:
            needed = certificate.chi_square_n(level, profile.power, df, profile.delta) * MARGIN
        if judged >= needed:
            return each
        # more answers give more cells, which need more answers: go up in small steps
        each = int(np.ceil(each * 1.02))


def first_table(laws: np.ndarray, each: int) -> tuple[int, int]:
    """Degrees of freedom, and answers judged, of the table at the first output index when every
    prompt has `each` answers; a prompt whose law gives no cell is not judged.
    """
    cells = [cells_expected(law, each) for law in laws]
    return sum(cells), each * sum(c > 0 for c in cells)
