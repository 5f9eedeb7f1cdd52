"""Every error of the service, translated here and nowhere else.

A refusal is judged by status and error code, never by its prose. What it cannot tell: Azure documents for a pop receipt
that no longer holds both 400 ``PopReceiptMismatch`` and 404 ``MessageNotFound``, so a NotFound of an update or a delete
may be a message that somebody else holds now; both mean "no longer mine", and callers must treat them alike.
"""

from __future__ import annotations

import json
import re

from airflow_provider_taskhub.errors import (
    ConfigurationError,
    Conflict,
    InputError,
    LeaseLost,
    NotFound,
    PayloadTooLarge,
    TaskHubError,
    Throttled,
    Unavailable,
)

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
        return ConfigurationError(
            f"{what}: the storage account refused the credentials ({code or status}). "
            "Check the key, the signature and its expiry, the roles of the identity, and this machine's clock."
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
