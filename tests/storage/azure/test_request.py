"""Deadlines, lost answers and what is sent again, against servers that misbehave."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.errors import AccessDenied, StorageError, Throttled, Unavailable
from airflow_provider_taskhub.storage.azure.rest import resend as attempts_module
from airflow_provider_taskhub.storage.azure.rest.account import (
    Identity,
    Signature,
)
from airflow_provider_taskhub.storage.azure.rest.request import Request, Response, Wire
from airflow_provider_taskhub.storage.azure.rest.tokens import SCOPE, Tokens
from tests.storage.azure.servers import KEY, FakeCredential, Token, account, ok, serving, silent_until_late

READ = Request(kind="table.get", service="table", method="GET", path="/T", what="row of table 'T'", safe=True)
WRITE = Request(kind="table.update", service="table", method="PUT", path="/T", what="row of table 'T'", body=b"{}")


@asynccontextmanager
async def opened(origin: str, *, timeout: float = 10.0, **more: Any) -> AsyncIterator[tuple[Wire, Counter[str]]]:
    requests: Counter[str] = Counter()
    credential = more.pop("credential", KEY)
    async with Wire(account(origin, credential), timeout=timedelta(seconds=timeout), requests=requests, **more) as wire:
        yield wire, requests


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READS", "WRITES"):
        monkeypatch.setattr(attempts_module, name, replace(getattr(attempts_module, name), first=0.0))


@pytest.mark.parametrize("request_", [READ, WRITE], ids=["read", "write"])
async def test_a_server_that_never_answers_meets_the_deadline(request_: Request) -> None:
    async with silent_until_late(0.2) as origin, opened(origin, timeout=0.2) as (wire, requests):
        with pytest.raises(Unavailable, match=r"no answer within 0\.2 s") as caught:
            await wire.send(request_)
    assert caught.value.maybe_done
    assert requests[request_.kind] == 1


@pytest.mark.parametrize("request_", [READ, WRITE], ids=["read", "write"])
async def test_a_refused_connection_is_tried_three_times_and_was_certainly_not_done(request_: Request) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else can take the port
        async with opened(f"http://127.0.0.1:{closed.getsockname()[1]}") as (wire, requests):
            with pytest.raises(
                Unavailable, match=r"no connection to http://127\.0\.0\.1.*: start the storage emulator"
            ) as caught:
                await wire.send(request_)
    assert not caught.value.maybe_done
    assert requests[request_.kind] == 3


async def test_a_write_whose_answer_is_lost_is_sent_once() -> None:
    async def hang_up_on_the_second(number: int, writer: asyncio.StreamWriter) -> bool:
        return await ok(number, writer) if number == 1 else False

    async with serving(hang_up_on_the_second) as (server, origin), opened(origin) as (wire, requests):
        await wire.send(WRITE)
        # the same connection again: here aiohttp by itself would repeat a PUT, and turn what was done into a Conflict
        with pytest.raises(Unavailable, match="answer was lost") as caught:
            await wire.send(WRITE)
    assert caught.value.maybe_done
    assert len(server.heads) == 2
    assert requests == {"table.update": 2}


async def test_a_read_whose_answer_is_lost_is_sent_again() -> None:
    async def hang_up_once(number: int, writer: asyncio.StreamWriter) -> bool:
        return False if number == 1 else await ok(number, writer)

    async with serving(hang_up_once) as (server, origin), opened(origin) as (wire, _):
        assert (await wire.send(READ)).body == b"ok"
    assert len(server.heads) == 2


@pytest.mark.parametrize(("request_", "sent"), [(READ, 3), (WRITE, 1)], ids=["read", "write"])
async def test_after_a_server_error_a_read_is_sent_three_times_and_a_write_once(request_: Request, sent: int) -> None:
    async def broken(number: int, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 500 Oh\r\nx-ms-error-code: InternalError\r\nContent-Length: 0\r\n\r\n")
        return True

    async with serving(broken) as (server, origin), opened(origin) as (wire, requests):
        with pytest.raises(Unavailable, match="InternalError"):
            await wire.send(request_)
    assert len(server.heads) == requests[request_.kind] == sent


async def test_throttling_is_the_callers_to_wait_for() -> None:
    async def busy(number: int, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: 4\r\nx-ms-error-code: ServerBusy\r\nContent-Length: 0\r\n\r\n")
        return True

    async with serving(busy) as (server, origin), opened(origin) as (wire, _):
        with pytest.raises(Throttled) as caught:
            await wire.send(READ)
    assert caught.value.retry_after == 4.0
    assert len(server.heads) == 1


async def test_a_half_answer_is_a_lost_one() -> None:
    async def half(number: int, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        return False

    async with serving(half) as (_, origin), opened(origin) as (wire, _):
        with pytest.raises(Unavailable) as caught:
            await wire.send(WRITE)
    assert caught.value.maybe_done


async def test_an_answer_of_a_proxy_is_no_answer() -> None:
    async with serving(ok) as (_, origin), opened(origin) as (wire, _):
        answer = await wire.send(READ)
    with pytest.raises(Unavailable, match="proxy"):
        answer.json()
    with pytest.raises(Unavailable, match="proxy"):
        answer.xml()


def test_a_row_with_half_of_a_character_is_read() -> None:
    """Programs of others may have stored one; JSON can say it, and no UTF-8."""
    assert Response(status=200, headers={}, body=b'{"Result":"\\ud800"}').json() == {"Result": "\ud800"}


async def test_a_signature_goes_along_and_is_never_shown() -> None:
    async def hang_up(number: int, writer: asyncio.StreamWriter) -> bool:
        return False

    credential = Signature(token="sv=1&sig=topsecretsig")
    async with serving(hang_up) as (server, origin), opened(origin, credential=credential) as (wire, _):
        with pytest.raises(StorageError) as caught:
            await wire.send(WRITE)
    assert server.heads[0].startswith("PUT /T?sv=1&sig=topsecretsig HTTP/1.1")
    assert "topsecret" not in repr(caught.value) + str(caught.value)
    assert caught.value.__cause__ is None


async def test_an_identity_sends_one_token_for_all_requests() -> None:
    credential = FakeCredential(lifetime=3600)
    tokens = Tokens(credential)  # type: ignore[arg-type]
    async with serving(ok) as (server, origin), opened(origin, credential=Identity(), tokens=tokens) as (wire, _):
        await asyncio.gather(*(wire.send(READ) for _ in range(5)))
    assert credential.scopes == [SCOPE]
    assert all("authorization: Bearer token-1\r\n" in head for head in server.heads)
    assert all("x-ms-version: 2020-12-06\r\n" in head for head in server.heads)
    assert credential.closed


async def test_a_token_near_its_end_is_replaced() -> None:
    credential = FakeCredential(lifetime=60)
    async with Tokens(credential) as tokens:  # type: ignore[arg-type]
        assert [await tokens.current(), await tokens.current()] == ["token-1", "token-2"]


async def test_microsofts_clients_get_the_same_token_or_the_one_that_a_refusal_asks_for() -> None:
    credential = FakeCredential(lifetime=3600)
    async with Tokens(credential) as tokens:  # type: ignore[arg-type]
        assert await tokens.current() == (await tokens.get_token(SCOPE)).token == "token-1"
        asked = await tokens.get_token("scope", claims="more", tenant_id="t", enable_cae=True)
        assert asked.token == "token-2"
        assert await tokens.current() == "token-1"
    assert credential.scopes == [SCOPE, "scope"]
    assert credential.asked[1] == {"claims": "more", "tenant_id": "t", "enable_cae": True}


async def test_no_identity_here_is_said_so() -> None:
    from azure.core.exceptions import ClientAuthenticationError

    class Nobody(FakeCredential):
        async def get_token(self, *scopes: str, **_: Any) -> Token:
            raise ClientAuthenticationError("tried the environment, then managed identity")

    async with Tokens(Nobody(0)) as tokens:  # type: ignore[arg-type]
        for ask in (tokens.current, tokens.get_token):
            with pytest.raises(AccessDenied, match="tried the environment"):
                await ask()


@pytest.mark.parametrize("kind", ["ServiceRequestError", "HttpResponseError", "OSError", "ValueError"])
async def test_whatever_an_identity_raises_is_a_refusal_that_quotes_only_azures_own_text(kind: str) -> None:
    from azure.core import exceptions

    error = getattr(exceptions, kind, None) or {"OSError": OSError, "ValueError": ValueError}[kind]

    class Broken(FakeCredential):
        async def get_token(self, *scopes: str, **_: Any) -> Token:
            raise error("said by the identity")

    async with Tokens(Broken(0)) as tokens:  # type: ignore[arg-type]
        with pytest.raises(AccessDenied) as caught:
            await tokens.current()
    assert ("said by the identity" in str(caught.value)) == issubclass(error, exceptions.AzureError)
    assert kind in str(caught.value) or issubclass(error, exceptions.AzureError)


async def test_default_credentials_are_azures_own_and_need_no_network_to_be_made() -> None:
    from azure.identity.aio import DefaultAzureCredential

    async with Tokens() as tokens:
        assert isinstance(tokens._credential, DefaultAzureCredential)
