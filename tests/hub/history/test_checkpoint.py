"""The checkpoint as a value: order, batches, half commits, switches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_taskhub.codec import Packed
from airflow_provider_taskhub.engine.episode import Episode
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionCompleted,
    ExecutionSuspended,
    HistoryEvent,
    OrchestrationInstance,
    OrchestratorCompleted,
    OrchestratorStarted,
    Status,
)
from airflow_provider_taskhub.engine.pending_waits import AwaitedEvent, Awaits
from airflow_provider_taskhub.hub.formats import unwritten_rows
from airflow_provider_taskhub.hub.formats.history_rows import MAX_CONSUMED, row_key
from airflow_provider_taskhub.hub.history.checkpoint import (
    CheckpointPlan,
    Processed,
    Stored,
    Written,
    after,
    build,
    is_visible_to_sensors,
    rest,
    visible,
    written,
)
from airflow_provider_taskhub.hub.model import Stamp
from airflow_provider_taskhub.storage.primitives import (
    DeleteBlob,
    DeleteMessage,
    EtagOf,
    PutBlob,
    PutMessage,
    RowVerb,
    Step,
    Transact,
)
from airflow_provider_taskhub.tags import WATCH_TAG
from tests.hub.by_hand import GEN0, NAMES, NOW, held, raised, start

INSTANCE = OrchestrationInstance(instance_id="i", execution_id=GEN0)
HINTS = (Transact(table="UnitCompletions", rows=()),)
PUTS = (PutMessage(queue="unit-workitems", text="{}"),)
BLOBS = (PutBlob(container="unit-largemessages", name="i/m", data=b"x"),)
BATCH = (held(raised()), held(raised()))
NO_ROWS = Written(rows=(), blobs=())
PROCESSED = Processed(
    deletes=tuple(DeleteMessage(queue="unit-control-00", message=held, quiet=True) for held in BATCH),
    message_ids=("m1", "m2"),
)


def history(rows: int, *more: HistoryEvent) -> tuple[HistoryEvent, ...]:
    events = [EventRaised(timestamp=NOW, name="go", input=str(number)) for number in range(rows - 2 - len(more))]
    return (OrchestratorStarted(timestamp=NOW), *events, *more, OrchestratorCompleted(timestamp=NOW))


def episode(events: tuple[HistoryEvent, ...] = history(4), **fields: Any) -> Episode:
    plain = Episode(
        loaded=INSTANCE,
        current=INSTANCE,
        switched=False,
        history=events,
        first_ordinal=0,
        outbound=(),
        number=1,
        status=Status.RUNNING,
        custom_status=None,
    )
    return replace(plain, **fields)


def plan(made: Episode, stored: Stored = Stored(), **fields: Any) -> CheckpointPlan:  # noqa: B008  # frozen
    given: dict[str, Any] = {
        "names": NAMES,
        "puts": PUTS,
        "blobs": BLOBS,
        "processed": PROCESSED,
        "commit_id": "c1",
        "now": NOW,
        "container_url": "https://here/unit-largemessages",
        "tags": {},
        "write_instance": True,
        "check": lambda: None,
    }
    return build(made, written(made, NAMES, commit_id="c1"), stored, **(given | fields))


def steps(made: CheckpointPlan) -> dict[str, Step]:
    return {step.name: step for step in made.unit.steps}


def transacts(made: CheckpointPlan) -> list[Transact]:
    found = [operation for step in made.unit.steps if step.name.startswith("history") for operation in step.operations]
    assert all(isinstance(operation, Transact) for operation in found)
    return found  # type: ignore[return-value]


@pytest.mark.rows("K25")
def test_the_order_is_always_the_same() -> None:
    ended = episode(
        completed=ExecutionCompleted(timestamp=NOW, event_id=0, status=Status.COMPLETED), status=Status.COMPLETED
    )
    made = plan(ended, tags={WATCH_TAG: "1"})
    names = [step.name for step in made.unit.steps if step.operations]
    assert names == ["payloads", "outbound", "history", "instance", "completion", "delete"]
    assert (made.outbound, made.history, made.instance) == (1, 2, 3)
    deletes = steps(made)["delete"].operations
    assert [operation.message for operation in deletes if isinstance(operation, DeleteMessage)] == list(BATCH)
    assert all(isinstance(operation, DeleteMessage) and operation.quiet for operation in deletes)


@pytest.mark.rows("K25")
def test_only_a_watched_instance_that_ends_leaves_a_hint() -> None:
    ended = episode(completed=ExecutionCompleted(timestamp=NOW, event_id=0, status=Status.COMPLETED))
    assert steps(plan(ended))["completion"].operations == ()
    assert steps(plan(episode(), tags={WATCH_TAG: "1"}))["completion"].operations == ()


def test_the_first_commit_inserts_the_sentinel_and_the_next_names_its_etag() -> None:
    (first,) = transacts(plan(episode()))
    assert (first.rows[-1].verb, first.rows[-1].etag) == (RowVerb.INSERT, None)
    (second,) = transacts(plan(episode(), Stored(sentinel_etag="e1", rows=4)))
    assert (second.rows[-1].verb, second.rows[-1].etag) == (RowVerb.MERGE, "e1")
    assert second.rows[-1].entity.properties["TaskHubRows"] == 8
    assert second.rows[-1].entity.properties["TaskHubCommit"] == "c1"


@pytest.mark.rows("K28")
@pytest.mark.parametrize(("rows", "groups"), [(99, 1), (100, 2), (198, 2), (199, 3), (10_000, 102)])
def test_long_histories_go_in_transactions_chained_by_the_sentinel(rows: int, groups: int) -> None:
    made = plan(episode(history(rows)), Stored(sentinel_etag="e1", rows=7))
    found = transacts(made)
    assert len(found) == groups
    assert all(len(group.rows) <= 100 for group in found)
    assert sum(len(group.rows) - 1 for group in found) == rows
    assert found[0].rows[-1].etag == "e1"
    for index, group in enumerate(found):
        columns = group.rows[-1].entity.properties
        last = index == len(found) - 1
        assert columns["IsCheckpointComplete"] is last
        assert columns["TaskHubRows"] == (7 + rows if last else 7), "an unfinished commit counts for nothing"
        if index:
            assert group.rows[-1].etag == EtagOf(step=1 + index, row=len(found[index - 1].rows) - 1)
    assert made.history == 1 + groups


@pytest.mark.rows("K28")
def test_what_a_half_commit_left_is_removed_first_unless_it_is_overwritten() -> None:
    made = transacts(
        plan(episode(history(4), first_ordinal=6), Stored(sentinel_etag="e1", rows=6, uncommitted_rows=150))
    )
    deleted = [row.entity.row_key for group in made for row in group.rows if row.verb is RowVerb.DELETE]
    assert deleted == [row_key(ordinal) for ordinal in range(10, 156)]
    written = [row for group in made for row in group.rows if row.verb is RowVerb.UPSERT_REPLACE]
    assert len(written) == 4
    assert made[-1].rows[-1].entity.properties["IsCheckpointComplete"] is True
    assert all(group.rows[-1].entity.properties["IsCheckpointComplete"] is False for group in made[:-1])


def test_rows_are_said_to_be_absent_unless_something_may_stand_in_their_place() -> None:
    def absent(made: Episode, stored: Stored) -> set[bool]:
        return {row.absent for group in transacts(plan(made, stored)) for row in group.rows[:-1]}

    known = Stored(sentinel_etag="e1", rows=6)
    assert absent(episode(), Stored()) == absent(episode(), known) == {True}
    assert absent(episode(), replace(known, uncommitted_rows=1)) == {False}
    assert absent(episode(switched=True), known) == {False}
    common: dict[str, Any] = {
        "sentinel_etag": "e2",
        "completed": NOW,
        "consumed": (),
        "row_etag": None,
        "now": 9.0,
    }
    assert absent(episode(), after(known, episode(), NO_ROWS, **common)) == {True}
    switched = after(known, episode(switched=True), NO_ROWS, **common)
    assert absent(episode(), switched) == absent(episode(), after(switched, episode(), NO_ROWS, **common)) == {False}


@pytest.mark.rows("K28", "K47")
def test_a_switch_counts_from_its_first_transaction_on() -> None:
    """The generation before is gone with it; the rest is made again (``Execution.resume``)."""
    stored = Stored(sentinel_etag="e1", rows=40)
    made = transacts(plan(episode(history(150), switched=True), stored))
    assert [group.rows[-1].entity.properties["TaskHubRows"] for group in made] == [99, 150]
    assert [group.rows[-1].entity.properties["TaskHubConsumed"] for group in made] == ["m1,m2", "m1,m2"]


@pytest.mark.rows("K28", "K46")
@pytest.mark.parametrize("switched", [False, True])
def test_the_newest_suspension_or_resume_is_stored_with_the_event_that_it_was(switched: bool) -> None:
    """In front of that it would make the message stale which brings the event again."""
    stored = Stored(sentinel_etag="e1", rows=40, suspension_stamp=Stamp(inserted=NOW, process="ab", number=3))
    made = transacts(plan(episode(history(150), switched=switched), stored))
    found = [group.rows[-1].entity.properties.get("TaskHubSteered") for group in made]
    text = f"{NOW.ticks}/ab/3"
    assert found == [text if switched else None, text]
    none = transacts(plan(episode(), Stored(sentinel_etag="e1", rows=40)))
    assert "TaskHubSteered" not in none[0].rows[-1].entity.properties, "a merge leaves it as it was"


@pytest.mark.rows("K25", "K47")
def test_the_blobs_of_a_generation_go_once_nothing_names_them() -> None:
    stored = Stored(sentinel_etag="e1", row_etag="r1", blobs=("one/a", "one/b"))
    large = replace(start(), input="x" * 40_000)
    switch = episode(history(4, large), switched=True)
    made = plan(switch, stored)
    names = [step.name for step in made.unit.steps if step.operations]
    assert names == ["payloads", "outbound", "history", "instance", "blobs", "delete"]
    gone = tuple(DeleteBlob(container=NAMES.large_messages, name=name) for name in stored.blobs)
    assert steps(made)["blobs"].operations == gone
    assert steps(plan(episode(), stored))["blobs"].operations == (), "the generation goes on"
    common: dict[str, Any] = {"names": NAMES, "processed": PROCESSED, "now": NOW, "container_url": "https://here/x"}
    rows = written(switch, NAMES, commit_id="c1")
    (spilled,) = [blob.name for blob in rows.blobs]
    again = rest(switch, rows, stored, tags={}, check=lambda: None, **common).steps
    assert [step.name for step in again if step.operations] == ["instance", "blobs", "delete"], "its payload stands"
    (row,) = again[1].operations
    assert isinstance(row, Transact)
    assert row.rows[0].entity.properties["Input"] == f"https://here/x/{spilled}"
    assert spilled.endswith("-Input.json.gz")
    kept: dict[str, Any] = {"sentinel_etag": "e2", "completed": NOW, "consumed": (), "row_etag": None, "now": 9.0}
    assert after(stored, switch, rows, **kept).blobs == (spilled,)
    assert after(stored, episode(), rows, **kept).blobs == (*stored.blobs, spilled)
    assert after(stored, switch, NO_ROWS, **kept).blobs == ()
    assert after(stored, episode(), NO_ROWS, **kept).blobs == stored.blobs


@pytest.mark.rows("K28", "K47")
def test_a_switch_of_several_transactions_stores_its_later_rows_in_a_blob_first() -> None:
    stored = Stored(sentinel_etag="e1", row_etag="r1")
    made = plan(episode(history(250), switched=True), stored)
    (blob,) = [one for one in steps(made)["payloads"].operations if isinstance(one, PutBlob) and one not in BLOBS]
    assert isinstance(blob.data, Packed)
    groups = transacts(made)
    assert [group.rows[-1].entity.properties["TaskHubUnwritten"] for group in groups] == [blob.name] * 3
    kept = unwritten_rows.decode(blob.data.text, "i")
    assert list(kept.rows) == [row.entity for group in groups[1:] for row in group.rows[:-1]]
    assert kept.awaits == groups[-1].rows[-1].entity.properties["TaskHubAwaits"]
    assert steps(made)["blobs"].operations == (DeleteBlob(container=NAMES.large_messages, name=blob.name),)
    for other in (episode(history(250)), episode(history(99), switched=True)):
        sentinels = [group.rows[-1].entity.properties for group in transacts(plan(other, stored))]
        assert all("TaskHubUnwritten" not in sentinel for sentinel in sentinels), "its rows are not overwritten"


@pytest.mark.rows("K30")
def test_the_next_checkpoint_deletes_the_blob_of_a_switch_that_was_cut_off_before_it_could() -> None:
    stored = Stored(sentinel_etag="e1", row_etag="r1", unwritten="i/history-c0-Unwritten.json.gz")
    deletion = DeleteBlob(container=NAMES.large_messages, name="i/history-c0-Unwritten.json.gz")
    assert steps(plan(episode(), stored))["blobs"].operations == (deletion,)


@pytest.mark.rows("K27")
def test_what_switches_consumed_is_remembered_by_later_commits_up_to_a_bound() -> None:
    stored = Stored(sentinel_etag="e1", consumed=("old",))
    assert plan(episode(switched=True), stored).consumed == ("old", "m1", "m2")
    assert plan(episode(), stored).consumed == ("old",), "a plain commit adds none: its rows keep the ids"
    many = Stored(sentinel_etag="e1", consumed=tuple(str(number) for number in range(MAX_CONSUMED)))
    kept = plan(episode(switched=True), many).consumed
    assert (len(kept), kept[-2:], kept[0]) == (MAX_CONSUMED, ("m1", "m2"), "2")


def test_the_instance_row_is_merged_under_the_etag_that_the_session_holds() -> None:
    for etag, verb in ((None, RowVerb.INSERT), ("r1", RowVerb.MERGE)):
        (operation,) = steps(plan(episode(), Stored(row_etag=etag)))["instance"].operations
        assert isinstance(operation, Transact)
        assert (operation.rows[0].verb, operation.rows[0].etag) == (verb, etag)
    made = plan(episode(), write_instance=False)
    assert (made.instance, "instance" in steps(made)) == (None, False)


@pytest.mark.rows("K25")
@pytest.mark.parametrize(
    ("fields", "stored", "expected"),
    [
        ({}, {}, False),
        ({"history": history(4, start())}, {}, True),
        ({"completed": ExecutionCompleted(timestamp=NOW, event_id=0, status=Status.COMPLETED)}, {}, True),
        ({"history": history(4, ExecutionSuspended(timestamp=NOW, reason="hold"))}, {}, True),
        ({"status": Status.SUSPENDED}, {}, True),
        ({"custom_status": "1"}, {}, True),
        ({"custom_status": "1"}, {"custom_status": "1"}, False),
        ({}, {"custom_status": "1"}, True),
        ({}, {"merged": 90.1}, False),
        ({}, {"merged": 90.0}, True),
    ],
)
def test_the_row_is_written_when_a_reader_can_see_a_difference(fields: Any, stored: Any, expected: bool) -> None:
    known = Stored(**({"status": Status.RUNNING, "merged": 99.0} | stored))
    assert visible(episode(**fields), known, now=100.0) is expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"history": history(4, start())}, True),
        ({"completed": ExecutionCompleted(timestamp=NOW, event_id=0, status=Status.COMPLETED)}, True),
        ({"status": Status.SUSPENDED}, True),
        ({"custom_status": "2"}, True),
        ({"custom_status": None}, True),
        ({"awaits": Awaits(activities=("work",))}, False),
        ({"awaits": Awaits(events=(AwaitedEvent(name="go", since=NOW),))}, True),
    ],
)
def test_what_a_sensor_can_see_leaves_change_hints(fields: Any, expected: bool) -> None:
    known = Stored(status=Status.RUNNING, custom_status="1")
    assert is_visible_to_sensors(episode(**({"custom_status": "1"} | fields)), known) is expected


def test_change_hints_follow_the_instance_row_and_come_before_the_deletions() -> None:
    made = plan(episode(), change_hints=HINTS)
    assert [step.name for step in made.unit.steps if step.operations][-3:] == ["instance", "completion", "delete"]
    assert steps(made)["completion"].operations == HINTS


def test_what_is_stored_afterwards() -> None:
    stored = Stored(sentinel_etag="e1", rows=10, uncommitted_rows=5, row_etag="r1", custom_status="old", merged=1.0)
    common: dict[str, Any] = {"sentinel_etag": "e2", "completed": NOW, "consumed": ("x",), "now": 9.0}
    kept = after(stored, episode(custom_status="new"), NO_ROWS, row_etag=None, **common)
    assert (kept.sentinel_etag, kept.rows, kept.uncommitted_rows, kept.consumed) == ("e2", 14, 0, ("x",))
    assert (kept.row_etag, kept.custom_status, kept.merged) == ("r1", "old", 1.0), "the row was not written"
    merged = after(stored, episode(custom_status="new", switched=True), NO_ROWS, row_etag="r2", **common)
    assert (merged.rows, merged.row_etag, merged.custom_status, merged.merged) == (4, "r2", "new", 9.0)


@pytest.mark.rows("K29")
def test_the_rest_of_a_committed_checkpoint_is_row_hint_and_deletes() -> None:
    made = episode(history(4, start()))
    unit = rest(
        made,
        written(made, NAMES, commit_id="c1"),
        Stored(row_etag="r9"),
        names=NAMES,
        processed=PROCESSED,
        now=NOW,
        container_url="https://here/unit-largemessages",
        tags={},
        check=lambda: None,
    )
    assert [step.name for step in unit.steps] == ["payloads", "instance", "blobs", "completion", "delete"]
