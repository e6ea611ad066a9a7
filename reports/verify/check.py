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
    """All lines, and the SHA-256 of the manifest, which names the bundle; None without one."""

    checks: tuple[Check, ...]
    sha256: str | None

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return not any(c.status is Status.DIFFERS for c in self.checks)


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
