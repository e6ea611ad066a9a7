"""The host as another virtual environment runs it: as a file, with nothing of ours installed."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conformance import launch, wire
from conformance.cli import main
from conformance.contract import Request
from conformance.decoding import Decoding
from conformance.errors import EngineLoadError, UnknownEngineError
from conformance.pool import Task, Worker
from conformance.probes import load_probe

ENGINE = """
    import sys
    from conformance import Capabilities, Completion, EngineCard

    class Plain:
        card = EngineCard(name="plain")
        capabilities = Capabilities(processes=1)

        def __init__(self, device="cpu", dtype="float32"):
            self.device = device

        def load(self, probe):
            self.v = probe.vocab_size

        def close(self):
            pass

        def generate(self, requests):
            foreign = [m for m in ("numpy", "scipy", "click", "pydantic") if m in sys.modules]
            assert not foreign, foreign
            return [self.one(r, (6, 2) if r.speculate else None) for r in requests]

        def one(self, r, counts):
            return Completion([r.seed % self.v] * r.max_new_tokens, counts=counts)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plain.py"
    path.write_text(textwrap.dedent(ENGINE), encoding="utf-8")
    return path


def bare(name: str) -> list[str]:
    """The command line for another Python, run by this one without any of its packages."""
    python, *rest = launch.command(name, python="another/bin/python")
    assert python == "another/bin/python"
    return [sys.executable, "-I", "-S", *rest[1:]]


def talk(name: str, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    numbered = [json.dumps(m | {"id": i}) for i, m in enumerate(messages)]
    done = subprocess.run(
        bare(name), input="\n".join(numbered) + "\n", capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_it_needs_the_standard_library_alone(file: Path) -> None:
    pair = load_probe("mid").pair
    requests = [
        Request((1, 2), 3, Decoding(top_p=0.5), 40),
        Request((1, 2), 3, Decoding(), 7, False),
    ]
    started, loaded, answered, unknown = talk(
        f"{file}:Plain",
        {"op": "start", "protocol": wire.PROTOCOL, "engine": f"{file}:Plain,device=cuda"},
        {"op": "load", "probe": wire.encode_pair(pair)},
        {"op": "generate", "requests": wire.encode_requests(requests)},
        {"op": "sing"},
    )
    assert started["card"]["name"] == "plain"
    assert started["capabilities"]["processes"] == 1
    assert loaded == {"id": 1}
    assert wire.read_completions(answered, requests) == (
        {"tokens": [8, 8, 8], "rounds": None, "counts": [6, 2]},
        {"tokens": [7, 7, 7], "rounds": None, "counts": None},
    )
    assert unknown["message"] == "the host protocol has no message 'sing'"


def test_what_comes_before_start_is_refused(file: Path) -> None:
    (answer,) = talk(f"{file}:Plain", {"op": "generate", "requests": []})
    assert answer["message"] == "the message 'generate' came before 'start'"


def test_another_python_runs_the_engine(file: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"  # an environment's Python is a link that must not be followed
    python.symlink_to(sys.executable)
    worker = Worker(60, str(python))
    try:
        task = Task(0, f"{file}:Plain", load_probe("mid").pair, (Request((1,), 2, Decoding(), 3),))
        outcome = worker.generate(task)
        assert outcome.error is None
        assert outcome.completions[0]["tokens"] == [3, 3]
    finally:
        worker.close()


def test_a_python_or_program_that_is_not_there(file: Path) -> None:
    for name, python, said in (
        (f"{file}:Plain", "/no/such/python", "cannot start /no/such/python"),
        ("exec:/no/such/program --loud", None, "cannot start /no/such/program"),
    ):
        worker = Worker(20, python)
        with pytest.raises(EngineLoadError, match=said):
            worker.start(name)
    with pytest.raises(UnknownEngineError, match="exec: needs a program"):
        Worker(20).start("exec: ")


def test_an_environment_that_was_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFORMANCE_ENGINES", str(tmp_path))
    monkeypatch.setattr("conformance.builtin.Builtin.installed", None)
    with pytest.raises(
        EngineLoadError, match="run 'conformance setup xllamacpp', or give --python"
    ):
        Worker(20).start("xllamacpp")
    folder = tmp_path / "xllamacpp"
    (folder / "bin").mkdir(parents=True)
    assert launch.missing("xllamacpp")  # a set-up that did not end is none
    (folder / "conformance-ready.txt").touch()
    assert launch.missing("xllamacpp") is None
    assert launch.command("xllamacpp")[0] == str(folder / "bin" / "python")


def test_an_answer_to_another_question_is_none(tmp_path: Path) -> None:
    """A line too many must not shift every later answer by one."""
    script = tmp_path / "twice.py"
    script.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    a = {'id': m['id'], 'protocol': 1, 'card': {'name': 'x'}, 'capabilities': {}}\n"
        "    print(json.dumps(a), flush=True)\n"
        "    print(json.dumps(a), flush=True)\n",
        encoding="utf-8",
    )
    worker = Worker(20)
    task = Task(
        0,
        f"exec:{sys.executable} {script}",
        load_probe("mid").pair,
        (Request((1,), 2, Decoding(), 3),),
    )
    outcome = worker.generate(task)
    assert "answered garbage: id 1 where 2 was asked" in str(outcome.error)
    worker.close()


def test_another_version_of_the_protocol(tmp_path: Path) -> None:
    script = tmp_path / "old.py"
    script.write_text(
        "import json, sys\n"
        "m = json.loads(sys.stdin.readline())\n"
        "print(json.dumps({'id': m['id'], 'protocol': 7}), flush=True)\n",
        encoding="utf-8",
    )
    worker = Worker(20)
    with pytest.raises(Exception, match="speaks version 7 of the host protocol, not 1"):
        worker.start(f"exec:{sys.executable} {script}")
    worker.close()


def test_the_key_goes_to_those_who_send_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFORMANCE_API_KEY", "secret")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert "CONFORMANCE_API_KEY" not in launch.variables("transformers:universal,dtype=bfloat16")
    assert launch.variables("openai,url=http://x/v1")["CONFORMANCE_API_KEY"] == "secret"
    assert launch.variables("reference")["OMP_NUM_THREADS"] == "1"


def test_a_password_in_a_name_is_refused_and_not_repeated() -> None:
    done = CliRunner().invoke(main, ["plan", "openai,url=http://me:hunter2@host/v1"])
    assert done.exit_code == 2
    assert "goes into reports" in done.output
    assert "hunter2" not in done.output
