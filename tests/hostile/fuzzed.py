"""An engine that speaks the host protocol, and breaks it once: a program, run through ``exec:``.

    python fuzzed.py TABLES SEED [PIDS]

It is exact on probe ``table`` (TABLES are the laws, as JSON), so that a failure that went unnoticed
would end as EXACT. The seed decides what it does wrong, and at which question; NONE does nothing
wrong. Its process id is written into the folder PIDS.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

Json = dict[str, Any]
NONE, START, LOAD, FIRST, SECOND = -1, 1, 2, 3, 4  # questions, as a process counts them
LIMIT = 4 * 2**20  # what the tests lower the suite's longest line to
PROPOSALS = 4


# --- an exact engine ------------------------------------------------------------------------------


def card() -> Json:
    return {"name": "fuzzed", "version": "1", "method": "draft model", "homepage": "", "rule": ""}


def capabilities() -> Json:
    dialect = {
        "order": ["temperature", "top_k", "top_p", "min_p"],
        "top_p_crossing": "keep",
        "top_k_ties": "keep",
    }
    return {"draft": "model", "control": True, "max_batch": 4, "dialect": dialect}


def right_answer(message: Json, tables: Json) -> Json:
    head = {"id": message["id"]}
    if message["op"] == "start":
        return head | {"protocol": 1, "card": card(), "capabilities": capabilities()}
    if message["op"] == "load":
        return head
    made = [complete(r, tables) for r in message["requests"]]
    return head | {"completions": made}


def complete(request: Json, tables: Json) -> Json:
    laws = tables["greedy" if request["decoding"]["greedy"] else "sampled"]
    rng = random.Random(request["seed"])
    tokens: list[int] = []
    last, rounds = request["prompt"][-1], []
    while len(tokens) < request["max_new_tokens"]:
        proposed: list[int] = []
        while request["speculate"] and len(proposed) < PROPOSALS:
            proposed.append(_draw(laws["q"][[last, *proposed][-1]], rng))
        accepted, law = 0, laws["p"][last]
        for x in proposed:
            q = laws["q"][last]
            if rng.random() >= law[x] / q[x]:
                law = [max(a - b, 0.0) for a, b in zip(law, q, strict=True)]
                break
            accepted, last = accepted + 1, x
            tokens.append(x)
            law = laws["p"][last]
        last = _draw(law, rng)
        tokens.append(last)
        rounds.append([len(proposed), accepted])
    kept = tokens[: request["max_new_tokens"]]
    return {"tokens": kept, "rounds": rounds if request["speculate"] else None}


def _draw(law: list[float], rng: random.Random) -> int:
    return rng.choices(range(len(law)), law)[0]


# --- what it says, and how it can end in the middle of it -----------------------------------------


def say(data: bytes, fd: int = 1) -> None:
    while data:
        data = data[os.write(fd, data) :]


def line(answer: object) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def hang() -> NoReturn:
    while True:
        time.sleep(60)


def _exit(rng: random.Random) -> None:
    os._exit(rng.choice([0, 1, 3, 255]))


def _kill(rng: random.Random) -> None:
    os.kill(os.getpid(), rng.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM]))
    hang()


def _close(rng: random.Random) -> None:
    os.close(1)
    _exit(rng)


ENDS = (_exit, _kill, _close)

Fault = Callable[[random.Random, Json], None]


def _garbage(rng: random.Random, right: Json) -> None:
    say(rng.randbytes(rng.randint(1, 300)) + b"\n")


def _prints(rng: random.Random, right: Json) -> None:
    said = [b"loading: 3%|##", b"", b"   ", b"Warning: id 3", b"\x1b[2J", b"\x00", b"\xef\xbb\xbf"]
    say(rng.choice(said) + b"\n" + line(right))


def _cut(rng: random.Random, right: Json) -> None:
    """Dies at any byte of an otherwise right answer."""
    whole = line(right)
    say(whole[: rng.randrange(len(whole))])
    rng.choice(ENDS)(rng)


def _silent(rng: random.Random, right: Json) -> None:
    whole = line(right)
    say(whole[: rng.choice([0, 0, rng.randrange(len(whole))])])
    hang()


def _deaf(rng: random.Random, right: Json) -> None:
    """Closes its output, and lives on."""
    os.close(1)
    if rng.random() < 0.5:
        os.close(0)
    time.sleep(0.3)
    os._exit(0)


def _endless(rng: random.Random, right: Json) -> None:
    chunk = rng.choice([b"x", b"[", b" ", b'"', b"\xff"]) * 2**16
    for _ in range(LIMIT // len(chunk) + 2):
        say(chunk)
    hang()


def _too_long(rng: random.Random, right: Json) -> None:
    say(line(right | {"padding": "x" * (LIMIT + 2**20)}))


def _no_object(rng: random.Random, right: Json) -> None:
    said = [b"1", b"null", b"true", b'"id"', b"NaN", b"[]", b"Infinity", b"1e999", b"9" * 5000]
    say(rng.choice([*said, line([right]).strip(), line(json.dumps(right)).strip()]) + b"\n")


def _nan(rng: random.Random, right: Json) -> None:
    places = list(_numbers(right))
    holder, key = rng.choice(places)
    holder[key] = float(rng.choice(["nan", "inf", "-inf"]))
    say(line(right))


def _numbers(value: Any) -> Any:
    """Every place of a number: the object or list that holds it, and where."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        if isinstance(inner, dict | list):
            yield from _numbers(inner)
        elif type(inner) is int:
            yield value, key


def _deep(rng: random.Random, right: Json) -> None:
    depth = rng.choice([rng.randint(100, 1100), rng.randint(900, 1000), 100_000])
    nested = rng.choice([b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth])
    said = right | {rng.choice([*right, "error"]): "DEEP"}
    say(rng.choice([line(said).replace(b'"DEEP"', nested), nested + b"\n"]))


def _another_id(rng: random.Random, right: Json) -> None:
    n = right["id"]
    ids = [None, str(n), n + 1, n - 1, -n, n + 0.5, [n], {"id": n}, 10**30, "", "x" * 10**5]
    said = right | {"id": rng.choice(ids)}
    if rng.random() < 0.15:
        del said["id"]
    say(line(said))


def _twice(rng: random.Random, right: Json) -> None:
    say(line(right) * rng.randint(2, 5))


def _early(rng: random.Random, right: Json) -> None:
    """Answers a question that was not asked yet."""
    say(line(right) + line({"id": right["id"] + 1}))


def _not_utf8(rng: random.Random, right: Json) -> None:
    text = json.dumps(right | {"note": "größer"}, ensure_ascii=False)
    codec = rng.choice(["latin-1", "utf-16", "utf-16-be", "utf-32", "cp037"])
    say(text.encode(codec) + b"\n")


def _flips(rng: random.Random, right: Json) -> None:
    """One byte of the line is no byte of UTF-8."""
    whole = bytearray(line(right))
    whole[rng.randrange(len(whole) - 1)] = rng.choice([0x80, 0xC0, 0xFE, 0xFF])
    say(bytes(whole))


def _noise_then_end(rng: random.Random, right: Json) -> None:
    say(rng.choice([b"\xff", b"warning \xf0\x9f\x98\x80\n", b"\x1b[31m"]) * 2**18, fd=2)
    rng.choice(ENDS)(rng)


def _says_error(rng: random.Random, right: Json) -> None:
    names: list[object] = [
        *("EngineFailure", "EngineLoadError", "BadAnswerError", "ConformanceError", "PlanError"),
        *("UnknownEngineError", "KeyboardInterrupt", "SystemExit", "annotations", "__doc__"),
        *("", "x" * 10**6, "\ud800", None, 0, [], {}, {"error": "NotSupportedError"}, True, 1e308),
    ]
    words: list[object] = ["no", "", "\ud83d\x00", "x" * 10**6, None, [], {"a": [1]}, 7, "\n" * 50]
    said = right | {"error": rng.choice(names)}
    for key in ("message", "traceback"):
        if rng.random() < 0.8:
            said[key] = rng.choice(words)
    say(line(said))


def _refuses(rng: random.Random, right: Json) -> None:
    say(line(right | {"error": "NotSupportedError", "message": rng.choice(["no top_p", None, 3])}))


def _wrong_shape(rng: random.Random, right: Json) -> None:
    part, key, value = rng.choice(SHAPES["start" if "card" in right else "generate"])
    holder = right
    for step in part:
        holder = holder[step]
    if value is DELETED:
        del holder[key]
    else:
        holder[key] = value
    say(line(right))


DELETED = object()
_FIRST = ("completions", 0)
_CLAIMS, _DIALECT = ("capabilities",), ("capabilities", "dialect")
SHAPES: dict[str, list[tuple[tuple[Any, ...], Any, Any]]] = {
    "start": [
        *(((), "protocol", v) for v in (DELETED, 2, "1", None, [1], 1.5)),
        *(((), "card", v) for v in (DELETED, [], "me", None, {}, 3)),
        *(((), "capabilities", v) for v in (DELETED, [], "all", None, 3)),
        *((("card",), "name", v) for v in (DELETED, None, 1, ["x"], {})),
        *((("card",), k, "x") for k in ("nome", "\ud800" * 9, "x" * 10**5)),
        *((_CLAIMS, k, True) for k in ("topk", "\ud800" * 9, "x" * 10**5)),
        *((_CLAIMS, "draft", v) for v in ("magic", None, 1, [], "x" * 10**5)),
        *((_CLAIMS, "max_batch", v) for v in ("4", 4.5, None, True, [4])),
        *((_CLAIMS, "top_k", v) for v in (1, "yes", None, [])),
        *((_CLAIMS, "verification", v) for v in ("block", None, {})),
        *((_CLAIMS, "processes", v) for v in (0, -1, "1", 1.5, True)),
        *((_CLAIMS, "dialect", v) for v in (None, [], "vllm", 3)),
        *((_DIALECT, "order", v) for v in ([], "temperature", ["top_k"] * 4, None, [[]], [1] * 9)),
        *((_DIALECT, "order", v) for v in ([["x" * 10**5]] * 4, ["\ud800"] * 4)),
        *((_DIALECT, k, "maybe") for k in ("top_p_crossing", "top_k_ties", "ties", "\udfff")),
        *((_DIALECT, "top_k_ties", v) for v in ([], {}, None, 1)),
    ],
    "generate": [
        *(((), "completions", v) for v in (DELETED, None, [], {}, "abc", 3, [None], [[]])),
        *((("completions",), 0, v) for v in (None, [], 1, "x", {}, {"tokens": None})),
        *((_FIRST, "tokens", v) for v in (DELETED, None, "12345678", [], 8, {}, [[1]] * 8)),
        *((_FIRST, "tokens", v) for v in ([1.0] * 8, [1.5] * 8, ["1"] * 8, [None] * 8)),
        *((_FIRST, "tokens", [1] * n) for n in (1, 7, 9, 33, 10_000)),
        *((_FIRST, "rounds", v) for v in (5, "ab", [[4]], [4] * 8, [[4, 5]], [[4, -1]] * 9)),
        *((_FIRST, "rounds", [[4, 0]] * n) for n in (7, 9, 1000)),
        *((_FIRST, "rounds", [[d, 0]] * 8) for d in (10**9, 2**70, "4", 4.0, None, [])),
        *(
            (_FIRST, "counts", v)
            for v in (5, [], [4], [4, 5], [-1, -1], [4, 0, 0], "ab", [10**13, 0])
        ),
    ],
}

# By name: what must end as an error ...
FAULTS: dict[str, Fault] = {
    "garbage": _garbage,
    "prints": _prints,
    "cut": _cut,
    "another id": _another_id,
    "wrong shape": _wrong_shape,
    "twice": _twice,
    "nan": _nan,
    "says error": _says_error,
    "no object": _no_object,
    "flips": _flips,
    "deep": _deep,
    "not utf-8": _not_utf8,
    "early": _early,
    "refuses": _refuses,
    "noise then end": _noise_then_end,
    "too long": _too_long,
    "endless": _endless,
    "deaf": _deaf,
    "silent": _silent,
}
HANGS = ("silent",)
SEEN_LATER = ("twice", "early")  # at the next question


# ... and what must not be held against anybody.
def _padded(rng: random.Random, right: Json) -> None:
    say(line({"padding": "x" * rng.randint(10**5, LIMIT - 10**6)} | right))


def _slow(rng: random.Random, right: Json) -> None:
    whole = line(right)
    size = len(whole) // 10 + 1
    for begin in range(0, len(whole), size):
        say(whole[begin : begin + size])
        time.sleep(0.005)


def _noisy(rng: random.Random, right: Json) -> None:
    say(b"\xff\x00 10% done\r" * 2**17, fd=2)
    say(line(right))


def _spaced(rng: random.Random, right: Json) -> None:
    text = json.dumps(
        right | {"x": "ü", "deep": [[[]]], "nan": float("nan")}, separators=(" ,  ", " :\t")
    )
    say(b" \t" + text.encode() + b" \r\n")


def _own_words(rng: random.Random, right: Json) -> None:
    if "card" in right:
        right["card"]["version"] = rng.choice(["\ud800", "\x1b[2J", "v" * 10**6, "\x00", ""])
        right["capabilities"].update(processes=rng.choice([None, 1, 2]), max_batch=4)
    for made in right.get("completions", ()):
        made["finish_reason"] = rng.choice(["length", None, 3])
        if rng.random() < 0.5:
            made.pop("rounds")
    say(line(right))


HARMLESS: dict[str, Fault] = {
    "padded": _padded,
    "slow": _slow,
    "noisy": _noisy,
    "spaced": _spaced,
    "own words": _own_words,
}


def kind_of(seed: int) -> str:
    """Every kind in turn."""
    names = [*FAULTS, *HARMLESS]
    return names[seed % len(names)]


def at(seed: int) -> int:
    """The question at which it goes wrong."""
    if kind_of(seed) == "wrong shape":
        return random.Random(seed).choice([START, FIRST, SECOND])
    return random.Random(seed).choice([START, LOAD, FIRST, FIRST, SECOND])


def main(tables: str, seed: int, pids: str = "") -> None:
    if pids:
        (Path(pids) / str(os.getpid())).touch()
    laws = json.loads(Path(tables).read_bytes())
    act = (FAULTS | HARMLESS)[kind_of(seed)]
    for asked in itertools.count(1):
        question = sys.stdin.buffer.readline()
        if not question:
            return
        message = json.loads(question)
        if message["op"] == "stop":
            return
        right = right_answer(message, laws)
        time.sleep(0.005 if pids else 0)  # whoever is to be killed needs a life
        if seed != NONE and asked == at(seed):
            act(random.Random(seed), right)
        else:
            say(line(right))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
