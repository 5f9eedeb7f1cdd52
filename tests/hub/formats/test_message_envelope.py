"""Messages by hand: all that .NET accepts, and all that must be refused with a reason."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskhub.codec import Timestamp, decompress
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    EventType,
    ExecutionCompleted,
    ExecutionStarted,
    ExecutionTerminated,
    OrchestrationInstance,
    Status,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.identity import NAMESPACE
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hub.formats.event_fields import LAYOUTS, FieldPlace
from airflow_provider_taskhub.hub.formats.message_envelope import (
    NO_ACTIVITY,
    SPILL_BYTES,
    Envelope,
    MessageError,
    TaskMessage,
    blob_of,
    decode,
    encode,
    spill,
    unspill,
)
from tests.hub.formats.events import events, instances, number, tags, text

NOW = Timestamp.parse("2026-11-21T08:55:27.2669147Z")
TARGET = OrchestrationInstance(instance_id="hello-1", execution_id="13e6618fc0cd4952a5a3e5689048fd95")
ACTIVITY = UUID("56495726-e332-41b4-a005-60544723ab6f")
START = ExecutionStarted(timestamp=NOW, instance=TARGET, name="Hello", input='"World"', generation=0)


def envelope(event: Any = START, target: OrchestrationInstance = TARGET, **changes: Any) -> Envelope:
    return Envelope(
        activity_id=ACTIVITY,
        message=TaskMessage(event=event, instance=target),
        sequence_number=1,
        sender=OrchestrationInstance(instance_id="", execution_id=""),
        **changes,
    )


def document(made: Envelope | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode(made or envelope()))
    return found


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    data = document()
    change(data)
    return json.dumps(data)


# --- written ------------------------------------------------------------------------------------------------------


@pytest.mark.rows("K52")
def test_a_start_is_written_as_dotnet_writes_it() -> None:
    assert encode(envelope()) == (
        '{"$type":"DurableTask.AzureStorage.MessageData","ActivityId":"56495726-e332-41b4-a005-60544723ab6f",'
        '"TaskMessage":{"$type":"DurableTask.Core.TaskMessage","Event":{"$type":"DurableTask.Core.History.'
        'ExecutionStartedEvent","OrchestrationInstance":{"$type":"DurableTask.Core.OrchestrationInstance","InstanceId":'
        '"hello-1","ExecutionId":"13e6618fc0cd4952a5a3e5689048fd95"},"EventType":0,"ParentInstance":null,"Name":"Hello"'
        ',"Version":"","Input":"\\"World\\"","Tags":null,"Correlation":null,"ParentTraceContext":null,'
        '"ScheduledStartTime":null,"Generation":0,"GenerateNewTrace":false,"EventId":-1,"IsPlayed":false,"Timestamp":'
        '"2026-11-21T08:55:27.2669147Z"},"SequenceNumber":0,"OrchestrationInstance":{"$type":"DurableTask.Core.'
        'OrchestrationInstance","InstanceId":"hello-1","ExecutionId":"13e6618fc0cd4952a5a3e5689048fd95"},'
        '"OrchestrationExecutionContext":null},"CompressedBlobName":null,"SequenceNumber":1,"Sender":{"InstanceId":"",'
        '"ExecutionId":""},"SerializableTraceContext":null}'
    )


@pytest.mark.rows("K52")
def test_our_own_members_are_written_only_when_set_and_come_last() -> None:
    plain = document(envelope(TaskScheduled(timestamp=NOW, event_id=3, name="a")))
    assert "TaskHub" not in json.dumps(plain)
    scheduled = TaskScheduled(timestamp=NOW, event_id=3, name="a", taskhub_action_id="id-1", taskhub_message_id="m-1")
    data = document(envelope(scheduled, failures=2))
    assert list(data)[-1] == "TaskHubFailures"
    assert list(data["TaskMessage"]["Event"])[-1] == "TaskHubActionId"
    assert "TaskHubMessageId" not in json.dumps(data)  # it is the reader's own: the id of this very message
    again = decode(json.dumps(data))
    assert again.failures == 2
    assert again.message is not None
    assert again.message.event == replace(scheduled, taskhub_message_id=None)


@pytest.mark.rows("K43")
def test_since_when_a_message_waits_stays_in_the_queue_also_of_a_spilled_one() -> None:
    waiting = envelope(TaskScheduled(timestamp=NOW, event_id=3, name="a"), waiting_since=NOW)
    assert decode(encode(waiting)) == waiting
    wrapper = decode(encode(replace(waiting, blob_name="i/1.json.gz")))
    assert (wrapper.blob_name, wrapper.waiting_since) == ("i/1.json.gz", NOW)
    inner = encode(replace(waiting, waiting_since=None))
    assert unspill(wrapper, inner).waiting_since == NOW


@pytest.mark.rows("K52")
def test_what_is_written_is_ascii_and_legal_in_xml() -> None:
    odd = "grün 日本 𝒳 \uffff \x00 \u2028"
    written = encode(envelope(EventRaised(timestamp=NOW, name=odd, input=json.dumps(odd, ensure_ascii=False))))
    assert written.isascii()
    assert all(char >= " " for char in written)
    message = decode(written).message
    assert message is not None
    assert message.event == EventRaised(timestamp=NOW, name=odd, input=json.dumps(odd, ensure_ascii=False))


def test_an_unpaired_surrogate_is_refused_on_both_sides() -> None:
    with pytest.raises(MessageError, match="surrogate"):
        encode(envelope(EventRaised(timestamp=NOW, name="\ud800")))
    with pytest.raises(MessageError, match="surrogate"):
        decode(encode(envelope(EventRaised(timestamp=NOW, name="x"))).replace('"x"', '"\\ud800"'))
    paired = envelope(EventRaised(timestamp=NOW, name="\U0001d4b3", input='"\\\\ud800"'))
    assert decode(encode(paired)) == paired


def test_a_tag_that_dotnet_takes_for_a_type_is_refused() -> None:
    with pytest.raises(InputError, match=r"\$type"):
        encode(envelope(replace(START, tags={"$type": "x"})))


# --- read --------------------------------------------------------------------------------------------------------


def only_what_matters(data: dict[str, Any]) -> None:
    event = data["TaskMessage"]["Event"]
    kept = ("$type", "OrchestrationInstance", "EventType", "Name", "Input", "EventId", "Timestamp")
    message = {
        "Event": {name: event[name] for name in kept},
        "OrchestrationInstance": data["TaskMessage"]["OrchestrationInstance"],
    }
    data.clear()
    data["TaskMessage"] = message


def camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {key[0].lower() + key[1:]: camel(member) for key, member in value.items()}
    return value


@pytest.mark.rows("K53")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda d: d["TaskMessage"]["Event"].update(EventType="ExecutionStarted"), id="EventType by name"),
        pytest.param(lambda d: d["TaskMessage"]["Event"].pop("$type"), id="EventType alone"),
        pytest.param(
            lambda d: (
                d["TaskMessage"]["Event"].pop("$type"),
                d["TaskMessage"]["Event"].update(EventType="executionSTARTED"),
            ),
            id="EventType alone by name in any case",
        ),
        pytest.param(
            lambda d: d["TaskMessage"]["Event"].update(
                {"$type": "DurableTask.Core.History.ExecutionStartedEvent, DurableTask.Core, Version=2.0.0.6"}
            ),
            id="$type with an assembly",
        ),
        pytest.param(
            lambda d: d["TaskMessage"]["Event"].update({"$type": d["TaskMessage"]["Event"].pop("$type")}),
            id="$type not first",
        ),
        pytest.param(lambda d: d.pop("$type"), id="no $type on MessageData"),
        pytest.param(lambda d: d.update(Unknown={"a": [1]}), id="unknown member"),
        pytest.param(lambda d: d["TaskMessage"]["Event"].update(Unknown=1), id="unknown member of the event"),
        pytest.param(
            lambda d: d["TaskMessage"]["Event"].update(Timestamp="2026-11-21T10:55:27.2669147+02:00"), id="an offset"
        ),
        pytest.param(
            lambda d: d["TaskMessage"].update(OrchestrationExecutionContext=None, SequenceNumber=None), id="nulls"
        ),
        pytest.param(lambda d: d.update(camel({**d})) or [d.pop(k) for k in list(d) if k[0].isupper()], id="camelCase"),
    ],
)
def test_a_start_is_read_however_it_is_spelt(change: Callable[[dict[str, Any]], object]) -> None:
    assert decode(changed(change)) == envelope()


@pytest.mark.rows("K53")
def test_a_start_with_only_what_matters() -> None:
    read = decode(changed(only_what_matters))
    assert read == Envelope(
        activity_id=NO_ACTIVITY,
        message=TaskMessage(event=replace(START, generation=None), instance=TARGET),
        sequence_number=0,
        sender=None,
    )


@pytest.mark.rows("K53")
def test_three_digits_and_no_zone() -> None:
    written = changed(lambda data: data["TaskMessage"]["Event"].update(Timestamp="2026-11-21T08:55:27.266"))
    message = decode(written).message
    assert message is not None
    assert message.event.timestamp == Timestamp.parse("2026-11-21T08:55:27.2660000Z")


@pytest.mark.rows("K53")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_base64_raw_utf8_and_a_mark_at_the_start(encoding: str) -> None:
    made = envelope(EventRaised(timestamp=NOW, name="grün", input='"日本"'))
    raw = json.dumps(document(made), ensure_ascii=False)
    assert decode(base64.b64encode(raw.encode(encoding)).decode()) == made
    assert decode(raw) == made
    assert decode("\ufeff " + raw) == made


@pytest.mark.rows("K53")
def test_types_of_dictionaries_are_passed_over() -> None:
    dictionary = "System.Collections.Generic.Dictionary`2[[System.String, mscorlib],[System.String, mscorlib]]"

    def change(data: dict[str, Any]) -> None:
        data["TaskMessage"]["Event"]["Tags"] = {"$type": dictionary, "dag": "flights", "empty": None}
        data["TaskMessage"]["OrchestrationExecutionContext"] = {"OrchestrationTags": {"$type": dictionary}}

    message = decode(changed(change)).message
    assert message is not None
    assert message.context_tags == {}
    assert message.event == replace(START, tags={"dag": "flights", "empty": ""})


@pytest.mark.rows("K53")
def test_types_in_the_properties_of_a_failure_are_passed_over() -> None:
    made = document(envelope(TaskFailed(timestamp=NOW, task_scheduled_id=0, reason="r")))
    made["TaskMessage"]["Event"]["FailureDetails"] = {
        "$type": "DurableTask.Core.FailureDetails",
        "ErrorType": "E",
        "ErrorMessage": "m",
        "Properties": {"$type": "System.Collections.Generic.Dictionary`2[[a],[b]]", "code": 5},
    }
    message = decode(json.dumps(made)).message
    assert message is not None
    assert isinstance(message.event, TaskFailed)
    assert message.event.failure is not None
    assert message.event.failure.properties == {"code": 5}


def test_an_empty_execution_id_and_none_are_kept_apart() -> None:
    for execution_id in (None, ""):
        made = envelope(
            ExecutionTerminated(timestamp=NOW, input="enough"),
            OrchestrationInstance(instance_id="a", execution_id=execution_id),
        )
        assert decode(encode(made)) == made


# --- refused ------------------------------------------------------------------------------------------------------


@pytest.mark.rows("K42")
@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", "not JSON"),
        ("hello", "neither JSON nor Base64"),
        ("aGVsbG8=", "not JSON"),
        ("/w==", "neither JSON nor Base64"),
        ("[1]", "neither JSON nor Base64"),
        ("WzFd", r"MessageData is \[1\], not an object"),
        ("{", "not JSON"),
        ('{"a":' * 100_000, "not JSON"),
        ("{}", "neither a TaskMessage nor a CompressedBlobName"),
        ('{"CompressedBlobName":""}', "neither a TaskMessage nor a CompressedBlobName"),
        (changed(lambda d: d.update(TaskMessage=5)), "TaskMessage is 5, not an object"),
        (changed(lambda d: d.update(TaskMessage={"Event": 1})), "TaskMessage has no OrchestrationInstance"),
        (changed(lambda d: d["TaskMessage"].pop("Event")), "TaskMessage has no Event"),
        (
            changed(lambda d: d["TaskMessage"]["Event"].update({"$type": "System.Object"})),
            "unknown type 'System.Object'",
        ),
        (
            changed(
                lambda d: d["TaskMessage"]["Event"].update({"$type": "DurableTask.Core.History.HistoryStateEvent"})
            ),
            "unknown type",
        ),
        (
            changed(lambda d: (d["TaskMessage"]["Event"].pop("$type"), d["TaskMessage"]["Event"].update(EventType=18))),
            "HistoryState, which no message carries",
        ),
        (
            changed(lambda d: (d["TaskMessage"]["Event"].pop("$type"), d["TaskMessage"]["Event"].update(EventType=99))),
            "EventType is 99",
        ),
        (changed(lambda d: d["TaskMessage"]["Event"].pop("Name")), "TaskMessage.Event has no Name"),
        (changed(lambda d: d["TaskMessage"]["Event"].update(Name=7)), "TaskMessage.Event.Name is 7, not a text"),
        (changed(lambda d: d["TaskMessage"]["Event"].update(EventId="x")), "EventId is 'x', not a 32-bit integer"),
        (changed(lambda d: d["TaskMessage"]["Event"].update(EventId=2**31)), "EventId is 2147483648, not a 32-bit"),
        (changed(lambda d: d["TaskMessage"]["Event"].update(EventId=True)), "EventId is True, not a 32-bit"),
        (changed(lambda d: d["TaskMessage"]["Event"].update(IsPlayed=1)), "IsPlayed is 1, not true or false"),
        (changed(lambda d: d["TaskMessage"]["Event"].update(Timestamp="noon")), "Timestamp is 'noon', not an ISO 8601"),
        (changed(lambda d: d["TaskMessage"]["Event"].pop("Timestamp")), "has no Timestamp"),
        (changed(lambda d: d["TaskMessage"]["Event"].update(Tags=[1])), r"Tags is \[1\], not an object of texts"),
        (changed(lambda d: d["TaskMessage"]["Event"].update(Tags={"a": 1})), "Tags.a is 1, not a text"),
        (changed(lambda d: d.update(ActivityId="x")), "ActivityId is 'x', not a GUID"),
        (changed(lambda d: d.update(SequenceNumber="x")), "SequenceNumber is 'x', not an integer"),
        (changed(lambda d: d.update(SequenceNumber=float("nan"))), "NaN is no JSON value"),
    ],
)
def test_what_cannot_be_decoded_says_why(written: str, reason: str) -> None:
    with pytest.raises(MessageError, match=reason) as caught:
        decode(written)
    assert len(str(caught.value)) < 300


@pytest.mark.rows("K42")
@pytest.mark.parametrize("event_type", sorted(LAYOUTS))
def test_a_response_or_scheduling_event_without_its_number_is_refused(event_type: EventType) -> None:
    """Guessing 0 for it would answer another task."""
    numbers = {"TaskScheduledId", "TimerId"} & {member.name for member in LAYOUTS[event_type].members}
    scheduling = event_type in (4, 7, 10, 14)
    bare = {"EventType": int(event_type), "Timestamp": "2026-11-21T08:55:27Z", "Name": "n", "InstanceId": "i"}
    full = {
        **bare,
        "FireAt": "2026-11-21T08:55:27Z",
        "OrchestrationStatus": 1,
        "OrchestrationInstance": {"InstanceId": "i"},
    }
    written = json.dumps({"TaskMessage": {"Event": full, "OrchestrationInstance": {"InstanceId": "i"}}})
    if numbers or scheduling:
        with pytest.raises(MessageError, match=r"has no (TaskScheduledId|TimerId|EventId)"):
            decode(written)
    else:
        message = decode(written).message
        assert message is not None
        assert message.event.event_id == -1


@pytest.mark.rows("K42")
@given(st.text() | st.binary().map(lambda data: base64.b64encode(data).decode()))
def test_nothing_but_message_errors_comes_out_of_junk(written: str) -> None:
    with pytest.raises(MessageError):
        decode(written)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.rows("K42")
@given(st.data(), JSON)
def test_a_message_with_one_member_turned_to_junk_is_read_or_refused(data: st.DataObject, junk: Any) -> None:
    found = document(envelope(TaskFailed(timestamp=NOW, task_scheduled_id=1)))
    place: Any = found
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = junk
    try:
        read = decode(json.dumps(found))
    except MessageError:
        return
    assert decode(encode(read)) == read


# --- spilled ------------------------------------------------------------------------------------------------------


def sized(length: int) -> Envelope:
    """A message whose JSON has this many bytes."""
    bare = envelope(EventRaised(timestamp=NOW, name="e", input=""))
    filled = "x" * (length - len(encode(bare)))
    return envelope(EventRaised(timestamp=NOW, name="e", input=filled))


@pytest.mark.rows("K30")
def test_a_message_is_spilled_above_45_kib_and_not_at_it() -> None:
    at, over = sized(SPILL_BYTES), sized(SPILL_BYTES + 1)
    assert len(encode(at)) == SPILL_BYTES == 46_080
    assert spill(at, "hub-largemessages") == (encode(at), None)
    written, blob = spill(over, "hub-largemessages")
    assert blob is not None
    assert (blob.container, blob.name) == (
        "hub-largemessages",
        "hello-1/message-56495726e33241b4a00560544723ab6f-EventRaised.json.gz",
    )
    assert decompress(blob.body) == encode(over)
    assert (blob.body[:2], blob.content_type) == (b"\x1f\x8b", "application/octet-stream")
    assert json.loads(written) == {
        "$type": "DurableTask.AzureStorage.MessageData",
        "ActivityId": "00000000-0000-0000-0000-000000000000",
        "TaskMessage": None,
        "CompressedBlobName": blob.name,
        "SequenceNumber": 0,
        "Sender": None,
        "SerializableTraceContext": None,
    }
    wrapper = decode(written)
    assert blob_of(wrapper) == blob.name
    assert unspill(wrapper, decompress(blob.body)) == replace(over, blob_name=blob.name)


def test_each_message_of_an_action_has_its_own_blob() -> None:
    """The blob of the first one may be deleted while the second one waits."""
    action = replace(sized(SPILL_BYTES + 1), activity_id=uuid5(NAMESPACE, "an action"))
    first, second = spill(action, "c")[1], spill(action, "c")[1]
    assert first is not None
    assert second is not None
    assert first.name != second.name


@pytest.mark.rows("K30")
def test_escapes_count_as_the_bytes_that_they_are() -> None:
    """A text that .NET would have put raw, two bytes a character, is six bytes a character with us."""
    message = envelope(EventRaised(timestamp=NOW, name="e", input="é" * 8_000))
    assert len(encode(message)) > SPILL_BYTES > 8_000 * 2 + 1_000
    assert spill(message, "c")[1] is not None


@pytest.mark.rows("K53")
def test_a_wrapper_with_nothing_but_the_name() -> None:
    wrapper = decode('{"CompressedBlobName":"a/message-0-EventRaised.json.gz"}')
    assert (wrapper.message, blob_of(wrapper)) == (None, "a/message-0-EventRaised.json.gz")


@pytest.mark.rows("K53")
def test_the_message_in_the_blob_counts_when_there_are_two() -> None:
    """DurableTask uses the blob's message entirely."""
    both = decode(changed(lambda data: data.update(CompressedBlobName="a/message-0-EventRaised.json.gz")))
    assert (both.message, blob_of(both)) == (None, "a/message-0-EventRaised.json.gz")


def test_failures_are_counted_on_the_wrapper() -> None:
    written, blob = spill(sized(SPILL_BYTES + 1), "c")
    assert blob is not None
    read = unspill(replace(decode(written), failures=3, place=7), decompress(blob.body))
    assert (read.failures, read.place) == (3, 7)
    again = encode(replace(read, failures=4))
    assert len(again) < 400
    assert (decode(again).failures, decode(again).place, blob_of(decode(again))) == (4, 7, blob.name)
    assert blob_of(read) is None
    assert spill(read, "c") == (encode(read), None)  # it is spilled already


def test_a_blob_that_holds_no_message_is_refused() -> None:
    wrapper = decode('{"CompressedBlobName":"a/message-0-EventRaised.json.gz"}')
    with pytest.raises(MessageError, match="holds no message"):
        unspill(wrapper, encode(wrapper))
    with pytest.raises(MessageError, match="not JSON"):
        unspill(wrapper, "{oops")


# --- every event --------------------------------------------------------------------------------------------------


@pytest.mark.rows("K52", "K53")
@given(
    st.builds(
        Envelope,
        activity_id=st.uuids(),
        message=st.builds(
            TaskMessage,
            event=events(FieldPlace.MESSAGE),
            instance=instances,
            context_tags=st.none() | tags,
            sequence_number=st.integers(0, 2**60),
        ),
        sequence_number=st.integers(0, 2**60),
        episode=st.none() | number,
        sender=st.none() | st.builds(OrchestrationInstance, instance_id=text, execution_id=st.none() | text),
        trace_context=st.none() | text,
        failures=st.integers(0, 100),
        after=st.none() | st.integers(1, 2**60),
        place=st.none() | st.integers(1, 2**60),
    )
)
def test_every_event_comes_back_as_it_went(made: Envelope) -> None:
    written = encode(made)
    assert written.isascii()
    assert decode(written) == made
    event = json.loads(written)["TaskMessage"]["Event"]
    assert next(iter(event)) == "$type"


@pytest.mark.rows("K52")
def test_statuses_are_numbers_in_messages() -> None:
    for number_, status in enumerate(Status):
        made = envelope(ExecutionCompleted(timestamp=NOW, event_id=1, status=status))
        data = document(made)
        assert data["TaskMessage"]["Event"]["OrchestrationStatus"] == number_
        assert decode(encode(made)) == made
        data["TaskMessage"]["Event"]["OrchestrationStatus"] = status.value.lower()
        assert decode(json.dumps(data)) == made


def test_a_response_without_an_echo_is_dotnets() -> None:
    message = decode(encode(envelope(TaskCompleted(timestamp=NOW, task_scheduled_id=0, result="1")))).message
    assert message is not None
    assert isinstance(message.event, TaskCompleted)
    assert message.event.taskhub_action_id is None
