"""The multipart body of a transaction, and answers as Azure and its emulator write them."""

from __future__ import annotations

import email

import pytest

from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.storage.azure.rest.batch import Part, decode_batch, encode_batch


def test_the_body_is_what_a_mime_parser_reads() -> None:
    parts = [
        Part(method="POST", url="https://a/T", headers={"if-match": "*"}, body=b'{"x":"--batch_ \\r\\n"}'),
        Part(method="DELETE", url="https://a/T(PartitionKey='p',RowKey='r')", headers={}),
    ]
    content_type, body = encode_batch(parts)
    outer = email.message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    (changes,) = outer.get_payload()
    requests = [part.get_payload(decode=True) for part in changes.get_payload()]
    assert [part["Content-ID"] for part in changes.get_payload()] == ["0", "1"]
    assert requests[0].startswith(b"POST https://a/T HTTP/1.1\r\nif-match: *\r\nContent-Length: 21\r\n\r\n")
    assert requests[0].endswith(b'{"x":"--batch_ \\r\\n"}')
    assert requests[1].startswith(b"DELETE https://a/T(PartitionKey='p',RowKey='r') HTTP/1.1\r\n")


def answer(*parts: bytes) -> tuple[str, bytes]:
    inner = b"".join(
        b"--changesetresponse_2\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"
        + part
        + b"\r\n"
        for part in parts
    )
    body = (
        b"--batchresponse_1\r\nContent-Type: multipart/mixed; boundary=changesetresponse_2\r\n\r\n"
        + inner
        + b"--changesetresponse_2--\r\n--batchresponse_1--\r\n"
    )
    return "multipart/mixed; boundary=batchresponse_1", body


def test_etags_in_the_order_of_the_rows() -> None:
    one = b"HTTP/1.1 204 No Content\r\nDataServiceVersion: 1.0;\r\nETag: W/\"datetime'1'\"\r\n\r\n"
    two = b"HTTP/1.1 204 No Content\r\netag:W/\"datetime'2'\"\r\n\r\n"
    gone = b"HTTP/1.1 204 No Content\r\n\r\n"
    answers = decode_batch(*answer(one, two, gone))
    assert [(each.status, each.etag) for each in answers] == [
        (204, "W/\"datetime'1'\""),
        (204, "W/\"datetime'2'\""),
        (204, ""),
    ]


def test_a_refusal_carries_its_body() -> None:
    body = b'{"odata.error":{"code":"UpdateConditionNotSatisfied","message":{"value":"3:HTTP/1.1 200 no"}}}'
    (only,) = decode_batch(*answer(b"HTTP/1.1 412 Precondition Failed\r\nContent-Type: x\r\n\r\n" + body))
    assert (only.status, only.body) == (412, body)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [("text/html", b"<html>"), ("multipart/mixed; boundary=b", b"--b\r\nnothing\r\n--b--"), answer(b"nonsense")],
)
def test_an_unreadable_answer_leaves_the_outcome_open(content_type: str, body: bytes) -> None:
    with pytest.raises(Unavailable) as caught:
        decode_batch(content_type, body)
    assert caught.value.maybe_done
