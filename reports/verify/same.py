"""Comparing what a report says with what was worked out again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

Json = Any
CLOSE = 1e-6
# An estimate may be a difference of nearly equal numbers; a p-value never is, and there a small
# absolute difference would hide all that matters.
CLOSE_TO_ZERO = 1e-9
RELATIVE_ONLY = ("p_value", "adjusted_p", "level", "alpha")


def differences(told: Json, found: Json, path: str = "") -> Iterator[str]:
    """Where two JSON values differ, in words.

    Parameters
    ----------
    told, found
        What the report says, and what was worked out again.
    path : str
        Where in the report they are.

    Yields
    ------
    str
        ``"path: report says x, evidence says y"``.
    """
    if isinstance(told, dict) and isinstance(found, dict):
        for key in sorted({*told, *found}):
            inner = f"{path}.{key}" if path else key
            if key not in told or key not in found:
                yield f"{inner}: only in {'the report' if key in told else 'what was worked out'}"
            else:
                yield from differences(told[key], found[key], inner)
    elif isinstance(told, list) and isinstance(found, list):
        if len(told) != len(found):
            yield f"{path}: report has {len(told)}, evidence gives {len(found)}"
        for i, (x, y) in enumerate(zip(told, found, strict=False)):
            yield from differences(x, y, f"{path}[{i}]")
    elif not _same(told, found, path):
        yield f"{path}: report says {told!r:.200}, evidence says {found!r:.200}"


def _same(told: Json, found: Json, path: str) -> bool:
    numbers = (int, float)
    if type(told) is bool or type(found) is bool or not isinstance(told, numbers):
        return type(told) is type(found) and told == found
    if not isinstance(found, numbers):
        return False
    if type(told) is int and type(found) is int:
        return told == found
    if path.rsplit(".", 1)[-1] not in RELATIVE_ONLY:
        return math.isclose(told, found, rel_tol=CLOSE, abs_tol=CLOSE_TO_ZERO)
    if told <= 0 or found <= 0:
        return told == found
    # a statistic that is off in its last digits is off by as many digits of log p
    apart = abs(math.log(told) - math.log(found))
    return apart <= CLOSE * max(1.0, abs(math.log(found)))
