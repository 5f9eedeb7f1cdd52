"""Stores containers and blobs in SQLite. An append adds a row to the table ``chunks`` and does not rewrite the blob."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from itertools import chain

from airflow_provider_taskhub.errors import Conflict, LeaseLost, NotFound
from airflow_provider_taskhub.storage.primitives import Blob, BlobInfo, DeleteBlob, PutBlob
from airflow_provider_taskhub.storage.rules import MAX_APPENDS
from airflow_provider_taskhub.storage.sqlite.leases import check_write
from airflow_provider_taskhub.storage.sqlite.transactions import Change, identifier


@dataclass(frozen=True, slots=True)
class _Found:
    number: int
    etag: int
    appends: int | None
    """Number of appends to an append blob; None for a block blob."""
    size: int
    lease: str | None
    until: int


def _find(change: Change, container: int, name: str) -> _Found | None:
    row = change.connection.execute(
        "SELECT id, etag, appends, size, lease, until FROM blobs WHERE container = ? AND name = ?", (container, name)
    ).fetchone()
    return None if row is None else _Found(*row)


def put(change: Change, operation: PutBlob) -> str:
    container = identifier(change.connection, "containers", operation.container)
    found = _find(change, container, operation.name)
    what, etag = f"blob {operation.name!r}", change.next()
    if operation.etag is not None and (found is None or operation.etag != _etag(found.etag)):
        raise Conflict(f"{what} was changed or deleted: its ETag is not {operation.etag}")
    if found is None:
        check_write(change, what, None, 0, operation.lease_id)
        number = _insert(change, container, operation.name, etag, operation.content_type, appends=None)
    else:
        if operation.if_absent:
            raise Conflict(f"{what} exists")
        check_write(change, what, found.lease, found.until, operation.lease_id)
        number = found.number
        change.connection.execute("DELETE FROM chunks WHERE blob = ?", (number,))
    _written(change, number, etag, operation.content_type, len(operation.body))
    change.connection.execute("INSERT INTO chunks VALUES (?, 0, ?)", (number, operation.body))
    return _etag(etag)


def append(change: Change, container: str, name: str, data: bytes) -> int:
    """Append data to an append blob, and return the size of the blob after that."""
    owner = identifier(change.connection, "containers", container)
    found, etag = _find(change, owner, name), change.next()
    if found is None:
        number, appends = _insert(change, owner, name, etag, "text/plain", appends=0), 0
    else:
        if found.appends is None:
            raise Conflict(f"blob {name!r} is a block blob; only an append blob takes appends")
        check_write(change, f"blob {name!r}", found.lease, found.until, None)
        number, appends = found.number, found.appends
    if appends >= MAX_APPENDS:
        raise Conflict(f"blob {name!r} has {MAX_APPENDS} appends, the most that Azure accepts; begin another blob")
    change.connection.execute("INSERT INTO chunks VALUES (?, ?, ?)", (number, appends, data))
    change.connection.execute(
        "UPDATE blobs SET etag = ?, appends = ?, size = size + ?, lease = NULL WHERE id = ?",
        (etag, appends + 1, len(data), number),
    )
    return len(data) + (0 if found is None else found.size)


def _insert(change: Change, container: int, name: str, etag: int, kind: str, *, appends: int | None) -> int:
    cursor = change.connection.execute(
        "INSERT INTO blobs (container, name, etag, type, size, appends) VALUES (?, ?, ?, ?, 0, ?)",
        (container, name, etag, kind, appends),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _written(change: Change, number: int, etag: int, kind: str, size: int) -> None:
    """Update a blob's row after a write. Remove an expired lease, so that its holder cannot renew the lease."""
    change.connection.execute(
        "UPDATE blobs SET etag = ?, type = ?, size = ?, appends = NULL, "
        "lease = CASE WHEN until > ? THEN lease END WHERE id = ?",
        (etag, kind, size, change.now(), number),
    )


def delete(change: Change, operation: DeleteBlob) -> None:
    row = change.connection.execute("SELECT id FROM containers WHERE name = ?", (operation.container,)).fetchone()
    found = None if row is None else _find(change, row[0], operation.name)
    if found is None:
        return
    check_write(change, f"blob {operation.name!r}", found.lease, found.until, None)
    change.connection.execute("DELETE FROM chunks WHERE blob = ?", (found.number,))
    change.connection.execute("DELETE FROM blobs WHERE id = ?", (found.number,))


def get(connection: sqlite3.Connection, container: str, name: str) -> Blob | None:
    """Return a blob with its content; None if the blob does not exist.

    One SQL statement reads both, so that the content and the ETag belong together.
    """
    rows = connection.execute(
        "SELECT blobs.etag, blobs.type, chunks.data FROM containers "
        "JOIN blobs ON blobs.container = containers.id LEFT JOIN chunks ON chunks.blob = blobs.id "
        "WHERE containers.name = ? AND blobs.name = ? ORDER BY chunks.part",
        (container, name),
    ).fetchall()
    if not rows:
        return None
    return Blob(data=b"".join(row[2] for row in rows), etag=_etag(rows[0][0]), content_type=rows[0][1])


def part(connection: sqlite3.Connection, container: str, name: str, offset: int, length: int) -> bytes | None:
    """Return a part of a blob; None if the blob does not exist.

    One SQL statement reads the size and the chunks, so that they belong together. It reads the chunks from the end of
    the blob, because readers of a growing log want its end, and stops at the chunk that has the first wanted byte.
    """
    rows = connection.execute(
        "SELECT blobs.size, chunks.data FROM containers "
        "JOIN blobs ON blobs.container = containers.id LEFT JOIN chunks ON chunks.blob = blobs.id "
        "WHERE containers.name = ? AND blobs.name = ? ORDER BY chunks.part DESC",
        (container, name),
    )
    first = rows.fetchone()
    if first is None:
        return None
    found: list[bytes] = []
    end = first[0]
    for _, data in chain((first,), rows):
        begin = end - len(data)
        if begin < offset + length:
            found.append(data)
        end = begin
        if begin <= offset:
            break
    rows.close()
    return b"".join(reversed(found))[max(0, offset - end) :][:length]


def listing(connection: sqlite3.Connection, container: str, prefix: str) -> list[BlobInfo]:
    rows = connection.execute(
        "SELECT blobs.name, size FROM containers JOIN blobs ON blobs.container = containers.id "
        "WHERE containers.name = ? AND blobs.name BETWEEN ? AND ? ORDER BY blobs.name",
        (container, prefix, prefix + "\U0010ffff"),
    )
    return [BlobInfo(name=name, size=size) for name, size in rows]


def drop(change: Change, container: str) -> None:
    """Delete a container and its blobs. It is no error if the container does not exist.

    :raises LeaseLost: if the container has an active lease.
    """
    try:
        number = identifier(change.connection, "containers", container)
    except NotFound:
        return
    lease, until = change.connection.execute("SELECT lease, until FROM containers WHERE id = ?", (number,)).fetchone()
    if lease is not None and until > change.now():
        raise LeaseLost(f"container {container!r} is leased")
    change.connection.execute("DELETE FROM chunks WHERE blob IN (SELECT id FROM blobs WHERE container = ?)", (number,))
    change.connection.execute("DELETE FROM blobs WHERE container = ?", (number,))
    change.connection.execute("DELETE FROM containers WHERE id = ?", (number,))


def _etag(number: int) -> str:
    return f'"{number}"'
