"""How long a message is hidden after its put: until its timer or its start is due."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_taskhub.engine.events import HistoryEvent, OrchestrationInstance, TimerFired
from airflow_provider_taskhub.hub.queues.outgoing import outbound_message
from airflow_provider_taskhub.storage.rules import MAX_VISIBILITY
from tests.hub.by_hand import NAMES, NOW, later, raised, start

MINUTE = timedelta(minutes=1)


def delay(event: HistoryEvent, *, put: float = 0.0) -> timedelta:
    """:param put: seconds after NOW."""
    to = OrchestrationInstance(instance_id="i")
    made = outbound_message(
        event, to, names=NAMES, queue="q", process="p", sequence=1, sender=to, now=later(put), claim=MINUTE
    )
    assert (made.claim is None) == bool(made.delay), "what is hidden cannot be handed over in memory"
    hidden = replace(made, claim=None)
    assert hidden.put().visibility == hidden.put(later(put)).visibility == made.delay
    return made.delay


@pytest.mark.rows("D08")
def test_a_timer_and_a_scheduled_start_are_hidden_until_they_are_due_and_nothing_else_is() -> None:
    """A retry and a timeout wait as timers."""
    assert delay(TimerFired(timestamp=NOW, timer_id=1, fire_at=later(60))) == MINUTE
    assert delay(start(scheduled_start_time=later(60))) == MINUTE
    assert {delay(event) for event in (raised(), start())} == {timedelta(0)}


@pytest.mark.rows("D10")
@pytest.mark.parametrize(("put", "left"), [(0, 60), (45, 15), (60, 0), (3600, 0), (-3600, 60)])
def test_a_message_that_is_put_later_is_hidden_for_what_is_left(put: float, left: float) -> None:
    """A clock behind the one that has set the timer counts from the time when the timer was set."""
    assert delay(TimerFired(timestamp=NOW, timer_id=1, fire_at=later(60)), put=put) == timedelta(seconds=left)


def test_no_message_is_hidden_for_longer_than_a_queue_allows() -> None:
    assert delay(start(scheduled_start_time=later(30 * 86_400))) == MAX_VISIBILITY
