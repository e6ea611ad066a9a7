"""What an adapter costs: the same engine asked through the suite, and by a bare loop.

The bare loops are ``bare/NAME.py``, run by the engine's own Python, with nothing of this suite in
what is timed. Ours is what ``conformance run`` does: requests through the pipe to the engine's
process, and completions back, checked.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conformance import launch
from conformance.builtin import BUILTINS
from conformance.contract import Request
from conformance.decoding import Decoding
from conformance.pool import Task, Worker
from conformance.probes import load_probe

BARE = Path(__file__).parent / "bare"
PROMPT, TOKENS, PAIRS = 24, 8, 5


@dataclass(frozen=True, slots=True)
class Loop:
    """An engine's method with a bare loop: its script, and what the script is told.

    `told` comes after the probe's folder; ``{n}`` is the number of requests.
    """

    engine: str
    script: str
    told: tuple[str, ...]
    requests: int


LOOPS = (
    Loop("transformers", "transformers.py", ("{n}",), 256),
    Loop("xllamacpp", "xllamacpp.py", ("draft-model", "{n}"), 1024),
    Loop("xllamacpp:match", "xllamacpp.py", ("match", "{n}"), 1024),
    Loop("openvino-genai", "openvino-genai.py", ("draft-model", "{n}"), 2048),
    Loop("openvino-genai:prompt-lookup", "openvino-genai.py", ("prompt-lookup", "{n}"), 2048),
    Loop("flashspec", "flashspec.py", ("draft-model", "{n}"), 256),
    Loop("flashspec:batch", "flashspec.py", ("batch", "{n}"), 1024),
    Loop("mlx-lm", "mlx-lm.py", ("{n}",), 256),
    Loop("vllm", "vllm.py", ("ngram", "{n}"), 2048),
)


def compare(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Time every engine that is installed, bare and through the suite in turn.

    Yields
    ------
    dict
        Requests a second of both, medians over pairs, and the ratio pair by pair.
    """
    for loop in LOOPS:
        head = loop.engine.partition(":")[0]
        if launch.missing(loop.engine) or not (
            BUILTINS[head].own_environment or BUILTINS[head].installed
        ):
            continue
        n = loop.requests // 8 if quick else loop.requests
        worker = Worker(600)
        try:
            _ours(worker, loop, min(n, 256))  # loading and warming up
            pairs = [(_bare(loop, n), _ours(worker, loop, n)) for _ in range(1 if quick else PAIRS)]
        finally:
            worker.close()
        yield {
            "engine": loop.engine,
            "requests": n,
            "bare": statistics.median(b for b, _ in pairs),
            "ours": statistics.median(o for _, o in pairs),
            "ratios": [o / b for b, o in pairs],
            "ratio": statistics.median(o / b for b, o in pairs),
        }


def _bare(loop: Loop, n: int) -> float:
    """Requests a second of the bare loop."""
    python = launch.environment(loop.engine) or sys.executable
    probe = load_probe("mid").folder
    told = [word.format(n=n) for word in loop.told]
    command = [python, "-P", str(BARE / loop.script), str(probe), *told, str(TOKENS), str(PROMPT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert said["tokens"] == said["requests"] * TOKENS
    return float(said["requests"] / said["seconds"])


def _ours(worker: Worker, loop: Loop, n: int) -> float:
    """Requests a second through the suite."""
    rng = np.random.default_rng(n)
    prompts = rng.integers(32, size=(n, PROMPT)).tolist()
    asked = tuple(
        Request(tuple(p), TOKENS, Decoding(), seed) for seed, p in enumerate(prompts, start=1)
    )
    outcome = worker.generate(Task(0, loop.engine, load_probe("mid").pair, asked))
    if outcome.error is not None:
        raise outcome.error
    return n / outcome.seconds
