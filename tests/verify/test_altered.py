"""Bytes that were changed somewhere: found, and the file named, whatever was hit."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from bundles import copy, wrong

from conformance.reports.verify import Status
from conformance.reports.verify.files import check_files

pytestmark = pytest.mark.long  # run by 'make test-bundles', and by CI

KINDS = ("mixed", "small", "staged", "verifiers", "served", "rounded", "expected")


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def flip(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def delete_bytes(rng: random.Random, path: Path) -> None:
    data = path.read_bytes()
    at = rng.randrange(len(data))
    path.write_bytes(data[:at] + data[at + rng.randint(1, 20) :])


def insert_bytes(rng: random.Random, path: Path) -> None:
    data = path.read_bytes()
    at = rng.randrange(len(data) + 1)
    path.write_bytes(data[:at] + rng.randbytes(rng.randint(1, 20)) + data[at:])


def truncate(rng: random.Random, path: Path) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def overwrite(rng: random.Random, path: Path) -> None:
    data = path.read_bytes()
    at, n = rng.randrange(len(data)), rng.randint(1, 40)
    new = rng.randbytes(n)
    path.write_bytes(data[:at] + new + data[at + n :])
    if path.read_bytes() == data:
        flip(rng, path)


def remove(rng: random.Random, path: Path) -> None:
    del rng
    path.unlink()


def to_folder(rng: random.Random, path: Path) -> None:
    del rng
    path.unlink()
    path.mkdir()


WAYS: tuple[Callable[[random.Random, Path], None], ...] = (
    flip,
    delete_bytes,
    insert_bytes,
    truncate,
    overwrite,
    remove,
    to_folder,
)


def alter(folder: Path, rng: random.Random) -> str:
    """Alter one file, or swap or add some; the name of one that is to be told."""
    path = rng.choice(files(folder))
    name = path.relative_to(folder).as_posix()
    way = rng.randrange(len(WAYS) + 2)
    if way < len(WAYS):
        WAYS[way](rng, path)
    elif way == len(WAYS):
        mine = path.read_bytes()
        path = rng.choice([p for p in files(folder) if p.read_bytes() != mine])
        (folder / name).write_bytes(path.read_bytes())
        path.write_bytes(mine)
    else:
        place = rng.choice(["evidence", "probes/mid/target"])
        if not (folder / place).is_dir():
            place = "evidence"
        name = f"{place}/more-{rng.randrange(1000)}.parquet"
        shutil.copyfile(path, folder / name)
    return name


def named(told: list[str], name: str) -> bool:
    """Whether the file is named; without a manifest nothing but the manifest can be."""
    return any(name in line or line.startswith("manifest:") for line in told)


@pytest.mark.parametrize("seed", range(40))
def test_every_alteration_is_found_and_named(seed, request, tmp_path) -> None:
    rng = random.Random(seed)
    folder = copy(request.getfixturevalue(rng.choice(KINDS)), tmp_path)
    name = alter(folder, rng)
    told, _ = check_files(folder, None)
    assert named([f"{c.what}: {c.detail}" for c in told if c.status is Status.DIFFERS], name)


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_the_rest_of_verification_bears_it(seed, forged) -> None:
    rng = random.Random(seed)
    folder = forged("small")
    name = alter(folder, rng)
    assert named(wrong(folder), name)


@pytest.mark.long
def test_of_two_hundred_none_is_overlooked(request, tmp_path) -> None:
    overlooked = []
    for seed in range(2000, 2200):
        rng = random.Random(seed)
        folder = copy(request.getfixturevalue(rng.choice(KINDS)), tmp_path / str(seed))
        name = alter(folder, rng)
        if not named(wrong(folder), name):
            overlooked.append((seed, name))
        shutil.rmtree(folder)
    assert overlooked == []
