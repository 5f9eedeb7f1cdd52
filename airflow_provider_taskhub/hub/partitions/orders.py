"""The orders of administrators: rows of ``{Hub}Controls``, which each worker reads at each scan.

An order is for example "partition 3 is offline". It has a row of its own: so renewals of leases do not overwrite it,
people see who gave it and when, and it stays in force until an administrator lifts it. This module reads and writes the
rows and says what the orders mean. The scans of the workers carry the orders out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import NotFound
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.model import Control, ControlKind, HubNames
from airflow_provider_taskhub.hub.partitions.balance import Rules
from airflow_provider_taskhub.storage.primitives import (
    Compare,
    Entity,
    Property,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)

_KEY = "control"
_KINDS = {kind.value: kind for kind in ControlKind}


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the orders of administrators mean for a list of workers.

    :param rules: the orders about partitions.
    :param caps: for each worker, the most partitions that it may have.
    :param drained: full names of workers that may have no partition.
    """

    rules: Rules = field(default_factory=Rules)
    caps: Mapping[str, int] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()


def names(node: str, worker: str) -> bool:
    """Return whether a worker is one of those that an administrator means by ``node``.

    ``node`` is ``name@host/incarnation``, ``name@host``, ``name``, or ``@host`` for all workers of a host. Upper and
    lower case are the same.

    :param worker: full name of the worker: ``name@host/incarnation``.
    """
    wanted, full = node.casefold(), worker.casefold()
    instance = full.rpartition("/")[0] or full
    name, _, host = instance.partition("@")
    return wanted in (full, instance, name, f"@{host}")


def orders(controls: Iterable[Control], workers: Collection[str]) -> Orders:
    """Return what the orders of administrators mean for these workers. If several caps are for one worker, the lowest
    one counts.

    :param workers: full names of the workers.
    """
    offline: set[int] = set()
    barred: dict[int, set[str]] = defaultdict(set)
    caps: dict[str, int] = {}
    drained: set[str] = set()
    turn: int | None = None
    for control in controls:
        meant = [worker for worker in workers if control.node is None or names(control.node, worker)]
        match control:
            case Control(kind=ControlKind.OFFLINE, partition=int(partition)):
                offline.add(partition)
            case Control(kind=ControlKind.PROHIBIT, partition=int(partition)):
                barred[partition].update(meant)
            case Control(kind=ControlKind.CAP, value=int(value)):
                caps |= {worker: min(value, caps.get(worker, value)) for worker in meant}
            case Control(kind=ControlKind.TURN, value=int(value)):
                turn = value
            case Control(kind=ControlKind.DRAIN, node=str()):
                drained.update(meant)
            case _:
                # an order that a newer version of this package wrote, or a damaged one, has no effect here;
                # `taskhub partitions check` shows it
                continue
    rules = Rules(
        offline=frozenset(offline),
        barred={partition: frozenset(workers) for partition, workers in barred.items()},
        turn=turn,
    )
    return Orders(rules=rules, caps=caps, drained=frozenset(drained))


class Controls:
    """Read and write the orders of administrators: rows of ``{Hub}Controls``."""

    def __init__(self, store: Store, hub: HubNames) -> None:
        self._store = store
        self._table = hub.controls

    async def read(self) -> tuple[Control, ...]:
        """Return all orders in force."""
        mine = Compare("PartitionKey", "eq", _KEY)
        return tuple([_decoded(entity) async for entity in self._store.rows(self._table, mine)])

    async def put(self, control: Control) -> None:
        """Write an order. It replaces an order of the same kind for the same partition and workers."""
        columns: dict[str, Property | None] = {
            "Kind": control.kind,
            "Partition": control.partition,
            "Node": control.node,
            "Value": control.value,
            "By": control.by,
            "At": control.at,
            "Reason": control.reason or None,
        }
        entity = Entity(partition_key=_KEY, row_key=_row_key(control), properties=columns)
        row = RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=entity)
        await self._store.execute(Transact(table=self._table, rows=(row,)))

    async def lift(self, control: Control) -> bool:
        """Lift an order: delete its row. Return whether the order was in force."""
        entity = Entity(partition_key=_KEY, row_key=_row_key(control))
        row = RowOperation(verb=RowVerb.DELETE, entity=entity, etag="*")
        try:
            await self._store.execute(Transact(table=self._table, rows=(row,)))
        except NotFound:
            return False
        return True


def _row_key(control: Control) -> str:
    partition = "" if control.partition is None else f"{control.partition:04d}"
    return f"{control.kind}|{partition}|{escape((control.node or '').casefold())}"


def _decoded(entity: Entity) -> Control:
    columns = entity.properties
    partition, value, at = columns.get("Partition"), columns.get("Value"), columns.get("At")
    node, kind = columns.get("Node"), str(columns.get("Kind") or "")
    return Control(
        kind=_KINDS.get(kind, ControlKind.UNKNOWN),
        partition=int(partition) if isinstance(partition, int) else None,
        node=node if isinstance(node, str) else None,
        value=int(value) if isinstance(value, int) else None,
        by=str(columns.get("By") or ""),
        at=at if isinstance(at, Timestamp) else Timestamp(0),
        reason=str(columns.get("Reason") or ""),
    )
