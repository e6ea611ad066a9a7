"""From the times of a cell to what a report says of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from conformance.bench.clocks import Pace, pace
from conformance.bench.cost import Cost, cost
from conformance.bench.intervals import TAILS, Measured, grouped_quantile, median
from conformance.bench.measure import Arm, Run, Timed
from conformance.bench.most import Most
from conformance.bench.plan import Cell
from conformance.bench.rounds import blocks_of, counted_rate
from conformance.contract import Capabilities
from conformance.reports.bench_model import (
    AcceptanceTimes,
    ArmTimes,
    CellModel,
    CostTimes,
    Estimate,
    Outcome,
    Spread,
)

ROUNDING = 1e-3  # of an acceptance rate, by what float32 does to two laws
ARMS: tuple[Arm, ...] = ("speculative", "control", "draft")


def estimate(m: Measured | None) -> Estimate | None:
    """As a report holds it."""
    return None if m is None else Estimate(estimate=m.estimate, low=m.low, high=m.high, n=m.n)


def _sure(m: Measured | None) -> Estimate:
    found = estimate(m)
    assert found is not None
    return found


def spread(groups: Sequence[Sequence[float]]) -> Spread | None:
    """Median and tails of times in groups; None of nothing."""
    n = sum(map(len, groups))
    middle = grouped_quantile(groups, 0.5) if n else None
    if middle is None:
        return None
    p90, p99 = (estimate(grouped_quantile(groups, q)) for q in TAILS)
    return Spread(n=n, median=_sure(middle), p90=p90, p99=p99)


def arm_times(arm: Arm, found: Pace, cell: Cell, new_tokens: int) -> ArmTimes:
    """One arm's times."""
    whole = spread([[s] for s in found.end_to_end])
    first = spread(found.first)
    assert whole is not None
    assert first is not None
    outside = None
    if found.inside is not None:
        pairs = zip(found.end_to_end, found.inside, strict=True)
        outside = statistics.median(1 - i / s if s > 0 else 0.0 for s, i in pairs)
    rates = [cell.batch / s for s in found.end_to_end if s > 0]
    return ArmTimes(
        arm=arm,
        end_to_end=whole,
        first_token=first,
        per_token=spread(found.per_token),
        pauses=spread(found.pauses),
        requests_per_second=_sure(median(rates)),
        tokens_per_second=_sure(median([r * new_tokens for r in rates])),
        outside=outside,
        seconds=list(found.end_to_end),
        inside=None if found.inside is None else list(found.inside),
        first=[list(f) for f in found.first],
    )


def speedup(speculative: Pace, control: Pace) -> Measured | None:
    """Time of the control arm over time of the speculative arm, pair by pair, end to end."""
    pairs = zip(control.end_to_end, speculative.end_to_end, strict=True)
    return median([c / s for c, s in pairs if s > 0])


def statement(found: Measured | None, speculated: bool | None, why: str) -> tuple[Outcome, str]:
    """Whether speculation pays, and the sentence that says it.

    Parameters
    ----------
    found : Measured or None
        The speed-up.
    speculated : bool or None
        Whether a proposal was ever made; None where the engine does not say.
    why : str
        Why there is no speed-up, where there is none.
    """
    if speculated is False:
        return (
            "did not speculate",
            "The engine proposed nothing here, so there is no speculation whose worth could be "
            "told.",
        )
    if found is None:
        return "cannot tell", f"Whether speculation pays cannot be told: {why}."
    if found.low is None or found.high is None:
        return (
            "cannot tell",
            f"Whether speculation pays cannot be told: {found.n} pairs are too few for an "
            "interval.",
        )
    words = f"{found.estimate:.2f} times as fast ({found.low:.2f} to {found.high:.2f})"
    if found.low > 1:
        return "pays", f"Speculation pays: {words} as without."
    if found.high < 1:
        return "does not pay", f"Speculation does not pay: {words} as without."
    return "cannot tell", f"Whether speculation pays cannot be told: {words} as without."


def acceptance_times(calls: Sequence[Timed], most: Most) -> AcceptanceTimes:
    """What rounds, or counts, say."""
    completions = [c for call in calls for c in call.completions]
    blocks = blocks_of(completions)
    if blocks is None:
        counts = counted_rate(completions)
        share = None if counts is None or not counts[0] else counts[1] / counts[0]
        told = "" if share is None else ", only how many tokens in all"
        return AcceptanceTimes(
            drafted={}, accepted={}, tokens_per_block=None, rate=None, of_proposed=share, most=None,
            sentence=f"The engine tells no rounds{told}.",
        )  # fmt: skip
    rate = blocks.rate
    return AcceptanceTimes(
        drafted=dict(sorted(blocks.drafted.items())),
        accepted=dict(sorted(blocks.accepted.items())),
        tokens_per_block=blocks.tokens_per_block,
        rate=estimate(rate),
        of_proposed=float(blocks.kept.sum()) / blocks.proposals if blocks.proposals else None,
        most=estimate(most.most),
        sentence=_beside(most),
    )


def _beside(most: Most) -> str:
    beyond = most.beyond
    if beyond is None:
        return most.why[:1].upper() + most.why[1:] + "." if most.why else ""
    if beyond.low is not None and beyond.low > ROUNDING:
        return (
            "More is accepted than an exact rule that verifies token by token can: look at its "
            "exactness."
        )
    if beyond.high is not None and beyond.high < -ROUNDING:
        return (
            "Less is accepted than rejection sampling would: the rule is another, or the draft "
            "proposes from another law than its own."
        )
    return "As much is accepted as rejection sampling would."


def cost_times(found: Cost, draft_kind: str) -> CostTimes:
    """The parts of a block, with a sentence on the difference."""
    return CostTimes(
        ratio=estimate(found.ratio),
        proposals=found.proposals,
        target=found.target,
        draft=found.draft,
        block=found.block,
        rest=found.rest,
        predicted=estimate(found.predicted),
        from_blocks=found.from_blocks,
        measured=estimate(found.measured),
        sentence=_gap(found, draft_kind),
    )


def _gap(c: Cost, draft_kind: str) -> str:
    if c.predicted is None:
        missing = {
            "model": "the draft could not be timed alone, or no block was seen after the first",
            "lookup": "no block was seen after the first",
        }.get(draft_kind, "the draft is no model that can be timed alone")
        return f"No prediction: {missing}."
    words = f"The formula predicts {c.predicted.estimate:.2f}"
    if c.measured is not None:
        words += f", the clock says {c.measured.estimate:.2f}"
    if c.rest is None or c.block is None or c.target is None or c.proposals is None:
        return words + "."
    ms = 1000.0
    drafting = (
        f"{c.proposals:.1f} proposals at {c.draft * ms:.3g} ms"
        if c.draft is not None
        else "proposals that no model makes"
    )
    words += (
        f". A block takes {c.block * ms:.3g} ms: {drafting}, a step of the target at "
        f"{c.target * ms:.3g} ms, and "
    )
    if c.rest > 0:
        return words + (
            f"{c.rest * ms:.3g} ms that the formula does not know of: verifying several tokens "
            "costs more than one, and every block has its overhead."
        )
    return words + (
        f"{-c.rest * ms:.3g} ms less than these: inside a block drafting is cheaper than the draft "
        "alone."
    )


def cell_model(
    cell: Cell,
    run: Run,
    capabilities: Capabilities,
    new_tokens: int,
    most: Most,
    **around: object,
) -> CellModel:
    """Everything said of a cell that was measured.

    Parameters
    ----------
    cell, run, capabilities, new_tokens
        What was asked, and what came of it.
    most : Most
        The most that could be accepted.
    **around
        The fields on machine and prompts.
    """
    by_arm = {arm: [c for c in run.calls if c.arm == arm] for arm in ARMS}
    paces = {arm: pace(calls, run.streamed) for arm, calls in by_arm.items() if calls}
    full = [c for c in by_arm["speculative"] if c.kind == "full"]
    acceptance = acceptance_times(full, most)
    speculated: bool | None = None
    if acceptance.drafted:
        speculated = any(k for k in acceptance.drafted)
    elif counted := counted_rate([c for call in full for c in call.completions]):
        speculated = counted[0] > 0
    gain = costs = None
    if "control" in paces:
        gain = speedup(paces["speculative"], paces["control"])
        costs = cost_times(
            cost(
                paces["speculative"],
                paces["control"],
                paces.get("draft"),
                [c.completions for c in full],
                capabilities.draft == "lookup",
            ),
            capabilities.draft,
        )
    outcome, sentence = statement(gain, speculated, "this engine has no control arm")
    return CellModel.model_validate(
        _who(cell, new_tokens)
        | around
        | {
            "status": "measured",
            "why": "",
            "outcome": outcome,
            "sentence": sentence,
            "speedup": estimate(gain),
            "repeats": run.repeats,
            "streamed": run.streamed,
            "arms": [arm_times(arm, found, cell, new_tokens) for arm, found in paces.items()],
            "acceptance": acceptance,
            "cost": costs,
        }
    )


def unmeasured(cell: Cell, new_tokens: int, status: str, why: str) -> CellModel:
    """A cell without numbers, and why."""
    return CellModel.model_validate(
        _who(cell, new_tokens)
        | {"status": status, "why": why, "sentence": f"Not measured: {why}.", "prompts": ""}
        | {"repeats": 0, "streamed": False, "arms": [], "load": (None, None)}
        | dict.fromkeys(("outcome", "speedup", "acceptance", "cost", "others", "drift"))
    )


def _who(cell: Cell, new_tokens: int) -> dict[str, object]:
    return {
        "id": cell.id,
        "engine": cell.engine,
        "decoding": str(cell.decoding),
        "batch": cell.batch,
        "prompt_length": cell.prompt_length,
        "new_tokens": new_tokens,
    }


def headline(cells: Sequence[CellModel]) -> str:
    """Whether speculation pays, over all cells, in one sentence."""
    outcomes = [c.outcome for c in cells if c.outcome is not None]
    if not outcomes:
        return "Nothing was measured."
    total = len(outcomes)
    counts = {o: outcomes.count(o) for o in dict.fromkeys(outcomes)}
    if len(counts) == 1:
        only = {
            "pays": "Speculation pays in {all}.",
            "does not pay": "Speculation does not pay in {all}.",
            "cannot tell": "Whether speculation pays cannot be told in {all}.",
            "did not speculate": "The engine did not speculate in {all}.",
        }[outcomes[0]]
        where = (
            "the one setting measured" if total == 1 else f"any of the {total} settings measured"
        )
        if outcomes[0] in ("pays", "did not speculate") and total > 1:
            where = f"all of the {total} settings measured"
        return only.format(all=where)
    words = {
        "does not pay": "does not pay in {n}",
        "pays": "pays in {n}",
        "cannot tell": "cannot be told to pay or not in {n}",
        "did not speculate": "never happened in {n}",
    }
    parts = [words[o].format(n=counts[o]) for o in words if o in counts]
    return f"Of {total} settings measured, speculation {', '.join(parts)}."
