"""Where a departure is: which events, block positions, output indices and prompts depart most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from conformance.diagnosis.cells import COARSE, EVENTS, IMPOSSIBLE, OUTSIDE, Counts
from conformance.diagnosis.score import POOLED, standardised, two_samples
from conformance.reference import Ints

SUSPECT = 1e-3  # over all the strata of a kind together; nothing but words depends on it
SHOWN = 2


@dataclass(frozen=True, slots=True)
class Stratum:
    """One set of tokens, compared with what the exact engine does there.

    Parameters
    ----------
    kind, name : str
        ``"event"``, ``"block position"``, ``"output index"``, ``"prompt"``; and which one.
    z : float
        The chi-square statistic as a number of standard deviations.
    p_value : float
        Of the departure.
    """

    kind: str
    name: str
    z: float
    p_value: float


def strata(evidence: Counts, exact: Counts | None) -> list[Stratum]:
    """Every stratum with what it departs by.

    Parameters
    ----------
    evidence : Counts
        The engine's.
    exact : Counts or None
        The exact engine's, simulated; without it the ranks at each output index are held to be
        uniform, as they are under exactness, and nothing is said about events.
    """
    out = []
    if exact is not None:
        for e, name in enumerate(EVENTS):
            rows = zip(evidence.cells[e], exact.cells[e], strict=True)
            out.append(_compared("event", name, [two_samples(a, b) for a, b in rows]))
        for j in range(evidence.cells.shape[1]):
            rows = zip(evidence.cells[:, j], exact.cells[:, j], strict=True)
            out.append(_compared("block position", str(j), [two_samples(a, b) for a, b in rows]))
    for t in range(evidence.index.shape[-1]):
        mine = evidence.index[..., t]
        pairs = [_uniform(mine.sum(axis=0))]
        if exact is not None:
            pairs = [two_samples(mine.sum(axis=0), exact.index[..., t].sum(axis=0))]
        out.append(_compared("output index", str(t), pairs))
    for p in range(len(evidence.prompts)):
        out.append(_compared("prompt", str(p + 1), [_uniform(evidence.prompts[p])]))
    return [s for s in out if s is not None]


def _compared(kind: str, name: str, found: list[tuple[float, int]]) -> Stratum | None:
    statistic, df = sum(f[0] for f in found), sum(f[1] for f in found)
    if df == 0:
        return None
    return Stratum(kind, name, standardised(statistic, df), float(stats.chi2.sf(statistic, df)))


def _uniform(counts: Ints) -> tuple[float, int]:
    """Chi-square of coarse cells [COARSE + 1] against uniform ranks; impossible ones left out."""
    ranks = counts[:COARSE].reshape(-1, 2).sum(axis=1).astype(float)  # fifths by q/p
    expected = ranks.sum() / len(ranks)
    if expected < POOLED:
        return 0.0, 0
    return float(((ranks - expected) ** 2 / expected).sum()), len(ranks) - 1


def in_words(evidence: Counts, exact: Counts | None) -> str:
    """One or two plain sentences; empty if no stratum departs by itself."""
    found = strata(evidence, exact)
    parts, calm = [], []
    for kind in ("event", "block position", "output index", "prompt"):
        mine = [s for s in found if s.kind == kind]
        level = SUSPECT / max(len(found), 1)
        far = sorted((s for s in mine if s.p_value < level), key=lambda s: -s.z)
        quiet = [s.name for s in mine if s.p_value >= level]
        if kind == "event":
            calm = quiet
        if far and (kind == "event" or len(mine) > 1) and (quiet or kind != "prompt"):
            parts.append(_named(kind, far, all_of_them=not quiet))
    impossible = int(evidence.cells[..., IMPOSSIBLE].sum())
    outside = int(evidence.cells[..., OUTSIDE].sum())
    sentences = []
    if parts:
        sentence = f"It departs most at {', '.join(parts)}"
        if calm:
            sentence += f"; {_list(calm)} tokens agree with the exact engine's"
        sentences.append(sentence + ".")
    if impossible or outside:
        sentences.append(_never(evidence, impossible, outside))
    return " ".join(sentences)


def _never(evidence: Counts, impossible: int, outside: int) -> str:
    by_event = evidence.cells[..., IMPOSSIBLE:].sum(axis=(1, 2))
    where = [
        f"{by_event[e]:,} {EVENTS[e]}"
        for e in np.argsort(-by_event, kind="stable")
        if by_event[e] and EVENTS[e] != "unlabelled"
    ]
    what = f"{impossible + outside:,} tokens could not have been emitted"
    return f"{what}{f' ({_list(where)})' if where else ''}."


def _named(kind: str, far: list[Stratum], all_of_them: bool) -> str:
    if all_of_them and len(far) > SHOWN:
        return f"every {kind} (most at {far[0].name}, z = {far[0].z:.0f})"
    if kind == "event":
        return _list([f"{s.name} tokens (z = {s.z:.0f})" for s in far[:SHOWN]])
    return f"{kind} {_list([f'{s.name} (z = {s.z:.0f})' for s in far[:SHOWN]])}"


def _list(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
