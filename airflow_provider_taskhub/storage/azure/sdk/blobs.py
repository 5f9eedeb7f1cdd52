"""Create and delete containers, list and delete blobs, append to blobs, and lease both, through Microsoft's client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from io import BytesIO
from typing import TYPE_CHECKING

from airflow_provider_taskhub.errors import Conflict, NotFound
from airflow_provider_taskhub.storage.azure.sdk.clients import Ask, Clients, Hook
from airflow_provider_taskhub.storage.primitives import BlobInfo, DeleteBlob

if TYPE_CHECKING:
    from azure.storage.blob.aio import BlobClient, BlobLeaseClient


class BlobService:
    """The operations on blobs and containers through azure-storage-blob."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    # containers: create, delete and list

    async def create_container(self, name: str) -> bool:
        client = await self._clients.blobs()
        ask = Ask(
            kind="admin",
            service="blob",
            what=f"creation of container {name!r}",
            accept=frozenset({"ContainerAlreadyExists"}),
            creating=True,
        )
        made = await self._clients.call(ask, lambda hook: client.create_container(name, raw_request_hook=hook))
        return made is not None

    async def delete_container(self, name: str) -> None:
        client = await self._clients.blobs()
        ask = Ask(kind="admin", service="blob", what=f"deletion of container {name!r}")
        try:
            await self._clients.call(ask, lambda hook: client.delete_container(name, raw_request_hook=hook))
        except NotFound:
            return

    async def names(self, container: str, prefix: str) -> list[BlobInfo]:
        client = (await self._clients.blobs()).get_container_client(container)
        ask = Ask(kind="blob.list", service="blob", what=f"list of container {container!r}", safe=True)
        try:
            found = await self._clients.all(
                ask, lambda hook: client.list_blobs(name_starts_with=prefix or None, raw_request_hook=hook)
            )
        except NotFound:
            return []
        return [BlobInfo(name=blob.name, size=blob.size) for blob in found]

    # blobs: delete and append

    async def remove(self, operation: DeleteBlob) -> None:
        blob = (await self._clients.blobs()).get_blob_client(operation.container, operation.name)
        ask = Ask(kind="blob.delete", service="blob", what=f"deletion of blob {operation.container}/{operation.name}")
        try:
            await self._clients.call(
                ask, lambda hook: blob.delete_blob(delete_snapshots="include", raw_request_hook=hook)
            )
        except NotFound:
            return

    async def append(self, container: str, name: str, data: bytes) -> int:
        blob = (await self._clients.blobs()).get_blob_client(container, name)
        where = f"{container}/{name}"
        try:
            return await self._append(blob, where, data)
        except NotFound:
            await self._create_append(blob, where)
            return await self._append(blob, where, data)

    async def _append(self, blob: BlobClient, where: str, data: bytes) -> int:
        ask = Ask(kind="blob.append", service="blob", what=f"append to blob {where}")
        answer = await self._clients.call(
            # The data is a stream, so that aiohttp sends it in pieces. Each attempt needs a new stream.
            ask,
            lambda hook: blob.append_block(BytesIO(data), length=len(data), raw_request_hook=hook),
        )
        assert answer is not None  # the call accepts no error code
        return int(str(answer["blob_append_offset"])) + len(data)

    async def _create_append(self, blob: BlobClient, where: str) -> None:
        from azure.core import MatchConditions
        from azure.storage.blob import ContentSettings

        ask = Ask(kind="blob.append", service="blob", what=f"creation of append blob {where}")
        try:
            await self._clients.call(
                ask,
                lambda hook: blob.create_append_blob(
                    content_settings=ContentSettings(content_type="text/plain"),
                    match_condition=MatchConditions.IfMissing,
                    raw_request_hook=hook,
                ),
            )
        except Conflict:
            return  # another process has created the blob at the same time

    # leases: of the container if ``name`` is None, otherwise of the blob

    async def acquire(self, container: str, name: str | None, *, lease_id: str, seconds: int) -> None:
        lease = await self._lease(container, name, lease_id)
        await self._call(
            "acquire", container, name, lambda hook: lease.acquire(lease_duration=seconds, raw_request_hook=hook)
        )

    async def renew(self, container: str, name: str | None, *, lease_id: str) -> None:
        lease = await self._lease(container, name, lease_id)
        await self._call("renew", container, name, lambda hook: lease.renew(raw_request_hook=hook))

    async def change(self, container: str, name: str | None, *, lease_id: str, new_lease_id: str) -> None:
        lease = await self._lease(container, name, lease_id)
        await self._call("change", container, name, lambda hook: lease.change(new_lease_id, raw_request_hook=hook))

    async def release(self, container: str, name: str | None, *, lease_id: str) -> None:
        lease = await self._lease(container, name, lease_id)
        await self._call("release", container, name, lambda hook: lease.release(raw_request_hook=hook))

    async def _lease(self, container: str, name: str | None, lease_id: str) -> BlobLeaseClient:
        client = await self._clients.blobs()
        from azure.storage.blob.aio import BlobLeaseClient

        if name is None:
            return BlobLeaseClient(client.get_container_client(container), lease_id)
        return BlobLeaseClient(client.get_blob_client(container, name), lease_id)

    async def _call(
        self, action: str, container: str, name: str | None, call: Callable[[Hook], Awaitable[object]]
    ) -> None:
        where = container if name is None else f"{container}/{name}"
        await self._clients.call(Ask(kind="blob.lease", service="blob", what=f"{action} of the lease of {where}"), call)
