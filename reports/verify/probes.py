"""The probes of a bundle: their weights must be what their recipes make.

The weights that were sampled lie in the bundle. They are held against the ones made here from the
recipe: the same bytes, or, where another processor rounds differently, the same numbers to within
rounding. Nothing of them is loaded before its size and its other files are the recipe's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from conformance.errors import ConformanceError
from conformance.probes import load_probe
from conformance.recipes import RECIPES
from conformance.reports.manifest import is_half, of_file
from conformance.reports.model import Report
from conformance.reports.stages import PROBES
from conformance.reports.verify.check import Check, agrees, differs

WEIGHTS = "model.safetensors"
ROUNDING = 1e-5  # of a weight, relative to the largest of its matrix


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
            problem, detail = _compared(place / name, name, told[name])
        except ConformanceError as exc:
            problem, detail = str(exc), ""
        yield differs(what, problem) if problem else agrees(what, detail)


def _compared(folder: Path, name: str, told: dict[str, str]) -> tuple[str | None, str]:
    """What is wrong with a probe, if anything is, and what was seen."""
    own = load_probe(name)
    sums = own.checksums()
    if set(told) != set(sums):
        return "its files are not those of its recipe", ""
    rounded = 0.0
    for file in sums:
        found = of_file(folder / file)
        if found.sha256 != told[file]:
            return f"{file} is not the one that the report names", ""
        if found.sha256 == sums[file]:
            continue
        if found.size != (own.folder / file).stat().st_size or not file.endswith(WEIGHTS):
            return f"{file} is not what the recipe makes", ""
        rounded = max(rounded, _distance(folder / file, own.folder / file))
    if rounded > ROUNDING:
        return f"its weights are off by {rounded:.2g} from what the recipe makes", ""
    if rounded:
        return None, f"weights as the recipe makes them, to within {rounded:.1g}"
    return None, "the very files that the recipe makes"


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
