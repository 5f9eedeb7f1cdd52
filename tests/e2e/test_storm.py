"""A short storm, and that its counting sees what it must: the long one is ``make storm``."""

from __future__ import annotations

import pytest

from airflow_provider_taskhub.engine.events import ExecutionCompleted
from airflow_provider_taskhub.hub.formats.history_rows import row_key
from airflow_provider_taskhub.hub.history.load import load
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact
from tests.e2e.house import House
from tests.e2e.storm import Damage, Job, check, corruption, misshapen, storm
from tests.waiting import PATIENCE


@pytest.mark.rows("K06", "K26", "K27")
async def test_a_short_storm_loses_and_doubles_nothing(embedded: House) -> None:
    damage, kills, _ = await storm(embedded, seconds=6.0, kills=2, count=14, workers=2)
    assert damage.told == []
    assert kills >= 2
    async with embedded.client() as client:
        names = client.hub.names
        assert await corruption(client, "fan-1") == []
        past = (await load(client.hub.store, names, "fan-1")).past
        end = next(at for at, event in enumerate(past) if isinstance(event, ExecutionCompleted))
        assert misshapen(past[:end]) == ["0 times ExecutionCompleted"]
        row = Entity(partition_key="fan-1", row_key=row_key(end))
        gone = Transact(table=names.history, rows=(RowOperation(verb=RowVerb.DELETE, entity=row, etag="*"),))
        await client.hub.store.execute(gone)
        (told,) = await corruption(client, "fan-1")
        assert f"{len(past) - 1} of its {len(past)} rows are there" in told
        wrong = Damage()
        await check(client, Job(instance_id="chain-0", orchestrator="chain", input=8, output="9"), wrong, left=PATIENCE)
        assert wrong.lost == ["chain-0 is Completed with 8, not 9"]
