"""One request of our own to the service: credentials, deadline, count; and the session that all requests share.

aiohttp by itself repeats a PUT or DELETE over a connection that broke, which turns a conditional write that was done
into a false Conflict. :func:`_once` switches that off for the whole session, and so for Microsoft's clients as well;
what is sent again is decided by ``attempts``.
"""

from __future__ import annotations

import codecs
import io
import json
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import formatdate
from functools import lru_cache
from typing import Any, TypeVar

import aiohttp
from pydantic_core import from_json
from yarl import URL

from airflow_provider_taskhub import __version__
from airflow_provider_taskhub.errors import AccessDenied, TaskHubError, Throttled, Unavailable
from airflow_provider_taskhub.storage.azure.rest.account import (
    Account,
    Identity,
    Query,
    SharedKey,
    Signature,
    encode_query,
)
from airflow_provider_taskhub.storage.azure.rest.refusals import refusals_of
from airflow_provider_taskhub.storage.azure.rest.resend import persistently
from airflow_provider_taskhub.storage.azure.rest.service_errors import error_of, refusal, seconds_of, unanswered
from airflow_provider_taskhub.storage.azure.rest.tokens import Tokens

T = TypeVar("T")
API_VERSION = "2020-12-06"
"""The oldest that takes tokens for tables: anything that speaks Azure Storage knows it, the emulator included."""
CONNECTIONS = 128
KEEP_ALIVE = 3.0
"""Seconds. Below the 5 s after which the emulator closes an idle connection: a request must not meet that moment."""
CONNECT_TIMEOUT = 10.0
MAX_AT_ONCE = 1024 * 1024
"""Bytes of a body that go to the socket in one piece; a larger one goes as a stream, and others get their turn."""
USER_AGENT = f"airflow-provider-taskhub/{__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be sent.

    :param kind: as counted in ``Store.requests``.
    :param service: blob, queue or table.
    :param path: percent-encoded, below the account's address.
    :param what: what is asked, for the texts of errors.
    :param safe: a read: may be sent again without harm.
    :param accept: refusals that the caller wants as answers, by status.
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
            return from_json(self.body)
        except ValueError:
            pass  # half as fast and more lenient: json reads unpaired surrogates, which a row of others may hold
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
        self.account = account
        self.timeout = timeout.total_seconds()
        self.connect_timeout = min(CONNECT_TIMEOUT, self.timeout)
        self.requests = requests
        self.tokens = tokens
        self.refusals = refusals_of(account.describe())
        self._session: aiohttp.ClientSession | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Wire:
        async with AsyncExitStack() as opened:  # what was opened is closed again if the rest cannot be
            if isinstance(self.account.credential, Identity):
                self.tokens = await opened.enter_async_context(self.tokens or Tokens())
            self._session = await opened.enter_async_context(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=KEEP_ALIVE),
                    trust_env=False,  # the look-up of proxies costs a third of a request
                    auto_decompress=False,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.connect_timeout),
                    middlewares=(_once,),
                )
            )
            self._stack = opened.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._session = None
        await self._stack.aclose()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The session that all requests share. :raises RuntimeError: when the store is not open."""
        if self._session is None:
            raise RuntimeError("the store is not open: use it in `async with`")
        return self._session

    async def send(self, request: Request) -> Answer:
        """Send a request, again where that is safe.

        :raises StorageError: as ``answers.refusal`` says, or Unavailable without an answer in time.
        """
        return await self.persistently(
            lambda: self._attempt(request), kind=request.kind, what=request.what, safe=request.safe
        )

    async def persistently(self, attempt: Callable[[], Awaitable[T]], *, kind: str, what: str, safe: bool) -> T:
        """Carry out an attempt, again where that is safe, and say so when the account refuses it.

        :param kind: of the request, as counted. The others as for ``attempts.persistently``.
        """
        try:
            done = await persistently(attempt, what=what, timeout=self.timeout, safe=safe)
        except AccessDenied as error:
            service = self.account.endpoints.get(kind.partition(".")[0])
            self.refusals.refused(kind, error, account=str(service or self.account.describe()))
            raise
        except (Unavailable, Throttled):
            raise  # says nothing of the credentials
        except TaskHubError:
            self.refusals.accepted(kind)
            raise
        self.refusals.accepted(kind)
        return done

    async def _attempt(self, request: Request) -> Answer:
        self.requests[request.kind] += 1
        try:
            answer = await self._exchange(request)
        except aiohttp.ClientError as error:
            origin = self.account.endpoints[request.service].origin
            raise unanswered(error, what=request.what, origin=origin) from None
        if answer.status < 300 or answer.status in request.accept:
            return answer
        code, prose = error_of(answer.body)
        raise refusal(
            what=request.what,
            status=answer.status,
            code=answer.headers.get("x-ms-error-code", "") or code,
            prose=prose,
            retry_after=seconds_of(answer.headers.get("retry-after")),
        )

    async def _exchange(self, request: Request) -> Answer:
        url, headers = await self._authorized(request)
        skip = () if "content-type" in headers else ("Content-Type",)
        async with self.session.request(
            request.method,
            url,
            headers=headers,
            data=_payload(request.body),
            allow_redirects=False,
            skip_auto_headers=skip,
        ) as response:
            return Answer(status=response.status, headers=response.headers, body=await response.read())

    async def _authorized(self, request: Request) -> tuple[URL, dict[str, str]]:
        endpoint = self.account.endpoints[request.service]
        path = endpoint.path + request.path
        query = encode_query(request.query)
        headers = {
            "x-ms-version": API_VERSION,
            "x-ms-date": _date(int(time.time())),
            "user-agent": USER_AGENT,
            "accept-encoding": "identity",  # the bytes as they are stored: our blobs are compressed by ourselves
            **request.headers,
        }
        if request.method in ("PUT", "POST") and not request.body:
            headers["content-length"] = "0"
        match self.account.credential:
            case SharedKey() as key:
                headers["authorization"] = key.authorization(
                    request.service,
                    method=request.method,
                    path=path,
                    query=request.query,
                    headers=headers,
                    length=len(request.body),
                )
            case Signature(token=token):
                query = f"{query}&{token}" if query else token
            case Identity():
                assert self.tokens is not None
                headers["authorization"] = f"Bearer {await self.tokens.current()}"
        return URL(f"{endpoint.origin}{path}" + (f"?{query}" if query else ""), encoded=True), headers


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    """Of many requests in one second."""
    return formatdate(second, usegmt=True)


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    return io.BytesIO(body) if len(body) > MAX_AT_ONCE else body or None
