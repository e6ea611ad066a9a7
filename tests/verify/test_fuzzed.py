"""One value changed anywhere, and checksums and manifest made to fit: found, wherever it is."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundles import copy, put_report, reseal, wrong

from conformance.evidence import load_evidence
from conformance.reports.verify.report import WORD

pytestmark = pytest.mark.long  # run by 'make test-bundles', and by CI

Path_ = tuple[str | int, ...]


def leaves(node: Any, path: Path_ = ()) -> Iterator[Path_]:
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(value, (*path, key))
    else:
        yield path


def at(node: Any, path: Path_) -> Any:
    for key in path:
        node = node[key]
    return node


def other(value: Any, rng: random.Random) -> Any:
    """Another value of the kind."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + rng.choice((-1, 1, 7))
    if isinstance(value, float):
        return value * rng.choice((0.5, 0.999, 1.0001, 2, -1)) if value else 1e-3
    return rng.choice((value + "!", value[1:], value.swapcase() + " "))


def change(report: Any, rng: random.Random) -> Path_:
    """Change one value, or leave out or repeat what it is in."""
    path = rng.choice([p for p in leaves(report) if p[0] not in WORD])
    holder, key = at(report, path[:-1]), path[-1]
    how = rng.random()
    if how < 0.8 or not isinstance(holder, list):
        holder[key] = other(holder[key], rng)
    elif how < 0.9:
        del holder[key]
    else:
        holder.insert(key, holder[key])
    return path


def report_changed(folder: Path, rng: random.Random) -> str:
    data = json.loads((folder / "report.json").read_text())
    path = change(data, rng)
    put_report(folder, data)
    return str(path)


def evidence_changed(folder: Path, rng: random.Random) -> str:
    """One token of one answer, and the checksum of the answers wherever it is told."""
    paths = sorted(p for p in (folder / "evidence").glob("*.parquet") if "partial" not in p.name)
    path = rng.choice(paths)
    before = load_evidence(path)
    tokens = before.tokens.copy()
    i = rng.randrange(tokens.size)
    tokens.flat[i] = (tokens.flat[i] + rng.randint(1, 31)) % 32
    after = replace(before, tokens=tokens)
    after.save(path)
    text = (folder / "report.json").read_text()
    (folder / "report.json").write_text(text.replace(before.sha256, after.sha256))
    reseal(folder)
    return f"token {i} of {path.name}"


@pytest.mark.parametrize("seed", range(30))
def test_any_value_of_a_report(seed, forged) -> None:
    folder = forged("mixed")
    rng = random.Random(seed)
    changed = report_changed(folder, rng)
    assert wrong(folder), changed


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["small", "rounded"])
def test_any_token_of_the_evidence(seed, kind, forged) -> None:
    folder = forged(kind)
    rng = random.Random(seed)
    changed = evidence_changed(folder, rng)
    assert wrong(folder), changed


def test_of_hundreds_none_is_overlooked(request, tmp_path) -> None:
    overlooked = []
    for seed in range(5000, 5400):
        rng = random.Random(seed)
        change_one = rng.choice((report_changed, evidence_changed))
        kinds = ("mixed", "staged", "rounded", "expected", "small")
        folder = copy(request.getfixturevalue(rng.choice(kinds)), tmp_path / str(seed))
        changed = change_one(folder, rng)
        if not wrong(folder):
            overlooked.append((seed, changed))
        shutil.rmtree(folder)
    assert overlooked == []
