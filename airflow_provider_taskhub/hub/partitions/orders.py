"""What administrators have ordered: rows of ``{Hub}Controls``, read by every worker at each scan.

An order is a row of its own, so it survives every renewal, is seen with who gave it and when, and stays in force until
somebody lifts it. Owns the rows and what they mean; never carries anything out.
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
    """Controls, worked out for the workers that are there.

    :param caps: by worker. :param drained: workers that may hold nothing.
    """

    rules: Rules = field(default_factory=Rules)
    caps: Mapping[str, int] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()


def names(node: str, worker: str) -> bool:
    """Whether a worker ``name@host/incarnation`` is one of those that an administrator calls ``node``.

    ``name@host/incarnation``, ``name@host``, ``name``, or ``@host`` for all on a host; case does not count.
    """
    wanted, full = node.casefold(), worker.casefold()
    instance = full.rpartition("/")[0] or full
    name, _, host = instance.partition("@")
    return wanted in (full, instance, name, f"@{host}")


def orders(controls: Iterable[Control], workers: Collection[str]) -> Orders:
    """What the controls mean to these workers. Of several caps for a worker the lowest counts."""
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
                continue  # of a newer version, or damaged: shown by `check`, never obeyed
    rules = Rules(
        offline=frozenset(offline),
        barred={partition: frozenset(workers) for partition, workers in barred.items()},
        turn=turn,
    )
    return Orders(rules=rules, caps=caps, drained=frozenset(drained))


class Controls:
    """The rows."""

    def __init__(self, store: Store, hub: HubNames) -> None:
        self._store = store
        self._table = hub.controls

    async def read(self) -> tuple[Control, ...]:
        """All controls in force."""
        mine = Compare("PartitionKey", "eq", _KEY)
        return tuple([_decoded(entity) async for entity in self._store.rows(self._table, mine)])

    async def put(self, control: Control) -> None:
        """Order something; the same order again only changes who gave it and when."""
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
        """Take an order back. Whether it was in force."""
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
