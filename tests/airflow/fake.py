"""A hub in memory with the client's methods, counting every request: enough for the front, which uses nothing else."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from airflow_provider_taskhub.client.ends import End
from airflow_provider_taskhub.codec import Timestamp, dumps
from airflow_provider_taskhub.engine.events import (
    ExecutionStarted,
    FailureDetails,
    HistoryEvent,
    OrchestrationInstance,
    Status,
    SubOrchestrationInstanceCreated,
)
from airflow_provider_taskhub.engine.pending_waits import Awaits
from airflow_provider_taskhub.errors import (
    InputError,
    InstanceExists,
    InstanceNotFound,
    IntakeFull,
    InvalidStateError,
    PartitionNotFound,
)
from airflow_provider_taskhub.hub.formats.keys import log_name
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable
from airflow_provider_taskhub.hub.history.pages import ChildPage, HistoryPage
from airflow_provider_taskhub.hub.history.places import LimitState
from airflow_provider_taskhub.hub.log_hints import LogHint
from airflow_provider_taskhub.hub.model import (
    ActivityRecord,
    Control,
    ControlKind,
    HubInfo,
    InstanceState,
    Member,
    PartitionState,
    RecordState,
    StartPolicy,
)
from airflow_provider_taskhub.hub.queues.quarantine import Quarantined
from airflow_provider_taskhub.hub.waiting.reasons import Snapshot, Why, unwatched, why
from airflow_provider_taskhub.hub.watches import Watch
from airflow_provider_taskhub.instance_limit import InstanceLimit, priority_tags
from airflow_provider_taskhub.lineage import NO_LINEAGE, Lineage
from airflow_provider_taskhub.no_input import NO_INPUT

NOW = Timestamp.parse("2026-11-21T10:00:00Z")


def member(worker: str = "a@host/1", *orchestrators: str, alive: bool = True) -> Member:
    return Member(
        worker=worker,
        started=NOW,
        roles=("orchestrator", "activity"),
        apps={"flights": "3"},
        orchestrators=orchestrators or ("flights_delays",),
        activities=(),
        alive=alive,
    )


def record(
    state: RecordState, *, task_id: int = 0, attempt: int = 1, execution: str = "e", **more: Any
) -> ActivityRecord:
    """An attempt. :param execution: as :meth:`FakeHub.put` gives it, unless it is an earlier one."""
    fields: dict[str, Any] = {
        "instance": OrchestrationInstance(instance_id="i", execution_id=execution),
        "task_id": task_id,
        "action_id": f"a{task_id}",
        "attempt": attempt,
        "name": "monthly_delays",
        "state": state,
        "worker": "a@host/1",
        "executor": "1",
        "claimed": NOW,
    }
    return ActivityRecord(**(fields | more))


@dataclass
class FakeHub:
    """:param failed: attempts to blame. :param down: raised by every request while set. :param requests: by method.
    :param unwatched: no triggerer is listed. :param damaged: by instance id, raised by requests for its records.
    :param ordered: what a handle was told to do: operation, instance id, arguments. :param refuses: raised instead.
    :param rewound: each rewind's instance and reason. :param half_rewound: Pending ones whose rewind was interrupted.
    :param damaged_payloads, unreadable: by instance id, what cannot be read of its row's payloads and its history.
    :param graces: of each terminate, the instance and the time for its clean-up.
    :param events: raised events. :param reasons: what was asked of an instance, and why.
    :param awaited: what sensors have published. :param changes: change hints. :param silent: workers write no hints.
    :param logs, grown: by name, the texts of logs, and the log hints.
    :param facts: by instance id, more fields of the snapshot from which the reasons for its wait are found.
    :param asked, purges: what purge_many was asked for, and its answer. :param slow: nothing asked takes effect.
    :param stamps, clock: when the rows were written, by the store's clock, which moves 1 s with each write.
    :param lists_by_time: the hub is embedded: it can list the newest first.
    :param full: why it takes no new start. :param waits: how long each start was to wait for room.
    """

    instances: dict[str, InstanceState] = field(default_factory=dict)
    records: dict[str, tuple[ActivityRecord, ...]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    grown: dict[str, LogHint] = field(default_factory=dict)
    failed: dict[str, Any] = field(default_factory=dict)
    lineages: dict[str, tuple[Lineage, int]] = field(default_factory=dict)
    workers: tuple[Member, ...] = (member(),)
    serving: tuple[PartitionState, ...] = ()
    hints: set[str] = field(default_factory=set)
    watched: dict[str, Watch] = field(default_factory=dict)
    awaits: dict[str, Awaits] = field(default_factory=dict)
    down: Exception | None = None
    damaged: dict[str, Exception] = field(default_factory=dict)
    damaged_payloads: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    histories: dict[str, Sequence[HistoryEvent]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    starts: list[tuple[str, StartPolicy]] = field(default_factory=list)
    terminated: list[tuple[str, str]] = field(default_factory=list)
    graces: list[tuple[str, timedelta | None]] = field(default_factory=list)
    ordered: list[tuple[Any, ...]] = field(default_factory=list)
    refuses: Exception | None = None
    rewound: list[tuple[str, str]] = field(default_factory=list)
    half_rewound: set[str] = field(default_factory=set)
    controls: tuple[Control, ...] = ()
    quarantine: tuple[Quarantined, ...] = ()
    limits: tuple[LimitState, ...] = ()
    events: list[tuple[str, str, Any]] = field(default_factory=list)
    reasons: list[tuple[str, str]] = field(default_factory=list)
    slow: bool = False
    opened: int = 0
    created: bool = False
    open_now: int = 0
    attending: int = 0
    awaited: frozenset[str] = frozenset()
    changes: dict[str, str] = field(default_factory=dict)
    silent: bool = False
    asked: dict[str, Any] = field(default_factory=dict)
    stamps: dict[str, tuple[InstanceState, Timestamp]] = field(default_factory=dict)
    clock: int = 0
    purges: Any = None
    unwatched: bool = False
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    announced: int = 0
    store_time: Timestamp = NOW
    lists_by_time: bool = False
    full: IntakeFull | None = None
    waits: list[timedelta | None] = field(default_factory=list)
    ended: list[End] = field(default_factory=list)

    def put(self, instance_id: str, status: Status, **more: Any) -> InstanceState:
        old = self.instances.get(instance_id)
        fields: dict[str, Any] = {
            "instance_id": instance_id,
            "execution_id": "e",
            "name": "flights_delays",
            "status": status,
            "tags": old.tags if old else None,
            "input": old.input if old else None,
            "version": old.version if old else "",
            "released": bool(old and old.released),
        }
        self.instances[instance_id] = InstanceState(**(fields | more))
        self.stamp(self.instances[instance_id])
        self.change(instance_id)
        return self.instances[instance_id]

    def sort_key(self, order: str) -> Callable[[InstanceState], Any]:
        if order == "id":
            return lambda one: one.instance_id
        time = self.stamp if order == "changed" else lambda one: one.created
        return lambda one: (-time(one).ticks, one.instance_id)

    def stamp(self, state: InstanceState) -> Timestamp:
        """When the store has written a row: each row 1 s after the last one that was written or looked at."""
        old = self.stamps.get(state.instance_id)
        if old is None or old[0] is not state:
            self.clock += 1
            self.stamps[state.instance_id] = state, NOW + timedelta(seconds=self.clock)
        return self.stamps[state.instance_id][1]

    def change(self, instance_id: str, awaits: Awaits | None = None) -> None:
        """As a checkpoint does for what sensors wait for."""
        if awaits is not None:
            self.awaits[instance_id] = awaits
        if instance_id in self.awaited and not self.silent:
            self.changes[instance_id] = f"e{len(self.changes)}-{sum(self.requests.values())}"

    def end(self, instance_id: str, output: Any = None, *, status: Status = Status.COMPLETED, **more: Any) -> None:
        """As a checkpoint does: the row, then the hint."""
        self.put(instance_id, status, output=output if isinstance(output, str) else dumps(output), **more)
        self.hints.add(instance_id)

    def fail(self, instance_id: str, message: str, *, final: bool = False) -> None:
        failure = FailureDetails(error_type="ValueError", error_message=message, is_non_retriable=final)
        self.end(instance_id, f"ValueError: {message}", status=Status.FAILED, failure=failure)

    def write(self, instance_id: str, text: str, *, task_id: int = 0, attempt: int = 1, execution: str = "e") -> str:
        """Append to the log of a running attempt, as a worker does, and announce it. Return the name of the log."""
        instance = OrchestrationInstance(instance_id=instance_id, execution_id=execution)
        name = log_name(instance, task_id, attempt)
        self.logs[name] = self.logs.get(name, "") + text
        self.announce(instance_id, name)
        return name

    def announce(self, instance_id: str, name: str, size: int | None = None) -> None:
        """Write the hint of a log. :param size: the size in bytes; None: as it is."""
        self.announced += 1
        size = len(self.logs[name].encode()) if size is None else size
        self.grown[name] = LogHint(
            instance_id=instance_id, log=name, activity="monthly_delays", size=size, etag=f"g{self.announced}"
        )

    @asynccontextmanager
    async def open(self, _settings: Any, *, create: bool = False) -> AsyncIterator[FakeClient]:
        self.created = self.created or create
        self.opened += 1
        self.open_now += 1
        try:
            if self.down:
                raise self.down
            yield FakeClient(self)
        finally:
            self.open_now -= 1


class Fake:
    def __init__(self, hub: FakeHub) -> None:
        self._hub = hub

    def _count(self, name: str) -> FakeHub:
        """Count a request, and fail while the hub is down."""
        self._hub.requests[name] += 1
        if self._hub.down:
            raise self._hub.down
        return self._hub


class FakeClient(Fake):
    async def start(
        self,
        orchestrator: str,
        input: Any = NO_INPUT,
        *,
        instance_id: str,
        version: str = "",
        tags: Mapping[str, str] | None = None,
        start_at: datetime | None = None,
        limit: InstanceLimit | None = None,
        priority: int = 0,
        policy: StartPolicy = StartPolicy.REFUSE,
        intake_timeout: timedelta | None = None,
    ) -> InstanceState:
        hub = self._count("start")
        hub.waits.append(intake_timeout)
        hub.starts.append((instance_id, policy))
        old = hub.instances.get(instance_id)
        if old is not None and policy is StartPolicy.ATTACH:
            return old
        if old is not None and (policy is StartPolicy.REFUSE or not old.status.is_final):
            raise InstanceExists(instance_id)
        if hub.full is not None:
            raise hub.full
        return hub.put(
            instance_id,
            Status.PENDING,
            name=orchestrator,
            input=None if input is NO_INPUT else dumps(input),
            version=version,
            tags={**(tags or {}), **(limit.tags if limit is not None else {}), **priority_tags(priority, limit)},
            scheduled_start=Timestamp.from_datetime(start_at) if start_at else None,
        )

    async def get(self, instance_id: str, *, payloads: bool = True) -> InstanceState | None:
        hub = self._count("get")
        state = hub.instances.get(instance_id)
        if payloads and instance_id in hub.damaged_payloads:
            raise InputError(hub.damaged_payloads[instance_id])
        return state if payloads or state is None else replace(state, input=None, output=None)

    async def wait(self, instance_id: str, *, timeout: timedelta | None = None, longest: float = 1.0) -> InstanceState:
        """What does not end by itself does not end in time."""
        state = self._count("wait").instances[instance_id]
        if not state.status.is_final:
            raise TimeoutError(f"{instance_id} is {state.status} after {timeout}")
        return state

    async def rewind(self, instance_id: str, reason: str = "", *, terminated: bool = False) -> InstanceState:
        """As the real one: the tags and the execution stay, and the row reads Pending until the next end."""
        hub = self._count("rewind")
        state = hub.instances.get(instance_id)
        if state is None:
            raise InstanceNotFound(f"no instance {instance_id!r} in hub Fake")
        if instance_id in hub.damaged:
            raise hub.damaged[instance_id]
        ended = (Status.FAILED, Status.TERMINATED) if terminated else (Status.FAILED,)
        if state.status not in ended and instance_id not in hub.half_rewound:
            raise InvalidStateError(f"instance {instance_id!r} is {state.status}: only a failed one can be rewound")
        hub.rewound.append((instance_id, reason))
        hub.reasons.append(("rewind", reason))
        hub.half_rewound.discard(instance_id)
        released = instance_id not in hub.watched
        hub.instances[instance_id] = replace(state, status=Status.PENDING, released=released)
        return hub.instances[instance_id]

    async def terminate(
        self,
        instance_id: str,
        reason: str = "",
        *,
        wait: bool = False,
        recurse: bool = True,
        grace: timedelta | None = None,
        timeout: timedelta | None = None,
    ) -> InstanceState:
        hub = self._count("terminate")
        hub.graces.append((instance_id, grace))
        state = self._existing(instance_id)
        assert wait or reason.startswith("from Airflow: ")
        if hub.slow:
            if wait:
                raise TimeoutError(f"instance {instance_id!r} is {state.status} after {timeout}")
            return state
        if timeout is not None and state.status.is_final:  # as the real one: nothing is sent
            return state
        hub.terminated.append((instance_id, reason))
        hub.end(instance_id, reason, status=Status.TERMINATED)
        return hub.instances[instance_id] if wait else state

    def _existing(self, instance_id: str) -> InstanceState:
        if instance_id not in self._hub.instances:
            raise InstanceNotFound(f"no instance {instance_id!r} in hub Fake")
        return self._hub.instances[instance_id]

    def _open(self, instance_id: str) -> InstanceState:
        state = self._existing(instance_id)
        if state.status.is_final:
            raise InvalidStateError(f"instance {instance_id!r} has ended ({state.status})")
        return state

    async def raise_event(self, instance_id: str, name: str, data: Any = None) -> None:
        hub = self._count("raise_event")
        self._open(instance_id)
        hub.events.append((instance_id, name, data))

    async def suspend(
        self,
        instance_id: str,
        reason: str = "",
        *,
        by: str | None = None,
        recurse: bool = False,
        timeout: object = None,
    ) -> InstanceState:
        why = f"{reason} by {by}{' with its children' if recurse else ''}"
        return self._change("suspend", self._open(instance_id), Status.SUSPENDED, why)

    async def resume(self, instance_id: str, reason: str = "", *, recurse: bool = False) -> InstanceState:
        why = f"{reason}{' with its children' if recurse else ''}"
        return self._change("resume", self._open(instance_id), Status.RUNNING, why)

    def _change(self, name: str, state: InstanceState, status: Status, reason: str) -> InstanceState:
        hub = self._count(name)
        hub.reasons.append((name, reason))
        if not hub.slow:
            hub.put(state.instance_id, status, execution_id=state.execution_id)
        return state

    async def purge(self, instance_id: str) -> bool:
        hub = self._count("purge")
        if instance_id not in hub.instances:
            return False
        if not hub.instances[instance_id].status.is_final:
            raise InvalidStateError(f"instance {instance_id!r} is Running: terminate it first, then purge it")
        del hub.instances[instance_id]
        return True

    async def purge_many(self, **asked: Any) -> Any:
        hub = self._count("purge_many")
        hub.asked = asked
        return hub.purges

    @property
    def lists_by_time(self) -> bool:
        return self._hub.lists_by_time

    async def list(self, **asked: Any) -> SimpleNamespace:
        hub = self._count("list")
        assert self.lists_by_time or asked.get("order", "id") == "id"
        tags, prefix, since = asked.get("tags") or {}, asked.get("prefix") or "", asked.get("changed_since")
        statuses, limit = asked.get("statuses") or tuple(Status), asked.get("limit", 100)
        key, after = hub.sort_key(asked.get("order", "id")), asked.get("continuation")
        found = [
            one
            for one in sorted(hub.instances.values(), key=key)
            if tags.items() <= (one.tags or {}).items()
            and one.instance_id.startswith(prefix)
            and one.status in statuses
            and (since is None or hub.stamp(one) > since)
        ]
        found = [one for one in found if after is None or key(one) > after]
        page = found[:limit]
        newest = max(map(hub.stamp, page), default=None)
        continuation = key(page[-1]) if len(found) > limit else None
        return SimpleNamespace(instances=tuple(page), continuation=continuation, newest=newest)

    async def etags(self, *, limit: int = 1000, continuation: str | None = None) -> SimpleNamespace:
        hub = self._count("etags")
        names = [name for name in sorted(hub.instances) if continuation is None or name > continuation]
        etags = {name: hub.instances[name].etag for name in names[:limit]}
        return SimpleNamespace(etags=etags, continuation=names[limit - 1] if len(names) > limit else None)

    def instance(self, instance_id: str) -> FakeInstance:
        return FakeInstance(self._hub, instance_id)

    @property
    def admin(self) -> FakeAdmin:
        return FakeAdmin(self._hub)

    @property
    def growing_logs(self) -> FakeGrowingLogs:
        return FakeGrowingLogs(self._hub)

    @property
    def ends(self) -> FakeEnds:
        return FakeEnds(self._hub)

    @property
    def watches(self) -> FakeWatches:
        return FakeWatches(self._hub)


class FakeInstance(Fake):
    def __init__(self, hub: FakeHub, instance_id: str) -> None:
        super().__init__(hub)
        self.id = instance_id

    def other(self, instance_id: str) -> FakeInstance:
        return FakeInstance(self._hub, instance_id)

    async def get(self, *, payloads: bool = True) -> InstanceState | None:
        return self._count("get").instances.get(self.id)

    async def activities(self) -> tuple[ActivityRecord, ...]:
        hub = self._count("activities")
        error = hub.damaged.get(self.id)
        if error is not None and not isinstance(error, HistoryUnreadable):  # the records are not in the history
            raise error
        return hub.records.get(self.id, ())

    shown_activities = activities

    async def runs_on(self) -> bool:
        state = self._hub.instances[self.id]
        if state.status is not Status.FAILED:
            return not state.status.is_final
        return any(record.runs for record in await self.activities())

    def _order(self, operation: str, *arguments: Any) -> InstanceState:
        """Note an order to the instance; its state before the order."""
        hub = self._count(operation)
        if hub.refuses:
            raise hub.refuses
        hub.ordered.append((operation, self.id, *arguments))
        return hub.instances[self.id]

    async def terminate(self, reason: str = "", *, recurse: bool = True) -> InstanceState:
        return self._order("terminate", reason, recurse)

    async def suspend(self, reason: str = "", *, by: str | None = None) -> InstanceState:
        return self._order("suspend", reason, by)

    async def resume(self, reason: str = "") -> InstanceState:
        return self._order("resume", reason)

    async def rewind(self, reason: str = "") -> InstanceState:
        return self._order("rewind", reason)

    async def restart(self, *, new_id: bool = False) -> InstanceState:
        state = self._order("restart", new_id)
        return self._hub.put("new", Status.PENDING) if new_id else state

    async def raise_event(self, name: str, data: Any = None) -> None:
        self._order("raise_event", name, data)

    async def purge(self) -> bool:
        self._order("purge")
        return self._hub.instances.pop(self.id, None) is not None

    async def failed_attempt(self) -> Any:
        return self._count("failed_attempt").failed.get(self.id)

    async def lineage(self) -> tuple[Lineage, int]:
        return self._count("lineage").lineages.get(self.id, (NO_LINEAGE, 0))

    async def log(self, blob_name: str, *, last: int | None = None) -> str:
        lines = self._count("log").logs[blob_name].splitlines()
        return "\n".join(lines[-last:] if last else lines)

    async def history_page(self, *, before: int | None = None, limit: int = 1000) -> HistoryPage:
        hub = self._count("history")
        past = hub.histories.get(self.id, ())
        end = len(past) if before is None else min(before, len(past))
        first = max(0, end - limit)
        return HistoryPage(
            events=tuple(past[first:end]),
            numbers=tuple(range(first, end)),
            first=first,
            total=len(past),
            execution_id="e",
            start=next((event for event in past if isinstance(event, ExecutionStarted)), None),
            unreadable=hub.unreadable.get(self.id, ()),
        )

    async def children(self, *, after: int = -1, limit: int = 50) -> ChildPage:
        past = self._count("children").histories.get(self.id, ())
        born = [(at, one) for at, one in enumerate(past) if isinstance(one, SubOrchestrationInstanceCreated)]
        left = [(at, one) for at, one in born if at > after]
        return ChildPage(
            events=tuple(one for _, one in left[:limit]), after=left[limit - 1][0] if len(left) > limit else None
        )


class FakeAdmin(Fake):
    info = HubInfo(partitions=4, ready=True)

    async def workers(self) -> tuple[Member, ...]:
        return self._count("members").workers

    async def waiting_of(
        self, states: Sequence[InstanceState], *, members: Sequence[Member] | None = None, sentinels: int = 100
    ) -> dict[str, tuple[Why, ...]]:
        """As the real one, of workers and of what :attr:`FakeHub.awaits` and :attr:`FakeHub.facts` say."""
        hub, found = self._count("waiting_of"), {}
        left = sentinels
        for state in states:
            awaits = hub.awaits.get(state.instance_id) if left > 0 else None
            left -= state.status is Status.RUNNING
            live = hub.workers if members is None else members
            alone = unwatched(state, ()) if hub.unwatched else None
            facts = hub.facts.get(state.instance_id, {})
            reasons = why(Snapshot(state=state, members=live, awaits=awaits, now=NOW, **facts))
            found[state.instance_id] = reasons if alone is None else (*reasons, alone)
        return {name: reasons for name, reasons in found.items() if reasons}

    async def partitions(self) -> tuple[PartitionState, ...]:
        return self._count("partitions").serving

    @property
    def partition_operations(self) -> FakeOperations:
        return self.partition_operations_by("somebody")

    def partition_operations_by(self, by: str) -> FakeOperations:
        return FakeOperations(self._hub, by)

    async def quarantined(self, *, bodies: bool = True, limit: int | None = None) -> tuple[Quarantined, ...]:
        assert not bodies, "the list does not need the contents"
        assert limit, "the list is bounded"
        return self._count("quarantined").quarantine[:limit]

    async def limits(self) -> tuple[LimitState, ...]:
        return self._count("limits").limits

    async def set_limit(self, name: str, places: int | None, *, kind: str = "", by: str | None = None) -> LimitState:
        hub = self._count("set_limit")
        for state in hub.limits:
            if (state.name, state.kind) == (name, kind):
                hub.ordered.append(("limit", by, name, kind, places))
                return replace(state, ordered=places)
        raise InputError(f"{name!r} is the name of no limit. To see all limits: taskhub limits list")

    async def put_back(self, message_id: str) -> bool:
        return self._take("put_back", message_id)

    async def drop_quarantined(self, message_id: str) -> bool:
        return self._take("drop", message_id)

    def _take(self, operation: str, message_id: str) -> bool:
        hub = self._count(operation)
        if all(item.message_id != message_id for item in hub.quarantine):
            return False
        hub.ordered.append((operation, message_id))
        return True


class FakeGrowingLogs(Fake):
    async def hints(self) -> tuple[LogHint, ...]:
        return tuple(self._count("log_hints").grown.values())

    async def part(self, name: str, *, offset: int, length: int) -> bytes | None:
        text = self._count("log_part").logs.get(name)
        return None if text is None else text.encode()[offset : offset + length]

    async def forget(self, hints: Collection[LogHint]) -> None:
        hub = self._count("forget_logs")
        for hint in hints:
            if hub.grown.get(hint.log) == hint:
                del hub.grown[hint.log]


class FakeOperations(Fake):
    """Orders about the four partitions of the hub. :param by: who gives them."""

    def __init__(self, hub: FakeHub, by: str) -> None:
        super().__init__(hub)
        self.by = by

    def _order(self, operation: str, *arguments: Any) -> None:
        self._count(operation).ordered.append((operation, self.by, *arguments))

    async def controls(self) -> tuple[Control, ...]:
        return self._count("controls").controls

    async def kick(self, partition: int, *, reason: str = "") -> str | None:
        if partition >= FakeAdmin.info.partitions:
            raise PartitionNotFound(f"hub 'TaskHub' has partitions 0 to 3, not {partition}")
        owner = next((one.owner for one in self._hub.serving if one.partition == partition), None)
        if owner is not None:
            self._order("kick", partition, reason)
        return owner

    async def offline(self, partitions: Sequence[int], reason: str = "") -> None:
        self._order("offline", partitions, reason)

    async def online(self, partitions: Sequence[int]) -> int:
        found = [one for one in self._hub.controls if one.kind is ControlKind.OFFLINE and one.partition in partitions]
        if found:
            self._order("online", partitions)
        return len(found)

    async def drain_node(self, node: str, reason: str = "") -> None:
        self._order("drain", node, reason)

    async def undrain_node(self, node: str) -> bool:
        found = any(one.kind is ControlKind.DRAIN and one.node == node for one in self._hub.controls)
        if found:
            self._order("undrain", node)
        return found


class FakeEnds(Fake):
    """The ends of instances, as the hub's ``ended`` has them. The clock of the store moves on with each look at it."""

    async def now(self) -> Timestamp:
        hub = self._count("now")
        hub.store_time = hub.store_time + timedelta(seconds=1)
        return hub.store_time

    async def since(self, moment: Timestamp) -> AsyncIterator[tuple[End, ...]]:
        hub = self._count("ends")
        found = [end for end in hub.ended if end.written > moment]
        yield tuple(found[:2])
        for start in range(2, len(found), 2):
            yield tuple(found[start : start + 2])


class FakeWatches(Fake):
    async def add(self, watch: Watch, *, replaces: Watch | bool = True) -> bool:
        hub = self._count("watch")
        old = hub.watched.get(watch.instance_id)
        if old != replaces if isinstance(replaces, Watch) else old is not None and not replaces:
            return False
        hub.watched[watch.instance_id] = replace(watch, etag=f"e{hub.requests['watch']}")
        return True

    async def of(self, deployment: str) -> tuple[Watch, ...]:
        hub = self._count("watches")
        return tuple(watch for watch in hub.watched.values() if watch.deployment == deployment)

    async def get(self, instance_id: str) -> Watch | None:
        return self._count("watch_of").watched.get(instance_id)

    async def remove(self, watch: Watch) -> None:
        hub = self._count("unwatch")
        if hub.watched.get(watch.instance_id) == watch:
            del hub.watched[watch.instance_id]

    async def attend(self, instance_id: str) -> None:
        hub = self._count("attend")
        hub.instances[instance_id] = replace(hub.instances[instance_id], released=False)

    async def release(self, instance_id: str, run: str | None) -> None:
        hub = self._count("release")
        if hub.instances[instance_id].execution_id == run:
            hub.instances[instance_id] = replace(hub.instances[instance_id], released=True)

    @asynccontextmanager
    async def attending(self, name: str) -> AsyncIterator[None]:
        hub = self._count("attending")
        hub.attending += 1
        try:
            yield
        finally:
            hub.attending -= 1

    async def completions(self) -> tuple[str, ...]:
        return tuple(sorted(self._count("completions").hints))

    async def forget(self, ids: Sequence[str]) -> None:
        self._count("forget").hints.difference_update(ids)

    known_after = 1.0

    async def await_changes(self, ids: Collection[str]) -> None:
        self._count("await_changes").awaited = frozenset(ids)

    async def changes(self) -> dict[str, str]:
        return dict(self._count("changes").changes)

    async def forget_changes(self, hints: Mapping[str, str]) -> None:
        stored = self._count("forget_changes").changes
        for instance_id, etag in hints.items():
            if stored.get(instance_id) == etag:
                del stored[instance_id]


def install(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the fake in place of the client's module, which the hook imports by name."""
    module = ModuleType("airflow_provider_taskhub.client")
    module.Client = type("Client", (), {"open": staticmethod(hub.open)})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
