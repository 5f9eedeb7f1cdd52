"""Sends the frequent requests to the blob service: put and get block blobs."""

from __future__ import annotations

from urllib.parse import quote

from airflow_provider_taskhub.storage.azure.rest.request import Request, Wire
from airflow_provider_taskhub.storage.primitives import Blob, PutBlob

_ABSENT = frozenset({404})
_BEHIND_THE_END = 416


class Blobs:
    """The operations on block blobs, as HTTP requests."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def put(self, operation: PutBlob) -> str:
        headers = {"x-ms-blob-type": "BlockBlob", "content-type": operation.content_type}
        if operation.if_absent:
            headers["if-none-match"] = "*"
        if operation.etag is not None:
            headers["if-match"] = operation.etag
        if operation.lease_id is not None:
            headers["x-ms-lease-id"] = operation.lease_id
        answer = await self._wire.send(
            Request(
                kind="blob.put",
                service="blob",
                method="PUT",
                path=_path(operation.container, operation.name),
                headers=headers,
                body=operation.body,
                what=f"write of blob {operation.container}/{operation.name}",
            )
        )
        return answer.headers.get("etag", "")

    async def get(self, container: str, name: str) -> Blob | None:
        answer = await self._wire.send(
            Request(
                kind="blob.get",
                service="blob",
                method="GET",
                path=_path(container, name),
                what=f"blob {container}/{name}",
                safe=True,
                accept=_ABSENT,
            )
        )
        if answer.status == 404:
            return None
        return Blob(
            data=answer.body,
            etag=answer.headers.get("etag", ""),
            content_type=answer.headers.get("content-type", "application/octet-stream"),
        )

    async def get_range(self, container: str, name: str, *, offset: int, length: int) -> bytes | None:
        answer = await self._wire.send(
            Request(
                kind="blob.get",
                service="blob",
                method="GET",
                path=_path(container, name),
                headers={"x-ms-range": f"bytes={offset}-{offset + length - 1}"},
                what=f"part of blob {container}/{name}",
                safe=True,
                accept=_ABSENT | {_BEHIND_THE_END},
            )
        )
        if answer.status == 404:
            return None
        return b"" if answer.status == _BEHIND_THE_END else answer.body


def _path(container: str, name: str) -> str:
    return f"/{container}/{quote(name, safe='/')}"
