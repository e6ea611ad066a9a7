"""Which catalogued fault explains a departure best, and where the departure is.

Every fault of the catalogue is run through the reference engine on the case's own probe, prompts
and decoding. Evidence and simulations are counted in the same cells (`cells`), each candidate is
scored by how well it predicts the evidence's counts (`score`), and the exact engine is a candidate
like the others. Nothing here decides a verdict: it is asked once a departure was found.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from conformance.cause import Cause, named
from conformance.diagnosis.candidates import (
    EXACT_NAME,
    Setting,
    applicable,
    exactly,
    repeats_by_chance,
    simulated,
    sized,
    verified_tokens,
)
from conformance.diagnosis.cells import Counts, count
from conformance.diagnosis.place import in_words
from conformance.diagnosis.score import best_first, fit, odds_in_words, score
from conformance.evidence import Evidence, first_requests, selected
from conformance.faults import FAULTS, Fault
from conformance.judge import ArmJudge
from conformance.plan import Case
from conformance.tinylm import Tokens

# An explanation is offered when it beats exactness by this many nats, and is said to fit when the
# evidence does not depart from it in turn. Explanations within `ALIKE` nats are named together.
CONVINCING = 25.0
FITS = 1e-4
ALIKE = float(np.log(1e4))
# Requests of the rounds. In a glance everything is tried, in the later ones the best of what is
# left: all but two must be within `HOPELESS` nats of the best. Of the faults that runs reject, none
# was more than 21 behind at a glance, at temperature 1 and at 0.7 with top-p.
GLANCE, FIRST, SECOND = 60, 240, 1200
HOPELESS = 40.0
FINALISTS, LAST_ROUND = 5, 3
TIMES = 3  # what is close in the last round is simulated so many times over, to tell it apart
MOST_PROPOSALS = 8


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What explains the evidence.

    Parameters
    ----------
    scores : dict of str to float
        Log probability of the evidence under the exact engine and under the best faults, by name.
    faults : dict of str to Fault
        Those faults, at the size that was tried.
    fits : float
        p-value of the evidence and the best fault being of one law.
    place : str
        Where it departs, in words.
    """

    scores: dict[str, float]
    faults: dict[str, Fault]
    fits: float
    place: str

    @property
    def ranked(self) -> list[str]:
        """Faults by decreasing score."""
        return best_first({n: s for n, s in self.scores.items() if n != EXACT_NAME})

    @property
    def alike(self) -> list[str]:
        """The best fault and those that explain the evidence about as well."""
        ranked = self.ranked
        return [n for n in ranked if self.scores[ranked[0]] - self.scores[n] < ALIKE]

    def __str__(self) -> str:
        """One to three sentences."""
        return " ".join(part for part in (self._cause(), self.place) if part)

    def cause(self) -> Cause:
        """The same in fields."""
        if not self.scores:
            return Cause("not compared", place=self.place)
        first = self.ranked[0]
        gap = {n: (self.scores[first] - s) / np.log(10) for n, s in self.scores.items()}
        if self.scores[first] - self.scores[EXACT_NAME] < CONVINCING:
            return Cause("unexplained", place=self.place)
        rest = next((n for n in self.ranked if n not in self.alike), "")
        return named(
            self.faults[first],
            self.fits >= FITS,
            size=self.faults[first].parameter,
            alike=tuple(n for n in self.alike if n != first),
            runner_up=rest,
            odds_runner_up=float(gap[rest]) if rest else None,
            odds_exact=float(gap[EXACT_NAME]),
            fit_p=self.fits,
            place=self.place,
        )

    def _cause(self) -> str:
        if not self.scores:
            return ""
        first = self.ranked[0]
        against_exact = self.scores[first] - self.scores[EXACT_NAME]
        if against_exact < CONVINCING:
            return "No fault in the catalogue explains it."
        fault = self.faults[first]
        also = [n for n in self.alike if n != first][:2]
        rest = [n for n in self.ranked if n not in self.alike]
        # said first, since a table may cut the sentence short
        says = (
            "Likely cause:" if self.fits >= FITS else "No fault in the catalogue fits; nearest is"
        )
        of = ""
        if fault.parameter is not None and fault.parameter != FAULTS[first].parameter:
            of = f"; of about {fault.parameter:g}"
        says += f" {first} ({fault.summary}{of})"
        if also:
            says += f", or {' or '.join(also)}, which looks the same here"
        if rest:
            gap = self.scores[first] - self.scores[rest[0]]
            says += f", favoured over {rest[0]} by odds of {odds_in_words(gap)}"
        says += f" and over exactness by {odds_in_words(against_exact)}"
        return says + (", and it fits." if self.fits >= FITS else ": look for something like it.")


def diagnose(judge: ArmJudge, evidence: Evidence) -> tuple[Cause, str]:
    """The likeliest fault, and sentences that name it or say that none fits, and where it shows."""
    # simulations and evidence must share their prompts: those asked only once are left out
    repeated = selected(evidence, evidence.prompt < judge.repeated)
    prompts = judge.prompts[: judge.repeated]
    found = explain(judge.case, prompts, repeated, judge.plan.seed)
    return found.cause(), str(found)


def explain(case: Case, prompts: Tokens, evidence: Evidence, seed: int) -> Diagnosis:
    """Try the catalogue on what the speculative arm of a case answered.

    Only an engine that drafts with the probe's draft model can be compared with the reference
    engine's faults; of any other, only the place is told.

    Parameters
    ----------
    case : Case
        Probe, decoding and claims.
    prompts : (P, L) int64
        Distinct prompts.
    evidence : Evidence
        What was answered.
    seed : int
        Randomises ranks.
    """
    oracle = case.oracle
    evidence = first_requests(evidence, SECOND)
    n = len(evidence.tokens)
    rng = np.random.default_rng([seed, 4, zlib.crc32(case.id.encode())])
    if n == 0:
        return Diagnosis({}, {}, 1.0, "")
    if case.capabilities.draft != "model":
        return Diagnosis({}, {}, 1.0, in_words(count(oracle, prompts, evidence, n, rng), None))
    drafted = None if evidence.rounds is None else evidence.rounds[:, 1]
    proposals = int(drafted.max(initial=0)) if drafted is not None else 0
    setting = Setting(
        oracle,
        tuple(map(tuple, prompts.tolist())),
        evidence.tokens.shape[1],
        min(proposals, MOST_PROPOSALS) or 4,
        evidence.rounds is not None,
    )
    how_often = drafted is not None and bool((drafted == setting.proposals).all())
    sample = oracle.sample(prompts, evidence.prompt, evidence.tokens)
    verified = verified_tokens(sample, evidence)
    faults = {
        name: sized(fault, sample, verified)
        for name, fault in FAULTS.items()
        if applicable(fault, case.decoding)
    }

    def first(requests: int) -> _Trial:
        few = min(requests, n)
        some = first_requests(evidence, few)
        counts = count(oracle, prompts, some, repeats_by_chance(setting, few), rng)
        return _Trial(setting, counts, few, how_often)

    best = first(GLANCE).best(list(faults.values()), len(faults))
    best = first(FIRST).best(best, FINALISTS)
    trial = first(n)
    best = trial.best(best, LAST_ROUND)
    scores = trial.scores(best)
    if len(trial.best(best, LAST_ROUND, least=1)) > 1:
        scores = trial.scores(best, TIMES)
    likeliest = max(best, key=lambda fault: scores[fault.name])
    again = trial.simulated(likeliest.name, likeliest.parameter, TIMES)
    return Diagnosis(
        scores,
        {fault.name: fault for fault in best},
        fit(trial.mine, again, how_often),
        in_words(trial.mine, trial.exact),
    )


@dataclass(frozen=True)
class _Trial:
    """The evidence's counts, and candidates with as many requests.

    Whether an answer was given before depends on how many there are.
    """

    setting: Setting
    mine: Counts
    n: int
    how_often: bool

    @cached_property
    def exact(self) -> Counts:
        return exactly(self.setting, self.n, repeats_by_chance(self.setting, self.n))

    def simulated(self, name: str, size: float | None, times: int) -> Counts:
        most = repeats_by_chance(self.setting, self.n)
        return simulated(self.setting, name, size, self.n, most, times)

    def scores(self, faults: list[Fault], times: int = 1) -> dict[str, float]:
        tried = {EXACT_NAME: None} | {f.name: f.parameter for f in faults}
        return {
            name: score(self.mine, self.simulated(name, size, times), self.exact, self.how_often)
            for name, size in tried.items()
        }

    def best(self, faults: list[Fault], most: int, least: int = 2) -> list[Fault]:
        """Those that are not hopeless, but so many at least and at most, best first."""
        scores = self.scores(faults)
        ranked = sorted(faults, key=lambda fault: -scores[fault.name])
        close = [f for f in ranked if scores[f.name] >= scores[ranked[0].name] - HOPELESS]
        return ranked[: max(least, min(most, len(close)))]
