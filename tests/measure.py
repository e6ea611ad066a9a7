"""Turn what the simulations measured into the tables that documentation and reports carry.

``make calibrate`` runs the long simulations with $CONFORMANCE_TABLES set, then this; ``make kills``
runs the kill matrix alone. What a folder has no table of stays as this version measured it before.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "power"))

import in_process
import places
from kill_matrix import CONFIDENCE

from conformance._version import __version__
from conformance.faults import FAULTS
from conformance.plan import PROFILES
from conformance.reports.measured import (
    SURE,
    CalibrationRow,
    FalseAlarms,
    KillRow,
    Measured,
    ShareRow,
    measured,
)
from conformance.reports.text import at_least

HERE = Path(__file__).parents[1]
JSON, PAGE = HERE / "reports" / "measured.json", HERE / "docs" / "measured.md"


def collect(folder: Path) -> Measured:
    """Read every table of a folder; of a quick and a long version of one, the long one."""
    tables = {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in folder.glob("*.json")}
    tables = {k: v for k, v in tables.items() if f"{k}_long" not in tables}
    calibration = [
        row
        for name in sorted(tables)
        if name.startswith("calibration") and "wrong" not in name
        for row in calibration_rows(tables[name])
    ]
    alarms = [
        FalseAlarms(alpha=t["alpha"], runs=t["runs"], alarms=t["false_alarms"])
        for name, t in sorted(tables.items())
        if name.startswith("false_alarms")
    ]
    named = {row["fault"]: row for row in tables.get("named", [])}
    kills = [
        kill_row(row, named)
        for name, t in sorted(tables.items())
        if name.startswith("kills")
        for row in t
    ]
    kills.sort(key=lambda k: (k.tier, list(PROFILES).index(k.profile)))
    return Measured(
        tool_version=__version__,
        calibration=calibration,
        false_alarms=alarms,
        kills=kills,
        shares=[ShareRow(**row) for row in tables.get("shares", [])],
    )


def with_earlier(found: Measured, before: Measured) -> Measured:
    """What was measured, and of what was not measured what there was of this version."""
    if before.tool_version != found.tool_version:
        return found
    return found.model_copy(
        update={
            name: getattr(found, name) or getattr(before, name)
            for name in ("calibration", "false_alarms", "kills", "shares")
        }
    )


def calibration_rows(table: list[dict[str, Any]]) -> list[CalibrationRow]:
    """Rows over all scenarios; of e-processes, sequences that ever crossed, over all worlds."""
    peeked = [r for r in table if r.get("family") == "both"]
    if not peeked:
        rows = [r for r in table if r["scenario"] == "all"]
        return [CalibrationRow(**{k: r[k] for k in CalibrationRow.model_fields}) for r in rows]
    return [
        CalibrationRow(
            test="e-process, looked at after every token",
            threshold=alpha,
            n=sum(r["n"] for r in peeked if r["alpha"] == alpha),
            at_or_below=sum(r["crossed"] for r in peeked if r["alpha"] == alpha),
        )
        for alpha in sorted({r["alpha"] for r in peeked}, reverse=True)
    ]


def kill_row(row: dict[str, Any], named: dict[str, dict[str, Any]]) -> KillRow:
    """One row of a kill matrix, with the runs that were explained, by fault."""
    low, high = in_process.clopper_pearson(row["killed"], row["runs"])
    explained = named.get(row["fault"]) if row["tier"] == "engine" else None
    if explained is not None and explained["profile"] != row["profile"]:
        explained = None
    return KillRow(
        tier=row["tier"],
        profile=row["profile"],
        fault=row["fault"],
        share=row["share"],
        runs=row["runs"],
        killed=row["killed"],
        passed=row["passed"],
        low=low,
        high=high,
        whole=row["whole"],
        explained=explained["explained"] if explained else 0,
        named=explained["fits"] if explained else 0,
        by=sorted(test for test, times in row["by"].items() if 2 * times >= row["runs"]),
    )


def page(found: Measured) -> str:
    """The tables as Markdown."""
    lines = [
        "# What was measured of this suite itself",
        "",
        "Written by `make calibrate`, never by hand; every report carries the same numbers.",
        "",
        "## False alarms",
        "",
        "P-values of exact samplers; each rate should be its threshold (the e-process and "
        "coincidences may be lower: they hold at every stopping time).",
        "",
        "| test | samples | " + " | ".join(f"p <= {a:g}" for a in _thresholds(found)) + " |",
        "| --- | --- |" + " --- |" * len(_thresholds(found)),
    ]
    for test in dict.fromkeys(r.test for r in found.calibration):
        mine = {r.threshold: r for r in found.calibration if r.test == test}
        cells = [
            f"{mine[a].at_or_below / mine[a].n:.5f}" if a in mine else ""
            for a in _thresholds(found)
        ]
        lines.append(f"| {test} | {max(r.n for r in mine.values()):,} | {' | '.join(cells)} |")
    lines += ["", "| whole runs of the exact engine | at alpha | called NOT EXACT |"]
    lines += ["| --- | --- | --- |"]
    lines += [f"| {a.runs:,} | {a.alpha:g} | {a.alarms} |" for a in found.false_alarms]
    lines += ["", *kills(found.kills), *check_of_shares(found.shares)]
    return "\n".join(lines).rstrip() + "\n"


def kills(rows: list[KillRow]) -> list[str]:
    """The kill matrix: a section a tier and profile, those promised to be killed apart."""
    asked = {places.kind_of(k.fault).name for k in rows if k.tier == "engine"}
    lines = [
        "## Kills",
        "",
        f"Runs called NOT EXACT, or ended by a broken contract, of {len(asked)} of the "
        f"{len(FAULTS)} faults of [the catalogue](faults.md) as engines, and of those in the "
        "acceptance rule as verifiers too. An engine is asked the suite in which the fault "
        "shows. Of a fault with another size than its own `=x` says which.",
        "",
        "Runs were given a share of the profile's requests, the smallest with which enough of "
        "them are kills. Who is killed by a share s with probability k survives all 1/s such "
        "shares with probability (1 - k)^(1/s), and all requests together tell no less than their "
        "parts (held against runs below): *with all* is 1 less that, where k is the lower end of "
        f"its exact one-sided {CONFIDENCE:.0%} interval.",
        "",
    ]
    for tier, profile in dict.fromkeys((k.tier, k.profile) for k in rows):
        mine = [k for k in rows if (k.tier, k.profile) == (tier, profile)]
        sure = [k for k in mine if places.promised(k.fault, tier)]
        total, killed = sum(k.runs for k in sure), sum(k.killed for k in sure)
        shown = sum(k.whole is not None and k.whole >= SURE for k in sure)
        lines += [
            f"### {tier} tier, profile {profile}: {shown} of {len(sure)} faults are killed with "
            f"probability {SURE} at least",
            "",
            f"{killed:,} of {total:,} runs with a share were kills.",
            "",
        ]
        lines += kill_table(sure, tier)
        if small := [k for k in mine if not places.promised(k.fault, tier)]:
            lines += [
                "No kill is promised of these: too small for a whole engine, which the catalogue "
                "says, or with right tokens, so that no pass is right and no departure there is.",
                "",
                *kill_table(small, tier, why=True),
            ]
    return lines


def kill_table(rows: list[KillRow], tier: str, why: bool = False) -> list[str]:
    """Faults with how often each was killed, where it was asked, and by what."""
    if not rows:
        return []
    engine = tier == "engine"
    heads = ["fault", *(["suite"] if engine else []), "share", "killed", "with all, at least"]
    heads += ["passed as EXACT", *(["named"] if engine else []), "by", *(["note"] if why else [])]
    lines = [f"| {' | '.join(heads)} |", "| " + " | ".join(["---"] * len(heads)) + " |"]
    for k in rows:
        cells = [k.fault, *([places.suite_of(k.fault)] if engine else []), f"1/{1 / k.share:.3g}"]
        cells += [f"{k.killed}/{k.runs}", "" if k.whole is None else at_least(k.whole)]
        cells += [f"{k.passed}"]
        if engine:
            cells.append(f"{k.named}/{k.explained}" if k.explained else "not asked")
        cells += [", ".join(k.by), *([places.kind_of(k.fault).note] if why else [])]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def check_of_shares(rows: list[ShareRow]) -> list[str]:
    """Kill rates with a larger share beside those that a smaller one promises."""
    if not rows:
        return []
    lines = [
        "## Does the whole kill as often as its parts promise?",
        "",
        "Small faults, with two shares of the requests; *promised* is 1 - (1 - k)^(ratio of the "
        "shares), where k is the rate with the smaller.",
        "",
        "| fault | share | killed | larger share | promised | killed |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for r in rows:
        (small, large), (few, more) = r.shares, r.killed
        lines.append(
            f"| {r.fault} | 1/{1 / small:.3g} | {few}/{r.runs} | 1/{1 / large:.3g} "
            f"| {r.promised:.3f} | {more}/{r.runs} ({more / r.runs:.3f}) |"
        )
    return [*lines, ""]


def _thresholds(found: Measured) -> list[float]:
    return sorted({r.threshold for r in found.calibration}, reverse=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the simulations left their tables")
    found = with_earlier(collect(parser.parse_args().folder), measured())
    JSON.write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
