"""Read the facts from which the module ``reasons`` finds why instances do not continue.

The number of requests has a limit, however many instances the hub has.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.pending_waits import Awaits
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.waits_column import decode_awaits
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable, sentinel_of
from airflow_provider_taskhub.hub.history.places import LimitKind, LimitState, states
from airflow_provider_taskhub.hub.history.queries import query_filter
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import Control, ControlKind, InstanceState, Member, Ownership
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.hub.partitions.observer import LeaseObserver
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.waiting.counts import counted, waiting_calls_of
from airflow_provider_taskhub.hub.waiting.reasons import (
    QuarantinedMessage,
    Reason,
    Snapshot,
    Why,
    unwatched,
    why,
    without_memory,
    without_slot,
)
from airflow_provider_taskhub.instance_limit import InstanceLimit

PARALLEL = 16
"""How many sentinels are read at the same time."""
SENTINELS = 100
"""How many sentinels of running and suspended instances one call reads. For the other instances, it is unknown what
they await."""
ROWS = 500
"""How many instance rows of one status :meth:`WaitingReader.scan` reads at most."""
PAGES = 10
"""How many requests :meth:`WaitingReader.scan` makes at most for the rows of one status. A store may return a page with
few rows."""
QUARANTINED = 1000
"""How many messages in quarantine one call reads."""
EXAMPLES = 3
"""How many instances :meth:`WaitingReader.scan` names for each reason."""
REUSED = 5.0
"""For this time, in seconds, calls use the state of the hub that was read last, and do not read it again. The web page
calls every 2 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An instance that does not continue.

    :param instance_id: id of the instance.
    :param text: why the instance does not continue, and what a person can do.
    """

    instance_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingInstances:
    """The instances of a hub that do not continue, by their strongest reason.

    :param counts: number of instances by reason.
    :param examples: some instances by reason.
    :param complete: False if some instances were not read. The counts are then lower bounds.
    """

    counts: Mapping[Reason, int] = field(default_factory=dict)
    examples: Mapping[Reason, tuple[Example, ...]] = field(default_factory=dict)
    complete: bool = True

    @property
    def faults(self) -> tuple[Reason, ...]:
        """The reasons that are faults (:attr:`Reason.is_fault`)."""
        return tuple(reason for reason in self.counts if reason.is_fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HubState:
    """The state of the hub as it was last read.

    :param read: when the state was read, in seconds of the monotonic clock.
    :param served: owner by the number of the partition.
    :param controls: orders of administrators that are in force.
    :param quarantined: messages in quarantine by instance id.
    """

    read: float
    served: Mapping[int, Ownership]
    controls: tuple[Control, ...]
    quarantined: Mapping[str, Sequence[QuarantinedMessage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """The limits of the hub as they were last read.

    :param read: when they were read, in seconds of the monotonic clock.
    :param limits: the limits by kind and name, who has their places, and who waits for those that were asked for.
    :param calls: by activity, about how many calls wait, of the activities that were asked for.
    """

    read: float = float("-inf")
    limits: dict[tuple[LimitKind, str], LimitState] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)


_NO_LIMITS = _Limits()


class WaitingReader:
    """Finds out why instances of a hub do not continue. Use each reader in only one event loop.

    :param observer: reads the leases of the partitions and the orders of administrators for this reader.
    """

    def __init__(self, hub: Hub, observer: LeaseObserver) -> None:
        self._hub, self._observer = hub, observer
        self._hub_state: _HubState | None = None
        self._limits_read = _NO_LIMITS
        self._reading = asyncio.Lock()

    async def one(
        self, state: InstanceState, members: Sequence[Member], watching: Sequence[Member] | None
    ) -> tuple[Why, ...]:
        """Read why one instance does not continue. This needs about six requests, and three more for each awaited child
        (at most three children).

        :param state: the instance.
        :param members: workers of the hub. The caller has found out which are alive.
        :param watching: live triggerers that watch the hub; None: not known.
        :returns: all reasons, the strongest first (see :func:`reasons.why`).
        """
        if state.status.is_final:
            return ()
        awaits = await self._awaits(state)
        ids = (state.instance_id, *(awaits.child_ids if awaits is not None else ()))
        partitions = {partition_of(one, self._observer.partitions) for one in ids}
        quarantined, rows, limits, _ = await asyncio.gather(
            asyncio.gather(*map(self._quarantined, ids)),
            asyncio.gather(*map(self._hub.instance, ids[1:])),
            self._limits((state,), (awaits,), members),
            asyncio.gather(*map(self._observer.refresh_one, partitions)),
        )
        hub_state = _HubState(
            read=0.0,
            served={partition: self._observer.ownership(partition) for partition in partitions},
            controls=self._observer.controls,
            quarantined=dict(zip(ids, quarantined, strict=True)),
        )
        child_rows = {row.instance_id: row for row in rows if row is not None}
        return self._whys(state, members, watching, hub_state, limits, awaits, child_rows)

    async def many(
        self,
        states: Iterable[InstanceState],
        members: Sequence[Member],
        watching: Sequence[Member] | None,
        *,
        sentinels: int = SENTINELS,
        numbers: bool = True,
    ) -> dict[str, tuple[Why, ...]]:
        """Read why instances do not continue. Other parameters: see :meth:`one`.

        :param numbers: whether it is counted how many calls wait for the same limits, memory and slots.
        :param sentinels: for how many running or suspended instances the sentinel is read, which costs one request
            each. Running instances come first, and of these the instance whose row was changed the longest time ago.
        :returns: reasons by instance id. Instances without a reason are omitted.
        """
        found = [state for state in states if not state.status.is_final]
        if not found:
            return {}
        hub_state = await self._read_hub_state()
        begun = [state for state in found if state.status is not Status.PENDING]
        asked = sorted(begun, key=lambda state: (state.status is Status.SUSPENDED, _changed(state)))[:sentinels]
        read = await gather_bounded(self._awaits, asked, limit=PARALLEL)
        known = {state.instance_id: one for state, one in zip(asked, read, strict=True)}
        limits = await self._limits(found, read if numbers else (), members)
        whys = {
            state.instance_id: self._whys(state, members, watching, hub_state, limits, known.get(state.instance_id))
            for state in found
        }
        return {instance_id: reasons for instance_id, reasons in whys.items() if reasons}

    async def scan(self, members: Sequence[Member], watching: Sequence[Member] | None) -> WaitingInstances:
        """Count why the instances of the hub do not continue. At most :data:`ROWS` instances of each status that is not
        final are read.

        An instance is counted under its strongest reason. If a triggerer is missing, the instance is counted under this
        reason too. Parameters: see :meth:`one`.
        """
        open_ones = (Status.SUSPENDED, Status.PENDING, Status.RUNNING)
        read = await asyncio.gather(*map(self._rows, open_ones))
        states = [state for rows, _ in read for state in rows]
        states += await self._held(members, {state.instance_id for state in states})
        whys = await self.many(states, members, watching, numbers=False)
        counts: dict[Reason, int] = defaultdict(int)
        examples: dict[Reason, list[Example]] = defaultdict(list)
        for instance_id, reasons in whys.items():
            counted = [one for one in reasons if one is reasons[0] or one.reason is Reason.NO_TRIGGERER]
            for one in counted:
                if one.reason is Reason.ACTIVITIES:
                    continue  # activities of this instance run, so the instance goes on
                counts[one.reason] += 1
                if len(examples[one.reason]) < EXAMPLES:
                    examples[one.reason].append(Example(instance_id=instance_id, text=str(one)))
        order = [reason for reason in Reason if reason in counts]
        begun = sum(state.status is not Status.PENDING for state in states)
        whole = all(end for _, end in read) and begun <= SENTINELS
        return WaitingInstances(
            counts={reason: counts[reason] for reason in order},
            examples={reason: tuple(examples[reason]) for reason in order},
            complete=whole,
        )

    def _whys(
        self,
        state: InstanceState,
        members: Sequence[Member],
        watching: Sequence[Member] | None,
        hub_state: _HubState,
        limits: _Limits,
        awaits: Awaits | None,
        child_rows: Mapping[str, InstanceState] = MappingProxyType({}),
    ) -> tuple[Why, ...]:
        found = self._snapshot(state, members, hub_state)
        child_ids = awaits.child_ids if awaits is not None else ()
        children = [self._snapshot(replace(state, instance_id=one), members, hub_state) for one in child_ids]
        found = replace(
            found,
            awaits=awaits,
            children=children,
            child_rows=child_rows,
            limits=limits.limits,
            calls=limits.calls,
        )
        reasons, alone = why(found), unwatched(state, watching)
        return reasons if alone is None else (*reasons, alone)

    def _snapshot(self, state: InstanceState, members: Sequence[Member], hub_state: _HubState) -> Snapshot:
        partition = partition_of(state.instance_id, self._observer.partitions)
        order = next((one for one in hub_state.controls if _offline(one, partition)), None)
        return Snapshot(
            state=state,
            members=members,
            served=hub_state.served.get(partition),
            offline_by=order.by if order is not None else "",
            offline_reason=order.reason if order is not None else "",
            quarantined=hub_state.quarantined.get(state.instance_id, ()),
            now=self._hub.clock.utc_now(),
        )

    async def _read_hub_state(self) -> _HubState:
        async with self._reading:
            now = self._hub.clock.monotonic()
            if self._hub_state is not None and now - self._hub_state.read < REUSED:
                return self._hub_state
            hub = self._hub
            _, items = await asyncio.gather(
                self._observer.refresh(), quarantine.listing(hub.store, hub.names, bodies=False, limit=QUARANTINED)
            )
            quarantined: dict[str, list[QuarantinedMessage]] = defaultdict(list)
            for item in items:
                quarantined[item.instance_id].append(_quarantined(item))
            self._hub_state = _HubState(
                read=now,
                served={number: self._observer.ownership(number) for number in range(self._observer.partitions)},
                controls=self._observer.controls,
                quarantined=quarantined,
            )
            return self._hub_state

    async def _limits(
        self, instances: Iterable[InstanceState], awaits: Iterable[Awaits | None], members: Sequence[Member]
    ) -> _Limits:
        """Read the limits, and who has their places, if an instance awaits an activity or waits for its turn. Count who
        waits for those of them, for memory and for slots, that keep these instances waiting."""
        activities = {name for one in awaits if one is not None for name in one.activities}
        pending = [one for one in instances if one.status is Status.PENDING]
        turns = {limit.name for one in pending if (limit := InstanceLimit.of(one.tags)) is not None}
        if not activities and not turns:
            return _NO_LIMITS
        hub, now = self._hub, self._hub.clock.monotonic()
        if now - self._limits_read.read >= REUSED:
            self._limits_read = _Limits(read=now, limits=await states(hub.store, hub.names))
        found = self._limits_read

        async def count(state: LimitState) -> None:
            found.limits[state.kind, state.name] = one = await counted(hub.store, hub.names, found.limits, state)
            found.calls.update(dict.fromkeys(one.activities, one.waiting or 0))

        asked = [
            state
            for state in found.limits.values()
            if state.waiting is None
            and (state.name in turns if state.kind is LimitKind.INSTANCES else activities & {*state.activities})
            and state.is_full
        ]
        await gather_bounded(count, asked, limit=PARALLEL)
        others = activities - found.calls.keys()
        calls = await waiting_calls_of(hub.store, hub.names, others, members, found.limits, _lacking)
        found.calls.update({name: count for names, count in calls.items() for name in names})
        return found

    async def _quarantined(self, instance_id: str) -> Sequence[QuarantinedMessage]:
        items = await quarantine.listing(
            self._hub.store, self._hub.names, bodies=False, limit=EXAMPLES, instance_id=instance_id
        )
        return [_quarantined(item) for item in items]

    async def _awaits(self, state: InstanceState) -> Awaits | None:
        """Read what an instance awaits since its last checkpoint. A suspended instance awaits nothing; then the result
        only says whether its history cannot be read. Of the pending ones, those that were rewound await something.

        :returns: None if the store does not say what the instance awaits.
        """
        pending = state.status is Status.PENDING
        try:
            sentinel = await sentinel_of(self._hub.store, self._hub.names, state.instance_id)
        except HistoryUnreadable as error:
            return None if pending else Awaits(unreadable=str(error))  # a Pending start may replace a damaged history
        if sentinel is None or sentinel.awaits is None or (pending and sentinel.execution_id != state.execution_id):
            return None
        awaits = decode_awaits(sentinel.awaits)
        return awaits if state.status in (Status.RUNNING, Status.PENDING) else Awaits(unreadable=awaits.unreadable)

    async def _held(self, members: Sequence[Member], known: Collection[str]) -> list[InstanceState]:
        """Read the instances that live workers have held for long, if they are not known yet."""
        ids = {one.instance_id for member in members if member.alive for one in member.backlog.held} - {*known}
        found = await gather_bounded(self._hub.instance, sorted(ids), limit=PARALLEL)
        return [state for state in found if state is not None]

    async def _rows(self, status: Status) -> tuple[list[InstanceState], bool]:
        """Read the instance rows of a status.

        :returns: the rows, and True if there are no more rows of this status.
        """
        hub, where = self._hub, query_filter(statuses=(status,))
        found: list[InstanceState] = []
        continuation: str | None = None
        for _ in range(PAGES):
            page = await hub.store.query(hub.names.instances, where, limit=ROWS - len(found), continuation=continuation)
            found.extend(hub.state_of(entity) for entity in page.entities if entity.row_key == "")
            continuation = page.continuation
            if continuation is None:
                return found, True
            if len(found) >= ROWS:
                break
        return found, False


def _quarantined(item: quarantine.Quarantined) -> QuarantinedMessage:
    return QuarantinedMessage(message_id=item.message_id, cause=item.cause, stuck=item.stuck is not None)


def _offline(control: Control, partition: int) -> bool:
    return control.kind is ControlKind.OFFLINE and control.partition == partition


def _changed(state: InstanceState) -> Timestamp:
    return state.updated or state.created or Timestamp(0)


def _lacking(activity: str, members: Iterable[Member]) -> Sequence[Member]:
    """Return the live workers of an activity if none has enough memory, or none a slot, free for it; else nothing."""
    members = [*members]
    return without_memory(activity, members) or without_slot(activity, members)
