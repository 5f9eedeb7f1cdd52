"""Implements leases of containers and blobs in SQLite, with Azure's rules.

A lease is stored in three columns of the row of its blob or container: ``lease`` (the lease's id), ``seconds`` (the
lease's duration) and ``until`` (the end of the lease, in ticks of the store's time). As in Azure, the holder can renew
an expired lease until another worker acquires a lease or a write changes the blob.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_taskhub.errors import LeaseLost, NotFound
from airflow_provider_taskhub.storage.sqlite.store_clock import TICKS
from airflow_provider_taskhub.storage.sqlite.transactions import Change, identifier


@dataclass(frozen=True, slots=True)
class _Target:
    """The blob or container that is leased, as stored.

    :param kind: SQL table of the row: ``blobs`` or ``containers``.
    :param number: id of the row.
    :param what: name of the blob or container in errors.
    """

    kind: str
    number: int
    what: str
    lease: str | None
    seconds: int
    until: int


def acquire(change: Change, container: str, name: str | None, lease_id: str, seconds: int) -> None:
    target = _target(change, container, name)
    if target.lease != lease_id and target.lease is not None and target.until > change.now():
        raise LeaseLost(f"{target.what} has an active lease with another id")
    _hold(change, target, lease_id, seconds)


def renew(change: Change, container: str, name: str | None, lease_id: str) -> None:
    target = _target(change, container, name)
    _check_held(target, lease_id)
    _hold(change, target, lease_id, target.seconds)


def change_id(change: Change, container: str, name: str | None, lease_id: str, new_lease_id: str) -> None:
    """Replace a lease's id. It is no error if the id was replaced already: the first answer may have been lost."""
    target = _target(change, container, name)
    _check_held(target, new_lease_id if target.lease == new_lease_id else lease_id)
    if target.until <= change.now():
        raise LeaseLost(f"the lease of {target.what} has expired")
    change.connection.execute(f"UPDATE {target.kind} SET lease = ? WHERE id = ?", (new_lease_id, target.number))


def release(change: Change, container: str, name: str | None, lease_id: str) -> None:
    target = _target(change, container, name)
    _check_held(target, lease_id)
    change.connection.execute(f"UPDATE {target.kind} SET lease = NULL WHERE id = ?", (target.number,))


def check_write(change: Change, what: str, lease: str | None, until: int, given: str | None) -> None:
    """Check that a write may change a blob.

    :param what: name of the blob in errors.
    :param lease: id of the blob's stored lease; None: no lease.
    :param until: end of that lease, in ticks.
    :param given: lease id that the write carries; None: no id.
    :raises LeaseLost: if a lease with another id is active, or if an id is given and no lease is active.
    """
    active = lease is not None and until > change.now()
    if active and lease != given:
        raise LeaseLost(f"{what} is leased{' under another lease id' if given else '; the write carries no lease id'}")
    if given is not None and not active:
        raise LeaseLost(f"{what} is not leased, or the lease has expired")


def _target(change: Change, container: str, name: str | None) -> _Target:
    owner = identifier(change.connection, "containers", container)
    kind, what, condition = "containers", f"container {container!r}", "id = ?"
    values: tuple[int | str, ...] = (owner,)
    if name is not None:
        kind, what, condition, values = "blobs", f"blob {name!r}", "container = ? AND name = ?", (owner, name)
    sql = f"SELECT id, lease, seconds, until FROM {kind} WHERE {condition}"
    row = change.connection.execute(sql, values).fetchone()
    if row is None:
        raise NotFound(f"{what} does not exist")
    return _Target(kind, row[0], what, row[1], row[2], row[3])


def _check_held(target: _Target, lease_id: str) -> None:
    if target.lease != lease_id:
        raise LeaseLost(f"{target.what} is {'leased under another lease id' if target.lease else 'not leased'}")


def _hold(change: Change, target: _Target, lease_id: str, seconds: int) -> None:
    change.connection.execute(
        f"UPDATE {target.kind} SET lease = ?, seconds = ?, until = ? WHERE id = ?",
        (lease_id, seconds, change.now() + seconds * TICKS, target.number),
    )
