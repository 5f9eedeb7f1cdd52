"""The blob with the rows that a generation switch has not written yet."""

from __future__ import annotations

import pytest

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hub.formats import unwritten_rows
from airflow_provider_taskhub.hub.formats.history_rows import Sentinel, decode_sentinel, encode_sentinel
from airflow_provider_taskhub.hub.formats.keys import owns
from airflow_provider_taskhub.storage.primitives import Entity, Int64, Property
from tests.hub.by_hand import GEN0, NOW


@pytest.mark.rows("K28", "K52")
def test_each_value_of_a_column_comes_back_with_its_type() -> None:
    properties: dict[str, Property | None] = {
        "a": "\u00e9\ud800",
        "b": True,
        "c": 7,
        "d": Int64(2**40),
        "e": 0.5,
        "f": NOW,
        "g": None,
    }
    row = Entity(partition_key="i^0j", row_key="0000000000000063", properties=properties)
    found = unwritten_rows.decode(unwritten_rows.encode([row], "{}"), "i/j")
    assert found == unwritten_rows.UnwrittenRows(rows=(row,), awaits="{}")
    assert {name: type(value) for name, value in found.rows[0].properties.items()} == {
        name: type(value) for name, value in properties.items()
    }


@pytest.mark.rows("K28")
@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"rows":[1],"awaits":""}', '{"rows":[["0",{"a":[]}]],"awaits":""}']
)
def test_a_damaged_blob_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="it holds no history rows"):
        unwritten_rows.decode(text, "i")


@pytest.mark.rows("K28", "K30")
@pytest.mark.parametrize("instance_id", ["one", "a/b", "dot.", "^x"])
def test_the_blob_belongs_to_its_instance_and_to_its_commit(instance_id: str) -> None:
    blob = unwritten_rows.blob_name(instance_id, "c1")
    assert owns(instance_id, blob)
    for commit_id, expected in (("c1", blob), ("c2", None)):
        sentinel = Sentinel(execution_id=GEN0, complete=False, commit_id=commit_id, committed_rows=99, unwritten=blob)
        assert decode_sentinel(encode_sentinel(sentinel, instance_id=instance_id)).unwritten == expected
