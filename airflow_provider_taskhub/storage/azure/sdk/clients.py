"""Microsoft's asynchronous clients: made when first needed, closed with the store, called by our rules.

They share the wire's session, credential, count and deadline; their own retries, redirects and look-up of proxies are
off. No client's error leaves this module: ``rest/answers`` translates it.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast
from xml.etree.ElementTree import ParseError

from airflow_provider_taskhub.storage.azure.rest.account import SharedKey, Signature
from airflow_provider_taskhub.storage.azure.rest.request import API_VERSION, USER_AGENT, Wire
from airflow_provider_taskhub.storage.azure.rest.service_errors import code_of, translated, unreadable
from airflow_provider_taskhub.storage.packages import check_installed

if TYPE_CHECKING:
    from azure.core.async_paging import AsyncItemPaged
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
    from azure.core.credentials_async import AsyncTokenCredential
    from azure.data.tables.aio import TableServiceClient
    from azure.storage.blob.aio import BlobServiceClient
    from azure.storage.queue.aio import QueueServiceClient

    Credential: TypeAlias = AzureNamedKeyCredential | AzureSasCredential | AsyncTokenCredential

T = TypeVar("T")
Hook: TypeAlias = Callable[[object], None]
"""A client's ``raw_request_hook``: counts each request as it is sent."""

PACKAGES: Mapping[str, tuple[str, str]] = {
    "queue": ("azure.storage.queue", "QueueServiceClient"),
    "table": ("azure.data.tables", "TableServiceClient"),
    "blob": ("azure.storage.blob", "BlobServiceClient"),
}
"""Per service, its package and its client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is asked of a client.

    :param kind: as counted in ``Store.requests``.
    :param service: blob, queue or table.
    :param what: what is asked, for the texts of errors.
    :param safe: a read: may be sent again without harm.
    :param accept: error codes that the caller wants as ``None``.
    :param creating: see :func:`~airflow_provider_taskhub.storage.azure.rest.service_errors.refusal`.
    """

    kind: str
    service: str
    what: str
    safe: bool = False
    accept: frozenset[str] = frozenset()
    creating: bool = False


class Clients:
    """The clients of an account. An asynchronous context manager, inside its wire's.

    A client is made at its first use: the packages take most of a second to import, and a DAG's task that starts an
    instance and waits for it needs none of them.

    :raises ConfigurationError: when one of the packages is not installed.
    """

    def __init__(self, wire: Wire) -> None:
        check_installed([package for package, _ in PACKAGES.values()])
        self._wire = wire
        self._made: dict[str, Any] = {}
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._made.clear()
        await self._stack.aclose()

    async def queues(self) -> QueueServiceClient:
        return cast("QueueServiceClient", await self._client("queue"))

    async def tables(self) -> TableServiceClient:
        return cast("TableServiceClient", await self._client("table"))

    async def blobs(self) -> BlobServiceClient:
        return cast("BlobServiceClient", await self._client("blob"))

    async def call(self, ask: Ask, action: Callable[[Hook], Awaitable[T]]) -> T | None:
        """Carry out a call of a client, again where that is safe.

        :param action: makes the call; passes the hook on as ``raw_request_hook``.
        :returns: what the client did, or None for an accepted refusal.
        :raises StorageError: as ``answers.refusal`` says, or Unavailable without an answer in time.
        """
        return await self._wire.persistently(
            lambda: self._attempt(ask, action), kind=ask.kind, what=ask.what, safe=ask.safe
        )

    async def all(self, ask: Ask, items: Callable[[Hook], AsyncItemPaged[T]]) -> list[T]:
        """All items of a listing. Each page is a call of its own, with a deadline of its own.

        :param items: begins the listing; passes the hook on as ``raw_request_hook``.
        """
        pages = items(self._hook(ask)).by_page()
        found: list[T] = []
        while True:
            page = await self.call(ask, lambda _: _next(pages))
            if page is None:
                return found
            found += [item async for item in page]

    async def _attempt(self, ask: Ask, action: Callable[[Hook], Awaitable[T]]) -> T | None:
        from azure.core.exceptions import AzureError, DeserializationError

        try:
            return await action(self._hook(ask))
        except (DeserializationError, ParseError):  # which the clients let through as they are
            raise unreadable(ask.what) from None
        except AzureError as error:
            if code_of(error) in ask.accept:
                return None
            origin = self._wire.account.endpoints[ask.service].origin
            raise translated(error, what=ask.what, origin=origin, creating=ask.creating) from None

    def _hook(self, ask: Ask) -> Hook:
        def count(_: object) -> None:
            self._wire.requests[ask.kind] += 1

        return count

    async def _client(self, service: str) -> Any:
        async with self._lock:
            if service not in self._made:
                # in a thread: an import that holds up the event loop would hold up whatever else it serves
                package, name = PACKAGES[service]
                module = await asyncio.to_thread(importlib.import_module, f"{package}.aio")
                self._made[service] = await self._stack.enter_async_context(self._make(service, getattr(module, name)))
            return self._made[service]

    def _make(self, service: str, make: Callable[..., Any]) -> Any:
        from azure.core.pipeline.transport import AioHttpTransport

        return make(
            str(self._wire.account.endpoints[service]),
            credential=self._credential(),
            api_version=API_VERSION,
            user_agent=USER_AGENT,
            retry_total=0,
            permit_redirects=False,
            use_env_settings=False,
            transport=AioHttpTransport(
                session=self._wire.session,
                session_owner=False,
                use_env_settings=False,
                connection_timeout=self._wire.connect_timeout,
                read_timeout=self._wire.timeout,
            ),
        )

    def _credential(self) -> Credential:
        from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

        match self._wire.account.credential:
            case SharedKey(name=name, key=key):
                return AzureNamedKeyCredential(name, base64.b64encode(key).decode())
            case Signature(token=token):
                return AzureSasCredential(token)
            case _:
                assert self._wire.tokens is not None  # the wire is open: its session was asked for
                return self._wire.tokens


async def _next(pages: AsyncIterator[AsyncIterator[T]]) -> AsyncIterator[T] | None:
    return await anext(pages, None)
