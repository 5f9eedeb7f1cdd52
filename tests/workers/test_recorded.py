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


def test_a_record_is_silent_once_it_has_not_changed_for_the_limit() -> None:
    clock: Any = Watch()
    silence = Silence(clock, timedelta(seconds=30))
    assert not silence.lasts(row("one"))
    clock.now += 29.9
    assert not silence.lasts(row("one"))
    clock.now += 0.1
    assert silence.lasts(row("one"))


def test_each_renewal_of_a_record_begins_the_limit_anew() -> None:
    clock: Any = Watch()
    silence = Silence(clock, timedelta(seconds=30))
    for renewal in range(10):
        assert not silence.lasts(row(f"etag-{renewal}"))
        clock.now += 20.0
    assert not silence.lasts(row("etag-9"))
    clock.now += 10.0
    assert silence.lasts(row("etag-9"))
