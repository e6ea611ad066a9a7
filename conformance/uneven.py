"""What was uneven about the requests of a case: told from what was answered, not from what was
planned, so that a pass that rests on it can be checked.

Where both arms were asked in the same calls, their answers are told apart here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from conformance.evidence import Evidence, selected
from conformance.forms import LENGTHS, MIXED, TOGETHER
from conformance.law import Bools
from conformance.plan import Case
from conformance.tinylm import Tokens
from conformance.verdict import Finding

TEST = "unevenness"
SPECULATIVE, CONTROL = "speculative", "control"


def apart(case: Case, arms: Mapping[str, Evidence]) -> dict[str, Evidence]:
    """The arms of a case, where both were asked in the same calls; else what was given."""
    both = arms.get(TOGETHER)
    if both is None:
        return dict(arms)
    found = by_kind(case.asked(TOGETHER), both)
    rest = {arm: e for arm, e in arms.items() if arm != TOGETHER}
    return {arm: found[arm] for arm in case.arms} | rest


def by_kind(case: Case, both: Evidence) -> dict[str, Evidence]:
    """Answers to requests that speculate, and to those that do not, where some of each kind were
    asked in the same calls; else what was given, by its arm.

    `case` as that arm is asked it.
    """
    work = case.workload
    if work is None or work.speculates is None:
        return {both.arm: both}
    mine = work.speculates[: len(both.tokens)]
    # what the calls took is half of each kind's, as half of the requests are
    half, seconds = both.planned // 2, both.seconds / 2
    found = {
        arm: replace(selected(both, keep), arm=arm, planned=half, seconds=seconds)
        for arm, keep in ((SPECULATIVE, mine), (CONTROL, ~mine))
    }
    return found | {CONTROL: _untold(found[CONTROL])}


def _untold(control: Evidence) -> Evidence:
    """No block is told of requests that do not speculate."""
    rounds, counts = control.rounds, control.counts
    return replace(
        control,
        rounds=None if rounds is None or len(rounds) == 0 else rounds,
        counts=None if counts is None or not counts.any() else counts,
    )


@dataclass(frozen=True, slots=True)
class Unevenness:
    """How requests that were answered differ. All of it is counted.

    Parameters
    ----------
    requests, calls : int
        How many there are.
    sizes : tuple of int
        Sizes of calls that occur.
    prompts, outputs : tuple of int
        Lengths of prompts, and of outputs, that occur.
    cuts : tuple of int
        How many tokens of a block were used where the end of an output cut it.
    ended_apart : int
        Calls of which some requests were done in fewer blocks than others.
    accepted_apart : int
        Blocks of a call, the n-th of each request, that accepted different numbers of tokens.
    both_kinds : int
        Calls in which some requests speculate and others do not.
    unseeded, both_seeds : int
        Requests without a seed, and calls that have such and others.
    blocks : bool
        Whether blocks were told, without which four of these cannot be known.
    """

    requests: int
    calls: int
    sizes: tuple[int, ...]
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    cuts: tuple[int, ...]
    ended_apart: int
    accepted_apart: int
    both_kinds: int
    unseeded: int
    both_seeds: int
    blocks: bool

    def __str__(self) -> str:
        seen = [
            f"{self.requests:,} requests in {self.calls:,} calls of {_spread(self.sizes)}",
            f"prompts of {_spread(self.prompts)} tokens",
            f"outputs of {_spread(self.outputs)}",
        ]
        if self.unseeded:
            seen.append(
                f"{self.unseeded:,} without a seed, in {self.both_seeds:,} calls beside seeded ones"
            )
        if self.both_kinds:
            seen.append(f"{self.both_kinds:,} calls had requests with and without speculation")
        if not self.blocks:
            seen.append("blocks were not told, so that nothing shows how uneven they were")
            return "; ".join(seen)
        if self.sizes[-1] > 1:
            seen.append(
                f"in {self.ended_apart:,} calls some requests were done before others, and "
                f"{self.accepted_apart:,} times the blocks of one step accepted different numbers"
            )
        seen.append(
            f"ends cut blocks after {', '.join(map(str, self.cuts))} tokens"
            if self.cuts
            else "no end cut a block, as of an engine that proposes no more than is wanted"
        )
        return "; ".join(seen)


def _spread(values: tuple[int, ...]) -> str:
    if len(values) == 1:
        return str(values[0])
    return f"{values[0]:,} to {values[-1]:,} ({len(values)} different)"


def unevenness(case: Case, asked: Evidence) -> Unevenness:
    """Count it, in the speculative arm, or in both where they share their calls."""
    assert case.workload is not None
    n = len(asked.tokens)
    batch = np.zeros(n, np.int64) if asked.batch is None else asked.batch
    numbers, call, sizes = np.unique(batch, return_inverse=True, return_counts=True)
    work = case.asked(asked.arm).workload
    speculates = None if work is None else work.speculates
    speculates = np.ones(n, dtype=bool) if speculates is None else speculates[:n]
    seeded = asked.seeds >= 0
    long = np.array([len(p) for p in case.workload.prompts], dtype=np.int64)
    rounds = asked.rounds
    ended, accepted, cuts = (0, 0, ()) if rounds is None else _blocks(asked, rounds, call)
    return Unevenness(
        requests=n,
        calls=len(numbers),
        sizes=_kinds(sizes),
        prompts=_kinds(long[asked.prompt]),
        outputs=_kinds(asked.asked_for),
        cuts=cuts,
        ended_apart=ended,
        accepted_apart=accepted,
        both_kinds=_mixed(call, speculates),
        unseeded=0 if case.decoding.greedy else int((~seeded).sum()),
        both_seeds=_mixed(call, seeded),
        blocks=rounds is not None,
    )


def _kinds(values: Tokens) -> tuple[int, ...]:
    return tuple(int(v) for v in np.unique(values))


def _mixed(group: Tokens, which: Bools) -> int:
    """Groups that have some of each kind."""
    some = np.bincount(group, which, minlength=1) > 0
    others = np.bincount(group, ~which, minlength=1) > 0
    return int((some & others).sum())


def _blocks(asked: Evidence, rounds: Tokens, call: Tokens) -> tuple[int, int, tuple[int, ...]]:
    """Calls whose requests were done in different numbers of blocks, steps whose blocks accepted
    different numbers, and how many tokens were used of blocks that were cut.
    """
    request, _, accepted = rounds.T
    if len(request) == 0:
        return 0, 0, ()
    first = np.searchsorted(request, request, side="left")
    step = np.arange(len(request)) - first  # which block of its request
    told = np.bincount(request, minlength=len(asked.tokens))
    ended = _different(call[told > 0], told[told > 0])
    steps = _different(call[request] * (int(step.max()) + 1) + step, accepted)
    emitted = np.cumsum(accepted + 1)
    before = emitted - (accepted + 1)
    left = asked.asked_for[request] - (before - before[first])
    cut = (left > 0) & (left < accepted + 1)
    return ended, steps, _kinds(left[cut])


def _different(group: Tokens, value: Tokens) -> int:
    """Groups with more than one value."""
    if len(group) == 0:
        return 0
    _, at = np.unique(group, return_inverse=True)
    low, high = np.full(at.max() + 1, np.iinfo(np.int64).max), np.full(at.max() + 1, -1)
    np.minimum.at(low, at, value)
    np.maximum.at(high, at, value)
    return int((low < high).sum())


def finding(case: Case, asked: Evidence) -> Finding:
    """What was uneven, said among the findings; it rejects nothing."""
    seen = unevenness(case, asked)
    figures = {
        name: float(getattr(seen, name))
        for name in (
            "calls", "ended_apart", "accepted_apart", "both_kinds", "unseeded", "both_seeds",
        )
    } | {
        f"different_{name}": float(len(getattr(seen, name)))
        for name in ("sizes", "prompts", "outputs", "cuts")
    }  # fmt: skip
    return Finding(
        TEST, "requests", SPECULATIVE, n=seen.requests, message=str(seen), figures=figures
    )


def missing(case: Case, asked: Evidence) -> str:
    """What a pass of the case would rest on and was not seen to occur; empty if nothing."""
    seen = unevenness(case, asked)
    wanted = {
        "prompts of different lengths": len(seen.prompts) > 1,
        "outputs of different lengths": len(seen.outputs) > 1,
    }
    if case.form != LENGTHS:
        wanted["calls of different sizes"] = len(seen.sizes) > 1
        wanted["requests of a call that are done at different times"] = (
            seen.ended_apart > 0 or not seen.blocks
        )
    if case.form == MIXED:
        wanted["calls with and without speculation together"] = seen.both_kinds > 0
    return ", ".join(what for what, there in wanted.items() if not there)
