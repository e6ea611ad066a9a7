"""``make bench``: run the benchmarks and write their JSON and Markdown."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from benchmarks import detect, engines, judging, page, share
from conformance._version import __version__

SECTIONS = ("detection", "judging", "shares", "engines")
OURS = "e-process"  # the part of detection that is not the incumbents', measured anew


def section(name: str, quick: bool, full: bool, jobs: int) -> Any:
    """Run one part.

    Parameters
    ----------
    name : {'detection', 'judging', 'shares', 'engines'}
        Which.
    quick : bool
        A version of a minute or two for all parts.
    full : bool
        Judging cells that take hours as well.
    jobs : int
        Worker processes; judging has always one, as its time is measured.
    """
    match name:
        case "detection":
            return detect.run(detect.QUICK if quick else detect.FULL, jobs)
        case "judging":
            cells = list(judging.cells(judging.QUICK_CELLS if quick else judging.CELLS, full))
            return {"cells": cells, "exponents": judging.exponents(cells)}
        case "engines":
            return list(engines.compare(quick))
        case _:
            return [share.shares(*run) for run in share.RUNS[: 1 if quick else None]]


def about(quick: bool, full: bool, seconds: dict[str, float]) -> dict[str, Any]:
    """What was run, on what, and how long each part took."""
    return {
        "command": "make bench" + " QUICK=1" * quick + " FULL=1" * full,
        "version": __version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "seconds": seconds,
    }


def part(name: str, results: dict[str, Any], args: argparse.Namespace) -> Any:
    """A section, or that part of it that was asked for with the rest as it was."""
    if name == OURS:
        grid = detect.QUICK if args.quick else detect.FULL
        return detect.renewed(results["detection"], grid, args.jobs)
    if args.cell:
        cells, cell = results["judging"]["cells"], judging.apart(*args.cell)
        return judging.with_cell(cells, cell, args.cell[1])
    return section(name, args.quick, args.full, args.jobs)


def main() -> None:
    """Run, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a version of a minute or two")
    parser.add_argument("--full", action="store_true", help="judging cells that take hours as well")
    parser.add_argument(
        "--only", choices=(*SECTIONS, OURS), help="run one part, keep the JSON's others"
    )
    parser.add_argument(
        "--cell",
        type=int,
        nargs=2,
        metavar=("VOCABULARY", "TOKENS"),
        help="with --only judging: this cell alone, however long it takes",
    )
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--page", type=Path, required=True)
    args = parser.parse_args()
    if args.cell and args.only != "judging":
        parser.error("--cell is of --only judging")
    results: dict[str, Any] = {"about": {"seconds": {}}}
    if args.only and args.json.exists():
        results = json.loads(args.json.read_text(encoding="utf-8"))
    seconds = results["about"]["seconds"]
    for name in (args.only,) if args.only else SECTIONS:
        begin = time.perf_counter()
        results["detection" if name == OURS else name] = part(name, results, args)
        earlier = seconds[name] if args.cell else 0
        seconds[name] = round(earlier + time.perf_counter() - begin, 1)
    results["about"] = about(args.quick, args.full, seconds)
    for path in (args.json, args.page):
        path.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    # what is written on the page is what was read back: nothing is in one that is not in the other
    read = json.loads(args.json.read_text(encoding="utf-8"))
    args.page.write_text(page.render(read), encoding="utf-8")
    print(f"{args.page}: {seconds}")


if __name__ == "__main__":
    main()
