"""When a worker takes over the attempt of another one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_taskhub.storage.primitives import Entity
from airflow_provider_taskhub.workers.activities.recorded import Silence


class Watch:
    """A clock that the test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def row(etag: str) -> Entity:
    return Entity(partition_key="p", row_key="r", properties={}, etag=etag)


def watch() -> tuple[Watch, Silence]:
    clock: Any = Watch()
    return clock, Silence(clock, timedelta(seconds=30), timedelta(seconds=10))


def test_a_record_is_silent_once_it_has_not_changed_for_the_limit() -> None:
    clock, silence = watch()
    for second in range(30):
        assert not silence.lasts(row("one"))
        assert silence.needs_proof == (second == 20), "the proof comes a renewal interval before the limit"
        if silence.needs_proof:
            silence.proven()
        clock.now += 1.0
    assert silence.lasts(row("one"))


def test_each_renewal_of_a_record_begins_the_limit_anew() -> None:
    clock, silence = watch()
    for renewal in range(10):
        for _ in range(2):
            assert not silence.lasts(row(f"etag-{renewal}"))
            clock.now += 10.0
        silence.proven()
        assert not silence.lasts(row(f"etag-{renewal + 1}"))
        assert not silence.needs_proof


def test_time_in_which_the_store_answers_nobody_does_not_make_a_record_silent() -> None:
    """From one read to the next at most the renewal interval counts."""
    clock, silence = watch()
    assert not silence.lasts(row("one"))
    for _ in range(2):
        clock.now += 500.0
        assert not silence.lasts(row("one"))
    assert silence.needs_proof
    silence.proven()
    clock.now += 9.9
    assert not silence.lasts(row("one"))
    clock.now += 0.1
    assert silence.lasts(row("one"))


def test_a_record_is_not_silent_before_the_store_has_taken_a_write() -> None:
    """A locked file can be read, and its worker cannot renew the record."""
    clock, silence = watch()
    for _ in range(100):
        assert not silence.lasts(row("one"))
        clock.now += 1.0
    assert silence.needs_proof
    clock.now += 40.0  # the write waits for the lock
    silence.proven()
    assert not silence.lasts(row("one"))
    clock.now += 9.0
    assert not silence.lasts(row("two")), "the worker of the record has renewed it after the lock"
    clock.now += 9.0
    assert not silence.lasts(row("two"))
    assert not silence.needs_proof
