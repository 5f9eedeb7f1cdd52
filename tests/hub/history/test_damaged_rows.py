"""One row that nobody can read stops nothing but itself, and is said once: every table of a hub, ours and .NET's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_provider_taskhub import virtual_time
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import compress
from airflow_provider_taskhub.engine.events import FailureDetails, OrchestrationInstance, Status
from airflow_provider_taskhub.errors import HubError, InputError
from airflow_provider_taskhub.hub.history import activity_records
from airflow_provider_taskhub.hub.model import ActivityRecord, ControlKind, Member, RecordState
from airflow_provider_taskhub.hub.partitions.app_lease import AppLease, lease_id
from airflow_provider_taskhub.hub.partitions.lease import finite
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.unreadable_rows import unreadable
from airflow_provider_taskhub.hub.watches import Watch
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.primitives import Entity, Property, PutBlob, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import START, VirtualClock

HUB = "Damaged"
US = lease_id("").encode()
"""Our app's lease id."""
NOT_JSON, NOT_GZIP = "no {json", b"\x1f\x8b\x08\x00 no more of it"


class Bench:
    """A hub, and what was said of its rows."""

    def __init__(self, store: SqliteStore, client: Client, logs: list[Any]) -> None:
        self.store, self.client, self.names = store, client, client.hub.names
        self._logs = logs

    async def put(self, table: str, partition_key: str, row_key: str, **columns: Property | None) -> None:
        """A row as it is, or what becomes of it."""
        row = Entity(partition_key=partition_key, row_key=row_key, properties=columns)
        await self.store.execute(Transact(table=table, rows=(RowOperation(verb=RowVerb.UPSERT_MERGE, entity=row),)))

    async def blob(self, container: str, name: str, data: bytes) -> None:
        await self.store.execute(PutBlob(container=container, name=name, data=data))

    def said(self) -> list[tuple[str, str]]:
        """Table and row of each warning."""
        return [(entry["table"], entry["row"]) for entry in self._logs if entry["event"] == "row_unreadable"]


def play(work: Callable[[Bench], Awaitable[Any]], **settings: Any) -> Any:
    unreadable.cache_clear()

    async def main() -> Any:
        clock = VirtualClock()
        async with SqliteStore(None, clock=clock) as store:
            client = await Client.over(store, Settings(hub=HUB, partitions=2, **settings), create=True, clock=clock)
            with capture_logs() as logs:
                return await work(Bench(store, client, logs))

    return virtual_time.run(main())


# --- leases -------------------------------------------------------------------------------------------------------


@pytest.mark.rows("T10")
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"Owner": "w", "TaskHubOwnedSince": "yesterday", "TaskHubLastRenewal": "2026-99-99T00:00:00Z"}', False),
        (b'{"Owner": "w", "TaskHubLoad": 1e999, "Epoch": "many", "Token": "no id", "TaskHubUnder": 5}', False),
        (b'{"Owner": "w", "TaskHubLoad": ' + b"9" * 400 + b"}", False),
        (b"no {json", True),
        (b"[]", True),
        (b"\xff\xfe", True),
        (b"[" * 100_000, True),
    ],
)
def test_a_damaged_lease_blob_hides_no_partition_and_is_logged_at_most_once(data: bytes, said: bool) -> None:
    async def work(bench: Bench) -> None:
        await bench.blob(bench.names.leases, f"default/{bench.names.control(0)}", data)
        for _ in range(2):
            first, second = await bench.client.admin.partitions()
            assert (first.owner, first.owned_since, first.load) == (None if said else "w", None, None)
            assert second.partition == 1
        assert bench.said() == ([(bench.names.leases, f"default/{bench.names.control(0)}")] if said else [])

    play(work, lease_store="blob")


@pytest.mark.rows("T10")
def test_a_damaged_lease_row_loses_only_its_damaged_columns() -> None:
    async def work(bench: Bench) -> None:
        columns: dict[str, Property] = {"CurrentOwner": "w", "OwnedSince": "yesterday", "TaskHubEpoch": "many"}
        await bench.put(bench.names.partitions, "", bench.names.control(0), TaskHubLoad=float("nan"), **columns)
        first, second = await bench.client.admin.partitions()
        assert (first.owner, first.owned_since, first.load, second.partition) == ("w", None, None, 1)

    play(work)


@pytest.mark.parametrize(
    ("value", "number"),
    [(1, 1.0), (0.5, 0.5), (True, None), ("1", None), (float("inf"), None), (10**400, None), (None, None)],
)
def test_what_can_be_reckoned_with(value: object, number: float | None) -> None:
    assert finite(value) == number


# --- members ------------------------------------------------------------------------------------------------------

MAX_NAMES = {"apps": {"flights": "3"}, "orchestrators": ["delays"], "activities": []}


@pytest.mark.rows("E49")
@pytest.mark.parametrize(
    "columns",
    [
        {"Names": NOT_JSON},
        {"Names": "[1, 2]"},
        {"Names": None, "Names0": NOT_GZIP},
        {"Names": None, "Names0": compress(NOT_JSON)},
        {"Names": None, "Names0": compress("x" * 100)[:20]},
    ],
    ids=["no JSON", "no object", "no gzip", "gzip of no JSON", "cut off"],
)
def test_a_member_whose_names_cannot_be_read_is_there_without_them(columns: dict[str, Property | None]) -> None:
    async def work(bench: Bench) -> None:
        await announce(bench, "good@host/1")
        kept = {name: value for name, value in columns.items() if value is not None}
        row: dict[str, Property] = {"Worker": "bad@host/1", "Roles": "orchestrator", "RenewSeconds": 1.0}
        await bench.put(bench.names.members, "member", "bad", **row, **kept)
        for _ in range(2):
            bad, good = sorted(await bench.client.admin.workers(), key=lambda member: member.worker)
            assert (bad.worker, bad.roles, bad.orchestrators) == ("bad@host/1", ("orchestrator",), ())
            assert good.orchestrators == ("delays",)
        assert bench.said() == [(bench.names.members, "bad")]

    play(work)


@pytest.mark.rows("E49")
def test_a_member_without_a_name_is_left_out() -> None:
    async def work(bench: Bench) -> None:
        await announce(bench, "good@host/1")
        await bench.put(bench.names.members, "member", "bad", Roles="orchestrator", Worker=5)
        for _ in range(2):
            assert [member.worker for member in await bench.client.admin.workers()] == ["good@host/1"]
        assert bench.said() == [(bench.names.members, "bad")]

    play(work)


async def announce(bench: Bench, worker: str) -> None:
    member = Member(
        worker=worker, started=START, roles=("orchestrator",), apps={}, orchestrators=("delays",), activities=()
    )
    await Members(bench.store, bench.names, clock=bench.client.hub.clock).announce(member)


@pytest.mark.rows("E49")
def test_a_member_with_numbers_that_are_none() -> None:
    async def work(bench: Bench) -> None:
        nan: dict[str, Property] = {name: float("nan") for name in ("RenewSeconds", "TakeSeconds", "DueSeconds")}
        lists: dict[str, Property] = {"Names": '{"apps": [1], "orchestrators": {"a": 1}, "activities": [1]}'}
        odd: dict[str, Property] = {"Running": float("inf"), "Weight": "heavy", "Serving": "0:1:2:inf 5:x:1 what"}
        await bench.put(bench.names.members, "member", "odd", Worker="odd@host/1", **nan, **odd, **lists)
        members = Members(bench.store, bench.names, clock=bench.client.hub.clock)
        roster = await members.watch()
        (member,) = roster.live
        assert (member.apps, member.orchestrators, member.activities) == ({}, (), ("1",))
        assert (member.running, member.weight) == (0, 1)
        assert roster.advertised["odd@host/1"].signs[0].load is None
        assert roster.paces["odd@host/1"] == (10.0, 30.0)

    play(work)


# --- orders, the hub row, the app lease ---------------------------------------------------------------------------


@pytest.mark.rows("T60", "T75")
def test_an_order_of_a_newer_version_is_shown_and_stops_no_other() -> None:
    async def work(bench: Bench) -> None:
        await bench.client.admin.partition_operations.offline([1])
        await bench.put(bench.names.controls, "control", "new", Kind="teleport", Partition="x", At="now", Value=1.5)
        kinds = {control.kind for control in await bench.client.admin.partition_operations.controls()}
        assert kinds == {ControlKind.OFFLINE, ControlKind.UNKNOWN}
        assert [state.offline for state in await bench.client.admin.partitions()] == [False, True]

    play(work)


@pytest.mark.parametrize("partitions", [0, -1, 5_000, "4"])
def test_a_damaged_hub_row_is_said_to_be_one(partitions: Property) -> None:
    async def work(bench: Bench) -> None:
        await bench.put(bench.names.controls, "hub", "hub", Partitions=partitions)
        with pytest.raises(HubError, match="the hub row in table DamagedControls is damaged"):
            await Client.over(bench.store, Settings(hub=HUB))

    play(work)


@pytest.mark.parametrize(
    "info",
    [b'{"OwnerId": 5, "DesiredSwapId": "x"}', b'{"OwnerId": "x", "DesiredSwapId": "%s"}' % US, b"no json", b"[]"],
    ids=["no texts", "no id", "no JSON", "no object"],
)
def test_a_damaged_app_lease_blob_keeps_nobody_out(info: bytes) -> None:
    async def work(bench: Bench) -> bytes:
        await bench.blob(bench.names.app_lease, bench.names.app_lease_info, info)
        await AppLease(bench.store, bench.names, "").acquire()
        written = await bench.store.get_blob(bench.names.app_lease, bench.names.app_lease_info)
        assert written is not None
        return written.data

    assert US in play(work)


# --- activities ---------------------------------------------------------------------------------------------------


def attempt(number: int, state: RecordState = RecordState.RUNNING, **fields: Any) -> ActivityRecord:
    return ActivityRecord(
        instance=OrchestrationInstance(instance_id="i", execution_id="e"),
        task_id=number,
        action_id=f"a{number}",
        attempt=1,
        name="monthly",
        state=state,
        worker="w@host/1",
        executor="",
        claimed=START,
        **fields,
    )


@pytest.mark.parametrize("state", ["paused", None, 5], ids=["of a newer version", "missing", "no text"])
def test_an_attempt_in_a_state_that_nobody_knows(state: Property | None) -> None:
    async def work(bench: Bench) -> None:
        for number in (0, 1):
            row = activity_records.encode(attempt(number))
            columns = {**row.properties, **({"State": state} if number == 0 else {})}
            await bench.put(bench.names.activities, row.partition_key, row.row_key, **columns)
        for _ in range(2):
            states = [record.state for record in await bench.client.instance("i").activities()]
            assert states == [RecordState.UNKNOWN, RecordState.RUNNING]
        assert bench.said() == [(bench.names.activities, f"i {activity_records.row_key('e', 0, 1)}")]

    play(work)


@pytest.mark.parametrize("failure", [NOT_JSON, "[]", "{}", '{"type": 5}', None])
def test_an_attempt_whose_failure_cannot_be_read_has_failed_all_the_same(failure: str | None) -> None:
    async def work(bench: Bench) -> None:
        known = FailureDetails(error_type="ValueError", error_message="broken")
        row = activity_records.encode(attempt(0, RecordState.FAILED, failure=known, ended=START))
        columns = {**row.properties, "Failure": failure}
        await bench.put(bench.names.activities, row.partition_key, row.row_key, **columns)
        for _ in range(2):
            (record,) = await bench.client.instance("i").activities()
            assert record.state is RecordState.FAILED
            assert record.failure is not None
            assert record.failure.error_type == "Unreadable"
            assert row.row_key in record.failure.error_message
        assert len(bench.said()) == 1

    play(work)


@pytest.mark.parametrize("data", [NOT_GZIP, b"\xff\xfe"])
def test_a_result_whose_blob_is_damaged_is_named(data: bytes) -> None:
    async def work(bench: Bench) -> None:
        record = attempt(0, RecordState.COMPLETED, result="x" * 40_000)
        blob = activity_records.result_blob(bench.names, record)
        assert blob is not None
        await bench.blob(blob.container, blob.name, data)
        with pytest.raises(
            activity_records.RecordUnreadable, match=r"result of activity row e:.*: blob .*Result\.json\.gz"
        ):
            await activity_records.result_of(bench.store, bench.names, activity_records.encode(record))

    play(work)


# --- quarantine ---------------------------------------------------------------------------------------------------


@pytest.mark.rows("K42")
def test_a_quarantined_message_whose_text_is_lost_is_listed_and_cannot_be_put_back() -> None:
    async def work(bench: Bench) -> None:
        queue = bench.names.control(0)
        await bench.put(bench.names.quarantine, queue, "a", Cause="damaged", Body=NOT_GZIP)
        await bench.put(bench.names.quarantine, queue, "b", Cause="gone", BodyBlobName="nowhere/x.json.gz")
        await bench.put(bench.names.quarantine, queue, "c", Cause="fine", Body=compress("{}"))
        await bench.put(bench.names.quarantine, queue, "d", Cause="empty", Body=compress(""))
        for _ in range(2):
            kept = await bench.client.admin.quarantined()
            assert [(item.cause, item.text) for item in kept] == [
                ("damaged", ""),
                ("gone", ""),
                ("fine", "{}"),
                ("empty", ""),
            ]
        assert bench.said() == [(bench.names.quarantine, f"{queue} a"), (bench.names.quarantine, f"{queue} b")]
        for name in "ab":
            with pytest.raises(InputError, match=f"the text of message {name} is gone"):
                await bench.client.admin.put_back(name)
        assert [await bench.client.admin.put_back(name) for name in "cd"] == [True, True]
        assert [await bench.client.admin.drop_quarantined(name) for name in "ab"] == [True, True]

    play(work)


@pytest.mark.rows("K42")
def test_a_stuck_instance_without_its_id_keeps_no_reader_from_its_queue() -> None:
    async def work(bench: Bench) -> Any:
        queue = bench.names.control(0)
        await bench.put(bench.names.quarantine, queue, "a", Stuck="e1")
        await bench.put(bench.names.quarantine, queue, "b", Stuck="e2", InstanceId="i")
        return await quarantine.stuck(bench.store, bench.names, queue)

    assert ("i", "e2") in play(work)


# --- instances and completions ------------------------------------------------------------------------------------


@pytest.mark.rows("K45")
def test_a_damaged_instance_row_is_listed_and_its_unreadable_blobs_are_logged_once() -> None:
    async def work(bench: Bench) -> None:
        url = bench.client.hub.container_url
        await bench.put(
            bench.names.instances,
            "bad",
            "",
            RuntimeStatus="Dreaming",
            CreatedTime="yesterday",
            Tags=NOT_JSON,
            Generation="many",
            TaskHubSuspended="9" * 5_000 + ":",
            TaskHubFailure="[]",
            Input=f"{url}/bad/history-0000000000000001-ExecutionStarted-00000001-Input.json.gz",
            Output="",
            OutputBlobName="bad./x.json.gz",
        )
        await bench.blob(
            bench.names.large_messages, "bad/history-0000000000000001-ExecutionStarted-00000001-Input.json.gz", NOT_GZIP
        )
        await bench.put(bench.names.instances, "good", "", RuntimeStatus="Running", Name="flights")
        page = await bench.client.list()
        assert [(row.instance_id, row.status, row.name) for row in page.instances] == [
            ("bad", Status.PENDING, ""),
            ("good", Status.RUNNING, "flights"),
        ]
        for _ in range(2):
            state = await bench.client.get("bad")
            assert state is not None
            assert (state.created, state.tags, state.restarts, state.suspended_at) == (None, None, None, None)
            assert (state.input or "").startswith(url), "what the row has itself"
        assert sorted(bench.said()) == [
            (bench.names.large_messages, "bad./x.json.gz"),
            (bench.names.large_messages, "bad/history-0000000000000001-ExecutionStarted-00000001-Input.json.gz"),
        ]

    play(work)


def test_a_hint_of_an_end() -> None:
    async def work(bench: Bench) -> Any:
        await bench.put(bench.names.completions, "", "odd^", RuntimeStatus=5)
        await bench.put(bench.names.completions, "", "good", RuntimeStatus="Completed")
        return await bench.client.watches.completions()

    assert play(work) == ("good", "odd^")


WATCHED = Watch(
    instance_id="good",
    deployment="here",
    dag_id="d",
    run_id="r",
    task_id="t",
    map_index=3,
    owner="o",
    generation=2,
    waiter="w",
    cleared_continues=True,
)


def test_a_damaged_watch_row_is_left_out_and_a_newer_watch_is_not_removed() -> None:
    """Beside the hints, which are read every second: neither is taken for the other."""

    async def work(bench: Bench) -> Any:
        await bench.client.watches.add(WATCHED)
        await bench.client.watches.add(replace(WATCHED, instance_id="other", deployment="there"))
        await bench.put(bench.names.completions, "", "hint", RuntimeStatus="Completed")
        await bench.put(bench.names.completions, "watch", "odd^", Deployment="here", DagId=5)
        found = await bench.client.watches.of("here")
        assert [replace(one, etag="") for one in found] == [WATCHED]
        assert [await bench.client.watches.get(name) for name in ("good", "odd^", "none")] == [*found, None, None]
        assert await bench.client.watches.completions() == ("hint",)
        await bench.client.watches.add(replace(WATCHED, owner="newer"))
        await bench.client.watches.remove(found[0])
        (newer,) = await bench.client.watches.of("here")
        assert newer.owner == "newer", "what was written again meanwhile stays"
        assert await bench.client.watches.add(WATCHED, replaces=False) is False
        assert await bench.client.watches.add(WATCHED, replaces=found[0]) is False
        assert await bench.client.watches.of("here") == (newer,)
        assert await bench.client.watches.add(replace(WATCHED, owner="newest"), replaces=newer) is True
        (newer,) = await bench.client.watches.of("here")
        assert newer.owner == "newest"
        await bench.client.watches.remove(newer)
        assert await bench.client.watches.add(WATCHED, replaces=newer) is False, "the row was deleted"
        assert await bench.client.watches.add(WATCHED, replaces=False) is True
        (newest,) = await bench.client.watches.of("here")
        await bench.client.watches.remove(newest)
        assert [one.instance_id for one in await bench.client.watches.of("there")] == ["other"]
        return await bench.client.watches.of("here")

    assert play(work) == ()


@pytest.mark.parametrize(
    ("watched", "days", "left"),
    [
        ({}, 6.9, ("good",)),
        ({}, 7.1, ()),
        ({"deployment": "there"}, 0.0, ("good",)),
        ({"owner": "a newer start"}, 0.0, ()),
        ({"instance_id": "another"}, 0.0, ()),
    ],
)
def test_a_purge_of_many_leaves_what_a_task_may_still_read(
    watched: dict[str, str], days: float, left: tuple[str, ...]
) -> None:
    """Also the failed instance of a task that waits for its retry. A row that is a week old belongs to nobody."""

    async def work(bench: Bench) -> Any:
        client, clock = bench.client, bench.client.hub.clock
        await client.watches.add(replace(WATCHED, **watched))
        for name, tags in (("free", {}), ("good", {"taskhub.owner": "o"})):
            await client.start("x", 1, instance_id=name, tags=tags)
            await bench.put(bench.names.instances, name, "", RuntimeStatus="Failed", CompletedTime=clock.utc_now())
        await clock.sleep(days * 86400)
        result = await client.purge_many()
        assert (result.purged, result.complete) == (2 - len(left), not left)
        assert not result.failed
        assert tuple(row.instance_id for row in (await client.list()).instances) == left
        assert await client.purge("good") is bool(left), "one by its id is purged nevertheless"
        return result.watched

    assert play(work) == left


@pytest.mark.parametrize(("owner", "left"), [("o", ()), ("a newer start", ("good",))])
def test_a_purge_deletes_the_watch_row_of_its_own_start(owner: str, left: tuple[str, ...]) -> None:
    async def work(bench: Bench) -> Any:
        await bench.client.watches.add(replace(WATCHED, owner=owner))
        await bench.client.start("x", 1, instance_id="good", tags={"taskhub.owner": "o"})
        await bench.put(bench.names.instances, "good", "", RuntimeStatus="Completed")
        assert await bench.client.purge("good") is True
        return tuple(watch.instance_id for watch in await bench.client.watches.of("here"))

    assert play(work) == left
