"""The blob service: block blobs, append blobs, containers, and leases of both."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from airflow_provider_taskhub.errors import Conflict, NotFound
from airflow_provider_taskhub.storage.primitives import Blob, BlobInfo, DeleteBlob, PutBlob
from airflow_provider_taskhub.storage.rest.answers import refusal
from airflow_provider_taskhub.storage.rest.wire import Answer, Request, Wire

_ABSENT = frozenset({404})
_TAKEN = frozenset({409})
_CONTAINER = ("restype", "container")


class Blobs:
    """Operations on blobs and containers over a wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def put(self, operation: PutBlob) -> str:
        headers = {"x-ms-blob-type": "BlockBlob", "content-type": operation.content_type}
        if operation.if_absent:
            headers["if-none-match"] = "*"
        if operation.lease_id is not None:
            headers["x-ms-lease-id"] = operation.lease_id
        answer = await self._wire.send(
            Request(
                kind="blob.put",
                service="blob",
                method="PUT",
                path=_path(operation.container, operation.name),
                headers=headers,
                body=operation.data,
                what=f"write of blob {operation.container}/{operation.name}",
            )
        )
        return answer.headers.get("etag", "")

    async def remove(self, operation: DeleteBlob) -> None:
        await self._wire.send(
            Request(
                kind="blob.delete",
                service="blob",
                method="DELETE",
                path=_path(operation.container, operation.name),
                headers={"x-ms-delete-snapshots": "include"},
                what=f"deletion of blob {operation.container}/{operation.name}",
                accept=_ABSENT,
            )
        )

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

    async def append(self, container: str, name: str, data: bytes) -> None:
        if (await self._append(container, name, data, accept=_ABSENT)).status == 404:
            await self._create_append(container, name)
            await self._append(container, name, data)

    async def _append(
        self, container: str, name: str, data: bytes, *, accept: frozenset[int] = frozenset()
    ) -> Answer:
        return await self._wire.send(
            Request(
                kind="blob.append",
                service="blob",
                method="PUT",
                path=_path(container, name),
                query=(("comp", "appendblock"),),
                headers={"content-type": "application/octet-stream"},
                body=data,
                what=f"append to blob {container}/{name}",
                accept=accept,
            )
        )

    async def _create_append(self, container: str, name: str) -> None:
        try:
            await self._wire.send(
                Request(
                    kind="blob.append",
                    service="blob",
                    method="PUT",
                    path=_path(container, name),
                    headers={"x-ms-blob-type": "AppendBlob", "if-none-match": "*", "content-type": "text/plain"},
                    what=f"creation of append blob {container}/{name}",
                )
            )
        except Conflict:
            return  # somebody else made it at the same moment

    async def names(self, container: str, prefix: str) -> list[BlobInfo]:
        found: list[BlobInfo] = []
        marker = ""
        while True:
            query = [_CONTAINER, ("comp", "list")]
            query += [(name, value) for name, value in (("prefix", prefix), ("marker", marker)) if value]
            answer = await self._wire.send(
                Request(
                    kind="blob.list",
                    service="blob",
                    method="GET",
                    path=f"/{container}",
                    query=query,
                    what=f"list of container {container!r}",
                    safe=True,
                    accept=_ABSENT,
                )
            )
            if answer.status == 404:
                return []
            tree = answer.xml()
            found += [
                BlobInfo(
                    name=item.findtext("Name", ""), size=int(item.findtext("Properties/Content-Length", "0") or 0)
                )
                for item in tree.findall("Blobs/Blob")
            ]
            marker = tree.findtext("NextMarker") or ""
            if not marker:
                return found

    # containers

    async def create_container(self, name: str) -> bool:
        answer = await self._wire.send(
            Request(
                kind="admin",
                service="blob",
                method="PUT",
                path=f"/{name}",
                query=(_CONTAINER,),
                what=f"creation of container {name!r}",
                accept=_TAKEN,
                creating=True,
            )
        )
        if answer.status == 409 and answer.code != "ContainerAlreadyExists":
            raise refusal(what=f"creation of container {name!r}", status=409, code=answer.code, creating=True)
        return answer.status != 409

    async def delete_container(self, name: str) -> None:
        try:
            await self._wire.send(
                Request(
                    kind="admin",
                    service="blob",
                    method="DELETE",
                    path=f"/{name}",
                    query=(_CONTAINER,),
                    what=f"deletion of container {name!r}",
                )
            )
        except NotFound:
            return

    # leases

    async def lease(self, container: str, name: str | None, action: str, headers: Mapping[str, str]) -> None:
        """One lease action: acquire, renew, change or release."""
        query = [("comp", "lease")]
        if name is None:
            query.append(_CONTAINER)
        await self._wire.send(
            Request(
                kind="blob.lease",
                service="blob",
                method="PUT",
                path=f"/{container}" if name is None else _path(container, name),
                query=query,
                headers={"x-ms-lease-action": action, **headers},
                what=f"{action} of the lease of {container if name is None else f'{container}/{name}'}",
            )
        )


def _path(container: str, name: str) -> str:
    return f"/{container}/{quote(name, safe='/')}"
