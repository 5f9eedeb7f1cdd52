"""Who writes the state of an instance: an episode over messages of its queue. What else writes is named here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

import pytest

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.client.handle import InstanceHandle
from airflow_provider_taskhub.engine.events import ExecutionCompleted, Status
from airflow_provider_taskhub.errors import InputError, InstanceExists, Unavailable
from airflow_provider_taskhub.hub.change_hints import fingerprint, read
from airflow_provider_taskhub.hub.model import ACTIVITY, ORCHESTRATOR, WATCHER, Member
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore, Plan, refused
from airflow_provider_taskhub.storage.primitives import DeleteMessage, PutMessage, Transact, Unit
from airflow_provider_taskhub.virtual_time import START
from tests.simulation.scenarios import app_of
from tests.simulation.world import RARE_RENEWALS, WHOLE, Death, Effects, Ended, Machine, World, simulate


def world(**settings: Any) -> World:
    return World(app_of(Effects()), **{"lease": RARE_RENEWALS} | settings)


def tables(hub: World, machine: Machine) -> set[str]:
    """The tables with states of instances or activities in which a worker has written, without the hub's name."""
    names = hub.client.hub.names
    operations = [done.operation for done in hub.tape if done.machine == machine.name]
    written = {operation.table for operation in operations if isinstance(operation, Transact)}
    return {table.removeprefix(names.hub) for table in written & {names.history, names.instances, names.activities}}


def client_over(hub: World, plan: Plan) -> Client:
    """A client with a way of its own to the store."""
    store = FaultyStore(hub.store, plan, clock=hub.clock, stepwise=True)
    return Client(replace(hub.client.hub, store=store), hub.settings.lease_times)


async def stored(hub: World, instance_id: str) -> tuple[Any, ...]:
    """The row and the history of an instance."""
    return await hub.client.get(instance_id), *await hub.client.instance(instance_id).history()


# --- what writes ------------------------------------------------------------------------------------------------------


@pytest.mark.rows("D01")
def test_each_change_of_an_instance_takes_a_message_from_its_queue() -> None:
    """Not as D01 says, on purpose: workers write the records of activities. The one that runs an attempt does, and the
    one that ends its instance asks for its end in it.

    What the activity came to changes history and row as a message. A start, a rewind and a purge write too: the next
    test.
    """

    async def play() -> tuple[list[int], list[object], int, set[str], set[str]]:
        async with world(place=WHOLE, partitions=1) as hub:
            names = hub.client.hub.names
            queue, watched = names.control(0), {names.history, names.instances}
            changes, others, cut = Counter[str](), list[object](), 0

            def plan(call: Call) -> Fault | None:
                nonlocal cut
                unit = call.what if isinstance(call.what, Unit) else None
                operations = [one for step in unit.steps for one in step.operations] if unit else [call.what]
                written = {one.table for one in operations if isinstance(one, Transact)}
                if written & watched:
                    changes.update(written)
                    whose = {
                        row.entity.partition_key for one in operations if isinstance(one, Transact) for row in one.rows
                    }
                    if queue in {one.queue for one in operations if isinstance(one, DeleteMessage)}:
                        return None
                    if whose == {"cut"}:  # the message that ends it is deleted later, when its activity is marked
                        cut += 1
                    else:
                        others.append(call.what)
                return None

            decides = await hub.join("decides", roles=(ORCHESTRATOR,), plan=plan)
            works = await hub.join("works", roles=(ACTIVITY,))
            for name, *argument in (
                ("chain", 3),
                ("recorded", 2),
                ("events", 2),
                ("failing",),
                ("counter", 3),
                ("hedged",),
            ):
                await hub.client.start(name, *argument, instance_id=name)
            await hub.client.start("patient", instance_id="stopped")
            await hub.client.start("busy", instance_id="cut")
            await hub.clock.sleep(3.0)
            await hub.client.suspend("events")
            await hub.client.raise_event("events", "go", 1)
            await hub.client.terminate("stopped")
            assert tables(hub, decides) == {"History", "Instances"}
            await hub.client.terminate("cut", wait=True)
            await hub.clock.sleep(3.0)
            await hub.client.resume("events")
            await hub.client.raise_event("events", "go", 2)
            for name in ("chain", "recorded", "events", "failing", "counter", "hedged", "stopped"):
                await hub.wait(name)
            await hub.ended()
            return [changes[table] for table in watched], others, cut, tables(hub, decides), tables(hub, works)

    changes, others, cut, decides, works = simulate(play)
    assert min(changes) > 10
    assert (others, cut) == ([], 1)
    assert decides == {"History", "Instances", "Activities"}
    assert works == {"Activities"}


SOON = timedelta(seconds=1)


async def _unconfirmed(asked: Awaitable[object]) -> None:
    """A suspension of a family waits until each instance is suspended. No worker lives."""
    with pytest.raises(TimeoutError):
        await asked


ASKED: dict[str, Callable[[Client], Awaitable[object]]] = {
    "raise_event": lambda client: client.raise_event("open", "go", 1),
    "suspend": lambda client: client.suspend("open"),
    "suspend the family": lambda client: _unconfirmed(client.suspend("open", recurse=True, timeout=SOON)),
    "resume": lambda client: client.resume("open"),
    "terminate with grace": lambda client: client.terminate("open", "soon", grace=timedelta(minutes=1)),
    "terminate": lambda client: client.terminate("open", "enough"),
    "start": lambda client: client.start("chain", 1, instance_id="new"),
    "restart": lambda client: client.instance("done").restart(),
    "rewind": lambda client: client.rewind("failed"),
    "purge": lambda client: client.purge("done"),
}
"""Every request of a client that is about one instance."""
READS = {
    "activities",
    "children",
    "failed_attempt",
    "get",
    "history",
    "history_page",
    "lineage",
    "log",
    "logs",
    "readable_history",
    "runs_on",
    "shown_activities",
    "status",
    "wait",
    "waiting",
}
MESSAGES = ("raise_event", "suspend", "suspend the family", "resume", "terminate with grace", "terminate")


def test_each_request_is_asked_here() -> None:
    public = {name for name, one in vars(InstanceHandle).items() if iscoroutinefunction(one) and name[0] != "_"}
    assert public - READS == {name.partition(" ")[0] for name in ASKED} - {"start"}


@pytest.mark.rows("D01", "D02", "D03")
def test_a_request_is_only_a_message_but_for_starts_rewinds_and_purges() -> None:
    """Not as D02 says, on purpose: a start inserts its row, and a rewind or purge writes as DurableTask's client does.

    Not as D03 says, on purpose: for the same reason. Whatever asks a running instance for something changes nothing.
    """

    async def play() -> tuple[set[str], dict[str, tuple[int, bool]]]:
        async with world(partitions=1) as hub:
            worker = await hub.join("only")
            await hub.client.start("events", 9, instance_id="open")
            await hub.client.start("chain", 1, instance_id="done")
            await hub.client.start("raising", instance_id="failed")
            await hub.wait("done")
            await hub.wait("failed")
            await hub.settle()
            await worker.stop()
            wrote: list[Call] = []

            def sealed(call: Call) -> Fault | None:
                if isinstance(call.what, PutMessage) or call.kind in ("table.get", "table.query", "blob.get"):
                    return None
                wrote.append(call)
                return refused()

            client, write, asked = client_over(hub, sealed), set(), {}
            for name, ask in ASKED.items():
                before, messages = await stored(hub, "open"), await hub.queued()
                wrote.clear()
                try:
                    await ask(client)
                except Unavailable:
                    write.add(name)
                    assert wrote
                    continue
                assert not wrote
                asked[name] = (await hub.queued() - messages, await stored(hub, "open") == before)
            await hub.join("next")
            state = await hub.wait("open")
            assert (state.status, state.output) == (Status.TERMINATED, "soon"), "the messages do it, in their order"
            return write, asked

    write, asked = simulate(play)
    assert write == {"start", "restart", "rewind", "purge"}
    assert asked == dict.fromkeys(MESSAGES, (1, True))


ORDERS: dict[str, Callable[[Client, str], Awaitable[object]]] = {
    "raise_event": lambda client, instance_id: client.raise_event(instance_id, "go", 1),
    "suspend": lambda client, instance_id: client.suspend(instance_id),
    "resume": lambda client, instance_id: client.resume(instance_id),
    "terminate": lambda client, instance_id: client.terminate(instance_id, "enough"),
    "terminate with grace": lambda client, instance_id: client.terminate(
        instance_id, "soon", grace=timedelta(minutes=1)
    ),
    "restart": lambda client, instance_id: client.instance(instance_id).restart(),
    "rewind": lambda client, instance_id: client.rewind(instance_id),
    "purge": lambda client, instance_id: client.purge(instance_id),
}


@pytest.mark.rows("D58")
def test_an_order_that_the_state_forbids_is_refused_before_anything_is_written() -> None:
    """Of instances with histories, records and logs."""

    async def play() -> dict[str, set[str]]:
        async with world(partitions=1) as hub:
            await hub.join("only")
            await hub.client.start("patient", instance_id="running")
            await hub.client.start("events", 1, instance_id="suspended")
            await hub.client.start("recorded", 2, instance_id="done")
            await hub.client.start("raising", instance_id="failed")
            await hub.client.start("events", 1, instance_id="terminated")
            await hub.clock.sleep(3.0)
            await hub.client.suspend("suspended")
            await hub.client.terminate("terminated")
            for name in ("done", "failed", "terminated"):
                await hub.wait(name)
            await hub.settle()
            wrote: list[Call] = []

            def sealed(call: Call) -> Fault | None:
                if call.kind in ("table.get", "table.query", "blob.get"):
                    return None
                wrote.append(call)
                return refused()

            client, forbidden = client_over(hub, sealed), dict[str, set[str]]()
            for name in ("running", "suspended", "done", "failed", "terminated"):
                forbidden[name] = set()
                for order, ask in ORDERS.items():
                    wrote.clear()
                    try:
                        await ask(client, name)
                    except (InputError, InstanceExists):
                        assert not wrote, (order, name)
                        forbidden[name].add(order)
                    except Unavailable:
                        assert wrote, (order, name)
            return forbidden

    over = {"raise_event", "suspend", "resume"}
    assert simulate(play) == {
        "running": {"restart", "rewind", "purge"},
        "suspended": {"restart", "rewind", "purge"},
        "done": over | {"rewind"},
        "failed": over,
        "terminated": over | {"rewind"},
    }


@pytest.mark.rows("D03")
@pytest.mark.parametrize("name", MESSAGES)
def test_a_request_that_fails_leaves_the_instance_as_it_was(name: str) -> None:
    async def play() -> tuple[bool, int, str | None]:
        async with world(partitions=1) as hub:
            await hub.join("only")
            await hub.client.start("events", 2, instance_id="open")
            await hub.settle()
            before = await stored(hub, "open")
            client = client_over(hub, lambda call: refused() if isinstance(call.what, PutMessage) else None)
            with pytest.raises(Unavailable):
                await ASKED[name](client)
            queued = await hub.queued()
            await hub.clock.sleep(3.0)
            after = await stored(hub, "open")
            for number in (2, 3):
                await hub.client.raise_event("open", "go", number)
            return after == before, queued, (await hub.wait("open")).output

    assert simulate(play) == (True, 0, "[2,3]")


@pytest.mark.rows("D02")
def test_a_takeover_and_a_timer_that_becomes_due_write_nothing() -> None:
    """The next owner reads no instance before there is a message, and a timer that is due is only that."""

    async def play() -> tuple[bool, int, set[str], set[str]]:
        async with world(partitions=1) as hub:
            first = await hub.join("first")
            await hub.client.start("events", 1, instance_id="waits")
            await hub.client.start("timers", instance_id="timed")
            await hub.clock.sleep(2.0)
            await first.bury()
            before = await stored(hub, "timed")
            await hub.clock.sleep(60.0)
            same, due = await stored(hub, "timed") == before, await hub.queued()
            await hub.client.terminate("timed")
            second = await hub.join("second")
            await hub.settle()
            await second.stop()
            third = await hub.join("third")
            await hub.clock.sleep(30.0)
            assert third.owner.tenures
            taken = tables(hub, third)
            await hub.client.raise_event("waits", "go", 1)
            await hub.wait("waits")
            return same, due, taken, tables(hub, third)

    same, due, taken, later = simulate(play)
    assert (same, due) == (True, 1), "nobody was there, so the timer of 3 s has changed nothing in a minute"
    assert taken == set()
    assert later == {"History", "Instances"}


# --- in the order of the queue ----------------------------------------------------------------------------------------


@pytest.mark.rows("D04")
@pytest.mark.parametrize("death", [None, Death(point="history"), Death(point="instance")], ids=str)
@pytest.mark.parametrize("first", ["success", "stop"])
def test_a_success_and_a_stop_that_come_together_end_as_the_queue_says(first: str, death: Death | None) -> None:
    """Also if the worker that takes both dies in their checkpoint, and the next one takes them again."""

    async def play() -> tuple[Status, str | None, int]:
        async with world(partitions=1) as hub:
            worker = await hub.join("before")
            await hub.client.start("events", 1, instance_id="one")
            await hub.settle()
            await worker.stop()
            asks = [hub.client.raise_event("one", "go", 7), hub.client.terminate("one", "enough")]
            for ask in asks if first == "success" else asks[::-1]:
                await ask
            taking = await hub.join("taking", death=death)
            if death is not None:
                await taking.died.wait()
                await taking.bury()
                await hub.join("after")
            state = await hub.wait("one")
            await hub.ended()
            _, *past = await stored(hub, "one")
            return state.status, state.output, sum(isinstance(event, ExecutionCompleted) for event in past)

    assert simulate(play) == ((Status.COMPLETED, "[7]", 1) if first == "success" else (Status.TERMINATED, "enough", 1))


# --- one worker -------------------------------------------------------------------------------------------------------


@pytest.mark.rows("D18")
def test_an_instance_is_bound_to_its_partition_and_so_to_one_worker_at_a_time() -> None:
    """Not as D18 says, on purpose: a partition may move to another worker, and takes its instances along."""

    async def play() -> tuple[dict[str, list[str]], dict[int, list[str]]]:
        async with world(partitions=2) as hub:
            for name in ("one", "two"):
                await hub.join(name)
            while {len(one.owner.tenures) for one in hub.machines} != {1}:
                await hub.clock.sleep(1.0)
            ids = [f"i{number}" for number in range(8)]
            for name in ids:
                await hub.client.start("events", 2, instance_id=name)
            await hub.settle()
            for name in ids:
                await hub.client.raise_event(name, "go", 1)
            await hub.settle()
            await hub.machines[0].stop()
            for name in ids:
                await hub.client.raise_event(name, "go", 2)
            for name in ids:
                await hub.wait(name)
            await hub.ended()
            wrote: dict[str, list[str]] = {name: [] for name in ids}
            for done in hub.tape:
                operation = done.operation
                if isinstance(operation, Transact) and operation.table == hub.client.hub.names.history:
                    writers = wrote[operation.rows[0].entity.partition_key]
                    if writers[-1:] != [done.machine]:
                        writers.append(done.machine)
            return wrote, {partition_of(name, 2): wrote[name] for name in ids}

    wrote, of = simulate(play)
    assert wrote == {name: of[partition_of(name, 2)] for name in wrote}, "all of a partition move together"
    assert sorted(of.values()) == [["one", "two"], ["two"]]


@pytest.mark.rows("D06", "D29", "D32")
def test_each_instance_has_a_queue_of_its_own_in_memory_and_its_end_frees_all_that_it_had() -> None:
    """Not as D29 says, on purpose: the final clean-up is no event. The checkpoint of the end is followed by it."""

    async def play() -> Any:
        async with world(partitions=1, activities=4) as hub:
            backend = (await hub.join("only")).backend
            assert len(backend.sessions) == 0
            for name, *argument in (("events", 2), ("recorded", 3), ("chain", 2), ("failing",), ("busy",)):
                await hub.client.start(name, *argument, instance_id=name)
            await hub.clock.sleep(1.0)
            alive = [backend.sessions.get(name) for name in ("events", "recorded", "failing")]
            assert len({id(one) for one in alive if one is not None}) == 3
            assert backend.running == 2, "an activity of 'recorded', and that of 'busy'"
            assert backend.sessions._bytes > 0
            assert len(backend.calls._open) > 0
            await hub.client.raise_event("events", "go", 1)
            await hub.client.raise_event("events", "go", 2)
            await hub.client.terminate("busy", wait=True)
            for name in ("events", "recorded", "chain", "failing"):
                await hub.wait(name)
            await hub.ended()
            lanes = backend.calls._open
            memory = (len(backend.sessions), backend.sessions._bytes, backend.queues.buffered, len(lanes))
            slots = {slots.busy + slots.waits for slots in (source.items.slots for source in backend.readers)}
            return memory, slots, backend.orchestrations.running

    assert simulate(play) == ((0, 0, 0, 0), {0}, 0)


@pytest.mark.rows("D33")
def test_a_hint_that_the_store_refuses_changes_nothing() -> None:
    """Not as D33 says, on purpose: no code listens inside of a worker. Sensors are told by hints in the store."""
    sensor = Member(
        worker="t@h/1",
        started=START,
        roles=(WATCHER,),
        apps={},
        orchestrators=(),
        activities=(),
        awaited=frozenset({fingerprint("one")}),
    )

    async def play(refusals: int) -> tuple[Ended, int, int]:
        async with world(partitions=1) as hub:
            tried = 0

            def plan(call: Call) -> Fault | None:
                nonlocal tried
                if not isinstance(call.what, Transact) or call.what.table != hub.client.hub.names.completions:
                    return None
                tried += 1
                return refused() if tried <= refusals else None

            worker = await hub.join("only", plan=plan)
            worker.owner._host = replace(worker.owner._host, watchers=lambda members: None)
            worker.backend.hub.awaited.update([sensor])
            await hub.client.start("chain", 3, instance_id="one")
            return await hub.ended(), tried, len(await read(hub.store, hub.client.hub.names, "t@h/1"))

    (undisturbed, few, told), (disturbed, more, told_too) = (simulate(partial(play, number)) for number in (0, 3))
    assert disturbed == undisturbed
    assert (few > 1, more > 3) == (True, True)
    assert (told, told_too) == (1, 1)
