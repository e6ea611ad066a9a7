"""Log-probabilities that an engine returned, against the law's own.

Tokens may be right and what is said of them wrong: 0 for every proposal that was accepted, the
draft's numbers, those of the place before. A number is compared with the law's at its own prefix,
within what float rounding explains; one that is further off is proof. Accepted, recovered and bonus
tokens are told apart where the engine reports its rounds, and wrong numbers are looked up among
what they might be instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from conformance.evidence import Evidence
from conformance.law import Bools, Floats, softmax
from conformance.plan import Case, RunPlan
from conformance.precision import MOST_NATS, SAFETY
from conformance.processors import ended
from conformance.statistics import certificate
from conformance.statistics.proportion import wilson
from conformance.strata import BONUS, PLAIN, block_places
from conformance.tinylm import Tokens
from conformance.verdict import CaseVerdict, Finding, Interval, Verdict

TEST = "returned logprobs"
EVERYWHERE = "all tokens"
# A float32 engine rounds the number itself as well, and adds up a vocabulary to get it.
FLOAT32 = 2e-6
EXPLAINS = 0.95  # share of the wrong numbers that something else must be, to be named
SHOWN = 2
_MISSING = "no numbers (NaN, or none at all)"


@dataclass(frozen=True, slots=True)
class Compared:
    """What one arm returned, beside what it should have; arrays are [N, T].

    Parameters
    ----------
    arm : str
        Whose.
    returned, law : float64
        Log-probabilities. NaN where none was returned.
    judged : bool
        Where a token has a law and the output goes on.
    places : dict of str to bool
        Accepted, recovered and bonus tokens, where rounds are known.
    instead : dict of str to float64
        What wrong numbers might be.
    tolerance : float
        How far rounding may move a number, in nats.
    """

    arm: str
    returned: Floats
    law: Floats
    judged: Bools
    places: dict[str, Bools]
    instead: dict[str, Floats]
    tolerance: float

    @property
    def error(self) -> Floats:
        """How far every number is off; infinite where it is none."""
        with np.errstate(invalid="ignore"):
            off = np.abs(self.returned - self.law)
        return np.where(self.judged, np.where(np.isnan(off), np.inf, off), 0.0)

    @property
    def wrong(self) -> Bools:
        """Numbers that rounding does not explain."""
        return np.asarray(self.error > self.tolerance + FLOAT32 * (1 + np.abs(_finite(self.law))))


def judge_logprobs(
    plan: RunPlan, case: Case, arms: dict[str, Evidence]
) -> tuple[list[Finding], CaseVerdict | None]:
    """Findings on what the arms of a case returned, and what they make of the case alone; nothing
    where no log-probabilities were asked for.

    Parameters
    ----------
    plan, case
        What was planned; the case with its measured noise.
    arms : dict of str to Evidence
        What was gathered.
    """
    if not case.decoding.logprobs:
        return [], None
    compared = {arm: _compare(case, arm, e) for arm, e in arms.items() if e.logprobs is not None}
    if case.capabilities.low_precision and "control" in compared:
        compared = _as_far_as_control(compared)
    power = plan.profile.power
    findings = []
    for arm, e in arms.items():
        found = list(_findings(compared[arm], power)) if arm in compared else [_none(arm, e)]
        findings += found
    return findings, _verdict(findings, compared)


def added(verdict: CaseVerdict, found: CaseVerdict | None) -> CaseVerdict:
    """A case's verdict by its tokens, and that by what was said of them."""
    if found is None:
        return verdict
    if found.verdict is Verdict.EXACT:
        if verdict.verdict is not Verdict.EXACT:
            return verdict
        return replace(verdict, ruled_out=(*verdict.ruled_out, *found.ruled_out))
    if verdict.verdict is Verdict.NOT_EXACT:
        return replace(verdict, why=f"{verdict.why} Besides: {found.why}")
    if found.verdict is Verdict.NOT_EXACT:
        return CaseVerdict(
            Verdict.NOT_EXACT,
            f"{found.why} The tokens themselves: {verdict.why}.".replace("..", "."),
        )
    return found if verdict.verdict is Verdict.EXACT else verdict


# --- comparing ------------------------------------------------------------------------------------


def _compare(case: Case, arm: str, evidence: Evidence) -> Compared:
    assert case.workload is not None
    assert evidence.logprobs is not None
    oracle, raw = case.oracle, case.capabilities.logprobs == "raw"
    tree = oracle.tree(evidence.prompt, evidence.tokens)
    shape = tree.tokens.shape
    over = ended(tree.tokens, case.decoding)
    going_on = np.concatenate([np.ones_like(over[:, :1]), ~over[:, :-1]], axis=1)
    processed, plain = np.zeros(shape), np.zeros(shape)
    draft, behind, ahead = (np.full(shape, np.nan) for _ in range(3))
    judged = np.zeros(shape, dtype=bool)
    for chunk in oracle.chunks(case.workload.prompt_array, tree):
        assert chunk.raw is not None
        at = tree.instances(chunk.begin, chunk.begin + len(chunk.logits))
        row, x = tree.prefix.flat[at] - chunk.begin, tree.tokens.flat[at]
        law = softmax(chunk.logits) if case.decoding.greedy else chunk.laws.probs
        processed.flat[at] = _log(law[row, x])
        plain.flat[at] = _log(softmax(chunk.raw)[row, x])
        look = _log(softmax(chunk.raw) if raw else law)
        _beside(behind, tree.tokens, look, row, at, 1)
        _beside(ahead, tree.tokens, look, row, at, -1)
        if chunk.draft is not None:
            draft.flat[at] = _log(chunk.draft[row, x])
        # which of two laws an ambiguous prefix has is open; of raw logits it is not asked
        sure = ~chunk.laws.ambiguous[row] | raw | case.decoding.greedy
        judged.flat[at] = tree.valid.flat[at] & sure
    wanted = plain if raw else processed
    judged &= going_on & np.isfinite(wanted)
    if evidence.lengths is not None:
        judged &= np.arange(shape[1]) < evidence.lengths[:, None]
    return Compared(
        arm,
        evidence.logprobs,
        wanted,
        judged,
        _places(evidence) if arm == "speculative" else {},
        _instead(processed, plain, draft, wanted)
        | {
            "those of each token at the place before its own": behind,
            "those of each token at the place after its own": ahead,
        },
        _tolerance(case),
    )


def _beside(out: Floats, tokens: Tokens, logs: Floats, row: Tokens, at: Tokens, step: int) -> None:
    """What the laws of some tokens' prefixes say of the tokens `step` places on."""
    i, t = np.divmod(at, tokens.shape[1])
    inside = (t + step >= 0) & (t + step < tokens.shape[1])
    i, t = i[inside], t[inside] + step
    out[i, t] = logs[row[inside], tokens[i, t]]


def _tolerance(case: Case) -> float:
    """A log-probability moves by two roundings of a logit at most."""
    if case.capabilities.logprobs == "raw":
        return 2 * case.oracle.raw_rounding
    return 2 * case.oracle.rounding / min(case.decoding.temperature, 1.0)


def _as_far_as_control(compared: dict[str, Compared]) -> dict[str, Compared]:
    """In low precision: the control arm may be off by what can be rounding, and the speculative arm
    by twice what the control arm is.
    """
    control = compared["control"]
    off = control.error[control.error <= MOST_NATS]
    measured = max(control.tolerance, SAFETY * float(off.max(initial=0.0)))
    return {
        arm: replace(c, tolerance=max(MOST_NATS, c.tolerance) if arm == "control" else measured)
        for arm, c in compared.items()
    }


def _places(evidence: Evidence) -> dict[str, Bools]:
    places = block_places(evidence)
    if places is None:
        return {}
    kind, _, accepted = places
    return {
        "accepted": accepted,
        "recovered": ~accepted & (kind != BONUS) & (kind != PLAIN),
        "bonus": kind == BONUS,
        "not speculated": kind == PLAIN,
    }


def _instead(processed: Floats, plain: Floats, draft: Floats, wanted: Floats) -> dict[str, Floats]:
    """What wrong numbers might be, by what to call it; the first that explains them is told."""
    nothing = np.full_like(wanted[:, :1], np.nan)
    return {
        "0, as if each were certain": np.zeros_like(wanted),
        _MISSING: np.full_like(wanted, np.nan),
        "minus infinity": np.full_like(wanted, -np.inf),
        "those of the logits as they are, without processors, temperature and filters": plain,
        "those after processors, temperature and filters": processed,
        "the draft's": draft,
        "those of the token before": np.concatenate([nothing, wanted[:, :-1]], axis=1),
        "those of the token after": np.concatenate([wanted[:, 1:], nothing], axis=1),
        "probabilities, not their logarithms": np.exp(wanted),
        "logarithms to base 2": wanted / np.log(2),
        "logarithms to base 10": wanted / np.log(10),
        "their negatives": -wanted,
    }


def _log(p: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(p))


def _finite(values: Floats) -> Floats:
    return np.asarray(np.where(np.isfinite(values), values, 0.0))


# --- telling --------------------------------------------------------------------------------------


def _findings(c: Compared, power: float) -> Iterator[Finding]:
    wrong, error = c.wrong, c.error
    for scope, there in {EVERYWHERE: np.ones_like(c.judged), **c.places}.items():
        judged = c.judged & there
        n, count = int(judged.sum()), int((wrong & there).sum())
        if n == 0 and scope != EVERYWHERE:
            continue
        rate = count / n if n else 0.0
        largest = float(np.max(error[judged], initial=0.0))
        yield Finding(
            TEST,
            scope,
            c.arm,
            n=n,
            rejected=count > 0,
            statistic=largest if np.isfinite(largest) else None,
            effect={"wrong": Interval(rate, *wilson(count, n))} if count else {},
            detectable=certificate.zero_events_rate(power, n) if n else None,
            detectable_unit="rate",
            message=_told(c, there, count, n, largest),
        )


def _told(c: Compared, there: Bools, count: int, n: int, largest: float) -> str:
    if n == 0:
        return "not judged: no token has a log-probability to compare with"
    if not count:
        return (
            f"{n:,} log-probabilities are the law's to within {largest:.2g} nats "
            f"({c.tolerance:.2g} nats are rounding)"
        )
    where = np.argwhere(c.wrong & there)[:SHOWN]
    examples = "; ".join(
        f"request {i} output index {t}: {c.returned[i, t]:.4g} for {c.law[i, t]:.4g}"
        for i, t in where
    )
    far = f", by up to {largest:.3g} nats" if np.isfinite(largest) else ""
    return (
        f"{count:,} of {n:,} log-probabilities are not the law's{far} where {c.tolerance:.2g} nats "
        f"are rounding{_they_are(c, there)}: {examples}"
    )


def _they_are(c: Compared, there: Bools) -> str:
    name = _explanation(c, there)
    return f"; they are {name}" if name else ""


def _explanation(c: Compared, there: Bools) -> str:
    """What wrong numbers are instead, where one thing explains nearly all of them."""
    wrong = c.wrong & there
    returned = c.returned[wrong]
    close = 2 * c.tolerance + FLOAT32 * (1 + np.abs(_finite(returned)))
    for name, values in c.instead.items():
        other = values[wrong]
        with np.errstate(invalid="ignore"):
            hit = (np.abs(returned - other) <= close) | (returned == other)
        known = ~np.isnan(other)  # at the end of an output there is no token after
        if name == _MISSING:
            hit, known = np.isnan(returned), np.ones_like(known)
        if known.mean() > 0.5 and hit[known].mean() >= EXPLAINS:
            return name
    return ""


def _none(arm: str, evidence: Evidence) -> Finding:
    n = len(evidence.tokens)
    return Finding(
        TEST,
        EVERYWHERE,
        arm,
        n=int(evidence.tokens.size),
        rejected=n > 0,
        message=f"{n:,} requests asked for log-probabilities, and none came",
    )


def _verdict(findings: list[Finding], compared: dict[str, Compared]) -> CaseVerdict:
    whole = {f.arm: f for f in findings if f.scope == EVERYWHERE}
    bad = {arm: f for arm, f in whole.items() if f.rejected}
    if not bad:
        return CaseVerdict(Verdict.EXACT, "", _ruled_out(whole, compared))
    if "speculative" not in bad:
        return CaseVerdict(
            Verdict.NOT_EXACT,
            "Returned log-probabilities are as declared under speculation and otherwise without: "
            f"{bad['control'].message}.",
        )
    told = f"{bad['speculative'].message}.{_by_place(findings)}"
    if "control" not in bad:
        return CaseVerdict(Verdict.NOT_EXACT, f"Returned log-probabilities: {told}")
    names = {_explanation(c, np.ones_like(c.judged)) for c in compared.values()}
    if len(names) == 1 and names <= {*_CONVENTIONS}:
        return CaseVerdict(
            Verdict.INCONCLUSIVE,
            "With speculation and without it, the returned log-probabilities are "
            f"{next(iter(names))}: they are declared wrongly. Correct the adapter's "
            "Capabilities.logprobs.",
        )
    return CaseVerdict(
        Verdict.NOT_EXACT, f"Returned log-probabilities, with speculation and without it: {told}"
    )


def _ruled_out(whole: dict[str, Finding], compared: dict[str, Compared]) -> tuple[str, ...]:
    rate = whole["speculative"].detectable
    if rate is None:
        return ()
    tolerance = compared["speculative"].tolerance
    return (
        f"{rate:.2%} of the returned log-probabilities, or more, being off by over {tolerance:.2g} "
        "nats",
    )


_CONVENTIONS = (
    "those of the logits as they are, without processors, temperature and filters",
    "those after processors, temperature and filters",
)


def _by_place(findings: list[Finding]) -> str:
    """Where in a block they are wrong, where that is known."""
    places = [f for f in findings if f.arm == "speculative" and f.scope != EVERYWHERE]
    if not places:
        return ""
    told = []
    for f in places:
        wrong = f.effect["wrong"].estimate if f.effect else 0.0
        told.append(f"{f.scope} tokens {round(wrong * f.n):,} of {f.n:,}")
    clean = [f.scope for f in places if not f.rejected]
    hit = [f.scope for f in places if f.rejected]
    only = f", so {' and '.join(hit)} tokens only" if clean and hit else ""
    return f" Wrong at {', '.join(told)}{only}."
