"""Where in its block every token stood, from the rounds an engine reports."""

import numpy as np

from conformance.adapters.reference import ReferenceEngine
from conformance.evidence import Evidence, selected
from conformance.strata import BONUS, FIRST, LATER, PLAIN, block_places, slanted


def evidence(rounds: list[tuple[int, int, int]] | None, requests: int, length: int) -> Evidence:
    return Evidence(
        tokens=np.zeros((requests, length), np.int64),
        prompt=np.zeros(requests, np.int64),
        seeds=np.arange(requests),
        rounds=None if rounds is None else np.array(rounds, np.int64),
        seconds=0.0,
        planned=requests,
    )


def test_every_kind_of_place() -> None:
    """One accepted and one recovered; a whole block and its bonus; a plain step; a cut block."""
    rounds = [(0, 3, 1), (0, 2, 2), (0, 0, 0), (1, 4, 0), (1, 4, 4)]
    places = block_places(evidence(rounds, 2, 6))
    assert places is not None
    kind, position, accepted = places
    assert kind.tolist() == [
        [FIRST, LATER, FIRST, LATER, BONUS, PLAIN],
        [FIRST, FIRST, LATER, LATER, LATER, BONUS],
    ]
    assert position.tolist() == [[0, 1, 0, 1, 2, 0], [0, 0, 1, 2, 3, 4]]
    assert accepted.astype(int).tolist() == [[1, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0]]


def test_what_crosses_the_end_is_left_out() -> None:
    places = block_places(evidence([(0, 4, 4)], 1, 3))
    assert places is not None
    assert places[0].tolist() == [[FIRST, LATER, LATER]]


def test_without_rounds_nothing_is_known() -> None:
    assert block_places(evidence(None, 2, 3)) is None


def test_order_of_the_rounds_of_different_requests_does_not_matter() -> None:
    rounds = [(0, 2, 0), (0, 2, 1), (1, 2, 2), (1, 1, 0)]
    mixed = [rounds[i] for i in (2, 0, 3, 1)]
    one, other = (block_places(evidence(r, 2, 4)) for r in (rounds, mixed))
    assert one is not None
    assert other is not None
    assert all((a == b).all() for a, b in zip(one, other, strict=True))


def test_the_reference_engine_fills_every_place(probe_cache: object) -> None:
    """Rounds account for every token: no token is left without its block."""
    import in_process

    from conformance.decoding import Decoding
    from conformance.plan import PROFILES, make_plan

    plan = make_plan(in_process.cases("mid", [Decoding()]), PROFILES["smoke"])
    (case,) = plan.cases
    (found,) = in_process.gather_runs(ReferenceEngine(), case, "speculative", [plan])
    places = block_places(found)
    assert places is not None
    kind, position, accepted = places
    assert (kind != PLAIN).all()
    assert (kind[:, 0] == FIRST).all()
    assert (accepted <= (kind != BONUS)).all()
    assert {FIRST, LATER, BONUS} == set(np.unique(kind).tolist())
    assert position.max() == 4  # the reference proposes four


def test_slanted_neighbours_are_a_block_and_the_next_one_of_the_request_before() -> None:
    first = np.array([[1, 0, 1, 0], [1, 1, 0, 0], [1, 0, 0, 1]], dtype=bool)
    number = 10.0 * np.arange(3)[:, None] + np.cumsum(first, axis=1) - 1  # request and block
    u, there = slanted(number, first)
    pairs = {
        (u[k, c], u[k + 1, c])
        for k in range(u.shape[0] - 1)
        for c in range(u.shape[1])
        if there[k, c] and there[k + 1, c]
    }
    assert there.sum() == first.sum()
    # block 0 of request i + 1 beside block 1 of request i
    assert pairs == {(10.0, 1.0), (20.0, 11.0)}


def test_selected_requests_keep_their_own_rounds() -> None:
    whole = evidence([(0, 2, 0), (0, 2, 1), (1, 3, 3), (2, 1, 0), (2, 1, 1)], 3, 4)
    some = selected(whole, np.array([True, False, True]))
    assert some.seeds.tolist() == [0, 2]
    assert some.rounds is not None
    assert some.rounds.tolist() == [[0, 2, 0], [0, 2, 1], [1, 1, 0], [1, 1, 1]]
