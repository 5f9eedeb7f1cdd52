"""What a lost lease leaves behind: a stuck episode holds up neither the others nor the partition's next stay."""

from __future__ import annotations

import pytest

from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.hub.partitions.lease_stores import TableLeases
from airflow_provider_taskhub.storage.faults import Call, Fault, late
from tests.simulation.scenarios import app_of
from tests.simulation.world import Effects, World, simulate


@pytest.mark.rows("E65")
def test_a_stuck_episode_of_a_lost_partition_blocks_nothing() -> None:
    """Its lease is not waited for even one renewal: the loss is told, and what is stuck stays behind, refused later."""

    async def play() -> tuple[float, int, float]:
        async with World(app_of(Effects()), partitions=2) as hub:
            times, names = hub.settings.lease_times, hub.client.hub.names
            renew, take = times.renew.total_seconds(), times.take.total_seconds()
            here, again, *_ = (f"i{n}" for n in range(99) if partition_of(f"i{n}", 2) == 0)
            there = next(f"i{n}" for n in range(99) if partition_of(f"i{n}", 2) == 1)
            leases = TableLeases(hub.store, names)
            one = await hub.join("one")
            while len(one.owner.tenures) < 2:
                await hub.clock.sleep(0.1)
            stuck: list[str] = []

            def stick(call: Call) -> Fault | None:
                if not call.kind.startswith("table"):
                    return None
                stuck.append(call.kind)
                return late(3600.0)

            one.plan = stick
            await hub.client.start("chain", 1, instance_id=here)
            await hub.clock.sleep(2.0)
            one.plan = lambda call: None  # what is stuck stays so
            assert stuck
            lease = await leases.read(names.control(0))
            other = await leases.read(names.control(1))
            assert lease is not None
            assert other is not None
            await leases.write(lease.claimed("thief@h/1", hub.clock.utc_now(), times.take))
            began = hub.clock.monotonic()
            while any(tenure.partition == 0 for tenure in one.owner.tenures):
                await hub.clock.sleep(0.05)
            lost = hub.clock.monotonic() - began
            await hub.client.start("chain", 1, instance_id=there)
            await hub.wait(there)
            await hub.clock.sleep(take)
            renewed = await leases.read(names.control(1))
            assert renewed is not None
            while len(one.owner.tenures) < 2:  # the thief is silent
                await hub.clock.sleep(0.1)
            await hub.client.start("chain", 1, instance_id=again)
            assert (await hub.wait(again)).output == "1"
            held_up = await hub.client.get(here)
            assert held_up is not None
            assert not held_up.status.is_final, "the stuck one is stuck still"
            return lost / renew, (renewed.renewals or 0) - (other.renewals or 0), hub.clock.monotonic()

    lost, renewals, ended = simulate(play)
    assert lost <= 1.1
    assert renewals >= 4, "one a second, in the take time of four"
    assert ended < 600, "long before the stuck one would have ended"
