"""Our worker on a hub that .NET has filled, and our client's operations beside the recorded ones (K46, K52, K53, K55).

Differences that are meant are those of ``tests/engine/test_golden.py``; besides, how many messages came together in one
episode, where there is more than one of them at a time.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import (
    HistoryEvent,
    OrchestratorCompleted,
    OrchestratorStarted,
    Status,
)
from airflow_provider_taskhub.hub.formats.history_rows import SENTINEL, decode_event
from airflow_provider_taskhub.hub.formats.instance_rows import decode_instance
from airflow_provider_taskhub.hub.model import StartPolicy
from airflow_provider_taskhub.storage.primitives import Entity
from tests.engine.golden_app import app
from tests.engine.recorded import parsed, shape
from tests.golden import Recording, load
from tests.golden.moments import load_moment, message_json
from tests.hub.formats.rows import edm, from_state, from_write, same_json, theirs
from tests.simulation.world import World, running, simulate

TIMES = {"_Timestamp", "LastUpdatedTime", "CreatedTime", "CompletedTime", "CheckpointCompletedTimestamp", "FireAt"}
"""Columns that differ from run to run."""
NESTED = ("OrchestrationInstance", "ParentInstance", "Tags", "FailureDetails", "ParentTraceContext")


_CALLS: Counter[str] = Counter()
"""Attempts by instance."""


def say_hello(who: str) -> str:
    return f"Hello v2, {who}!" if running().version == "2.0" else f"Hello, {who}!"


def add(x: int, y: int) -> int:
    return x + y


def square(x: int) -> int:
    return x * x


def flaky(instance_id: str) -> Any:
    _CALLS[instance_id] += 1
    if _CALLS[instance_id] % 3:
        raise ValueError(instance_id)
    return f"finally {instance_id}"


def fail(what: str) -> None:
    raise ValueError(f"broken: {what}")


def fail_until_told_otherwise(what: str) -> str:
    return "ok now"


def length(text: str) -> int:
    return len(text)


def repeat(text: str, times: int) -> str:
    return text * times


def slow(milliseconds: int) -> str:
    return "slow"


ACTIVITIES: dict[str, Callable[..., Any]] = {
    "SayHello": say_hello,
    "Add": add,
    "Square": square,
    "Flaky": flaky,
    "Fail": fail,
    "FailTyped": fail,
    "FailUntilToldOtherwise": fail_until_told_otherwise,
    "Length": length,
    "Repeat": repeat,
    "Slow": slow,
}


def play(recording: Recording, drive: Callable[[World], Awaitable[Any]], *, moment: str) -> Any:
    async def main() -> Any:
        async with World(app, hub=recording.hub, partitions=4, functions=ACTIVITIES) as world:
            await load_moment(world.client.hub, recording, moment)
            found = await drive(world)
            assert not world.defects(), world.defects()
            assert not await world.client.admin.quarantined()
            return found

    return simulate(main, limit=timedelta(days=400))


Drive = Callable[[World], Awaitable[Any]]


async def nothing(world: World) -> None:
    """Everything that is needed is in the queues."""


async def raise_stop(world: World) -> None:
    await world.client.raise_event("events-1", "stop", [1, 2])


async def resume(world: World) -> None:
    await world.client.resume("susp-1", "go on")


async def take_over(world: World) -> None:
    for name, data in (("go", "a"), ("stop", "b")):
        await world.client.raise_event("killed-2", name, data)


async def attach(world: World) -> None:
    """The start was invisible, so it is not there: a client that attaches puts it again."""
    await world.client.start("Hello", "World", instance_id="sched-1", policy=StartPolicy.ATTACH)
    row = await world.client.get("sched-1")
    assert row is not None
    assert row.scheduled_start is not None
    await world.clock.sleep((row.scheduled_start - world.clock.utc_now()).total_seconds())


MOMENTS: dict[tuple[str, str, str], Drive] = {
    ("events", "2_waiting", "3_done"): raise_stop,
    ("suspend", "2_raised", "3_done"): resume,
    ("killed", "1_before", "2_taken_over"): take_over,
    ("queues", "1_work_items", "2_done"): nothing,
    ("terminate", "2_pending", "3_done"): nothing,
    ("scheduled", "1_created", "2_done"): attach,
    ("events", "1_created_and_raised", "3_done"): raise_stop,
    **{
        (name, "1_created", "2_done"): nothing
        for name in (
            *("base64", "big", "catches", "chain", "counter", "eventcounter", "extended", "fails", "failuredetails"),
            *("fanout", "fanout150", "fireforget", "hello", "nothing", "parent", "retry", "retrygivesup", "shrink"),
            *("tags", "throws", "timers", "typed", "typedfails", "version"),
        )
    },
}
LOST = {"killed-1", "hold-1"}
"""Their activity was running then: its work item was invisible."""


def recorded_states(recording: Recording, moment: str) -> dict[str, dict[str, Any]]:
    url = f"http://127.0.0.1:11000/devstoreaccount1/{recording.hub.lower()}-largemessages"
    found = {}
    for row in recording.rows(moment, "Instances"):
        entity = from_state(row)
        state = decode_instance(entity, container_url=url)
        texts = {field: getattr(state, field) for field in ("input", "output")}
        for field in texts:
            blob = str(entity.properties.get(field.capitalize(), ""))
            if blob.startswith(url):
                name = blob.removeprefix(f"{url}/")
                texts[field] = recording.states[moment]["blobs"][f"{recording.hub.lower()}-largemessages"]["items"][
                    name
                ]["text"]
        found[state.instance_id] = facts(state, **texts)
    return found


def facts(state: Any, *, input: str | None, output: str | None) -> dict[str, Any]:
    failed = state.status is Status.FAILED
    return {
        "name": state.name,
        "status": state.status,
        "version": state.version,
        "input": parsed(input),
        # the type of the error is in ours: there in one of its two modes only
        "output": str(output).rpartition(": ")[2] if failed else parsed(output),
        "custom status": parsed(state.custom_status),
        "generation": state.restarts,
        "tags": state.tags or None,
    }


def events_of(recording: Recording, moment: str) -> dict[str, list[HistoryEvent]]:
    """Histories of the current generations."""
    current = {
        row["PartitionKey"]["value"]: row["ExecutionId"]["value"]
        for row in recording.rows(moment, "History")
        if row["RowKey"]["value"] == SENTINEL
    }
    found: dict[str, list[HistoryEvent]] = {key: [] for key in current}
    texts = {
        blob: item["text"]
        for container in recording.states[moment]["blobs"].values()
        for blob, item in container["items"].items()
    }
    for row in recording.rows(moment, "History"):
        key = row["PartitionKey"]["value"]
        if row["RowKey"]["value"] == SENTINEL or row["ExecutionId"]["value"] != current[key]:
            continue
        columns = dict(from_state(row).properties)
        for name in [name for name in columns if name.endswith("BlobName")]:
            columns[name.removesuffix("BlobName")] = texts[str(columns.pop(name))]
        entity = from_state(row)
        found[key].append(decode_event(type(entity)(**{**_fields(entity), "properties": columns})))
    return found


def _fields(entity: Any) -> dict[str, Any]:
    return {name: getattr(entity, name) for name in entity.__dataclass_fields__}


def told(events: Any) -> list[str]:
    """What happened, in no order: several messages may have come together."""
    found = []
    for event in events:
        if isinstance(event, OrchestratorStarted | OrchestratorCompleted):
            continue
        members = shape(event) | {"fire_at": None}
        if members["type"] in ("TaskScheduled", "SubOrchestrationInstanceCreated"):
            members["input"] = None
        if members["type"] in ("TaskFailed", "SubOrchestrationInstanceFailed"):
            members["reason"] = str(members["reason"]).rpartition(": ")[2]
        found.append(json.dumps(members, sort_keys=True, default=str))
    return sorted(found)


@pytest.mark.rows("K52", "K53", "K55")
@pytest.mark.parametrize(("name", "moment", "done"), MOMENTS, ids=lambda value: str(value))
def test_our_worker_finishes_a_recorded_moment_as_recorded(name: str, moment: str, done: str) -> None:
    recording = load(name)
    expected = recorded_states(recording, done)
    histories = events_of(recording, done)

    async def drive(world: World) -> Any:
        await MOMENTS[name, moment, done](world)
        await world.join("ours")
        for instance_id, state in expected.items():
            if instance_id not in LOST and state["status"].is_final and ":" not in instance_id:
                while await world.client.get(instance_id) is None:  # the child of a parent that does not wait for it
                    await world.clock.sleep(0.5)
                await world.wait(instance_id, limit=timedelta(days=400))
        await world.clock.sleep(60.0)
        found, events = {}, {}
        for row in (await world.client.list()).instances:
            full = await world.client.get(row.instance_id)
            assert full is not None
            found[row.instance_id] = facts(full, input=full.input, output=full.output)
            events[row.instance_id] = await world.client.instance(row.instance_id).history()
        names, store = world.client.hub.names, world.store
        tables = (names.history, names.instances)
        return found, events, [[row async for row in store.rows(table)] for table in tables]

    found, events, tables = play(recording, drive, moment=moment)
    assert set(found) == set(expected)
    for instance_id, state in expected.items():
        if instance_id not in LOST:
            assert found[instance_id] == state
            assert told(events[instance_id]) == told(histories[instance_id])
    for table, rows in zip(("History", "Instances"), tables, strict=True):
        recorded = [from_state(row) for row in recording.rows(done, table)]
        assert stored(rows) == stored(recorded), "column by column, types included"


def stored(rows: list[Entity]) -> list[str]:
    """What is in a table, without times, ids, the columns that are ours alone, and what differs on purpose.

    Generations that are over may have left rows behind. How often an instance was looked at is not told.
    """
    current = {row.partition_key: row.properties["ExecutionId"] for row in rows if row.row_key == SENTINEL}
    found, seen = [], set()
    for row in rows:
        kind = row.properties.get("EventType")
        if row.partition_key in LOST or current.get(row.partition_key) not in (None, row.properties["ExecutionId"]):
            continue
        columns = {name: same_cell(name, cell) for name, cell in same_json(theirs(row), NESTED).items()}
        del columns["RowKey"]
        if kind in ("TaskScheduled", "SubOrchestrationInstanceCreated"):
            columns.pop("Input", None)  # ours keep a small one, for the monitors
        columns.pop("Details", None)  # of an error: .NET's traces, in the one of its modes that has no FailureDetails
        text = json.dumps(columns, sort_keys=True)
        if kind not in ("OrchestratorStarted", "OrchestratorCompleted") or text not in seen:
            found.append(text)
        seen.add(text)
    return sorted(found)


def same_cell(name: str, cell: tuple[str, Any]) -> tuple[str, Any]:
    kind, value = cell
    if name in TIMES or name in ("ExecutionId", "FailureDetails"):
        return kind, "differs"
    if name == "OrchestrationInstance" and value:
        return kind, value | {"ExecutionId": "differs"}
    if name.endswith("BlobName") or "-largemessages/" in str(value):
        return kind, re.sub(r"-[0-9A-F]{8}-", "-differs-", str(value).rpartition("largemessages/")[2])
    if name in ("Result", "Output", "Input", "CustomStatus") and value not in ("null", None):
        try:
            return kind, json.loads(value)
        except ValueError:
            return kind, str(value).rpartition(": ")[2]  # an error, its type before it in one of .NET's modes only
    return kind, str(value).rpartition(": ")[2] if name == "Reason" else value


# --- what our client writes ---------------------------------------------------------------------------------------


def same_message(ours: str, recorded: str) -> None:
    """But for members of our own, which stand behind all others: .NET's readers leave them alone."""
    mine, other = message_json(ours), message_json(recorded)
    event = mine["TaskMessage"]["Event"]
    own = [name for name in event if name.startswith("TaskHub")]
    assert list(event)[len(event) - len(own) :] == own
    for name in own:
        del event[name]
    for data in (mine, other):
        assert len(data.pop("ActivityId")) == 36
        assert data["TaskMessage"]["Event"].pop("Timestamp").endswith("Z")
        del data["SequenceNumber"]
    assert list(mine) == list(other)
    assert mine == other


def message_after(recording: Recording, mark: str) -> str:
    """The message that the recorded client put when it did this."""
    at = next(index for index, call in enumerate(recording.trace) if call.get("mark") == mark)
    return next(str(call["message"]) for call in recording.trace[at:] if "message" in call)


@pytest.mark.rows("K46", "K52")
@pytest.mark.parametrize(("verb", "reason"), [("suspend", "hold on"), ("resume", "go on")])
def test_suspend_and_resume_put_the_recorded_messages(verb: str, reason: str) -> None:
    recording = load("suspend")

    async def drive(world: World) -> str:
        await getattr(world.client, verb)("susp-1", reason)
        (message,) = await world.store.peek(world.client.hub.queue_of("susp-1"))
        return message.text

    same_message(play(recording, drive, moment="1_suspended"), message_after(recording, verb))


@pytest.mark.rows("K46", "K52")
def test_a_rewind_writes_the_recorded_rows_and_the_message() -> None:
    recording = load("rewind")

    async def drive(world: World) -> Any:
        before = {row.row_key async for row in world.store.rows(recording.hub + "History")}
        await world.client.rewind("rewind-1", "try again")
        (message,) = await world.store.peek(world.client.hub.queue_of("rewind-1"))
        rows = [row async for row in world.store.rows(recording.hub + "History")]
        assert {row.row_key for row in rows} == before
        (instance,) = [row async for row in world.store.rows(recording.hub + "Instances")]
        await world.join("ours")
        state = await world.wait("rewind-1")
        return message.text, rows, instance, state, await world.client.instance("rewind-1").history()

    text, rows, instance, state, history = play(recording, drive, moment="1_failed")
    same_message(text, message_after(recording, "rewind"))
    ours = {row.row_key: row for row in rows}
    written = recording.writes("History")
    assert len(written) == 3
    for write in written:
        entity = from_write(write.columns)
        assert same_json(edm(ours[entity.row_key]), NESTED) == same_json(edm(entity), NESTED)
    untouched = {row["RowKey"]["value"]: from_state(row) for row in recording.rows("1_failed", "History")}
    for key in set(ours) - {write.columns["RowKey"] for write in written}:
        assert edm(ours[key]) == edm(untouched[key])
    before = edm(from_state(recording.rows("1_failed", "Instances")[0]))
    after = theirs(instance)
    assert {name for name in after if after[name] != before.get(name)} == {"RuntimeStatus", "LastUpdatedTime"}
    assert after["RuntimeStatus"] == ("String", "Pending")
    assert state.output == '"Hello, first!ok now"'
    assert told(history) == told(events_of(recording, "3_done")["rewind-1"])


@pytest.mark.rows("K46", "K49", "K55")
@pytest.mark.parametrize("name", ["fails", "retrygivesup", "typedfails", "throws"])
def test_what_failed_under_dotnet_is_rewound_by_us(name: str) -> None:
    """Of a retry only the last attempt is done again; an orchestrator that raises by itself raises again."""
    recording = load(name)
    (instance_id,) = recorded_states(recording, "2_done")
    ran: list[str] = []

    def mended(what: str) -> str:
        ran.append(what)
        return "fine now"

    async def main() -> Any:
        functions = {**ACTIVITIES, "Fail": mended, "FailTyped": mended}
        async with World(app, hub=recording.hub, partitions=4, functions=functions) as world:
            await load_moment(world.client.hub, recording, "2_done")
            await world.join("ours")
            await world.client.rewind(instance_id)
            state = await world.wait(instance_id)
            await world.settle()
            assert not world.defects(), world.defects()
            return state.status, state.output

    status, output = simulate(main)
    if name == "throws":
        assert (status, ran) == (Status.FAILED, [])
        assert "the orchestrator itself" in output
    else:
        assert (status, output, len(ran)) == (Status.COMPLETED, '"fine now"', 1)


@pytest.mark.rows("K30", "K46", "K54")
def test_a_purge_leaves_what_was_recorded_nothing() -> None:
    recording = load("purge")

    async def drive(world: World) -> Any:
        names = world.client.hub.names
        assert len(await world.store.list_blobs(names.large_messages)) == 6
        assert await world.client.purge("purge-1")
        rows = [[row async for row in world.store.rows(table)] for table in (names.instances, names.history)]
        return [*rows[0], *rows[1]], await world.store.list_blobs(names.large_messages)

    assert play(recording, drive, moment="1_done") == ([], [])
    assert recording.rows("2_purged", "Instances") == recording.rows("2_purged", "History") == []
