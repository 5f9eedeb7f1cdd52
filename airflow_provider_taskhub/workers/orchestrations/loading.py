"""Loads an instance from the store into memory: its history, its row and its live orchestrator. It writes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from uuid import uuid4

import structlog

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import identity
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    EventSent,
    ExecutionCompleted,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    GenericEvent,
    HistoryEvent,
    OrchestrationInstance,
    ParentInstance,
    Status,
    SubOrchestrationInstanceCreated,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
    TimerCreated,
)
from airflow_provider_taskhub.engine.identity import run_name, same_start
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.replay import Execution
from airflow_provider_taskhub.engine.replay_safe_logger import LogLine
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.admission.facts import Facts
from airflow_provider_taskhub.hub.formats.history_rows import MAX_ENDED, Sentinel
from airflow_provider_taskhub.hub.formats.instance_rows import is_newer, lags
from airflow_provider_taskhub.hub.history.checkpoint import Stored
from airflow_provider_taskhub.hub.history.load import Loaded, load
from airflow_provider_taskhub.hub.history.salvage import salvage
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.tags import FIRE_AND_FORGET, LIMIT_TAG

log = structlog.get_logger(__name__)

_FOR_ANY_GENERATION = (EventRaised, ExecutionSuspended, ExecutionResumed, ExecutionTerminated)
"""Events that every generation of a run takes (a run begins a new generation at each ``continue_as_new``).

The response of an activity, child or timer names its generation, and other generations discard it."""


def _needs_memory(event: HistoryEvent) -> bool:
    """Return True if later generations must remember the message, because they would process a repetition of it."""
    if isinstance(event, ExecutionStarted):
        return event.parent is not None  # if a client's start is repeated, the instance row shows the repetition
    return isinstance(event, _FOR_ANY_GENERATION)


@dataclass(slots=True, eq=False)
class LoadedInstance:
    """An instance in memory: its live orchestrator, and the facts of its stored history.

    :ivar execution: the live orchestrator, which replays the history.
    :ivar stored: what the next checkpoint must know of the stored rows, such as ETags.
    :ivar execution_id: execution id of the stored generation; None if nothing is stored.
    :ivar name: the name of the orchestrator.
    :ivar tags: the tags in the start event.
    :ivar parent: the parent of a child; None for an instance that a client has started.
    :ivar started: the start event of the generation; None if no history is loaded.
    :ivar scheduled: the scheduling events of activities, timers and children, by the number of their action.
    :ivar open_tasks: the names of the activities without a response, by the number of their action.
    :ivar cancels: whether the generation has cancelled calls of activities.
    :ivar seen: the identities of processed messages; the value is True if later generations must remember the identity.
    :ivar past: the history as loaded; empty after the first episode or repair.
    :ivar ended: the final status; None while the instance has not ended.
    :ivar rewound: whether the generation was rewound.
    :ivar forgetful: True after a ``continue_as_new`` had to remember more consumed messages than the sentinel has room
        for, so that the oldest were forgotten.
    :ivar has_place: True if the instance is known to have a place of its limit, or to have no limit.
    :ivar stuck: True if the orchestrator's code must not run, because the instance is in quarantine or this worker does
        not have the code.
    """

    execution: Execution
    stored: Stored
    execution_id: str | None
    name: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    parent: ParentInstance | None = None
    started: ExecutionStarted | None = None
    scheduled: dict[int, HistoryEvent] = field(default_factory=dict)
    open_tasks: dict[int, str] = field(default_factory=dict)
    cancels: bool = False
    seen: dict[str, bool] = field(default_factory=dict)
    past: tuple[HistoryEvent, ...] = ()
    ended: Status | None = None
    rewound: bool = False
    forgetful: bool = False
    has_place: bool = False
    stuck: bool = False

    def absorb(self, events: Sequence[HistoryEvent], *, switched: bool) -> None:
        """Take from new history events the facts that admission needs to judge later messages.

        :param switched: True if the events begin a new generation (``continue_as_new``). The facts of the generation
            before are then forgotten. :meth:`remember` adds the consumed messages that the sentinel lists.
        """
        if switched:
            self.scheduled.clear()
            self.open_tasks.clear()
            self.cancels = self.rewound = False
            self.seen.clear()
        for event in events:
            if event.taskhub_message_id is not None:
                self.seen[event.taskhub_message_id] = _needs_memory(event)
            match event:
                case TaskScheduled():
                    self.scheduled[event.event_id] = event
                    self.open_tasks[event.event_id] = event.name
                case TimerCreated() | SubOrchestrationInstanceCreated():
                    self.scheduled[event.event_id] = event
                case EventSent():
                    mine = event.instance_id == self.execution.instance.instance_id
                    self.cancels |= mine and event.taskhub_cancels is not None
                case TaskCompleted() | TaskFailed():
                    self.open_tasks.pop(event.task_scheduled_id, None)
                case ExecutionStarted():
                    self.started = event
                    self.name, self.tags, self.parent = event.name, dict(event.tags or {}), event.parent
                case ExecutionCompleted():
                    self.ended = event.status
                case GenericEvent():
                    self.rewound |= event.is_rewind

    def remember(self, stored: Stored) -> None:
        """Set what is stored after a checkpoint, and remember the consumed messages that the sentinel lists."""
        self.stored = stored
        self.seen.update(dict.fromkeys(stored.consumed, True))

    def consumed(self) -> tuple[str, ...]:
        """Return the identities of consumed messages that later generations must remember, the oldest first.

        A new generation replaces the history rows that name these messages. Without the identities it would process a
        message again if the queue delivers the message again.
        """
        return tuple(dict.fromkeys((*self.stored.consumed, *(known for known, kept in self.seen.items() if kept))))

    def forget(self, deleted: Iterable[Delivery]) -> None:
        """Stop remembering messages that are deleted from their queue.

        Messages that an action of an orchestrator has sent stay remembered, because the sender can send them again.

        :param deleted: the messages that are known to be deleted.
        """
        gone = {
            held.identity
            for held in deleted
            if held.identity == held.message_id or not _needs_memory(held.message.event)
        }
        self.seen.update((known, False) for known in gone if known in self.seen)
        if self.stored.consumed:
            kept = tuple(known for known in self.stored.consumed if known not in gone)
            self.stored = replace(self.stored, consumed=kept)

    def facts(self) -> Facts:
        """Return the facts by which admission judges messages for this instance."""
        return Facts(
            execution_id=self.execution_id,
            ended=frozenset(self.stored.ended),
            scheduled=self.scheduled.keys(),
            final=self.ended is not None,
            rewound=self.rewound,
            parent=self.parent,
            fire_and_forget=FIRE_AND_FORGET in self.tags,
            seen=self.seen.keys(),
            suspension_stamp=self.stored.suspension_stamp,
        )


class Loader:
    """Loads instances from the store."""

    def __init__(self, hub: Hub, registry: Registry) -> None:
        self._hub, self._registry = hub, registry

    async def open(self, instance_id: str, first: Delivery) -> tuple[LoadedInstance, Loaded | None]:
        """Load an instance for a batch.

        :param first: the first message of the batch.
        :returns: the instance, and the history as read. The history is None if nothing was read because nothing can be
            stored yet.
        """
        event = first.message.event
        if isinstance(event, ExecutionStarted) and _runs_unread(event, first):
            # A TaskHub client has inserted the instance row, so there is no history. If there is one all the same, the
            # first checkpoint fails, because it inserts the sentinel.
            stored = Stored(row_etag=event.taskhub_row_etag, status=Status.PENDING)
            return self._without_history(instance_id, stored), None
        return await self.load(instance_id)

    async def load(self, instance_id: str) -> tuple[LoadedInstance, Loaded]:
        """Read the history and the instance row of an instance.

        The custom status comes from the row, because an earlier generation (the part of a run before a
        ``continue_as_new``) may have set it, and a replay of this history would not set it again. If the row is older
        than the last ``continue_as_new``, it comes from the sentinel (the last row of the history).

        :returns: the instance, and the history as it was read.
        """
        hub = self._hub
        loaded, row = await asyncio.gather(
            load(hub.store, hub.names, instance_id), hub.instance(instance_id, payloads=("custom_status", "output"))
        )
        sentinel = loaded.sentinel
        if sentinel is None or not loaded.begun:
            # A custom status in the row belongs to an earlier run, so the first checkpoint writes its own anew.
            live = self._without_history(
                instance_id, replace(_stored(sentinel, row), uncommitted_rows=loaded.uncommitted_rows)
            )
            live.remember(live.stored)
            return live, loaded
        stored = replace(
            _stored(sentinel, row),
            rows=len(loaded.past),
            uncommitted_rows=loaded.uncommitted_rows,
            has_old_rows=loaded.has_old_rows,
            completed=sentinel.checkpoint_completed,
            blobs=loaded.blobs,
            unprojected_events=loaded.past if lags(row, loaded.past) else (),
            custom_status=row.custom_status if row else None,
        )
        inherits = row is not None and same_start(row.execution_id, sentinel.execution_id)
        status = row.custom_status if row is not None and inherits else None
        if identity.generation_of(sentinel.execution_id) and (row is None or row.execution_id != sentinel.execution_id):
            # The row is older than the last continue_as_new, whose episode can have changed the custom status.
            status = await hub.custom_status(sentinel.custom_status) if sentinel.custom_status else status
        execution = self._execution(instance_id, loaded.past, sentinel.execution_id, status)
        live = LoadedInstance(execution, stored, sentinel.execution_id, past=loaded.past)
        live.absorb(loaded.past, switched=False)
        if row is not None and live.ended is None and _is_newer(row, loaded.past):
            stored = replace(stored, row_etag=None)  # a checkpoint then inserts a row, which cannot overwrite this one
        live.remember(stored)
        return live, loaded

    async def salvage(
        self, instance_id: str
    ) -> tuple[LoadedInstance, Facts, ExecutionStarted, tuple[HistoryEvent, ...]]:
        """Load an instance with a damaged history, to terminate it or to start it again.

        The orchestrator gets a new generation with an empty history under the existing sentinel, because the rows of a
        new generation can be read.

        :returns: the instance, the facts for admission, the start of the new generation, and the events of the damaged
            history that can be read.
        """
        hub = self._hub
        found, row = await asyncio.gather(
            salvage(hub.store, hub.names, instance_id), hub.instance(instance_id, payloads=True)
        )
        named = row.execution_id if row is not None else None
        current = found.execution_id or named or uuid4().hex
        again = OrchestrationInstance(instance_id=instance_id, execution_id=identity.next_execution_id(current))
        stored = replace(
            _stored(found.sentinel, row),
            # The ETag of a sentinel is known even if the sentinel cannot be read.
            sentinel_etag=found.lock.etag if found.lock else None,
            has_old_rows=True,
            custom_status=row.custom_status if row else None,
        )
        live = LoadedInstance(
            self._execution(instance_id, (), again.execution_id, stored.custom_status), stored, current
        )
        live.absorb(found.events, switched=False)
        live.remember(stored)
        live.stored = replace(stored, consumed=live.consumed())
        # Some scheduling events may be unreadable. One task without a name stands for all of them. So the worker looks
        # for activity records when the instance ends, and cancels the attempts that still run.
        live.open_tasks[-1] = ""
        ended = row is not None and row.status.is_final and same_start(named, current)
        live.ended = row.status if row is not None and ended else None  # the completion event may be unreadable
        replaced = row is not None and row.status is Status.PENDING and not same_start(named, current)
        facts = replace(
            live.facts(),
            checkpointed=found.lock.timestamp if found.lock else None,
            final=ended or replaced,  # a client replaces the row only if the stored run has ended
        )
        return live, facts, _start_of(again, live.started, row, hub.clock.utc_now()), found.events

    def restarted(self, instance_id: str, old: LoadedInstance) -> LoadedInstance:
        """Return an instance with an empty history, for a new start of an instance that has ended.

        The new history is written from row 0 under the same sentinel. The messages that the ended run has consumed stay
        remembered: the rows that name them are overwritten, and each message can be delivered again. The blobs of the
        ended run stay, as in DurableTask, because the row of a child keeps the old output until the child ends again.

        :param old: the ended instance as loaded.
        """
        consumed = old.consumed()
        before = () if old.execution_id is None else (run_name(old.execution_id),)
        ended = (*old.stored.ended, *before)[-MAX_ENDED:]
        stored = replace(
            old.stored,
            rows=0,
            uncommitted_rows=0,
            has_old_rows=True,
            consumed=consumed,
            ended=ended,
            blobs=(),
            unprojected_events=(),
            status=None,
        )
        return self._without_history(instance_id, stored)

    def _without_history(self, instance_id: str, stored: Stored) -> LoadedInstance:
        """Return an instance with an empty history."""
        return LoadedInstance(self._execution(instance_id, (), None, None), stored, None)

    def _execution(
        self, instance_id: str, past: Sequence[HistoryEvent], execution_id: str | None, custom_status: str | None
    ) -> Execution:
        instance = OrchestrationInstance(instance_id=instance_id, execution_id=execution_id)
        return Execution(self._registry, past, instance=instance, custom_status=custom_status, log=_log_line)


def _stored(sentinel: Sentinel | None, row: InstanceState | None) -> Stored:
    """Return what the sentinel and the instance row say, without the custom status in the row.

    The history says the rest.

    :param sentinel: None: there is no sentinel, or it cannot be read.
    :param row: None: there is no row.
    """
    stored = Stored(row_etag=row.etag if row else None, status=row.status if row else None)
    if sentinel is None:
        return stored
    return replace(
        stored,
        sentinel_etag=sentinel.etag,
        consumed=sentinel.consumed,
        suspension_stamp=sentinel.suspension_stamp,
        arrived=sentinel.arrived,
        ended=sentinel.ended,
        suspension=sentinel.suspension,
        unwritten=sentinel.unwritten,
    )


def _log_line(line: LogLine) -> None:
    """Write a log line of an orchestrator into the worker's log."""
    level = max(logging.DEBUG, min(logging.CRITICAL, line.level // 10 * 10))  # structlog knows only 10, 20 … 50
    log.log(level, line.message, instance_id=line.instance_id, orchestrator=line.orchestrator)


def _start_of(
    instance: OrchestrationInstance, started: ExecutionStarted | None, row: InstanceState | None, now: Timestamp
) -> ExecutionStarted:
    """Return the start event of the generation that replaces a damaged one.

    :param started: the start event in the damaged history; None if it is unreadable. Then the row is used.
    :param row: the instance row; None if there is no row.
    :param now: the timestamp of the event if there is no row, or if the row has no creation time.
    """
    if started is not None:
        return replace(started, instance=instance, taskhub_message_id=None, taskhub_row_etag=None)
    if row is None:
        return ExecutionStarted(timestamp=now, instance=instance, name="")
    return start_from_row(instance, replace(row, input=None), now)


def start_from_row(instance: OrchestrationInstance, row: InstanceState, now: Timestamp) -> ExecutionStarted:
    """Build the start event that a client has sent, from the instance row that the client wrote.

    :param row: the instance row, with its input.
    :param now: the timestamp for a row without a creation time.
    """
    return ExecutionStarted(
        timestamp=row.created or now,
        instance=instance,
        name=row.name,
        input=row.input,
        version=row.version,
        tags=row.tags,
        scheduled_start_time=row.scheduled_start,
        generation=row.restarts,
    )


def _is_newer(row: InstanceState, past: Sequence[HistoryEvent]) -> bool:
    """Return True if the row belongs to a later start than the history, so that this run must not overwrite the row."""
    started = next((event for event in past if isinstance(event, ExecutionStarted)), None)
    return started is not None and is_newer(row, started)


def current_execution_id(execution_id: str | None, batch: Sequence[Delivery]) -> str | None:
    """Return the execution id of the generation that processes a batch: that of its start, else the stored one.

    :param execution_id: execution id of the stored generation; None if nothing is stored.
    """
    event = batch[0].message.event if batch else None
    return event.instance.execution_id if isinstance(event, ExecutionStarted) else execution_id


def _runs_unread(event: ExecutionStarted, held: Delivery) -> bool:
    """Return True if a start can be processed without reading the store, because its instance has no history yet.

    That is certain only for the first delivery of a start whose client inserted the instance row. If the start had to
    wait for its time, or for a place of its limit, another worker may have stored a history meanwhile.
    """
    waited = event.scheduled_start_time is not None or LIMIT_TAG in (event.tags or {})
    return event.taskhub_row_etag is not None and not waited and held.dequeue_count == 1
