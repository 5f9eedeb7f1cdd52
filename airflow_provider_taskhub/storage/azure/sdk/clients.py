"""Creates each of Microsoft's asynchronous clients when it is first used. The store closes the clients.

The clients share the HTTP session, credential, counter of requests and deadline of ``rest/request``. The clients' own
retries, redirects and search for proxies are switched off. ``rest/service_errors`` translates each error of a client.
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
"""Function that a client calls for each request that it sends (``raw_request_hook``). It counts the requests."""

PACKAGES: Mapping[str, tuple[str, str]] = {
    "queue": ("azure.storage.queue", "QueueServiceClient"),
    "table": ("azure.data.tables", "TableServiceClient"),
    "blob": ("azure.storage.blob", "BlobServiceClient"),
}
"""For each service the package and the class of its client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Describes a call of a client.

    :param kind: kind of the request, as in ``Store.requests``.
    :param service: ``blob``, ``queue`` or ``table``.
    :param what: description of the call for error texts.
    :param safe: True if the call changes nothing, so that it may be repeated.
    :param accept: Azure's error codes for which the call returns ``None`` instead of raising an error.
    :param creating: True if the call creates a queue, table or container. If Azure answers that the old one is still
        being deleted, the error is then ``Throttled``, so that the caller tries again; for other calls ``NotFound``.
    """

    kind: str
    service: str
    what: str
    safe: bool = False
    accept: frozenset[str] = frozenset()
    creating: bool = False


class Clients:
    """Makes the clients of an account. An asynchronous context manager, within which the wire must stay open.

    A client is created when it is first used, because importing its package takes most of a second. A task of a DAG
    that starts an instance and waits for its end needs no client.

    :raises ConfigurationError: if one of the packages is not installed.
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
        """Call a client. Repeat the call after an error if that is safe.

        :param action: function that calls the client. It gets a hook, which it passes as ``raw_request_hook``.
        :returns: result of the client; None for an error code in ``ask.accept``.
        :raises StorageError: the error that ``service_errors.refusal`` makes from the answer, or ``Unavailable`` if no
            answer comes in time.
        """
        return await self._wire.persistently(
            lambda: self._attempt(ask, action), kind=ask.kind, what=ask.what, safe=ask.safe
        )

    async def all(self, ask: Ask, items: Callable[[Hook], AsyncItemPaged[T]]) -> list[T]:
        """Return all items of a listing. Each page is a separate call with its own deadline.

        :param items: function that begins the listing. It gets a hook, which it passes as ``raw_request_hook``.
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
        except (DeserializationError, ParseError):  # Microsoft's clients raise these errors as they are
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
                # the import runs in a thread: it takes most of a second and would block the event loop
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
                assert self._wire.tokens is not None  # the account uses tokens, and an open wire has them
                return self._wire.tokens


async def _next(pages: AsyncIterator[AsyncIterator[T]]) -> AsyncIterator[T] | None:
    return await anext(pages, None)
