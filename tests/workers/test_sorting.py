"""Which starts a worker keeps in mind, so that events behind them wait: by values, each for as long as it may."""

from __future__ import annotations

import gc
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import OrchestrationInstance, ParentInstance
from airflow_provider_taskhub.hub.messages.held import Held
from airflow_provider_taskhub.hub.messages.races import Facts
from airflow_provider_taskhub.workers import sorting
from airflow_provider_taskhub.workers.sorting import BEHIND_AT_MOST, Sorted, Sorter
from tests.hub.make import GEN0, NOW, held, raised, start

RUNS = Facts(execution_id=GEN0, checkpointed=NOW, parent=None)
"""Of the run that waiting starts wait for."""


class Reading:
    """A tenure's reader."""

    visibility = timedelta(seconds=30)


class Bench:
    """A sorter in front of instances that run."""

    def __init__(self) -> None:
        self.now = 100.0
        self.reader = Reading()
        hub: Any = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: self.now))
        self.sorter = Sorter(hub)

    def sort(self, *batch: Held, instance_id: str = "i", facts: Facts = RUNS) -> Sorted:
        session: Any = SimpleNamespace(instance_id=instance_id, reader=self.reader)
        live: Any = SimpleNamespace(stored=SimpleNamespace(sentinel_etag="e"))
        coming = self.sorter.sort(session, live, batch, facts)
        with pytest.raises(StopIteration) as done:  # nothing to wait for: no batch of these has to be looked up
            coming.send(None)
        found = done.value.value
        assert isinstance(found, Sorted)
        return found

    def waits(self, message: Held, **more: Any) -> bool:
        """Whether an event is kept for the start in front of it; it goes to the run that is there otherwise."""
        found = self.sort(message, **more)
        assert len(found.later) + len(found.process) == 1
        return bool(found.later)


def child_start(parent: str = "p", execution_id: str = "b" * 32, **more: Any) -> Held:
    by = OrchestrationInstance(instance_id=parent, execution_id="c" * 32)
    return held(
        start(execution_id, parent=ParentInstance(instance=by, name="P", version="", task_schedule_id=0)), **more
    )


def told(sender: str = "p", at: float = 1.0) -> Held:
    message = held(raised(), at=at)
    message.envelope = replace(message.envelope, sender=OrchestrationInstance(instance_id=sender))
    return message


@pytest.mark.rows("K27", "K36")
def test_an_event_waits_with_the_start_that_its_sender_put_in_front_of_it() -> None:
    bench = Bench()
    early = told(at=-1.0)
    assert bench.sort(child_start()).later
    assert bench.waits(told())
    assert not bench.waits(early), "put before the start: for the run that is there"
    assert not bench.waits(told(sender="somebody else"))


@pytest.mark.rows("K27")
def test_a_start_that_has_begun_or_is_dropped_is_waited_for_no_more() -> None:
    for then in (Facts(), replace(RUNS, execution_id="b" * 32)):  # nothing is there any more; it has run already
        bench, waiting = Bench(), child_start()
        assert bench.sort(waiting).later
        assert not bench.sort(waiting, facts=replace(then, row_read=True)).later
        assert not bench.waits(told())


@pytest.mark.rows("K27")
@pytest.mark.parametrize("overdue", [0.1, 10.0, 100.0, 1000.0])
def test_a_start_that_comes_back_late_is_waited_for(overdue: float) -> None:
    """Its give-back may be lost, and then it is hidden for a visibility; the queue may be polled seldom."""
    bench = Bench()
    ((_, judged),) = bench.sort(child_start()).later
    bench.now += judged.pause.total_seconds() + overdue
    assert bench.waits(told())


@pytest.mark.rows("K27")
def test_what_was_seen_in_another_tenure_does_not_count() -> None:
    """The partition was somebody else's in between: the start may have begun there."""
    bench = Bench()
    assert bench.sort(child_start()).later
    bench.reader = Reading()
    assert not bench.waits(told())
    gc.collect()
    assert not bench.sorter._waiting, "kept as long as the tenure"


@pytest.mark.rows("K27", "K36")
def test_an_event_does_not_wait_for_ever() -> None:
    bench, event = Bench(), told()
    assert bench.sort(child_start()).later
    claimed = event.receipt.next_visible
    hidden = claimed - NOW
    for behind, waits in ((BEHIND_AT_MOST, True), (BEHIND_AT_MOST + timedelta(seconds=1), False)):
        event.receipt = replace(event.receipt, next_visible=event.inserted + behind + hidden)
        assert bench.waits(event) is waits


def test_only_so_many_are_kept_in_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "MAX_REMEMBERED", 3)
    bench = Bench()
    for name in "abcd":
        assert bench.sort(child_start(), instance_id=name).later
    assert [bench.waits(told(), instance_id=name) for name in "abcd"] == [False, True, True, True]
