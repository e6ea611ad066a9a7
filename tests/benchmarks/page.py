"""The benchmark's Markdown page, written from its JSON and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import prose

Row = dict[str, Any]
SECONDS = ("wall", "engine_seconds", "starting", "planning", "judging")
WITHIN = 2.0  # times Wald's bound; what a leaning fault should be detected within


def render(results: Row) -> str:
    """The whole page."""
    parts = [*_head(results)]
    if "detection" in results:
        parts += [prose.HOW, *_summary(results), *_designs(results), *_cells(results)]
    parts += _judging(results) if "judging" in results else []
    parts += _shares(results) if "shares" in results else []
    parts += _engines(results) if "engines" in results else []
    return "\n".join(parts) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; the first column is text, the others numbers."""
    align = ["---", *("---:" for _ in header[1:])]
    return ["| " + " | ".join(cells) + " |" for cells in (header, align, *rows)] + [""]


def number(x: float | None, otherwise: str = "never") -> str:
    """Three digits, thousands apart."""
    if x is None:
        return otherwise
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def times(x: float | None, bound: float) -> str:
    """As a multiple of a bound."""
    return "–" if x is None else f"{x / bound:.2f}×" if x < 10 * bound else f"{x / bound:,.0f}×"


# --- what is asked of the cells -------------------------------------------------------------------


def departed(results: Row) -> list[Row]:
    """Cells in which something departs from p."""
    return [c for c in results["detection"]["cells"] if c["kl"] > 0]


def best_incumbent(cell: Row) -> tuple[str, float]:
    """The statistic that needed fewest tokens at the equal false-alarm rate."""
    found = cell["equal_rate"]["incumbents"]
    name = min(found, key=lambda s: float("inf") if found[s] is None else found[s])
    return name, float("inf") if found[name] is None else float(found[name])


def behind(cells: Sequence[Row]) -> list[Row]:
    """Cells in which some incumbent needs fewer tokens than the e-process at the same rate, by more
    than chance explains: the whole interval of our median lies above.
    """
    worse = []
    for cell in cells:
        ours = cell["equal_rate"]["e_process_at_least"]
        if (float("inf") if ours is None else ours) > best_incumbent(cell)[1]:
            worse.append(cell)
    return worse


def behind_chi_square(cells: Sequence[Row]) -> list[Row]:
    """Cells in which, at alpha, a chi-square test with exact p-values needs fewer tokens."""
    worse = []
    for cell in cells:
        ours, n = cell["e_process"]["median"], cell["fixed"]["chi-square"]["n50"]
        if n is not None and (ours is None or ours > n):
            worse.append(cell)
    return worse


def slow(results: Row) -> list[Row]:
    """Cells whose fault leans to the draft and whose median is beyond WITHIN times the bound."""
    out = []
    for cell in departed(results):
        median = cell["e_process"]["median"]
        if cell["leans"] and (median is None or median > WITHIN * cell["wald"]):
            out.append(cell)
    return out


def where(cell: Row) -> str:
    """A cell's name."""
    return f"{cell['departure']}, V = {cell['vocab']:,}, TV(p, q) = {cell['tv']:g}"


# --- sections -------------------------------------------------------------------------------------


def _head(results: Row) -> Iterator[str]:
    about = results["about"]
    took = ", ".join(f"{part} {seconds:,.0f} s" for part, seconds in about["seconds"].items())
    yield "# Benchmarks\n"
    yield (
        f"Written by `{about['command']}` from its JSON; do not edit. Version {about['version']}, "
        f"numpy {about['numpy']}, scipy {about['scipy']}, Python {about['python']}, "
        f"{about['cpus']} CPUs; {took}.\n"
    )


def _summary(results: Row) -> Iterator[str]:
    cells, alpha = departed(results), results["detection"]["alpha"]
    yield f"### In short: our e-process at alpha = {alpha:g}, as a multiple of Wald's bound\n"
    rows = []
    for vocab, tv in dict.fromkeys((c["vocab"], c["tv"]) for c in cells):
        mine = [c for c in cells if (c["vocab"], c["tv"]) == (vocab, tv)]
        rows.append([f"V = {vocab:,}, TV = {tv:g}", *_in_short(mine)])
    yield from table(
        ["pair", "faults that lean to q", "worst median", "worst 90 % quantile",
         "not behind an exact chi-square", "not behind any incumbent*",
         "others", "worst median", "not behind an exact chi-square", "not behind any incumbent*"],
        rows,
    )  # fmt: skip
    yield prose.LEANS
    late, worse = slow(results), behind(cells)
    if late:
        yield f"**Beyond {WITHIN:g}× although they lean to q:**\n"
        yield from (f"- {where(c)}: {times(c['e_process']['median'], c['wald'])}" for c in late)
        yield ""
    if worse:
        yield prose.BEHIND
        yield f"<details><summary>The {len(worse)} cells</summary>\n"
        yield from table(*_behind(worse))
        yield "</details>\n"


def _in_short(cells: Sequence[Row]) -> list[str]:
    lean, others = ([c for c in cells if c["leans"] == wanted] for wanted in (True, False))
    return [
        str(len(lean)),
        _worst(lean, "median"),
        _worst(lean, "q90"),
        *_not_behind(lean),
        str(len(others)),
        _worst(others, "median"),
        *_not_behind(others),
    ]


def _not_behind(cells: Sequence[Row]) -> list[str]:
    return [str(len(cells) - len(worse(cells))) for worse in (behind_chi_square, behind)]


def _behind(cells: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for c in cells:
        name, n = best_incumbent(c)
        e = c["equal_rate"]
        found = (n, e["e_process"], e["fixed_n"])
        rows.append(
            [
                where(c),
                f"{e['rate']:g}",
                name,
                number(e["wald"]),
                *(times(x, e["wald"]) for x in found),
            ]
        )
    return (
        ["cell", "rate", "incumbent", "Wald, tokens", "incumbent", "e-process", "our fixed-N"],
        rows,
    )


def _worst(cells: Sequence[Row], key: str) -> str:
    if not cells:
        return "–"
    found = [(c["e_process"][key], c["wald"]) for c in cells]
    if any(n is None for n, _ in found):
        return "beyond the limit"
    return f"{max(n / bound for n, bound in found):.2f}×"


def _designs(results: Row) -> Iterator[str]:
    yield prose.PUBLISHED
    for d in results["detection"]["designs"]:
        alarms = d["false_alarms"]
        low, high = alarms["interval_95"]
        yield (
            f"**{d['design']}.** {d['trials']}, about {d['tokens']:,} tokens of the engine. "
            f"False alarms: {alarms['rate']:.2%} of {alarms['runs']:,} exact samplers (95 %: "
            f"{low:.2%} to {high:.2%}).\n"
        )
        rows = []
        for name, fault in d["faults"].items():
            needs = fault["multiple"]
            rows.append(
                [
                    name,
                    f"{fault['kill_rate']:.0%}",
                    f"more than {fault['followed_to']:,}×" if needs is None else f"{needs:,}×",
                    number(fault["ours"], "not seen"),
                ]
            )
        yield from table(["fault", "killed", "needs", "ours, tokens"], rows)
    yield prose.NOT_SEEN


def _cells(results: Row) -> Iterator[str]:
    yield prose.PAIRS
    cells = departed(results)
    silent = [c for c in results["detection"]["cells"] if c["kl"] == 0]
    for vocab, tv in dict.fromkeys((c["vocab"], c["tv"]) for c in cells):
        mine = [c for c in cells if (c["vocab"], c["tv"]) == (vocab, tv)]
        none = [c["departure"] for c in silent if (c["vocab"], c["tv"]) == (vocab, tv)]
        yield f"<details><summary>V = {vocab:,}, TV(p, q) = {tv:g}</summary>\n"
        yield from table(*_ours(mine))
        rate = mine[0]["equal_rate"]["rate"]
        yield f"False-alarm rate {rate:g}:\n"
        yield from table(*_equal(mine))
        if none:
            yield f"No departure on this pair: {', '.join(none)}.\n"
        yield "</details>\n"


def _ours(cells: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    header = ["departure", "leans", "emitted TV", "Wald, tokens", "e-process, median", "90 %"]
    tests = list(cells[0]["fixed"])
    header += [f"{t}, {p}" for t in tests for p in ("50", "99")]
    rows = []
    for c in cells:
        row = [c["departure"], "yes" if c["leans"] else "no", f"{c['emitted_tv']:.3g}"]
        row.append(number(c["wald"]))
        row += [times(c["e_process"][k], c["wald"]) for k in ("median", "q90")]
        row += [times(c["fixed"][t][k], c["wald"]) for t in tests for k in ("n50", "n99")]
        rows.append(row)
    return header, rows


def _equal(cells: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    names = list(cells[0]["equal_rate"]["incumbents"])
    rows = []
    for c in cells:
        e = c["equal_rate"]
        found = [e["e_process"], e["fixed_n"], *(e["incumbents"][s] for s in names)]
        rows.append([c["departure"], number(e["wald"]), *(times(x, e["wald"]) for x in found)])
    return ["departure", "Wald, tokens", "our e-process", "our fixed-N", *names], rows


def _judging(results: Row) -> Iterator[str]:
    judging = results["judging"]
    yield prose.JUDGING
    rows = [
        [
            f"{r['vocab']:,}",
            f"{r['tokens']:,}",
            number(r["seconds"], "not run"),
            number(1e6 * r["seconds"] / r["tokens"]) if r["seconds"] else "",
            number(r["peak_mib"]) if r["seconds"] else "",
            number(r["resting_mib"]) if r["seconds"] else "",
        ]
        for r in judging["cells"]
    ]
    yield from table(
        ["vocabulary", "tokens", "seconds", "µs a token", "peak MiB", "before judging, MiB"], rows
    )
    for name, slope in judging["exponents"].items():
        yield f"- Time grows like tokens^{slope:.2f} ({name})."
    yield ""


def _shares(results: Row) -> Iterator[str]:
    yield prose.SHARES
    rows = [
        [
            f"{s['engine']} ({s['profile']}, {s['verdict']})",
            str(s["jobs"]),
            str(s["cases"]),
            f"{s['tokens']:,}",
            *(number(s[k]) for k in SECONDS),
            f"{s['overhead']:.1%}",
        ]
        for s in results["shares"]
    ]
    header = ["run", "workers", "cases", "tokens", "wall, s", "generating, s", "starting, s"]
    yield from table([*header, "planning, s", "judging, s", "overhead"], rows)


def _engines(results: Row) -> Iterator[str]:
    yield prose.ENGINES
    rows = [
        [
            e["engine"],
            f"{e['requests']:,}",
            *(f"{e[k]:,.0f}" for k in ("bare", "ours")),
            f"{e['ratio']:.2f}",
            f"{min(e['ratios']):.2f} to {max(e['ratios']):.2f}",
        ]
        for e in results["engines"]
    ]
    header = ["engine", "requests", "bare, requests/s", "through the suite", "ratio", "its range"]
    yield from table(header, rows)
