"""Why an instance stands still: the decision over values, and what is read for it from a store."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import OrchestrationInstance, Status
from airflow_provider_taskhub.engine.pending_waits import AwaitedEvent, Awaits
from airflow_provider_taskhub.hub.formats.waits_column import decode_awaits, encode_awaits
from airflow_provider_taskhub.hub.history.places import LONGEST_VALUE, LimitKind, LimitState, Place, value_of
from airflow_provider_taskhub.hub.model import (
    NO_BACKLOG,
    Backlog,
    HeldInstance,
    InstanceState,
    Member,
    Ownership,
    OwnerState,
    WorkerIdentity,
)
from airflow_provider_taskhub.hub.partitions.backlog import decode_backlog, encode_backlog
from airflow_provider_taskhub.hub.partitions.lease_stores import leases_of
from airflow_provider_taskhub.hub.partitions.members import UNWATCHED, Members
from airflow_provider_taskhub.hub.queues.quarantine import Quarantined, keep
from airflow_provider_taskhub.hub.waiting.reasons import QuarantinedMessage, Reason, Snapshot, Why, why
from airflow_provider_taskhub.hub.waiting.snapshot import SENTINELS
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.primitives import Store
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import START, VirtualClock, run
from tests.hub.in_process_worker import house

LATER = START + timedelta(hours=3)


def member(worker: str, **changes: Any) -> Member:
    found = Member(
        worker=worker,
        started=START,
        roles=("orchestrator", "activity"),
        apps={"flights": "2"},
        orchestrators=("delays",),
        activities=("load",),
    )
    return replace(found, **changes)


ANN, BOB = member("ann@a/1"), member("bob@b/2")
OTHER = member("bob@b/2", apps={"trains": "1"}, orchestrators=("trains",), activities=("stop",))
STATE = InstanceState(instance_id="i", execution_id="e", name="delays", status=Status.RUNNING)
SERVED = Ownership(partition=3, owner="ann@a/1", state=OwnerState.LIVE)
AWAITS = Awaits(activities=("load",))


def reasons(state: InstanceState = STATE, **changes: Any) -> tuple[Why, ...]:
    found: dict[str, Any] = {"members": (ANN, BOB), "served": SERVED, "awaits": AWAITS, "now": START, **changes}
    return why(Snapshot(state=state, **found))


def the_one(state: InstanceState = STATE, **changes: Any) -> tuple[Reason, str]:
    (found,) = reasons(state, **changes)
    return found.reason, str(found)


def test_an_instance_that_works_or_has_ended_waits_for_nothing_that_is_a_fault() -> None:
    assert the_one() == (Reason.ACTIVITIES, "activity 'load'")
    assert not Reason.ACTIVITIES.is_fault
    for status in Status:
        if status.is_final:
            assert reasons(replace(STATE, status=status), members=()) == ()


def test_nobody_knows_the_orchestrator() -> None:
    reason, text = the_one(members=(OTHER,), served=replace(SERVED, owner="bob@b/2"), awaits=None)
    assert reason is Reason.NO_ORCHESTRATOR
    assert reason.is_fault
    assert "no live worker knows orchestrator 'delays'" in text
    assert "bob@b/2 (trains 1)" in text
    assert "they know: trains" in text
    dead = (replace(ANN, alive=False), replace(BOB, roles=("activity",)))
    reason, text = the_one(members=dead, awaits=None)
    assert reason is Reason.NO_ORCHESTRATOR
    assert "no worker that runs orchestrators is alive" in text
    assert "taskhub worker --app" in text


def test_an_instance_that_its_owner_has_held_for_long_says_who_holds_it_and_why() -> None:
    for cause, text in (("", "its episode has not ended"), ("Conflict: no", "its last episode failed: Conflict: no")):
        backlog = Backlog(held=(HeldInstance(instance_id="i", seconds=75.4, cause=cause),))
        reason, said = the_one(members=(replace(ANN, backlog=backlog), BOB))
        assert reason is Reason.HELD
        assert reason.is_fault
        assert said == (
            f"worker ann@a/1 has held it for 75 s without progress: {text}. "
            "The log of that worker says more. To let it begin again: taskhub partitions kick 3"
        )
        assert the_one(members=(ANN, replace(BOB, backlog=backlog)))[0] is Reason.ACTIVITIES, "BOB is not the owner"
        other = replace(STATE, instance_id="other")
        assert the_one(other, members=(replace(ANN, backlog=backlog), BOB))[0] is Reason.ACTIVITIES


def test_an_instance_without_another_reason_waits_for_a_turn_of_its_busy_owner() -> None:
    busy = (replace(ANN, backlog=Backlog(queued=7, longest=44.6)), BOB)
    pending = replace(STATE, status=Status.PENDING)
    reason, said = the_one(pending, members=busy, awaits=None)
    assert (reason, reason.is_fault) == (Reason.QUEUED, False)
    assert said == "a turn at worker ann@a/1, where 7 instances wait for up to 45 s"
    assert the_one(members=busy)[0] is Reason.ACTIVITIES
    assert reasons(pending, awaits=None) == ()
    later = replace(pending, scheduled_start=START + timedelta(hours=1))
    assert the_one(later, members=busy, awaits=None)[0] is Reason.STARTS_LATER


def test_the_column_of_held_instances_is_bounded_and_never_an_error() -> None:
    backlog = Backlog(
        held=tuple(HeldInstance(instance_id=str(n), seconds=40.0, cause="x" * 900) for n in range(30)),
        queued=3,
        longest=33.0,
    )
    found = decode_backlog(encode_backlog(backlog))
    assert [one.instance_id for one in found.held] == [str(n) for n in range(10)]
    assert (len(found.held[0].cause), found.queued, found.longest) == (300, 3, 33.0)
    for text in (None, "", 3, "x", "[]", "{}", '{"held": 1, "queued": 1, "longest": 1}'):
        assert decode_backlog(text) == NO_BACKLOG
    assert encode_backlog(NO_BACKLOG) == ""


def test_nobody_accepts_the_version() -> None:
    strict = replace(ANN, accepts={"delays": ("1", "2")})
    assert reasons(replace(STATE, version="2"), members=(strict,))[0].reason is Reason.ACTIVITIES
    reason, text = the_one(replace(STATE, version="3"), members=(strict,))
    assert reason is Reason.VERSION
    assert reason.is_fault
    assert "version '3' of orchestrator 'delays'" in text
    assert "ann@a/1 (flights 2)" in text


def test_only_workers_that_do_not_own_the_partition_know_it_and_both_are_named() -> None:
    reason, text = the_one(members=(ANN, OTHER), served=replace(SERVED, owner="bob@b/2"))
    assert reason is Reason.NOT_OWNER
    assert reason.is_fault
    assert "partition 3 is owned by bob@b/2" in text
    assert "ann@a/1 can run it, but does not own the partition" in text


def test_nobody_serves_the_partition() -> None:
    for owner in (None, "cat@c/3"):
        reason, text = the_one(served=replace(SERVED, owner=owner))
        assert reason is Reason.UNSERVED
        assert reason.is_fault
        assert "partition 3" in text
    assert "cat@c/3" in text


def test_nothing_is_said_of_what_a_worker_of_dotnet_can_run() -> None:
    assert the_one(members=(), served=replace(SERVED, owner="DESKTOP-1")) == (Reason.ACTIVITIES, "activity 'load'")


def test_nobody_knows_the_activity() -> None:
    awaits = Awaits(activities=("load", "stpo"))
    reason, text = the_one(awaits=awaits)
    assert reason is Reason.NO_ACTIVITY
    assert reason.is_fault
    assert "no live worker knows activity 'stpo'" in text
    assert "they know: load" in text
    reason, text = the_one(members=(replace(ANN, roles=("orchestrator",)),))
    assert reason is Reason.NO_ACTIVITY
    assert "activity 'load'" in text
    assert "no worker that runs activities is alive" in text


def test_without_a_live_worker_that_is_said_once() -> None:
    reason, text = the_one(members=(), awaits=Awaits(activities=("load", "stop")))
    assert reason is Reason.NO_ORCHESTRATOR
    assert text.count("is alive") == 1
    reason, text = the_one(members=(replace(ANN, roles=("orchestrator",)),), awaits=Awaits(activities=("load", "stop")))
    assert reason is Reason.NO_ACTIVITY
    assert "no live worker knows activities 'load', 'stop': no worker that runs activities is alive" in text


def test_an_activity_that_nobody_knows_is_the_reason_and_not_the_owner_that_lacks_the_orchestrator() -> None:
    apart: dict[str, Any] = {"members": (ANN, OTHER), "served": replace(SERVED, owner="bob@b/2")}
    reason, text = the_one(**apart, awaits=Awaits(activities=("stpo",)))
    assert reason is Reason.NO_ACTIVITY
    assert "no live worker knows activity 'stpo'" in text
    found = [one.reason for one in reasons(**apart, awaits=Awaits(activities=("stpo", "load")))]
    assert found == [Reason.NO_ACTIVITY, Reason.NOT_OWNER], "the other activity needs the right owner to go on"


def test_it_is_suspended_by_whom_since_when_and_why() -> None:
    held = replace(STATE, status=Status.SUSPENDED, output="moving", suspended_by="cat@c", suspended_at=START)
    reason, text = the_one(held, awaits=None)
    assert reason is Reason.SUSPENDED
    assert not reason.is_fault
    assert "suspended by cat@c since 2026-01-01 00:00:00 UTC: moving" in text
    assert "instances resume i" in text
    pending = replace(STATE, status=Status.PENDING, scheduled_start=LATER, output="not yet", suspended_at=START)
    reason, text = the_one(pending, awaits=None)
    assert reason is Reason.SUSPENDED
    assert "not yet" in text


def test_a_scheduled_start_needs_no_worker_before_its_time() -> None:
    pending = replace(STATE, status=Status.PENDING, scheduled_start=LATER)
    for members in ((), (ANN,)):
        assert the_one(pending, members=members, awaits=None) == (
            Reason.STARTS_LATER,
            "its start is scheduled for 2026-01-01 03:00:00 UTC",
        )
    assert the_one(pending, members=(), awaits=None, now=LATER)[0] is Reason.NO_ORCHESTRATOR


def test_quarantine_names_the_cause_and_the_way_out() -> None:
    message = QuarantinedMessage(message_id="m1", cause="ValueError: bad", stuck=False)
    whole = QuarantinedMessage(message_id="m2", cause="it computed for 10 s", stuck=True)
    reason, text = the_one(quarantined=(message,))
    assert reason is Reason.QUARANTINE
    assert reason.is_fault
    assert "a message for it is in quarantine: ValueError: bad" in text
    assert "put-back m1" in text
    assert "it is in quarantine: it computed for 10 s" in the_one(quarantined=(message, whole))[1]


def test_an_offline_partition_comes_first_with_who_ordered_it_and_why() -> None:
    served = replace(SERVED, owner=None, state=OwnerState.OFFLINE, offline=True)
    found = reasons(served=served, offline_by="cat", offline_reason="repair", members=(OTHER,))
    assert [one.reason for one in found][:2] == [Reason.OFFLINE, Reason.NO_ORCHESTRATOR]
    assert "partition 3 was taken offline by cat (repair). To bring it back: taskhub partitions online 3" in str(
        found[0]
    )


def test_awaited_events_are_named_with_the_time_since_when() -> None:
    events = (AwaitedEvent(name="approve", since=START), AwaitedEvent(name="reject", since=LATER))
    found = reasons(awaits=Awaits(events=events, timer=LATER, children=("delays",)))
    assert [one.reason for one in found] == [Reason.EVENTS, Reason.CHILDREN, Reason.TIMER]
    assert not any(one.reason.is_fault for one in found)
    assert "events 'approve' since 2026-01-01 00:00:00 UTC, 'reject' since 2026-01-01 03:00:00 UTC" in found[0].text
    assert "raise-event i approve" in found[0].remedy
    cut = decode_awaits(encode_awaits(Awaits(events=(AwaitedEvent(name="x" * 201, since=START),))))
    assert reasons(awaits=cut)[0].remedy == "", "an event of another name would be sent"
    assert found[1].text == "child 'delays'"
    ids, two = Awaits(children=("gate", "month"), child_ids=("a", "b", "c"), child_count=3), ("gate", "month")
    both = (replace(ANN, orchestrators=("delays", *two)),)
    assert reasons(awaits=ids, members=both)[0].text == "children 'gate', 'month' (a, b, c)"
    ids = replace(ids, child_count=200, complete=False)
    assert reasons(awaits=ids, members=both)[0].text == "children 'gate', 'month' (a, b, c and 197 more) and more"
    assert "2026-01-01 03:00:00 UTC" in found[2].text


def test_a_child_whose_orchestrator_no_live_worker_knows_is_told_by_its_parent() -> None:
    """A child has no row before a worker has begun it, so nothing else tells of it."""
    awaits = Awaits(children=("delays", "gate"), activities=("load",), timer=LATER)
    reason, text = the_one(awaits=awaits)
    assert reason is Reason.NO_CHILD
    assert reason.is_fault
    assert text.startswith("it awaits child 'gate', and no live worker knows orchestrator 'gate'. Alive: ")
    both = reasons(awaits=replace(awaits, activities=("lost",)))
    assert [one.reason for one in both] == [Reason.NO_ACTIVITY, Reason.NO_CHILD]
    assert reasons(awaits=awaits, members=(member("ann@a/1", orchestrators=("delays", "gate")),))[0].reason is (
        Reason.ACTIVITIES
    )
    dead = replace(OTHER, orchestrators=("gate",), alive=False)
    assert the_one(awaits=awaits, members=(ANN, dead))[0] is Reason.NO_CHILD


def test_a_child_that_is_held_is_told_by_its_parent_with_the_way_out() -> None:
    """Its partition is offline, or it came into quarantine in its first episode: it has no row then."""
    child = Snapshot(state=replace(STATE, instance_id="i:1"), members=(), now=START)
    awaits = Awaits(children=("delays",), child_ids=("i:1",), child_count=1)
    offline = replace(child, served=replace(SERVED, partition=2, offline=True), offline_by="ann@a")
    reason, text = the_one(awaits=awaits, children=(offline,))
    assert reason is Reason.CHILD_HELD
    assert reason.is_fault
    assert text.startswith("its child 'i:1': partition 2 was taken offline by ann@a")
    assert "taskhub partitions online 2" in text
    stuck = replace(child, quarantined=(QuarantinedMessage(message_id="m", cause="it does not end", stuck=True),))
    assert the_one(awaits=awaits, children=(child, stuck)) == (
        Reason.CHILD_HELD,
        "its child 'i:1': it is in quarantine: it does not end. Fix the cause, then: taskhub quarantine put-back m",
    )
    assert the_one(awaits=awaits, children=(child,))[0] is Reason.CHILDREN


@pytest.mark.parametrize("odd", ["plain:1", "two words", "it's", 'say "x"', "$HOME", "a;b", "-x", "--help me"])
def test_a_command_that_is_the_way_out_can_be_pasted_into_a_shell(odd: str) -> None:
    state = replace(STATE, instance_id=odd)
    events = Awaits(events=(AwaitedEvent(name="it's there", since=START),))
    end = ["--"] if odd.startswith("-") else []
    for found, words in (
        (reasons(replace(state, status=Status.SUSPENDED)), ["instances", "resume", *end, odd]),
        (reasons(state, awaits=events), ["instances", "raise-event", *end, odd, "it's there"]),
        (reasons(state, awaits=Awaits(unreadable="a row")), ["instances", "terminate", *end, odd]),
        (
            reasons(quarantined=(QuarantinedMessage(message_id=odd, cause="bad", stuck=False),)),
            ["quarantine", "put-back", *end, odd],
        ),
    ):
        head, _, command = found[0].remedy.partition("taskhub ")
        assert head
        assert shlex.split(command) == words


def test_the_column_of_what_is_awaited() -> None:
    awaits = Awaits(
        activities=("a", "b"),
        children=("c",),
        child_ids=("c:1", "c:2", "c:3"),
        child_count=30,
        events=(AwaitedEvent(name="go", since=START),),
        timer=LATER,
        complete=False,
        unreadable="a row is damaged",
    )
    assert decode_awaits(encode_awaits(awaits)) == awaits
    assert encode_awaits(Awaits()) == ""
    assert decode_awaits("") == decode_awaits(None) == Awaits()
    for damaged in ("{", "[]", '{"timer": "x"}', '{"events": 3}', "null"):
        assert decode_awaits(damaged) == Awaits()
    wide = Awaits(events=tuple(AwaitedEvent(name=f"{n:03}" + "x" * 1000, since=START) for n in range(20)))
    assert len(encode_awaits(wide)) < 10_000


# --- over a store -------------------------------------------------------------------------------------------------

app = App("flights", version="2")


@app.activity
def load(path: str) -> str:
    return path


@app.orchestrator
async def delays(ctx: OrchestrationContext, path: str) -> str:
    loaded = await ctx.call_activity(load, path)
    await ctx.wait_for_external_event("approve")
    await ctx.call_activity("unlode", loaded)
    return loaded


HERE = str(WorkerIdentity(name="house", host="here", incarnation="1"))


async def serve(store: Store, client: Client) -> Members:
    """The house lists itself, and owns every partition."""
    names = client.hub.names
    members = Members(store, names, clock=client.hub.clock)
    await members.announce(member(HERE))
    leases = leases_of(store, names, client.hub.info)
    for lease in await leases.scan():
        await leases.mark(replace(lease, owner=HERE))
    return members


async def settled(client: Client, instance_id: str, reason: Reason) -> tuple[Why, ...]:
    async def look() -> tuple[Why, ...]:
        while True:
            found = await client.instance(instance_id).waiting()
            if found and found[0].reason is reason:
                return found
            await client.hub.clock.sleep(0.5)

    async with asyncio.timeout(60):
        return await look()


def test_an_event_an_unknown_activity_a_suspension_and_an_offline_partition_are_read_from_the_store() -> None:
    clock = VirtualClock()

    async def play() -> None:
        async with (
            SqliteStore(None, clock=clock) as store,
            house(store, app, clock=clock, no_worker_timeout=timedelta(hours=1)) as living,
        ):
            client = living.client
            await serve(store, client)
            await client.start("delays", "x", instance_id="i")
            (found,) = await settled(client, "i", Reason.EVENTS)
            assert "'approve' since 2026-" in found.text

            await client.suspend("i", "moving", by="cat@c")
            (found,) = await settled(client, "i", Reason.SUSPENDED)
            assert "suspended by cat@c since 2026-" in found.text
            assert "moving" in found.text
            await client.resume("i")
            await settled(client, "i", Reason.EVENTS)

            await client.raise_event("i", "approve")
            (found,) = await settled(client, "i", Reason.NO_ACTIVITY)
            assert "activity 'unlode'" in found.text

            scanned = await client.admin.waiting_instances()
            assert scanned.counts == {Reason.NO_ACTIVITY: 1}
            assert scanned.complete
            assert scanned.faults == (Reason.NO_ACTIVITY,)
            assert [one.instance_id for one in scanned.examples[Reason.NO_ACTIVITY]] == ["i"]

            await client.admin.partition_operations.offline(range(4), "repair")
            found, *_ = await settled(client, "i", Reason.OFFLINE)
            assert "(repair)" in found.text

    run(play(), limit=timedelta(minutes=5))


def test_a_terminated_instance_that_was_suspended_says_nothing_and_a_resumed_one_forgets_who_held_it() -> None:
    clock = VirtualClock()

    async def play() -> None:
        async with SqliteStore(None, clock=clock) as store, house(store, app, clock=clock) as living:
            client = living.client
            await serve(store, client)
            await client.start("delays", "x", instance_id="i")
            await client.suspend("i", by="cat@c")
            await settled(client, "i", Reason.SUSPENDED)
            await client.resume("i")
            await settled(client, "i", Reason.EVENTS)
            state = await client.get("i")
            assert state is not None
            assert state.suspended_by is None
            assert state.suspended_at is None
            await client.terminate("i", wait=True)
            assert await client.instance("i").waiting() == ()

    run(play(), limit=timedelta(minutes=5))


def test_a_suspension_before_the_start_says_by_whom() -> None:
    clock = VirtualClock()

    async def play() -> None:
        async with SqliteStore(None, clock=clock) as store, house(store, app, clock=clock) as living:
            client = living.client
            await serve(store, client)
            at = datetime.fromisoformat((START + timedelta(minutes=2)).text())
            await client.start("delays", "x", instance_id="i", start_at=at)
            await settled(client, "i", Reason.STARTS_LATER)
            await client.suspend("i", "not yet", by="cat@c")
            (found,) = await settled(client, "i", Reason.SUSPENDED)
            assert "suspended by cat@c" in found.text
            assert "not yet" in found.text
            await clock.sleep(180)
            state = await client.get("i")
            assert state is not None
            assert state.status is Status.SUSPENDED
            found, *_ = await client.instance("i").waiting()
            assert "suspended by cat@c" in found.text

    run(play(), limit=timedelta(minutes=15))


def test_quarantine_and_a_dead_worker_that_is_still_listed() -> None:
    clock = VirtualClock()

    async def play() -> None:
        async with SqliteStore(None, clock=clock) as store:
            client = await Client.over(store, Settings(hub="House", partitions=4), create=True, clock=clock)
            await serve(store, client)
            await client.start("delays", "x", instance_id="i")
            assert [one.reason for one in await client.instance("i").waiting()] == [], (
                "a worker is listed and nobody has proven"
            )
            assert [
                one.reason for one in await client.instance("i").waiting(members=await client.admin.workers(prove=True))
            ] == [Reason.NO_ORCHESTRATOR]
            item = Quarantined(
                queue=client.hub.queue_of("i"),
                message_id="m1",
                cause="ValueError: bad",
                text="",
                dequeue_count=3,
                inserted=START,
                instance_id="i",
            )
            await keep(store, client.hub.names, item, None)
            found = (await client.instance("i").waiting())[0]
            assert found.reason is Reason.QUARANTINE
            assert "ValueError: bad" in found.text

    run(play(), limit=timedelta(minutes=5))


class Counting(SqliteStore):
    pages = gets = 0

    async def query(self, *arguments: Any, **named: Any) -> Any:
        self.pages += 1
        return await super().query(*arguments, **named)

    async def get(self, *arguments: Any, **named: Any) -> Any:
        self.gets += 1
        return await super().get(*arguments, **named)


def test_a_scan_reads_a_bounded_part_of_a_large_hub_and_says_at_least() -> None:
    clock = VirtualClock()

    async def play() -> None:
        async with Counting(None, clock=clock) as store:
            client = await Client.over(store, Settings(hub="House", partitions=4), create=True, clock=clock)
            for number in range(700):
                await client.start("delays", "x", instance_id=f"i{number:04}")
            store.pages = store.gets = 0
            found = await client.admin.waiting_instances()
            assert found.counts == {Reason.NO_ORCHESTRATOR: 500}
            assert not found.complete
            assert len(found.examples[Reason.NO_ORCHESTRATOR]) == 3
            assert store.pages < 20
            assert store.gets <= SENTINELS

    run(play(), limit=timedelta(minutes=5))


def test_a_missing_triggerer_is_told_beside_the_reason_and_is_gone_when_one_watches() -> None:
    clock = VirtualClock()

    async def play() -> None:
        async with SqliteStore(None, clock=clock) as store, house(store, app, clock=clock) as living:
            client = living.client
            await serve(store, client)
            await client.start("delays", "x", instance_id="i", tags={"taskhub.watch": "1"})
            await client.start("delays", "x", instance_id="by-hand")
            found = await settled(client, "i", Reason.EVENTS)
            assert [one.reason for one in found] == [Reason.EVENTS], "one comes seconds after a task is deferred"
            await clock.sleep(UNWATCHED)
            await serve(store, client)  # its worker is alive still
            found = await client.instance("i").waiting()
            assert [one.reason for one in found] == [Reason.EVENTS, Reason.NO_TRIGGERER]
            assert [one.reason for one in await settled(client, "by-hand", Reason.EVENTS)] == [Reason.EVENTS]
            scanned = await client.admin.waiting_instances()
            assert scanned.counts == {Reason.EVENTS: 2, Reason.NO_TRIGGERER: 1}
            assert scanned.faults == ()
            async with client.watches.attending("triggerer"):
                await clock.sleep(30)
                assert [one.reason for one in await client.instance("i").waiting()][-1] is not Reason.NO_TRIGGERER
                assert [member.worker for member in await client.admin.workers()] == [], (
                    "no worker: the house is silent"
                )
            assert [one.reason for one in await client.instance("i").waiting()][-1] is not Reason.NO_TRIGGERER, (
                "it has just left"
            )
            await clock.sleep(UNWATCHED)
            assert [one.reason for one in await client.instance("i").waiting()][-1] is Reason.NO_TRIGGERER

    run(play(), limit=timedelta(minutes=5))


def test_a_triggerer_that_died_is_not_believed_to_watch() -> None:
    clock = VirtualClock()

    async def play() -> None:
        async with SqliteStore(None, clock=clock) as store, house(store, app, clock=clock) as living:
            client = living.client
            dead = await serve(store, client)
            await client.start("delays", "x", instance_id="i", tags={"taskhub.watch": "1"})
            await settled(client, "i", Reason.EVENTS)
            await dead.announce(member("triggerer@t/1", roles=("watcher",), apps={}, orchestrators=(), activities=()))
            found = await client.instance("i").waiting()
            assert [one.reason for one in found] == [Reason.EVENTS], "listed, and nothing proven"
            found = await client.instance("i").waiting(members=await client.admin.workers(prove=True))
            assert found[-1].reason is Reason.NO_TRIGGERER

    run(play(), limit=timedelta(minutes=5))


def test_workers_whose_apps_differ_are_told_from_the_store_with_both_names() -> None:
    clock = VirtualClock()

    async def play() -> None:
        async with SqliteStore(None, clock=clock) as store:
            client = await Client.over(store, Settings(hub="House", partitions=4), create=True, clock=clock)
            members = await serve(store, client)
            await members.announce(member(HERE, apps={"trains": "1"}, orchestrators=("trains",)))
            await members.announce(member("ann@a/1", accepts={"delays": ("2",)}))
            await client.start("delays", "x", instance_id="i", version="2")
            await client.start("delays", "x", instance_id="old", version="1")
            (found,) = await client.instance("i").waiting()
            assert found.reason is Reason.NOT_OWNER
            assert f"is owned by {HERE}, which cannot run orchestrator 'delays'" in found.text
            assert "ann@a/1 can run it, but does not own the partition" in found.text
            (found,) = await client.instance("old").waiting()
            assert found.reason is Reason.VERSION
            scanned = await client.admin.waiting_instances()
            assert scanned.counts == {Reason.VERSION: 1, Reason.NOT_OWNER: 1}
            assert set(scanned.faults) == set(scanned.counts)

    run(play(), limit=timedelta(minutes=5))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("acme", "acme"),
        ("", "(no tag)"),
        ("two\nlines", "two\\nlines"),
        ("x" * 5000, f"{'x' * 40}… (a value of over 200 characters)"),
    ],
)
def test_the_values_of_a_divided_limit_are_shown_in_one_line(value: str, shown: str) -> None:
    key = value_of({"tenant": value} if value else None, "tenant")
    mine, other = (OrchestrationInstance(instance_id=name, execution_id="e") for name in ("i", "other"))
    held = Place(key="", number=0, held=True, instance=other)
    limit = LimitState(
        name="load",
        kind=LimitKind.ACTIVITY,
        declared=1,
        key_tag="tenant",
        values={key: (held,), "another": (held,)},
        activities=("load",),
        waiting=3,
        waiters={key: (other, mine), "another": (other,)},
    )
    said = "activity 'load'; at most 1 of 'load' run for each tenant at once; full: "
    limits = {(LimitKind.ACTIVITY, "load"): limit}
    assert the_one(limits=limits)[1] == f"{said}{shown} (2 calls wait)"
    assert the_one(replace(STATE, instance_id="runs"), limits=limits)[1] == "activity 'load'"


def test_two_long_values_that_begin_alike_are_two_values() -> None:
    one, two = (value_of({"tenant": "x" * 5000 + end}, "tenant") for end in "ab")
    assert one != two
    assert len(one) == len(two) == LONGEST_VALUE + 1
