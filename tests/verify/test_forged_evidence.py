"""Evidence that is not what an undisturbed run leaves, with checksums and report that fit it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bundles import (
    BOTH,
    SAMPLED,
    difficult,
    edit_evidence,
    edit_report,
    evidence_file,
    lines,
    reseal,
    rewrite,
    run,
    wrong,
)

from conformance.errors import NotSupportedError
from conformance.evidence import Evidence, first_requests, load_evidence, selected
from conformance.parts import Parts, reason
from conformance.reports.model import load_report
from conformance.reports.verify import Status, verify_bundle

pytestmark = pytest.mark.long  # run by 'make test-bundles', and by CI

EXACT, END, EARLY = "reference_mid_temp", "resample-from-p_mid_temp", "Accepts_mid_temp"
GREEDY = "reference_mid_greedy"


def keep(choose: Callable[[int], np.ndarray]) -> Callable[[Evidence], Evidence]:
    return lambda e: selected(e, choose(len(e.tokens)))


def rows(order: Callable[[int], np.ndarray]) -> Callable[[Evidence], Evidence]:
    """Rows in another order, or some of them twice; rounds go along."""

    def change(e: Evidence) -> Evidence:
        at = order(len(e.tokens))
        parts = {name: getattr(e, name)[at] for name in ("tokens", "prompt", "seeds", "question")}
        rounds = None
        if e.rounds is not None:
            each = [e.rounds[e.rounds[:, 0] == i] for i in at]
            rounds = np.concatenate(
                [np.column_stack([np.full(len(r), k), r[:, 1:]]) for k, r in enumerate(each)]
            )
        return replace(e, **parts, rounds=rounds, batch=None, batch_seconds=None)

    return change


def as_planned(change: Callable[[Evidence], Evidence]) -> Callable[[Evidence], Evidence]:
    """The same, with seeds, prompts and questions of the places the answers are put in."""

    def changed(e: Evidence) -> Evidence:
        made = change(e)
        n = len(made.tokens)
        return replace(made, seeds=e.seeds[:n], prompt=e.prompt[:n], question=e.question[:n])

    return changed


def dropped(n: int) -> np.ndarray:
    """The most telling kind of selection: requests whose answer begins with a rare token."""
    return np.arange(n) % 7 != 3


def tokens(change: Callable[[np.ndarray], None]) -> Callable[[Evidence], Evidence]:
    def changed(e: Evidence) -> Evidence:
        made = e.tokens.copy()
        change(made)
        return replace(e, tokens=made)

    return changed


def rounds(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Evidence], Evidence]:
    return lambda e: replace(e, rounds=change(e.rounds.copy()))


def with_first(array: np.ndarray, value: int) -> np.ndarray:
    array[0, 1:] = value
    return array


FORGERIES: dict[str, Callable[[Evidence], Evidence]] = {
    "the last request": keep(lambda n: np.arange(n) < n - 1),
    "half of them": keep(lambda n: np.arange(n) < n // 2),
    "one in the middle": keep(lambda n: np.arange(n) != n // 2),
    "some that were chosen": keep(dropped),
    "one put in twice": rows(lambda n: np.insert(np.arange(n), 5, 5)[:n]),
    "another order": rows(lambda n: np.roll(np.arange(n), 1)),
    "all but none": keep(lambda n: np.arange(n) < 0),
    "one more than was planned": lambda e: replace(
        rows(lambda n: np.append(np.arange(n), 0))(e), planned=len(e.tokens) + 1
    ),
    "planned": lambda e: replace(first_requests(e, 200), planned=200),
    "a seed": lambda e: replace(e, seeds=np.where(np.arange(len(e.seeds)) == 3, 1, e.seeds)),
    "a prompt": lambda e: replace(e, prompt=np.roll(e.prompt, 1)),
    "a question": lambda e: replace(e, question=e.question[::-1].copy()),
    "no questions": lambda e: replace(e, question=None),
    "rounds": rounds(lambda r: np.column_stack([r[:, 0], r[:, 1], np.zeros(len(r), np.int64)])),
    "rounds that emit too many": rounds(lambda r: with_first(r, 50)),
    "another case's name": lambda e: replace(e, case="exact / mid / temperature=1"),
    "another arm's name": lambda e: replace(e, arm="control"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_no_other_answers_pass_for_those_planned(name, forged) -> None:
    folder = forged("mixed")
    edit_evidence(folder, EXACT, FORGERIES[name])
    told = wrong(folder)
    assert any(line.startswith("case reference / mid / temperature=1") for line in told), told
    rewrite(folder)
    told = wrong(folder)
    assert any("reference" in line for line in told), told


def test_blocks_told_of_the_arm_that_does_not_speculate(forged) -> None:
    folder = forged("mixed")
    made = load_evidence(evidence_file(folder, EXACT))
    edit_evidence(folder, EXACT, lambda e: replace(e, rounds=made.rounds), "control")
    assert any("does not speculate" in line for line in wrong(folder))


VALUES: dict[str, tuple[str, Callable[[Evidence], Evidence]]] = {
    "a token": (EXACT, tokens(lambda t: np.put(t, 0, (t.flat[0] + 1) % 32))),
    "a greedy token": (GREEDY, tokens(lambda t: np.put(t, 0, (t.flat[0] + 1) % 32))),
    "a token of a wrong engine": (END, tokens(lambda t: np.put(t, 0, (t.flat[0] + 1) % 32))),
    "every token": (END, tokens(lambda t: np.copyto(t, t[::-1].copy()))),
    "seconds": (EXACT, lambda e: replace(e, batch_seconds=e.batch_seconds * 2)),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_report_that_was_not_made_from_it_is_found(name, forged) -> None:
    """What was answered is any engine's to say; what follows from it is not."""
    words, change = VALUES[name]
    folder = forged("mixed")
    edit_evidence(folder, words, change)
    assert any(line.startswith("case") for line in wrong(folder))


@pytest.fixture(scope="module")
def others(made: Path) -> dict[str, Path]:
    """The same engine, asked otherwise."""
    asked = {"seed": ("--seed", "5"), "alpha": ("--alpha", "1e-3")}
    return {
        name: run(made / f"other-{name}", "reference", *BOTH, *more) for name, more in asked.items()
    }


@pytest.mark.parametrize("name", ["seed", "alpha"])
@pytest.mark.parametrize("words", [EXACT, GREEDY])
def test_evidence_of_another_run(name, words, others, forged) -> None:
    if (name, words) == ("alpha", GREEDY):
        pytest.skip("greedy decoding spends no alpha: it is the same evidence")
    folder = forged("small")
    for arm in ("speculative", "control"):
        shutil.copyfile(evidence_file(others[name], words, arm), evidence_file(folder, words, arm))
    reseal(folder)
    assert wrong(folder)
    rewrite(folder)
    assert any(line.startswith("case reference") for line in wrong(folder))


def test_evidence_of_another_case(forged) -> None:
    """An exact engine's answers in the place of a wrong one's."""
    folder = forged("mixed")
    for arm in ("speculative", "control"):
        good, bad = (evidence_file(folder, words, arm) for words in (EXACT, END))
        shutil.copyfile(good, bad)
    reseal(folder)
    rewrite(folder)
    assert any("case faulty:resample-from-p / mid / temp" in line for line in wrong(folder))


def test_arms_that_change_places(forged) -> None:
    folder = forged("mixed")
    one, other = (evidence_file(folder, END, arm) for arm in ("speculative", "control"))
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    reseal(folder)
    rewrite(folder)
    assert any("case faulty:resample-from-p / mid / temp" in line for line in wrong(folder))


@pytest.mark.parametrize("words", [EXACT, END])
@pytest.mark.parametrize("n", [50, 200, 412])
def test_an_early_end_without_a_reason(n, words, forged) -> None:
    """An end before the planned one is told from bets that were won by then, and then it is the
    end of a departure.
    """
    folder = forged("mixed")
    for arm in ("speculative", "control"):
        edit_evidence(folder, words, lambda e: first_requests(e, n), arm)
    rewrite(folder)
    told = wrong(folder)
    if words == EXACT or n == 50:
        assert any("requests have no answer" in line for line in told)
    assert told or verdict_of(folder, words) == "NOT EXACT"


def test_chosen_answers_that_are_closed_up(forged) -> None:
    """With the seeds and prompts of the places they are moved to: they do not fit these."""
    folder = forged("mixed")
    edit_evidence(folder, EXACT, as_planned(keep(dropped)))
    assert wrong(folder)
    rewrite(folder)
    assert wrong(folder) or verdict_of(folder, EXACT) == "NOT EXACT"


def verdict_of(folder: Path, words: str) -> str:
    """A case's verdict in the report, by the words in the name of its evidence."""
    name = words.replace("_mid_temp", " / mid / temp")
    cases = load_report(folder / "report.json").cases
    return next(c.verdict.value for c in cases if name in c.id)


def test_a_case_without_its_evidence(forged) -> None:
    folder = forged("mixed")
    evidence_file(folder, EXACT).unlink()
    reseal(folder)
    assert any("evidence of the speculative arm is missing" in line for line in wrong(folder))


# --- failures and refusals, which are the run's word ----------------------------------------------


def blank(verdict: str, why: str, error: str | None) -> Callable[[dict], None]:
    """The wrong engine's case, as if it had come to nothing."""

    def change(report: dict) -> None:
        (case,) = (c for c in report["cases"] if "resample-from-p / mid / temp" in c["id"])
        case.update(
            verdict=verdict, why=why, error=error, ruled_out=[], needed=None, diagnosis=None
        )
        case.update(findings=[], bars=[], pit=[], trajectories=[], acceptance=None, arms=[])
        case["speculation"] = dict.fromkeys(case["speculation"], 0) | {"reported": False}

    return change


def remove(folder: Path) -> None:
    for path in arms(folder, END):
        path.unlink()
    reseal(folder)


def arms(folder: Path, words: str) -> list[Path]:
    """The evidence of every arm of a case that ended."""
    found = (folder / "evidence").glob("*.parquet")
    return [p for p in found if words in p.name and not p.name.endswith(".partial.parquet")]


REFUSED = "the engine refused the configuration: no sampling here"


def test_a_refusal_needs_evidence_of_it(forged) -> None:
    """A refusal is not counted against the run, so that nobody may just write it down."""
    folder = forged("mixed")
    remove(folder)
    edit_report(folder, blank("NOT SUPPORTED", REFUSED, "no sampling here"))
    assert any("case faulty:resample-from-p / mid / temp" in line for line in wrong(folder))


def test_a_made_up_refusal_is_loud_and_no_pass(forged) -> None:
    """With evidence of nothing made up as well, no file can show it: then it is said."""
    folder = forged("mixed")
    for path in arms(folder, END):
        error = NotSupportedError("no sampling here")
        nothing = first_requests(load_evidence(path), 0)
        nothing.save(Parts(path).failed, more=reason(error, "no sampling here"))
    remove(folder)
    rewrite(folder)
    found = verify_bundle(folder)
    assert lines(found, Status.DIFFERS) == []
    assert "faulty:resample-from-p / mid / temperature=1" in found.untested
    assert any(
        "resample-from-p / mid / temperature=1: NOT SUPPORTED, no pass" in line
        for line in lines(found, Status.STATED)
    )


def test_an_error_without_evidence_is_loud_and_no_pass(forged) -> None:
    folder = forged("mixed")
    remove(folder)
    edit_report(folder, blank("ERROR", "the engine failed: lost", "lost"))
    rewrite(folder)
    found = verify_bundle(folder)
    assert lines(found, Status.DIFFERS) == []
    assert found.verdict != "EXACT"
    assert "faulty:resample-from-p / mid / temperature=1" in found.untested


@pytest.mark.parametrize("words", [END, EARLY])
def test_what_shows_a_departure_did_not_fail(words, forged) -> None:
    """All answers are there, or as many as settled the case, under the name of a failure."""
    folder = forged("mixed")
    for path in arms(folder, words):
        load_evidence(path).save(Parts(path).failed, more=reason(RuntimeError("oops"), "oops"))
        path.unlink()
    reseal(folder)
    rewrite(folder)
    found = verify_bundle(folder)
    case = next(c for c in found.checks if words.split("_mid")[0] in c.what and "temp" in c.what)
    assert case.status is Status.DIFFERS or case.detail.startswith("NOT EXACT")


def test_evidence_of_an_end_and_of_a_failure(forged) -> None:
    folder = forged("mixed")
    path = evidence_file(folder, EXACT)
    load_evidence(path).save(Parts(path).failed, more=reason(RuntimeError("oops"), "oops"))
    reseal(folder)
    assert any("of an end and of a failure" in line for line in wrong(folder))


def test_evidence_that_is_nobodys(forged) -> None:
    folder = forged("small")
    path = evidence_file(folder, EXACT)
    for name in ("other.speculative.parquet", path.name.replace("speculative", "rounding")):
        shutil.copyfile(path, path.with_name(name))
    shutil.copytree(folder / "probes" / "mid", folder / "probes" / "far")
    reseal(folder)
    told = wrong(folder)
    assert any(line.startswith("evidence: of no case") and "rounding" in line for line in told) or (
        any(line.startswith("probe far") for line in told)
    )
    shutil.rmtree(folder / "probes" / "far")
    reseal(folder)
    assert any(
        line.startswith("evidence: of no case") and "rounding" in line for line in wrong(folder)
    )


# --- other tiers ----------------------------------------------------------------------------------


def test_samples_added_to_what_was_settled(staged, forged) -> None:
    """The reference was settled at the first stage: more of it was not asked for."""
    del staged
    folder = forged("staged")
    (path,) = (p for p in (folder / "evidence").glob("reference*.speculative.parquet"))
    e = load_evidence(path)
    more = replace(rows(lambda n: np.append(np.arange(n), 0))(e), planned=len(e.tokens) + 1)
    path.unlink()
    more.save(path)
    reseal(folder)
    assert any(line.startswith("case reference") for line in wrong(folder))


def test_an_addition_that_is_cut(forged) -> None:
    folder = forged("staged")
    for arm in ("speculative", "control"):
        edit_evidence(folder, "Rarely", lambda e: first_requests(e, len(e.tokens) - 64), arm)
    assert any("requests have no answer" in line for line in wrong(folder))


def test_early_evidence_stays_as_it_was(forged) -> None:
    """Answers of the first stage, bettered after the second."""
    folder = forged("staged")
    edit_evidence(folder, "Rarely", tokens(lambda t: np.put(t, 0, (t.flat[0] + 1) % 32)))
    assert any(line.startswith("case") for line in wrong(folder))


def test_counts_that_are_turned_round(tmp_path, probe_cache) -> None:
    folder = run(tmp_path / "counts", difficult("Counts"), *SAMPLED)
    assert wrong(folder) == []
    edit_evidence(folder, "Counts", lambda e: replace(e, counts=e.counts[:, ::-1].copy()))
    assert any("no more than were drafted" in line for line in wrong(folder))
