"""Every refusal of the service and its one translation, by values."""

from __future__ import annotations

import pytest

from airflow_provider_taskhub.errors import (
    AccessDenied,
    Conflict,
    InputError,
    LeaseLost,
    NotFound,
    PayloadTooLarge,
    StorageError,
    Throttled,
    Unavailable,
)
from airflow_provider_taskhub.storage.azure.rest.service_errors import error_of, refusal, seconds_of, translated

refusals = pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (409, "EntityAlreadyExists", Conflict),
        (412, "UpdateConditionNotSatisfied", Conflict),
        (412, "ConditionNotMet", Conflict),
        (409, "BlobAlreadyExists", Conflict),
        (400, "PopReceiptMismatch", Conflict),
        (404, "MessageNotFound", NotFound),
        (404, "QueueNotFound", NotFound),
        (404, "TableNotFound", NotFound),
        (404, "", NotFound),
        (409, "QueueBeingDeleted", NotFound),
        (409, "LeaseAlreadyPresent", LeaseLost),
        (409, "LeaseIdMismatchWithLeaseOperation", LeaseLost),
        (412, "LeaseIdMissing", LeaseLost),
        (412, "LeaseLost", LeaseLost),
        (409, "LeaseNotPresentWithLeaseOperation", LeaseLost),
        (429, "", Throttled),
        (503, "ServerBusy", Throttled),
        (503, "", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (500, "ServerBusy", Unavailable),
        (413, "RequestBodyTooLarge", PayloadTooLarge),
        (413, "", PayloadTooLarge),
        (400, "EntityTooLarge", PayloadTooLarge),
        (400, "PropertyValueTooLarge", PayloadTooLarge),
        (400, "MessageTooLarge", PayloadTooLarge),
        (400, "TooManyProperties", PayloadTooLarge),
        (500, "InternalError", Unavailable),
        (500, "OperationTimedOut", Unavailable),
        (502, "", Unavailable),
        (408, "", Unavailable),
        (400, "InvalidInput", InputError),
        (400, "OutOfRangeInput", InputError),
        (302, "", InputError),
        (401, "InvalidAuthenticationInfo", AccessDenied),
        (403, "AuthenticationFailed", AccessDenied),
        (403, "AuthorizationPermissionMismatch", AccessDenied),
    ],
)


@refusals
def test_a_refusal_becomes_the_error_of_its_status_and_code(status: int, code: str, kind: type[Exception]) -> None:
    error = refusal(what="put into queue 'q'", status=status, code=code, prose="Because.\nRequestId:1")
    assert type(error) is kind
    assert "put into queue 'q'" in str(error)
    assert (code or str(status)) in str(error)
    assert "RequestId" not in str(error)


class Response:
    """As much of an answer as Microsoft's errors look at."""

    reason = "Because"

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status_code, self.headers = status, headers


@refusals
@pytest.mark.parametrize("place", ["header", "error"])
def test_microsofts_errors_are_translated_alike(status: int, code: str, kind: type[Exception], place: str) -> None:
    from azure.core.exceptions import HttpResponseError

    headers = {"x-ms-error-code": code} if place == "header" and code else {}
    error = HttpResponseError("Because.\nRequestId:1", response=Response(status, headers))  # type: ignore[arg-type]
    if place == "error":
        error.error_code = code  # type: ignore[attr-defined]
    mine = translated(error, what="put into queue 'q'", origin="https://x")
    assert type(mine) is kind
    assert str(mine) == str(refusal(what="put into queue 'q'", status=status, code=code, prose="Because."))


def test_throttling_carries_the_patience_asked_for() -> None:
    asked = refusal(what="x", status=503, code="ServerBusy", retry_after=7.0)
    silent = refusal(what="x", status=429)
    assert isinstance(asked, Throttled)
    assert asked.retry_after == 7.0
    assert isinstance(silent, Throttled)
    assert silent.retry_after == 1.0


@pytest.mark.parametrize("code", ["QueueBeingDeleted", "TableBeingDeleted", "ContainerBeingDeleted"])
def test_making_what_is_still_being_deleted_asks_for_patience(code: str) -> None:
    error = refusal(what="creation", status=409, code=code, creating=True)
    assert isinstance(error, Throttled)
    assert error.retry_after >= 5


@pytest.mark.parametrize(
    ("status", "code"),
    [(500, "InternalError"), (500, "OperationTimedOut"), (503, ""), (503, "OperationTimedOut"), (504, ""), (408, "")],
)
def test_server_errors_may_have_been_done(status: int, code: str) -> None:
    """Only Azure's ``ServerBusy`` says that the service has not accepted the request. A proxy sends 503 too."""
    error = refusal(what="x", status=status, code=code)
    assert isinstance(error, Unavailable)
    assert error.maybe_done


def test_refused_credentials_quote_nothing_of_the_service() -> None:
    prose = "Signature did not match. String to sign used was r\nb\nqt"
    error = refusal(what="x", status=403, code="AuthenticationFailed", prose=prose)
    assert "String to sign" not in str(error)
    assert "key" in str(error)
    assert isinstance(error, StorageError), "an outage, which every loop survives"
    assert isinstance(error, AccessDenied)
    assert not error.maybe_done


@pytest.mark.parametrize(
    ("body", "code", "prose"),
    [
        (
            b'\xef\xbb\xbf<?xml version="1.0"?><Error><Code>QueueNotFound</Code><Message>No.</Message></Error>',
            "QueueNotFound",
            "No.",
        ),
        (b'{"odata.error":{"code":"TableNotFound","message":{"lang":"en-US","value":"No."}}}', "TableNotFound", "No."),
        (b'{"error":1}', "", ""),
        (b"{broken", "", ""),
        (b"<html>proxy</html>", "", ""),
        (b"", "", ""),
    ],
)
def test_code_and_sentence_of_a_body(body: bytes, code: str, prose: str) -> None:
    assert error_of(body) == (code, prose)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("", None), ("3", 3.0), ("-1", 0.0), ("Fri, 26 Jun 2015 23:39:12 GMT", None)],
)
def test_retry_after_is_read_only_if_it_is_a_number_of_seconds(header: str | None, seconds: float | None) -> None:
    assert seconds_of(header) == seconds
