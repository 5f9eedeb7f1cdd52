"""Every error of the service, translated here and nowhere else, whoever sent the request: we, or Microsoft's clients.

A refusal is judged by status and error code, never by its prose. What it cannot tell: Azure documents for a pop receipt
that no longer holds both 400 ``PopReceiptMismatch`` and 404 ``MessageNotFound``, so a NotFound of an update or a delete
may be a message that somebody else holds now; both mean "no longer mine", and callers must treat them alike.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

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
_XML_CODE = re.compile(rb"<Code>([^<]*)</Code>")
_XML_TEXT = re.compile(rb"<Message>([^<]*)</Message>")
_MAX_PROSE = 200


def refusal(
    *, what: str, status: int, code: str = "", prose: str = "", retry_after: float | None = None, creating: bool = False
) -> TaskHubError:
    """The error for an answer with a status of 400 or above.

    :param what: what was asked, for people: ``put into queue 'hub-control-00'``.
    :param code: Azure's error code (header ``x-ms-error-code`` or from the body).
    :param prose: the service's own sentence; left out where it may quote credentials.
    :param retry_after: seconds of the ``Retry-After`` header.
    :param creating: whether a queue, table or container was to be made: then one that is still being deleted asks for
        patience (Azure keeps the name for 30 to 40 s); else it is as good as gone.
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
    if status in (429, 503):
        return Throttled(text, retry_after=1.0 if retry_after is None else retry_after)
    if code in _CONFLICT or status in (409, 412):
        return Conflict(text)
    if status == 404:
        return NotFound(text)
    if status >= 500 or status == 408:
        return Unavailable(text)
    return InputError(text)


def unanswered(error: BaseException | None, *, what: str, origin: str) -> Unavailable:
    """The error for a request without a whole answer.

    :param error: as aiohttp raised it. Its class is named and its text is not quoted: some of aiohttp's texts hold the
        whole address, signature included.
    :param origin: of the service that was asked.
    """
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return Unavailable(f"{what}: no connection to {origin} ({type(error).__name__})", maybe_done=False)
    return Unavailable(f"{what}: the answer was lost ({type(error).__name__})")


def unreadable(what: str) -> Unavailable:
    """The error for a success whose body is not the service's."""
    return Unavailable(f"{what}: the answer cannot be read: is there a proxy in between?")


def translated(error: AzureError, *, what: str, origin: str, creating: bool = False) -> TaskHubError:
    """The error for one of Microsoft's clients' errors, by the same table as for our own requests.

    :param creating: see :func:`refusal`.
    """
    from azure.core.exceptions import HttpResponseError

    if not isinstance(error, HttpResponseError) or error.status_code is None:
        # the transport's class of an error does not tell whether a connection was made; what it wraps does
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
    """Azure's code in an error of Microsoft's clients, or ""."""
    found = _header(error, "x-ms-error-code") or getattr(error, "error_code", None) or ""
    return str(getattr(found, "value", found))  # their enumerations, or plain text for a code they do not know


def _header(error: AzureError, name: str) -> str | None:
    headers = getattr(getattr(error, "response", None), "headers", None)
    return headers.get(name) if headers is not None else None


def error_of(body: bytes) -> tuple[str, str]:
    """Code and sentence of an error's body, which tables write as JSON and the others as XML."""
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
    """``Retry-After`` in seconds; None when absent or a date (Azure sends seconds)."""
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None
