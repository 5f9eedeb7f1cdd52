"""Tells whether an activity may begin: not if its instance has ended or is suspended, if the orchestrator has cancelled
the call, or if nobody needs it.

A work item can wait for hours, in its queue or for a slot, before its activity begins. So the worker reads the
instance row as the last step before the beginning. Between this request and the beginning at most
:data:`BEGINS_WITHIN` may pass; if it takes longer, the executor refuses to begin, and the worker asks again. A client
that has seen the end of an instance waits for the same time, by its own clock. After that no activity of the instance
begins any more, on no machine. Clocks of two machines are not compared.

The worker asks nothing if it has itself stored the call of the activity within the last second: an instance that
calls an activity is neither ended nor suspended. So an activity that begins at once costs no request. It asks
nevertheless for an instance that has cancelled calls.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from airflow_provider_taskhub.engine.events import FailureDetails, TaskScheduled
from airflow_provider_taskhub.errors import StorageError, Unavailable
from airflow_provider_taskhub.hub.admission.facts import SECOND
from airflow_provider_taskhub.hub.history.calls import Calls, calls_of
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import BEGINS_WITHIN
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.workers.activities.cancellation import (
    Fate,
    failure_of_cancelled,
    fate_by_history,
    fate_by_row,
    fate_of,
    is_cancelled,
)
from airflow_provider_taskhub.workers.activities.responses import Responses
from airflow_provider_taskhub.workers.activities.work_items import WorkItems
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome

log = structlog.get_logger(__name__)

FRESH = BEGINS_WITHIN.total_seconds() * 3 / 4
"""Seconds for which an answer of the store is used for all activities of an instance. The rest of the time remains for
the beginning."""
REMEMBERED = 256
"""The most instances whose answers are kept."""
APPEARS_WITHIN = 1.0
"""Seconds to wait for the first checkpoint of an instance that is not stored. The checkpoint sends the work items
before it writes the history."""
LOOK = 0.1
"""Seconds between two looks at such an instance."""
SHORTEST_PAUSE, LONGEST_PAUSE = timedelta(seconds=1), timedelta(minutes=1)
"""Shortest and longest time until a work item is delivered again whose instance is not stored."""
LONGEST_HOLD = timedelta(seconds=30)
"""Longest time until a work item of a suspended instance is delivered again."""
PURGED_AFTER = timedelta(minutes=10)
"""A work item whose instance is not stored is deleted after this time. Until then, the first checkpoint of the instance
may still be on its way."""


class Unasked(Exception):
    """The store does not say whether an activity may begin, so it has not begun. The work item must come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """Whether an activity may begin.

    :param fate: only with OPEN may it begin.
    :param begin_by: monotonic time of this machine, in seconds, after which it must not begin without a new permit.
    :param older: whether a generation has made the call that has ended by ``continue_as_new``. If the call was
        cancelled, only its record says so.
    """

    fate: Fate
    begin_by: float
    older: bool = False


@dataclass(slots=True, kw_only=True)
class _Answer:
    """The newest answer of the store about an instance.

    :param asking: a lock, so that the activities of an instance share one request.
    :param sent: monotonic time at which the request was sent, in seconds.
    :param fate: None: no answer may be used again.
    :param rewound: True if a rewind has taken back a failure of this run.
    :param calls: the calls in the history; None: not asked, or not known.
    :param cancelled: numbers of the calls that this generation has cancelled.
    """

    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    sent: float = 0.0
    fate: Fate | None = None
    rewound: bool = False
    calls: Calls | None = None
    cancelled: frozenset[int] = frozenset()
    older: bool = False


def _is_asked(calls: Calls, held: Delivery) -> bool | None:
    """Return True if the call of a work item has no answer, and False if it has one; None: there is no such call."""
    event = held.message.event
    assert isinstance(event, TaskScheduled)
    action = calls.actions.get(event.event_id)
    known = event.taskhub_action_id is None or action in (None, event.taskhub_action_id)
    if event.event_id not in calls.actions or not known:
        return None
    return event.event_id not in calls.answered


def fate_of_call(calls: Calls | None, held: Delivery, *, rewound: bool) -> Fate:
    """Return ANSWERED if the history has the answer to the call of a work item, UNDONE if a rewind has undone the call.

    A call is undone if the history does not have it although it was written after the work item was put. Both times are
    the store's; a queue may give its time in whole seconds. If the times are equal, a later checkpoint has put the
    work item and is under way: a checkpoint sends its work items before it writes the history.

    :param calls: the calls in the history of the instance; None: not known.
    :param rewound: True if a rewind has taken back a failure of this run.
    :returns: OPEN if the call is needed, or if that is not known.
    """
    event = held.message.event
    assert isinstance(event, TaskScheduled)
    if calls is None or calls.execution_id != held.message.instance.execution_id:
        return Fate.OPEN
    asked = _is_asked(calls, held)
    if asked is not None:
        return Fate.OPEN if asked else Fate.ANSWERED
    put = held.first_put.ticks + (SECOND if held.first_put.ticks % SECOND == 0 else 1)
    undone = rewound and calls.written is not None and put <= calls.written.ticks
    return Fate.UNDONE if undone else Fate.OPEN


class Begins:
    """Asks for each activity whether it may begin, and settles the work items of those that may not.

    :param responses: sends the responses and deletes the work items.
    """

    def __init__(self, hub: Hub, work_items: WorkItems, responses: Responses) -> None:
        self._hub, self._work_items, self._responses = hub, work_items, responses
        self._answers: OrderedDict[tuple[str, str | None], _Answer] = OrderedDict()

    async def permit(self, held: Delivery) -> Permit:
        """Ask whether the activity of a work item may begin. Call this as the last step before the beginning.

        :raises Unasked: if the store does not answer, or refuses the request.
        """
        try:
            return await self._permit(held)
        except StorageError as error:
            raise Unasked(str(error)) from error

    async def _permit(self, held: Delivery) -> Permit:
        clock = self._hub.clock
        stored, asks = held.scheduled, self._hub.cancelled_calls.may_be(held.message.instance.instance_id)
        if stored is not None and not asks and clock.monotonic() - stored < FRESH:
            return _permit(Fate.OPEN, stored)
        until = clock.monotonic() + APPEARS_WITHIN
        while True:
            permit = await self._ask(held)
            if permit.fate is not Fate.NOTHING or self._waited(held) > SHORTEST_PAUSE or clock.monotonic() >= until:
                return permit
            await clock.sleep(LOOK)

    async def _ask(self, held: Delivery) -> Permit:
        hub, instance = self._hub, held.message.instance
        key = instance.instance_id, instance.execution_id
        answer = self._answers.setdefault(key, _Answer())
        self._answers.move_to_end(key)
        if len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        async with answer.asking:
            now = hub.clock.monotonic()
            if answer.fate is None or now - answer.sent >= FRESH:
                answer.fate, answer.calls, answer.cancelled = None, None, frozenset()
                row = await hub.instance(instance.instance_id)
                fate = fate_by_row(row, held)
                if fate is None:
                    return _permit(await fate_by_history(hub, held), now)
                if fate in (Fate.ENDED, Fate.FAILED):  # not for the next call: a rewind may open the instance again
                    return _permit(fate, now)
                answer.cancelled = await hub.cancelled_calls.of(row, instance.execution_id)
                answer.fate, answer.sent = fate, now
                answer.rewound = row is not None and row.completed is not None
                answer.older = row is not None and row.execution_id != instance.execution_id
            fate = answer.fate
            if fate is Fate.OPEN and (answer.rewound or held.deliveries > 1):
                if answer.calls is None:
                    answer.calls = await calls_of(hub.store, hub.names, instance.instance_id)
                fate = fate_of_call(answer.calls, held, rewound=answer.rewound)
            if fate in (Fate.OPEN, Fate.SUSPENDED) and held.message.event.event_id in answer.cancelled:
                fate = Fate.CANCELLED
            return _permit(fate, answer.sent, older=answer.older)

    def _waited(self, held: Delivery) -> timedelta:
        """Return how long a work item had been in its queue when this worker received it, by the clock of the store."""
        return held.received(self._work_items.visibility) - held.inserted

    async def is_needed(self, held: Delivery) -> bool:
        """Return True if a rewind has opened the instance of a work item again, and waits for the answer to its call.

        A cancelled call needs no attempt.

        :raises StorageError: if the store does not answer, or refuses the request.
        """
        hub, instance = self._hub, held.message.instance
        row = await hub.instance(instance.instance_id)
        if row is None or row.completed is None or fate_by_row(row, held) not in (Fate.OPEN, Fate.SUSPENDED):
            return False
        if await is_cancelled(hub, row, held):
            return False
        calls = await calls_of(hub.store, hub.names, instance.instance_id)
        if calls is None:
            raise Unavailable(f"a checkpoint of instance {instance.instance_id!r} is under way", maybe_done=False)
        return calls.execution_id == instance.execution_id and _is_asked(calls, held) is True

    async def confirm_cancel(self, held: Delivery, event: TaskScheduled) -> None:
        """Answer a cancelled call, and delete its work item. Call this when nothing of the activity runs any more."""
        instance_id = held.message.instance.instance_id
        log.info("activity_cancelled", activity=event.name, instance_id=instance_id, task_id=event.event_id)
        await self._responses.respond(held, event, ActivityOutcome(failure=failure_of_cancelled(event)))

    async def is_cancelled(self, held: Delivery) -> bool:
        """Return True if the orchestrator has cancelled the call of a work item, and its instance has not ended.

        :raises StorageError: if the store does not answer, or refuses the request.
        """
        return await fate_of(self._hub, held) is Fate.CANCELLED

    async def refuse(self, held: Delivery, event: TaskScheduled, fate: Fate) -> None:
        """Settle a work item whose activity may not begin.

        :param fate: the answer of :meth:`permit`, not OPEN.
        """
        waited, reader = self._waited(held), self._work_items.reader
        if fate is Fate.CANCELLED:
            await self.confirm_cancel(held, event)
            return
        log.info(
            "activity_not_begun", activity=event.name, instance_id=held.message.instance.instance_id, why=str(fate)
        )
        match fate:
            case Fate.ENDED | Fate.FAILED:
                await self._responses.wake(held, f"its activity did not begin: {fate}")
            case Fate.ANSWERED:  # another answer changes nothing; if the last checkpoint was cut off, it is repaired
                failure = FailureDetails(error_type="ActivityNotBegun", error_message=f"not begun: {fate}")
                await self._responses.respond(held, event, ActivityOutcome(failure=failure))
            case Fate.UNDONE:
                await self._responses.drop(held, "a rewind has undone its call")
            case Fate.NOTHING if waited >= PURGED_AFTER:
                await self._responses.drop_purged(held)
            case _:
                # The pauses grow, so that a long suspension costs few requests. The time does not count as a wait for a
                # slot (``queue_timeout``), and the deliveries do not count for the quarantine.
                longest = LONGEST_HOLD if fate is Fate.SUSPENDED else LONGEST_PAUSE
                pause = min(longest, max(SHORTEST_PAUSE, waited / 4))
                again = held.received(self._work_items.visibility) + pause
                await reader.give_back([held], delay=pause, begun=False, waiting_since=again)


def _permit(fate: Fate, sent: float, *, older: bool = False) -> Permit:
    return Permit(fate=fate, begin_by=sent + BEGINS_WITHIN.total_seconds(), older=older)
