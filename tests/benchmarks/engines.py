"""What an adapter costs: the same engine asked through the suite, and by a bare loop.

The bare loops are ``bare/NAME.py``, run by the engine's own Python, with nothing of this suite in
what is timed. Ours is what ``conformance run`` does: requests through the pipe to the engine's
process, and completions back, checked. The OpenAI-compatible server is llama.cpp's, on loopback;
both ask it over HTTP, as many requests at a time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
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
SERVER = "xllamacpp"
SCRIPT = Path(__file__).parents[1] / "engines" / "llama_server.py"


@dataclass(frozen=True, slots=True)
class Loop:
    """An engine's method with a bare loop: its script, and what the script is told.

    `told` comes after the probe's folder; ``{n}`` is the number of requests, ``{url}`` and
    ``{control}`` are addresses of servers that are started for an engine whose options name them.
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
    Loop(
        "openai,url={url},control={control}",
        "openai.py",
        ("{url}", "{n}"),
        1024,
    ),
)


def compare(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Time every engine that is installed, bare and through the suite in turn.

    Yields
    ------
    dict
        Requests a second of both, medians over pairs, and the ratio pair by pair.
    """
    for loop in LOOPS:
        name = loop.engine.partition(",")[0]
        served = "{url}" in loop.engine
        if not all(map(_there, (name, SERVER) if served else (name,))):
            continue
        n = loop.requests // 8 if quick else loop.requests
        worker = Worker(600)
        with (
            _server("exact") if served else nullcontext("") as url,
            _server("control") if served else nullcontext("") as control,
            closing(worker),
        ):
            mine = replace(loop, engine=loop.engine.format(url=url, control=control))
            _ours(worker, mine, min(n, 256))  # loading and warming up
            pairs = [
                (_bare(mine, n, url), _ours(worker, mine, n)) for _ in range(1 if quick else PAIRS)
            ]
        yield {
            "engine": name,
            "requests": n,
            "bare": statistics.median(b for b, _ in pairs),
            "ours": statistics.median(o for _, o in pairs),
            "ratios": [o / b for b, o in pairs],
            "ratio": statistics.median(o / b for b, o in pairs),
        }


def _there(engine: str) -> bool:
    """Whether an engine is installed, in this environment or in one of its own."""
    builtin = BUILTINS[engine.partition(":")[0]]
    return not launch.missing(engine) and (builtin.own_environment or builtin.installed)


@contextmanager
def _server(kind: str) -> Iterator[str]:
    """Start llama.cpp's server on the probe, speculating (``exact``) or not; its address."""
    command = [launch.environment(SERVER) or sys.executable, "-P", str(SCRIPT)]
    package = importlib.util.find_spec("conformance")
    assert package is not None
    assert package.submodule_search_locations
    path = str(Path(package.submodule_search_locations[0]).parent)
    process = subprocess.Popen(
        [*command, str(load_probe("mid").folder), kind],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip() + "/v1"
    finally:
        process.stdin.close()
        process.wait(timeout=30)


def _bare(loop: Loop, n: int, url: str) -> float:
    """Requests a second of the bare loop."""
    python = launch.environment(loop.engine) or sys.executable
    probe = load_probe("mid").folder
    told = [word.format(n=n, url=url) for word in loop.told] + [str(TOKENS)]
    if not url:
        told.append(str(PROMPT))
    command = [python, "-P", str(BARE / loop.script), str(probe), *told]
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
