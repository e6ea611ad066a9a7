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

from benchmarks import detect, judging, page, share
from conformance._version import __version__


def collect(quick: bool, full: bool) -> dict[str, Any]:
    """Run everything.

    Parameters
    ----------
    quick : bool
        A version of a minute or two.
    full : bool
        Judging cells that take hours as well.
    """
    begin = time.perf_counter()
    detection = detect.run(detect.QUICK if quick else detect.FULL)
    wanted = judging.QUICK_CELLS if quick else judging.CELLS
    cells = list(judging.cells(wanted, full))
    engines = ("reference",) if quick else ("reference", "transformers")
    shares = [share.shares(engine) for engine in engines]
    return {
        "about": {
            "command": "make bench" + " QUICK=1" * quick + " FULL=1" * full,
            "version": __version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "seconds": time.perf_counter() - begin,
        },
        "detection": detection,
        "judging": {"cells": cells, "exponents": judging.exponents(cells)},
        "shares": shares,
    }


def main() -> None:
    """Run, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a version of a minute or two")
    parser.add_argument("--full", action="store_true", help="judging cells that take hours as well")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--page", type=Path, required=True)
    args = parser.parse_args()
    results = collect(args.quick, args.full)
    for path in (args.json, args.page):
        path.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    # what is written on the page is what was read back: nothing is in one that is not in the other
    args.page.write_text(page.render(json.loads(args.json.read_text())), encoding="utf-8")
    print(f"{args.page}: {results['about']['seconds']:.0f} s")


if __name__ == "__main__":
    main()
