"""The client: start, watch and steer instances, and look at a hub. Used by the Airflow front, the CLI and users' code.

Opens a store of its own, bound to the event loop that opened it. Never decides what an orchestration does: it writes
the instance row of a start, puts messages, and reads.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import field, replace
from datetime import datetime, timedelta
from getpass import getuser
from typing import Any
from uuid import uuid4

import structlog

from airflow_provider_taskhub import codec, tracing
from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock, Deadline
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine import family
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    HistoryEvent,
    OrchestrationInstance,
    Status,
)
from airflow_provider_taskhub.engine.identity import check_instance_id, check_new_instance_id, same_start
from airflow_provider_taskhub.engine.limits import check_column, check_event, check_tags, check_text, check_time
from airflow_provider_taskhub.errors import (
    Conflict,
    InputError,
    InstanceExists,
    InstanceNotFound,
    NotFound,
    StorageError,
    Throttled,
    Unavailable,
)
from airflow_provider_taskhub.hub import watches
from airflow_provider_taskhub.hub.contract import (
    WATCHER,
    ActivityRecord,
    HubInfo,
    HubNames,
    InstanceState,
    Member,
    PartitionState,
    RecordState,
    StartPolicy,
)
from airflow_provider_taskhub.hub.history import activities as records
from airflow_provider_taskhub.hub.history import blame
from airflow_provider_taskhub.hub.history.blame import FailedAttempt
from airflow_provider_taskhub.hub.history.instances import created_row, ended
from airflow_provider_taskhub.hub.history.load import load
from airflow_provider_taskhub.hub.history.purge import purge
from airflow_provider_taskhub.hub.history.queries import matches, query_filter
from airflow_provider_taskhub.hub.history.salvage import salvage
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.keys import escape, history_folder, unescape
from airflow_provider_taskhub.hub.messages import quarantine
from airflow_provider_taskhub.hub.messages.outbound import Letter
from airflow_provider_taskhub.hub.messages.quarantine import Quarantined
from airflow_provider_taskhub.hub.partitions import admin
from airflow_provider_taskhub.hub.partitions.looks import Looks
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.hub.partitions.routing import Routes
from airflow_provider_taskhub.hub.partitions.steering import Steering
from airflow_provider_taskhub.hub.rewinds import rewind
from airflow_provider_taskhub.hub.snapshots import SENTINELS, Snapshots, Waiting
from airflow_provider_taskhub.hub.waiting import Why
from airflow_provider_taskhub.hub.watches import Watch
from airflow_provider_taskhub.retries import Retries, retry
from airflow_provider_taskhub.settings import LeaseTimes, Settings
from airflow_provider_taskhub.storage.connect import open_store
from airflow_provider_taskhub.storage.primitives import (
    Compare,
    Entity,
    EtagOf,
    PutBlob,
    RowOperation,
    RowVerb,
    Step,
    Store,
    Transact,
    Unit,
)
from airflow_provider_taskhub.supervision import owned
from airflow_provider_taskhub.values import dataclass

log = structlog.get_logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two looks of a wait, which grow from one to the other."""
CHILD_APPEARS = 30.0
"""Seconds within which a child whose parent was terminated has a row: it has started, or was ended before that."""
TRIES = 5
"""Of an operation that others keep disturbing."""
PURGES = Retries(after=(Throttled,), tries=5, first=1.0)
"""Each instance of a purge of many."""
PURGED_AT_ONCE = 8
"""Instances that a purge of many removes side by side."""
FORGOTTEN_AT_ONCE = 16
"""Requests side by side of :meth:`Client.forget_completions`."""
SCAN_PAGES = 50
"""Pages of rows that one call of :meth:`Client.list` may read before it answers with what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancePage:
    """A page of instances. :param continuation: pass it on for the next page; None at the end."""

    instances: tuple[InstanceState, ...]
    continuation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult:
    """What a purge of many has done.

    :param purged: instances. :param complete: False when time or limit was over before the last of them: run it again.
    :param failed: the error of each instance that the store could not purge, by its id; they too are left.
    """

    purged: int
    complete: bool
    failed: Mapping[str, str] = field(default_factory=dict)


class Client:
    """A hub as its users see it. Make one with :meth:`open`.

    :raises HubError: from every way in, when the hub is missing, not ready, or newer.
    """

    def __init__(self, hub: Hub, times: LeaseTimes) -> None:
        self.hub = hub
        self._times = times
        self._looks = Looks(hub.store, hub.names, hub.info, times=times, clock=hub.clock)
        self.routes = Routes(self._looks, hub.names, hub.clock)
        """Which worker serves an instance, for a caller that must reach that worker (T55)."""
        self._members = Members(hub.store, hub.names, times=times, clock=hub.clock)
        self._snapshots = Snapshots(hub, self._looks)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, *, create: bool = False) -> AsyncIterator[Client]:
        """A client for the hub that the settings name.

        :param create: make the hub if it is missing.
        """
        async with open_store(settings, create=create) as store:
            yield await cls.over(store, settings, create=create)

    @classmethod
    async def over(
        cls, store: Store, settings: Settings, *, create: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> Client:
        """A client over a store that is open already."""
        names = HubNames(settings.hub)
        if create:
            info = await admin.ensure_hub(
                store,
                names,
                settings.asked_partitions,
                default=settings.partitions,
                lease_store=settings.lease_store,
                clock=clock,
            )
        else:
            info = await admin.read_hub(
                store, names, partitions=settings.asked_partitions, lease_store=settings.lease_store
            )
        return cls(Hub(store=store, names=names, info=info, clock=clock), settings.lease_times)

    def describe(self) -> str:
        """The hub's name and place, for people; never a secret."""
        return f"{self.hub.names.hub} at {self.hub.store.describe()}"

    async def info(self) -> HubInfo:
        return self.hub.info

    # starting

    async def start(
        self,
        orchestrator: str,
        input: Any = None,
        *,
        instance_id: str | None = None,
        version: str = "",
        tags: Mapping[str, str] | None = None,
        start_at: datetime | None = None,
        policy: StartPolicy = StartPolicy.REFUSE,
    ) -> InstanceState:
        """Start an instance: its row first, conditionally, then the message with the same execution id (DESIGN §6).

        :param orchestrator: name that a worker's app declares. :param input: one value, written as JSON.
        :param instance_id: None: a new one. :param start_at: not before this time.
        :param policy: what to do when the id is taken (K44).
        :returns: the instance's row: the new one, or with ATTACH the one that is there.
        :raises InstanceExists: by the policy.
        :raises InputError: for an input, id, name, version, tags or time that cannot be stored.
        """
        instance_id = uuid4().hex if instance_id is None else check_new_instance_id(instance_id)
        if not orchestrator:
            raise InputError("orchestrator is empty: give the name that a worker's app declares")
        check_column(orchestrator, f"orchestrator {orchestrator[:40]!r}…")
        check_column(version, f"version of orchestrator {orchestrator!r}")
        check_tags(tags or {}, f"orchestrator {orchestrator!r}")
        if start_at is not None:
            check_time(Timestamp.from_datetime(start_at), f"start_at {start_at}")
        text = codec.dumps(input, what=f"input of orchestrator {orchestrator!r}")
        return await self._begin(orchestrator, text, instance_id, version, tags, start_at, policy)

    async def _begin(
        self,
        orchestrator: str,
        text: str | None,
        instance_id: str,
        version: str,
        tags: Mapping[str, str] | None,
        start_at: datetime | None,
        policy: StartPolicy,
    ) -> InstanceState:
        instance = OrchestrationInstance(instance_id=instance_id, execution_id=uuid4().hex)
        with tracing.creating(orchestrator, version, instance) as carried:
            start = ExecutionStarted(
                timestamp=self.hub.clock.utc_now(),
                instance=instance,
                name=orchestrator,
                input=text,
                version=version,
                tags=dict(tags) if tags else None,
                parent_trace_context=carried,
                scheduled_start_time=Timestamp.from_datetime(start_at) if start_at else None,
                generation=0,
            )
            try:
                return await self._insert(start)
            except Conflict:
                return await self._taken(start, policy)

    async def _insert(self, start: ExecutionStarted) -> InstanceState:
        # the start says that it inserted its row: its first delivery then runs without reading anything
        mark = uuid4().hex
        made, entity, blobs = self._start_parts(replace(start, taskhub_row_etag=mark))
        put = replace(made.put(), naming=(mark, EtagOf(step=1)))
        if made.blob is not None:
            made, entity, blobs = self._start_parts(start)
            put = made.put()
        insert = Transact(table=self.hub.names.instances, rows=(RowOperation(verb=RowVerb.INSERT, entity=entity),))
        steps = (
            Step(name="payloads", operations=blobs),
            Step(name="instance", operations=(insert,)),
            Step(name="outbound", operations=(put,)),
        )
        etags = (await self.hub.store.commit(Unit(steps=steps)))[1][0]
        assert isinstance(etags, tuple)
        return self.hub.state_of(replace(entity, etag=etags[0]))

    def _start_parts(self, start: ExecutionStarted) -> tuple[Letter, Entity, tuple[PutBlob, ...]]:
        hub = self.hub
        made = hub.mail(start, start.instance)
        entity, blobs = created_row(
            start, names=hub.names, now=hub.clock.utc_now(), container_url=hub.container_url, message_blob=made.blob
        )
        return made, entity, ((made.blob,) if made.blob is not None else ()) + tuple(blobs)

    async def _write_row(self, verb: RowVerb, entity: Entity, blobs: Sequence[PutBlob], etag: str | None) -> str:
        row = Transact(table=self.hub.names.instances, rows=(RowOperation(verb=verb, entity=entity, etag=etag),))
        steps = (Step(name="payloads", operations=tuple(blobs)), Step(name="instance", operations=(row,)))
        etags = (await self.hub.store.commit(Unit(steps=steps)))[1][0]
        assert isinstance(etags, tuple)
        return etags[0]

    async def _taken(self, start: ExecutionStarted, policy: StartPolicy) -> InstanceState:
        instance_id = start.instance.instance_id
        for _ in range(5):
            row = await self.get(instance_id, payloads=False)
            if row is None:
                try:
                    return await self._insert(start)  # purged between
                except Conflict:
                    continue
            if policy is StartPolicy.ATTACH:
                if row.status is Status.PENDING:
                    await self._put_again(row)
                return row
            if policy is StartPolicy.REFUSE or not row.status.is_final:
                raise InstanceExists(f"instance {instance_id!r} exists already ({row.status})")
            try:
                return await self._replace(replace(start, generation=(row.generation or 0) + 1), row)
            except (Conflict, NotFound):
                continue  # somebody else was faster: look again
        raise InstanceExists(f"instance {instance_id!r} is being started by others")

    async def _replace(self, start: ExecutionStarted, row: InstanceState) -> InstanceState:
        made, entity, blobs = self._start_parts(start)
        etag = await self._write_row(RowVerb.REPLACE, entity, blobs, row.etag)
        await self.hub.send(made)
        return self.hub.state_of(replace(entity, etag=etag))

    async def _put_again(self, row: InstanceState) -> None:
        """The client that wrote a Pending row may have died before its message: the same start, once more."""
        full = await self.get(row.instance_id) or row
        start = ExecutionStarted(
            timestamp=row.created or self.hub.clock.utc_now(),
            instance=OrchestrationInstance(instance_id=row.instance_id, execution_id=row.execution_id),
            name=row.name,
            input=full.input,
            version=row.version,
            tags=dict(row.tags) if row.tags else None,
            scheduled_start_time=row.scheduled_start,
            generation=row.generation,
        )
        await self.hub.send(self.hub.mail(start, start.instance))

    # steering

    async def raise_event(self, instance_id: str, name: str, data: Any = None) -> None:
        """Send an external event to the current generation.

        :raises InstanceNotFound: when there is no such instance.
        :raises InputError: when the instance has ended, or for data that is not JSON or a name that no store takes.
        """
        check_event(name, "raise_event")
        row = await self._existing(instance_id)
        if row.status.is_final:
            raise InputError(f"instance {instance_id!r} has ended ({row.status}): it takes no events")
        text = codec.dumps(data, what=f"data of event {name!r}")
        # before the first checkpoint a .NET worker takes only events that name the execution (spec §2.9)
        execution_id = row.execution_id if row.status is Status.PENDING else None
        target = OrchestrationInstance(instance_id=instance_id, execution_id=execution_id)
        with tracing.raising(name, instance_id) as carried:
            event = EventRaised(
                timestamp=self.hub.clock.utc_now(),
                name=name,
                input=text,
                parent_trace_context=carried,
                taskhub_execution_id=row.execution_id,
            )
            await self.hub.send(self.hub.mail(event, target))

    async def terminate(
        self,
        instance_id: str,
        reason: str = "",
        *,
        wait: bool = False,
        recurse: bool = True,
        timeout: timedelta | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> InstanceState:
        """End an instance and its children; one that has ended stays as it is.

        An instance with a damaged history ends too: its children and its parent are found in the events that can be
        read. Its history then has only the termination.

        :param wait: until the instance has ended and its executors have confirmed that none of its recorded activities
            runs any more; with ``recurse`` also until this holds for its children, and for theirs.
        :param recurse: every child that has not answered its parent ends as well, with its own children; else they go
            on. Children with the tag for fire and forget always go on.
        :param timeout: of ``wait``; None: as long as it takes.
        :param progress: called with the id of each child that ``wait`` waits for, when its turn comes.
        :raises InstanceNotFound: when there is no such instance. :raises InputError: for a reason that no store takes.
        :raises TimeoutError: when not all has ended within ``timeout``; the termination goes on.
        """
        check_text(reason, "the reason")
        row = await self._existing(instance_id)
        if not row.status.is_final:
            event = ExecutionTerminated(
                timestamp=self.hub.clock.utc_now(),
                input=reason,
                taskhub_execution_id=row.execution_id,
                taskhub_recurse=recurse or None,
            )
            await self.hub.send(self.hub.mail(event, OrchestrationInstance(instance_id=instance_id)))
        if not wait:
            return row
        deadline = Deadline(self.hub.clock, timeout)
        ended = await self.wait(instance_id, timeout=deadline.left())
        await self._quiet(instance_id, deadline)
        if recurse and ended.status is Status.TERMINATED:
            await self._families_end(instance_id, deadline, progress or (lambda child: None))
        return ended

    async def _families_end(self, instance_id: str, deadline: Deadline, progress: Callable[[str], None]) -> None:
        """Wait until the children of a terminated instance have ended, and theirs.

        :raises TimeoutError: when they have not by ``deadline``.
        """
        history, _ = await self.readable_history(instance_id)
        terminated = [event for event in history if isinstance(event, ExecutionTerminated)]
        if not any(event.taskhub_recurse for event in terminated):
            return
        for child in family.unfinished(history):
            progress(child.instance_id)
            row = await self._child_row(child.instance_id, deadline)
            if row is None or not (child.execution_id is None or same_start(row.execution_id, child.execution_id)):
                continue
            row = await self.wait(child.instance_id, timeout=deadline.left())
            await self._quiet(child.instance_id, deadline)
            if row.status is Status.TERMINATED:
                await self._families_end(child.instance_id, deadline, progress)

    async def _child_row(self, instance_id: str, deadline: Deadline) -> InstanceState | None:
        """The row of a child that may be about to start; None: purged, no row came in :data:`CHILD_APPEARS`."""
        until = self.hub.clock.monotonic() + CHILD_APPEARS
        while (row := await self.get(instance_id, payloads=False)) is None and self.hub.clock.monotonic() < until:
            deadline.check(f"child {instance_id!r} has not started or ended")
            await self.hub.clock.sleep(LONGEST_PAUSE)
        return row

    async def suspend(self, instance_id: str, reason: str = "", *, by: str | None = None) -> InstanceState:
        """Hold an instance: what it has asked for goes on, but it decides nothing before :meth:`resume` (K46).

        One that has not begun yet is held in its first turn: what it decides there waits too, unless that is its end.

        :param reason: becomes the instance's output until it ends, as in DurableTask.
        :param by: who orders it; shown with the reason why the instance waits. None: ``user@host`` of this process.
        :raises InstanceNotFound: when there is no such instance.
        :raises InputError: when it has ended, or for a reason that no store takes.
        """
        check_text(reason, "the reason")
        ordered = _user_and_host() if by is None else by
        check_column(ordered, "by")
        event = ExecutionSuspended(
            timestamp=self.hub.clock.utc_now(),
            reason=reason,
            taskhub_process=self.hub.process,
            taskhub_by=ordered,
        )
        return await self._steer(instance_id, event, "suspended")

    async def resume(self, instance_id: str, reason: str = "") -> InstanceState:
        """Let a suspended instance go on with all that has come meanwhile; a running one stays as it is.

        :param reason: becomes the instance's output until it ends, as in DurableTask.
        :raises InstanceNotFound: when there is no such instance.
        :raises InputError: when it has ended, or for a reason that no store takes.
        """
        check_text(reason, "the reason")
        event = ExecutionResumed(timestamp=self.hub.clock.utc_now(), reason=reason, taskhub_process=self.hub.process)
        return await self._steer(instance_id, event, "resumed")

    async def _steer(self, instance_id: str, event: ExecutionSuspended | ExecutionResumed, what: str) -> InstanceState:
        row = await self._existing(instance_id)
        if row.status.is_final:
            raise InputError(f"instance {instance_id!r} has ended ({row.status}): it cannot be {what}")
        named = replace(event, taskhub_execution_id=row.execution_id)
        await self.hub.send(self.hub.mail(named, OrchestrationInstance(instance_id=instance_id)))
        return row

    async def rewind(self, instance_id: str, reason: str = "") -> InstanceState:
        """Let a failed instance go on from before its failure: what failed, or was cut off by it, is done again.

        Activities and children that completed before are not; children that failed are rewound themselves. Where the
        orchestrator passed a failure on after doing something about it, such as cleaning up, all that it decided since
        is taken back too: it goes on from where it waited for what failed. The instance's failure tells which one it
        was, by its causes: raise an error of your own ``from`` the failure.

        A failure that the orchestrator has handled stays handled if it decided something between that and the failure
        that it ended with. If it did not, what failed is done again: the history does not tell whether that was handled
        or still to be awaited. Cut off anywhere, a rewind can be done again.

        :returns: the row: Pending until the instance ends, as in DurableTask.
        :param reason: kept in the history.
        :raises InstanceNotFound: when there is no such instance.
        :raises InputError: when it has not failed, or no row can hold the reason.
        """
        check_column(reason, "the reason")
        await rewind(self.hub, check_instance_id(instance_id), reason)
        return await self._existing(instance_id)

    async def restart(self, instance_id: str, *, new_id: bool = False) -> InstanceState:
        """Start an instance anew with the orchestrator, version, input and tags of its last start.

        :param new_id: under a new id, whatever the old one does; else in its place, once it has ended.
        :raises InstanceNotFound: when there is no such instance.
        :raises InstanceExists: when it has not ended, and no new id is asked for.
        """
        row = await self.get(check_instance_id(instance_id))
        if row is None:
            raise InstanceNotFound(f"no instance {instance_id!r} in hub {self.describe()}")
        into = uuid4().hex if new_id else instance_id
        policy = StartPolicy.REFUSE if new_id else StartPolicy.REPLACE_FINISHED
        return await self._begin(row.name, row.input, into, row.version, row.tags, None, policy)

    async def purge(self, instance_id: str) -> bool:
        """Remove an ended instance with everything that is stored of it: history, payloads, records, logs (K30).

        Its children are instances of their own, and stay.

        :returns: False when there was none. :raises InputError: when it has not ended.
        """
        for _ in range(TRIES):
            row = await self.get(check_instance_id(instance_id), payloads=False)
            if row is None:
                return False
            if not row.status.is_final:
                raise InputError(f"instance {instance_id!r} is {row.status}: terminate it before it can be purged")
            try:
                await purge(self.hub.store, self.hub.names, row)
                return True
            except (Conflict, NotFound) as error:  # started again, rewound, or purged by somebody else: look again
                last = error
        raise last

    async def purge_many(
        self,
        *,
        statuses: Collection[Status] = (),
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        prefix: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int | None = None,
        timeout: timedelta | None = None,
        rate: float | None = None,
        progress: Callable[[int], None] = lambda purged: None,
    ) -> PurgeResult:
        """Remove the ended instances that match, page by page (K46). Cut off anywhere, run again it does the rest.

        :param statuses: final ones; none: all of these. :param created_from, created_to, prefix, tags: as in
            :meth:`list`. :param limit: instances. :param timeout: begin no instance after this time.
        :param rate: instances a second, so that workers and their store keep their breath; None: as fast as a few at
            a time go. :param progress: told the count so far.
        :returns: also what could not be purged: no instance stands in the way of the others.
        :raises InputError: for a status that is not final, or a rate that is not above 0.
        """
        if rate is not None and not rate > 0:
            raise InputError(f"rate is {rate}: give more than 0 instances a second, or None")
        failed: dict[str, str] = {}
        wanted = tuple(statuses) or tuple(status for status in Status if status.is_final)
        if open_ones := [str(status) for status in wanted if not status.is_final]:
            raise InputError(f"{', '.join(open_ones)}: only instances that have ended can be purged")
        clock, began, purged = self.hub.clock, self.hub.clock.monotonic(), 0
        continuation: str | None = None
        while True:
            page = await self.list(
                statuses=wanted,
                created_from=created_from,
                created_to=created_to,
                prefix=prefix,
                tags=tags,
                continuation=continuation,
            )
            left = list(page.instances)
            while left:
                late = timeout is not None and clock.monotonic() - began >= timeout.total_seconds()
                room = PURGED_AT_ONCE if limit is None else min(PURGED_AT_ONCE, limit - purged)
                if late or room <= 0:
                    return PurgeResult(purged=purged, complete=False, failed=failed)
                some, left = left[:room], left[room:]
                purged += sum(await asyncio.gather(*(self._purge_listed(row.instance_id, failed) for row in some)))
                progress(purged)
                if rate is not None:
                    await clock.sleep(max(0.0, began + purged / rate - clock.monotonic()))
            continuation = page.continuation
            if continuation is None:
                return PurgeResult(purged=purged, complete=not failed, failed=failed)

    async def _purge_listed(self, instance_id: str, failed: dict[str, str]) -> bool:
        """One of many: what was started again meanwhile is none of them any more; a store that pleads is waited for.

        :param failed: takes the error of one that the store cannot purge. :raises Unavailable: if it answers nothing.
        """
        try:
            return await retry(lambda: self.purge(instance_id), PURGES, self.hub.clock)
        except (InputError, Conflict, NotFound):
            return False
        except (Throttled, Unavailable) as error:
            failed[instance_id] = str(error)
            if isinstance(error, Unavailable):
                await self.get(instance_id, payloads=False)
        return False

    async def _quiet(self, instance_id: str, deadline: Deadline) -> None:
        """Wait until no recorded activity of an ended instance runs. :raises TimeoutError: at ``deadline``."""
        pause = FIRST_PAUSE
        while any(
            record.state in (RecordState.RUNNING, RecordState.CANCELLING)
            for record in await self.activities(instance_id)
        ):
            deadline.check(f"instance {instance_id!r} has ended, but an activity of it still runs")
            await self.hub.clock.sleep(deadline.shorten(pause))
            pause = min(LONGEST_PAUSE, pause * 2)

    async def _existing(self, instance_id: str) -> InstanceState:
        row = await self.get(check_instance_id(instance_id), payloads=False)
        if row is None:
            raise InstanceNotFound(f"no instance {instance_id!r} in hub {self.describe()}")
        return row

    # looking

    async def get(self, instance_id: str, *, payloads: bool = True) -> InstanceState | None:
        """An instance's state. :param payloads: fetch large inputs and outputs from their blobs."""
        return await self.hub.instance(instance_id, payloads=payloads)

    async def list(
        self,
        *,
        statuses: Collection[Status] = (),
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        prefix: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 100,
        continuation: str | None = None,
    ) -> InstancePage:
        """A page of instances in the order of their ids (K45). Large values are left as addresses.

        :param tags: all of these must be on the instance; matched here, so a page may be short while more follow.
        :param limit: 1 to 1000.
        """
        where = query_filter(
            statuses=tuple(statuses),
            created_from=Timestamp.from_datetime(created_from) if created_from else None,
            created_to=Timestamp.from_datetime(created_to) if created_to else None,
            prefix=prefix or "",
        )
        found: list[InstanceState] = []
        for _ in range(SCAN_PAGES):
            page = await self.hub.store.query(
                self.hub.names.instances, where, limit=limit - len(found), continuation=continuation
            )
            states = [self.hub.state_of(entity) for entity in page.entities if entity.row_key == ""]
            found.extend(state for state in states if matches(state, prefix=prefix or "", tags=tags))
            continuation = page.continuation
            if continuation is None or len(found) >= limit:
                break
        return InstancePage(instances=tuple(found), continuation=continuation)

    async def wait(
        self, instance_id: str, *, timeout: timedelta | None = None, longest: float = LONGEST_PAUSE
    ) -> InstanceState:
        """Wait until an instance has ended.

        :param longest: seconds between two looks.
        :raises TimeoutError: when it has not within ``timeout``. :raises InstanceNotFound: when it is not there.
        """
        deadline = Deadline(self.hub.clock, timeout)
        pause = FIRST_PAUSE
        async with self.hub.store.hearing(ended(self.hub.names, escape(instance_id))) as news:
            while True:
                row = await self._existing(instance_id)
                if row.status.is_final:
                    return await self.get(instance_id) or row
                deadline.check(f"instance {instance_id!r} is {row.status} after {timeout}")
                await news(deadline.shorten(pause))
                pause = min(longest, pause * 1.5)

    async def waiting(self, instance_id: str, *, members: Sequence[Member] | None = None) -> tuple[Why, ...]:
        """Why an instance does not go on, the strongest reason first; nothing for one that works or has ended.

        Some six requests, however long its history is, and two more for each of at most three awaited children.

        :param members: workers as just read; None: read now. Pass ``await client.members(prove=True)`` to be certain
            which of them live: a worker that has died is listed until others have missed it.
        :raises InstanceNotFound: when there is no such instance.
        """
        row = await self._existing(instance_id)
        found = await self.members() if members is None else members
        return await self._snapshots.one(row, found, self._members.watching)

    async def waiting_of(
        self,
        states: Collection[InstanceState],
        *,
        members: Sequence[Member] | None = None,
        sentinels: int = SENTINELS,
    ) -> dict[str, tuple[Why, ...]]:
        """As :meth:`waiting`, for many at once: some five requests every 5 s, and one for each that has begun.

        :param states: rows as just read. :param members: as just read; None: read now.
        :param sentinels: how many instances that have begun are asked what they await, those first that are not
            suspended; the others tell only what their rows and the workers tell.
        :returns: by instance id; without those that work or have ended.
        """
        live = await self.members() if members is None else members
        return await self._snapshots.many(states, live, self._members.watching, sentinels=sentinels)

    async def waiting_instances(
        self, *, members: Sequence[Member] | None = None, watching: Sequence[Member] | None = None
    ) -> Waiting:
        """Instances that stand still, counted by their strongest reason, with examples.

        At most 500 rows of each open status are read, and 100 running or suspended instances are looked at:
        :attr:`Waiting.complete` says whether these are all.

        :param members: workers as just read; None: read now. :param watching: members that watch the hub for Airflow,
            read with them; None: as this client has seen them.
        """
        if members is None:
            members = await self.members()
        return await self._snapshots.scan(members, self._members.watching if watching is None else watching)

    async def history(self, instance_id: str) -> tuple[HistoryEvent, ...]:
        """The events of the instance's current generation, as they were at one moment; it may have gone on since.

        :raises HistoryUnreadable: when not all of them can be read (:meth:`readable_history`).
        :raises Conflict: when it was rewound, purged or begun anew during each of 5 readings.
        """
        return (await load(self.hub.store, self.hub.names, instance_id, growing=True)).past

    async def readable_history(self, instance_id: str) -> tuple[tuple[HistoryEvent, ...], tuple[str, ...]]:
        """Read the readable part of a history, to show it. For code that decides, use :meth:`history`.

        An instance with a damaged history does not go on; :meth:`terminate` and then :meth:`purge` remove it.

        :returns: the events that can be read, and one line for each thing that cannot; no line: all can be read.
        """
        found = await salvage(self.hub.store, self.hub.names, instance_id, growing=True)
        return found.events, found.unreadable

    async def activities(self, instance_id: str) -> tuple[ActivityRecord, ...]:
        """Every attempt of the instance's recorded activities, in the order of task and attempt."""
        found = await records.of_instance(self.hub.store, self.hub.names, instance_id)
        return tuple(record for record, _ in found)

    async def log(self, name: str, *, last: int | None = None) -> str:
        """What an attempt wrote. :param name: ``ActivityRecord.log``. :param last: lines from the end only."""
        blob = await self.hub.store.get_blob(self.hub.names.logs, name)
        text = blob.data.decode(errors="replace") if blob else ""
        return text if last is None else "\n".join(text.splitlines()[-last:])

    async def logs(self, instance_id: str) -> tuple[str, ...]:
        """Names of all logs of an instance's attempts."""
        blobs = await self.hub.store.list_blobs(self.hub.names.logs, f"{history_folder(instance_id)}/")
        return tuple(blob.name for blob in blobs)

    async def failed_attempt(self, instance_id: str) -> FailedAttempt | None:
        """The last attempt of the activity that made the instance fail, recorded or not; None where it kept no log, and
        where no activity did: the orchestrator raised an error of its own.

        Where a child made it fail, the attempt is the child's.
        """
        return await blame.failed_attempt(
            self.hub.store, self.hub.names, instance_id, lambda one: self.get(one, payloads=False)
        )

    # quarantine

    async def quarantined(self, *, bodies: bool = True, limit: int | None = None) -> tuple[Quarantined, ...]:
        """Messages that could not be processed, with their causes. :param bodies: with their texts."""
        return tuple(await quarantine.listing(self.hub.store, self.hub.names, bodies=bodies, limit=limit))

    async def find_quarantined(self, message_id: str) -> Quarantined | None:
        """A message in quarantine, with its text."""
        return await quarantine.find(self.hub.store, self.hub.names, message_id)

    async def put_back(self, message_id: str) -> bool:
        """Put a message out of quarantine into its queue again, once what was wrong is mended (K35, K42).

        :returns: False when it is not there, or somebody else is just putting it back or dropping it.
        """
        return await self._out_of_quarantine(message_id, quarantine.put_back)

    async def drop_quarantined(self, message_id: str) -> bool:
        """Remove a message from quarantine for ever. :returns: as :meth:`put_back`."""
        return await self._out_of_quarantine(message_id, quarantine.drop)

    async def _out_of_quarantine(self, message_id: str, how: Callable[..., Awaitable[None]]) -> bool:
        item = await self.find_quarantined(message_id)
        if item is None:
            return False
        try:
            await how(self.hub.store, self.hub.names, item)
        except (Conflict, NotFound):
            return False
        return True

    # the hub

    async def members(self, *, prove: bool = False) -> tuple[Member, ...]:
        """The workers listed.

        :param prove: look twice, a renew interval apart, and say in ``alive`` who has moved; else as this client has
            seen them so far (all of them, when it looks for the first time).
        """
        return await self._members.prove() if prove else await self._members.live()

    @asynccontextmanager
    async def attending(self, name: str) -> AsyncIterator[None]:
        """List this process, for the length of the block, as one that watches the hub's instances for Airflow.

        Other processes see from it whether a deferred task has a triggerer. Errors of the store are logged.

        :param name: of the process, for people.
        """
        me = f"{name}@{socket.gethostname()}/{uuid4().hex[:8]}"
        member = Member(
            worker=me, started=self.hub.clock.utc_now(), roles=(WATCHER,), apps={}, orchestrators=(), activities=()
        )
        try:
            async with owned() as start:
                start(self._attend(member), name="attend")
                yield
        finally:
            with suppress(StorageError):
                await self._members.withdraw(me)

    async def _attend(self, member: Member) -> None:
        while True:
            try:
                await self._members.renew(member)  # announces it where there is no row yet
            except StorageError as error:
                log.info("watcher_not_listed", error=str(error))
            await self.hub.clock.sleep(self._times.renew.total_seconds())

    @property
    def steering(self) -> Steering:
        """Orders to the partitions, and looks at them: kick, prohibit, offline, cap, drain, check."""
        return Steering(self.hub.store, self.hub.names, times=self._times, clock=self.hub.clock)

    async def partitions(self, *, prove: bool = False) -> tuple[PartitionState, ...]:
        """Who owns what, whether it lives, and how much waits.

        :param prove: look until each owner has renewed its lease, or has not for 1.5 renewal intervals; else its state
            is as this client has seen it so far (unproven, when it looks for the first time).
        """
        return await admin.partition_states(self.hub.store, self.hub.names, self._looks, prove=prove)

    async def completions(self) -> tuple[str, ...]:
        """Ids of watched instances that have ended and were not forgotten yet: a hint (DESIGN §10)."""
        rows = self.hub.store.rows(self.hub.names.completions, Compare("PartitionKey", "eq", ""))
        return tuple([unescape(entity.row_key) async for entity in rows])

    async def forget_completions(self, instance_ids: Collection[str]) -> None:
        """Remove delivered hints."""

        async def forget(instance_id: str) -> None:
            entity = Entity(partition_key="", row_key=escape(instance_id))
            row = RowOperation(verb=RowVerb.DELETE, entity=entity, etag="*")
            with suppress(NotFound):
                await self.hub.store.execute(Transact(table=self.hub.names.completions, rows=(row,)))

        await gather_bounded(forget, instance_ids, limit=FORGOTTEN_AT_ONCE)

    async def watch(self, watch: Watch) -> None:
        """Store which Airflow task waits for an instance; to be called before the start."""
        await watches.write(self.hub.store, self.hub.names, watch)

    async def watches(self, deployment: str) -> tuple[Watch, ...]:
        """Which tasks of an Airflow deployment wait for which instances, as stored by :meth:`watch`."""
        return await watches.read(self.hub.store, self.hub.names, deployment)

    async def unwatch(self, watch: Watch) -> None:
        """Delete a row of :meth:`watches`; a row that was written again meanwhile stays."""
        await watches.delete(self.hub.store, self.hub.names, watch)


def _user_and_host() -> str:
    try:
        user = getuser()
    except (KeyError, OSError):  # a process of a user without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
