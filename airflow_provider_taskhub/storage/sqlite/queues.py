"""Implements queues in SQLite: visibility, pop receipts, dequeue counts.

A message's id is the file's random identity followed by the message's number. Its pop receipt is the number of the last
change of the message. An update with visibility 0 sets the column ``visible`` to the message's insertion time. So the
message gets its old place in the queue, and messages that a worker gives back keep their order.

The column ``holder`` contains the name of the worker that has claimed the message, and the pop receipt of that claim.
An older version of this package does not know the column and changes only the message's own receipt. The two receipts
then differ, and the column is ignored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from datetime import timedelta

from airflow_provider_taskhub.codec import Timestamp, ticks_of
from airflow_provider_taskhub.errors import Conflict, NotFound
from airflow_provider_taskhub.storage.primitives import (
    DeleteMessage,
    Message,
    PutMessage,
    Receipt,
    UpdateMessage,
)
from airflow_provider_taskhub.storage.sqlite.transactions import Change, absent, identifier

_LOW = (1 << 64) - 1


def put(change: Change, operation: PutMessage, holder: str = "") -> Receipt:
    """Put a message into a queue.

    :param holder: full name of the worker that claims the message, if ``operation.claimed`` is set; "" records no name.
    """
    now, number = change.now(), change.next()
    visible = now + ticks_of(operation.visibility)
    put = change.connection.execute(
        "INSERT INTO messages (number, queue, visible, inserted, receipt, dequeues, text, holder) "
        "SELECT ?, id, ?, ?, ?, 0, ?, ? FROM queues WHERE name = ?",
        (number, visible, now, number, operation.text, _claim(number, holder, operation.claimed), operation.queue),
    )
    if put.rowcount == 0:
        raise absent("queue", operation.queue)
    change.touch(operation.queue, visible)
    return _receipt(change.identity, number, number, visible)


def update(change: Change, operation: UpdateMessage, holder: str = "") -> Receipt:
    """Change a message's visibility and text.

    :param holder: full name of the worker that keeps the message, if ``operation.claimed`` is set; "" records no name.
    """
    number, inserted = _claimed(change, operation.queue, operation.message)
    now, receipt = change.now(), change.next()
    visible = now + ticks_of(operation.visibility)
    place = visible if operation.visibility else inserted
    change.connection.execute(
        "UPDATE messages SET visible = ?, receipt = ?, text = coalesce(?, text), holder = ? WHERE number = ?",
        (place, receipt, operation.text, _claim(receipt, holder, operation.claimed), number),
    )
    change.touch(operation.queue, visible)
    return _receipt(change.identity, number, receipt, visible)


def delete(change: Change, operation: DeleteMessage) -> str | None:
    held = operation.message if isinstance(operation.message, Receipt) else operation.message.receipt
    deleted = change.connection.execute(
        "DELETE FROM messages WHERE number = ? AND receipt = ? AND queue = (SELECT id FROM queues WHERE name = ?)",
        (_number(change.identity, held.message_id), held.pop_receipt, operation.queue),
    )
    if deleted.rowcount:
        return held.message_id
    try:
        _claimed(change, operation.queue, held)
    except (Conflict, NotFound):
        identifier(change.connection, "queues", operation.queue)  # raises NotFound if the queue does not exist
        if not operation.quiet:
            raise
    return None


def _claimed(change: Change, queue: str, held: Receipt) -> tuple[int, int]:
    """Return the number and the insertion time of a message.

    :raises NotFound: if the queue does not have the message.
    :raises Conflict: if the receipt is stale.
    """
    number = _number(change.identity, held.message_id)
    row = change.connection.execute(
        "SELECT receipt, inserted FROM messages WHERE number = ? AND queue = (SELECT id FROM queues WHERE name = ?)",
        (number, queue),
    ).fetchone()
    if row is None:
        identifier(change.connection, "queues", queue)
        raise NotFound(f"message {held.message_id} is not in queue {queue!r}")
    if str(row[0]) != held.pop_receipt:
        raise Conflict(f"message {held.message_id} of queue {queue!r}: pop receipt {held.pop_receipt!r} is stale")
    return number, row[1]


def receive(change: Change, queue: str, limit: int, visibility: timedelta, holder: str = "") -> list[Message]:
    owner = identifier(change.connection, "queues", queue)
    now = change.now()
    visible = now + ticks_of(visibility)
    messages, updates = [], []
    for number, dequeues, inserted, text in _visible(change.connection, owner, now, limit):
        receipt = change.next()
        updates.append((visible, receipt, _claim(receipt, holder, True), number))
        messages.append(
            Message(
                text=text,
                receipt=_receipt(change.identity, number, receipt, visible),
                dequeue_count=dequeues + 1,
                inserted=Timestamp(inserted),
            )
        )
    change.connection.executemany(
        "UPDATE messages SET visible = ?, receipt = ?, holder = ?, dequeues = dequeues + 1 WHERE number = ?", updates
    )
    return messages


def release(change: Change, holders: Collection[str]) -> int:
    """Make the messages visible that these workers have claimed and that are still invisible.

    No index is needed, because few messages are invisible and have a holder: the many messages of timers are invisible
    too, but have no holder.

    :param holders: full names of worker incarnations.
    :returns: number of messages that became visible.
    """
    found = change.connection.execute(
        "SELECT m.number, m.inserted, m.receipt, m.holder, q.name FROM messages m JOIN queues q ON m.queue = q.id "
        "WHERE m.visible > ? AND m.holder IS NOT NULL",
        (change.now(),),
    ).fetchall()
    released = 0
    for number, inserted, receipt, claim, queue in found:
        if any(claim == _claim(receipt, holder, True) for holder in holders):
            change.connection.execute(
                "UPDATE messages SET visible = ?, receipt = ?, holder = NULL WHERE number = ?",
                (inserted, change.next(), number),
            )
            change.touch(queue, inserted)
            released += 1
    return released


def _claim(receipt: int, holder: str, claimed: bool) -> str | None:
    return f"{receipt} {holder}" if holder and claimed else None


def peek(connection: sqlite3.Connection, identity: int, queue: str, limit: int, now: int) -> list[Message]:
    owner = identifier(connection, "queues", queue)
    return [
        Message(
            text=text,
            receipt=Receipt(message_id=_message_id(identity, number), pop_receipt="", next_visible=Timestamp(inserted)),
            dequeue_count=dequeues,
            inserted=Timestamp(inserted),
        )
        for number, dequeues, inserted, text in _visible(connection, owner, now, limit)
    ]


def count(connection: sqlite3.Connection, queue: str) -> int:
    owner = identifier(connection, "queues", queue)
    return int(connection.execute("SELECT count(*) FROM messages WHERE queue = ?", (owner,)).fetchone()[0])


def earliest(connection: sqlite3.Connection, queue: str) -> int | None:
    """Return when the next message of a queue becomes or became visible, in ticks; None if the queue is empty.

    :raises NotFound: if the queue does not exist.
    """
    owner = identifier(connection, "queues", queue)
    found = connection.execute("SELECT min(visible) FROM messages WHERE queue = ?", (owner,)).fetchone()[0]
    return None if found is None else int(found)


def all_earliest(connection: sqlite3.Connection, names: Sequence[str]) -> dict[str, int]:
    """Return for each of these queues that has messages what :func:`earliest` returns. Leave out absent queues."""
    found = connection.execute(
        "SELECT name, (SELECT min(visible) FROM messages WHERE queue = queues.id) FROM queues "
        f"WHERE name IN ({', '.join('?' * len(names))})",
        names,
    )
    return {name: visible for name, visible in found if visible is not None}


def drop(change: Change, queue: str) -> None:
    """Delete a queue and its messages. It is no error if the queue does not exist."""
    row = change.connection.execute("DELETE FROM queues WHERE name = ? RETURNING id", (queue,)).fetchone()
    if row is not None:
        change.connection.execute("DELETE FROM messages WHERE queue = ?", row)


def _visible(connection: sqlite3.Connection, queue: int, now: int, limit: int) -> list[tuple[int, int, int, str]]:
    return connection.execute(
        "SELECT number, dequeues, inserted, text FROM messages WHERE queue = ? AND visible <= ? "
        "ORDER BY visible, number LIMIT ?",
        (queue, now, limit),
    ).fetchall()


def _receipt(identity: int, number: int, receipt: int, visible: int) -> Receipt:
    return Receipt(message_id=_message_id(identity, number), pop_receipt=str(receipt), next_visible=Timestamp(visible))


def _message_id(identity: int, number: int) -> str:
    digits = f"{(identity & _LOW) << 64 | number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _number(identity: int, message_id: str) -> int:
    """Return the message number in a message id of this file. For any other text return 0, which no message has."""
    try:
        number = int(message_id[-17:].replace("-", ""), 16)
    except ValueError:
        return 0
    return number if number < 1 << 63 and message_id == _message_id(identity, number) else 0
