"""Instance rows by hand: large and URL-like texts, failures, repair, what a listing must survive."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskhub.codec import Timestamp, decompress
from airflow_provider_taskhub.engine.episode import Episode
from airflow_provider_taskhub.engine.events import (
    EventSent,
    ExecutionCompleted,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    FailureDetails,
    GenericEvent,
    HistoryEvent,
    OrchestrationInstance,
    OrchestratorCompleted,
    OrchestratorStarted,
    Status,
    TaskCompleted,
)
from airflow_provider_taskhub.hub.formats.history_rows import encode_event
from airflow_provider_taskhub.hub.formats.instance_rows import (
    CANCELS,
    FAILURE,
    created_row,
    decode_instance,
    fill,
    inline_text,
    large_texts,
    merge_row,
    merged,
    repair_row,
    suspension_row,
)
from airflow_provider_taskhub.hub.formats.keys import escape, owns
from airflow_provider_taskhub.hub.formats.large_texts import address_of, blob_at, text_of_blob
from airflow_provider_taskhub.hub.formats.message_envelope import Envelope, TaskMessage, spill
from airflow_provider_taskhub.hub.formats.payload_spill import spill_columns
from airflow_provider_taskhub.hub.history.queries import matches, query_filter
from airflow_provider_taskhub.hub.model import Cancel, HubNames, InstanceState
from airflow_provider_taskhub.storage.primitives import And, Compare, Entity, Filter, Or, Property, PutBlob
from tests.hub.formats.events import failures
from tests.hub.formats.rows import edm

NOW = Timestamp.parse("2026-11-21T08:55:27.2669147Z")
LATER = Timestamp.parse("2026-11-21T08:55:28Z")
NAMES = HubNames("Flights")
URL = "https://account.blob.core.windows.net/flights-largemessages"
EXECUTION = "13e6618fc0cd4952a5a3e5689048fd95"
START = ExecutionStarted(
    timestamp=NOW, instance=OrchestrationInstance(instance_id="a/b", execution_id=EXECUTION), name="Hello", generation=0
)


def merge(
    *events: HistoryEvent, status: str | None = None, spilled: tuple[PutBlob, ...] = ()
) -> tuple[Entity, tuple[PutBlob, ...]]:
    return merged(
        events,
        instance_id="a/b",
        execution_id=EXECUTION,
        custom_status=status,
        names=NAMES,
        now=LATER,
        container_url=URL,
        history_blobs=spilled,
    )


def create(start: ExecutionStarted, message_blob: PutBlob | None = None) -> tuple[Entity, tuple[PutBlob, ...]]:
    return created_row(start, names=NAMES, now=LATER, container_url=URL, message_blob=message_blob)


def stored(*merges: Entity) -> Entity:
    """The row after these merges."""
    columns: dict[str, Property | None] = {}
    for entity in merges:
        columns |= {name: value for name, value in entity.properties.items() if value is not None}
    return replace(merges[0], properties=columns)


def read(entity: Entity, blobs: tuple[PutBlob, ...] = ()) -> InstanceState:
    """As a reader with payloads sees it."""
    texts = {blob.name: decompress(blob.body) for blob in blobs}
    state = decode_instance(entity, container_url=URL)
    found: dict[str, str | None] = {}
    for field, name in large_texts(entity, container_url=URL).items():
        found[field] = text_of_blob(name, texts[name]) if name in texts else inline_text(entity, field)
    return fill(state, found)


def done(
    result: str | None = '"ok"', status: Status = Status.COMPLETED, failure: FailureDetails | None = None
) -> ExecutionCompleted:
    return ExecutionCompleted(timestamp=LATER, event_id=1, status=status, result=result, failure=failure)


# --- columns ------------------------------------------------------------------------------------------------------


@pytest.mark.rows("K52")
def test_the_row_of_a_new_instance_is_written_and_read_back() -> None:
    start = replace(START, input='"x"', tags={"dag": "flights"}, scheduled_start_time=LATER, version="3")
    entity, blobs = create(start)
    assert blobs == ()
    assert edm(entity) == {
        "PartitionKey": ("String", "a^0b"),
        "RowKey": ("String", ""),
        "Name": ("String", "Hello"),
        "Version": ("String", "3"),
        "Input": ("String", '"x"'),
        "ExecutionId": ("String", EXECUTION),
        "RuntimeStatus": ("String", "Pending"),
        "CreatedTime": ("DateTime", "2026-11-21T08:55:27.2669147Z"),
        "LastUpdatedTime": ("DateTime", "2026-11-21T08:55:28.0000000Z"),
        "ScheduledStartTime": ("DateTime", "2026-11-21T08:55:28.0000000Z"),
        "Generation": ("Int32", 0),
        "Tags": ("String", '{"dag":"flights"}'),
        "TaskHubName": ("String", "Flights"),
    }
    assert decode_instance(replace(entity, etag="e"), container_url=URL) == InstanceState(
        instance_id="a/b",
        execution_id=EXECUTION,
        name="Hello",
        status=Status.PENDING,
        version="3",
        input='"x"',
        created=NOW,
        updated=LATER,
        scheduled_start=LATER,
        restarts=0,
        tags={"dag": "flights"},
        etag="e",
    )


@pytest.mark.rows("K52")
def test_only_a_start_an_end_suspend_and_resume_write_the_status() -> None:
    def status(*events: HistoryEvent) -> object:
        return merge(*events)[0].properties.get("RuntimeStatus")

    bookkeeping = (OrchestratorStarted(timestamp=NOW), TaskCompleted(timestamp=NOW, task_scheduled_id=0))
    assert status(*bookkeeping) is None
    assert status(START) == "Running"
    assert status(START, done()) == "Completed"
    assert status(ExecutionSuspended(timestamp=NOW)) == "Suspended"
    assert status(ExecutionSuspended(timestamp=NOW), ExecutionResumed(timestamp=NOW)) == "Running"
    assert status(ExecutionTerminated(timestamp=NOW)) == "Terminated"
    assert status(done(status=Status.FAILED)) == "Failed"


def test_the_last_event_gives_the_time_of_the_update() -> None:
    entity, _ = merge(OrchestratorStarted(timestamp=NOW), OrchestratorCompleted(timestamp=LATER))
    assert entity.properties["LastUpdatedTime"] == LATER
    assert "CompletedTime" not in entity.properties


def test_an_episode_merges_what_it_stores() -> None:
    instance = OrchestrationInstance(instance_id="a/b", execution_id=EXECUTION)
    episode = Episode(
        loaded=instance,
        current=instance,
        switched=False,
        history=(START, done()),
        first_ordinal=0,
        outbound=(),
        number=1,
        status=Status.COMPLETED,
        custom_status='"half"',
    )
    written = merge_row(episode, names=NAMES, now=LATER, container_url=URL, history_blobs=())
    assert written == merge(START, done(), status='"half"')


def test_an_end_without_a_result_clears_an_earlier_output() -> None:
    """A merge with null would keep the reason of a suspension, or the text of a failure that was rewound."""
    row = stored(create(START)[0], merge(ExecutionSuspended(timestamp=NOW, reason="hold"))[0], merge(done(None))[0])
    assert row.properties["Output"] == ""
    assert read(row).output is None


# --- large texts --------------------------------------------------------------------------------------------------


@pytest.mark.rows("K30")
@pytest.mark.parametrize("char", ["x", "é"])
def test_texts_stay_up_to_60_kib_of_utf16(char: str) -> None:
    at, over = char * 30_720, char * 30_721
    assert create(replace(START, input=at))[0].properties["Input"] == at
    entity, blobs = create(replace(START, input=over))
    assert entity.properties["Input"] == address_of(URL, blobs[0].name)
    assert re.fullmatch(r"a\^0b/instance-[0-9a-f]{32}-Input\.json\.gz", blobs[0].name)
    assert owns("a/b", blobs[0].name)
    assert decode_instance(entity, container_url=URL).input is None  # not its address
    assert read(entity, blobs).input == over


@pytest.mark.rows("K30")
def test_a_spilled_start_message_serves_the_row_too() -> None:
    start = replace(START, input=json.dumps("x" * 50_000))
    message = TaskMessage(event=start, instance=start.instance)
    _, blob = spill(Envelope(activity_id=UUID(int=5), message=message, sequence_number=1), "c")
    assert blob is not None
    entity, blobs = create(start, blob)
    assert blobs == ()
    assert entity.properties["Input"] == f"{URL}/{blob.name}"
    assert read(entity, (blob,)).input == start.input


@pytest.mark.rows("K30")
def test_blobs_of_the_history_serve_the_row_too() -> None:
    start, end = replace(START, input="i" * 31_000), done("r" * 31_000)
    spilled: tuple[PutBlob, ...] = ()
    for ordinal, event in enumerate((start, end)):
        row = encode_event(event, instance_id="a/b", execution_id=EXECUTION, ordinal=ordinal)
        spilled += spill_columns(row, "c")[1]
    entity, blobs = merge(start, end, spilled=spilled)
    assert (len(spilled), blobs) == (2, ())
    assert entity.properties["Input"] == f"{URL}/{spilled[0].name.replace('^', '%5E')}"
    state = read(entity, spilled)
    assert (state.input, state.output) == (start.input, end.result)


@pytest.mark.rows("K30")
def test_without_them_the_row_has_blobs_of_its_own_the_same_each_time() -> None:
    events = (replace(START, input="i" * 31_000), done("r" * 31_000))
    entity, blobs = merge(*events)
    assert len(blobs) == 2
    assert merge(*events) == (entity, blobs)
    assert read(entity, blobs).output == "r" * 31_000


def test_a_row_of_dotnets_with_its_input_in_a_blob_column() -> None:
    """Written by its create alone, when the message was small and the column large."""
    blob = PutBlob(container="c", name="a/b-Input.json.gz", data=gzip.compress(b'"big"'))
    row = Entity(partition_key="a", row_key="", properties={"Input": "", "InputBlobName": blob.name})
    assert read(row, (blob,)).input == '"big"'
    later = stored(row, Entity(partition_key="a", row_key="", properties={"Input": '"x"'}))
    assert read(later).input == '"x"'


@pytest.mark.rows("K50")
def test_a_large_custom_status_goes_to_a_blob() -> None:
    status = json.dumps("s" * 40_000)
    entity, blobs = merge(START, status=status)
    column = entity.properties["CustomStatus"]
    assert isinstance(column, str)
    assert json.loads(column) == address_of(URL, blobs[0].name)
    assert read(entity, blobs).custom_status == status
    cleared = stored(entity, merge(OrchestratorStarted(timestamp=NOW))[0])
    assert (cleared.properties["CustomStatus"], read(cleared).custom_status) == ("null", None)


def test_a_custom_status_that_is_such_an_address_is_no_exception() -> None:
    mine = json.dumps(address_of(URL, "a^0b/instance-00000000000000000000000000000000-CustomStatus.json.gz"))
    entity, blobs = merge(START, status=mine)
    assert read(entity, blobs).custom_status == mine


# --- texts that look like addresses -------------------------------------------------------------------------------

ADDRESSES = [
    "https://example.com/runbook",
    "http://127.0.0.1:10000/devstoreaccount1/flights-largemessages/x",
    "file:///etc/passwd",
    "/var/log/x",
    "\\\\server\\share",
    "C:\\temp\\x",
    "mailto:a@b.c",
    "urn:isbn:0451450523",
    "ValueError:broken",
    f"{URL}/a/message-0-ExecutionStarted.json.gz",
    f"{URL}/%00/x",
    f"{URL}/",
    URL,
]


@pytest.mark.rows("K60")
@pytest.mark.parametrize("text", ADDRESSES)
def test_a_text_that_looks_like_an_address_is_never_stored_as_one(text: str) -> None:
    """A .NET listing throws at one such row; it follows ours to the text."""
    suspended = ExecutionSuspended(timestamp=NOW, reason=text)
    resumed = ExecutionResumed(timestamp=NOW, reason=text)
    terminated = ExecutionTerminated(timestamp=NOW, input=text)
    for event in (suspended, resumed, terminated, done(text, Status.TERMINATED), done(text, Status.FAILED)):
        entity, blobs = merge(event)
        assert entity.properties["Output"] == address_of(URL, blobs[0].name) != text
        assert read(entity, blobs).output == text
    entity, blobs = create(replace(START, input=text))
    assert read(entity, blobs).input == text
    assert str(entity.properties["Input"]).startswith(f"{URL}/a%5E0b/instance-")


@pytest.mark.rows("K60")
@pytest.mark.parametrize("text", ADDRESSES)
def test_json_texts_are_stored_as_they_are(text: str) -> None:
    for value in (text, [text], {"url": text}, None, True, 12):
        written = json.dumps(value)
        assert merge(done(written))[0].properties["Output"] == written
        assert merge(done(written))[1] == ()
        assert create(replace(START, input=written))[0].properties["Input"] == written


@pytest.mark.rows("K60")
def test_a_failures_text_is_no_address() -> None:
    failure = FailureDetails(error_type="https", error_message="//example.com")
    assert merge(done(None, Status.FAILED, failure))[0].properties["Output"] == "https: //example.com"


@pytest.mark.rows("K60")
@pytest.mark.parametrize("text", ADDRESSES)
def test_such_a_text_in_a_row_of_another_writer_breaks_no_reading(text: str) -> None:
    """Without a blob of that name, the text is what the row says."""
    row = Entity(
        partition_key="a", row_key="", properties={"Output": text, "Input": text, "RuntimeStatus": "Terminated"}
    )
    state = read(row)
    assert (state.output, state.input, state.status) == (text, text, Status.TERMINATED)


@pytest.mark.rows("K60")
def test_only_payloads_of_our_own_container_are_fetched() -> None:
    name = "a b/ü/message-0f-EventRaised.json.gz"
    assert blob_at(URL, address_of(URL, name)) == name
    assert address_of(URL, name) == f"{URL}/a%20b/%C3%BC/message-0f-EventRaised.json.gz"
    for text in (
        f"{URL}x/{name}",
        f"{URL}/../other/secret.json.gz",
        f"{URL}/a/b.txt",
        f"{URL}/a%5Cmessage-0-E.json.gz",
        f"{URL}/message-0-E.json.gz",
        f"{URL}/{'a' * 1024}/message-0-E.json.gz",
        "",
    ):
        assert blob_at(URL, text) is None


@pytest.mark.rows("K60")
@given(st.text(max_size=40) | st.sampled_from(ADDRESSES))
def test_any_text_comes_back(text: str) -> None:
    if not text.isprintable():
        text = json.dumps(text)
    entity, blobs = merge(done(text, Status.TERMINATED))
    assert (read(entity, blobs).output or "") == text


def test_a_blob_that_is_no_start_message_is_shown_as_it_is() -> None:
    for junk in ("", "{", "[]", '{"TaskMessage":null}', '{"TaskMessage":{"Event":{"Input":5}}}'):
        assert text_of_blob("a/message-0-ExecutionStarted.json.gz", junk) == junk
    camel = '{"taskMessage":{"event":{"input":"1"}}}'
    assert text_of_blob("a/message-0-ExecutionStarted.json.gz", camel) == "1"


# --- failures -----------------------------------------------------------------------------------------------------

FAILED = FailureDetails(error_type="ValueError", error_message="no flights", is_non_retriable=True, stack_trace="at x")


@given(failures)
def test_a_failure_is_read_back_whole(failure: FailureDetails) -> None:
    entity, blobs = merge(START, done(None, Status.FAILED, failure))
    assert read(entity, blobs).failure == failure
    assert read(entity, blobs).output == f"{failure.error_type}: {failure.error_message}"


def test_a_failure_too_large_for_its_column_loses_detail_not_its_kind() -> None:
    big = replace(FAILED, stack_trace="x" * 40_000 + "the end", error_message="m" * 40_000, inner_failure=FAILED)
    entity, blobs = merge(START, done(None, Status.FAILED, big))
    column = entity.properties[FAILURE]
    assert isinstance(column, str)
    assert len(column) * 2 <= 30 * 1024
    failure = read(entity, blobs).failure
    assert failure is not None
    assert (failure.error_type, failure.is_non_retriable) == ("ValueError", True)
    assert (failure.stack_trace or "").endswith("the end")
    assert read(entity, blobs).output == f"ValueError: {'m' * 40_000}"


def test_a_failure_of_an_earlier_end_is_not_shown() -> None:
    """Merges never remove our column: a rewound instance may end well, or be failed again by a .NET worker."""
    failed = merge(START, done(None, Status.FAILED, FAILED))[0]
    assert read(stored(failed, merge(done())[0])).failure is None
    by_dotnet = Entity(
        partition_key="a^0b", row_key="", properties={"RuntimeStatus": "Failed", "Output": "something else"}
    )
    assert read(stored(failed, by_dotnet)).failure is None
    assert read(stored(failed)).failure == FAILED


# --- rows of others -----------------------------------------------------------------------------------------------


@pytest.mark.rows("K45", "K54")
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, {}),
        ({"RuntimeStatus": "Paused"}, {}),
        ({"RuntimeStatus": 5, "Name": 5, "CreatedTime": "today", "Generation": "1", "Tags": 5}, {}),
        ({"Tags": "{", FAILURE: "{", "RuntimeStatus": "Failed"}, {"status": Status.FAILED}),
        ({"Tags": "[1]", "CustomStatus": "null", "Output": ""}, {}),
        ({"Tags": '{"a":"b"}', "Later": True}, {"tags": {"a": "b"}}),
        ({"Generation": True}, {}),
    ],
)
def test_no_row_breaks_a_listing(columns: Mapping[str, Property], expected: Mapping[str, object]) -> None:
    row = Entity(partition_key="a^0b", row_key="", properties=columns)
    bare = InstanceState(instance_id="a/b", execution_id=None, name="", status=Status.PENDING)
    assert decode_instance(row, container_url=URL) == replace(bare, **expected)  # type: ignore[arg-type]


# --- repair -------------------------------------------------------------------------------------------------------

HALF = EXECUTION[:16] + "0" * 16


def state(status: Status, execution_id: str = EXECUTION) -> InstanceState:
    return InstanceState(instance_id="a/b", execution_id=execution_id, name="Hello", status=status)


def repair(row: InstanceState | None, *events: HistoryEvent) -> Entity | None:
    found = repair_row(events, row, names=NAMES, now=LATER, container_url=URL)
    return None if found is None else found[0]


@pytest.mark.rows("K29")
@pytest.mark.parametrize("lagging", [Status.PENDING, Status.RUNNING, Status.SUSPENDED])
def test_a_row_behind_a_finished_history_is_repaired(lagging: Status) -> None:
    repaired = repair(state(lagging), START, done('"ok"'))
    assert repaired is not None
    assert (repaired.properties["RuntimeStatus"], repaired.properties["Output"]) == ("Completed", '"ok"')
    assert "CustomStatus" not in repaired.properties


@pytest.mark.rows("K29")
def test_a_missing_row_is_made_whole() -> None:
    repaired = repair(None, START)
    assert repaired is not None
    assert set(edm(repaired)) >= {"Name", "ExecutionId", "RuntimeStatus", "CreatedTime", "TaskHubName", "CustomStatus"}


@pytest.mark.rows("K29")
def test_a_row_of_an_older_generation_is_repaired() -> None:
    for status in (Status.PENDING, Status.RUNNING):
        repaired = repair(state(status, HALF), START)
        assert repaired is not None
        assert repaired.properties["ExecutionId"] == EXECUTION


@pytest.mark.rows("K29", "K44")
def test_a_row_that_agrees_or_waits_for_something_new_is_left_alone() -> None:
    rewound = GenericEvent(timestamp=NOW, reason="Rewound: TaskFailed")
    assert repair(state(Status.RUNNING), START) is None
    assert repair(state(Status.COMPLETED), START, done()) is None
    assert repair(state(Status.PENDING, "f" * 32), START, done()) is None  # started again by a client
    assert repair(state(Status.PENDING), START, rewound) is None  # rewound: Pending until it ends
    assert repair(state(Status.PENDING), START, rewound, done()) is not None
    assert repair(state(Status.FAILED), START, rewound) is None  # its client has not come to the row
    assert repair(state(Status.TERMINATED), START) is None  # before the first checkpoint came
    assert repair(state(Status.RUNNING), OrchestratorStarted(timestamp=NOW)) is None


@pytest.mark.rows("K41", "K46", "K60")
def test_a_suspension_before_the_start_is_shown_with_its_reason_until_the_resume() -> None:
    suspended = ExecutionSuspended(timestamp=NOW, reason="https://example.com", taskhub_by="ann@a")
    entity, blobs = suspension_row(suspended, instance_id="a/b", names=NAMES, now=LATER, container_url=URL)
    assert set(entity.properties) == {"LastUpdatedTime", "Output", "TaskHubSuspended"}
    row = stored(create(START)[0], entity)
    found = read(row, blobs)
    assert (found.status, found.output, found.is_held) == (Status.PENDING, "https://example.com", True)
    assert (found.suspended_by, found.suspended_at) == ("ann@a", NOW)
    resumed = ExecutionResumed(timestamp=LATER)
    entity, _ = suspension_row(resumed, instance_id="a/b", names=NAMES, now=LATER, container_url=URL)
    found = read(stored(row, entity), ())
    assert (found.output, found.is_held, found.suspended_at) == (None, False, None)


# --- queries ------------------------------------------------------------------------------------------------------


@pytest.mark.rows("K45")
def test_a_query_names_what_it_asks_for() -> None:
    assert query_filter() is None
    assert query_filter(statuses=[Status.FAILED]) == Compare("RuntimeStatus", "eq", "Failed")
    assert query_filter(failed_since=NOW) == And(
        (Compare("RuntimeStatus", "eq", "Failed"), Compare("CompletedTime", "ge", NOW))
    )
    assert query_filter(
        prefix="a/", statuses=[Status.FAILED, Status.RUNNING], created_from=NOW, created_to=LATER
    ) == And(
        (
            Compare("PartitionKey", "ge", "a^0"),
            Compare("PartitionKey", "lt", "a^1"),
            Or((Compare("RuntimeStatus", "eq", "Failed"), Compare("RuntimeStatus", "eq", "Running"))),
            Compare("CreatedTime", "ge", NOW),
            Compare("CreatedTime", "le", LATER),
        )
    )


def holds(where: Filter | None, key: str, encoding: str) -> bool:
    """What a table answers on keys: Azure compares UTF-16 units, SQLite the bytes of UTF-8."""
    match where:
        case None:
            return True
        case And(parts):
            return all(holds(part, key, encoding) for part in parts)
        case Compare("PartitionKey", operator, value):
            one, other = key.encode(encoding), str(value).encode(encoding)
            return one >= other if operator == "ge" else one < other
    raise AssertionError(where)


@pytest.mark.rows("K45")
@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-8"])
@given(
    st.text("ab^/0\ud7ff\ue000\uffff\U0001d4b3\U0010ffff", min_size=1, max_size=4),
    st.text("ab^/0\ud7ff\ue000\uffff\U0001d4b3\U0010ffff", max_size=4),
)
def test_a_prefix_finds_all_that_have_it_and_no_more(encoding: str, prefix: str, other: str) -> None:
    where = query_filter(prefix=prefix)
    assert holds(where, escape(prefix + other), encoding)
    found = InstanceState(instance_id=other, execution_id=None, name="", status=Status.RUNNING)
    assert (holds(where, escape(other), encoding) and matches(found, prefix=prefix)) == other.startswith(prefix)


@pytest.mark.rows("K45")
def test_tags_all_must_match() -> None:
    tagged = replace(state(Status.RUNNING), tags={"dag": "flights", "try": "1"})
    assert matches(tagged)
    assert matches(tagged, tags={"dag": "flights"}, prefix="a/")
    assert not matches(tagged, tags={"dag": "flights", "try": "2"})
    assert not matches(state(Status.RUNNING), tags={"dag": "flights"})
    assert not matches(tagged, prefix="b")


def cancelled(number: int, identity: str = "one") -> EventSent:
    return EventSent(
        timestamp=NOW,
        event_id=number,
        instance_id="a/b",
        name="cancel load",
        taskhub_action_id=identity,
        taskhub_cancels=0,
    )


def test_the_row_names_the_last_cancel_of_the_present_generation() -> None:
    row = stored(merge(START, cancelled(3), cancelled(4, "two"))[0])
    assert read(row).cancel == Cancel(number=4, identity="two")
    later = replace(row, properties={**row.properties, "ExecutionId": HALF})
    assert read(later).cancel is None, "of an earlier generation"
    child = replace(cancelled(5), instance_id="a child")
    assert read(stored(merge(START, child)[0])).cancel is None, "the cancel of a child concerns no activity"


@pytest.mark.rows("K29")
def test_a_row_without_the_last_cancel_is_repaired() -> None:
    """A worker has died between the history and the row."""
    knows = replace(state(Status.RUNNING), cancel=Cancel(number=3, identity="one"))
    assert repair(knows, START, cancelled(3)) is None
    for row in (state(Status.RUNNING), knows):
        repaired = repair(row, START, cancelled(3), cancelled(4, "two"))
        assert repaired is not None
        assert repaired.properties[CANCELS] == f"4:two:{EXECUTION}"
    again = repair(knows, START, cancelled(3, "after a rewind"))
    assert again is not None, "a rewind has undone the cancel that the row shows"
    assert repair(replace(knows, cancel=Cancel(number=7, identity="undone")), START, cancelled(3)) is None


@pytest.mark.rows("K29", "K44")
def test_the_row_of_a_rewound_instance_gets_only_the_cancel() -> None:
    rewound = GenericEvent(timestamp=NOW, reason="Rewound: TaskFailed")
    repaired = repair(state(Status.PENDING), START, rewound, cancelled(3))
    assert repaired is not None
    assert repaired.properties == {CANCELS: f"3:one:{EXECUTION}"}
