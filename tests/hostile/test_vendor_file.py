"""One file outside this repository, as a vendor writes it, through the command line and pytest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.cli import main
from conformance.probes import CACHE_VARIABLE

pytestmark = pytest.mark.engines

VENDOR = '''
    """A complete engine in one file."""
    from functools import lru_cache
    import numpy as np
    from conformance import Capabilities, Completion, EngineCard
    from conformance.tinylm import TinyLlama  # in place of the vendor's own models

    class Vendor:
        card = EngineCard(name="vendor", version="1.0")
        capabilities = Capabilities(top_k=False, top_p=False, min_p=False)

        def load(self, probe):
            self.target, self.draft = TinyLlama.load(probe.target), TinyLlama.load(probe.draft)

        def close(self):
            self.target = self.draft = None

        def generate(self, requests):
            return [self.one(r) for r in requests]

        @lru_cache(None)  # a prefix cache: two tokens make few prefixes
        def laws(self, model, tokens, temperature):
            e = np.exp(model.logits(np.array([tokens]))[0] / temperature)
            return e / e.sum(-1, keepdims=True)

        def one(self, r):
            rng = np.random.default_rng(r.seed)
            out, rounds, k = list(r.prompt), [], 3 if r.speculate else 0
            while len(out) < len(r.prompt) + r.max_new_tokens:
                block, q = list(out), []
                for _ in range(k):
                    q.append(self.laws(self.draft, tuple(block), r.decoding.temperature)[-1])
                    block.append(int(rng.choice(len(q[-1]), p=q[-1])))
                p = self.laws(self.target, tuple(block), r.decoding.temperature)[len(out) - 1 :]
                n, x = 0, block[len(out) :]
                while n < k and rng.random() < ACCEPT:
                    n += 1
                last = p[n] if n == k else np.maximum(p[n] - q[n], 0)
                out = block[: len(out) + n] + [int(rng.choice(len(last), p=last / last.sum()))]
                rounds.append((k, n))
            tokens = out[len(r.prompt) :][: r.max_new_tokens]
            return Completion(tokens, rounds=rounds if k else None)

    class GreedyIsNotMine(Vendor):
        capabilities = Capabilities(greedy=False, top_k=False, top_p=False, min_p=False)

    class Loud(Vendor):
        card = EngineCard(name="\\x1b]0;owned\\x07<b>vendor</b>" * 9, version="\\x9b2J")

        def generate(self, requests):
            raise RuntimeError("\\x1b[2J\\x1b[1;1HEXACT: 0 problems [/red] " + "z" * 100_000)
'''
EXACTLY, LENIENTLY = "p[n][x[n]] / q[n][x[n]]", "p[n][x[n]] / q[n][x[n]] / 0.7"
# two tokens whose laws are the same everywhere: few requests of a slow engine decide
SMALL = ("--profile", "smoke", "--probe", "worked-example", "-d", "temperature=1")


def write(folder: Path, accept: str = EXACTLY) -> Path:
    path = folder / "vendor.py"
    path.write_text(textwrap.dedent(VENDOR).replace("ACCEPT", accept), encoding="utf-8")
    return path


def run(folder: Path, engine: str, *words: str) -> Result:
    out = ("--jobs", "1", "--out", str(folder / "out"))
    return CliRunner().invoke(main, ["run", f"{folder / 'vendor.py'}:{engine}", *words, *out])


@pytest.mark.usefixtures("probe_cache")
def test_command_line_exact(tmp_path: Path) -> None:
    write(tmp_path)
    result = run(tmp_path, "Vendor", *SMALL)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out/report.json").read_text())
    (case,) = report["cases"]
    assert report["engines"][0]["card_name"] == "vendor"
    assert case["speculation"]["accepted"] > 100
    assert {a["arm"] for a in case["arms"]} == {"speculative", "control"}


@pytest.mark.usefixtures("probe_cache")
def test_command_line_not_exact(tmp_path: Path) -> None:
    """The same file with one more factor in it."""
    write(tmp_path, LENIENTLY)
    result = run(tmp_path, "Vendor", *SMALL)
    assert result.exit_code == 1, result.output
    why = json.loads((tmp_path / "out/report.json").read_text())["cases"][0]["why"]
    assert "leans to the draft" in why
    assert "lenient" in why  # the likely cause


@pytest.mark.usefixtures("probe_cache")
def test_what_is_not_claimed_is_exit_status_2(tmp_path: Path) -> None:
    write(tmp_path)
    result = run(tmp_path, "GreedyIsNotMine", "--profile", "smoke", "-d", "greedy", "-d", "top_k=3")
    assert result.exit_code == 2
    assert "NOT SUPPORTED" in result.output
    assert "nothing can be said" in result.output


@pytest.mark.usefixtures("probe_cache")
def test_an_engine_cannot_draw_on_the_terminal(tmp_path: Path) -> None:
    write(tmp_path)
    result = run(tmp_path, "Loud", "--profile", "smoke", "-d", "greedy")
    assert result.exit_code == 2, result.output
    assert not {"\x1b", "\x9b", "\x07"} & set(result.output)
    assert len(result.output) < 20_000
    assert re.search(r"RuntimeError:\s", result.output)
    for name in ("report.html", "report.md", "junit.xml"):
        text = (tmp_path / "out" / name).read_text()
        assert not {"\x1b", "\x9b", "\x07"} & set(text), name
        assert "<b>vendor</b>" not in text


def test_pytest_suites(tmp_path: Path, probe_cache: Path) -> None:
    path = write(tmp_path)
    command = [
        *(sys.executable, "-m", "pytest", "--pyargs", "conformance.suites", "-q"),
        *("--engine", f"{path.name}:Vendor", "--decoding=temperature=1"),
        *("--conformance-profile=smoke", "--conformance-probe=worked-example"),
    ]
    env = os.environ | {CACHE_VARIABLE: str(probe_cache)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "run verdict: EXACT" in done.stdout
