"""One request to the service: credentials, deadline, count, and what is sent again.

A read is sent up to three times. A write is sent again only when it certainly never reached the service (no connection
was made): after a lost answer a conditional write that had been done would be refused, and the caller must read back
instead (DESIGN §7). For the same reason aiohttp's own repetition of PUT and DELETE over a connection that broke is
switched off, by :func:`_once`.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import random
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import formatdate
from typing import Any

import aiohttp
from yarl import URL

from airflow_provider_taskhub import __version__
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.storage.rest.account import Account, Identity, Query, SharedKey, Signature, encode_query
from airflow_provider_taskhub.storage.rest.answers import error_of, refusal, seconds_of
from airflow_provider_taskhub.storage.rest.tokens import Tokens

API_VERSION = "2020-12-06"
"""The oldest that takes tokens for tables: anything that speaks Azure Storage knows it, the emulator included."""
CONNECTIONS = 128
KEEP_ALIVE = 3.0
"""Seconds. Below the 5 s after which the emulator closes an idle connection: a request must not meet that moment."""
CONNECT_TIMEOUT = 10.0
ATTEMPTS = 3
BACK_OFF = 0.2
"""Seconds before the second attempt, doubled for the third, times 0.5 to 1.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be sent.

    :param kind: as counted in ``Store.requests``.
    :param service: blob, queue or table.
    :param path: percent-encoded, below the account's address.
    :param what: what is asked, for the texts of errors.
    :param safe: a read: may be sent again without harm.
    :param accept: refusals that the caller wants as answers, by status.
    :param creating: see :func:`~airflow_provider_taskhub.storage.rest.answers.refusal`.
    """

    kind: str
    service: str
    method: str
    path: str
    what: str
    query: Query = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    safe: bool = False
    accept: frozenset[int] = frozenset()
    creating: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. Header names are looked up in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """Azure's error code, or ""."""
        return self.headers.get("x-ms-error-code", "") or error_of(self.body)[0]

    def json(self) -> Any:
        """The body of a table's answer. :raises Unavailable: when it is none (something between us answered)."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise Unavailable("the answer is no JSON: is there a proxy in between?") from None

    def xml(self) -> ElementTree.Element:
        """The body of a queue's or container's answer. :raises Unavailable: when it is none."""
        try:
            return ElementTree.fromstring(self.body.removeprefix(codecs.BOM_UTF8))
        except ElementTree.ParseError:
            raise Unavailable("the answer is no XML: is there a proxy in between?") from None


class _AnswerLost(aiohttp.ClientError):
    """The connection broke after the request went out."""


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    try:
        return await handler(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _AnswerLost(type(error).__name__) from error


class Wire:
    """Requests over one aiohttp session. An asynchronous context manager, bound to its event loop.

    :param timeout: deadline of one call, repetitions included.
    :param requests: counted into, by kind, one per request sent.
    :param tokens: for an account by identity; None: those of ``DefaultAzureCredential``.
    """

    def __init__(
        self, account: Account, *, timeout: timedelta, requests: Counter[str], tokens: Tokens | None = None
    ) -> None:
        self._account = account
        self._timeout = timeout.total_seconds()
        self._requests = requests
        self._session: aiohttp.ClientSession | None = None
        self._tokens = tokens
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Wire:
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=KEEP_ALIVE)
        if isinstance(self._account.credential, Identity):
            self._tokens = await self._stack.enter_async_context(self._tokens or Tokens())
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                connector=connector,
                trust_env=False,  # the look-up of proxies costs a third of a request (spec/azurite.md §2)
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=min(CONNECT_TIMEOUT, self._timeout)),
            )
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def send(self, request: Request) -> Answer:
        """Send a request, again where that is safe.

        :raises StorageError: as ``answers.refusal`` says, or Unavailable without an answer in time.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._attempts(request)
        except TimeoutError:
            raise Unavailable(f"{request.what}: no answer within {self._timeout:g} s") from None

    async def _attempts(self, request: Request) -> Answer:
        for attempt in range(1, ATTEMPTS):
            try:
                return await self._attempt(request)
            except Unavailable as error:
                if error.maybe_done and not request.safe:
                    raise
            await asyncio.sleep(BACK_OFF * attempt * random.uniform(0.5, 1.5))
        return await self._attempt(request)

    async def _attempt(self, request: Request) -> Answer:
        self._requests[request.kind] += 1
        try:
            answer = await self._exchange(request)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            # The class is named, not quoted: some of aiohttp's texts hold the whole address, signature included.
            where = f"{self._account.endpoints[request.service].origin} ({type(error).__name__})"
            raise Unavailable(f"{request.what}: no connection to {where}", maybe_done=False) from None
        except aiohttp.ClientError as error:
            raise Unavailable(f"{request.what}: the answer was lost ({type(error).__name__})") from None
        if answer.status < 300 or answer.status in request.accept:
            return answer
        code, prose = error_of(answer.body)
        raise refusal(
            what=request.what,
            status=answer.status,
            code=answer.headers.get("x-ms-error-code", "") or code,
            prose=prose,
            retry_after=seconds_of(answer.headers.get("retry-after")),
            creating=request.creating,
        )

    async def _exchange(self, request: Request) -> Answer:
        if self._session is None:
            raise RuntimeError("the store is not open: use it in `async with`")
        url, headers = await self._authorized(request)
        extra: dict[str, Any] = {} if request.safe else {"middlewares": (_once,)}
        skip = () if "content-type" in headers else ("Content-Type",)
        async with self._session.request(
            request.method,
            url,
            headers=headers,
            data=request.body or None,
            allow_redirects=False,
            skip_auto_headers=skip,
            **extra,
        ) as response:
            return Answer(status=response.status, headers=response.headers, body=await response.read())

    async def _authorized(self, request: Request) -> tuple[URL, dict[str, str]]:
        endpoint = self._account.endpoints[request.service]
        path = endpoint.path + request.path
        query = encode_query(request.query)
        headers = {
            "x-ms-version": API_VERSION,
            "x-ms-date": formatdate(usegmt=True),
            "user-agent": f"airflow-provider-taskhub/{__version__}",
            "accept-encoding": "identity",  # the bytes as they are stored: our blobs are compressed by ourselves
            **request.headers,
        }
        if request.method in ("PUT", "POST") and not request.body:
            headers["content-length"] = "0"
        match self._account.credential:
            case SharedKey() as key:
                headers["authorization"] = key.authorization(
                    request.service, method=request.method, path=path, query=request.query, headers=headers,
                    length=len(request.body),
                )
            case Signature(token=token):
                query = f"{query}&{token}" if query else token
            case Identity():
                assert self._tokens is not None
                headers["authorization"] = f"Bearer {await self._tokens.current()}"
        return URL(f"{endpoint.origin}{path}" + (f"?{query}" if query else ""), encoded=True), headers
