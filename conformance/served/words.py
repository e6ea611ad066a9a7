"""Words that must stand wherever a served case is shown; needs nothing but the standard library."""

from __future__ import annotations

from collections.abc import Iterable

ENGINE = "served"
# What a case has in the place of a probe; reports know a served case by it.
MODEL = "the server's own model"
CLAIM = "relative to plain sampling of the same server"
RULED_OUT = f"{CLAIM}: "
BY_LAW = "relative to the log-probabilities that the same server returns without speculation"
BLIND = "what both arms do wrong is not seen"
PASSED = (
    f"{CLAIM}, no departure was found, and one of the sizes stated would have been; the model's "
    f"own law is not known here, so {BLIND}"
)
PASSED_BY_LAW = (
    f"{CLAIM}, and {BY_LAW}, no departure was found, and one of the sizes stated would have been; "
    "what is wrong with those log-probabilities themselves is not seen"
)
MISMATCH = (
    "plain sampling of the same server departs from the law of the log-probabilities that it "
    "returns: one of the two is wrong, or they mean something else; they were not used"
)


def relative(probes: Iterable[str]) -> str:
    """A sentence, with a space before it, for the headline of a run with such passes; or nothing.

    Examples
    --------
    >>> relative(["mid"])
    ''
    """
    names = list(probes)
    n = names.count(MODEL)
    if not n:
        return ""
    which = "This is" if n == len(names) else f"For {n} of the {len(names)} that passed, this is"
    return f" {which} {CLAIM}: {BLIND}."


def is_served(name: str) -> bool:
    """Whether a name as typed is this tier's."""
    return name.split(",", 1)[0].partition(":")[0] == ENGINE
