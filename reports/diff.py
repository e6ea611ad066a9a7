"""What changed between two reports: of two builds of an engine, say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from conformance._version import __version__
from conformance.errors import ReportError
from conformance.reports.bench_model import BenchReport
from conformance.reports.diff_bench import speed_changes
from conformance.reports.diff_case import case_diff, comparisons_in
from conformance.reports.diff_estimates import LEAST_CONFIDENCE, each_of
from conformance.reports.diff_match import matched_engines, pairs
from conformance.reports.diff_model import CaseDiffModel, ChangedModel, DiffModel, SideModel
from conformance.reports.model import Report, load_report
from conformance.reports.text import counted

CONFIDENCE = 0.999
HIGHEST_CONFIDENCE = 1 - 1e-9
# what was fixed before sampling: where it differs, less can be read off a comparison
SETTINGS = ("profile", "alpha", "power", "delta", "tests", "stage", "seed")


def read_side(path: Path) -> Report:
    """The report in a bundle's folder, or in a file.

    Raises
    ------
    ReportError
        If it cannot be read.
    """
    return load_report(path / "report.json" if path.is_dir() else path)


def diff_reports(
    old: Report,
    new: Report,
    *,
    match: Sequence[str] = (),
    confidence: float = CONFIDENCE,
    strict: bool = False,
    benches: tuple[BenchReport | None, BenchReport | None] = (None, None),
) -> DiffModel:
    """Compare two reports.

    Parameters
    ----------
    old, new : Report
        What is compared.
    match : sequence of str
        ``OLDNAME=NEWNAME`` for engines that have another name now.
    confidence : float
        With which all comparisons of estimates hold together.
    strict : bool
        Whether being weaker (a larger departure would go unseen) counts as worse.
    benches : tuple of BenchReport or None
        What ``conformance bench`` measured, old and new.

    Raises
    ------
    ReportError
        If the two cannot be compared: no case in common, or `match` names no engine.
    """
    if not LEAST_CONFIDENCE <= confidence <= HIGHEST_CONFIDENCE:
        raise ReportError(
            f"the confidence must be from {LEAST_CONFIDENCE:g} to {HIGHEST_CONFIDENCE:.9f}"
        )
    before, now = benches
    renamed = matched_engines(old, new, match)
    side_by_side = pairs(old, new, renamed)
    same = old.settings.seed == new.settings.seed
    comparisons = sum(comparisons_in(a, b, same) for a, b in side_by_side if a and b)
    each = each_of(confidence, comparisons)
    try:
        cases = [case_diff(a, b, each, same) for a, b in side_by_side]
    except (ArithmeticError, ValidationError) as exc:  # a file may hold any number
        raise ReportError(f"a report holds numbers that cannot be compared: {exc}") from exc
    weaker = list(_weaker(old, new))
    counts = _counts(cases, weaker)
    failed = bool(counts["worse"] or (strict and counts["weaker"]))
    return DiffModel(
        tool_version=__version__,
        old=_side(old),
        new=_side(new),
        confidence=confidence,
        comparisons=comparisons,
        settings=list(_settings(old, new)),
        surroundings=list(_surroundings(old, new, renamed)),
        matched=renamed,
        weaker=weaker,
        cases=cases,
        speed=speed_changes(before, now, renamed, confidence) if before and now else [],
        counts=counts,
        strict=strict,
        exit_code=1 if failed else 0,
        headline=_headline(counts, len([1 for a, b in side_by_side if a and b])),
    )


def _counts(cases: Sequence[CaseDiffModel], weaker: Sequence[str]) -> dict[str, int]:
    changes = Counter(case.change for case in cases)
    return {
        "worse": changes["worse"] + changes["removed"],
        "removed": changes["removed"],
        "better": changes["better"],
        "same": changes["same"],
        "added": changes["added"],
        # the settings of the whole run count as one
        "weaker": sum(bool(case.weaker) for case in cases) + bool(weaker),
        "stronger": sum(bool(case.stronger) for case in cases),
    }


def _headline(counts: dict[str, int], compared: int) -> str:
    parts = [f"{counts[name]} {name}" for name in ("better", "added") if counts[name]]
    if counts["weaker"]:
        parts.append(f"{counts['weaker']} weaker")
    rest = f" ({', '.join(parts)})" if parts else ""
    of = counted(compared, "configuration")
    if counts["worse"]:
        gone = f", {counts['removed']} of them gone" if counts["removed"] else ""
        got = counted(counts["worse"], "configuration")
        return f"{got} got worse{gone}; {of} compared{rest}"
    return f"Nothing got worse in {of}{rest}"


def _side(report: Report) -> SideModel:
    return SideModel(
        created=report.created,
        tool_version=report.tool_version,
        verdict=report.verdict,
        exit_code=report.exit_code,
        engines={engine.name: engine.version for engine in report.engines},
    )


def _changed(name: str, old: object, new: object) -> Iterator[ChangedModel]:
    if old != new:
        yield ChangedModel(name=name, old=str(old), new=str(new))


def _settings(old: Report, new: Report) -> Iterator[ChangedModel]:
    yield from _changed("tool version", old.tool_version, new.tool_version)
    for name in SETTINGS:
        yield from _changed(name, getattr(old.settings, name), getattr(new.settings, name))
    weights = {probe.name: probe.sha256 for probe in old.probes}
    for probe in new.probes:
        if weights.get(probe.name, probe.sha256) != probe.sha256:
            yield ChangedModel(
                name=f"files of probe {probe.name}", old="other checksums", new="other checksums"
            )


def _surroundings(old: Report, new: Report, renamed: dict[str, str]) -> Iterator[ChangedModel]:
    after = {engine.name: engine for engine in new.engines}
    for engine in old.engines:
        now = after.get(renamed.get(engine.name, engine.name))
        if now is not None:
            yield from _changed(f"version of {now.name}", engine.version, now.version)
            yield from _changed(f"method of {now.name}", engine.method, now.method)
            yield from _changed(f"rule of {now.name}", engine.rule, now.rule)
            yield from _changed(f"dialect of {now.name}", engine.dialect, now.dialect)
            for name in dict.fromkeys([*engine.environment, *now.environment]):
                a, b = (e.environment.get(name, "–") for e in (engine, now))
                yield from _changed(f"{name}, under {now.name}", a, b)
    yield from _changed("worker processes", old.settings.jobs, new.settings.jobs)
    for name in dict.fromkeys([*old.environment, *new.environment]):
        yield from _changed(name, old.environment.get(name, "–"), new.environment.get(name, "–"))


def _weaker(old: Report, new: Report) -> Iterator[str]:
    """Where a pass of the new run as a whole is worth less."""
    if new.settings.delta > old.settings.delta:
        yield (
            f"profile {new.settings.profile} promises to see a total variation of "
            f"{new.settings.delta:g}, profile {old.settings.profile} one of {old.settings.delta:g}"
        )
    if new.settings.power < old.settings.power:
        yield f"with probability {new.settings.power:g}, before {old.settings.power:g}"
