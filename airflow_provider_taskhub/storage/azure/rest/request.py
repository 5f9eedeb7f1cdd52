"""Send one request to Azure Storage with credentials and a deadline, over the HTTP session that all requests share.

If a connection breaks, aiohttp itself repeats a PUT or DELETE. If the service has already done a conditional write, it
would refuse the repeated write with a false Conflict. :func:`_once` switches this repetition off for the whole session,
also for Microsoft's clients. Only ``resend`` decides which requests are sent again.
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
from airflow_provider_taskhub.storage.primitives import AZURE_CONNECTIONS

T = TypeVar("T")
API_VERSION = "2020-12-06"
"""Version of Azure Storage's API. It is the oldest version that accepts tokens for tables, so that all services and the
emulator know it."""
KEEP_ALIVE = 3.0
"""Seconds after which the store closes an idle connection. The emulator closes an idle connection after 5 s, and a
request that is sent at that moment would be lost."""
CONNECT_TIMEOUT = 10.0
MAX_AT_ONCE = 1024 * 1024
"""Largest body that is written to the socket in one piece, in bytes. A larger body is sent as a stream, so that other
tasks of the event loop can run meanwhile."""
USER_AGENT = f"airflow-provider-taskhub/{__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An HTTP request to Azure Storage.

    :param kind: kind of the request, as in ``Store.requests``.
    :param service: ``blob``, ``queue`` or ``table``.
    :param path: percent-encoded path after the service's address.
    :param what: description of the request for error texts.
    :param safe: True if the request changes nothing, so that it may be sent again.
    :param accept: HTTP statuses of 300 or above that are returned as answers instead of raised as errors.
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
class Response:
    """The HTTP response to a request. The case of header names does not matter."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """Azure's error code; "" if the answer has none."""
        return self.headers.get("x-ms-error-code", "") or error_of(self.body)[0]

    def json(self) -> Any:
        """Return the decoded JSON body of an answer of the table service.

        :raises Unavailable: if the body is no JSON, for example because a proxy has answered.
        """
        try:
            return from_json(self.body)
        except ValueError:
            pass  # try json: it is slower, but accepts unpaired surrogates, which other programs may have written
        try:
            return json.loads(self.body)
        except ValueError:
            raise Unavailable("the answer is not JSON; perhaps a proxy has sent it") from None

    def xml(self) -> ElementTree.Element:
        """Return the decoded XML body of an answer of the queue or blob service.

        :raises Unavailable: if the body is no XML, for example because a proxy has answered.
        """
        try:
            return ElementTree.fromstring(self.body.removeprefix(codecs.BOM_UTF8))
        except ElementTree.ParseError:
            raise Unavailable("the answer is not XML; perhaps a proxy has sent it") from None


class _AnswerLost(aiohttp.ClientError):
    """The connection broke after the request was sent. aiohttp does not repeat a request that raised this error."""


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    try:
        return await handler(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _AnswerLost(type(error).__name__) from error


class Wire:
    """Sends requests over one aiohttp session. An asynchronous context manager, for one event loop.

    :param timeout: deadline of one call with all its retries.
    :param requests: counter that counts each sent request by its kind.
    :param tokens: tokens for an account with :class:`Identity`; None: tokens of ``DefaultAzureCredential``.
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
        async with AsyncExitStack() as opened:  # closes what is already open if a later line fails
            if isinstance(self.account.credential, Identity):
                self.tokens = await opened.enter_async_context(self.tokens or Tokens())
            self._session = await opened.enter_async_context(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=AZURE_CONNECTIONS, keepalive_timeout=KEEP_ALIVE),
                    trust_env=False,  # searching for proxies takes a third of a request's time
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
        """The aiohttp session that all requests share.

        :raises RuntimeError: if the store is not open.
        """
        if self._session is None:
            raise RuntimeError("the store is not open: use it in `async with`")
        return self._session

    async def send(self, request: Request) -> Response:
        """Send a request. Send it again after an error if that is safe.

        :raises StorageError: the error that ``service_errors.refusal`` makes from the answer, or ``Unavailable`` if no
            answer comes in time.
        """
        return await self.persistently(
            lambda: self._attempt(request), kind=request.kind, what=request.what, safe=request.safe
        )

    async def persistently(self, attempt: Callable[[], Awaitable[T]], *, kind: str, what: str, safe: bool) -> T:
        """Call ``attempt``, and call it again after an error if that is safe. Log a refusal of the credentials.

        ``resend.persistently`` documents the other parameters.

        :param kind: kind of the request, as in ``Store.requests``.
        """
        try:
            done = await persistently(attempt, what=what, timeout=self.timeout, safe=safe)
        except AccessDenied as error:
            service = self.account.endpoints.get(kind.partition(".")[0])
            self.refusals.refused(kind, error, account=str(service or self.account.describe()))
            raise
        except (Unavailable, Throttled):
            raise  # these errors do not tell if the credentials are good
        except TaskHubError:
            self.refusals.accepted(kind)
            raise
        self.refusals.accepted(kind)
        return done

    async def _attempt(self, request: Request) -> Response:
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

    async def _exchange(self, request: Request) -> Response:
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
            return Response(status=response.status, headers=response.headers, body=await response.read())

    async def _authorized(self, request: Request) -> tuple[URL, dict[str, str]]:
        endpoint = self.account.endpoints[request.service]
        path = endpoint.path + request.path
        query = encode_query(request.query)
        headers = {
            "x-ms-version": API_VERSION,
            "x-ms-date": _date(int(time.time())),
            "user-agent": USER_AGENT,
            "accept-encoding": "identity",  # get blobs as they are stored: TaskHub itself decompresses them
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
    """Return a time as an HTTP date. The cache serves all requests of the same second."""
    return formatdate(second, usegmt=True)


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    return io.BytesIO(body) if len(body) > MAX_AT_ONCE else body or None
