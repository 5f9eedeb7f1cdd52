"""Translate each error of Azure Storage to an error of TaskHub, for ``rest`` and for Microsoft's clients (``sdk``).

The translation uses the status and the error code, never the text. One case is ambiguous. For a stale pop receipt Azure
documents both 400 ``PopReceiptMismatch`` and 404 ``MessageNotFound``. So not only ``Conflict`` but also ``NotFound``
for an update or a delete can mean that another worker has received the message. Callers must handle both errors alike:
the caller no longer holds the message.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp

from airflow_provider_taskhub.errors import (
    AccessDenied,
    Conflict,
    InputError,
    LeaseLost,
    NotFound,
    PayloadTooLarge,
    TaskHubError,
    Throttled,
    Unavailable,
)

if TYPE_CHECKING:
    from azure.core.exceptions import AzureError

_TOO_LARGE = frozenset(
    {
        "ContentLengthLargerThanLimit",
        "EntityTooLarge",
        "KeyValueTooLarge",
        "MessageTooLarge",
        "PropertyValueTooLarge",
        "RequestBodyTooLarge",
        "RequestEntityTooLarge",
        "TooManyProperties",
    }
)
_CONFLICT = frozenset({"PopReceiptMismatch"})
_BUSY = "ServerBusy"
"""Azure's code, with status 503, for a request that the service does not accept because of its load. The request was
certainly not carried out. This is not known of a 503 with another code or none, for example of a proxy that has
forwarded the request, nor of a 500 ``OperationTimedOut``."""
_XML_CODE = re.compile(rb"<Code>([^<]*)</Code>")
_XML_TEXT = re.compile(rb"<Message>([^<]*)</Message>")
_MAX_PROSE = 200


def refusal(
    *, what: str, status: int, code: str = "", prose: str = "", retry_after: float | None = None, creating: bool = False
) -> TaskHubError:
    """Return the error for an answer with a status of 400 or above.

    :param what: description of the request for people, such as ``put into queue 'hub-control-00'``.
    :param code: Azure's error code, from the header ``x-ms-error-code`` or from the body.
    :param prose: the service's error text. The error omits this text if it may contain credentials.
    :param retry_after: value of the ``Retry-After`` header, in seconds.
    :param creating: True if the request creates a queue, table or container. Azure reserves the name of a deleted one
        for 30 to 40 s; the error is then ``Throttled``, so that the caller retries. For other requests it is
        ``NotFound``.
    """
    if status in (401, 403):
        return AccessDenied(
            f"{what}: the storage account refused the credentials ({code or status}). Check the key, the signature and "
            "its expiry, the roles of the identity, the account's firewall, and this machine's clock."
        )
    line = prose.partition("\n")[0][:_MAX_PROSE]
    text = f"{what}: {code or status}" + (f": {line}" if line else "")
    if code in _TOO_LARGE or status == 413:
        return PayloadTooLarge(text)
    if code.endswith("BeingDeleted"):
        return Throttled(text, retry_after=retry_after or 5.0) if creating else NotFound(text)
    if code.startswith("Lease"):
        return LeaseLost(text)
    if status == 429 or (status == 503 and code == _BUSY):
        return Throttled(text, retry_after=1.0 if retry_after is None else retry_after)
    if code in _CONFLICT or status in (409, 412):
        return Conflict(text)
    if status == 404:
        return NotFound(text)
    if status >= 500 or status == 408:
        return Unavailable(text)
    return InputError(text)


def unanswered(error: BaseException | None, *, what: str, origin: str) -> Unavailable:
    """Return the error for a request without a complete answer.

    :param error: error of aiohttp. The returned error has its class name but not its text: some texts of aiohttp
        contain the whole URL with the signature.
    :param origin: scheme, host and port of the service.
    """
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        here = urlsplit(origin).hostname in ("127.0.0.1", "localhost", "::1")
        hint = ": start the storage emulator there, or correct the connection (TASKHUB_CONNECTION)" if here else ""
        return Unavailable(f"{what}: no connection to {origin} ({type(error).__name__}){hint}", maybe_done=False)
    return Unavailable(f"{what}: the answer was lost ({type(error).__name__})")


def unreadable(what: str) -> Unavailable:
    """Return the error for an answer with a success status and a body that does not come from Azure Storage."""
    return Unavailable(f"{what}: the answer cannot be read; perhaps a proxy has sent it")


def translated(error: AzureError, *, what: str, origin: str, creating: bool = False) -> TaskHubError:
    """Translate an error of Microsoft's clients by the rules of :func:`refusal` and :func:`unanswered`.

    :param creating: True if the request creates a queue, table or container (see :func:`refusal`).
    """
    from azure.core.exceptions import HttpResponseError

    if not isinstance(error, HttpResponseError) or error.status_code is None:
        # only the wrapped error of aiohttp tells whether a connection was made
        return unanswered(error.inner_exception or error, what=what, origin=origin)
    if error.status_code < 300:
        return unreadable(what)
    return refusal(
        what=what,
        status=error.status_code,
        code=code_of(error),
        prose=error.message,
        retry_after=seconds_of(_header(error, "retry-after")),
        creating=creating,
    )


def code_of(error: AzureError) -> str:
    """Return Azure's error code of an error of Microsoft's clients; "" if the error has none."""
    found = _header(error, "x-ms-error-code") or getattr(error, "error_code", None) or ""
    return str(getattr(found, "value", found))  # an enum member, or a text if the client does not know the code


def _header(error: AzureError, name: str) -> str | None:
    headers = getattr(getattr(error, "response", None), "headers", None)
    return headers.get(name) if headers is not None else None


def error_of(body: bytes) -> tuple[str, str]:
    """Return the code and the text in the body of an error; "" for each that is missing.

    The table service sends JSON, the other services XML.
    """
    if body.lstrip()[:1] == b"{":
        try:
            found = json.loads(body)["odata.error"]
            return str(found["code"]), str(found["message"]["value"])
        except (ValueError, KeyError, TypeError):
            return "", ""
    code, text = _XML_CODE.search(body), _XML_TEXT.search(body)
    return (
        code.group(1).decode(errors="replace") if code else "",
        text.group(1).decode(errors="replace") if text else "",
    )


def seconds_of(header: str | None) -> float | None:
    """Return the value of a ``Retry-After`` header in seconds; None if the header is missing or contains a date."""
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None
