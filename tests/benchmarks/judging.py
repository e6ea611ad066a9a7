"""Time and peak memory of judging, against the number of tokens and the vocabulary.

The judge of a real run reads evidence against laws that come from a function in chunks; nothing is
asked of a model, so that what is measured is judging alone. Every cell is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.laws import make_pair
from conformance.adapters.reference import ReferenceEngine
from conformance.decoding import Decoding
from conformance.evidence import Evidence
from conformance.judge import ArmJudge
from conformance.law import Floats, Laws
from conformance.oracle import NUMBERS_AT_ONCE, Chunk, Oracle, Tree
from conformance.plan import PROFILES, Case, make_plan
from conformance.tinylm import Tokens
from conformance.workload import Workload

PROMPTS, LENGTH, BANK, DISTANCE = 16, 16, 8, 0.25
CELLS = (
    *((32, n) for n in (10**4, 10**5, 10**6, 10**7)),
    *((v, n) for v in (32_000, 152_000) for n in (300, 10**3, 10**4, 10**5, 10**6, 10**7)),
)
MOST_NUMBERS = 5e8  # tokens times vocabulary that are judged unless everything is asked for
QUICK_CELLS = ((32, 10**4), (32, 10**5))


class BankOracle(Oracle):
    """Laws that depend on the prompt and the output index alone: rows of a small bank."""

    def __init__(self, vocab: int) -> None:
        pairs = [make_pair(vocab, DISTANCE, seed) for seed in range(BANK)]
        self.p = np.stack([x.p for x in pairs])  # [BANK, V]
        self.q = np.stack([x.q for x in pairs])
        self.draft_kind = "model"
        self.probe: Any = SimpleNamespace(recipe=SimpleNamespace(vocab_size=vocab))

    def rows(self, prompt: Tokens, index: Tokens) -> Tokens:
        """Which row of the bank is the law there."""
        return np.asarray((prompt + index) % BANK)

    def target_laws(self, prompts: Tokens, tokens: Tokens) -> Laws:
        """Laws after prefixes, [B, L] and [B, m]; a prompt is its own number."""
        return self._laws(self.p[self.rows(prompts[:, 0], np.full(len(prompts), tokens.shape[1]))])

    def chunks(self, prompts: Tokens, tree: Tree) -> Iterator[Chunk]:
        """As many prefixes at a time as a real oracle would take."""
        step = max(1, NUMBERS_AT_ONCE // self.p.shape[1])
        for begin in range(0, len(tree.request), step):
            cut = slice(begin, begin + step)
            at = self.rows(tree.prompt[tree.request[cut]], tree.index[cut])
            law = self.p[at]
            yield Chunk(begin, self._laws(law), self.q[at], law)

    @staticmethod
    def _laws(law: Floats) -> Laws:
        return Laws(law, np.ones(law.shape, bool), np.zeros(len(law), bool))


class BankCase(Case):
    """A case whose laws come from a bank."""

    @cached_property
    def oracle(self) -> Oracle:
        return BankOracle(int(self.probe))


def measure(vocab: int, tokens: int) -> dict[str, Any]:
    """Judge about `tokens` tokens in this process."""
    engine = ReferenceEngine()
    requests = max(PROMPTS, tokens // LENGTH)
    work = Workload(tuple((i,) for i in range(PROMPTS)), requests, LENGTH)
    case = BankCase("bank", str(vocab), Decoding(), engine.card, engine.capabilities, work)
    oracle = case.oracle
    assert isinstance(oracle, BankOracle)
    plan = make_plan([replace(case, refusal="planned elsewhere")], PROFILES["smoke"])
    evidence = _evidence(oracle, work)
    resting = _peak()
    begin = time.process_time()  # one thread: what else the machine does takes nothing from it
    findings = ArmJudge(plan, case, "control", evidence).findings()
    return {
        "vocab": vocab,
        "tokens": evidence.tokens.size,
        "seconds": time.process_time() - begin,
        "peak_mib": _peak(),
        "resting_mib": resting,
        "findings": len(findings),
    }


def _evidence(oracle: BankOracle, work: Workload) -> Evidence:
    rng = np.random.default_rng(0)
    prompt = work.prompt_of
    tokens = np.zeros((len(prompt), LENGTH), np.int64)
    for t in range(LENGTH):
        at = oracle.rows(prompt, np.full(len(prompt), t))
        for k in range(BANK):
            mine = np.flatnonzero(at == k)
            cdf = np.cumsum(oracle.p[k])
            tokens[mine, t] = np.searchsorted(cdf, rng.random(len(mine)) * cdf[-1], side="right")
    return Evidence(tokens, prompt, np.arange(len(prompt)), None, 0.0, len(prompt))


def _peak() -> float:
    """Largest memory this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cells(wanted: Sequence[tuple[int, int]], everything: bool) -> Iterator[dict[str, Any]]:
    """Every cell in a process of its own; cells that would take hours are named, not judged."""
    for vocab, tokens in wanted:
        if not everything and vocab * tokens > MOST_NUMBERS:
            yield {"vocab": vocab, "tokens": tokens, "seconds": None}
            continue
        yield apart(vocab, tokens)


def apart(vocab: int, tokens: int) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-P", "-m", "benchmarks.judging", str(vocab), str(tokens)]
    # -P keeps the working directory off the path, so the folder of this package is named
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return dict(json.loads(done.stdout))


def with_cell(rows: Sequence[dict[str, Any]], cell: dict[str, Any], tokens: int) -> dict[str, Any]:
    """This part of the benchmark with one cell, asked for `tokens`, measured anew."""
    size = cell["vocab"], {tokens, cell["tokens"]}
    kept = [r for r in rows if r["vocab"] != size[0] or r["tokens"] not in size[1]]
    found = sorted([*kept, cell], key=lambda r: (r["vocab"], r["tokens"]))
    return {"cells": found, "exponents": exponents(found)}


def exponents(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Growth of time with tokens for each vocabulary: the slope of log time on log tokens."""
    done = [r for r in rows if r["seconds"] is not None]
    out = {}
    for vocab in sorted({r["vocab"] for r in done}):
        mine = [r for r in done if r["vocab"] == vocab]
        if len(mine) > 1:
            logs = np.log([[r["tokens"], r["seconds"]] for r in mine])
            out[f"tokens, V = {vocab:,}"] = float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])
    return out


def main() -> None:
    """Measure one cell and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vocab", type=int)
    parser.add_argument("tokens", type=int)
    args = parser.parse_args()
    print(json.dumps(measure(args.vocab, args.tokens)))


if __name__ == "__main__":
    main()
