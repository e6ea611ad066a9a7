"""What a control server says of its own law: asked before sampling, kept beside the arms.

Each prompt is asked several times for a whole answer with the likeliest tokens at every place of
it; and then every prefix that many answers are expected to have, level by level, is asked for the
one token after it. Which prefixes these are follows from the laws alone. All of it is asked of the
control arm: a server that speculates may return anything for tokens that it accepted.

What was asked more than once says how far a server's log-probabilities vary, from batch to batch
and between the prefix of a prompt and the same tokens generated one by one. Requests of a level are
sent together in a random order, so that batches are as full as they are while sampling.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from conformance import columns, parquet
from conformance.adapters.openai_logprobs import ABOVE_ONE, IMPOSSIBLE, MOST, Top
from conformance.asked import evidence_path
from conformance.decoding import Decoding
from conformance.errors import ConformanceError, EvidenceError
from conformance.plan import RunPlan
from conformance.served.nodes import WORTH, Node, Nodes
from conformance.served.plan import MOST_NODES, REPEATS, WALKS, ServedCase
from conformance.served.server import TopAsk, TopSource

LAWS = "laws"  # in the place of an arm, in the name of the file
PREFIX, IDS = columns.listed("prefix"), columns.listed("ids")
LOGPROBS = columns.listed("logprobs", columns.FLOAT)
SHAPE = parquet.Shape(
    "served-laws",
    pa.schema([columns.whole("stage"), columns.whole("prompt"), PREFIX, IDS, LOGPROBS]),
)


@dataclass(frozen=True, slots=True, eq=False)
class ServedLaws:
    """What was told, in the order asked.

    Parameters
    ----------
    texts : tuple of str
        The prompts.
    most : int
        Tokens asked for at each place.
    processed : bool
        Whether the server was to apply the decoding; else they are of the plain softmax.
    nodes : tuple of (int, tuple of int)
        Prompt and prefix of every place.
    tops : tuple of Top
        What was told there.
    stages : tuple of int
        The stage of the run at which that was asked; never one before another.
    reasons : tuple of str
        Of every stage at which it was asked: why there is no more of it, or nothing.
    ends : tuple of int
        Tokens after which answers ended.
    case : str
        Id of the case.
    """

    texts: tuple[str, ...]
    most: int
    processed: bool
    nodes: tuple[Node, ...] = ()
    tops: tuple[Top, ...] = ()
    stages: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()
    case: str = ""

    def at(self, stage: int) -> ServedLaws:
        """As they were at a stage of the run."""
        n = bisect.bisect_right(self.stages, stage)
        return replace(
            self,
            nodes=self.nodes[:n],
            tops=self.tops[:n],
            stages=self.stages[:n],
            reasons=self.reasons[:stage],
        )

    @property
    def sha256(self) -> str:
        """Checksum of all of it."""
        told = [
            [p, h, t.ids, t.logprobs, stage]
            for (p, h), t, stage in zip(self.nodes, self.tops, self.stages, strict=True)
        ]
        whole = [self.texts, self.most, self.processed, self.reasons, self.ends, self.case, told]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the file in one step.

        Raises
        ------
        EvidenceError
            If it cannot be written.
        """
        told = [
            columns.ints(np.array(self.stages, dtype=np.int64)),
            columns.ints(np.array([p for p, _ in self.nodes], dtype=np.int64)),
            pa.array([list(h) for _, h in self.nodes], type=PREFIX.type),
            pa.array([list(t.ids) for t in self.tops], type=IDS.type),
            pa.array([list(t.logprobs) for t in self.tops], type=LOGPROBS.type),
        ]
        meta = {
            "case": self.case,
            "arm": LAWS,
            "begin": 0,
            "texts": self.texts,
            "most": self.most,
            "processed": self.processed,
            "reasons": self.reasons,
            "ends": self.ends,
            "sha256": self.sha256,
        }
        parquet.write_table(path, SHAPE, [told], meta)


def load_laws(path: Path, most: int | None = None) -> ServedLaws:
    """Read them.

    Parameters
    ----------
    path : Path
        The file.
    most : int, optional
        Rows it may have.

    Raises
    ------
    EvidenceError
        If the file is missing, damaged, or its checksum is another's.
    """
    return parquet.read_table(path, SHAPE, _made, most)


def _made(table: pa.Table, meta: parquet.Meta) -> ServedLaws:
    stages, prompt, prefix, ids, logprobs = (table[n].to_pylist() for n in SHAPE.schema.names)
    made = ServedLaws(
        texts=_texts(meta.get("texts")),
        most=columns.count(meta, "most"),
        processed=meta.get("processed") is True,
        nodes=tuple((p, tuple(h)) for p, h in zip(prompt, prefix, strict=True)),
        tops=tuple(Top(tuple(i), tuple(x)) for i, x in zip(ids, logprobs, strict=True)),
        stages=tuple(stages),
        reasons=_texts(meta.get("reasons")),
        ends=_ids(meta.get("ends")),
        case=columns.words(meta, "case"),
    )
    good = 0 < made.most <= MOST and all(
        len(t.ids) == len(t.logprobs) == len(set(t.ids))
        and 0 < len(t.ids) <= made.most
        and all(IMPOSSIBLE <= x <= ABOVE_ONE for x in t.logprobs)
        and 0 <= p < len(made.texts)
        for (p, _), t in zip(made.nodes, made.tops, strict=True)
    )
    if not good or list(made.stages) != sorted(made.stages):
        raise ValueError("its tokens, log-probabilities, prompts and stages do not fit together")
    if made.sha256 != meta.get("sha256"):
        raise ValueError("it is not what was written: its checksum is another")
    return made


def _texts(said: object) -> tuple[str, ...]:
    if not isinstance(said, list) or not all(isinstance(text, str) for text in said):
        raise ValueError("its prompts or reasons are no texts")
    return tuple(said)


def _ids(said: object) -> tuple[int, ...]:
    if not isinstance(said, list) or not all(type(i) is int for i in said):
        raise ValueError("its ends are no tokens")
    return tuple(said)


def kept_laws(plan: RunPlan, case: ServedCase, folder: Path) -> ServedLaws | None:
    """What was told of a case up to this stage of the run; None if it was not asked yet.

    Raises
    ------
    EvidenceError
        If it is another case's, or damaged.
    """
    path = evidence_path(folder, case, LAWS)
    if not case.by_law or not os.path.lexists(path):
        return None
    kept = load_laws(path, _most_rows(case))
    assert case.met is not None
    assert case.aim is not None
    mine = (case.id, case.texts, case.met.logprobs, case.aim.processed)
    if (kept.case, kept.texts, kept.most, kept.processed) != mine:
        raise EvidenceError(f"{path} was gathered under another plan")
    return kept.at(plan.stage)


def _most_rows(case: ServedCase) -> int:
    """Places that are ever asked about, at all stages together."""
    assert case.workload is not None
    walks = len(case.texts) * WALKS * case.workload.new_tokens
    return walks + 2 * MOST_NODES * REPEATS


# --- asking ---------------------------------------------------------------------------------------


def learnt(
    plan: RunPlan, case: ServedCase, folder: Path, source: object, kept: ServedLaws | None
) -> ServedLaws | None:
    """What a case's control server tells, asked if this stage has not asked yet, and saved.

    Raises
    ------
    EvidenceError
        If it cannot be saved.
    """
    asked = kept is not None and len(kept.reasons) >= plan.stage
    if asked or not case.by_law or not isinstance(source, TopSource):
        return kept
    told = ask_laws(plan, case, source, kept)
    told.save(evidence_path(folder, case, LAWS))
    return told


def ask_laws(
    plan: RunPlan, case: ServedCase, source: TopSource, kept: ServedLaws | None = None
) -> ServedLaws:
    """Ask what is worth asking and was not asked yet; never raises what a server causes.

    Parameters
    ----------
    plan : RunPlan
        Seeds come from it.
    case : ServedCase
        Planned, and sampling.
    source : TopSource
        The control server.
    kept : ServedLaws, optional
        What it told before.
    """
    assert case.met is not None
    assert case.aim is not None
    asking = _Asking(plan, case, source, kept)
    try:
        asking.walks()
        asking.prefixes()
    except ConformanceError as exc:
        reason = str(exc)
    except Exception as exc:  # whatever a server can cause leaves the case without a law
        reason = f"{type(exc).__name__}: {exc}"
    else:
        return asking.laws()
    return asking.laws(reason)


class _Asking:
    """What was told so far."""

    def __init__(
        self, plan: RunPlan, case: ServedCase, source: TopSource, kept: ServedLaws | None
    ) -> None:
        assert case.aim is not None
        self.case, self.source, self.stage = case, source, plan.stage
        self.rng = np.random.default_rng([plan.seed, zlib.crc32(case.id.encode()), 7, plan.stage])
        self.decoding = case.decoding if case.aim.processed else Decoding()
        self.nodes: list[Node] = [] if kept is None else list(kept.nodes)
        self.tops: list[Top] = [] if kept is None else list(kept.tops)
        self.stages: list[int] = [] if kept is None else list(kept.stages)
        self.ends: set[int] = set() if kept is None else set(kept.ends)
        self.reasons = (() if kept is None else kept.reasons)[: plan.stage - 1]

    def laws(self, reason: str = "") -> ServedLaws:
        assert self.case.met is not None
        assert self.case.aim is not None
        return ServedLaws(
            self.case.texts,
            self.case.met.logprobs,
            self.case.aim.processed,
            tuple(self.nodes),
            tuple(self.tops),
            tuple(self.stages),
            (*self.reasons, *[""] * (self.stage - 1 - len(self.reasons)), reason),
            tuple(sorted(self.ends)),
            self.case.id,
        )

    def walks(self) -> None:
        """Whole answers to each prompt."""
        assert self.case.workload is not None
        times = [0] * len(self.case.texts)
        for p, prefix in self.nodes:
            times[p] += not prefix
        wanted: list[Node] = [
            (p, ()) for p, n in enumerate(times) for _ in range(max(WALKS - n, 0))
        ]
        self._ask(wanted, self.case.workload.new_tokens)

    def prefixes(self) -> None:
        """The token after each prefix that many answers will have, shorter ones first."""
        assert self.case.workload is not None
        left = MOST_NODES
        for depth in range(1, self.case.workload.new_tokens):
            found = Nodes(self.case, self.laws())
            here = [(n, h) for h, n in found.expected.items() if len(h[1]) == depth - 1]
            if depth == 1:
                left -= len(here)
            worth = sorted(self._children(found, here), key=lambda t: (-t[0], t[1]))[: max(left, 0)]
            left -= len(worth)
            if not worth:
                return
            asked = Counter(self.nodes)
            wanted = [h for _, h in worth for _ in range(REPEATS - asked[h])]
            self._ask(wanted[: _most_rows(self.case) - len(self.nodes)], 1)

    def _children(
        self, found: Nodes, here: Sequence[tuple[float, Node]]
    ) -> Iterator[tuple[float, Node]]:
        for n, (p, prefix) in here:
            law = found.laws[p, prefix]
            for i, prob in zip(law.ids.tolist(), law.probs.tolist(), strict=False):
                if n * prob >= WORTH and i not in self.ends:
                    yield n * prob, (p, (*prefix, i))

    def _ask(self, wanted: Sequence[Node], tokens: int) -> None:
        order = self.rng.permutation(len(wanted))
        seeds = self.rng.integers(0, 2**31, len(wanted)).tolist()
        asks = [
            TopAsk(self.case.texts[wanted[i][0]], wanted[i][1], seed, tokens)
            for i, seed in zip(order.tolist(), seeds, strict=True)
        ]
        for i, answer in zip(
            order.tolist(), self.source.tops(self.decoding, asks) if asks else [], strict=True
        ):
            prompt, prefix = wanted[i]
            if answer.ended and answer.tokens:
                self.ends.add(answer.tokens[-1])
            for place, top in enumerate(answer.tops):
                self.nodes.append((prompt, prefix + answer.tokens[:place]))
                self.tops.append(top)
                self.stages.append(self.stage)
