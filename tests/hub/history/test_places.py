"""Which places of a limit are free, and that this costs no more with a high limit."""

from __future__ import annotations

from itertools import islice

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hub.history.places import LimitKind, LimitState, Place


def _state(limit: int, *held: int) -> LimitState:
    places = {number: Place(key="k", number=number, held=True) for number in held}
    return LimitState(name="load", kind=LimitKind.ACTIVITY, declared=limit, places=places, partition_key="k")


def _free(state: LimitState, first: int = 0) -> list[int]:
    return [place.number for place in state.free(first)]


def test_the_free_places_come_by_their_numbers_from_the_one_that_is_asked_for() -> None:
    assert _free(_state(5, 0, 2)) == [1, 3, 4]
    assert _free(_state(5, 0, 2), first=10) == [3, 4, 1]
    assert _free(_state(2, 0, 1)) == _free(_state(2, 0, 1), first=7) == []


def test_places_above_a_lowered_limit_count_as_held() -> None:
    assert _free(_state(3, 7)) == _free(_state(3, 7), first=4) == [0, 1]
    assert (_state(2, 1, 7).room, _state(2, 1, 7).is_full, _state(2, 1, 6, 7).room) == (0, True, 0)


def test_a_free_row_is_used_again() -> None:
    known = Place(key="k", number=0)
    (first, second) = LimitState(name="l", kind=LimitKind.RATE, declared=2, places={0: known}).free()
    assert first is known
    assert second.number == 1


def test_a_look_at_a_limit_of_any_height_reads_only_the_held_places() -> None:
    """A worker with an older version of the package, or a hand, may have stored such a number."""
    looked = list[int]()

    class Counted(dict[int, Place]):
        def get(self, number: int, default: Place | None = None) -> Place | None:  # type: ignore[override]
            looked.append(number)
            assert len(looked) < 100
            return super().get(number, default)

    of = _state(10**9, 0, 1)
    state = LimitState(name="load", kind=LimitKind.ACTIVITY, declared=10**9, places=Counted(of.places))
    assert not state.is_full
    assert [place.number for place in islice(state.free(), 2)] == [2, 3]
    assert looked == [2, 3]


MINUTE = 60 * 10_000_000


def test_the_number_of_the_start_that_was_made_last_counts_and_the_last_changes_are_kept() -> None:
    def after(*starts: tuple[int, int]) -> tuple[int, int, list[tuple[int, int]]]:
        state = LimitState(name="nightly", kind=LimitKind.INSTANCES, declared=0)
        for number, made in starts:
            state = state.after_start(number, Timestamp(made * MINUTE))
        assert state.made is not None
        return state.declared, state.made.ticks // MINUTE, [(one, at.ticks // MINUTE) for one, at in state.changes]

    assert after((4, 1)) == (4, 1, [(4, 1)])
    assert after((4, 1), (4, 2), (1, 3), (1, 5)) == (1, 5, [(4, 1), (1, 3)])
    assert after((4, 1), (1, 2), (2, 3)) == (2, 3, [(4, 1), (1, 2), (2, 3)])
    assert after((4, 1), (1, 2), (2, 3), (4, 4)) == (4, 4, [(1, 2), (2, 3), (4, 4)])
    assert after((1, 2), (4, 1)) == (1, 2, [(4, 1), (1, 2)])
    assert after((4, 1), (4, 3), (1, 2)) == (4, 3, [(4, 1), (1, 2), (4, 3)]), "in whatever order they are met"
    assert after((1, 2), (4, 1), (4, 3)) == (4, 3, [(4, 1), (1, 2), (4, 3)])
    assert after((4, 1), (1, 3), (2, 2)) == (1, 3, [(4, 1), (1, 3)]), "of older ones not all can be known"
    state = LimitState(name="nightly", kind=LimitKind.INSTANCES, declared=1, made=Timestamp(6 * MINUTE))
    assert state.after_start(1, Timestamp(7 * MINUTE - 1)) is state, "nothing is written"
