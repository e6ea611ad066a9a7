"""What a verifier's case asks, fixed before sampling: laws, blocks of each, tests, certificate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from conformance.contract import Capabilities, EngineCard
from conformance.decoding import Decoding
from conformance.law import Floats
from conformance.plan import PROFILES, Case, Profile, RunPlan, make_plan
from conformance.planned import PlannedTest, planned_tests
from conformance.reference import Ints
from conformance.statistics import certificate
from conformance.statistics.pit import draft_key
from conformance.statistics.tables import cells_expected
from conformance.verifier import draws
from conformance.verifier.contract import VerifierCapabilities
from conformance.verifier.grid import GRID, LARGE, Law, Spec, make_law, refused
from conformance.workload import Workload

# Much smaller than an engine's: a block costs microseconds, and its law is known exactly.
VERIFIER_PROFILES = {
    p.name: p
    for p in (
        Profile("smoke", delta=0.05, power=0.99, greedy_rate=0.01),
        Profile("standard", delta=0.01, power=0.999, greedy_rate=0.001),
        Profile("audit", delta=0.002, power=0.999, greedy_rate=0.0001),
    )
}
GRID_NAME = "grid"
ALONE = 5  # positions tested one by one; those after them together
GROUPS = 5  # cells a position has in the tests over the whole grid
FEWEST = 200  # blocks a law is asked at least
MOST_OF_LARGE = 5000  # blocks of a large vocabulary, whatever the profile
GRID_TESTS = (
    ("chi-square", "first position, whole grid"),
    ("KL", "first position, whole grid"),
    ("chi-square", "all positions, whole grid"),
    ("KL", "all positions, whole grid"),
    ("PIT by p", "whole grid"),
    ("PIT by q/p", "whole grid"),
    ("draft leak", "whole grid"),
    ("independence", "rows of a call"),
    ("independence", "consecutive calls"),
)
FIRST = GRID_TESTS[0]


class AsGiven(Decoding):
    """The decoding of a verifier: the laws are given, and nothing is done to them."""

    def __str__(self) -> str:
        return "laws as given"


@dataclass(frozen=True, slots=True)
class Blocks(Workload):
    """How many blocks of each law are verified.

    Parameters
    ----------
    laws : tuple of (str, int)
        Law and number of blocks.
    """

    laws: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.requests:,} blocks over {len(self.laws)} laws"


@dataclass(frozen=True)
class VerifierCase(Case):
    """A verifier, with the blocks it is asked and the tests it will be judged by.

    Parameters
    ----------
    claims : VerifierCapabilities
        What it says it can do.
    injects : bool
        Whether it can be given its random numbers.
    law_seed : int
        Of every law in the grid; the run's seed draws from them.
    """

    claims: VerifierCapabilities = field(default_factory=VerifierCapabilities)
    injects: bool = False
    law_seed: int = 0

    @property
    def blocks(self) -> tuple[tuple[str, int], ...]:
        """Law and number of blocks; nothing where it is not sampled."""
        return self.workload.laws if isinstance(self.workload, Blocks) else ()

    def law(self, name: str) -> Law:
        """A law of this case's grid."""
        return make_law(name, self.law_seed)

    @property
    def not_asked(self) -> tuple[tuple[str, str], ...]:
        """Laws that are left out, and what they need that is not claimed."""
        found = ((s.name, refused(s, self.claims)) for s in GRID)
        return tuple((name, why) for name, why in found if why is not None)


def verifier_case(
    engine: str,
    card: EngineCard,
    claims: VerifierCapabilities,
    injects: bool,
    error: str | None = None,
) -> VerifierCase:
    """The one case of a verifier, not yet planned."""
    return VerifierCase(
        engine,
        GRID_NAME,
        AsGiven(),
        card,
        Capabilities(draft="model", control=False, greedy=False),
        refusal=None if asked(claims) else "any law of the grid",
        error=error,
        claims=claims,
        injects=injects,
    )


def length(spec: Spec, claims: VerifierCapabilities) -> int:
    """Tokens of a completed block."""
    return (min(draws.DEPTH, spec.block) if claims.tree else spec.block) + 1


def position_scopes(spec: Spec, claims: VerifierCapabilities) -> Iterator[tuple[str, range]]:
    """The positions that are tested together, with what they are called."""
    end = length(spec, claims)
    for i in range(min(ALONE, end)):
        yield f"{spec.name}, position {i}", range(i, i + 1)
    if end > ALONE:
        yield f"{spec.name}, positions {ALONE} and later", range(ALONE, end)


def _tests(case: VerifierCase, specs: Sequence[Spec]) -> tuple[PlannedTest, ...]:
    if case.claims.greedy:
        return ()
    tests = list(GRID_TESTS)
    for spec in specs:
        scopes = [scope for scope, _ in position_scopes(spec, case.claims)]
        scopes.append(f"{spec.name}, first two tokens")
        tests += [(test, scope) for scope in scopes for test in ("chi-square", "KL")]
        tests += [(test, spec.name) for test in ("PIT by p", "PIT by q/p", "draft leak")]
    return tuple(PlannedTest(test, scope, "speculative") for test, scope in tests)


def asked(claims: VerifierCapabilities) -> tuple[Spec, ...]:
    """The laws a verifier with these claims is held to."""
    return tuple(s for s in GRID if refused(s, claims) is None)


def plan_run(
    cases: Sequence[Case],
    profile: str,
    alpha: float,
    seed: int,
    stage: int = 1,
    requests: Mapping[str, int] | None = None,
) -> RunPlan:
    """Plan engines and verifiers together: one alpha over the tests of both.

    Raises
    ------
    PlanError
        As `conformance.plan.make_plan`.
    """
    engines = [c for c in cases if not isinstance(c, VerifierCase)]
    verifiers = [
        replace(c, tests=() if c.error or c.refusal else _tests(c, asked(c.claims)))
        for c in cases
        if isinstance(c, VerifierCase)
    ]
    if not verifiers:
        return make_plan(cases, PROFILES[profile], alpha, seed, stage, requests)
    theirs = sum(len(planned_tests(c)) for c in engines if not (c.refusal or c.error))
    mine = sum(len(c.tests) for c in verifiers)
    planned: dict[str, Case] = {}
    if engines:
        part = make_plan(
            engines,
            PROFILES[profile],
            alpha * max(theirs, 1) / max(theirs + mine, 1),
            seed,
            stage,
            requests,
        )
        planned = {c.id: c for c in part.cases}
    # in a run with engines the report states what is true of both: the engines' larger delta
    stated = PROFILES[profile] if engines else VERIFIER_PROFILES[profile]
    level = RunPlan((*planned.values(), *verifiers), stated, alpha, seed, stage).level
    own = VERIFIER_PROFILES[profile]
    planned |= {
        c.id: c if c.error or c.refusal else replace(c, workload=_workload(c, own, level))
        for c in verifiers
    }
    return RunPlan(tuple(planned[c.id] for c in cases), stated, alpha, seed, stage)


def _workload(case: VerifierCase, profile: Profile, level: float) -> Blocks:
    specs = asked(case.claims)
    if case.claims.greedy:
        wanted = int(np.ceil(np.log(1 - profile.power) / np.log1p(-profile.greedy_rate)))
        rows = [max(FEWEST, int(s.share * wanted / 10)) for s in specs]
    else:
        rows = _enough(case, specs, profile, level)
    laws = tuple((s.name, n) for s, n in zip(specs, rows, strict=True))
    longest = max(s.block for s in specs) + 1
    return Blocks(prompts=(), requests=sum(rows), new_tokens=longest, laws=laws)


def _enough(case: VerifierCase, specs: Sequence[Spec], profile: Profile, level: float) -> list[int]:
    """Blocks of each law, so that the first tokens of all of them certify the profile's delta."""
    firsts = [first_groups(case.law(s.name))[1] for s in specs]
    base = 1000.0
    while True:
        rows = [_rows(s, base) for s in specs]
        each = [cells_expected(p, n) for p, n in zip(firsts, rows, strict=True)]
        df = sum(each)
        judged = sum(n for n, cells in zip(rows, each, strict=True) if cells)
        if df and judged >= certificate.chi_square_n(level, profile.power, df, profile.delta):
            return rows
        base *= 1.01


def _rows(spec: Spec, base: float) -> int:
    rows = max(FEWEST, int(base * spec.share))
    return min(rows, MOST_OF_LARGE) if spec.vocab > LARGE else rows


def first_groups(law: Law) -> tuple[Ints, Floats]:
    """`groups` at the first position."""
    return groups(law.target[0, 0], law.draft[0, 0])


def groups(p: Floats, q: Floats) -> tuple[Ints, Floats]:
    """Few cells for one law: tokens ranked by what the draft overrates, cut where a group has a
    fair share of the mass.

    Departures of speculative sampling lean to the draft or away from it, and few cells mean few
    degrees of freedom, whatever the vocabulary.

    Returns
    -------
    group : (V,) int64
        The group of every token.
    prob : (GROUPS,) float64
        The groups' probabilities.
    """
    order = np.argsort(-draft_key(p[None], q[None])[0], kind="stable")
    mass = np.cumsum(p[order])
    # the group a token is in follows from the mass before it, so a likely token may fill several
    ranked = np.minimum((GROUPS * (mass - p[order]) / mass[-1]).astype(np.int64), GROUPS - 1)
    group = np.empty(len(p), dtype=np.int64)
    group[order] = ranked
    return group, np.bincount(group, p, GROUPS) / mass[-1]
