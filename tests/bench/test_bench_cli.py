"""``conformance bench`` itself, with real engine processes."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.bench import run as bench_run
from conformance.cli import main
from conformance.probes import load_probe
from conformance.reports.bench_model import bench_schema, load_bench

QUICK = [
    *("-d", "temperature=1", "--batch", "1", "--prompt-length", "8"),
    *("--repeats", "6", "--warmup", "1", "--new-tokens", "6", "--no-memory"),
]


def bench(out: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["bench", *words, "--out", str(out)])


def test_reference_end_to_end(tmp_path: Path) -> None:
    done = bench(tmp_path, "reference", *QUICK, "--batch", "1,2", "--memory")
    assert done.exit_code == 0, done.output
    report = load_bench(tmp_path / "bench.json")
    assert report.finished
    one, two = report.cells
    assert (one.status, one.streamed, one.repeats) == ("measured", True, 6)
    assert (two.batch, len(two.arms[0].first[0])) == (2, 2)
    assert {a.arm for a in one.arms} == {"speculative", "control", "draft"}
    # the reference samples by rejection, which accepts sum min(p, q)
    assert "As much is accepted" in two.acceptance.sentence
    (memory,) = report.memory
    assert len(memory.with_draft) == len(memory.without) == 3
    assert min(*memory.with_draft, *memory.without) > 10 * 2**20
    assert memory.stand_in_files < memory.draft_files
    assert {p.name for p in tmp_path.iterdir()} == {"bench.json", "bench.html", "bench.md"}
    assert "Not audited" in done.output


def test_own_models_and_prompts(tmp_path: Path, probe_cache: Path) -> None:
    pair = load_probe("mid", probe_cache).pair
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": [1, 2, 3]}\n{"text": "w1 w2 w3 w4"}\n')
    out = tmp_path / "out"
    words = ["--models", str(pair.target), str(pair.draft), "--prompts", str(prompts)]
    done = bench(out, "reference", *QUICK, *words)
    assert done.exit_code == 0, done.output
    report = load_bench(out / "bench.json")
    assert report.engines[0].probe is None
    (cell,) = report.cells
    assert cell.prompt_length is None
    assert cell.prompts.startswith("2 of 2 prompts brought, 3 to 4 tokens; some were asked more")
    assert cell.acceptance.most is not None  # these are plain Llamas, so their laws are known


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nobody"], "no engine named"),
        (["reference", "--batch", "0"], "from 1 to"),
        (["reference", "--batch", "1,x"], "not a list of whole numbers"),
        (["reference", "-d", "top_k=0"], "top_k"),
        (["reference", "--repeats", "3"], "too few"),
        (["openai,url=http://me:secret@host/v1"], "take the user and the password out"),
        ([], "Missing argument"),
    ],
)
def test_what_a_person_got_wrong_is_a_sentence(tmp_path: Path, words: list[str], said: str) -> None:
    done = bench(tmp_path / "out", *words)
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "out").exists()


def test_models_that_are_none_are_named(tmp_path: Path) -> None:
    target, draft = tmp_path / "target", tmp_path / "draft"
    target.mkdir()
    draft.mkdir()
    words = ["reference", "--models", str(target), str(draft)]
    assert "cannot read" in bench(tmp_path / "out", *words).output
    (target / "config.json").write_text('{"vocab_size": true}')
    assert "does not say vocab_size" in bench(tmp_path / "out", *words).output
    (target / "config.json").write_text("[")
    assert "is not JSON" in bench(tmp_path / "out", *words).output


HOSTILE = """
    import sys, time
    sys.path.insert(0, {here!r})
    from conformance.contract import Capabilities, Completion, EngineCard

    class Engine:
        card = EngineCard("hostile", "1")
        capabilities = Capabilities()
        def load(self, probe): self.asked = 0
        def close(self): pass
        def generate(self, requests):
            self.asked += 1
            r = requests[0]
            if len(r.prompt) == 8:
                {fault}
            tokens = (0,) * r.max_new_tokens
            return [Completion(tokens, times=[1e-6 * i for i in range(len(tokens))])
                    for r in requests]
"""


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise RuntimeError('boom')", "boom"),
        ("time.sleep(1000)", "did not answer within"),
        ("return [Completion((0,))]", "1 tokens where 6"),
        ("return [Completion((0,) * 6, times=[3, 2, 1, 0, 0, 0])]", "in order"),
        ("return [Completion((0,) * 6, times=[float('nan')] * 6)]", "must be seconds"),
        ("return [Completion((0,) * 6, times=[0.0] * 5)]", "one for each of 6 tokens"),
        ("return [Completion((0,) * 6, times='abcdef')]", "must be numbers"),
    ],
)
def test_a_hostile_engine_costs_its_cell(tmp_path: Path, fault: str, said: str) -> None:
    path = tmp_path / "engine.py"
    text = HOSTILE.format(here=str(tmp_path), fault=fault)
    path.write_text(textwrap.dedent(text))
    words = [f"{path}:Engine", *QUICK, "--prompt-length", "8,9", "--timeout", "10", "-q"]
    done = bench(tmp_path / "out", *words)
    assert done.exit_code == 2, done.output
    bad, good = load_bench(tmp_path / "out" / "bench.json").cells
    assert bad.status == "error"
    assert said in bad.why
    assert good.status == "measured"


def test_an_interruption_leaves_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = bench_run.measure

    def interrupted(cell, *rest):
        if cell.prompt_length == 9:
            raise KeyboardInterrupt
        return plain(cell, *rest)

    monkeypatch.setattr(bench_run, "measure", interrupted)
    done = bench(tmp_path, "reference", *QUICK, "--prompt-length", "8,9")
    assert done.exit_code == 130
    assert "What was measured until then is kept" in done.output
    report = load_bench(tmp_path / "bench.json")
    assert (report.finished, len(report.cells)) == (False, 1)
    assert "Interrupted" in (tmp_path / "bench.html").read_text()
    assert "Interrupted" in (tmp_path / "bench.md").read_text()
    other = tmp_path / "other"
    done = bench(other, "reference", *QUICK, "--prompt-length", "9")
    assert done.exit_code == 130
    assert not other.exists()


def test_the_schema_is_printed() -> None:
    printed = CliRunner().invoke(main, ["schema", "--bench"])
    assert json.loads(printed.output) == bench_schema()
    assert CliRunner().invoke(main, ["schema", "--bench", "--protocol"]).exit_code == 2
