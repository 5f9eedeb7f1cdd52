"""Containers, block and append blobs, and the leases of containers and blobs."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from airflow_provider_taskhub import codec
from airflow_provider_taskhub.errors import Conflict, InputError, LeaseLost, NotFound, PayloadTooLarge
from airflow_provider_taskhub.storage import primitives
from airflow_provider_taskhub.storage.primitives import BlobInfo, DeleteBlob, PutBlob, Step, Store, Unit

Elapse = Callable[[float], Awaitable[None]]


async def put(
    store: Store,
    container: str,
    name: str,
    data: bytes = b"data",
    *,
    if_absent: bool = False,
    etag: str | None = None,
    lease_id: str | None = None,
) -> str:
    written = await store.execute(
        PutBlob(container=container, name=name, data=data, if_absent=if_absent, etag=etag, lease_id=lease_id)
    )
    assert isinstance(written, str)
    return written


async def content(store: Store, container: str, name: str) -> bytes | None:
    blob = await store.get_blob(container, name)
    return None if blob is None else blob.data


async def names(store: Store, container: str, prefix: str = "") -> list[str]:
    return [item.name for item in await store.list_blobs(container, prefix)]


# --- blobs


async def test_a_blob_is_written_read_and_deleted(store: Store, container: str) -> None:
    data = bytes(range(256)) * 1000
    etag = await store.execute(
        PutBlob(container=container, name="a/b.json", data=data, content_type="application/json")
    )
    blob = await store.get_blob(container, "a/b.json")
    assert blob is not None
    assert (blob.data, blob.etag, blob.content_type) == (data, etag, "application/json")
    await store.execute(DeleteBlob(container=container, name="a/b.json"))
    await store.execute(DeleteBlob(container=container, name="a/b.json"))  # an absent one is no error
    assert await store.get_blob(container, "a/b.json") is None


async def test_put_replaces_and_changes_the_etag(store: Store, container: str) -> None:
    first = await put(store, container, "x", b"one")
    second = await put(store, container, "x", b"two")
    assert first != second
    assert await content(store, container, "x") == b"two"


async def test_empty_blobs_are_blobs(store: Store, container: str) -> None:
    await put(store, container, "x", b"")
    assert await content(store, container, "x") == b""


async def test_if_it_has_the_etag(store: Store, container: str) -> None:
    mine = str(uuid4())
    first = await put(store, container, "x", b"one")
    second = await put(store, container, "x", b"two", etag=first)
    with pytest.raises(Conflict):
        await put(store, container, "x", b"three", etag=first)
    await store.acquire_lease(container, "x", lease_id=mine, seconds=15)  # which changes no ETag
    await store.renew_lease(container, "x", lease_id=mine)
    with pytest.raises(LeaseLost):
        await put(store, container, "x", b"three", etag=second)
    third = await put(store, container, "x", b"three", etag=second, lease_id=mine)
    await store.release_lease(container, "x", lease_id=mine)
    with pytest.raises(LeaseLost):
        await put(store, container, "x", b"four", etag=third, lease_id=mine)
    await put(store, container, "x", b"four", etag=third)
    with pytest.raises(Conflict):
        await put(store, container, "absent", etag=third)
    assert await content(store, container, "x") == b"four"


async def test_a_put_if_absent_conflicts_with_an_existing_blob(store: Store, container: str) -> None:
    await put(store, container, "x", b"one", if_absent=True)
    with pytest.raises(Conflict):
        await put(store, container, "x", b"two", if_absent=True)
    assert await content(store, container, "x") == b"one"


async def test_of_many_creators_one_wins(store: Store, container: str) -> None:
    outcomes = await asyncio.gather(
        *(put(store, container, "x", b"%d" % number, if_absent=True) for number in range(8)), return_exceptions=True
    )
    winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, str)]
    assert len(winners) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 7
    assert await content(store, container, "x") == b"%d" % winners[0]


async def test_blobs_are_listed_by_prefix_in_the_order_of_their_names(store: Store, container: str) -> None:
    for name in ("b/2", "a/1", "b/10", "b", "c", "b/ü"):
        await put(store, container, name, name.encode())
    assert await store.list_blobs(container, "b/") == [
        BlobInfo(name="b/10", size=4),
        BlobInfo(name="b/2", size=3),
        BlobInfo(name="b/ü", size=4),
    ]
    assert await names(store, container) == ["a/1", "b", "b/10", "b/2", "b/ü", "c"]
    assert await names(store, container, "d") == []


@pytest.mark.parametrize("name", ["it's", "a b", "50%", "%2F", "a+b&c=d", "ü😀", "a?b#c", "x" * 1024, "$root", "@a"])
async def test_names_come_back_as_they_went(store: Store, container: str, name: str) -> None:
    await put(store, container, name, b"1")
    assert await names(store, container) == [name]
    assert await content(store, container, name) == b"1"


@pytest.mark.parametrize(
    "name", ["", "x" * 1025, "a\\b", "a\x00", "a\n", "a.", "a./b", "..", "/a", "a/", "a/" * 254 + "a"]
)
async def test_names_that_azure_refuses(store: Store, container: str, name: str) -> None:
    with pytest.raises(InputError, match="blob name"):
        await put(store, container, name)
    with pytest.raises(InputError, match="blob name"):
        await store.get_blob(container, name)


async def test_an_absent_container_refuses_writes_and_reads_as_empty(store: Store, fresh: str) -> None:
    with pytest.raises(NotFound):
        await put(store, fresh, "x")
    with pytest.raises(NotFound):
        await store.append_blob(fresh, "x", b"1")
    assert await store.get_blob(fresh, "x") is None
    assert await store.list_blobs(fresh) == []
    await store.execute(DeleteBlob(container=fresh, name="x"))
    await store.delete_container(fresh)


async def test_a_container_has_an_address(store: Store) -> None:
    address = store.container_url("taskhub-largemessages")
    assert address.endswith("/taskhub-largemessages")
    assert "://" in address


async def test_create_and_delete_containers(store: Store, container: str) -> None:
    assert await store.create_container(container) is False
    await put(store, container, "x")
    await store.delete_container(container)
    assert await store.list_blobs(container) == []
    assert await store.create_container(container) is True
    assert await store.list_blobs(container) == []


@pytest.mark.parametrize("name", ["ab", "Abc", "a--b", "-ab", "ab-", "a_b", "x" * 64, "a.b"])
async def test_container_and_queue_names_that_azure_refuses(store: Store, name: str) -> None:
    with pytest.raises(InputError, match="container name"):
        await store.create_container(name)
    with pytest.raises(InputError, match="queue name"):
        await store.create_queue(name)


async def test_container_and_queue_names_that_azure_takes(store: Store, fresh: str) -> None:
    name = f"{fresh}-{'x' * (62 - len(fresh))}"
    assert len(name) == 63
    assert await store.create_queue(name) is True
    assert await store.create_container(name) is True


# --- append blobs


async def test_each_append_adds_to_the_end_of_the_blob_and_changes_its_etag(store: Store, container: str) -> None:
    await store.append_blob(container, "log", b"one,")
    first = await store.get_blob(container, "log")
    await store.append_blob(container, "log", b"two,")
    await store.append_blob(container, "log", b"three")
    blob = await store.get_blob(container, "log")
    assert first is not None
    assert blob is not None
    assert blob.data == b"one,two,three"
    assert blob.etag != first.etag
    assert await store.list_blobs(container) == [BlobInfo(name="log", size=13)]


async def test_an_append_returns_the_size_of_the_blob(store: Store, container: str) -> None:
    assert await store.append_blob(container, "log", b"one,") == 4
    assert await store.append_blob(container, "log", b"two,") == 8
    await store.execute(DeleteBlob(container=container, name="log"))
    assert await store.append_blob(container, "log", b"new") == 3


async def test_any_part_of_an_append_blob_can_be_read(store: Store, container: str) -> None:
    whole = b"one,two,three"
    for piece in (b"one,", b"two,", b"three"):
        await store.append_blob(container, "log", piece)
    for offset in range(len(whole) + 2):
        for length in (1, 3, 4, 100):
            found = await store.get_blob_range(container, "log", offset=offset, length=length)
            assert found == whole[offset : offset + length], f"{length} bytes from byte {offset}"


async def test_a_part_of_a_block_blob_of_an_empty_and_of_a_missing_blob(store: Store, container: str) -> None:
    await put(store, container, "block", b"0123456789")
    assert await store.get_blob_range(container, "block", offset=8, length=10) == b"89"
    await put(store, container, "empty", b"")
    assert await store.get_blob_range(container, "empty", offset=0, length=10) == b""
    assert await store.get_blob_range(container, "missing", offset=0, length=10) is None


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, 0)])
async def test_a_part_has_at_least_one_byte_from_byte_0_on(
    store: Store, container: str, offset: int, length: int
) -> None:
    with pytest.raises(InputError, match="at least 1 byte from byte 0 on"):
        await store.get_blob_range(container, "log", offset=offset, length=length)


async def test_concurrent_appends_are_all_there(store: Store, container: str) -> None:
    await store.append_blob(container, "log", b"<>")
    await asyncio.gather(*(store.append_blob(container, "log", b"<%d>" % number) for number in range(20)))
    found = await content(store, container, "log")
    assert found is not None
    assert sorted(found.split(b"><")) == sorted((b"<><" + b"><".join(b"%d" % n for n in range(20)) + b">").split(b"><"))


async def test_a_block_blob_cannot_be_appended_to(store: Store, container: str) -> None:
    await put(store, container, "x")
    with pytest.raises(Conflict):
        await store.append_blob(container, "x", b"more")
    assert await content(store, container, "x") == b"data"


async def test_a_deleted_append_blob_begins_anew(store: Store, container: str) -> None:
    await store.append_blob(container, "log", b"old")
    await store.execute(DeleteBlob(container=container, name="log"))
    await store.append_blob(container, "log", b"new")
    assert await content(store, container, "log") == b"new"


async def test_appends_of_1_byte_to_4_mib(store: Store, container: str) -> None:
    with pytest.raises(InputError, match="data is empty"):
        await store.append_blob(container, "log", b"")
    with pytest.raises(PayloadTooLarge):
        await store.append_blob(container, "log", b"x" * (4 * 1024 * 1024 + 1))
    await store.append_blob(container, "log", b"x" * (4 * 1024 * 1024))
    assert await store.list_blobs(container) == [BlobInfo(name="log", size=4 * 1024 * 1024)]


# --- leases, of a blob and of its container


@pytest.fixture(params=["blob", "container"])
async def target(store: Store, container: str, request: pytest.FixtureRequest) -> tuple[str, str | None]:
    if request.param == "container":
        return container, None
    await put(store, container, "leased")
    return container, "leased"


Target = tuple[str, str | None]


async def test_a_lease_keeps_others_out(store: Store, target: Target) -> None:
    mine, theirs = str(uuid4()), str(uuid4())
    await store.acquire_lease(*target, lease_id=mine, seconds=60)
    with pytest.raises(LeaseLost):
        await store.acquire_lease(*target, lease_id=theirs, seconds=60)
    with pytest.raises(LeaseLost):
        await store.renew_lease(*target, lease_id=theirs)
    with pytest.raises(LeaseLost):
        await store.release_lease(*target, lease_id=theirs)
    with pytest.raises(LeaseLost):
        await store.change_lease(*target, lease_id=theirs, new_lease_id=str(uuid4()))
    await store.renew_lease(*target, lease_id=mine)
    await store.acquire_lease(*target, lease_id=mine, seconds=15)  # again under the same id: renewed


async def test_release_lets_others_in(store: Store, target: Target) -> None:
    mine, theirs = str(uuid4()), str(uuid4())
    await store.acquire_lease(*target, lease_id=mine, seconds=60)
    await store.release_lease(*target, lease_id=mine)
    with pytest.raises(LeaseLost):
        await store.renew_lease(*target, lease_id=mine)
    with pytest.raises(LeaseLost):
        await store.release_lease(*target, lease_id=mine)
    await store.acquire_lease(*target, lease_id=theirs, seconds=60)


async def test_change_takes_the_lease_over(store: Store, target: Target) -> None:
    mine, theirs = str(uuid4()), str(uuid4())
    await store.acquire_lease(*target, lease_id=mine, seconds=60)
    await store.change_lease(*target, lease_id=mine, new_lease_id=theirs)
    with pytest.raises(LeaseLost):
        await store.renew_lease(*target, lease_id=mine)
    await store.renew_lease(*target, lease_id=theirs)
    await store.release_lease(*target, lease_id=theirs)


async def test_of_many_takers_one_wins(store: Store, target: Target) -> None:
    outcomes = await asyncio.gather(
        *(store.acquire_lease(*target, lease_id=str(uuid4()), seconds=60) for _ in range(8)), return_exceptions=True
    )
    assert sum(outcome is None for outcome in outcomes) == 1
    assert sum(isinstance(outcome, LeaseLost) for outcome in outcomes) == 7


async def test_leases_of_what_is_absent(store: Store, container: str, fresh: str) -> None:
    lease = str(uuid4())
    for target in ((container, "absent"), (f"{fresh}-absent", None)):
        with pytest.raises(NotFound):
            await store.acquire_lease(*target, lease_id=lease, seconds=60)
        with pytest.raises(NotFound):
            await store.renew_lease(*target, lease_id=lease)
        with pytest.raises(NotFound):
            await store.release_lease(*target, lease_id=lease)


async def test_a_leased_blob_is_written_with_its_lease_only(store: Store, container: str) -> None:
    mine = str(uuid4())
    await put(store, container, "x", b"one")
    await store.acquire_lease(container, "x", lease_id=mine, seconds=60)
    for lease_id in (None, str(uuid4())):
        with pytest.raises(LeaseLost):
            await put(store, container, "x", b"two", lease_id=lease_id)
    with pytest.raises(LeaseLost):
        await store.execute(DeleteBlob(container=container, name="x"))
    await put(store, container, "x", b"three", lease_id=mine)
    await store.renew_lease(container, "x", lease_id=mine)
    await store.release_lease(container, "x", lease_id=mine)
    await put(store, container, "x", b"four")
    with pytest.raises(LeaseLost):
        await put(store, container, "x", b"five", lease_id=mine)
    assert await content(store, container, "x") == b"four"


async def test_a_leased_container_is_not_deleted(store: Store, container: str) -> None:
    mine = str(uuid4())
    await store.acquire_lease(container, None, lease_id=mine, seconds=60)
    await put(store, container, "x")  # its blobs are free
    with pytest.raises(LeaseLost):
        await store.delete_container(container)
    await store.release_lease(container, None, lease_id=mine)
    await store.delete_container(container)
    assert await store.list_blobs(container) == []


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_an_expired_lease_can_be_renewed_until_another_holder_takes_it(
    store: Store, target: Target, elapse: Elapse
) -> None:
    """In virtual time: the shortest lease is 15 s."""
    mine, theirs = str(uuid4()), str(uuid4())
    await store.acquire_lease(*target, lease_id=mine, seconds=15)
    await elapse(14.9)
    with pytest.raises(LeaseLost):
        await store.acquire_lease(*target, lease_id=theirs, seconds=15)
    await store.renew_lease(*target, lease_id=mine)
    await elapse(14.9)
    await store.renew_lease(*target, lease_id=mine)
    await elapse(15.1)
    await store.renew_lease(*target, lease_id=mine)  # expired, but nobody took it
    await elapse(15.1)
    with pytest.raises(LeaseLost):
        await store.change_lease(*target, lease_id=mine, new_lease_id=str(uuid4()))
    await store.acquire_lease(*target, lease_id=theirs, seconds=15)
    with pytest.raises(LeaseLost):
        await store.renew_lease(*target, lease_id=mine)


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_an_expired_lease_ends_with_the_next_write(store: Store, container: str, elapse: Elapse) -> None:
    mine = str(uuid4())
    await put(store, container, "x", b"one")
    await store.acquire_lease(container, "x", lease_id=mine, seconds=15)
    await elapse(15.1)
    with pytest.raises(LeaseLost):
        await put(store, container, "x", b"two", lease_id=mine)
    await put(store, container, "x", b"three")
    with pytest.raises(LeaseLost):
        await store.renew_lease(container, "x", lease_id=mine)


@pytest.mark.parametrize("seconds", [14, 61, 0, -1])
async def test_leases_of_15_to_60_seconds(store: Store, target: Target, seconds: int) -> None:
    with pytest.raises(InputError, match="15 to 60"):
        await store.acquire_lease(*target, lease_id=str(uuid4()), seconds=seconds)


async def test_lease_ids_are_guids(store: Store, target: Target) -> None:
    with pytest.raises(InputError, match="GUID"):
        await store.acquire_lease(*target, lease_id="me", seconds=60)


async def test_each_blob_request_is_counted_by_its_kind(store: Store, container: str) -> None:
    lease = str(uuid4())
    store.requests.clear()
    await put(store, container, "x")
    await store.get_blob(container, "x")
    await store.get_blob_range(container, "x", offset=1, length=2)
    await store.list_blobs(container)
    await store.acquire_lease(container, "x", lease_id=lease, seconds=60)
    await store.release_lease(container, "x", lease_id=lease)
    await store.execute(DeleteBlob(container=container, name="x"))
    await store.create_container(container)
    assert dict(store.requests) == {
        "blob.put": 1,
        "blob.get": 2,
        "blob.list": 1,
        "blob.lease": 2,
        "blob.delete": 1,
        "admin": 1,
    }


# --- texts


@pytest.mark.rows("K30")
async def test_a_text_is_stored_as_gzip_and_read_back(store: Store, container: str) -> None:
    for length in (0, 10, codec.SLOW + 1):
        text = "ä" * length
        put = PutBlob(container=container, name="x.json.gz", data=codec.Packed(text))
        await store.commit(Unit(steps=(Step(name="payloads", operations=(put,)),)))
        stored = await content(store, container, "x.json.gz")
        assert stored is not None
        assert gzip.decompress(stored).decode() == text, "plain gzip, as .NET reads it"
        assert await store.get_text(container, "x.json.gz") == text
    await put_plain(store, container, b"plain")
    assert await store.get_text(container, "x.json.gz") == "plain"
    await put_plain(store, container, b"\x1f\x8b nonsense")
    with pytest.raises(InputError, match="not gzip of UTF-8"):
        await store.get_text(container, "x.json.gz")
    assert await store.get_text(container, "nothing") is None


async def put_plain(store: Store, container: str, data: bytes) -> None:
    await store.execute(PutBlob(container=container, name="x.json.gz", data=data))


@pytest.mark.rows("K39")
@pytest.mark.parametrize("together", [False, True], ids=["alone", "in a unit"])
async def test_only_large_texts_are_worked_on_beside_the_loop(
    store: Store, container: str, kind: str, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """The loop renews what it holds meanwhile. A store in memory works in its caller's thread, as in all it does."""
    threads: dict[str, list[int]] = {}
    for name in ("compress", "decompress"):
        real = getattr(codec, name)

        def seen(value: Any, real: Any = real, name: str = name) -> Any:
            threads.setdefault(name, []).append(threading.get_ident())
            return real(value)

        monkeypatch.setattr(codec, name, seen)
        if hasattr(primitives, name):
            monkeypatch.setattr(primitives, name, seen)
    here = threading.get_ident()
    for length, beside in ((codec.SLOW, False), (codec.SLOW + 1, kind != "memory")):
        threads.clear()
        put = PutBlob(container=container, name="x", data=codec.Packed("x" * length))
        if together:
            await store.commit(Unit(steps=(Step(name="payloads", operations=(put,)),)))
        else:
            await store.execute(put)
        assert await store.get_text(container, "x") == "x" * length
        assert {name: [thread != here for thread in found] for name, found in threads.items()} == {
            "compress": [beside],
            "decompress": [beside],
        }
