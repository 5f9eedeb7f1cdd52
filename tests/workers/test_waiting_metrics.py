"""What /metrics says of instances that stand still."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from prometheus_client import Metric

from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.hub.history.places import LimitKind, LimitState, Place
from airflow_provider_taskhub.hub.waiting.reasons import Reason
from airflow_provider_taskhub.hub.waiting.snapshot import WaitingInstances
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from airflow_provider_taskhub.workers.waiting_metrics import DEADLINE, MOST_LIMITS, WaitingFigures


def value(metrics: Iterable[Metric], name: str, **labels: str) -> float:
    (sample,) = [s for metric in metrics for s in metric.samples if s.name == name and s.labels == labels]
    return sample.value


async def no_limits() -> tuple[LimitState, ...]:
    return ()


def test_counts_by_reason_are_believed_for_a_while_and_outlive_an_outage() -> None:
    clock = VirtualClock()
    reads = 0
    answers: list[WaitingInstances | Exception] = [
        WaitingInstances(counts={Reason.NO_ACTIVITY: 3, Reason.EVENTS: 2}, complete=False),
        Unavailable("down"),
        WaitingInstances(counts={Reason.EVENTS: 1}),
    ]

    async def read() -> WaitingInstances:
        nonlocal reads
        reads += 1
        answer = answers[reads - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def play() -> None:
        figures = WaitingFigures(read, no_limits, believed=10.0, clock=clock)
        for _ in range(3):
            found = await figures.metrics()
        assert reads == 1, "believed"
        waiting, fault = "taskhub_instances_waiting", {"reason": "no_worker_knows_activity", "fault": "true"}
        assert value(found, waiting, **fault) == 3
        assert value(found, waiting, reason="event", fault="false") == 2
        assert value(found, waiting, reason="suspended", fault="false") == 0
        assert value(found, "taskhub_instances_waiting_complete") == 0
        await clock.sleep(11)
        found = await figures.metrics()
        assert (reads, value(found, waiting, **fault)) == (2, 3), "the former counts"
        assert value(found, "taskhub_instances_waiting_age_seconds") == 11
        found = await figures.metrics()
        assert (reads, value(found, waiting, **fault)) == (3, 0)
        assert value(found, "taskhub_instances_waiting_complete") == 1

    run(play())


def test_a_store_that_does_not_answer_holds_no_probe() -> None:
    clock = VirtualClock()

    async def read() -> WaitingInstances:
        await asyncio.sleep(3600)
        raise AssertionError

    async def play() -> None:
        began = clock.monotonic()
        assert await WaitingFigures(read, no_limits, believed=10.0, clock=clock).metrics() == []
        assert clock.monotonic() - began <= DEADLINE

    run(play())


def test_each_limit_says_how_many_may_run_run_and_wait() -> None:
    async def read() -> WaitingInstances:
        return WaitingInstances()

    async def limits() -> list[LimitState]:
        held = Place(key="k", number=0, held=True, instance=OrchestrationInstance(instance_id="i"))
        nightly = LimitState(name="nightly", kind=LimitKind.INSTANCES, declared=2, places={0: held}, waiting=7)
        many = [LimitState(name=f"l{n}", kind=LimitKind.ACTIVITY, declared=1, waiting=n % 5) for n in range(300)]
        return [*many, nightly]

    async def play() -> None:
        found = await WaitingFigures(read, limits, believed=10.0, clock=VirtualClock()).metrics()
        of = {"limit": "nightly", "of": "instances"}
        names = ("taskhub_limit_places", "taskhub_limit_running", "taskhub_limit_waiting")
        assert [value(found, name, **of) for name in names] == [2, 1, 7]
        (family,) = [metric for metric in found if metric.name == "taskhub_limit_waiting"]
        assert len(family.samples) == MOST_LIMITS
        assert {sample.value for sample in family.samples} == {7, 4, 3, 2, 1}, (
            "those for which nobody waits are left out"
        )

    run(play())


def test_limits_that_cannot_be_read_keep_back_no_other_number() -> None:
    async def read() -> WaitingInstances:
        return WaitingInstances(counts={Reason.NO_ACTIVITY: 3})

    async def limits() -> list[LimitState]:
        await asyncio.sleep(3600)
        raise AssertionError

    async def play() -> None:
        found = await WaitingFigures(read, limits, believed=10.0, clock=VirtualClock()).metrics()
        of = {"reason": "no_worker_knows_activity", "fault": "true"}
        assert value(found, "taskhub_instances_waiting", **of) == 3

    run(play())
