"""Several answers to one request: were they asked for and given, and do they tell of one another?

Each is judged by the law like any other. Beside that, first answers and further ones are judged by
themselves, since an engine forks a request for the further ones, and answers to one request are
compared with each other alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.evidence import Evidence
from conformance.law import Bools
from conformance.plan import Case
from conformance.planned import FIRST_AND_FURTHER, SIBLINGS
from conformance.tinylm import Tokens
from conformance.verdict import Finding

TEST = "several answers"
SEEN_AT_LEAST = 20  # accepted tokens, and rejected blocks, of further answers


def walled(rows: NDArray[Any], answer: Tokens) -> NDArray[Any]:
    """Rows with an empty one before each request's first answer, so that none of them is followed
    by another request's.

    Parameters
    ----------
    rows : (N, ...) array
        One row an answer.
    answer : (N,) int64
        Which answer to its request each one is, from 0.

    Returns
    -------
    (N + requests, ...) array
    """
    place = np.arange(len(rows)) + np.cumsum(answer == 0)
    out = np.zeros((len(rows) + int((answer == 0).sum()), *rows.shape[1:]), dtype=rows.dtype)
    out[place] = rows
    return out


def parts(answer: Tokens) -> dict[str, Bools]:
    """First answers, and further ones. [N, 1] each"""
    return dict(zip(FIRST_AND_FURTHER, (answer[:, None] == 0, answer[:, None] > 0), strict=True))


def finding(case: Case, asked: Evidence) -> Finding:
    """How many answers there were to how many requests, told from what was answered; it rejects
    nothing.
    """
    answer, further = asked.answer_of, asked.answer_of > 0
    each = np.diff(np.flatnonzero(answer == 0), append=len(answer))
    told = _further(asked)
    figures = {
        "requests": len(each),
        "requests_for_several": int((each > 1).sum()),
        "answers": len(answer),
        "further_answers": int(further.sum()),
        "most_to_one": int(each.max(initial=0)),
        "unseeded": int((asked.seeds[answer == 0] < 0).sum()),
    }
    seen = (
        f"{figures['answers']:,} answers to {figures['requests']:,} requests, of which "
        f"{figures['requests_for_several']:,} wanted several and one {figures['most_to_one']} at "
        f"most; {figures['unseeded']:,} had no seed"
    )
    if told is None:
        seen += "; blocks were not told, so that nothing shows how further answers came about"
    else:
        figures |= {"further_accepted": told[0], "further_rejected": told[1]}
        seen += (
            f"; in the {figures['further_answers']:,} answers beyond a first one, {told[0]:,} "
            f"proposed tokens were accepted and {told[1]:,} blocks ended in a rejection"
        )
    plain = {name: float(n) for name, n in figures.items()}
    return Finding(TEST, SIBLINGS, "speculative", n=len(answer), message=seen, figures=plain)


def missing(case: Case, asked: Evidence) -> str:
    """What a pass of the case would rest on and was not seen to occur; empty if nothing."""
    wanted = {"several answers to one request": bool((asked.answer_of > 0).any())}
    if wanted["several answers to one request"] and (told := _further(asked)) is not None:
        wanted["speculation in answers beyond a request's first"] = min(told) >= SEEN_AT_LEAST
    return ", ".join(what for what, there in wanted.items() if not there)


def _further(asked: Evidence) -> tuple[int, int] | None:
    """Proposals accepted, and blocks rejected, in answers that are not first; None where blocks
    are not told.
    """
    if asked.rounds is None:
        return None
    from_further = asked.answer_of[asked.rounds[:, 0]] > 0
    drafted, accepted = asked.rounds[from_further, 1], asked.rounds[from_further, 2]
    return int(accepted.sum()), int((accepted < drafted).sum())
