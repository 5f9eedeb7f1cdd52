"""The queue service: messages as plain text, and queues themselves.

Texts go in and come out as they are: no Base64, no policy in between. Times are the service's own, in whole seconds.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from datetime import timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import quote
from xml.sax.saxutils import escape

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import Conflict, NotFound, Unavailable
from airflow_provider_taskhub.storage import rules
from airflow_provider_taskhub.storage.primitives import (
    DeleteMessage,
    Message,
    PutMessage,
    Receipt,
    ReceiptHolder,
    UpdateMessage,
)
from airflow_provider_taskhub.storage.rest.answers import refusal
from airflow_provider_taskhub.storage.rest.wire import Answer, Request, Wire

_FOREVER = ("messagettl", "-1")
_XML = {"content-type": "application/xml"}
_ABSENT = frozenset({404})
_TAKEN = frozenset({409})


def receipt_of(message: Receipt | ReceiptHolder) -> Receipt:
    """The newest receipt, asked for when it is needed."""
    return message if isinstance(message, Receipt) else message.receipt


def _body(text: str) -> bytes:
    return f"<QueueMessage><MessageText>{escape(text)}</MessageText></QueueMessage>".encode()


def _time(text: str | None) -> Timestamp:
    if not text:
        raise Unavailable("the queue service's answer lacks a time")
    return Timestamp.from_datetime(parsedate_to_datetime(text))


def _elements(answer: Answer) -> Iterator[ElementTree.Element]:
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


def _peeked(element: ElementTree.Element) -> Message:
    inserted = _time(element.findtext("InsertionTime"))
    return Message(
        text=element.findtext("MessageText", ""),
        # a peek tells no next visible time: the message is visible, and was so when it was put at the earliest
        receipt=Receipt(message_id=element.findtext("MessageId", ""), pop_receipt="", next_visible=inserted),
        dequeue_count=int(element.findtext("DequeueCount", "0")),
        inserted=inserted,
    )


class Queues:
    """Operations on queues over a wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    # messages

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
            raise Unavailable(f"put into queue {operation.queue!r}: the answer names no message")
        return _receipt(element)

    async def receive(self, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        # Not a safe read: repeated after a lost answer, the first answer's messages would be claimed by nobody.
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

    async def peek(self, queue: str, *, limit: int) -> list[Message]:
        answer = await self._wire.send(
            Request(
                kind="queue.peek",
                service="queue",
                method="GET",
                path=f"/{queue}/messages",
                query=(("numofmessages", str(limit)), ("peekonly", "true")),
                what=f"peek into queue {queue!r}",
                safe=True,
            )
        )
        return [_peeked(element) for element in _elements(answer)]

    async def update(self, operation: UpdateMessage) -> Receipt:
        receipt = receipt_of(operation.message)
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

    async def delete_message(self, operation: DeleteMessage) -> None:
        receipt = receipt_of(operation.message)
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
            return
        if answer.status == 404 and answer.code != "MessageNotFound":
            raise refusal(what=request.what, status=404, code=answer.code)

    # queues

    async def count(self, queue: str) -> int:
        answer = await self._wire.send(
            Request(
                kind="admin",
                service="queue",
                method="GET",
                path=f"/{queue}",
                query=(("comp", "metadata"),),
                what=f"length of queue {queue!r}",
                safe=True,
            )
        )
        return int(answer.headers.get("x-ms-approximate-messages-count", "0"))

    async def create(self, name: str) -> bool:
        answer = await self._wire.send(
            Request(
                kind="admin",
                service="queue",
                method="PUT",
                path=f"/{name}",
                what=f"creation of queue {name!r}",
                accept=_TAKEN,
                creating=True,
            )
        )
        if answer.status == 409 and answer.code != "QueueAlreadyExists":
            raise refusal(what=f"creation of queue {name!r}", status=409, code=answer.code, creating=True)
        return answer.status == 201

    async def delete(self, name: str) -> None:
        try:
            await self._wire.send(
                Request(
                    kind="admin",
                    service="queue",
                    method="DELETE",
                    path=f"/{name}",
                    what=f"deletion of queue {name!r}",
                )
            )
        except NotFound:
            return

    async def names(self, prefix: str) -> list[str]:
        found: list[str] = []
        marker = ""
        while True:
            answer = await self._wire.send(
                Request(
                    kind="admin",
                    service="queue",
                    method="GET",
                    path="/",
                    query=[("comp", "list"), *([("prefix", prefix)] if prefix else []),
                           *([("marker", marker)] if marker else [])],
                    what="list of queues",
                    safe=True,
                )
            )
            tree = answer.xml()
            found += [item.text or "" for item in tree.findall("Queues/Queue/Name")]
            marker = tree.findtext("NextMarker") or ""
            if not marker:
                return found


def _visibility(value: timedelta) -> tuple[str, str]:
    return "visibilitytimeout", str(rules.whole_seconds(value))


def _path(queue: str, receipt: Receipt) -> str:
    return f"/{queue}/messages/{quote(receipt.message_id, safe='')}"
