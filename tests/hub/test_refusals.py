"""A command that an instance does not take is refused with its state, since when, and what it takes."""

from __future__ import annotations

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.hub.refusals import refused

CREATED, SUSPENDED, ENDED = (Timestamp.parse(f"2026-11-30T0{hour}:00:00Z") for hour in (1, 2, 3))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status.PENDING, "is Pending, created 2026-11-30 01:00:00 UTC: no. It takes: terminate, suspend, raise-event"),
        (
            Status.RUNNING,
            "is Running, created 2026-11-30 01:00:00 UTC: no. It takes: terminate, suspend (unless it cleans up or its "
            "parent has cancelled it), raise-event",
        ),
        (Status.SUSPENDED, "is Suspended since 2026-11-30 02:00:00 UTC: no. It takes: resume, terminate, raise-event"),
        (Status.COMPLETED, "is Completed since 2026-11-30 03:00:00 UTC: no. It takes: restart, purge"),
        (Status.TERMINATED, "is Terminated since 2026-11-30 03:00:00 UTC: no. It takes: restart, purge"),
        (
            Status.FAILED,
            "is Failed since 2026-11-30 03:00:00 UTC: no. It takes: rewind, restart, terminate (for what still runs of "
            "it), purge",
        ),
    ],
)
def test_a_refusal_says_the_state_since_when_and_what_is_possible(status: Status, said: str) -> None:
    row = InstanceState(
        instance_id="i",
        execution_id="e",
        name="o",
        status=status,
        created=CREATED,
        suspended_at=SUSPENDED,
        completed=ENDED,
    )
    assert str(refused(row, "no")) == f"instance 'i' {said}"


def test_a_row_without_times_says_the_state() -> None:
    row = InstanceState(instance_id="i", execution_id="e", name="o", status=Status.RUNNING)
    assert str(refused(row, "no")).startswith("instance 'i' is Running: no. It takes: ")


def test_an_instance_that_begins_suspended_says_so() -> None:
    row = InstanceState(
        instance_id="i", execution_id="e", name="o", status=Status.PENDING, created=CREATED, suspended_at=SUSPENDED
    )
    said = "is Pending, suspended since 2026-11-30 02:00:00 UTC: no. It takes: resume, terminate, raise-event"
    assert str(refused(row, "no")) == f"instance 'i' {said}"
