"""What a recorded activity says of itself reaches those who look, and outlives its worker."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState
from tests.e2e.house import House
from tests.waiting import PATIENCE, until_async

APP = "telling_app:app"


async def _record(house: House, instance_id: str) -> ActivityRecord:
    """The record of the only attempt, once the newer of its two reports is there."""
    async with house.client() as client:

        async def found() -> ActivityRecord | None:
            records = await client.instance(instance_id).activities()
            return records[-1] if records and records[-1].progress == 0.5 else None

        return await until_async("the second report of the attempt", found)


async def test_progress_arrives_while_the_activity_runs_and_when_it_has_ended(house: House) -> None:
    worker = house.worker("one", app=APP).ready()
    async with house.client() as client:
        await client.start("tale", "flights", instance_id="tale-1")
        record = await _record(house, "tale-1")
        assert (record.state, record.progress, record.message) == (RecordState.RUNNING, 0.5, "a quarter")
        (house.folder / "effects").touch()
        await client.wait("tale-1")
        (record,) = await client.instance("tale-1").activities()
        assert (record.state, record.progress, record.message) == (RecordState.COMPLETED, 1.0, "nearly there")
        assert "environment: ['TASKHUB_HOME']" in await client.instance("tale-1").log(record.log or "")
    assert worker.end() == 0
    assert "progress_listener_failed" not in worker.text()


async def test_the_log_of_an_attempt_outlives_its_killed_worker(house: House) -> None:
    """What was not stored at its death may be missing."""
    one = house.worker("one", app=APP).ready()
    async with house.client() as client:
        await client.start("tale", "flights", instance_id="tale-1")
        record = await _record(house, "tale-1")

        async def stored() -> bool:
            return "half of it is done" in await client.instance("tale-1").log(record.log or "")

        await until_async("the log of the first attempt is stored", stored)
        one.kill()
        (house.folder / "effects").touch()
        two = house.worker("two", app=APP).ready()
        await client.wait("tale-1", timeout=timedelta(seconds=PATIENCE))
        first, second = await client.instance("tale-1").activities()
        assert (first.state, second.state) == (RecordState.LOST, RecordState.COMPLETED)
        for record, worker in ((first, "one"), (second, "two")):
            assert f"flights: half of it is done in {worker}" in await client.instance("tale-1").log(record.log or "")
    shown = house.json("instances", "logs", "tale-1")
    assert [(item["attempt"], "half of it is done" in item["log"]) for item in shown] == [(1, True), (2, True)]
    assert two.end() == 0
