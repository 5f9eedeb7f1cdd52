"""The body of an entity-group transaction, and its answer.

Written and read here because the SDK makes a MIME message of each row, at 0.3 ms a row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from airflow_provider_taskhub.errors import Unavailable

_BOUNDARY = re.compile(r'boundary="?([^";]+)"?', re.IGNORECASE)
_STATUS = re.compile(rb"^HTTP/1\.[01] (\d{3})[^\r\n]*", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One row's request in a batch.

    :param url: of the row or its table, with the account's address.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartAnswer:
    """One row's answer; a refused batch answers for the row at fault only."""

    status: int
    etag: str
    body: bytes


def encode_batch(parts: Sequence[Part]) -> tuple[str, bytes]:
    """Content type and body."""
    batch, changes = f"batch_{uuid4()}", f"changeset_{uuid4()}"
    pieces = [f"--{batch}\r\nContent-Type: multipart/mixed; boundary={changes}\r\n\r\n".encode()]
    for number, part in enumerate(parts):
        headers = "".join(f"{name}: {value}\r\n" for name, value in part.headers.items())
        pieces.append(
            f"--{changes}\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n"
            f"Content-ID: {number}\r\n\r\n{part.method} {part.url} HTTP/1.1\r\n"
            f"{headers}Content-Length: {len(part.body)}\r\n\r\n".encode()
        )
        pieces.append(part.body + b"\r\n")
    pieces.append(f"--{changes}--\r\n--{batch}--\r\n".encode())
    return f"multipart/mixed; boundary={batch}", b"".join(pieces)


def decode_batch(content_type: str, body: bytes) -> tuple[PartAnswer, ...]:
    """The answers of a batch, in the order of its rows.

    :raises Unavailable: when the answer is not a batch's: what was done is unknown.
    """
    outer = _split(content_type, body)
    inner_type, _, inner = (outer[0] if outer else b"").partition(b"\r\n\r\n")
    answers = tuple(_answer(part) for part in _split(inner_type.decode(errors="replace"), inner))
    if not answers:
        raise Unavailable("the answer to a batch could not be read")
    return answers


def _split(content_type: str, body: bytes) -> list[bytes]:
    found = _BOUNDARY.search(content_type)
    if found is None:
        return []
    return body.split(b"--" + found.group(1).strip().encode())[1:-1]


def _answer(part: bytes) -> PartAnswer:
    status = _STATUS.search(part)
    if status is None:
        raise Unavailable("a part of the answer to a batch could not be read")
    head, _, body = part[status.end() :].partition(b"\r\n\r\n")
    etag = ""
    for line in head.splitlines():
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"etag":
            etag = value.strip().decode()
    return PartAnswer(status=int(status.group(1)), etag=etag, body=body.strip())
