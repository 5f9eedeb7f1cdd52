"""What a lost owner has left in the queue of its partition, as the next owner counts it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import HistoryEvent, TimerFired
from airflow_provider_taskhub.hub import model
from airflow_provider_taskhub.hub.model import Failover
from airflow_provider_taskhub.hub.queues import left_messages
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.left_messages import LeftMessages
from tests.hub.by_hand import NOW, held, later, raised, start

VISIBILITY = timedelta(seconds=30)
BEGAN = 500.0
"""Monotonic time of the worker when it takes the partition, which is NOW by the clock of the store."""


def counting() -> LeftMessages:
    lost = Failover(lost="one", taken_by="two", at=later(77), silent=4.0, proven=False)
    return LeftMessages(lost, began=BEGAN, visibility=VISIBILITY)


def received(at: float, *, put: float, event: HistoryEvent | None = None, of: str = "i", **more: Any) -> Delivery:
    """A message. :param at: when it is received. :param put: when it was put into the queue. Both in s after NOW."""
    one = held(event or raised(), instance_id=of, at=put)
    receipt = replace(one.receipt, next_visible=later(at) + VISIBILITY)
    return replace(one, receipt=receipt, claimed=BEGAN + at, **more)


def numbers(count: LeftMessages) -> tuple[int | None, int | None]:
    return count.failover.messages, count.failover.instances


def test_what_was_put_before_counts_once_by_the_clock_of_the_store() -> None:
    count = counting()
    assert numbers(count) == (0, 0)
    first = received(1, put=-9, of="a")
    for one in (first, received(1, put=-8, of="a"), received(1, put=-7, of="b"), received(1, put=0.5, of="c")):
        count.note(one)
    count.note(replace(first, receipt=replace(first.receipt, pop_receipt="again"), dequeue_count=2))
    assert numbers(count) == (3, 2)
    assert (count.failover.lost, count.failover.at) == ("one", later(77)), "the clock of a machine does not matter"


@pytest.mark.parametrize(("due", "counts"), [(-1.0, 1), (5.0, 0)])
def test_a_timer_and_a_scheduled_start_count_if_they_were_due(due: float, counts: int) -> None:
    count = counting()
    count.note(received(6, put=-100, event=TimerFired(timestamp=NOW, timer_id=0, fire_at=later(due))))
    count.note(received(6, put=-100, event=start(scheduled_start_time=later(due)), of="j"))
    assert numbers(count) == (2 * counts, 2 * counts)


def test_what_the_lost_owner_held_counts_when_it_becomes_visible_and_nothing_later() -> None:
    count = counting()
    count.note(received(5, put=4))
    count.note(received(31, put=-1))
    assert numbers(count) == (1, 1), "a newer message in the window does not end the count"
    count.note(received(61, put=-2))
    assert numbers(count) == (2, 1), "nor does the time alone: the backlog may be long"
    count.note(received(62, put=61))
    count.note(received(63, put=-3))
    assert numbers(count) == (2, 1), "it was given back for long"


def test_the_count_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_messages, "MOST_LEFT", 5)
    count = counting()
    for number in range(20):
        count.note(received(1, put=-1, of=str(number)))
    assert numbers(count) == (5, 5)
    assert not count._messages
    assert model.MOST_LEFT == 10_000
