"""Every recorded message, decoded by our types and encoded again: the same members in the same order (K52, K53)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from airflow_provider_taskhub.codec import decompress
from airflow_provider_taskhub.hub.formats.keys import message_folder, owns
from airflow_provider_taskhub.hub.formats.message_envelope import SPILL_BYTES, blob_of, decode, encode, spill, unspill
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from tests.golden import NAMES, Recording, load
from tests.hub.formats.rows import plain, without_dictionary_types


def blobs(recording: Recording) -> dict[str, str]:
    found: dict[str, str] = {}
    for state in recording.states.values():
        container = state["blobs"].get(f"{recording.hub.lower()}-largemessages", {"items": {}})
        found |= {name: item["text"] for name, item in container["items"].items() if "/message-" in name}
    return found


def texts() -> Iterator[tuple[str, Recording, str]]:
    for name in NAMES:
        recording = load(name)
        for put in recording.messages:
            yield "put", recording, put.text
        for state in recording.states.values():
            for queue in state["queues"].values():
                for text in queue["visible"]:
                    yield "visible", recording, text
        for text in blobs(recording).values():
            yield "blob", recording, text


@pytest.mark.rows("K52", "K53")
def test_every_message_is_read_and_written_again() -> None:
    places: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for place, _, text in texts():
        envelope = decode(text)
        again = encode(envelope)
        assert again.isascii()
        # the texts of compact JSON are equal only if values, types and the order of members are
        assert again == json.dumps(without_dictionary_types(json.loads(plain(text))), separators=(",", ":"))
        places[place] += 1
        kinds["wrapper" if envelope.message is None else envelope.message.event.event_type.name] += 1
    assert places == {"put": 509, "visible": 36, "blob": 6}
    assert kinds == {
        "EventRaised": 16,
        "ExecutionResumed": 1,
        "ExecutionStarted": 68,
        "ExecutionSuspended": 1,
        "ExecutionTerminated": 3,
        "GenericEvent": 1,
        "SubOrchestrationInstanceCompleted": 2,
        "SubOrchestrationInstanceFailed": 1,
        "TaskCompleted": 208,
        "TaskFailed": 11,
        "TaskScheduled": 224,
        "TimerFired": 8,
        "wrapper": 7,
    }


@pytest.mark.rows("K53")
def test_the_recordings_contain_four_messages_in_base64() -> None:
    assert sum(not text.startswith("{") for _, _, text in texts()) == 4


@pytest.mark.rows("K30", "K52", "K53")
def test_every_spilled_message_is_spilled_again() -> None:
    """Under the same name and with the same wrapper, from its blob's text alone."""
    checked = 0
    for name in NAMES:
        recording = load(name)
        for put in recording.messages:
            wrapper = decode(put.text)
            blob = blob_of(wrapper)
            if blob is None:
                assert len(put.text.encode()) <= SPILL_BYTES * 4 / 3
                continue
            stored = blobs(recording)[blob]
            assert len(stored.encode()) > SPILL_BYTES
            message = unspill(wrapper, stored)
            text, made = spill(decode(stored), f"{recording.hub.lower()}-largemessages")
            assert made is not None
            assert (made.name, text) == (blob, put.text)
            assert decompress(made.body) == json.dumps(
                without_dictionary_types(json.loads(stored)), separators=(",", ":")
            )
            assert encode(message) == put.text
            assert owns(message.message.instance.instance_id, blob)  # type: ignore[union-attr]
            checked += 1
    assert checked == 6


@pytest.mark.rows("K02")
def test_every_message_lies_where_its_instance_hashes_to() -> None:
    """Timers and the continuations of an instance go to its own queue, which is the same one."""
    checked = 0
    for name in NAMES:
        recording = load(name)
        for put in recording.messages:
            _, _, number = put.queue.partition("-control-")
            if not number:
                continue
            envelope = decode(put.text)
            if (blob := blob_of(envelope)) is not None:
                envelope = unspill(envelope, blobs(recording)[blob])
            assert envelope.message is not None
            assert partition_of(envelope.message.instance.instance_id, 4) == int(number)
            checked += 1
    assert checked == 289


def test_every_instance_of_the_recordings_keeps_its_raw_id_as_folder() -> None:
    seen = set()
    for name in NAMES:
        for put in load(name).messages:
            message = decode(put.text).message
            if message is not None:
                seen.add(message.instance.instance_id)
    assert len(seen) == 40
    assert all(message_folder(instance_id) == instance_id for instance_id in seen)
