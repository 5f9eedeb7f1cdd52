"""Signs of owners: how they are written, and when the map that they carry on is worth nothing (T85)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_taskhub.hub.partitions.lease import NOBODY, Lease, Sightings
from airflow_provider_taskhub.hub.partitions.liveness import (
    MAX_LATENESS,
    Advertisement,
    LeaseMap,
    Sign,
    decode_signs,
    encode_signs,
)
from airflow_provider_taskhub.storage.primitives import MAX_PROPERTY_BYTES

LEASES = tuple(
    Lease(queue=f"h-control-0{number}", owner=owner, epoch=number + 1, renewals=10, etag="x")
    for number, owner in enumerate(("me", "a", "b"))
)
SERVING = {
    "me": Advertisement(),
    "a": Advertisement(signs={1: Sign(2, 11, 2.5)}, due=5.0),
    "b": Advertisement(signs={2: Sign(3, 12)}, due=-MAX_LATENESS + 0.1),
}


def told(
    change: Callable[[dict[str, Any]], None] = lambda situation: None, *, at: float = 110.0
) -> tuple[Lease, ...] | None:
    """What the map says at a second, after all leases were read at second 100."""
    situation: dict[str, Any] = {
        "leases": {lease.partition: lease for lease in LEASES},
        "advertised": dict(SERVING),
        "mine": {0: LEASES[0]},
        "offline": set(),
        "dead": set(),
    }
    change(situation)
    sightings = Sightings()
    for lease in situation["leases"].values():
        sightings.note(lease.queue, lease.life, 100.0)
    known = LeaseMap(sightings, 15.0)
    known.read(situation.pop("leases").values())
    return known.by_advertisements(3, situation.pop("advertised"), me="me", now=at, **situation)


def test_signs_come_back_as_they_were_written() -> None:
    signs = {0: Sign(1, 2), 7: Sign(3, 4, 0.125)}
    assert decode_signs(encode_signs(Advertisement(signs=signs))) == signs
    assert decode_signs("") == decode_signs(None) == decode_signs(5) == {}
    assert decode_signs("x 1:2 3:4:5 6:7:8:nonsense 9:1:1") == {3: Sign(4, 5), 9: Sign(1, 1)}


def test_a_worker_that_serves_all_of_the_largest_hub_can_say_so() -> None:
    signs = {number: Sign(99_999, 9_999_999_999, 1234.5) for number in range(1024)}
    assert len(encode_signs(Advertisement(signs=signs))) * 2 <= MAX_PROPERTY_BYTES


@pytest.mark.rows("T85", "T76")
def test_where_all_is_as_owners_say_no_lease_is_read() -> None:
    leases = told()
    assert leases is not None
    assert [(lease.owner, lease.renewals, lease.load) for lease in leases] == [
        ("me", 10, None),
        ("a", 11, 2.5),
        ("b", 12, None),
    ]


def lease(number: int, **changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(situation: dict[str, Any]) -> None:
        situation["leases"][number] = replace(situation["leases"][number], **changes)

    return change


def said(sign: Sign, due: float = 5.0) -> Advertisement:
    return Advertisement(signs={1: sign}, due=due)


def put(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda situation: situation.update({name: value})


@pytest.mark.rows("T85")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda situation: situation["leases"].clear(), id="nothing was read yet"),
        pytest.param(lambda situation: situation["leases"].pop(1), id="a row was missing"),
        pytest.param(lease(1, owner=None), id="nobody's"),
        pytest.param(lease(1, next_owner="b"), id="asked for"),
        pytest.param(lease(1, next_owner=NOBODY), id="kicked"),
        pytest.param(lease(1, draining=True), id="being handed over"),
        pytest.param(lease(1, renewals=None), id="an owner of another kind"),
        pytest.param(lease(1, epoch=1), id="another tenure"),
        pytest.param(put("mine", {}), id="mine, and not served"),
        pytest.param(put("mine", {0: replace(LEASES[0], epoch=5)}), id="mine in another tenure"),
        pytest.param(put("mine", {0: replace(LEASES[0], next_owner="b")}), id="mine and asked for"),
        pytest.param(put("dead", {"a"}), id="its owner is proven dead"),
        pytest.param(put("advertised", {"b": SERVING["b"]}), id="its owner is not listed"),
        pytest.param(put("advertised", SERVING | {"a": Advertisement()}), id="its owner does not name it"),
        pytest.param(put("advertised", SERVING | {"c": Advertisement(moving=True)}), id="somebody hands over or waits"),
        pytest.param(
            put("advertised", SERVING | {"a": said(Sign(2, 11), due=-MAX_LATENESS)}), id="its owner's word is late"
        ),
        pytest.param(put("advertised", SERVING | {"a": said(Sign(2, 10))}), id="no new sign for too long"),
        pytest.param(put("advertised", SERVING | {"a": said(Sign(2, 9))}), id="an old sign only"),
    ],
)
def test_where_anything_is_not_so_the_leases_are_read(change: Callable[[dict[str, Any]], None]) -> None:
    assert told(change, at=115.0) is None


@pytest.mark.rows("T85", "T64")
def test_what_is_to_have_no_owner_need_not_be_looked_at() -> None:
    def offline(situation: dict[str, Any]) -> None:
        lease(1, owner=None)(situation)
        situation["offline"] = {1}

    assert told(offline) is not None


@pytest.mark.rows("T85")
def test_a_sign_that_is_young_enough_needs_no_newer_one() -> None:
    assert told(put("advertised", SERVING | {"a": said(Sign(2, 10))}), at=114.9) is not None
