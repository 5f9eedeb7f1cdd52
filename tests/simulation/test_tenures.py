"""The borders of a tenure: what a partition's reader, its sessions and its checkpoints do before, at and after them.

Workers of production on one hub, over SQLite and over Azurite, in virtual time. Times are in leases' own units, since
the two stores have lease times of their own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import EventRaised, OrchestrationInstance, Status
from airflow_provider_taskhub.errors import ConfigurationError, HubError, LeaseLost
from airflow_provider_taskhub.hub.history.load import sentinel_of
from airflow_provider_taskhub.hub.model import HubNames, Tenure
from airflow_provider_taskhub.hub.partitions.administration import create_hub
from airflow_provider_taskhub.hub.partitions.lease_stores import TableLeases
from airflow_provider_taskhub.hub.partitions.tenure import LeaseTenure
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.faults import Call, Fault, late, unsent
from airflow_provider_taskhub.storage.primitives import Message, Transact
from tests.simulation.scenarios import app_of
from tests.simulation.world import Effects, Machine, Place, World, simulate


def world(place: Place, effects: Effects | None = None, **settings: Any) -> World:
    return World(app_of(effects or Effects()), place=place, partitions=1, **settings)


class Witness:
    """What a worker is told of its partition, and when it asks the queue, in the order in which it happens."""

    def __init__(self, machine: Machine) -> None:
        self.told: list[str] = []
        self.reasons: list[str] = []
        self.tenures: list[Tenure] = []
        self._backend, self._queue = machine.backend, machine.backend.hub.names.control(0)
        machine.owner._host = replace(machine.owner._host, listener=self)
        receive = machine.store.receive

        async def noted(queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
            if queue == self._queue:
                self.told.append("receive")
            return await receive(queue, limit=limit, visibility=visibility)

        machine.store.receive = noted  # type: ignore[method-assign]

    def taken(self, tenure: Tenure) -> None:
        self.told.append("open")
        self.tenures.append(tenure)
        self._backend.taken(tenure)

    def asked(self, tenure: Tenure) -> None:
        self.told.append("drain")
        self._backend.asked(tenure)

    def lost(self, tenure: Tenure, reason: str) -> None:
        self.told.append("close")
        self.reasons.append(reason)
        self._backend.lost(tenure, reason)

    @property
    def story(self) -> list[str]:
        """Without repetitions."""
        return [word for index, word in enumerate(self.told) if index == 0 or self.told[index - 1] != word]


async def lease_of(hub: World) -> Any:
    leases = TableLeases(hub.store, hub.client.hub.names)
    lease = await leases.read(hub.client.hub.names.control(0))
    assert lease is not None
    return leases, lease


async def served_by(hub: World, machine: Machine) -> None:
    while not machine.owner.tenures:  # told by polling, as a person would look
        assert machine.owning is None or not machine.owning.done(), f"{machine.name} has ended: {machine.owning}"
        await hub.clock.sleep(0.1)


def seconds(hub: World, name: str) -> float:
    span: timedelta = getattr(hub.settings.lease_times, name)
    return span.total_seconds()


# --- the stores are there ---------------------------------------------------------------------------------------------


@pytest.mark.rows("E02")
def test_the_stores_of_checkpoints_are_made_if_they_are_missing(place: Place) -> None:
    """History and instances are made with the hub, beside its leases; where they are there, nothing is written."""

    async def play() -> tuple[list[str], Any]:
        async with world(place) as hub:
            names = hub.client.hub.names
            await hub.join("only")
            await hub.client.start("chain", 2, instance_id="one")
            await hub.wait("one")
            before = hub.store.requests.copy()
            await create_hub(hub.store, names, 1, clock=hub.clock)
            used = hub.store.requests - before
            kept = await hub.client.get("one")
            assert kept is not None, "what is there is left alone"
            await hub.store.delete_table(names.history)
            await hub.store.delete_table(names.instances)
            await create_hub(hub.store, names, 1, clock=hub.clock)
            await hub.client.start("chain", 2, instance_id="two")
            assert (await hub.wait("two")).output == "2"
            return sorted(await hub.store.list_tables(names.hub)), used

    tables, used = simulate(play)
    assert [name[-7:] for name in tables if name.endswith(("History", "nstances"))] == ["History", "stances"]
    assert not used["table.update"]


@pytest.mark.rows("E03")
def test_how_many_partitions_there_are_is_read_once(place: Place) -> None:
    """By the client when it opens, by a worker when it starts; never again by who starts, waits, scans or renews."""

    async def play() -> int:
        async with world(place) as hub:  # its client is open
            reads, get = Counter[str](), hub.store.get

            async def counted(table: str, partition_key: str, row_key: str) -> Any:
                reads[partition_key] += table == hub.client.hub.names.controls
                return await get(table, partition_key, row_key)

            hub.store.get = counted  # type: ignore[method-assign]
            await served_by(hub, await hub.join("only"))
            for number in range(5):
                await hub.client.start("chain", 1, instance_id=f"i{number}")
                await hub.wait(f"i{number}")
            await hub.clock.sleep(20 * seconds(hub, "scan"))
            return reads["hub"]

    assert simulate(play) == 1


@pytest.mark.rows("E03")
def test_a_hub_that_cannot_be_read_is_an_error_of_configuration_that_names_it(place: Place) -> None:
    async def play() -> None:
        async with world(place) as hub:
            one = Machine(hub, "only")
            one.owner._names = HubNames("Elsewhere")
            with pytest.raises(HubError, match="there is no hub 'Elsewhere'") as refused:
                await one.owner.start()
            assert isinstance(refused.value, ConfigurationError)
            with pytest.raises(HubError, match="there is no hub 'Elsewhere'"):
                await Client.over(hub.store, Settings(hub="Elsewhere"))

    simulate(play)


# --- open, receive, close ---------------------------------------------------------------------------------------------


@pytest.mark.rows("E64")
@pytest.mark.parametrize("end", ["shutdown", "lease lost"])
def test_a_partition_is_opened_before_its_first_batch_and_closed_once_with_the_reason(place: Place, end: str) -> None:
    async def play() -> Witness:
        async with world(place) as hub:
            one = await hub.join("one")
            witness = Witness(one)
            await hub.client.start("plod", 30, instance_id="one")
            await served_by(hub, one)
            await hub.clock.sleep(2.0)
            await hub.join("two")
            if end == "shutdown":
                await one.stop()
            else:
                one.leases = lambda call: unsent()
                await hub.clock.sleep(seconds(hub, "give_up") + 1.0)
            assert (await hub.wait("one")).status is Status.COMPLETED
            await hub.ended()
            return witness

    witness = simulate(play)
    (reason,) = witness.reasons
    if end == "shutdown":
        assert witness.story[:2] == ["open", "receive"]
        assert witness.story[-2:] == ["drain", "close"]
        assert reason == "the worker stops"
    else:
        assert witness.story == ["open", "receive", "close"]
        assert "no renewal was confirmed" in reason


@pytest.mark.rows("E63", "T21")
def test_nothing_is_received_for_a_lease_that_is_too_old(place: Place) -> None:
    """A machine that stood still wakes up before anybody could tell it: its reader looks at the lease's age itself."""

    async def play() -> tuple[int, int]:
        async with world(place) as hub:
            one = await hub.join("one")
            witness = Witness(one)
            await served_by(hub, one)
            await hub.clock.sleep(5 * seconds(hub, "scan"))
            opened = witness.told.count("receive")
            one.owner.expire = lambda: 3600.0  # type: ignore[method-assign]  # nobody tells it
            one.leases = lambda call: late(3600.0)  # nor is anything renewed
            await hub.clock.sleep(seconds(hub, "give_up") + 1.0)
            too_old = witness.told.count("receive")
            one.backend.lost(witness.tenures[0], "of this test")
            one.backend.taken(witness.tenures[0])  # told late: the lease is over by now
            await hub.client.start("chain", 1, instance_id="one")
            await hub.clock.sleep(10.0)
            assert "close" not in witness.told
            return opened, witness.told.count("receive") - too_old

    opened, after = simulate(play)
    assert opened > 0
    assert after == 0


@pytest.mark.rows("E55", "E56")
def test_a_newer_owner_ends_the_reader_of_the_older(place: Place) -> None:
    """A queue cannot fence: its former reader ends at its next renewal, and what it writes is refused at once."""

    async def play() -> None:
        async with world(place) as hub:
            one = await hub.join("one")
            witness = Witness(one)
            await served_by(hub, one)
            leases, lease = await lease_of(hub)
            stolen = await leases.write(lease.claimed("thief@h/1", hub.clock.utc_now(), timedelta(seconds=30)))
            assert stolen.epoch == (lease.epoch or 0) + 1
            await hub.clock.sleep(seconds(hub, "renew"))
            assert witness.reasons == ["it was taken by thief@h/1"]
            (tenure,) = witness.tenures
            assert tenure.epoch < stolen.epoch
            with pytest.raises(LeaseLost, match="no longer served here"):
                tenure.check()
            received = len(witness.told)
            await hub.client.start("chain", 1, instance_id="one")
            await hub.clock.sleep(seconds(hub, "take") - seconds(hub, "renew") - 1.0)
            assert len(witness.told) == received

    simulate(play)


@pytest.mark.rows("E61")
def test_a_lease_is_released_before_its_slow_receiver_is_closed(place: Place) -> None:
    """Its last receive never returns, nor does its end: the lease is given up within the stop's limit all the same."""

    async def play() -> tuple[float, bool]:
        async with world(place) as hub:
            one = await hub.join("one")
            await served_by(hub, one)
            queue = hub.client.hub.names.control(0)
            one.plan = lambda call: late(3600.0) if call.kind == "queue.receive" and call.what == queue else None
            one.backend.stop = lambda: hub.clock.sleep(3600.0)  # type: ignore[method-assign]
            await hub.clock.sleep(5.0)
            await hub.join("two")
            closing, began = hub.spawn(one.stop(timedelta(seconds=2))), hub.clock.monotonic()
            while (await lease_of(hub))[1].owner == str(one.me):
                await hub.clock.sleep(0.1)
            released = hub.clock.monotonic() - began
            await hub.client.start("chain", 1, instance_id="one")
            assert (await hub.wait("one")).output == "1"
            closed = closing.done()
            closing.cancel()
            with suppress(asyncio.CancelledError):
                await closing
            return released, closed

    released, closed = simulate(play)
    assert released < 2.0 + 12.0, "the stop's limit, and the scan under way"
    assert not closed


@pytest.mark.rows("D19", "E67", "K24")
def test_what_is_of_one_instance_is_processed_strictly_one_after_another(place: Place) -> None:
    """Not as E67 says, on purpose: one after another by instance, not by partition.

    Instances of a partition go side by side, receives of its queue and episodes of an instance never do.
    """

    async def play() -> tuple[Counter[str], Any]:
        async with world(place) as hub:
            one = await hub.join("only")
            most: Counter[str] = Counter()
            under_way: Counter[str] = Counter()
            processor = one.backend.orchestrations._processor
            process, receive = processor.process, one.store.receive

            async def counted(name: str, call: Any) -> Any:
                under_way[name] += 1
                most[name] = max(most[name], under_way[name])
                try:
                    return await call
                finally:
                    under_way[name] -= 1

            async def processing(item: Any) -> None:
                await counted("episodes", counted(f"of {item[0].instance_id}", process(item)))

            async def receiving(queue: str, **named: Any) -> Any:
                return await counted(queue[-10:], receive(queue, **named))

            processor.process = processing  # type: ignore[method-assign]
            one.store.receive = receiving  # type: ignore[method-assign]
            one.plan = lambda call: late(0.3) if call.kind.startswith("table") else None
            for name in ("one", "two"):
                await hub.client.start("events", 12, instance_id=name)
            for number in range(12):
                for name in ("one", "two"):
                    await hub.client.raise_event(name, "go", number)
                await hub.clock.sleep(0.1)
            for name in ("one", "two"):
                assert (await hub.wait(name)).output == "[0,1,2,3,4,5,6,7,8,9,10,11]"
            return most, (await hub.ended()).states

    most, _ = simulate(play)
    assert most["episodes"] > 1, "two instances side by side"
    assert (most["of one"], most["of two"], most["control-00"]) == (1, 1, 1)


# --- from one owner to the next ---------------------------------------------------------------------------------------


async def pass_on(hub: World, source: Machine, target: Machine) -> None:
    """The partition goes to the other, by a handover, as an administrator orders it."""
    operations = hub.client.admin.partition_operations
    await operations.kick(0, prohibit=[source.name])
    await served_by(hub, target)
    await operations.allow([0])


@pytest.mark.rows("T51", "K09", "E53")
def test_a_handover_waits_for_the_episode_that_runs_and_its_checkpoint(place: Place) -> None:
    """Asked for in the middle of it: nothing runs any more when the lease is released, and nothing is left undone."""

    async def play() -> tuple[list[str], list[int], list[Any], str | None]:
        async with world(place) as hub:
            one = await hub.join("one")
            witness, active, lost = Witness(one), list[int](), one.backend.lost

            def counted(tenure: Tenure, reason: str) -> None:
                active.append(len(one.backend.sessions._active))
                lost(tenure, reason)

            one.backend.lost = counted  # type: ignore[method-assign]
            await served_by(hub, one)
            two = await hub.join("two")
            slow = [late(1.5 * seconds(hub, "renew"))]  # within which it sees that it is asked
            one.plan = lambda call: slow.pop() if slow and call.kind.startswith("table") else None
            await hub.client.start("chain", 3, instance_id="one")
            while slow:
                await hub.clock.sleep(0.01)
            await pass_on(hub, one, two)
            state = await hub.wait("one")
            await hub.ended()
            undone = hub.said("session_aborted") + hub.said("checkpoint_unsettled") + hub.said("drain_timeout")
            return witness.story[-2:], active, undone, state.output

    assert simulate(play) == (["drain", "close"], [0], [], "3")


@pytest.mark.rows("E69", "K19")
def test_nothing_in_memory_outlives_its_tenure(place: Place) -> None:
    """Away and back again: the instance was loaded anew, since others have written its history meanwhile."""

    async def play() -> tuple[str | None, list[Any], int]:
        async with world(place, session_idle=timedelta(hours=1)) as hub:
            one = await hub.join("one", roles=("orchestrator",))
            await served_by(hub, one)
            two = await hub.join("two", roles=("orchestrator",))
            await hub.client.start("events", 3, instance_id="one")
            for machine, number in ((one, 0), (two, 1), (one, 2)):
                if machine not in holders(hub):
                    await pass_on(hub, two if machine is one else one, machine)
                await hub.client.raise_event("one", "go", number)
                await hub.clock.sleep(3.0)
            kept = len(two.backend.sessions)
            state = await hub.wait("one")
            await hub.ended()
            return state.output, hub.said("session_aborted") + hub.said("checkpoint_unsettled"), kept

    output, refused, kept = simulate(play)
    assert output == "[0,1,2]"
    assert not refused, "not even tried with what was known in the earlier tenure"
    assert kept == 0


def holders(hub: World) -> list[Machine]:
    return [machine for machine in hub.machines if machine.owner.tenures]


@pytest.mark.rows("E71")
def test_reading_begins_with_what_is_in_the_queue_and_goes_on_from_the_checkpoint(place: Place) -> None:
    effects = Effects()

    async def play() -> list[str | None]:
        async with world(place, effects) as hub:
            for name in ("one", "two"):
                await hub.client.start("chain", 8, instance_id=name)
            one = await hub.join("first", plan=lambda call: late(0.05))
            while sum(effects.ran.values()) < 8:
                await hub.clock.sleep(0.01)
            await one.bury()
            assert sum(effects.ran.values()) < 12, "it died half way"
            await hub.join("second")
            outputs = [(await hub.wait(name)).output for name in ("one", "two")]
            await hub.ended()
            return outputs

    assert simulate(play) == ["8", "8"]
    again = sum(effects.ran.values()) - 16
    assert 0 <= again <= 2, "only the step under way of each is run again"


@pytest.mark.rows("D05", "D101", "E72", "K10")
def test_a_checkpoint_of_who_has_lost_the_lease_is_refused_as_lost(place: Place) -> None:
    async def play() -> tuple[list[Any], int, str | None]:
        async with world(place) as hub:
            one = await hub.join("one", roles=("orchestrator",))
            witness, at_history = Witness(one), asyncio.Event()
            carried = one._crash

            async def slow(name: str) -> None:
                if name == "outbound":
                    at_history.set()
                    while not witness.reasons:  # the listener is not a coroutine
                        await hub.clock.sleep(0.1)
                await carried(name)

            one.store._crash = slow
            await served_by(hub, one)
            await hub.client.start("chain", 2, instance_id="one")
            await at_history.wait()
            one.leases = lambda call: unsent()
            await hub.join("two")
            state = await hub.wait("one")
            await hub.ended()
            table = hub.client.hub.names.history
            written = sum(
                done.machine == "one" and isinstance(done.operation, Transact) and done.operation.table == table
                for done in hub.tape
            )
            return hub.said("session_aborted"), written, state.output

    aborted, written, output = simulate(play)
    assert [entry["instance_id"] for entry in aborted] == ["one"]
    assert "no longer served here: no renewal was confirmed" in aborted[0]["reason"]
    assert written == 0
    assert output == "2"


@pytest.mark.rows("D05", "T21", "K41")
def test_the_row_of_an_instance_is_not_ended_by_who_has_lost_the_lease(place: Place) -> None:
    """A terminate before the start writes a row without a checkpoint: it looks at the lease's age, too."""

    async def play() -> tuple[Any, Any, int]:
        async with world(place) as hub:
            names, reading = hub.client.hub.names, asyncio.Event()
            one = await hub.join("one", roles=("orchestrator",))
            witness = Witness(one)
            await served_by(hub, one)
            await hub.client.start("chain", 1, instance_id="one", start_at=datetime(2026, 1, 1, 0, 10, tzinfo=UTC))
            await hub.clock.sleep(5.0)

            def slow(call: Call) -> Fault | None:
                if reading.is_set() or call.kind != "table.get" or call.what[0] != names.instances:  # type: ignore[index]
                    return None
                reading.set()
                one.leases = lambda call: unsent()
                return late(seconds(hub, "give_up") + 1.0)  # read, and it is the row's owner no more

            one.plan = slow
            await hub.client.terminate("one", "no")
            await reading.wait()
            assert not witness.reasons
            await hub.clock.sleep(seconds(hub, "give_up") + 2.0)
            assert witness.reasons
            before = await hub.client.get("one")
            await hub.join("two")
            after = await hub.wait("one")
            written = {
                done.machine
                for done in hub.tape
                if isinstance(done.operation, Transact) and done.operation.table == names.instances
            }
            await hub.ended()
            return before and before.status, after.status, written

    assert simulate(play) == (Status.PENDING, Status.TERMINATED, {"two"})


@pytest.mark.rows("D05", "E73", "E56", "K10", "T89")
def test_a_checkpoint_never_moves_backwards(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even of an owner whose check came too early: its late write finds another sentinel, and changes nothing.

    Not as T89 says, on purpose: no epoch is checked, the sentinel's ETag decides.
    """

    async def play() -> tuple[list[int], int, str | None]:
        async with world(place) as hub:
            one = await hub.join("one", roles=("orchestrator",))
            witness, late_one, go_on = Witness(one), asyncio.Event(), asyncio.Event()
            carried = one._crash
            commits: Counter[str] = Counter()

            async def slow(name: str) -> None:
                if name == "history":
                    commits["history"] += 1
                    monkeypatch.setattr(LeaseTenure, "check", lambda self: None)  # of the next: it has looked already
                    if commits["history"] == 2:
                        late_one.set()
                        await go_on.wait()
                await carried(name)

            one.store._crash = slow
            await served_by(hub, one)
            await hub.client.start("plod", 6, instance_id="one")
            await hub.join("hands", roles=("activity",))
            await late_one.wait()
            two = await hub.join("two", roles=("orchestrator",))
            one.leases = lambda call: unsent()
            await served_by(hub, two)
            assert witness.reasons
            sizes = []
            while not (state := await hub.client.get("one")) or not state.status.is_final:
                sizes.append(len(await hub.client.instance("one").history()))
                if sizes[-1] > sizes[0]:
                    go_on.set()
                await hub.clock.sleep(0.5)
            sizes.append(len(await hub.client.instance("one").history()))
            go_on.set()
            await hub.clock.sleep(60.0)
            sizes.append(len(await hub.client.instance("one").history()))
            await hub.ended()
            refused = len([entry for entry in hub.said("session_aborted") if "committed over" in entry["reason"]])
            return sizes, refused, state.output

    sizes, refused, output = simulate(play)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    assert refused >= 1
    assert output == "6"


@pytest.mark.rows("E74")
def test_an_owner_with_nothing_to_do_writes_no_checkpoint(place: Place) -> None:
    """It takes, drains and closes partitions, and gets an event for an instance that does not exist."""

    async def play() -> tuple[list[Any], list[Any]]:
        async with world(place) as hub:
            names = hub.client.hub.names
            one = await hub.join("one")
            await served_by(hub, one)
            to = OrchestrationInstance(instance_id="nobody", execution_id=None)
            event = EventRaised(timestamp=hub.clock.utc_now(), name="go", input="1")
            await hub.client.hub.send(hub.client.hub.message_to(event, to))
            await hub.clock.sleep(5.0)
            await one.stop()
            two = await hub.join("two")
            await served_by(hub, two)
            await two.bury()
            assert await sentinel_of(hub.store, names, "nobody") is None
            rows = [row async for row in hub.store.rows(names.history)]
            written = [
                done
                for done in hub.tape
                if isinstance(done.operation, Transact) and done.operation.table in (names.history, names.instances)
            ]
            return rows, written

    assert simulate(play) == ([], [])
