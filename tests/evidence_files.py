"""Made-up evidence of the three kinds, and hypothesis strategies for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.evidence import Evidence
from conformance.served.evidence import ServedEvidence
from conformance.statistics.tree import ABSENT
from conformance.verifier.evidence import AGAIN, EDGE, LAW, Rows, Stored


def engine(
    n: int, width: int = 3, rounds: bool = True, counts: bool = False, seed: int = 0
) -> Evidence:
    """An engine's arm of n requests."""
    rng = np.random.default_rng(seed)
    told = None
    if rounds:
        request = np.repeat(np.arange(n), rng.integers(0, 4, n))
        drafted = rng.integers(0, 5, len(request))
        told = np.column_stack([request, drafted, drafted // 2])
    batch = np.arange(n) // 4
    seconds = rng.random(n // 4 + 1)[batch]
    return Evidence(
        tokens=rng.integers(-(2**63), 2**63 - 1, (n, width)),
        prompt=rng.integers(0, 3, n),
        seeds=rng.integers(-1, 2**31, n),
        rounds=told,
        seconds=float(seconds[::4].sum()),
        planned=n + 7,
        counts=np.sort(rng.integers(0, 9, (n, 2)))[:, ::-1].copy() if counts else None,
        batch=batch,
        batch_seconds=seconds,
        question=rng.integers(-(2**63), 2**63 - 1, n),
        case="engine / probe / temperature=1",
        arm="speculative",
    )


def served(n: int, width: int = 5, counts: bool = True, seed: int = 0) -> ServedEvidence:
    """A server's arm of n requests."""
    rng = np.random.default_rng(seed)
    symbols = rng.integers(-1, 2**31, (n, width))
    symbols[np.arange(width) >= rng.integers(0, width + 1, n)[:, None]] = ABSENT
    return ServedEvidence(
        symbols=symbols,
        prompt=rng.integers(0, 2, n),
        seeds=rng.integers(-1, 2**31, n),
        counts=np.sort(rng.integers(0, 9, (n, 2)))[:, ::-1].copy() if counts else None,
        total=None if counts else (9, 4),
        planned=n + 7,
        seconds=0.5 * -(-n // 4),
        unit="token",
        texts=("one \ud800 text", "another"),
        batch=np.arange(n) // 4,
        batch_seconds=np.full(n, 0.5),
        case="served / model / temperature=1",
        arm="control",
    )


def verifier(n: int, seed: int = 0) -> Stored:
    """A verifier's case with n blocks of its first law."""
    rng = np.random.default_rng(seed)

    def rows(kind: str, name: str, size: int, width: int) -> Rows:
        return Rows(kind, name, 0, rng.integers(-1, 2**31 - 1, (size, width)))

    return Stored(
        rows=(
            rows(LAW, "random-8", n, 4),
            rows(LAW, "peaked-16", 5, 2),
            rows(EDGE, "zero coin", 3, 4),
            rows(AGAIN, "random-8", min(n, 6), 4),
        ),
        run=3,
        law_seed=2**70,
        batch={"random-8": 2, "peaked-16": 7},
        refused={"zipf-32000": "too large"},
        seconds=2.5,
        case="v / grid / laws as given",
        arm="speculative",
    )


@st.composite
def engines(draw: st.DrawFn, fewest: int = 0) -> Evidence:
    """An engine's arm."""
    told: dict[str, Any] = {name: draw(st.booleans()) for name in ("rounds", "counts")}
    return engine(
        draw(st.integers(fewest, 24)),
        draw(st.integers(1, 4)),
        **told,
        seed=draw(st.integers(0, 99)),
    )


@st.composite
def cuts(draw: st.DrawFn, n: int) -> list[int]:
    """Where n rows are cut into pieces: 0, some places between, n."""
    inner = draw(st.sets(st.integers(1, max(n - 1, 1)), max_size=5))
    return sorted({0, n} | {c for c in inner if c < n})
