"""What /metrics says of instances that stand still."""

from __future__ import annotations

import asyncio

from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.hub.snapshots import Waiting
from airflow_provider_taskhub.hub.waiting import Reason
from airflow_provider_taskhub.jumping import JumpingClock, run
from airflow_provider_taskhub.workers.waiting import DEADLINE, WaitingFigures


def value(lines: list[str], name: str) -> str:
    (line,) = [line for line in lines if line.startswith(name)]
    return line.rpartition(" ")[2]


def test_counts_by_reason_are_believed_for_a_while_and_outlive_an_outage() -> None:
    clock = JumpingClock()
    reads = 0
    answers: list[Waiting | Exception] = [
        Waiting(counts={Reason.NO_ACTIVITY: 3, Reason.EVENTS: 2}, complete=False),
        Unavailable("down"),
        Waiting(counts={Reason.EVENTS: 1}),
    ]

    async def read() -> Waiting:
        nonlocal reads
        reads += 1
        answer = answers[reads - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def play() -> None:
        figures = WaitingFigures(read, believed=10.0, clock=clock)
        for _ in range(3):
            lines = await figures.lines()
        assert reads == 1, "believed"
        fault = 'taskhub_instances_waiting{reason="no_worker_knows_activity",fault="true"}'
        assert value(lines, fault) == "3"
        assert value(lines, 'taskhub_instances_waiting{reason="event",fault="false"}') == "2"
        assert value(lines, 'taskhub_instances_waiting{reason="suspended",fault="false"}') == "0"
        assert value(lines, "taskhub_instances_waiting_complete") == "0"
        await clock.sleep(11)
        lines = await figures.lines()
        assert (reads, value(lines, fault)) == (2, "3"), "the former counts"
        assert value(lines, "taskhub_instances_waiting_age_seconds") == "11"
        lines = await figures.lines()
        assert (reads, value(lines, fault)) == (3, "0")
        assert value(lines, "taskhub_instances_waiting_complete") == "1"

    run(play())


def test_a_store_that_does_not_answer_holds_no_probe() -> None:
    clock = JumpingClock()

    async def read() -> Waiting:
        await asyncio.sleep(3600)
        raise AssertionError

    async def play() -> None:
        began = clock.monotonic()
        assert await WaitingFigures(read, believed=10.0, clock=clock).lines() == []
        assert clock.monotonic() - began <= DEADLINE

    run(play())
