"""History rows by hand: Edm types, nulls, what .NET and older versions leave out, the sentinel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    ExecutionStarted,
    FailureDetails,
    GenericEvent,
    HistoryEvent,
    OrchestrationInstance,
    OrchestratorStarted,
    ParentInstance,
    Status,
    SubOrchestrationInstanceCreated,
    TaskCompleted,
    TaskScheduled,
    TimerCreated,
    TraceContext,
)
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hub.formats.event_fields import FieldPlace
from airflow_provider_taskhub.hub.formats.history_rows import (
    INPUT_BYTES,
    MAX_CONSUMED,
    SENTINEL,
    RecordError,
    Sentinel,
    decode_event,
    decode_sentinel,
    encode_event,
    encode_sentinel,
    row_key,
)
from airflow_provider_taskhub.hub.model import Stamp
from airflow_provider_taskhub.storage.primitives import Entity, Property
from tests.hub.formats.events import events
from tests.hub.formats.rows import edm

NOW = Timestamp.parse("2026-11-21T08:55:27.2669147Z")
LATER = Timestamp.parse("2026-11-21T08:55:28Z")
EXECUTION = "13e6618fc0cd4952a5a3e5689048fd95"


def encoded(event: HistoryEvent, *, ordinal: int = 10) -> Entity:
    return encode_event(event, instance_id="a/b", execution_id=EXECUTION, ordinal=ordinal)


def row(event_type: str, **columns: Property) -> Entity:
    properties: Mapping[str, Property | None] = {"EventType": event_type, "_Timestamp": NOW, **columns}
    return Entity(partition_key="a^0b", row_key="0000000000000000", properties=properties)


@pytest.mark.rows("K52")
def test_row_keys_are_hexadecimal_ordinals_that_sort_before_the_sentinel() -> None:
    entity = encoded(OrchestratorStarted(timestamp=NOW), ordinal=427)
    assert (entity.partition_key, entity.row_key) == ("a^0b", "00000000000001AB")
    assert row_key(0) == "0" * 16 < row_key(10) == "000000000000000A" < row_key(2**40) < SENTINEL


@pytest.mark.rows("K52")
def test_edm_types_and_nulls_of_a_start() -> None:
    start = ExecutionStarted(
        timestamp=NOW,
        instance=OrchestrationInstance(instance_id="a/b", execution_id=EXECUTION),
        name="Child",
        parent=ParentInstance(
            name="Parent",
            instance=OrchestrationInstance(instance_id="p", execution_id="e"),
            task_schedule_id=3,
        ),
        tags={"dag": "flights"},
        parent_trace_context=TraceContext(trace_parent="00-1-2-01", activity_start_time=NOW),
        scheduled_start_time=LATER,
        taskhub_message_id="m-1",
        taskhub_row_etag="only in the message",
    )
    columns = edm(encoded(start))
    assert {name: kind for name, (kind, _) in columns.items()} == {
        "PartitionKey": "String",
        "RowKey": "String",
        "OrchestrationInstance": "String",
        "ParentInstance": "String",
        "Name": "String",
        "Version": "String",
        "Tags": "String",
        "ParentTraceContext": "String",
        "ScheduledStartTime": "DateTime",
        "GenerateNewTrace": "Boolean",
        "EventId": "Int32",
        "IsPlayed": "Boolean",
        "_Timestamp": "DateTime",
        "EventType": "String",
        "ExecutionId": "String",
        "TaskHubMessageId": "String",
    }
    assert columns["ParentInstance"][1] == (
        '{"Name":"Parent","OrchestrationInstance":{"InstanceId":"p","ExecutionId":"e"},"TaskScheduleId":3,"Version":""}'
    )
    assert columns["Tags"][1] == '{"dag":"flights"}'
    assert columns["ParentTraceContext"][1] == (
        '{"TraceParent":"00-1-2-01","TraceState":null,"Id":null,"SpanId":null,'
        '"ActivityStartTime":"2026-11-21T08:55:27.2669147+00:00"}'
    )
    assert columns["_Timestamp"][1] == "2026-11-21T08:55:27.2669147Z"
    bare = edm(encoded(replace(start, parent=None, tags=None, parent_trace_context=None)))
    assert {bare[name][1] for name in ("ParentInstance", "Tags", "ParentTraceContext")} == {"null"}


@pytest.mark.rows("K52")
def test_a_failure_is_plain_json_and_a_status_its_name() -> None:
    failure = FailureDetails(
        error_type="E", error_message="m", inner_failure=FailureDetails(error_type="I", error_message="i")
    )
    columns = edm(encoded(ExecutionCompleted(timestamp=NOW, event_id=4, status=Status.FAILED, failure=failure)))
    assert columns["OrchestrationStatus"] == ("String", "Failed")
    assert "$type" not in columns["FailureDetails"][1]
    assert json.loads(columns["FailureDetails"][1])["InnerFailure"]["ErrorType"] == "I"
    assert "Result" not in columns


@pytest.mark.rows("K52", "K56")
@pytest.mark.parametrize("length", [0, INPUT_BYTES, INPUT_BYTES + 1])
def test_scheduling_rows_keep_an_input_of_up_to_1_kib(length: int) -> None:
    """For the monitors; the message has it in any case."""
    scheduled = TaskScheduled(timestamp=NOW, event_id=0, name="a", input="x" * length, taskhub_action_id="id")
    child = SubOrchestrationInstanceCreated(timestamp=NOW, event_id=0, name="a", instance_id="i", input="x" * length)
    for event in (scheduled, child):
        columns = encoded(event).properties
        assert columns.get("Input") == (None if length > INPUT_BYTES else "x" * length)
    assert encoded(scheduled).properties["TaskHubActionId"] == "id"
    assert encoded(TaskCompleted(timestamp=NOW, task_scheduled_id=0, result="x" * 5000)).properties["Result"]


def test_an_inputs_bytes_are_counted_not_its_characters() -> None:
    wide = TaskScheduled(timestamp=NOW, event_id=0, name="a", input="é" * (INPUT_BYTES // 2 + 1))
    assert "Input" not in encoded(wide).properties


@pytest.mark.rows("K53")
def test_rows_without_what_newer_versions_write() -> None:
    """Missing columns are defaults; a start without its instance is this row's own."""
    start = decode_event(row("ExecutionStarted", Name="Hello", ExecutionId=EXECUTION))
    assert start == ExecutionStarted(
        timestamp=NOW,
        instance=OrchestrationInstance(instance_id="a/b", execution_id=EXECUTION),
        name="Hello",
        version=None,
    )
    scheduled = decode_event(row("TaskScheduled", Name="SayHello", EventId=0))
    assert scheduled == TaskScheduled(timestamp=NOW, event_id=0, name="SayHello", version=None)


@pytest.mark.rows("K53")
def test_columns_that_we_do_not_know_are_passed_over() -> None:
    assert decode_event(row("OrchestratorStarted", Later="x", EventId=-1)) == OrchestratorStarted(timestamp=NOW)


@pytest.mark.rows("K53")
def test_objects_that_a_load_without_payloads_leaves_empty() -> None:
    completed = decode_event(row("ExecutionCompleted", OrchestrationStatus="Failed", FailureDetails="", Result=""))
    assert completed == ExecutionCompleted(timestamp=NOW, status=Status.FAILED, result="")


@pytest.mark.parametrize(
    ("entity", "reason"),
    [
        (row("ExecutionPaused"), "EventType is 'ExecutionPaused', which no version writes"),
        (row("HistoryState"), "a HistoryState is never stored"),
        (Entity(partition_key="a^0b", row_key="0000000000000000", properties={}), "EventType is None"),
        (row("TaskScheduled"), "it has no Name"),
        (row("TaskCompleted", TaskScheduledId="0"), "TaskScheduledId is '0', not a 32-bit integer"),
        (row("TimerCreated", FireAt=5), "FireAt is 5, not an ISO 8601 time"),
        (row("ExecutionStarted", Name="n", Tags="{"), "Tags is not JSON"),
        (row("ExecutionStarted", Name="n", Tags="[]"), r"Tags is \[\], not an object of texts"),
        (row("ExecutionStarted", Name="n", Tags=5), "Tags is 5, not JSON"),
        (
            row("ExecutionCompleted", OrchestrationStatus="Paused"),
            "OrchestrationStatus is 'Paused', not one of Running",
        ),
    ],
)
def test_a_row_that_cannot_be_decoded_is_named(entity: Entity, reason: str) -> None:
    with pytest.raises(RecordError, match=rf"history row 0000000000000000 of 'a\^0b': {reason}"):
        decode_event(entity)


@pytest.mark.rows("K53")
def test_a_time_written_as_text_is_read() -> None:
    entity = row("TimerCreated", EventId=1, FireAt="2026-11-21T08:55:28Z")
    assert decode_event(entity) == TimerCreated(timestamp=NOW, event_id=1, fire_at=LATER)


@pytest.mark.rows("K53")
def test_a_rewound_row_keeps_every_column() -> None:
    entity = row(
        "GenericEvent",
        EventId=1,
        IsPlayed=True,
        ExecutionId=EXECUTION,
        Reason="Rewound: TaskFailed",
        Name="n",
        TaskScheduledId=1,
        FailureDetails='{"ErrorType":"E"}',
        FireAt=LATER,
        Details="",
    )
    event = decode_event(entity)
    assert isinstance(event, GenericEvent)
    assert (event.reason, event.name, event.data) == ("Rewound: TaskFailed", "n", None)
    assert event.original == {
        "TaskScheduledId": 1,
        "FailureDetails": '{"ErrorType":"E"}',
        "FireAt": LATER,
        "Details": "",
    }
    again = encode_event(event, instance_id="a/b", execution_id=EXECUTION, ordinal=0)
    assert edm(again) == edm(entity)


@pytest.mark.rows("K46", "K53")
def test_the_row_of_a_child_that_was_rewound_keeps_its_reason() -> None:
    """A rewind marks that row and leaves it what it is."""
    entity = row(
        "SubOrchestrationInstanceCreated",
        EventId=1,
        IsPlayed=False,
        ExecutionId=EXECUTION,
        Name="Child",
        Version="",
        InstanceId="child",
        Tags="null",
        Reason="Rewound: SubOrchestrationInstanceCreated",
    )
    event = decode_event(entity)
    assert isinstance(event, SubOrchestrationInstanceCreated)
    assert event.reason == "Rewound: SubOrchestrationInstanceCreated"
    again = encode_event(event, instance_id="a/b", execution_id=EXECUTION, ordinal=0)
    assert edm(again) == edm(entity)


@pytest.mark.rows("K52", "K53")
@given(events(FieldPlace.ROW), st.integers(0, 2**40))
def test_every_event_comes_back_as_it_went(event: HistoryEvent, ordinal: int) -> None:
    assert decode_event(encoded(event, ordinal=ordinal)) == event


# --- the sentinel -------------------------------------------------------------------------------------------------

OURS = Sentinel(
    execution_id=EXECUTION,
    complete=True,
    checkpoint_completed=NOW,
    commit_id="c-1",
    committed_rows=8,
    consumed=("m-1", "m-2"),
)


def merged(before: Entity, after: Entity) -> Entity:
    """What a table makes of a merge."""
    columns = {**before.properties, **{name: value for name, value in after.properties.items() if value is not None}}
    return replace(before, properties=columns)


def of_dotnet(*, complete: bool, completed: Timestamp | None = None, execution_id: str = EXECUTION) -> Entity:
    """What a .NET worker merges into a sentinel."""
    columns: dict[str, Property | None] = {"ExecutionId": execution_id, "IsCheckpointComplete": complete}
    if complete:
        columns["CheckpointCompletedTimestamp"] = completed
    return Entity(partition_key="a", row_key=SENTINEL, properties=columns)


@pytest.mark.rows("K16", "K52")
def test_the_last_events_of_the_senders_are_kept_in_their_order_and_what_is_damaged_is_forgotten() -> None:
    arrived = {"b1": 7, "a0": 2**40}
    entity = encode_sentinel(replace(OURS, arrived=arrived), instance_id="a")
    assert entity.properties["TaskHubArrived"] == f"b1:7,a0:{2**40}"
    assert list(decode_sentinel(entity).arrived.items()) == list(arrived.items())
    kept = merged(entity, encode_sentinel(OURS, instance_id="a"))
    assert decode_sentinel(kept).arrived == arrived, "a write that names none keeps them"
    for damaged, known in (("b1:7,x", {"b1": 7}), ("b1", {}), ("", {}), (5, {})):
        broken = merged(entity, Entity(partition_key="a", row_key=SENTINEL, properties={"TaskHubArrived": damaged}))
        assert decode_sentinel(broken).arrived == known


@pytest.mark.rows("K52")
def test_a_sentinel_of_ours_there_and_back() -> None:
    entity = encode_sentinel(OURS, instance_id="a/b")
    assert (entity.partition_key, entity.row_key) == ("a^0b", "sentinel")
    assert {name: kind for name, (kind, _) in edm(entity).items()} == {
        "PartitionKey": "String",
        "RowKey": "String",
        "ExecutionId": "String",
        "IsCheckpointComplete": "Boolean",
        "CheckpointCompletedTimestamp": "DateTime",
        "TaskHubCommit": "String",
        "TaskHubBasis": "String",
        "TaskHubRows": "Int32",
        "TaskHubConsumed": "String",
    }
    read = decode_sentinel(replace(entity, etag="e", timestamp=LATER))
    assert read == replace(OURS, etag="e", timestamp=LATER)


@pytest.mark.rows("K28")
def test_a_half_commit_of_ours_counts_only_what_was_committed_before() -> None:
    first = encode_sentinel(OURS, instance_id="a")
    half = replace(OURS, complete=False, commit_id="c-2", committed_rows=8, consumed=())
    read = decode_sentinel(merged(first, encode_sentinel(half, instance_id="a")))
    assert read == half
    assert read.committed(107) == 8
    assert decode_sentinel(first).committed(107) == 8, "whether it is complete or not"


@pytest.mark.rows("K28")
def test_a_half_commit_that_is_the_first_of_all_counts_nothing() -> None:
    half = replace(OURS, complete=False, checkpoint_completed=None, committed_rows=0, consumed=())
    read = decode_sentinel(encode_sentinel(half, instance_id="a"))
    assert "CheckpointCompletedTimestamp" not in encode_sentinel(half, instance_id="a").properties
    assert (read, read.committed(99)) == (half, 0)


@pytest.mark.rows("K28", "K55")
def test_what_dotnet_committed_on_top_of_ours_counts() -> None:
    """Its merges leave our columns as they were, and they no longer say anything."""
    ours = encode_sentinel(OURS, instance_id="a")
    theirs = merged(ours, of_dotnet(complete=True, completed=LATER))
    half = merged(theirs, of_dotnet(complete=False))
    switched = merged(ours, of_dotnet(complete=False, execution_id="another"))
    for entity in (theirs, half, switched):
        read = decode_sentinel(entity)
        assert (read.commit_id, read.committed_rows, read.consumed) == (None, None, ())
        assert read.committed(107) == 107


@pytest.mark.rows("K28", "K55")
def test_a_half_commit_of_ours_on_top_of_dotnets_is_known() -> None:
    theirs = of_dotnet(complete=True, completed=LATER)
    half = replace(OURS, complete=False, checkpoint_completed=LATER, committed_rows=12, consumed=())
    assert decode_sentinel(merged(theirs, encode_sentinel(half, instance_id="a"))).committed(111) == 12


@pytest.mark.rows("K46", "K55")
def test_the_newest_suspension_or_resume_stays_until_a_newer_one_is_stored() -> None:
    stamped = replace(OURS, suspension_stamp=Stamp(inserted=NOW, process="0123456789abcdef", number=12))
    first = encode_sentinel(stamped, instance_id="a")
    assert decode_sentinel(first) == stamped
    later = replace(OURS, checkpoint_completed=LATER, commit_id="c-2")
    assert (
        decode_sentinel(merged(first, encode_sentinel(later, instance_id="a"))).suspension_stamp
        == stamped.suspension_stamp
    )
    damaged = merged(first, Entity(partition_key="a", row_key=SENTINEL, properties={"TaskHubSteered": "soon"}))
    assert decode_sentinel(damaged).suspension_stamp is None


def test_consumed_ids_are_forgotten_by_the_next_commit() -> None:
    first = encode_sentinel(OURS, instance_id="a")
    later = replace(OURS, checkpoint_completed=LATER, commit_id="c-2", consumed=())
    assert decode_sentinel(merged(first, encode_sentinel(later, instance_id="a"))) == later


def test_as_many_consumed_ids_as_a_column_holds() -> None:
    ids = tuple(f"56495726-e332-41b4-a005-{number:012x}" for number in range(MAX_CONSUMED))
    entity = encode_sentinel(replace(OURS, consumed=ids), instance_id="a")
    column = entity.properties["TaskHubConsumed"]
    assert isinstance(column, str)
    assert len(column) * 2 <= 65_536
    assert decode_sentinel(entity).consumed == ids
    with pytest.raises(InputError, match="801 messages consumed across a generation switch: at most 800"):
        encode_sentinel(replace(OURS, consumed=(*ids, "more")), instance_id="a")


@pytest.mark.parametrize(
    "columns", [{}, {"ExecutionId": 5}, {"ExecutionId": "e", "CheckpointCompletedTimestamp": "today"}]
)
def test_a_sentinel_that_is_none_is_named(columns: Mapping[str, Property]) -> None:
    with pytest.raises(RecordError, match="sentinel of 'a'"):
        decode_sentinel(Entity(partition_key="a", row_key=SENTINEL, properties=columns))
