"""Sends the frequent requests to the queue service: put, receive, update and delete messages.

The texts of messages are not encoded in Base64. The times in answers come from the clock of the service, in whole
seconds.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.parse import quote
from xml.sax.saxutils import escape

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import Conflict, Unavailable
from airflow_provider_taskhub.storage import rules
from airflow_provider_taskhub.storage.azure.rest.request import Request, Response, Wire
from airflow_provider_taskhub.storage.azure.rest.service_errors import refusal
from airflow_provider_taskhub.storage.primitives import (
    DeleteMessage,
    Message,
    PutMessage,
    Receipt,
    UpdateMessage,
)

_FOREVER = ("messagettl", "-1")
_XML = {"content-type": "application/xml"}
_ABSENT = frozenset({404})


def _body(text: str) -> bytes:
    return f"<QueueMessage><MessageText>{escape(text)}</MessageText></QueueMessage>".encode()


@lru_cache(maxsize=256)
def _time(text: str | None) -> Timestamp:
    """Parse a time of the service. The cache helps: times have whole seconds, so many messages have the same time."""
    if not text:
        raise Unavailable("the answer of the queue service does not contain a time")
    return Timestamp.from_datetime(parsedate_to_datetime(text))


def _elements(answer: Response) -> Iterator[ElementTree.Element]:
    return iter(answer.xml().findall("QueueMessage"))


def _receipt(element: ElementTree.Element) -> Receipt:
    return Receipt(
        message_id=element.findtext("MessageId", ""),
        pop_receipt=element.findtext("PopReceipt", ""),
        next_visible=_time(element.findtext("TimeNextVisible")),
    )


def _message(element: ElementTree.Element) -> Message:
    return Message(
        text=element.findtext("MessageText", ""),
        receipt=_receipt(element),
        dequeue_count=int(element.findtext("DequeueCount", "0")),
        inserted=_time(element.findtext("InsertionTime")),
    )


class Messages:
    """The operations on messages, as HTTP requests."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def put(self, operation: PutMessage) -> Receipt:
        answer = await self._wire.send(
            Request(
                kind="queue.put",
                service="queue",
                method="POST",
                path=f"/{operation.queue}/messages",
                query=(_visibility(operation.visibility), _FOREVER),
                headers=_XML,
                body=_body(operation.text),
                what=f"put into queue {operation.queue!r}",
            )
        )
        element = next(_elements(answer), None)
        if element is None:
            raise Unavailable(f"put into queue {operation.queue!r}: the answer does not contain the message")
        return _receipt(element)

    async def receive(self, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        # This request is not `safe`, because a receive hides messages. If it were repeated after a lost answer, each
        # lost answer would leave more messages invisible although no worker has them.
        answer = await self._wire.send(
            Request(
                kind="queue.receive",
                service="queue",
                method="GET",
                path=f"/{queue}/messages",
                query=(("numofmessages", str(limit)), _visibility(visibility)),
                what=f"receive from queue {queue!r}",
            )
        )
        return [_message(element) for element in _elements(answer)]

    async def update(self, operation: UpdateMessage) -> Receipt:
        receipt = operation.message
        answer = await self._wire.send(
            Request(
                kind="queue.update",
                service="queue",
                method="PUT",
                path=_path(operation.queue, receipt),
                query=(("popreceipt", receipt.pop_receipt), _visibility(operation.visibility)),
                headers={} if operation.text is None else _XML,
                body=b"" if operation.text is None else _body(operation.text),
                what=f"update of message {receipt.message_id} in queue {operation.queue!r}",
            )
        )
        return Receipt(
            message_id=receipt.message_id,
            pop_receipt=answer.headers.get("x-ms-popreceipt", ""),
            next_visible=_time(answer.headers.get("x-ms-time-next-visible")),
        )

    async def delete(self, operation: DeleteMessage) -> str | None:
        message = operation.message
        receipt = message if isinstance(message, Receipt) else message.receipt
        request = Request(
            kind="queue.delete",
            service="queue",
            method="DELETE",
            path=_path(operation.queue, receipt),
            query=(("popreceipt", receipt.pop_receipt),),
            what=f"deletion of message {receipt.message_id} from queue {operation.queue!r}",
            accept=_ABSENT if operation.quiet else frozenset(),
        )
        try:
            answer = await self._wire.send(request)
        except Conflict:
            if not operation.quiet:
                raise
            return None
        if answer.status == 404 and answer.code != "MessageNotFound":
            raise refusal(what=request.what, status=404, code=answer.code)
        return None if answer.status == 404 else receipt.message_id


def _visibility(value: timedelta) -> tuple[str, str]:
    return "visibilitytimeout", str(rules.whole_seconds(value))


def _path(queue: str, receipt: Receipt) -> str:
    return f"/{queue}/messages/{quote(receipt.message_id, safe='')}"
