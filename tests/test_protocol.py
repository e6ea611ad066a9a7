"""The host protocol as written: its schema, messages of real runs, and answers that are none."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import contract, introduction, launch, wire
from conformance.cli import main
from conformance.contract import Capabilities, EngineCard, ModelPair, Request
from conformance.decoding import LATER_FILTERS, PROCESSORS, Decoding, Dialect
from conformance.errors import EngineFailure
from conformance.pool import Task, Worker
from conformance.probes import load_probe
from conformance.runner import Settings, judge_cases, prepare
from conformance.verdict import Verdict

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = wire.json_schema()
VALIDATORS = {
    part: jsonschema.Draft202012Validator({"$defs": SCHEMA["$defs"], "$ref": f"#/$defs/{part}"})
    for part in SCHEMA["$defs"]
}
Recorded = list[tuple[Any, Any]]


def piped(message: Any) -> Any:
    return json.loads(json.dumps(message))


def wrong(message: object, part: str) -> list[str]:
    return [e.message for e in VALIDATORS[part].iter_errors(message)]


def test_it_is_printed() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    printed = CliRunner().invoke(main, ["schema", "--protocol"])
    assert json.loads(printed.output) == SCHEMA
    assert json.loads(CliRunner().invoke(main, ["schema"]).output) != SCHEMA


def test_it_is_the_contracts() -> None:
    """Fields, defaults and choices are those of the classes that a Python engine uses."""
    parts = SCHEMA["$defs"]
    for part, kind in (("card", EngineCard), ("capabilities", Capabilities), ("dialect", Dialect)):
        assert list(parts[part]["properties"]) == [f.name for f in fields(kind)]
        for f in fields(kind):
            said = parts[part]["properties"][f.name]
            if f.name not in ("name", "dialect"):
                default = list(f.default) if isinstance(f.default, tuple) else f.default
                assert (f.name, said["default"]) == (f.name, default)
    claims = parts["capabilities"]["properties"]
    for name in ("draft", "verification", "precision", "logprobs"):
        assert claims[name]["enum"] == list(get_args(getattr(contract, name.capitalize())))
    decoding = [f.name for f in fields(Decoding) if f.name != "logprobs"]
    assert list(parts["decoding"]["properties"]) == decoding
    later = (*PROCESSORS, *LATER_FILTERS, "road")
    assert parts["decoding"]["required"] == [n for n in decoding if n not in later]
    assert claims["processors"]["items"]["enum"] == list(PROCESSORS)
    asked = [*(f.name for f in fields(Request)), "logprobs"]
    assert list(parts["request"]["properties"]) == asked
    assert parts["request"]["required"] == [
        n for n in asked if n not in ("times", "answers", "logprobs")
    ]
    assert parts["load"]["properties"]["probe"]["required"] == [f.name for f in fields(ModelPair)]
    for part in ("start", "answer-to-start"):
        assert parts[part]["properties"]["protocol"]["const"] == wire.PROTOCOL


def test_the_page_shows_messages_that_fit() -> None:
    """The session in docs/host-protocol.md: suite and engine in turn."""
    page = (ROOT / "docs/host-protocol.md").read_text(encoding="utf-8")
    shown = [json.loads(line[2:]) for line in page.splitlines() if line[:2] in ("> ", "< ")]
    asked = {m["id"]: m for m in shown if "op" in m}
    assert [m["op"] for m in asked.values()] == ["start", "load", "generate", "generate", "stop"]
    for message in shown:
        op = asked[message["id"]]["op"]
        part = op if "op" in message else "error" if "error" in message else f"answer-to-{op}"
        assert wrong(message, part) == []


# --- real messages --------------------------------------------------------------------------------

# A go-between: hands on what it reads, in both directions, and writes it down.
TEE = """
    import subprocess, sys, threading
    log, *command = sys.argv[1:]
    engine = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def hand_on(lines, out, way):
        for line in lines:
            with open(log + "." + way, "ab") as file:
                file.write(line)
            out.write(line)
            out.flush()
        out.close()

    answers = (engine.stdout, sys.stdout.buffer, "answers")
    threading.Thread(target=hand_on, args=answers).start()
    hand_on(sys.stdin.buffer, engine.stdin, "questions")
"""


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Recorded]:
    """Write down what one process after another is asked and answers; reads it back in pairs."""
    tee, plain = tmp_path / "tee.py", launch.command
    tee.write_text(textwrap.dedent(TEE), encoding="utf-8")
    logs: list[str] = []

    def command(name: str, python: str | None = None) -> list[str]:
        logs.append(str(tmp_path / f"process {len(logs)}"))
        return [sys.executable, "-I", "-S", str(tee), logs[-1], *plain(name, python)]

    def read() -> Recorded:
        pairs: Recorded = []
        for log in logs:
            asked, said = (
                [json.loads(line) for line in Path(f"{log}.{way}").read_bytes().splitlines()]
                for way in ("questions", "answers")
            )
            assert asked[-1]["op"] == "stop"
            pairs += zip(asked, [*said, None], strict=True)
        return pairs

    monkeypatch.setattr(launch, "command", command)
    return read


NODE = pytest.param(
    f"exec:node {ROOT / 'examples/table_engine.js'}",
    marks=pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on the PATH"),
    id="javascript",
)


@pytest.mark.parametrize("engine", [pytest.param("reference", id="python"), NODE])
def test_real_messages_fit_it(
    engine: str, recorded: Callable[[], Recorded], tmp_path: Path, probe_cache: Path
) -> None:
    settings = Settings((engine,), (Decoding(greedy=True),), "smoke", probe="table")
    (result,) = judge_cases(prepare(settings), tmp_path)
    assert result.verdict.verdict is Verdict.EXACT
    pair = load_probe("table").pair
    warped = Decoding(temperature=0.7, top_k=9, top_p=0.9)
    requests = tuple(Request((1, 2), 5, warped, i, bool(i % 2)) for i in range(4))
    worker = Worker(60)
    assert worker.generate(Task(0, engine, pair, requests)).error is None
    absent = replace(pair, target=pair.target / "nowhere")
    failed = worker.generate(Task(0, engine, absent, requests))
    assert failed.error is not None
    worker.close()
    pairs = recorded()
    assert {q["op"] for q, _ in pairs} == {"start", "load", "generate", "stop"}
    assert [q["op"] for q, a in pairs if a is not None and "error" in a] == ["load"]
    for question, answer in pairs:
        assert wrong(question, question["op"]) == []
        if answer is not None:
            part = "error" if "error" in answer else f"answer-to-{question['op']}"
            assert wrong(answer, part) == []
            assert answer["id"] == question["id"]


# --- answers that are none ------------------------------------------------------------------------


class Scripted(Worker):
    """A worker whose engine answers these lines: no process, but all that is believed or not."""

    def __init__(self, *lines: bytes) -> None:
        super().__init__(1.0)
        self.lines = iter(lines)

    def _start(self) -> Any:
        return None

    def _write(self, *_: Any) -> None: ...  # type: ignore[override]

    def _line(self, *_: Any) -> bytes:
        return next(self.lines)


REQUESTS = tuple(Request((1,), n, Decoding(), n, speculate=n < 4) for n in (2, 3, 4))
STARTED = {"id": 1, "protocol": 1, "card": {"name": "x"}, "capabilities": {}}
LOADED = {"id": 2}
PAIR = ModelPair("p", Path("t"), None, 9, 99)


def believed(part: str, answer: object) -> bool:
    """Whether the suite takes it for an answer; if not, it says why, and not without end."""
    lines: dict[str, Any] = {"answer-to-start": STARTED, "answer-to-load": LOADED}
    lines |= {"answer-to-generate": RIGHT["answer-to-generate"], part: answer}
    worker = Scripted(*(json.dumps(line).encode() for line in lines.values()))
    error = worker.generate(Task(0, "exec:x", PAIR, REQUESTS)).error
    assert error is None or 0 < len(str(error).encode("utf-8")) < 2600
    return error is None


def accounts(answer: Any) -> bool:
    """What a schema cannot say of a generate's answer."""
    made = answer["completions"]
    return len(made) == len(REQUESTS) and all(map(_accounts, made, REQUESTS))


def _accounts(made: Any, request: Request) -> bool:
    rounds, counts, n = made.get("rounds"), made.get("counts"), request.max_new_tokens
    pairs = [*(rounds or ()), *([counts] if counts else ())]
    if len(made["tokens"]) != n or any(a > d for d, a in pairs):
        return False
    if not request.speculate:
        return not any(d for d, _ in pairs)
    before = sum(a + 1 for _, a in (rounds or ())[:-1])
    return rounds is None or (bool(rounds) and before < n <= before + rounds[-1][1] + 1)


WORDS = st.sampled_from(
    [
        *SCHEMA["$defs"]["capabilities"]["properties"],
        *SCHEMA["$defs"]["card"]["properties"],
        *("lookup", "token", "drop", "lowest-id", "bfloat16", "order", "top_k_ties"),
        *("id", "error", "completions", "tokens", "rounds", "counts", "times"),
        *("x", "", "\ud800", "y" * 10**4),
    ]
)
NUMBERS = st.integers(-2, 5) | st.sampled_from([10**6, 10**6 + 1, 10**12, 10**13, 2**80])
# 5.0 is left out: to a schema it is a whole number
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS | st.sampled_from([0.5, -1e-300, float("nan")]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
RIGHT: dict[str, Any] = {
    "answer-to-start": STARTED
    | {
        "card": {f.name: "x" for f in fields(EngineCard)},
        "capabilities": piped(
            introduction.describe(EngineCard("x"), Capabilities())["capabilities"]
        ),
    },
    "answer-to-load": LOADED,
    "answer-to-generate": {
        "id": 3,
        "completions": [
            {"tokens": [1, 2], "rounds": [[4, 1]], "counts": [4, 1]},
            {"tokens": [1, 2, 3], "rounds": [[4, 0], [4, 4]], "counts": None},
            {"tokens": [0, 0, 0, 0], "rounds": None, "counts": [0, 0]},
        ],
    },
}


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def read(answer: Any) -> Any:
    """An answer without what nobody asked for here, and nobody reads."""
    completions = answer.get("completions")
    if not isinstance(completions, list):
        return answer
    kept = [
        {k: v for k, v in c.items() if k not in ("times", "logprobs")} if isinstance(c, dict) else c
        for c in completions
    ]
    return answer | {"completions": kept}


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(list(RIGHT)), st.data())
def test_the_suite_believes_what_the_schema_allows_and_nothing_else(
    part: str, data: st.DataObject
) -> None:
    answer = piped(RIGHT[part])
    for _ in range(data.draw(st.integers(0, 2))):
        holder, key = data.draw(st.sampled_from(list(_places(answer))))
        match data.draw(st.sampled_from(["replace", "replace", "delete", "add"])):
            case "replace":
                holder[key] = data.draw(VALUES)
            case "delete":
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[data.draw(WORDS)] = data.draw(VALUES)
            case _:
                holder.insert(key, data.draw(VALUES))
        if not list(_places(answer)):
            break
    answer = piped(answer)
    fits = wrong(read(answer), part) == [] and answer["id"] == RIGHT[part]["id"]
    if fits and part == "answer-to-generate":
        fits = accounts(answer)
    assert believed(part, answer) == fits


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda t: t.encode("utf-8", "replace")))
def test_bytes_are_no_answer(line: bytes) -> None:
    worker = Scripted(line)
    with pytest.raises(EngineFailure, match="garbage"):
        worker.start("exec:x")


def test_right_answers_are_believed() -> None:
    for part, answer in RIGHT.items():
        assert wrong(answer, part) == []
        assert believed(part, answer)
    for short in ({"id": 1, "error": "NotSupportedError"}, {"id": 1, "error": "x", "message": ""}):
        assert wrong(short, "error") == []
        assert not believed("answer-to-start", short)


@pytest.mark.parametrize(
    ("question", "damage"),
    [
        ("start", {"protocol": 2}),
        ("start", {"engine": None}),
        ("load", {"probe": {"name": "mid"}}),
        ("generate", {"requests": []}),
        ("generate", {"requests": [{"prompt": [1]}]}),
        ("stop", {"id": 0}),
        ("stop", {"now": True}),
    ],
)
def test_malformed_questions_do_not_fit(question: str, damage: dict[str, Any]) -> None:
    asked: dict[str, dict[str, Any]] = {
        "start": {"protocol": 1, "engine": "x"},
        "load": {"probe": wire.encode_pair(PAIR)},
        "generate": {"requests": wire.encode_requests(REQUESTS)},
        "stop": {},
    }
    right = piped(asked[question] | {"op": question, "id": 7})
    assert wrong(right, question) == []
    assert wrong(right | damage, question)
    for other in ("start", "load", "generate", "stop"):
        assert bool(wrong(right, other)) == (other != question)
    for key in right:
        assert wrong({k: v for k, v in right.items() if k != key}, question)
