"""What verification says, line by line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a line came out."""

    AGREES = "agrees"  # worked out again, and the same
    DIFFERS = "differs"  # not what the files or the evidence say
    STATED = "stated"  # cannot be worked out from the bundle: somebody's word


@dataclass(frozen=True, slots=True)
class Check:
    """One line.

    Parameters
    ----------
    what : str
        The part of the bundle.
    status : Status
        How it came out.
    detail : str
        What was compared, or what is wrong. It may hold text from the bundle, which is untrusted.
    """

    what: str
    status: Status
    detail: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of a bundle.

    Parameters
    ----------
    checks : tuple of Check
        All lines.
    sha256 : str or None
        Of the manifest, which names the bundle; None without one.
    verdict : str or None
        The run's, as its report says; None without a report. Untrusted where anything differs.
    cases : int
        Cases in the report.
    untested : tuple of str
        Cases that ended without a verdict on the evidence: refused, or failed. They rest on
        somebody's word, and are no pass.
    """

    checks: tuple[Check, ...]
    sha256: str | None
    verdict: str | None = None
    cases: int = 0
    untested: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return not any(c.status is Status.DIFFERS for c in self.checks)


# What no bundle can show, however it is verified.
LIMITS = (
    "that the tokens came from the engine named: tokens that were made up to fit the law look the "
    "same",
    "who answered, in which version, and what it claimed: what is not claimed is not tested",
    "that there was no other run: a tester may repeat one with other seeds, and show the best",
    "when anything happened: whether expected failures were declared before the run, and its times",
)


def agrees(what: str, detail: str) -> Check:
    """A line that came out the same."""
    return Check(what, Status.AGREES, detail)


def differs(what: str, detail: str) -> Check:
    """A line that did not."""
    return Check(what, Status.DIFFERS, detail)


def stated(what: str, detail: str) -> Check:
    """A line that rests on somebody's word."""
    return Check(what, Status.STATED, detail)


SHOWN = 5


def listed(items: Iterable[str], limit: int = SHOWN) -> str:
    """Some of many, and how many more."""
    found = list(items)
    more = f" and {len(found) - limit:,} more" if len(found) > limit else ""
    return ", ".join(found[:limit]) + more
