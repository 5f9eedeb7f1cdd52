"""Rows and filters on the wire: exact types both ways."""

from __future__ import annotations

import json
import math
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.storage.azure.rest.odata import decode_row, encode_filter, encode_row, row_path
from airflow_provider_taskhub.storage.primitives import And, Compare, Entity, Int64, Or, Property

GUID = UUID("12345678-1234-5678-1234-567812345678")
TIME = Timestamp.parse("2026-11-21T08:55:27.2669147Z")
LAST = Timestamp.parse("9999-12-31T23:59:59.9999999Z").ticks

properties = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.floats(allow_nan=False),
    st.integers(Timestamp.parse("1601-01-01T00:00:00Z").ticks, LAST).map(Timestamp),
    st.uuids(),
    st.binary(max_size=50),
)


@given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True), properties, max_size=8))
def test_rows_come_back_as_they_went_types_included(columns: dict[str, Property]) -> None:
    for own in ("PartitionKey", "RowKey", "Timestamp"):
        columns.pop(own, None)
    sent = Entity(partition_key="p", row_key="r", properties=columns)
    back = decode_row(json.loads(encode_row(sent)))
    assert back.properties == columns
    assert {name: type(value) for name, value in back.properties.items()} == {
        name: type(value) for name, value in columns.items()
    }


def test_wire_types_are_those_of_the_service() -> None:
    row = Entity(
        partition_key="p",
        row_key="r",
        properties={
            "text": "x",
            "yes": True,
            "small": 5,
            "large": Int64(5),
            "whole": 5.0,
            "time": TIME,
            "id": GUID,
            "bytes": b"\x00\xff",
            "none": None,
        },
    )
    assert json.loads(encode_row(row)) == {
        "PartitionKey": "p",
        "RowKey": "r",
        "text": "x",
        "yes": True,
        "small": 5,
        "large": "5",
        "large@odata.type": "Edm.Int64",
        "whole": 5.0,
        "whole@odata.type": "Edm.Double",
        "time": "2026-11-21T08:55:27.2669147Z",
        "time@odata.type": "Edm.DateTime",
        "id": str(GUID),
        "id@odata.type": "Edm.Guid",
        "bytes": "AP8=",
        "bytes@odata.type": "Edm.Binary",
    }


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_doubles_that_json_cannot_write(text: str) -> None:
    value = float(text.replace("Infinity", "inf"))
    body = json.loads(encode_row(Entity(partition_key="p", row_key="r", properties={"d": value})))
    assert body["d"] == text
    back = decode_row(body).properties["d"]
    assert isinstance(back, float)
    assert back == value or (math.isnan(back) and math.isnan(value))


def test_what_azure_sends_is_read() -> None:
    row = decode_row(
        {
            "odata.metadata": "https://x/$metadata#T/@Element",
            "odata.etag": "W/\"datetime'2026-11-21T08%3A55%3A27.2669147Z'\"",
            "PartitionKey": "p",
            "RowKey": "",
            "Timestamp": "2026-11-21T08:55:27.2669147Z",
            "ratio": 1.5,
            "whole": 5,
            "whole@odata.type": "Edm.Double",
            "count": 7,
            "selected but absent": None,
        }
    )
    assert row.timestamp == TIME
    assert row.etag == "W/\"datetime'2026-11-21T08%3A55%3A27.2669147Z'\""
    assert row.properties == {"ratio": 1.5, "whole": 5.0, "count": 7}
    assert isinstance(row.properties["whole"], float)


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        ("it's", "'it''s'"),
        (True, "true"),
        (False, "false"),
        (5, "5"),
        (Int64(5), "5L"),
        (5.0, "5.0"),
        (1e300, "1e+300"),
        (TIME, "datetime'2026-11-21T08:55:27.2669147Z'"),
        (GUID, f"guid'{GUID}'"),
        (b"\x00\xff", "X'00ff'"),
    ],
)
def test_each_type_of_value_has_its_literal_in_a_filter(value: Property, literal: str) -> None:
    assert encode_filter(Compare("column", "ge", value)) == f"column ge {literal}"


def test_filters_keep_their_shape() -> None:
    filter = Or((And((Compare("a", "eq", 1), Compare("b", "lt", "x"))), Compare("c", "ne", True)))
    assert encode_filter(filter) == "((a eq 1 and b lt 'x') or c ne true)"


def test_keys_in_a_path_are_quoted_and_encoded() -> None:
    assert row_path("T", "it's 100%", "ü+") == "/T(PartitionKey='it%27%27s%20100%25',RowKey='%C3%BC%2B')"
