"""What only the Azure store promises, on a real Azurite: ways in, budgets, order of steps."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import aiohttp
import pytest

from airflow_provider_taskhub.demo.azurite import KEY
from airflow_provider_taskhub.errors import AccessDenied, Conflict, LeaseLost, Unavailable
from airflow_provider_taskhub.storage.azure.rest.request import Request, Response, Wire
from airflow_provider_taskhub.storage.azure.sdk.clients import Clients
from airflow_provider_taskhub.storage.azure.store import PARALLEL, AzureStore
from airflow_provider_taskhub.storage.primitives import (
    Compare,
    DeleteMessage,
    Entity,
    EtagOf,
    PutBlob,
    PutMessage,
    RowOperation,
    RowVerb,
    Step,
    Transact,
    Unit,
    UpdateMessage,
)
from tests.waiting import PATIENCE

TIMEOUT = timedelta(seconds=30)


@pytest.fixture
async def store(azurite: str) -> AsyncIterator[AzureStore]:
    async with AzureStore(azurite, timeout=TIMEOUT) as opened:
        yield opened


@pytest.fixture
async def name(store: AzureStore) -> str:
    """A queue, a table and a container of this name."""
    fresh = f"t{uuid4().hex[:16]}"
    await asyncio.gather(store.create_queue(fresh), store.create_table(fresh), store.create_container(fresh))
    store.requests.clear()
    return fresh


def row(verb: RowVerb, key: str, etag: str | EtagOf | None = None, **columns: int) -> RowOperation:
    return RowOperation(verb=verb, entity=Entity(partition_key="p", row_key=key, properties=columns), etag=etag)


def signed(connection: str) -> str:
    """The same account with a shared access signature instead of its key."""
    start, end, version = "2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "2020-12-06"
    fields = ["devstoreaccount1", "rwdlacup", "bqt", "sco", start, end, "", "https,http", version, "", ""]
    digest = hmac.new(base64.b64decode(KEY), "\n".join(fields).encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode().replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
    token = f"sv={version}&ss=bqt&srt=sco&sp=rwdlacup&st={start}&se={end}&spr=https,http&sig={signature}"
    return re.sub(r"AccountKey=[^;]+", f"SharedAccessSignature={token}", connection)


async def test_a_shared_access_signature_is_let_in_everywhere(azurite: str, name: str) -> None:
    async with AzureStore(signed(azurite), timeout=TIMEOUT) as store:
        await store.execute(PutMessage(queue=name, text="x"))
        assert len(await store.receive(name, limit=1, visibility=timedelta(seconds=1))) == 1
        await store.execute(Transact(table=name, rows=(row(RowVerb.INSERT, "a", n=1), row(RowVerb.INSERT, "b", n=2))))
        page = await store.query(name, Compare("n", "eq", 2))
        assert [each.row_key for each in page.entities] == ["b"]
        await store.execute(PutBlob(container=name, name="a/b", data=b"x"))
        assert [each.name for each in await store.list_blobs(name, "a/")] == ["a/b"]
        await store.append_blob(name, "log", b"x")
        await store.acquire_lease(name, "log", lease_id=str(uuid4()), seconds=15)


@pytest.mark.parametrize(
    "ask",
    [lambda store: store.list_queues(""), lambda store: store.list_tables(), lambda store: store.get_blob("box", "b")],
    ids=["queue", "table", "blob"],
)
async def test_a_wrong_key_is_a_refusal_that_shows_no_key(
    azurite: str, ask: Callable[[AzureStore], Awaitable[object]]
) -> None:
    wrong = base64.b64encode(b"wrong" * 8).decode()
    async with AzureStore(azurite.replace(KEY, wrong), timeout=TIMEOUT) as store:
        with pytest.raises(AccessDenied, match="refused the credentials") as caught:
            await ask(store)
    assert wrong not in str(caught.value)


async def test_each_operation_is_one_request(store: AzureStore, name: str) -> None:
    receipt = await store.execute(PutMessage(queue=name, text="x", visibility=timedelta(seconds=30)))
    receipt = await store.execute(UpdateMessage(queue=name, message=receipt, visibility=timedelta(seconds=30)))
    await store.execute(DeleteMessage(queue=name, message=receipt))
    await store.receive(name, limit=32, visibility=timedelta(seconds=1))
    await store.peek(name)
    await store.execute(Transact(table=name, rows=(row(RowVerb.INSERT, "a", n=1),)))
    await store.execute(Transact(table=name, rows=(row(RowVerb.UPSERT_MERGE, "a", n=2),)))
    await store.execute(Transact(table=name, rows=(row(RowVerb.MERGE, "a", "*", n=2),)))
    await store.execute(Transact(table=name, rows=tuple(row(RowVerb.INSERT, f"k{n}") for n in range(100))))
    await store.execute(Transact(table=name, rows=(row(RowVerb.DELETE, "a", "*"),)))
    await store.get(name, "p", "a")
    assert len([each async for each in store.rows(name)]) == 100
    await store.execute(PutBlob(container=name, name="b", data=b"x"))
    await store.get_blob(name, "b")
    assert store.requests == {
        "queue.put": 1,
        "queue.update": 1,
        "queue.delete": 1,
        "queue.receive": 1,
        "queue.peek": 1,
        "table.insert": 1,
        "table.upsert": 1,
        "table.update": 1,
        "table.batch": 1,
        "table.delete": 1,
        "table.get": 1,
        "table.query": 1,
        "blob.put": 1,
        "blob.get": 1,
    }


def history(name: str) -> Unit:
    """A checkpoint's shape: messages, then rows, then a row under the ETag just given."""
    return Unit(
        steps=(
            Step(name="messages", operations=tuple(PutMessage(queue=name, text=str(n)) for n in range(3))),
            Step(name="nothing", operations=()),
            Step(name="history", operations=(Transact(table=name, rows=(row(RowVerb.INSERT, "a", n=1),)),)),
            Step(
                name="instance",
                operations=(Transact(table=name, rows=(row(RowVerb.REPLACE, "a", EtagOf(step=2), n=2),)),),
            ),
        )
    )


async def test_rows_that_are_not_there_are_inserted_and_a_wrong_hint_costs_one_request_more(
    azurite: str, store: AzureStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator looks at every row of the hub with the same key for an insert, and twice for an upsert."""
    sent: list[bytes] = []
    send = store._wire.send

    async def listen(request: Request) -> Response:
        sent.append(request.body)
        return await send(request)

    monkeypatch.setattr(store._wire, "send", listen)
    rows = tuple(replace(row(RowVerb.UPSERT_REPLACE, key), absent=True) for key in ("a", "b"))
    for turn, methods in enumerate((["POST"], ["POST", "PUT"])):
        store.requests.clear()
        sent.clear()
        await store.execute(Transact(table=name, rows=(*rows, row(RowVerb.INSERT, str(turn)))))
        assert store.requests == {"table.batch": len(methods)}
        for body, method in zip(sent, methods, strict=True):
            assert [line.split()[0].decode() for line in re.findall(rb"^[A-Z]+ http", body, re.M)] == [method] * 2 + [
                "POST"
            ]


async def test_steps_in_order_with_their_crash_points(azurite: str, name: str) -> None:
    points: list[str] = []

    async def crash(point: str) -> None:
        points.append(point)

    async with AzureStore(azurite, timeout=TIMEOUT, crash=crash) as store:
        results = await store.commit(history(name))
        entity = await store.get(name, "p", "a")
    assert points == ["messages", "after:messages", "history", "after:history", "instance", "after:instance"]
    assert [len(each) for each in results] == [3, 0, 1, 1]
    assert entity is not None
    assert entity.properties == {"n": 2}
    assert results[3][0] == (entity.etag,)


async def test_an_error_names_its_step_and_stops_the_rest(store: AzureStore, name: str) -> None:
    await store.execute(Transact(table=name, rows=(row(RowVerb.INSERT, "a", n=9),)))
    with pytest.raises(Conflict) as caught:
        await store.commit(history(name))
    assert "step: history" in caught.value.__notes__
    entity = await store.get(name, "p", "a")
    assert entity is not None
    assert entity.properties == {"n": 9}
    # the step before stays done: the order of a checkpoint's steps makes that harmless
    assert await store.count(name) == 3


async def test_a_lost_right_is_noticed_before_each_step(store: AzureStore, name: str) -> None:
    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise LeaseLost("the partition is somebody else's")

    unit = history(name)
    with pytest.raises(LeaseLost) as caught:
        await store.commit(Unit(steps=unit.steps, check=check))
    assert caught.value.__notes__ == ["step: history"]
    assert await store.get(name, "p", "a") is None


async def test_a_refused_transaction_names_its_row(store: AzureStore, name: str) -> None:
    await store.execute(Transact(table=name, rows=(row(RowVerb.INSERT, "c"),)))
    rows = tuple(row(RowVerb.INSERT, key) for key in "abcd")
    with pytest.raises(Conflict, match="'c'") as caught:
        await store.execute(Transact(table=name, rows=rows))
    assert caught.value.__notes__ == ["row: 2"]
    assert await store.get(name, "p", "a") is None


async def test_what_is_under_way_ends_before_an_error_is_raised_and_nothing_new_begins(
    store: AzureStore, name: str
) -> None:
    puts = tuple(PutMessage(queue=name, text=str(n)) for n in range(PARALLEL - 1))
    later = tuple(PutMessage(queue=f"{name}later", text=str(n)) for n in range(PARALLEL * 4))
    missing = PutMessage(queue=f"{name}missing", text="x")
    with pytest.raises(Exception, match="QueueNotFound") as caught:
        await store.commit(Unit(steps=(Step(name="messages", operations=(missing, *puts, *later)),)))
    assert f"{name}missing" in str(caught.value)
    assert await store.count(name) == PARALLEL - 1
    assert store.requests["queue.put"] < PARALLEL * 4


async def test_a_put_of_this_process_wakes_who_waits(azurite: str, store: AzureStore, name: str) -> None:
    assert await store.receive(name, limit=1, visibility=timedelta(seconds=1)) == []
    waiting = asyncio.create_task(store.arrival([name], 3600))
    async with AzureStore(azurite, timeout=TIMEOUT) as other:
        await other.execute(PutMessage(queue=name, text="x"))
    assert await waiting
    assert not await store.arrival([name], 0)


PUTS = """
import asyncio, sys
from tests.storage.azure.test_store import TIMEOUT, AzureStore, PutMessage

async def put(connection: str, queue: str) -> None:
    async with AzureStore(connection, timeout=TIMEOUT) as store:
        await store.execute(PutMessage(queue=queue, text="x"))

asyncio.run(put(*sys.argv[1:]))
"""


@pytest.mark.rows("D24")
@pytest.mark.process
async def test_a_put_of_another_process_of_this_machine_wakes_who_waits(
    azurite: str, store: AzureStore, name: str
) -> None:
    assert await store.receive(name, limit=1, visibility=timedelta(seconds=1)) == []
    waiting = asyncio.create_task(store.arrival([name], 3600))
    await asyncio.sleep(0)
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", PUTS, azurite, name], check=True)
    assert await asyncio.wait_for(waiting, PATIENCE) == [name]


async def test_an_emulator_that_is_gone_is_unavailable(azurite: str) -> None:
    gone = re.sub(r"(127\.0\.0\.1):\d+", r"\1:1", azurite)
    async with AzureStore(gone, timeout=TIMEOUT) as store:
        with pytest.raises(Unavailable) as caught:
            await store.execute(PutMessage(queue="queue", text="x"))
    assert not caught.value.maybe_done
    assert KEY not in str(caught.value)


async def test_a_store_that_cannot_be_opened_whole_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Clients) -> Clients:
        raise OSError("no clients today")

    monkeypatch.setattr(Clients, "__aenter__", broken)
    sessions: list[aiohttp.ClientSession] = []
    opened = Wire.__aenter__

    async def seen(self: Wire) -> Wire:
        await opened(self)
        sessions.append(self.session)
        return self

    monkeypatch.setattr(Wire, "__aenter__", seen)
    account = f"DefaultEndpointsProtocol=https;AccountName=acct;AccountKey={KEY};EndpointSuffix=core.windows.net"
    with pytest.raises(OSError, match="no clients today"):
        await AzureStore(account, timeout=TIMEOUT).__aenter__()
    assert [session.closed for session in sessions] == [True]
