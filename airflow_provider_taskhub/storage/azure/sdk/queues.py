"""Create, delete and list queues through Microsoft's client; peek and count their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import NotFound, Unavailable
from airflow_provider_taskhub.storage.azure.sdk.clients import Ask, Clients
from airflow_provider_taskhub.storage.primitives import Message, Receipt

if TYPE_CHECKING:
    from azure.storage.queue import QueueMessage

_MADE = 201


class QueueService:
    """The operations on queues through azure-storage-queue."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def create(self, name: str) -> bool:
        client = await self._clients.queues()
        # Status 201: the queue was created; 204: it existed. Only the hook sees the status: the client returns no error
        # for either of them.
        statuses: list[int] = []

        def note(response: Any) -> None:
            statuses.append(response.http_response.status_code)

        ask = Ask(
            kind="admin",
            service="queue",
            what=f"creation of queue {name!r}",
            accept=frozenset({"QueueAlreadyExists"}),
            creating=True,
        )
        await self._clients.call(
            ask, lambda hook: client.create_queue(name, raw_request_hook=hook, raw_response_hook=note)
        )
        return statuses[-1:] == [_MADE]

    async def delete(self, name: str) -> None:
        client = await self._clients.queues()
        ask = Ask(kind="admin", service="queue", what=f"deletion of queue {name!r}")
        try:
            await self._clients.call(ask, lambda hook: client.delete_queue(name, raw_request_hook=hook))
        except NotFound:
            return

    async def names(self, prefix: str) -> list[str]:
        client = await self._clients.queues()
        ask = Ask(kind="admin", service="queue", what="list of queues", safe=True)
        found = await self._clients.all(
            ask, lambda hook: client.list_queues(name_starts_with=prefix or None, raw_request_hook=hook)
        )
        return [str(queue.name) for queue in found]

    async def peek(self, name: str, *, limit: int) -> list[Message]:
        queue = (await self._clients.queues()).get_queue_client(name)
        ask = Ask(kind="queue.peek", service="queue", what=f"peek into queue {name!r}", safe=True)
        found = await self._clients.call(
            ask, lambda hook: queue.peek_messages(max_messages=limit, raw_request_hook=hook)
        )
        return [_peeked(message) for message in found or ()]

    async def count(self, name: str) -> int:
        queue = (await self._clients.queues()).get_queue_client(name)
        ask = Ask(kind="admin", service="queue", what=f"length of queue {name!r}", safe=True)
        found = await self._clients.call(ask, lambda hook: queue.get_queue_properties(raw_request_hook=hook))
        if found is None or found.approximate_message_count is None:
            raise Unavailable(f"{ask.what}: the queue service's answer does not contain the length")
        return found.approximate_message_count


def _peeked(message: QueueMessage) -> Message:
    if message.inserted_on is None:
        raise Unavailable("the answer of the queue service does not contain a time")
    inserted = Timestamp.from_datetime(message.inserted_on)
    return Message(
        text=message.content or "",
        # A peek does not return when the message became visible. The insertion time is the earliest possible value.
        receipt=Receipt(message_id=message.id, pop_receipt="", next_visible=inserted),
        dequeue_count=message.dequeue_count or 0,
        inserted=inserted,
    )
