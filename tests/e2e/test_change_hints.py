"""A worker process writes change hints for the instances that the sensors of a triggerer wait for, on both stores."""

from __future__ import annotations

from airflow_provider_taskhub.client import Client, Status
from tests.e2e.house import House
from tests.waiting import until_async

APP = "moving_app:app"
PROBES = [f"probe {number}" for number in range(1_000)]
"""Ids of more instances than are ever started."""


async def hinted(client: Client, instance_id: str) -> None:
    """Wait for a change hint of an instance, and delete it."""

    async def there() -> bool:
        hints = await client.watches.changes()
        if instance_id in hints:
            await client.watches.forget_changes(hints)
        return instance_id in hints

    await until_async(f"a change hint of {instance_id}", there)


async def first_hint(client: Client) -> None:
    """Start instances until the worker knows that sensors wait for them, which it learns at its next scan."""
    probes = iter(PROBES)

    async def hints_come() -> bool:
        probe = next(probes)
        await client.start("moving", instance_id=probe)
        await until_async(f"{probe} runs", lambda: runs(client, probe))
        hints = await client.watches.changes()
        await client.watches.forget_changes(hints)
        return bool(hints)

    await until_async("the worker writes a change hint", hints_come)


async def runs(client: Client, instance_id: str) -> bool:
    state = await client.get(instance_id)
    return state is not None and state.status is Status.RUNNING


async def test_each_change_that_a_sensor_can_see_leaves_a_hint(house: House) -> None:
    house.worker("a", app=APP).ready()
    async with house.client() as client, client.watches.attending("triggerer"):
        await client.watches.await_changes([*PROBES, "i"])
        await first_hint(client)
        await client.start("moving", instance_id="nobody waits for it")
        await client.start("moving", instance_id="i")
        await hinted(client, "i")  # it runs and awaits "go"
        await client.suspend("i", "for lunch")
        await hinted(client, "i")
        await client.resume("i")
        await hinted(client, "i")
        await client.raise_event("i", "go", "now")
        await hinted(client, "i")
        state = await client.get("i")
        assert state is not None
        assert state.custom_status == '{"told":"now"}', "the hint comes after what it announces"
        await client.raise_event("i", "stop", "")
        await hinted(client, "i")
        ended = await client.get("i")
        assert ended is not None
        assert ended.status.is_final
        assert "nobody waits for it" not in await client.watches.changes()


async def test_the_hints_for_a_triggerer_that_has_ended_are_deleted_by_the_next(house: House) -> None:
    house.worker("a", app=APP).ready()
    async with house.client() as client:

        async def there() -> bool:
            return bool(await left(client))

        async def gone() -> bool:
            return not await left(client)

        async with client.watches.attending("triggerer"):
            await client.watches.await_changes([*PROBES, "i"])
            await first_hint(client)
            await client.start("moving", instance_id="i")
            await until_async("a hint", there)
        assert await there(), "it ended before it read its hint"
        async with client.watches.attending("triggerer"):
            await until_async("the hints are deleted", gone)


async def left(client: Client) -> list[str]:
    table = client.hub.names.completions
    return [row.row_key async for row in client.hub.store.rows(table) if row.partition_key.startswith("watcher:")]
