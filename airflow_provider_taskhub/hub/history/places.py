"""The places of a limit: rows of the hub's table of controls, one for each activity or instance that may run.

``@app.activity(limit=2)`` lets two attempts run at once in the whole hub, so the activity has two places. An attempt
runs only while a place names it. Workers take, change and free a place under the ETag of its row. A place is held as
long as the activity record of its attempt says that the attempt runs. So a place does not outlive its attempt, whoever
dies, and it needs no renewal of its own. The calls that wait are messages in queues of this activity. A worker
receives from them only while it sees a free place. So the cost does not grow with the number of calls that wait.
Activities that share a limit share its places, and each has its own queues.

``@app.activity(rate="10/m")`` gives the activity ten places of another limit. An attempt that begins takes one, and the
place is free again a minute later. So at most ten attempts begin within any minute, and no two clocks are compared.

A limit of instances (:class:`.InstanceLimit`) has places of the same kind. A place names an instance, and is held until
this instance has ended (:mod:`airflow_provider_taskhub.hub.instance_places`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from datetime import timedelta
from enum import StrEnum

from airflow_provider_taskhub.activity_limit import shown
from airflow_provider_taskhub.codec import Timestamp, one_line
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.keys import escape, unescape
from airflow_provider_taskhub.hub.history import own_queues
from airflow_provider_taskhub.hub.history.activity_records import NO_ROW
from airflow_provider_taskhub.hub.history.waiting_rows import MOST_COUNTED
from airflow_provider_taskhub.hub.model import ActivityRecord, HubNames
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    Entity,
    Property,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)

_FIRST, _AFTER = "limit-", "limit;"
"""The partition keys of all places, and of the pools of workers, sort between these two texts."""
BETWEEN = "^;"
"""What is between the name of a divided limit and the value of its tag, both escaped."""
_DIVIDED = re.compile(r"((?:[^^]|\^[^;])*)\^;(.*)", re.DOTALL)
"""Matches such a text. An escaped text may contain ``^;`` too, but only after another ``^``."""
_AFTER_VALUES = "^<"
"""What comes after all keys with :data:`BETWEEN`."""
LONGEST_VALUE = 200
"""Most characters of a value of a tag. A longer one counts by its first ones and its digest, which are one more."""
_DIGEST = 64
"""The characters of a digest."""
_DECLARED = "declared"
_CHANGES = 3
"""How many numbers of starts are kept: two changes."""
_NOTED_EVERY = 60 * 10_000_000
"""Ticks. Starts with the same number are noted at most so often, so that they need no write of one row each."""
"""Row key of the row that says that the activity has a limit. The row keys of places are numbers."""


class LimitKind(StrEnum):
    """What a limit counts."""

    ACTIVITY = "activity"
    RATE = "rate"
    INSTANCES = "instances"

    @property
    def prefix(self) -> str:
        """The beginning of the partition keys of the places of such limits."""
        return "limit:" if self is LimitKind.ACTIVITY else f"limit-{self}:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit.

    :param name: name of the limit: that of the activity, unless its code says another.
    :param places: how many attempts may run at once or begin within a time, or how many instances may have begun and
        not ended.
    :param kind: what the limit counts.
    :param seconds: the time of a rate; 0: it is no rate.
    :param key_tag: the tag of calls by whose values it is divided; "": it is not divided.
    :param value: the value that has these places; None: the limit is not divided, or its declaration is meant.
    """

    name: str
    places: int
    kind: LimitKind = LimitKind.ACTIVITY
    seconds: int = 0
    key_tag: str = ""
    value: str | None = None

    @property
    def shown(self) -> str:
        """The limit as people read it: ``2``, or ``10/m``."""
        number = shown(self.places, self.seconds) if self.seconds else str(self.places)
        return f"{number} for each {self.key_tag}" if self.key_tag else number

    @property
    def key(self) -> str:
        """The partition key of its places."""
        of_value = "" if self.value is None else BETWEEN + escape(self.value)
        return self.kind.prefix + escape(self.name) + of_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One of the places of a limit.

    :param key: partition key of the places of the limit.
    :param number: number of the place, from 0.
    :param held: whether an attempt or an instance has the place. It may have ended since.
    :param instance: the instance, with the execution id of its generation. Of an attempt: the instance that called it.
    :param task_id: number of the call; 0 in a limit of instances.
    :param attempt: number of the attempt; 0 in a limit of instances.
    :param worker: full name of the worker of the attempt; "" in a limit of instances.
    :param waiting: row key of the row in which the instance has waited; "" if it has not waited.
    :param row: the row as it was read; None: there is no row yet.
    """

    key: str
    number: int
    held: bool = False
    instance: OrchestrationInstance = OrchestrationInstance(instance_id="")
    task_id: int = 0
    attempt: int = 0
    worker: str = ""
    waiting: str = ""
    row: Entity | None = None

    def is_of_call(self, record: ActivityRecord) -> bool:
        """Return True if an attempt of the call of this record has the place."""
        return self.is_of(record.instance, record.task_id)

    def is_of(self, instance: OrchestrationInstance, task_id: int) -> bool:
        """Return True if a call has the place. :param instance: the instance that has called the activity."""
        mine = self.instance.instance_id, self.instance.execution_id or ""
        return self.held and self.task_id == task_id and mine == (instance.instance_id, instance.execution_id or "")

    def is_of_run(self, instance: OrchestrationInstance) -> bool:
        """Return True if this run of an instance has the place, in any of its generations."""
        return self.held and _same_run(self.instance, instance)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """A limit, and who has its places.

    :param name: name of the limit: that of its activity, unless the code says another.
    :param kind: what the limit counts.
    :param declared: the number that the code of an activity or the newest start says; 0: there is no such limit yet.
    :param seconds: the time of a rate; 0: it is no rate.
    :param declared_at: when the newest worker with this limit, or the newest start, has written ``declared``, by the
        clock of the storage service; None: it is not known.
    :param made: of a limit of instances: when the start that ``declared`` is of was made; None: it is not known.
    :param changes: of a limit of instances: the last three numbers that starts have given, each with the time at which
        the first start was made that gave it. The last one is ``declared``.
    :param ordered: the number that an administrator has ordered instead; None: there is no order.
    :param by: who gave this order; "" if there is none.
    :param etag: the ETag of the row that says what is declared; "": there is no row.
    :param places: the places that have a row, by their numbers.
    :param partition_key: the partition key of the places; "": that of the whole limit.
    :param key_tag: the tag of calls by whose values it is divided; "": it is not divided.
    :param values: of a divided limit, who has the places of each value.
    :param activities: the activities that share it; empty in a limit of instances, and if it was not asked.
    :param waiting: about how many calls or instances wait for a place; None: it was not asked.
    :param oldest: since when that one waits that has waited longest; None: none waits, or it was not asked.
    :param waiters: the instances that wait, in their order, or whose calls wait for places of a divided limit, by the
        value of its tag; "" in a limit of instances. At most 1,000. Empty if it was not asked.
    """

    name: str
    kind: LimitKind
    declared: int
    seconds: int = 0
    declared_at: Timestamp | None = None
    made: Timestamp | None = None
    changes: tuple[tuple[int, Timestamp], ...] = ()
    ordered: int | None = None
    by: str = ""
    etag: str = ""
    places: Mapping[int, Place] = field(default_factory=dict)
    partition_key: str = ""
    key_tag: str = ""
    values: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    activities: tuple[str, ...] = ()
    waiting: int | None = None
    oldest: Timestamp | None = None
    waiters: Mapping[str, tuple[OrchestrationInstance, ...]] = field(default_factory=dict)

    @property
    def limit(self) -> int:
        """How many may run at once in the whole hub, or begin within the time of the rate."""
        return self.declared if self.ordered is None else self.ordered

    @property
    def shown(self) -> str:
        """The limit as people read it: ``2``, or ``10/m for each tenant``."""
        number = shown(self.limit, self.seconds) if self.seconds else str(self.limit)
        return f"{number} for each {self.key_tag}" if self.key_tag else number

    @property
    def holders(self) -> tuple[Place, ...]:
        """The places that somebody has."""
        own = tuple(place for _, place in sorted(self.places.items()) if place.held)
        return own + tuple(place for value in sorted(self.values) for place in self.values[value])

    @property
    def room(self) -> int:
        """How many places are free. Places above the limit, which may still be held, count as held."""
        return max(0, self.limit - len(self.holders))

    def free(self, first: int = 0) -> Iterator[Place]:
        """Find the free places, one after the other. The cost grows with the held places, not with the limit.

        If places above the limit are held, only as many as :attr:`room` says are found, those with the lowest numbers.

        :param first: how many of them are passed over and come last.
        """
        key = self.partition_key or Limit(name=self.name, places=self.limit, kind=self.kind).key
        held, room = [number for number, place in sorted(self.places.items()) if place.held], self.room
        for index in range(room):
            number = (first + index) % room
            for other in held:
                number += other <= number
            yield self.places.get(number) or Place(key=key, number=number)

    @property
    def full_values(self) -> list[str]:
        """The values of a divided limit that have all their places."""
        return sorted(value for value, holders in self.values.items() if len(holders) >= self.limit)

    def after_start(self, number: int, made: Timestamp) -> LimitState:
        """Return a limit of instances as it is when a start with a number was met. The number of the start that was
        made last counts, in whatever order they are met.

        :param number: the number that the start gives.
        :param made: when the start was made.
        """
        same = number == self.declared and self.made is not None
        if same and self.made is not None and made.ticks - self.made.ticks < _NOTED_EVERY:
            return self
        if not self.declared or self.made is None or made > self.made:
            changes = self.changes if same else (*self.changes, (number, made))
            return replace(self, declared=number, made=made, changes=changes[-_CHANGES:])
        if same or not self.changes:
            return self
        if made > self.changes[-1][1]:  # it was given between two starts with the number that counts
            return replace(self, changes=(*self.changes, (number, made), (self.declared, self.made))[-_CHANGES:])
        if len(self.changes) == 1:
            return replace(self, changes=((number, made), *self.changes))
        return self

    @property
    def changed_twice_within(self) -> timedelta | None:
        """The time within which starts have changed the number twice; None: they have not."""
        return self.changes[-1][1] - self.changes[-2][1] if len(self.changes) == _CHANGES else None

    def turn_of(self, run: OrchestrationInstance) -> int | None:
        """Return how many instances come before one that waits for a place of a limit of instances. None: it does not
        wait, it was not asked, or 1,000 or more come before it.

        :param run: the instance, with the execution id of any of its generations.
        """
        turns = (number for number, one in enumerate(self.waiters.get("", ())) if _same_run(one, run))
        return next(turns, None)

    def values_of(self, run: OrchestrationInstance) -> list[str]:
        """Return the values of the tag of a divided limit for which calls of an instance wait, as far as known.

        :param run: the instance, with the execution id of any of its generations.
        """
        return sorted(value for value, runs in self.waiters.items() if any(_same_run(one, run) for one in runs))

    @property
    def knows_all_waiters(self) -> bool:
        """Whether :attr:`waiters` names all that wait in rows."""
        return sum(map(len, self.waiters.values())) < MOST_COUNTED

    @property
    def is_full(self) -> bool:
        """Whether no place is free. Of a divided limit: whether no place of some value is free."""
        if self.key_tag:
            return bool(self.full_values)
        return not self.room


def _same_run(one: OrchestrationInstance, other: OrchestrationInstance) -> bool:
    return one.instance_id == other.instance_id and same_start(one.execution_id, other.execution_id)


async def states(store: Store, names: HubNames) -> dict[tuple[LimitKind, str], LimitState]:
    """Read all limits and who has their places, by kind and name. Cost: one query."""
    return states_in(await read(store, names))


async def read(store: Store, names: HubNames) -> dict[str, list[Entity]]:
    """Read the rows of all limits and pools of workers, by their partition keys. Cost: one query."""
    within = And((Compare("PartitionKey", "ge", _FIRST), Compare("PartitionKey", "lt", _AFTER)))
    found: dict[str, list[Entity]] = {}
    async for row in store.rows(names.controls, within):
        found.setdefault(row.partition_key, []).append(row)
    return found


def states_in(found: Mapping[str, list[Entity]]) -> dict[tuple[LimitKind, str], LimitState]:
    """Return the limits in rows (:func:`read`), by kind and name."""
    states, activities = dict[tuple[LimitKind, str], LimitState](), own_queues.known(found)
    for key, rows in sorted(found.items()):
        kind = next((kind for kind in LimitKind if key.startswith(kind.prefix)), None)
        if kind is None:
            continue
        name, value = split(key.removeprefix(kind.prefix))
        shared = () if kind is LimitKind.INSTANCES else tuple(one for one, its in activities.items() if its == name)
        state = replace(_state(kind, name, key, rows), activities=shared)
        known = states.get((kind, name))
        if value is not None and known is not None and known.key_tag:  # places of one value of the tag
            states[kind, name] = replace(known, values={**known.values, value: state.holders})
        elif value is None and (kind is LimitKind.INSTANCES or (shared and state.declared)):  # as the code has it
            states[kind, name] = state
    return states


def split(text: str) -> tuple[str, str | None]:
    """Return the name of a limit, and the value of its tag, that are in a partition key. None: it has no value."""
    found = _DIVIDED.fullmatch(text)
    return (unescape(text), None) if found is None else (unescape(found[1]), unescape(found[2]))


def value_of(tags: Mapping[str, str] | None, tag: str) -> str:
    """Return the value of a tag of a call that has the places; "" if the call has no such tag.

    :param tags: the tags of the call.
    :param tag: the tag by which the limit is divided.
    """
    value = (tags or {}).get(tag, "")
    if len(value) <= LONGEST_VALUE:
        return value
    return value[: LONGEST_VALUE + 1 - _DIGEST] + hashlib.sha256(value.encode()).hexdigest()


def shown_value(value: str) -> str:
    """Return a value of a tag (:func:`value_of`) as people read it, in one line."""
    if len(value) > LONGEST_VALUE:
        return f"{one_line(value[:40])}… (a value of over {LONGEST_VALUE} characters)"
    return one_line(value) or "(no tag)"


def were_divided(found: Mapping[str, list[Entity]]) -> bool:
    """Return True if a limit in rows (:func:`read`) is divided, or was."""
    return any(row.properties.get("Divided") is True for rows in found.values() for row in rows)


async def values_of(store: Store, names: HubNames, limit: Limit) -> set[str]:
    """Return the values of a divided limit of which somebody has places. Cost: one query for 1,000 places."""
    prefix = limit.key + BETWEEN
    within = And((Compare("PartitionKey", "ge", prefix), Compare("PartitionKey", "lt", limit.key + _AFTER_VALUES)))
    return {unescape(row.partition_key.removeprefix(prefix)) async for row in store.rows(names.controls, within)}


async def state_of(store: Store, names: HubNames, limit: Limit) -> LimitState:
    """Read one limit and who has its places. Cost: one query.

    :param limit: only its kind and its name are used.
    """
    rows = [row async for row in store.rows(names.controls, Compare("PartitionKey", "eq", limit.key))]
    return _state(limit.kind, limit.name, limit.key, rows)


def _state(kind: LimitKind, name: str, key: str, rows: list[Entity]) -> LimitState:
    own = next((row for row in rows if row.row_key == _DECLARED), None)
    columns = {} if own is None else own.properties
    declared, ordered, by = columns.get("Limit"), columns.get("Ordered"), columns.get("By")
    seconds, divided = columns.get("Seconds"), columns.get("Key")
    made = columns.get("Made")
    places = {int(row.row_key): _decoded(key, int(row.row_key), row) for row in rows if row.row_key.isdecimal()}
    return LimitState(
        name=name,
        kind=kind,
        partition_key=key,
        declared=declared if isinstance(declared, int) else 0,
        seconds=seconds if isinstance(seconds, int) else 0,
        declared_at=None if own is None else own.timestamp,
        made=made if isinstance(made, Timestamp) else None,
        changes=_changes(columns.get("Changes")),
        etag="" if own is None else own.etag,
        key_tag=divided if isinstance(divided, str) else "",
        ordered=ordered if isinstance(ordered, int) and ordered > 0 else None,
        by=by if isinstance(by, str) and ordered else "",
        places=places,
    )


def _changes(text: object) -> tuple[tuple[int, Timestamp], ...]:
    """Decode the numbers of starts. A text that is none is ignored: only people read them."""
    with suppress(ValueError, TypeError):
        return tuple((int(number), Timestamp(int(ticks))) for number, ticks in json.loads(str(text or "[]")))
    return ()


def declared(names: HubNames, limit: Limit) -> Transact:
    """Return the write that says that a limit exists. The order of an administrator stays."""
    columns: dict[str, Property | None] = {"Limit": limit.places, "Seconds": limit.seconds, "Key": limit.key_tag}
    if limit.key_tag:
        columns["Divided"] = True  # it stays: calls may wait in rows
    row = Entity(partition_key=limit.key, row_key=_DECLARED, properties=columns)
    return Transact(table=names.controls, rows=(RowOperation(verb=RowVerb.UPSERT_MERGE, entity=row),))


def started(names: HubNames, found: LimitState, after: LimitState) -> Transact:
    """Return the write of what starts have said about a limit of instances. The store refuses it with Conflict or
    NotFound if the row has changed since the read.

    :param found: the limit as it was read.
    :param after: the limit after the starts (:meth:`LimitState.after_start`).
    """
    columns: dict[str, Property | None] = {"Limit": after.declared, "Seconds": 0, "Key": "", "Made": after.made}
    columns["Changes"] = json.dumps([[number, str(made.ticks)] for number, made in after.changes])
    row = Entity(partition_key=found.partition_key, row_key=_DECLARED, properties=columns)
    if found.etag:
        operation = RowOperation(verb=RowVerb.MERGE, entity=row, etag=found.etag)
    else:
        operation = RowOperation(verb=RowVerb.INSERT, entity=row)
    return Transact(table=names.controls, rows=(operation,))


def order(names: HubNames, limit: Limit, places: int | None, *, by: str) -> Transact:
    """Return the write of an administrator's order: how many may run at once, whatever the code or a start says.

    :param limit: only its kind and its name are used.
    :param places: the number; None: the order is lifted.
    :param by: who gives the order.
    """
    columns: dict[str, Property | None] = {"Ordered": places or 0, "By": by}
    row = Entity(partition_key=limit.key, row_key=_DECLARED, properties=columns)
    return Transact(table=names.controls, rows=(RowOperation(verb=RowVerb.MERGE, entity=row, etag="*"),))


def taken(names: HubNames, place: Place, record: ActivityRecord) -> Transact:
    """Return the write with which an attempt takes a place. The store refuses it with Conflict if another worker has
    changed the place.

    :param record: the record of the attempt, which may not be stored yet.
    """
    named = replace(
        place,
        held=True,
        instance=record.instance,
        task_id=record.task_id,
        attempt=record.attempt,
        worker=record.worker,
    )
    return written(names, named, place.row)


def given(names: HubNames, place: Place, instance: OrchestrationInstance, waiting: str = "") -> Transact:
    """Return the write that gives a place to an instance. The store refuses it with Conflict if somebody has changed
    the place since the read.

    :param waiting: row key of the row in which the instance has waited.
    """
    named = Place(key=place.key, number=place.number, held=True, instance=instance, waiting=waiting)
    return written(names, named, place.row)


def freed(names: HubNames, place: Place) -> Transact:
    """Return the write that frees a place. The store refuses it with Conflict if the row has changed since the read.

    The row of a place of a divided limit is deleted, because the values of its key may come and go.
    """
    if place.row is not None and _DIVIDED.fullmatch(place.key) is not None:
        operation = RowOperation(verb=RowVerb.DELETE, entity=place.row, etag=place.row.etag)
        return Transact(table=names.controls, rows=(operation,))
    return written(names, replace(place, held=False), place.row)


def refused(names: HubNames, place: Place) -> Transact:
    """Return a write of a place that the store refuses, and that shows whether the store takes writes."""
    return written(names, place, replace(place.row or Entity(partition_key="", row_key=""), etag=NO_ROW))


def _row_key(number: int) -> str:
    return f"{number:06d}"


def written(names: HubNames, place: Place, before: Entity | None) -> Transact:
    """Return the write of a place. The store refuses it with Conflict if the place was changed.

    :param before: the row as it was read; None: there is no row.
    """
    columns: dict[str, Property | None] = {
        "Held": place.held,
        "InstanceId": place.instance.instance_id,
        "ExecutionId": place.instance.execution_id or "",
        "TaskId": place.task_id,
        "Attempt": place.attempt,
        "Worker": place.worker,
        "Waiting": place.waiting,
    }
    row = Entity(partition_key=place.key, row_key=_row_key(place.number), properties=columns)
    if before is None:
        operation = RowOperation(verb=RowVerb.INSERT, entity=row)
    else:
        operation = RowOperation(verb=RowVerb.REPLACE, entity=row, etag=before.etag)
    return Transact(table=names.controls, rows=(operation,))


def _decoded(key: str, number: int, row: Entity) -> Place:
    columns = row.properties
    instance_id, execution_id = columns.get("InstanceId"), columns.get("ExecutionId")
    waiting = columns.get("Waiting")
    task_id, attempt, worker = columns.get("TaskId"), columns.get("Attempt"), columns.get("Worker")
    return Place(
        key=key,
        number=number,
        held=columns.get("Held") is True,
        instance=OrchestrationInstance(
            instance_id=instance_id if isinstance(instance_id, str) else "",
            execution_id=execution_id if isinstance(execution_id, str) else None,
        ),
        task_id=task_id if isinstance(task_id, int) else 0,
        attempt=attempt if isinstance(attempt, int) else 0,
        worker=worker if isinstance(worker, str) else "",
        waiting=waiting if isinstance(waiting, str) else "",
        row=row,
    )
