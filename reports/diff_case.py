"""What changed in one case, and whether it got worse.

Worse is, for a configuration that both reports have or the old one had:

- it was EXACT and is anything else;
- it is NOT EXACT and was not;
- it is NOT EXACT as before, and an effect that counts is larger than it was, beyond the intervals;
- it is an ERROR and was not;
- it is NOT SUPPORTED and neither was that before nor an ERROR;
- it is gone.

Better is what would be worse the other way round, unless it is worse both ways: a change between
NOT EXACT and ERROR, or NOT EXACT and NOT SUPPORTED, is never good news.
"""

from __future__ import annotations

from collections.abc import Iterator

from conformance.reports.diff_estimates import (
    Estimate,
    accepted_share,
    direction,
    size_change,
    usable,
)
from conformance.reports.diff_model import (
    AcceptanceChangeModel,
    ArmChangeModel,
    CaseChange,
    CaseDiffModel,
    CertificateModel,
    EffectModel,
    Strength,
)
from conformance.reports.model import ArmModel, CaseModel, FindingModel
from conformance.reports.text import effect_name, interval, number
from conformance.text import one_line
from conformance.verdict import Verdict

# A certificate depends a little on the tokens that happened to come; this is more than that.
MATTERS = 1.1
# effect, scope: shown whether they changed or not
MAIN = {
    ("leak", "all tokens"),
    ("tv", "output index 0"),
    ("kl_nats_per_token", "output index 0"),
    ("diverged", "all tokens"),
}
# Tables of counts give these two, once for each of their tests. They are averages over the prompts,
# which the seed chooses: with other prompts the same fault has another size.
OF_TABLES = ("tv", "kl_nats_per_token")
# Shown beside the total variation of the same table and left to it: where a departure is large,
# divergences scatter up to 1.3 times as much as their intervals say (measured over equal builds).
DOES_NOT_COUNT = "kl_nats_per_token"
# A scope that says whether reported rounds can be believed, and nothing of a departure
NO_DEPARTURE = "accepted"
# Its interval takes the share that chance repeats for known, which it is not where that is large
NOT_COMPARED = "repeated"
RELATIVE = "held to plain sampling of the same server"
CERTIFICATES = {
    ("greedy identity", "all tokens"): "greedy tokens that are not the argmax",
    ("chi-square", "output index 0"): "total variation of the first token",
    ("draft leak", "all tokens"): "draft leak",
    ("PIT by p", "all tokens"): "shift between likely and unlikely tokens",
}
Effects = dict[tuple[str, str, str], tuple[str, Estimate]]


def effects_of(case: CaseModel) -> Effects:
    """Effect sizes of the speculative arm, by test (nothing for tables), scope and effect."""
    found: Effects = {}
    for f in case.findings:
        if f.arm != "speculative" or f.n <= 0 or f.scope == NO_DEPARTURE:
            continue
        for effect, value in f.effect.items():
            key = ("" if effect in OF_TABLES else f.test, f.scope, effect)
            if effect != NOT_COMPARED and usable(value):
                found.setdefault(key, (effect, Estimate(value, f.n)))
    return found


def comparisons_in(old: CaseModel, new: CaseModel, same_prompts: bool) -> int:
    """How many estimates of two cases are compared."""
    shared = effects_of(old).keys() & effects_of(new).keys()
    effects = sum(same_prompts or effect not in OF_TABLES for _, _, effect in shared)
    return effects + (_proposals(old) and _proposals(new))


def case_diff(
    old: CaseModel | None, new: CaseModel | None, confidence: float, same_prompts: bool = True
) -> CaseDiffModel:
    """Compare two cases, of which one may be missing.

    Parameters
    ----------
    old, new : CaseModel or None
        The case in each report.
    confidence : float
        Of every single comparison of estimates.
    same_prompts : bool
        Whether both runs had the same seed.
    """
    effects = _effects(old, new, confidence, same_prompts) if old and new else []
    certificates = list(_certificates(old, new)) if old and new else []
    weaker, stronger = _strength(old, new, certificates) if old and new else ([], [])
    change = _change(old, new, effects)
    return CaseDiffModel(
        old_id=old.id if old else None,
        new_id=new.id if new else None,
        old=old.verdict if old else None,
        new=new.verdict if new else None,
        change=change,
        said=_said(old, new, change, effects),
        weaker=weaker,
        stronger=stronger,
        same_tokens=_same_tokens(old, new) if old and new else False,
        expected=new.expected if new else None,
        effects=effects,
        certificates=certificates,
        acceptance=_acceptance(old, new, confidence) if old and new else None,
        arms=list(_arms(old, new)) if old and new else [],
    )


def _change(old: CaseModel | None, new: CaseModel | None, effects: list[EffectModel]) -> CaseChange:
    if new is None:
        return "removed"
    if old is None:
        return "added"
    changes = {e.change for e in effects if e.counts}
    if got_worse(old.verdict, new.verdict, "grew" in changes):
        return "worse"
    return "better" if got_worse(new.verdict, old.verdict, "shrank" in changes) else "same"


def got_worse(old: Verdict, new: Verdict, larger: bool = False) -> bool:
    """Whether a case that was `old` is worse now; `larger` says that an effect grew.

    Examples
    --------
    >>> got_worse(Verdict.EXACT, Verdict.INCONCLUSIVE)
    True
    >>> got_worse(Verdict.NOT_EXACT, Verdict.NOT_EXACT, larger=True)
    True
    >>> got_worse(Verdict.ERROR, Verdict.NOT_SUPPORTED)
    False
    """
    if new is old:
        return new is Verdict.NOT_EXACT and larger
    if old is Verdict.EXACT or new in (Verdict.NOT_EXACT, Verdict.ERROR):
        return True
    return new is Verdict.NOT_SUPPORTED and old is not Verdict.ERROR


def _said(
    old: CaseModel | None, new: CaseModel | None, change: CaseChange, effects: list[EffectModel]
) -> str:
    if new is None:
        assert old is not None
        return f"it was {old.verdict.value} and is gone"
    if old is None:
        told = "" if new.verdict is Verdict.EXACT else f": {one_line(new.why, 300)}"
        return f"new, and {new.verdict.value}{told}"
    moved = sorted(
        (e for e in effects if e.change in ("grew", "shrank")),
        key=lambda e: (e.change == "shrank", not e.counts, not e.main),
    )
    sizes = "; ".join(size_sentence(e) for e in moved[:3])
    more = f"; and {len(moved) - 3} more" if len(moved) > 3 else ""
    if new.verdict is not old.verdict:
        words = f"{old.verdict.value} before, {new.verdict.value} now"
        told = "" if new.verdict is Verdict.EXACT else f": {one_line(new.why, 300)}"
        return words + told
    return f"{new.verdict.value} as before; " + (sizes + more if moved else "no effect differs")


def size_sentence(e: EffectModel) -> str:
    """An effect that changed, in words."""
    assert e.old is not None
    assert e.new is not None
    return (
        f"{effect_name(e.effect)} ({one_line(e.scope, 80)}) {e.change} from {interval(e.old)} to "
        f"{interval(e.new)}"
    )


def _effects(
    old: CaseModel, new: CaseModel, confidence: float, same_prompts: bool
) -> list[EffectModel]:
    before, after = effects_of(old), effects_of(new)
    found = []
    for key in dict.fromkeys([*before, *after]):
        _, scope, effect = key
        a, b = before.get(key), after.get(key)
        comparable = same_prompts or effect not in OF_TABLES
        difference = size_change(a[1], b[1], confidence) if a and b and comparable else None
        found.append(
            EffectModel(
                effect=effect,
                scope=scope,
                old=a[1].value if a else None,
                new=b[1].value if b else None,
                difference=difference,
                change=direction(difference) if difference else None,
                counts=comparable and effect != DOES_NOT_COUNT,
                main=(effect, scope) in MAIN,
            )
        )
    return found


def _certificates(old: CaseModel, new: CaseModel) -> Iterator[CertificateModel]:
    """What a pass rules out; only a pass does."""
    if not old.ruled_out and not new.ruled_out:
        return
    for key, name in CERTIFICATES.items():
        a, b = _certified(old, key), _certified(new, key)
        if a is None and b is None:
            continue
        yield CertificateModel(name=name, old=a, new=b, change=_weaker_or_stronger(a, b))


def _weaker_or_stronger(a: float | None, b: float | None) -> Strength:
    if b is None or (a is not None and b > a * MATTERS):
        return "weaker"
    return "stronger" if a is None or a > b * MATTERS else "same"


def _certified(case: CaseModel, key: tuple[str, str]) -> float | None:
    if not case.ruled_out:
        return None
    return next((f.detectable for f in _speculative(case) if (f.test, f.scope) == key), None)


def _speculative(case: CaseModel) -> Iterator[FindingModel]:
    return (f for f in case.findings if f.arm == "speculative")


def _strength(
    old: CaseModel, new: CaseModel, certificates: list[CertificateModel]
) -> tuple[list[str], list[str]]:
    """In what the new case says less than the old one, and in what more.

    Where the verdict itself changed that is the news; planned samples are compared, since a
    departure may end sampling at any time.
    """
    if old.verdict is not new.verdict:
        return [], []
    weaker: list[str] = []
    stronger: list[str] = []
    if (old.claim, new.claim) == ("absolute", "relative"):
        weaker.append(f"{RELATIVE}, before to a law that was computed")
    elif (old.claim, new.claim) == ("relative", "absolute"):
        stronger.append(f"held to a law that was computed; before, {RELATIVE}")
    for c in certificates:
        if c.change != "same":
            words = f"{c.name}: a pass rules out {number(c.new)}, before {number(c.old)}"
            (weaker if c.change == "weaker" else stronger).append(words)
    a, b = (sum(arm.planned for arm in case.arms) for case in (old, new))
    if a and b:
        words = f"{b:,} requests were planned, before {a:,}"
        if a > b * MATTERS:
            weaker.append(words)
        elif b > a * MATTERS:
            stronger.append(words)
    return weaker, stronger


def _same_tokens(old: CaseModel, new: CaseModel) -> bool:
    sums = [{arm.arm: arm.sha256 for arm in case.arms} for case in (old, new)]
    return bool(sums[0]) and sums[0] == sums[1]


def _proposals(case: CaseModel) -> bool:
    seen = case.speculation
    return seen.blocks > 0 and 0 <= seen.accepted <= seen.drafted > 0


def _acceptance(old: CaseModel, new: CaseModel, confidence: float) -> AcceptanceChangeModel | None:
    if not (_proposals(old) and _proposals(new)):
        return None
    a, b = (case.speculation for case in (old, new))
    shown = [accepted_share(s.accepted, s.drafted, s.blocks, 0.95) for s in (a, b)]
    # worked out at this confidence, not widened to it
    exact = [accepted_share(s.accepted, s.drafted, s.blocks, confidence) for s in (a, b)]
    difference = size_change(Estimate(exact[0], a.blocks), Estimate(exact[1], b.blocks), confidence)
    return AcceptanceChangeModel(
        old=shown[0], new=shown[1], difference=difference, change=direction(difference)
    )


def _arms(old: CaseModel, new: CaseModel) -> Iterator[ArmChangeModel]:
    before = {arm.arm: arm for arm in old.arms}
    for arm in new.arms:
        earlier = before.get(arm.arm)
        if earlier is not None:
            yield ArmChangeModel(
                arm=arm.arm,
                planned=(earlier.planned, arm.planned),
                requests=(earlier.requests, arm.requests),
                tokens=(earlier.tokens, arm.tokens),
                seconds_per_token=(_per_token(earlier), _per_token(arm)),
            )


def _per_token(arm: ArmModel) -> float | None:
    return arm.seconds / arm.tokens if arm.tokens > 0 else None
