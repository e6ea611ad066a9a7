"""The probes of a bundle: their weights must be what their recipes make.

The weights that were sampled lie in the bundle. They are held against the ones made here from the
recipe: the same bytes, or, where another processor rounds differently, the same numbers to within
rounding. Nothing of them is loaded before its size and its other files are the recipe's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from conformance.contract import Precision
from conformance.errors import ConformanceError, ReportError
from conformance.probes import (
    LARGEST_ROUNDING,
    ROUNDING,
    Probe,
    load_probe,
    read_rounding,
    rounding_text,
)
from conformance.recipes import RECIPES
from conformance.reports.manifest import is_half, of_file, read_plain
from conformance.reports.model import Report
from conformance.reports.stages import PROBES
from conformance.reports.verify.check import Check, agrees, differs

WEIGHTS = "model.safetensors"
SAME = 1e-5  # of a weight, relative to the largest of its matrix
# How far apart the largest rounding error over some sequences is on two processors; measured on
# kernels for four kinds: up to 1.2, and 40 where all of a law is one vector.
FACTOR, CONSTANT_FACTOR = 4.0, 200.0


def check_probes(folder: Path, report: Report) -> Iterator[Check]:
    """Compare every probe that the report names, or that is there."""
    told = {probe.name: probe.sha256 for probe in report.probes}
    place = folder / PROBES
    there = [n for n in os.listdir(place) if not is_half(n)] if place.is_dir() else []
    for name in dict.fromkeys((*told, *sorted(there))):
        what = f"probe {name}"
        if name not in told or name not in RECIPES:
            yield differs(what, "the report does not name it, or there is none of this name")
            continue
        try:
            yield agrees(what, _compared(place / name, load_probe(name), told[name]))
        except ConformanceError as exc:
            yield differs(what, str(exc))


def _compared(folder: Path, own: Probe, told: dict[str, str]) -> str:
    """What was seen of a probe that is as it should be."""
    sums = own.checksums()
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir()}
    if set(told) != set(sums) or there != {*sums, ROUNDING}:
        raise ReportError("its files are not those of its recipe")
    _check_rounding(own, folder / ROUNDING)
    rounded = 0.0
    for file in sums:
        found = of_file(folder / file)
        if found.sha256 != told[file]:
            raise ReportError(f"{file} is not the one that the report names")
        if found.sha256 == sums[file]:
            continue
        if found.size != (own.folder / file).stat().st_size or not file.endswith(WEIGHTS):
            raise ReportError(f"{file} is not what the recipe makes")
        rounded = max(rounded, _distance(folder / file, own.folder / file))
    if rounded > SAME:
        raise ReportError(f"its weights are off by {rounded:.2g} from what the recipe makes")
    if rounded:
        return f"weights as the recipe makes them, to within {rounded:.1g}"
    return "the very files that the recipe makes"


def _check_rounding(own: Probe, path: Path) -> None:
    """The rounding errors that were measured where the probe was sampled are another processor's,
    and of the size of this one's.
    """
    told = dict(read_rounding(path))
    if read_plain(path, LARGEST_ROUNDING) != rounding_text(told).encode() or "float32" not in told:
        raise ReportError(f"{ROUNDING} is not as it was written")
    factor = CONSTANT_FACTOR if own.recipe.constant else FACTOR
    for name, value in told.items():
        if name not in get_args(Precision):
            raise ReportError(f"{ROUNDING} names a precision that there is not: {name!r:.60}")
        mine = replace(own, precision=name).float_noise  # type: ignore[arg-type]
        if not mine / factor <= value <= mine * factor:
            raise ReportError(
                f"{name} is said to round by {value:.2g} nats, and rounds by {mine:.2g} here"
            )


def _distance(one: Path, other: Path) -> float:
    """Largest difference of two weights, relative to the largest of their matrix."""
    try:
        found, own = load_file(one), load_file(other)
    except (OSError, ValueError, SafetensorError):
        return np.inf
    sizes = [{n: (w.shape, w.dtype) for n, w in x.items()} for x in (found, own)]
    if sizes[0] != sizes[1]:
        return np.inf
    if not all(np.isfinite(w).all() for w in found.values()):
        return np.inf
    scale = {n: max(float(np.abs(w).max()), 1e-30) for n, w in own.items()}
    return max(float(np.abs(found[n] - own[n]).max()) / scale[n] for n in own)
