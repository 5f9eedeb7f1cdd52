"""HTTP servers that misbehave as a script says, accounts that point to them, and a credential that counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from airflow_provider_taskhub.storage.azure.rest.account import Account, Credential, Endpoint, SharedKey

KEY = SharedKey(name="acct", key=b"the secret key")

Script = Callable[[int, asyncio.StreamWriter], Awaitable[bool]]
"""Answers the n-th request; whether the connection stays open."""


@dataclass
class Server:
    """An HTTP server that does as its script says, and keeps the heads of all requests."""

    script: Script
    heads: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [line for line in head.lower().splitlines() if line.startswith("content-length")]
                await reader.readexactly(int(lengths[0].partition(":")[2]) if lengths else 0)
                self.heads.append(head)
                if not await self.script(len(self.heads), writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def silent_until_late(seconds: float) -> AsyncIterator[str]:
    """Serve without an answer. The address of the server.

    The time of the event loop stands still until a request has arrived, and is then ``seconds`` later. So a deadline
    passes exactly then, even on a machine that stands still for longer than that.
    """
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    now, clock = loop.time(), loop.time

    async def script(number: int, writer: asyncio.StreamWriter) -> bool:
        nonlocal now
        now += seconds
        await over.wait()
        return False

    loop.time = lambda: now  # type: ignore[method-assign]
    try:
        async with serving(script) as (_, origin):
            yield origin
            over.set()
    finally:
        loop.time = clock  # type: ignore[method-assign]


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[tuple[Server, str]]:
    server = Server(script)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listener:
        yield server, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


def account(origin: str, credential: Credential = KEY) -> Account:
    return Account(
        endpoints={name: Endpoint(origin=origin) for name in ("blob", "queue", "table")}, credential=credential
    )


async def ok(number: int, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    return True


class Token(NamedTuple):
    token: str
    expires_on: int


class FakeCredential:
    """A credential of azure-identity's shape: counts what it is asked for."""

    def __init__(self, lifetime: int) -> None:
        self.scopes: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.closed = False
        self._lifetime = lifetime

    async def get_token(self, *scopes: str, **asked: Any) -> Token:
        self.scopes += scopes
        self.asked.append(asked)
        return Token(f"token-{len(self.scopes)}", int(time.time()) + self._lifetime)

    async def close(self) -> None:
        self.closed = True
