"""The catalogue run on a case: every fault, in the reference engine, at the case's own prompts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from conformance.adapters.reference import ReferenceEngine
from conformance.contract import Capabilities, Request
from conformance.decoding import LATER_FILTERS, Decoding
from conformance.diagnosis.cells import ACCEPTED, RECOVERED, Counts, count, events, multiplicities
from conformance.evidence import Evidence
from conformance.faults import FAULTS, Fault
from conformance.faults.steps import EXACT_STEPS
from conformance.oracle import Oracle, Sample
from conformance.processors import penalised
from conformance.reference import emitted_law
from conformance.stacked import stack_rounds
from conformance.tinylm import Tokens
from conformance.wire import encode_completions

EXACT_NAME = "exact"
# sizes of a factor or a threshold that are tried where the fault's own rule can be computed
SIZES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)
BATCH = 512
PORTIONS = 2  # of the exact engine's answers
LAST = 100  # portions from here on are no candidate's
# end as an error, or have the right law: there is nothing to explain
UNANSWERABLE = ("length-leak", "length-drop", "unseeded")


@dataclass(frozen=True)
class Setting:
    """What is common to all candidates.

    Parameters
    ----------
    oracle : Oracle
        Probe, decoding and dialect; equal only to itself.
    prompts : tuple of tuple of int
        Distinct prompts.
    tokens : int
        Tokens a request asks for.
    proposals : int
        Proposals a block.
    labelled : bool
        Whether the engine reports its rounds.
    """

    oracle: Oracle
    prompts: tuple[tuple[int, ...], ...]
    tokens: int
    proposals: int
    labelled: bool

    @property
    def prompt_array(self) -> Tokens:
        """[P, L]"""
        return np.array(self.prompts, dtype=np.int64)


def applicable(fault: Fault, decoding: Decoding) -> bool:
    """Whether the fault changes anything under a decoding, and answers at all."""
    if fault.name in UNANSWERABLE:
        return False
    warmed = decoding.temperature != 1.0
    needs = {
        "anything": True,
        "sampling": not decoding.greedy,
        "temperature": warmed,
        "filter": decoding.truncates,
        "warp": warmed or decoding.truncates,
        "processor": bool(set(decoding.processors) - {"stop", "stop_strings"}),
        "history": decoding.repetition_penalty is not None or penalised(decoding),
        "repetition": decoding.repetition_penalty is not None,
        "minimum": decoding.min_new_tokens > 0,
        "stop": bool(decoding.stop),
        "stops": len(decoding.stop) > 1,
        "greedy": decoding.greedy,
        "road": bool(decoding.road),
        "stop string": bool(decoding.stop_strings),
        "tie": False,  # no decoding by itself makes a tie, or goes far
        "far": False,
        "grammar": bool(decoding.grammar),
        "grammar and stop": bool(decoding.grammar and decoding.stop),
        "grammar and filter": bool(decoding.grammar) and decoding.truncates,
        "min_p": decoding.min_p is not None,
        "later filter": bool({*LATER_FILTERS} & {*decoding.filters}),
        "temperature and filter": warmed and decoding.truncates,
        "form": False,  # of requests that are alike nothing is wrong
        "logprobs": False,  # the tokens are right, and the finding says what was returned instead
    }
    return needs[fault.needs]


def sized(fault: Fault, sample: Sample, verified: np.ndarray) -> Fault:
    """The fault at the size that explains verified tokens best; its own size if that is not known.

    Parameters
    ----------
    fault : Fault
        From the catalogue.
    sample : Sample
        The evidence's tokens and laws.
    verified : (N, T) bool
        Where a token was accepted or recovered, and can be judged.
    """
    if fault.visible is not None:
        return fault.sized(fault.visible)
    span = fault.span
    if fault.tier != "rule" or span is None or span.high != 1 or not verified.any():
        return fault
    if sample.draft is None:
        return fault
    prefix, token = sample.prefix[verified], sample.tokens[verified]
    rows, back = np.unique(prefix, return_inverse=True)
    law, draft = sample.law[rows], sample.draft[rows]
    gains = {}
    for size in {*SIZES, fault.parameter or 1.0}:
        rule = fault.rule(size)
        assert rule is not None
        emitted = emitted_law(law, draft, rule)[back, token]
        gains[size] = float(np.log(np.maximum(emitted, 1e-12)).sum())
    return fault.sized(max(gains, key=lambda size: gains[size]))


def verified_tokens(sample: Sample, evidence: Evidence) -> np.ndarray:
    """Where a token was accepted or recovered, and can be judged. [N, T]"""
    event, _ = events(evidence)
    return np.asarray(((event == ACCEPTED) | (event == RECOVERED)) & sample.open)


@lru_cache(maxsize=256)
def answers(setting: Setting, name: str, size: float | None, n: int, portion: int = 0) -> Evidence:
    """Answers of a candidate: ``"exact"`` or a fault of the catalogue, at a size."""
    steps = EXACT_STEPS if name == EXACT_NAME else FAULTS[name].steps(size)
    oracle = setting.oracle
    engine = ReferenceEngine(
        steps,
        capabilities=Capabilities(dialect=oracle.dialect),
        proposals=setting.proposals,
        dtype=np.float64,  # in single precision, what is drawn can depend on the processor
    )
    engine.load(oracle.probe.pair)
    begin = (1 + portion) * 2**31
    which = np.arange(n) % len(setting.prompts)
    # the same seeds for every candidate: two that do the same are then seen to be the same
    requests = [
        Request(setting.prompts[p], setting.tokens, oracle.decoding, begin + i, speculate=True)
        for i, p in enumerate(which)
    ]
    done = [c for b in range(0, n, BATCH) for c in engine.generate(requests[b : b + BATCH])]
    padded = [c["tokens"] for c in encode_completions(done, requests)]
    return Evidence(
        tokens=np.array(padded, dtype=np.int64),
        prompt=which,
        seeds=np.arange(n),
        rounds=stack_rounds([c.rounds for c in done]) if setting.labelled else None,
        seconds=0.0,
        planned=n,
    )


def repeats_by_chance(setting: Setting, n: int) -> int:
    """How often the exact engine gives one answer, at most, in n."""
    return int(multiplicities(answers(setting, EXACT_NAME, None, n)).max()) + 1


def simulated(
    setting: Setting, name: str, size: float | None, n: int, most: int, portions: int = 1
) -> Counts:
    """A candidate's answers, counted: so many portions of n."""
    return _total(setting, name, size, n, most, range(portions))


def exactly(setting: Setting, n: int, most: int) -> Counts:
    """The exact engine's answers, counted: what candidates are taken to be near to.

    None of these portions is a candidate's: the exact engine is a candidate too, and what it is
    compared with must not be its own random numbers.
    """
    return _total(setting, EXACT_NAME, None, n, most, range(LAST, LAST + PORTIONS))


def _total(
    setting: Setting, name: str, size: float | None, n: int, most: int, portions: range
) -> Counts:
    first, *more = (_counted(setting, name, size, n, most, i) for i in portions)
    for other in more:
        first = first.plus(other)
    return first


@lru_cache(maxsize=512)
def _counted(
    setting: Setting, name: str, size: float | None, n: int, most: int, portion: int
) -> Counts:
    rng = np.random.default_rng([n, portion])
    made = answers(setting, name, size, n, portion)
    return count(setting.oracle, setting.prompt_array, made, most, rng)
