"""Columns on both sides of the spill threshold, and rows in transactions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskhub.codec import Timestamp, decompress
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionCompleted,
    FailureDetails,
    Status,
    TaskCompleted,
)
from airflow_provider_taskhub.hub.formats.history_rows import decode_event, encode_event
from airflow_provider_taskhub.hub.formats.payload_spill import (
    BATCH_BYTES,
    BATCH_ROWS,
    COLUMNS,
    SPILL_BYTES,
    batches,
    blob_columns,
    restore,
    spill_columns,
    utf16_bytes,
)
from airflow_provider_taskhub.storage.primitives import MAX_TRANSACTION_BYTES, Entity
from tests.hub.formats.rows import edm

NOW = Timestamp.parse("2026-11-21T08:55:27.2669147Z")


def completed(result: str, instance_id: str = "big/1") -> Entity:
    event = TaskCompleted(timestamp=NOW, task_scheduled_id=0, result=result)
    return encode_event(event, instance_id=instance_id, execution_id="e", ordinal=11)


@pytest.mark.rows("K30")
@pytest.mark.parametrize(
    ("char", "units"),
    [pytest.param("x", 1, id="ASCII"), pytest.param("é", 1, id="BMP"), pytest.param("𝒳", 2, id="a pair of surrogates")],
)
def test_a_column_is_spilled_above_60_kib_of_utf16_and_not_at_it(char: str, units: int) -> None:
    """Whatever it is in UTF-8: 30,720 units stay, one more goes."""
    at = char * (SPILL_BYTES // 2 // units)
    assert utf16_bytes(at) == SPILL_BYTES == 61_440
    assert spill_columns(completed(at), "c") == (completed(at), ())
    over = at + "x"
    entity, blobs = spill_columns(completed(over), "c", token=lambda: 0x7C3B3844)
    (blob,) = blobs
    assert blob.container == "c"
    assert blob.name == "big^01/history-000000000000000B-TaskCompleted-7C3B3844-Result.json.gz"
    assert decompress(blob.body) == over
    assert (entity.properties["Result"], entity.properties["ResultBlobName"]) == ("", blob.name)
    assert blob_columns(entity) == {"Result": blob.name}
    assert restore(entity, {"Result": over}) == completed(over)


@pytest.mark.rows("K30")
def test_the_thresholds_of_messages_and_rows_are_apart() -> None:
    """30,720 ASCII characters fit a queue's 45 KiB of UTF-8; one more fits it still, and no column."""
    assert spill_columns(completed("x" * 30_721), "c")[1]
    assert len("x" * 30_721) < 45 * 1024


@pytest.mark.rows("K30")
def test_every_column_that_can_be_large_is_spilled_under_a_name_of_its_own() -> None:
    failure = FailureDetails(error_type="E", error_message="m" * 31_000)
    event = ExecutionCompleted(timestamp=NOW, event_id=1, status=Status.FAILED, result="r" * 31_000, failure=failure)
    entity = encode_event(event, instance_id="a", execution_id="e", ordinal=0)
    spilled, blobs = spill_columns(entity, "c")
    assert len({blob.name for blob in blobs}) == 2
    assert {name.split("-")[-1] for name in blob_columns(spilled).values()} == {
        "Result.json.gz",
        "FailureDetails.json.gz",
    }
    texts = {blob.name: decompress(blob.body) for blob in blobs}
    again = restore(spilled, {column: texts[name] for column, name in blob_columns(spilled).items()})
    assert again == entity
    assert decode_event(again) == event
    assert set(edm(spilled)) == {*edm(entity), "ResultBlobName", "FailureDetailsBlobName"}


def test_the_columns_are_dotnets_nine() -> None:
    assert len(COLUMNS) == 9
    row = Entity(partition_key="a", row_key="0", properties={"EventType": "GenericEvent", "Data": "x" * 40_000})
    assert spill_columns(row, "c") == (row, ())


@pytest.mark.rows("K30")
def test_two_spills_of_one_row_never_share_a_blob() -> None:
    """A checkpoint that is tried again must not overwrite what a committed row names."""
    names = {spill_columns(completed("x" * 31_000), "c")[1][0].name for _ in range(20)}
    assert len(names) == 20


def rows(*lengths: int) -> list[Entity]:
    return [
        encode_event(
            EventRaised(timestamp=NOW, name="e", input="x" * length), instance_id="a", execution_id="e", ordinal=ordinal
        )
        for ordinal, length in enumerate(lengths)
    ]


@pytest.mark.rows("K28")
@pytest.mark.parametrize(
    ("count", "sizes"), [(0, []), (1, [1]), (99, [99]), (100, [99, 1]), (198, [99, 99]), (199, [99, 99, 1])]
)
def test_at_most_99_rows_and_the_sentinel(count: int, sizes: list[int]) -> None:
    assert [len(group) for group in batches(rows(*[10] * count))] == sizes


@pytest.mark.rows("K28")
def test_a_batch_ends_before_3_mib() -> None:
    """60 rows of 30,000 characters: about 61 KB each by UTF-16."""
    groups = batches(rows(*[30_000] * 60))
    assert [len(group) for group in groups] == [51, 9]
    assert [row for group in groups for row in group] == rows(*[30_000] * 60)


@pytest.mark.rows("K28")
def test_characters_that_a_request_escapes_count_as_it_escapes_them() -> None:
    """By UTF-16 alone a batch of these would be 9 MiB on the wire, and refused for ever."""
    control = [
        encode_event(
            EventRaised(timestamp=NOW, name="e", input="\x01" * 30_000), instance_id="a", execution_id="e", ordinal=n
        )
        for n in range(60)
    ]
    groups = batches(control)
    assert sum(len(group) for group in groups) == 60
    assert all(len(group) * 6 * 30_000 <= BATCH_BYTES for group in groups)


@pytest.mark.rows("K28")
@given(st.lists(st.integers(0, 30_720), max_size=220))
def test_batches_keep_the_order_and_every_bound(lengths: list[int]) -> None:
    made = rows(*lengths)
    groups = batches(made)
    assert [row for group in groups for row in group] == made
    for group in groups:
        assert 1 <= len(group) <= BATCH_ROWS
        texts = sum(utf16_bytes(value) for row in group for value in row.properties.values() if isinstance(value, str))
        assert texts + len(group) * 1024 <= BATCH_BYTES < MAX_TRANSACTION_BYTES
