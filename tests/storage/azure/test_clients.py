"""Microsoft's clients by our rules: deadlines, lost answers, repetitions, counts, errors, and when they are made."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from airflow_provider_taskhub.errors import AccessDenied, Conflict, NotFound, Throttled, Unavailable
from airflow_provider_taskhub.storage.azure.rest import resend as attempts_module
from airflow_provider_taskhub.storage.azure.rest.account import Credential, Identity, Signature
from airflow_provider_taskhub.storage.azure.rest.request import Wire
from airflow_provider_taskhub.storage.azure.rest.tokens import SCOPE, Tokens
from airflow_provider_taskhub.storage.azure.sdk.blobs import BlobService
from airflow_provider_taskhub.storage.azure.sdk.clients import Clients
from airflow_provider_taskhub.storage.azure.sdk.queues import QueueService
from airflow_provider_taskhub.storage.azure.sdk.tables import TableService
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.storage.primitives import BlobInfo, DeleteBlob, PutBlob
from tests.storage.azure.servers import KEY, FakeCredential, account, serving, silent_until_late

LEASE = str(uuid4())
TIMEOUT = timedelta(seconds=30)


class Services:
    """The three services over one wire."""

    def __init__(self, clients: Clients, requests: Counter[str]) -> None:
        self.queues, self.tables, self.blobs = QueueService(clients), TableService(clients), BlobService(clients)
        self.requests = requests


@asynccontextmanager
async def opened(
    origin: str, *, timeout: float = 10.0, credential: Credential = KEY, tokens: Tokens | None = None
) -> AsyncIterator[Services]:
    requests: Counter[str] = Counter()
    where, limit = account(origin, credential), timedelta(seconds=timeout)
    async with (
        Wire(where, timeout=limit, requests=requests, tokens=tokens) as wire,
        Clients(wire) as clients,
    ):
        yield Services(clients, requests)


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READS", "WRITES"):
        monkeypatch.setattr(attempts_module, name, replace(getattr(attempts_module, name), first=0.0))


Ask = Callable[[Services], Awaitable[object]]
READS: dict[str, Ask] = {
    "list queues": lambda to: to.queues.names(""),
    "peek": lambda to: to.queues.peek("queue", limit=1),
    "count": lambda to: to.queues.count("queue"),
    "list tables": lambda to: to.tables.names("t"),
    "list blobs": lambda to: to.blobs.names("box", ""),
}
WRITES: dict[str, Ask] = {
    "create queue": lambda to: to.queues.create("queue"),
    "delete queue": lambda to: to.queues.delete("queue"),
    "create table": lambda to: to.tables.create("table"),
    "delete table": lambda to: to.tables.delete("table"),
    "create container": lambda to: to.blobs.create_container("box"),
    "delete container": lambda to: to.blobs.delete_container("box"),
    "append": lambda to: to.blobs.append("box", "log", b"x"),
    "delete blob": lambda to: to.blobs.remove(DeleteBlob(container="box", name="b")),
    "acquire": lambda to: to.blobs.acquire("box", "b", lease_id=LEASE, seconds=15),
    "renew": lambda to: to.blobs.renew("box", None, lease_id=LEASE),
    "change": lambda to: to.blobs.change("box", "b", lease_id=LEASE, new_lease_id=LEASE),
    "release": lambda to: to.blobs.release("box", "b", lease_id=LEASE),
}
reads = pytest.mark.parametrize("ask", READS.values(), ids=READS.keys())
writes = pytest.mark.parametrize("ask", WRITES.values(), ids=WRITES.keys())
both = pytest.mark.parametrize(
    ("ask", "safe"),
    [(ask, asks is READS) for asks in (READS, WRITES) for ask in asks.values()],
    ids=[*READS.keys(), *WRITES.keys()],
)


async def hang_up(number: int, writer: asyncio.StreamWriter) -> bool:
    return False


async def broken(number: int, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"HTTP/1.1 500 Oh\r\nx-ms-error-code: InternalError\r\nContent-Length: 0\r\n\r\n")
    return True


# --- what is sent, how often, and what it means


@writes
async def test_a_write_whose_answer_is_lost_is_sent_once(ask: Ask) -> None:
    async with serving(hang_up) as (server, origin), opened(origin) as services:
        with pytest.raises(Unavailable, match="answer was lost") as caught:
            await ask(services)
    assert caught.value.maybe_done
    assert len(server.heads) == services.requests.total() == 1


async def test_a_write_whose_answer_is_lost_is_sent_once_over_a_used_connection_too() -> None:
    async def hang_up_on_the_second(number: int, writer: asyncio.StreamWriter) -> bool:
        if number == 1:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return number == 1

    async with serving(hang_up_on_the_second) as (server, origin), opened(origin) as services:
        await services.blobs.renew("box", "b", lease_id=LEASE)
        # aiohttp by itself would repeat a PUT over a connection that it has used before
        with pytest.raises(Unavailable) as caught:
            await services.blobs.renew("box", "b", lease_id=LEASE)
    assert caught.value.maybe_done
    assert len(server.heads) == 2
    assert services.requests == {"blob.lease": 2}


@both
async def test_a_refused_connection_is_tried_three_times_and_was_certainly_not_done(ask: Ask, safe: bool) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else can take the port
        async with opened(f"http://127.0.0.1:{closed.getsockname()[1]}") as services:
            with pytest.raises(Unavailable, match=r"no connection to http://127\.0\.0\.1") as caught:
                await ask(services)
    assert not caught.value.maybe_done
    assert services.requests.total() == 3


@both
async def test_after_a_server_error_a_read_is_sent_three_times_and_a_write_once(ask: Ask, safe: bool) -> None:
    async with serving(broken) as (server, origin), opened(origin) as services:
        with pytest.raises(Unavailable, match="InternalError"):
            await ask(services)
    assert len(server.heads) == services.requests.total() == (3 if safe else 1)


@pytest.mark.parametrize("ask", [READS["count"], WRITES["renew"], WRITES["create table"]], ids=["read", "put", "post"])
async def test_a_server_that_never_answers_meets_the_deadline(ask: Ask) -> None:
    async with silent_until_late(0.2) as origin, opened(origin, timeout=0.2) as services:
        with pytest.raises(Unavailable, match=r"no answer within 0\.2 s") as caught:
            await ask(services)
    assert caught.value.maybe_done
    assert services.requests.total() == 1


@both
async def test_throttling_is_the_callers_to_wait_for(ask: Ask, safe: bool) -> None:
    async def busy(number: int, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: 4\r\nx-ms-error-code: ServerBusy\r\nContent-Length: 0\r\n\r\n")
        return True

    async with serving(busy) as (server, origin), opened(origin) as services:
        with pytest.raises(Throttled, match="ServerBusy") as caught:
            await ask(services)
    assert caught.value.retry_after == 4.0
    assert len(server.heads) == 1


@pytest.mark.parametrize("what", ["queue", "table", "container"])
async def test_what_is_being_deleted_asks_who_makes_it_for_patience_and_is_gone_for_others(what: str) -> None:
    async def going(number: int, writer: asyncio.StreamWriter) -> bool:
        code = f"{what.capitalize()}BeingDeleted".encode()
        writer.write(b"HTTP/1.1 409 No\r\nx-ms-error-code: " + code + b"\r\nContent-Length: 0\r\n\r\n")
        return True

    async with serving(going) as (_, origin), opened(origin) as services:
        with pytest.raises(Throttled) as caught:
            await WRITES[f"create {what}"](services)
        await WRITES[f"delete {what}"](services)
        with pytest.raises(NotFound):
            await READS["count"](services)
    assert caught.value.retry_after >= 5


@reads
@pytest.mark.parametrize("content_type", ["text/html", "application/xml", "application/json"])
async def test_an_answer_of_a_proxy_is_no_answer(ask: Ask, content_type: str) -> None:
    async def proxy(number: int, writer: asyncio.StreamWriter) -> bool:
        page = b"<html><p>Log in</html>"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(page)}\r\n\r\n"
        writer.write(head.encode() + page)
        return True

    async with serving(proxy) as (_, origin), opened(origin) as services:
        with pytest.raises(Unavailable):
            await ask(services)


async def test_a_redirection_is_refused_and_not_followed() -> None:
    async def elsewhere(number: int, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 302 Go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        return True

    async with serving(elsewhere) as (server, origin), opened(origin) as services:
        with pytest.raises(Exception, match="302"):
            await services.queues.count("queue")
    assert len(server.heads) == 1


async def test_a_page_that_is_lost_is_asked_for_again_and_each_request_is_counted() -> None:
    async def paged(number: int, writer: asyncio.StreamWriter) -> bool:
        if number == 2:
            return False
        marker = "there" if number == 1 else ""
        body = (
            '<?xml version="1.0"?><EnumerationResults ServiceEndpoint="x"><Queues><Queue><Name>'
            f"q{number}</Name></Queue></Queues><NextMarker>{marker}</NextMarker></EnumerationResults>"
        ).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        return True

    async with serving(paged) as (server, origin), opened(origin) as services:
        assert await services.queues.names("q") == ["q1", "q3"]
    assert services.requests == {"admin": 3}
    assert ["marker=there" in head for head in server.heads] == [False, True, True]


# --- who we are


@both
async def test_a_signature_goes_along_and_is_never_shown(ask: Ask, safe: bool) -> None:
    credential = Signature(token="sv=1&sig=topsecretsig")
    async with serving(hang_up) as (server, origin), opened(origin, credential=credential) as services:
        with pytest.raises(Unavailable) as caught:
            await ask(services)
    assert "sig=topsecretsig" in server.heads[0].splitlines()[0]
    assert "topsecret" not in repr(caught.value) + str(caught.value)
    assert caught.value.__cause__ is None


@both
async def test_requests_look_like_our_own(ask: Ask, safe: bool) -> None:
    async with serving(broken) as (server, origin), opened(origin) as services:
        with pytest.raises(Unavailable):
            await ask(services)
    head = server.heads[0].lower()
    assert "x-ms-version: 2020-12-06\r\n" in head
    assert "user-agent: airflow-provider-taskhub/" in head
    assert "authorization: sharedkey acct:" in head


@both
async def test_refused_credentials_quote_nothing_of_the_service(ask: Ask, safe: bool) -> None:
    async def refuse(number: int, writer: asyncio.StreamWriter) -> bool:
        body = b"<Error><Code>AuthenticationFailed</Code><Message>String to sign was topsecret</Message></Error>"
        writer.write(
            b"HTTP/1.1 403 No\r\nContent-Type: application/xml\r\nx-ms-error-code: AuthenticationFailed\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        return True

    async with serving(refuse) as (_, origin), opened(origin) as services:
        with pytest.raises(AccessDenied, match="refused the credentials") as caught:
            await ask(services)
    assert "topsecret" not in str(caught.value)


async def test_all_clients_share_one_token() -> None:
    credential = FakeCredential(lifetime=3600)
    tokens = Tokens(credential)  # type: ignore[arg-type]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        # tokens travel over https only: no connection is made here, but each client asks for its token before
        origin = f"https://127.0.0.1:{closed.getsockname()[1]}"
        async with opened(origin, credential=Identity(), tokens=tokens) as services:
            for ask in (READS["count"], READS["list tables"], READS["list blobs"], WRITES["renew"]):
                with pytest.raises(Unavailable, match="no connection"):
                    await ask(services)
    assert credential.scopes == [SCOPE]
    assert credential.closed


# --- when clients are made, and that they are closed


async def test_clients_are_made_once_and_closed_with_the_store() -> None:
    async with serving(broken) as (_, origin):
        requests: Counter[str] = Counter()
        async with Wire(account(origin), timeout=TIMEOUT, requests=requests) as wire:
            async with Clients(wire) as clients:
                made = await asyncio.gather(*(clients.blobs() for _ in range(5)))
                assert all(each is made[0] for each in made)
            assert not wire.session.closed  # it is the wire's, not the clients'
            session = wire.session
        assert session.closed


async def test_a_store_that_is_not_open_says_so() -> None:
    store = AzureStore("AccountName=flights;AccountKey=c2VjcmV0", timeout=TIMEOUT)
    with pytest.raises(RuntimeError, match="not open"):
        await store.create_queue("queue")


def test_the_hot_path_imports_no_client_and_an_open_store_leaves_nothing_behind(azurite: str) -> None:
    """A task that starts an instance and waits for it does not pay for three packages."""
    program = f"""
import asyncio, sys
from datetime import timedelta
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.storage.primitives import *

def clients():
    return sorted(name for name in ("azure.storage.queue", "azure.data.tables", "azure.storage.blob")
                  if name in sys.modules)

async def main():
    async with AzureStore({azurite!r}, timeout=timedelta(seconds=30)) as store:
        try:
            await store.execute(PutMessage(queue="absent", text="x"))
        except Exception as error:
            print(type(error).__name__)
        print(clients())
        await store.list_queues("nothing")
        print(clients())
        await store.list_tables("nothing")
        await store.list_blobs("nothing")
        print(len(clients()))

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == ["NotFound", "[]", "['azure.storage.queue']", "3"]
    assert "unclosed" not in done.stderr.lower()
    assert "ResourceWarning" not in done.stderr


# --- names that need encoding, on the emulator


@pytest.mark.parametrize("name", ["it's", "a b", "50%", "%2F", "a+b&c=d", "ü😀", "a?b#c", "x/y z", "$root", "@a"])
async def test_names_mean_the_same_to_clients_and_to_our_own_requests(azurite: str, name: str) -> None:
    container = f"t{uuid4().hex[:16]}"
    async with AzureStore(azurite, timeout=TIMEOUT) as store:
        await store.create_container(container)
        await store.append_blob(container, name, b"one,")
        await store.append_blob(container, name, b"two")
        blob = await store.get_blob(container, name)
        assert blob is not None
        assert (blob.data, blob.content_type) == (b"one,two", "text/plain")
        assert await store.list_blobs(container, name) == [BlobInfo(name=name, size=7)]
        await store.acquire_lease(container, name, lease_id=LEASE, seconds=15)
        await store.release_lease(container, name, lease_id=LEASE)
        await store.execute(DeleteBlob(container=container, name=name))
        assert await store.get_blob(container, name) is None
        await store.execute(PutBlob(container=container, name=name, data=b"x"))
        with pytest.raises(Conflict, match=re.escape(name)):
            await store.append_blob(container, name, b"more")
        await store.execute(DeleteBlob(container=container, name=name))
        assert await store.list_blobs(container) == []
