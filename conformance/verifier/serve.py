"""The verifier's side of the pipe: rebuild a chunk, verify it, answer with tokens only."""

from __future__ import annotations

import base64
import time
import zlib
from typing import Any

import numpy as np

from conformance.errors import BadAnswerError, EngineLoadError
from conformance.law import Floats
from conformance.reference import Ints
from conformance.verifier import draws, edges, wire
from conformance.verifier.contract import Verifier
from conformance.verifier.grid import Law, is_given, make_law


def check_verifier(name: str, made: object) -> Verifier:
    """Return the verifier, or say what it lacks.

    Raises
    ------
    EngineLoadError
        If part of the contract is missing.
    """
    missing = [part for part in ("card", "capabilities", "verify") if not hasattr(made, part)]
    if missing:
        raise EngineLoadError(
            f"verifier {name!r} lacks {', '.join(missing)}; see conformance.verifier.Verifier"
        )
    assert isinstance(made, Verifier)
    return made


class Server:
    """Answers the messages about one verifier.

    Parameters
    ----------
    verifier : Verifier
        The one under test.
    """

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self._law: Law | None = None
        self._sampler: draws.Sampler | None = None

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what the message asks."""
        return self._edge(message) if message["op"] == "edge" else self._verify(message)

    def _verify(self, message: dict[str, Any]) -> dict[str, Any]:
        chunk, run = draws.Chunk(**message["chunk"]), int(message["run"])
        law = make_law(chunk.law, int(message["law_seed"]))
        if law is not self._law or self._sampler is None:
            self._law, self._sampler = law, draws.Sampler(law.draft)
        tree = self.verifier.capabilities.tree
        make = draws.tree_proposals if tree else draws.proposals
        x = make(run, law, self._sampler, chunk)
        seeds = draws.call_seeds(run, law, chunk)
        self._use(law.spec.dtype or self.verifier.capabilities.dtypes[0])
        out, seconds = [], 0.0
        for call, seed in enumerate(seeds):
            rows = x[call * chunk.batch : (call + 1) * chunk.batch]
            tokens, taken = self._call(law, rows, int(seed), tree)
            out.append(tokens)
            seconds += taken
        packed = zlib.compress(np.concatenate(out).astype("<i4").tobytes(), 1)
        return {"tokens": base64.b64encode(packed).decode(), "seconds": seconds}

    def _call(self, law: Law, x: Ints, seed: int, tree: bool) -> tuple[Ints, float]:
        laws = (draws.given_tree if tree else draws.given_laws)(law, x)
        p, q = (self._cast(a) for a in laws)
        draft = q if is_given(law.spec, self.verifier.capabilities) else None
        begin = time.perf_counter()
        if tree:
            whole: Any = self.verifier
            made = whole.verify_tree(p, draft, x.copy(), draws.tree_shape(law.spec)[0], seed)
        else:
            made = self.verifier.verify(p, draft, x.copy(), seed)
        seconds = time.perf_counter() - begin
        return wire.plain_tokens(made, (len(x), x.shape[1] + 1)), seconds

    def _edge(self, message: dict[str, Any]) -> dict[str, Any]:
        edge = edges.BY_NAME[str(message["edge"])]
        claims = self.verifier.capabilities
        dtype = edge.dtype or claims.dtypes[0]
        self._use(dtype)
        p, q = self._cast(edge.p), None if edge.q is None else self._cast(edge.q)
        x = edge.x.copy()
        if edge.coins is not None and edge.last is not None:
            whole: Any = self.verifier
            return _packed([whole.verify_with(p, q, x, edge.coins.copy(), edge.last.copy())], [x])
        made, rows = [], []
        calls = [(seed, 1) for seed in edge.seeds] or [
            (begin, min(claims.max_batch, edge.repeats - begin))
            for begin in range(0, edge.repeats, claims.max_batch)
        ]
        for seed, size in calls:
            rows.append(np.repeat(x, size, axis=0))
            laws: list[Floats | None] = [
                None if a is None else np.repeat(a, size, axis=0) for a in (p, q)
            ]
            assert laws[0] is not None
            made.append(self.verifier.verify(laws[0], laws[1], rows[-1].copy(), seed))
        return _packed(made, rows)

    def _cast(self, probs: Floats) -> Floats:
        cast: Any = probs if self._dtype == "float64" else probs.astype(np.float32)
        return np.asarray(cast)

    def _use(self, dtype: str) -> None:
        self._dtype = dtype
        use = getattr(self.verifier, "use_dtype", None)
        if use is not None:
            use(dtype)
        elif dtype != self.verifier.capabilities.dtypes[0]:
            raise BadAnswerError(f"it claims {dtype} beside its own precision, without use_dtype")


def _packed(made: list[Ints], rows: list[Ints]) -> dict[str, Any]:
    tokens = [
        wire.plain_tokens(m, (len(x), x.shape[1] + 1)) for m, x in zip(made, rows, strict=True)
    ]
    packed = zlib.compress(np.concatenate(tokens).astype("<i4").tobytes(), 1)
    return {"tokens": base64.b64encode(packed).decode(), "seconds": 0.0}
