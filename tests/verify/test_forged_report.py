"""A report that says something else than the evidence, with pages and manifest made anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from bundles import edit_report, reseal, rewrite, wrong

from conformance.reports.verify import Status, verify_bundle

pytestmark = pytest.mark.long  # run by 'make test-bundles', and by CI

Json = Any
EXACT = "reference / mid / temp"
END, EARLY = "resample-from-p / mid / temp", "Accepts / mid / temp"


def case(report: Json, words: str = EXACT) -> Json:
    (found,) = (c for c in report["cases"] if words in c["id"])
    return found


def finding(report: Json, test: str, words: str = EXACT) -> Json:
    return next(f for f in case(report, words)["findings"] if f["test"] == test and f["level"] > 0)


def judged(report: Json, words: str = END) -> Json:
    return max(case(report, words)["findings"], key=lambda f: f["rejected"])


def put(place: Callable[[Json], Json], **fields: Any) -> Callable[[Json], None]:
    return lambda report: place(report).update(fields)


def scaled(place: Callable[[Json], Json], name: str, by: float) -> Callable[[Json], None]:
    def change(report: Json) -> None:
        place(report)[name] *= by

    return change


def effect(report: Json) -> Json:
    return next(iter(finding(report, "draft leak")["effect"].values()))


def greedy(report: Json) -> Json:
    return case(report, "reference / mid / greedy")


def drop_case(report: Json) -> None:
    report["cases"] = [c for c in report["cases"] if END not in c["id"]]


def drop_finding(report: Json) -> None:
    case(report, END)["findings"] = [f for f in case(report, END)["findings"] if not f["rejected"]]


def pass_by_hand(report: Json) -> None:
    """What a forger most wants: a wrong engine that passed, and a run that did."""
    good = case(report)
    for bad in report["cases"]:
        if bad["verdict"] != "NOT SUPPORTED":
            for name in ("verdict", "why", "ruled_out", "findings", "error", "diagnosis"):
                bad[name] = good[name]
    report.update(verdict="EXACT", exit_code=0, why="5 of 5 passed every test.")


def refused_by_hand(report: Json) -> None:
    """A departure that is said to have been a refusal, beside evidence that shows it."""
    bad = case(report, END)
    bad.update(verdict="NOT SUPPORTED", why="the engine refused the configuration: no", needed=None)
    bad.update(findings=[], bars=[], pit=[], trajectories=[], acceptance=None, diagnosis=None)


def nearer(report: Json) -> None:
    bad = min((f for f in case(report, END)["findings"] if f["rejected"]), key=_p)
    bad["p_value"] *= 10


def _p(found: Json) -> float:
    return 1.0 if found["p_value"] is None else float(found["p_value"])


FORGERIES: dict[str, tuple[Callable[[Json], object], str]] = {
    "the run's verdict": (lambda r: r.update(verdict="EXACT"), "verdict"),
    "exit status": (lambda r: r.update(exit_code=0), "verdict"),
    "the run in words": (lambda r: r.update(why="All passed."), "verdict"),
    "a case's verdict": (put(lambda r: case(r, END), verdict="EXACT"), "case faulty:resample"),
    "early, not found": (put(lambda r: case(r, EARLY), verdict="INCONCLUSIVE"), "case /"),
    "everything by hand": (pass_by_hand, "case faulty:resample"),
    "a refusal by hand": (refused_by_hand, "case faulty:resample"),
    "ERROR by hand": (put(lambda r: case(r, END), verdict="ERROR", error="x"), "case faulty:resa"),
    "exact made wrong": (put(case, verdict="NOT EXACT"), "case reference"),
    "why": (put(case, why="it is perfect"), "case reference"),
    "what is ruled out": (put(case, ruled_out=["everything"]), "case reference"),
    "a line left out of it": (lambda r: case(r)["ruled_out"].pop(), "case reference"),
    "needed": (put(case, needed=10_000), "case reference"),
    "stage": (put(case, stage=2), "case reference"),
    "workload": (put(case, workload="9,000,000 requests"), "case reference"),
    "decoding": (put(case, decoding="temperature=0.5"), "case reference"),
    "probe": (put(case, probe="far"), "case reference"),
    "error on a pass": (put(case, error="x"), "case reference"),
    "p-value": (put(lambda r: finding(r, "KL"), p_value=0.5), "case reference"),
    "small p-value": (scaled(judged, "statistic", 1.001), "case faulty:resample"),
    "p-value near 0": (nearer, "case faulty:resample"),
    "level": (scaled(lambda r: finding(r, "KL"), "level", 10), "case reference"),
    "rejected": (put(judged, rejected=False), "case faulty:resample"),
    "n": (put(lambda r: finding(r, "KL"), n=10**6), "case reference"),
    "df": (put(lambda r: finding(r, "chi-square"), df=1.0), "case reference"),
    "effect": (put(effect, estimate=0.0), "case reference"),
    "confidence": (put(effect, confidence=0.999), "case reference"),
    "detectable": (scaled(lambda r: finding(r, "KL"), "detectable", 0.5), "case reference"),
    "its unit": (put(lambda r: finding(r, "KL"), detectable_unit="nats"), "case reference"),
    "message": (put(judged, message="fine"), "case faulty:resample"),
    "a finding left out": (drop_finding, "case faulty:resample"),
    "a finding twice": (lambda r: case(r)["findings"].append(finding(r, "KL")), "case reference"),
    "adjusted p": (scaled(judged, "adjusted_p", 3.0), "adjusted p-values"),
    "proposals": (put(lambda r: case(r)["speculation"], drafted=10**6), "case reference"),
    "rejections": (put(lambda r: case(r)["speculation"], rejected=0), "case reference"),
    "reported": (put(lambda r: case(r)["speculation"], reported=False), "case reference"),
    "evidence's checksum": (put(lambda r: case(r)["arms"][0], sha256="0" * 64), "case reference"),
    "requests": (put(lambda r: case(r)["arms"][0], requests=10**6), "case reference"),
    "planned": (put(lambda r: case(r, EARLY)["arms"][0], planned=64), "case /"),
    "tokens": (put(lambda r: case(r)["arms"][1], tokens=10**6), "case reference"),
    "set aside": (put(lambda r: case(r)["arms"][0], set_aside=10**6), "case reference"),
    "seconds": (scaled(lambda r: case(r)["arms"][0], "seconds", 2.0), "case reference"),
    "an arm left out": (lambda r: case(r)["arms"].pop(), "case reference"),
    "bars": (lambda r: _first(case(r)["bars"][0]["observed"], 7), "case reference"),
    "expected bars": (lambda r: _first(case(r)["bars"][0]["expected"], 7.5), "case reference"),
    "labels of bars": (lambda r: _first(case(r)["bars"][0]["labels"], "z"), "case reference"),
    "bars left out": (put(case, bars=[]), "case reference"),
    "histogram": (lambda r: _first(case(r)["pit"][0]["observed"], 7), "case reference"),
    "band": (put(lambda r: case(r)["pit"][0], band=[0.0, 10**6]), "case reference"),
    "trajectory": (lambda r: _first(case(r)["trajectories"][0]["log10_e"], 0.25), "case reference"),
    "trajectory's aim": (put(lambda r: case(r)["trajectories"][0], needed=90.0), "case reference"),
    "acceptance": (put(lambda r: case(r)["acceptance"]["places"][0], rate=0.99), "case reference"),
    "kind of acceptance": (put(lambda r: case(r)["acceptance"], verified=False), "case reference"),
    "diagnosis": (put(lambda r: case(r, END), diagnosis=None), "case faulty:resample"),
    "a cause named": (lambda r: _cause(case(r, END)), "case faulty:resample"),
    "greedy's findings": (
        put(lambda r: greedy(r)["findings"][0], n=1),
        "case reference / mid / gr",
    ),
    "not asked": (lambda r: r["not_asked"].pop(), "verdict"),
    "another reason": (put(lambda r: r["not_asked"][0], why="none"), "verdict"),
    "measured": (lambda r: _shuffled(r["measured"]), "how the suite was tested"),
    "profile": (put(lambda r: r["settings"], profile="audit"), "settings"),
    "alpha": (put(lambda r: r["settings"], alpha=1e-9), "settings"),
    "power": (put(lambda r: r["settings"], power=0.9999), "settings"),
    "delta": (put(lambda r: r["settings"], delta=0.01), "settings"),
    "tests": (put(lambda r: r["settings"], tests=1), "settings"),
    "seed": (put(lambda r: r["settings"], seed=1), "settings"),
    "jobs": (put(lambda r: r["settings"], jobs=64), "settings"),
    "run's stage": (put(lambda r: r["settings"], stage=2), "settings"),
    "version": (put(lambda r: r["engines"][0], version="99"), "engines"),
    "dialect": (put(lambda r: r["engines"][0], dialect="ours"), "engines"),
    "rule": (put(lambda r: r["engines"][1], rule="lossy"), "engines"),
    "an engine left out": (lambda r: r["engines"].pop(), "engines"),
    "entropy": (put(lambda r: r["probes"][0], entropy_nats=5.0), "probes"),
    "rounding": (put(lambda r: r["probes"][0], float_noise=1.0), "probes"),
    "a probe left out": (lambda r: r["probes"].pop(), "probe mid"),
    "a probe's checksum": (lambda r: _any_sum(r["probes"][0]["sha256"]), "probe mid"),
    "the tool's version": (lambda r: r.update(tool_version="0.0.9"), "tool"),
    "schema": (lambda r: r.update(schema_version="1.1"), "verdict"),
    "a case left out": (drop_case, "plan"),
    "order of cases": (lambda r: r["cases"].reverse(), "plan"),
    "a case twice": (lambda r: r["cases"].append(r["cases"][0]), "plan"),
    "a case nobody asked for": (lambda r: r["cases"].append(_renamed(case(r))), "plan"),
    "expected": (lambda r: r.update(expectations=_nothing_expected()), "verdict"),
}


def _first(values: list[Any], new: Any) -> None:
    assert values[0] != new
    values[0] = new


def _cause(bad: Json) -> None:
    assert bad["diagnosis"]
    bad["diagnosis"]["fault"] = "stale-cache"


def _shuffled(measured: Json) -> None:
    def change(node: Any) -> bool:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(value, dict | list):
                if change(value):
                    return True
            elif isinstance(value, int | float) and not isinstance(value, bool):
                node[key] = type(value)(value * 2 + 1)
                return True
        return False

    assert change(measured)


def _any_sum(sums: dict[str, str]) -> None:
    sums[next(iter(sums))] = "f" * 64


def _renamed(one: Json) -> Json:
    return one | {"id": one["id"].replace("temperature=1", "temperature=2")}


def _nothing_expected() -> Json:
    return {"entries": [], "unmatched": [], "expired": [], "as_expected": 0, "passes_now": 0}


@pytest.mark.parametrize("name", FORGERIES)
def test_it_is_found_and_named(name, forged) -> None:
    change, line = FORGERIES[name]
    folder = forged("mixed")
    before = json.loads((folder / "report.json").read_text())
    edit_report(folder, change)
    assert json.loads((folder / "report.json").read_text()) != before  # it was no empty forgery
    told = wrong(folder)
    assert any(one.startswith(line) for one in told), told


def test_what_the_suite_itself_writes_agrees(forged) -> None:
    """The helpers of these tests do nothing that would be found by itself."""
    folder = forged("mixed")
    edit_report(folder, lambda report: None, pages=True)
    reseal(folder)
    assert wrong(folder) == []
    rewrite(folder)
    assert wrong(folder) == []


WORD = {
    "when": lambda r: r.update(created="2020-01-01T00:00:00Z"),
    "how long": lambda r: r.update(seconds=1.0),
    "command": lambda r: r.update(command=["conformance", "run", "something else"]),
    "machine": lambda r: r.update(environment={"python": "3.99"}),
}


@pytest.mark.parametrize("name", WORD)
def test_what_is_only_the_runs_word_is_said_to_be(name, forged) -> None:
    """No file can show these; they are listed as somebody's word, in every bundle."""
    folder = forged("small")
    edit_report(folder, WORD[name], pages=True)
    found = verify_bundle(folder)
    assert found.agrees
    assert any(
        c.status is Status.STATED and c.what == "times, command line, machine" for c in found.checks
    )


@pytest.mark.parametrize("how", ["duplicate key", "spaces", "another order"])
def test_a_report_that_readers_could_read_in_two_ways(how, forged) -> None:
    """Which of two equal names counts is for each reader to choose."""
    folder = forged("small")
    path = folder / "report.json"
    text = path.read_text()
    if how == "duplicate key":
        text = text.replace(
            '"verdict": "EXACT"', '"verdict": "NOT EXACT",\n  "verdict": "EXACT"', 1
        )
    elif how == "spaces":
        text = text.replace('"exit_code": 0', '"exit_code":  0', 1)
    else:
        text = json.dumps(dict(reversed(json.loads(text).items())), indent=2) + "\n"
    path.write_text(text)
    reseal(folder)
    assert any("report.json is not as it was written" in one for one in wrong(folder))
