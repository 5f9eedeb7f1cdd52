"""A handle for one instance: wait for it, look at it, send it something, end it, remove it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from getpass import getuser
from typing import Any
from uuid import uuid4

from airflow_provider_taskhub import codec, tracing
from airflow_provider_taskhub.client.connection import Connection
from airflow_provider_taskhub.client.starting import Starter
from airflow_provider_taskhub.client.termination import FIRST_PAUSE, LONGEST_PAUSE, activities_end, families_end
from airflow_provider_taskhub.clock import Deadline
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionResumed,
    ExecutionSuspended,
    ExecutionTerminated,
    HistoryEvent,
    OrchestrationInstance,
    Status,
)
from airflow_provider_taskhub.engine.identity import check_instance_id, same_start
from airflow_provider_taskhub.engine.validation import check_column, check_event, check_text
from airflow_provider_taskhub.errors import Conflict, InstanceNotFound, InvalidStateError, NotFound
from airflow_provider_taskhub.hub import logs
from airflow_provider_taskhub.hub.formats.instance_rows import ended
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history import failed_attempt as blame
from airflow_provider_taskhub.hub.history.failed_attempt import FailedAttempt
from airflow_provider_taskhub.hub.history.load import load
from airflow_provider_taskhub.hub.history.purge import purge
from airflow_provider_taskhub.hub.history.salvage import salvage
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord, InstanceState, Member, StartPolicy
from airflow_provider_taskhub.hub.rewind import rewind
from airflow_provider_taskhub.hub.waiting.reasons import Why

TRIES = 5
"""Tries of a purge that other writers keep disturbing."""


class InstanceHandle:
    """One instance of a hub, by its id. Make one with ``Client.instance``.

    :ivar id: of the instance. :ivar hub: the open hub; internal.
    """

    def __init__(self, connection: Connection, instance_id: str) -> None:
        self._connection = connection
        self.hub, self.id = connection.hub, instance_id

    def __repr__(self) -> str:
        return f"<InstanceHandle {self.id!r} of {self._connection.describe()}>"

    def other(self, instance_id: str) -> InstanceHandle:
        """A handle for another instance of the same hub. :param instance_id: of that instance."""
        return InstanceHandle(self._connection, instance_id)

    # looking

    async def get(self, *, payloads: bool = True) -> InstanceState | None:
        """The instance's state; None if there is no such instance.

        :param payloads: also read large inputs and outputs, which are stored as blobs. Else these are None.
        """
        return await self.hub.instance(self.id, payloads=payloads)

    async def status(self) -> Status:
        """The instance's status alone. :raises InstanceNotFound: if there is no such instance."""
        return (await self._existing()).status

    async def _existing(self, *, payloads: bool = False) -> InstanceState:
        check_instance_id(self.id)
        row = await self.get(payloads=payloads)
        if row is None:
            raise InstanceNotFound(f"no instance {self.id!r} in hub {self._connection.describe()}")
        return row

    async def wait(self, *, timeout: timedelta | None = None, longest: float = LONGEST_PAUSE) -> InstanceState:
        """Wait until the instance has ended, and return its state with input and output.

        :param timeout: give up after this time; None: never.
        :param longest: seconds between two looks at the instance, at most.
        :raises TimeoutError: if the instance has not ended within ``timeout``. The instance goes on.
        :raises InstanceNotFound: if there is no such instance.
        """
        return await _end_of(self, None, timeout, longest)

    async def waiting(self, *, members: Sequence[Member] | None = None) -> tuple[Why, ...]:
        """Why the instance does not go on, the strongest reason first. Empty if it works or has ended.

        It costs some six requests, however long the history is, and two more for each of at most three awaited
        children.

        :param members: workers as just read; None: read them now. Pass ``await client.admin.workers(prove=True)`` to be
            certain which of them live: a worker that has died stays listed until other workers have missed it.
        :raises InstanceNotFound: if there is no such instance.
        """
        row, shared = await self._existing(), self._connection
        found = await shared.members.live() if members is None else members
        return await shared.snapshots.one(row, found, shared.members.watching)

    async def history(self) -> tuple[HistoryEvent, ...]:
        """The events of the instance's current generation, as they were at one moment.

        :raises HistoryUnreadable: if not all of the events can be read; see :meth:`readable_history`.
        :raises Conflict: if the instance was rewound, purged or started again during each of 5 readings.
        """
        return (await load(self.hub.store, self.hub.names, self.id, growing=True)).past

    async def readable_history(self) -> tuple[tuple[HistoryEvent, ...], tuple[str, ...]]:
        """The part of the history that can be read, to show it. Code that decides uses :meth:`history`.

        An instance with a damaged history does not go on: :meth:`terminate` and then :meth:`purge` remove it.

        :returns: the events, and one line for each thing that cannot be read; no line if all can be read.
        """
        found = await salvage(self.hub.store, self.hub.names, self.id, growing=True)
        return found.events, found.unreadable

    async def activities(self) -> tuple[ActivityRecord, ...]:
        """Every attempt of the instance's recorded activities, in the order of task and attempt."""
        found = await records.of_instance(self.hub.store, self.hub.names, self.id)
        return tuple(record for record, _ in found)

    async def logs(self) -> tuple[str, ...]:
        """Names of the logs of all attempts of the instance's activities; see :meth:`log`."""
        return await logs.names_of(self.hub.store, self.hub.names, self.id)

    async def log(self, name: str, *, last: int | None = None) -> str:
        """What an attempt wrote; "" if it wrote nothing.

        :param name: from :meth:`logs`, ``ActivityRecord.log`` or :meth:`failed_attempt`.
        :param last: only so many lines, from the end; None: all.
        """
        return await logs.read(self.hub.store, self.hub.names, name, last=last)

    async def failed_attempt(self) -> FailedAttempt | None:
        """The last attempt of the activity that made the instance fail, recorded or not.

        If a child made the instance fail, this is the attempt of the child's activity. None if the attempt kept no log,
        and if no activity failed: the orchestrator raised an error of its own.
        """
        return await blame.failed_attempt(
            self.hub.store, self.hub.names, self.id, lambda one: self.other(one).get(payloads=False)
        )

    # steering

    async def raise_event(self, name: str, data: Any = None) -> None:
        """Send an external event to the instance. DurableTask and Temporal call this a signal, too.

        The orchestrator takes it with ``ctx.wait_for_external_event(name)``, also if it asks for it later.

        :param name: of the event. :param data: one value; it is written as JSON.
        :raises InstanceNotFound: if there is no such instance.
        :raises InvalidStateError: if the instance has ended.
        :raises InputError: for data that JSON cannot express, or a name that cannot be stored.
        """
        check_event(name, "raise_event")
        row = await self._existing()
        if row.status.is_final:
            raise InvalidStateError(f"instance {self.id!r} has ended ({row.status}): it takes no events")
        text = codec.dumps(data, what=f"data of event {name!r}")
        # before the first checkpoint a .NET worker takes only events that name the execution
        execution_id = row.execution_id if row.status is Status.PENDING else None
        target = OrchestrationInstance(instance_id=self.id, execution_id=execution_id)
        with tracing.raising(name, self.id) as carried:
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
        reason: str = "",
        *,
        wait: bool = False,
        recurse: bool = True,
        timeout: timedelta | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> InstanceState:
        """End the instance and its children. An instance that has ended stays as it is.

        An instance with a damaged history ends too: its children and its parent are found in the events that can be
        read. Its history then has only the termination.

        :param reason: becomes the instance's output.
        :param wait: wait until the instance has ended and its executors have confirmed that none of its recorded
            activities runs any more; with ``recurse`` also until this holds for its children, and for theirs.
        :param recurse: end every child that has not answered its parent, with its own children. Children with the tag
            for fire and forget always go on.
        :param timeout: of ``wait``; None: no limit.
        :param progress: called with the id of each child that ``wait`` waits for, when its turn comes.
        :returns: the state before the termination; with ``wait`` the state after it.
        :raises InstanceNotFound: if there is no such instance. :raises InputError: if the reason cannot be stored.
        :raises TimeoutError: if not all has ended within ``timeout``. The termination goes on.
        """
        check_text(reason, "the reason")
        row = await self._existing()
        if not row.status.is_final:
            event = ExecutionTerminated(
                timestamp=self.hub.clock.utc_now(),
                input=reason,
                taskhub_execution_id=row.execution_id,
                taskhub_recurse=recurse or None,
            )
            await self.hub.send(self.hub.mail(event, OrchestrationInstance(instance_id=self.id)))
        if not wait:
            return row
        deadline = Deadline(self.hub.clock, timeout)
        ended = await _end_of(self, row.execution_id, deadline.left())
        await activities_end(self, deadline)
        if recurse and ended.status is Status.TERMINATED:
            await families_end(self, deadline, progress or (lambda child: None))
        return ended

    async def suspend(self, reason: str = "", *, by: str | None = None) -> InstanceState:
        """Suspend the instance: activities that run go on, but the orchestrator decides nothing before :meth:`resume`.

        An instance that has not begun yet is suspended in its first episode: what it decides there waits too, unless it
        decides to end.

        :param reason: becomes the instance's output until it ends, as in DurableTask.
        :param by: who suspends it; shown where the instance is shown as waiting. None: ``user@host`` of this process.
        :returns: the state before the suspension.
        :raises InstanceNotFound: if there is no such instance. :raises InvalidStateError: if it has ended.
        :raises InputError: if the reason or ``by`` cannot be stored.
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
        return await _steer(self.hub, await self._existing(), event, "suspended")

    async def resume(self, reason: str = "") -> InstanceState:
        """Let a suspended instance go on with all that has come meanwhile. A running one stays as it is.

        :param reason: becomes the instance's output until it ends, as in DurableTask.
        :returns: the state before the instance goes on.
        :raises InstanceNotFound: if there is no such instance. :raises InvalidStateError: if it has ended.
        :raises InputError: if the reason cannot be stored.
        """
        check_text(reason, "the reason")
        event = ExecutionResumed(timestamp=self.hub.clock.utc_now(), reason=reason, taskhub_process=self.hub.process)
        return await _steer(self.hub, await self._existing(), event, "resumed")

    async def rewind(self, reason: str = "") -> InstanceState:
        """Let a failed instance go on from before its failure: what failed is done again.

        Activities and children that completed are not done again. Children that failed are rewound too. If the
        orchestrator handled a failure (for example by cleaning up) and then raised it, everything that it decided since
        the failure is taken back, and it goes on from where it waited for what failed. The causes of the instance's
        error tell which failure that was: raise an error of your own ``from`` the failure.

        A failure stays handled if the orchestrator decided something between handling it and the failure that ended the
        instance. If it decided nothing, what failed is done again: the history does not tell whether the failure was
        handled. A rewind that was cut off can be called again.

        :param reason: kept in the history.
        :returns: the state: Pending until the instance ends, as in DurableTask.
        :raises InstanceNotFound: if there is no such instance. :raises InvalidStateError: if it has not failed.
        :raises InputError: if the reason cannot be stored.
        """
        check_column(reason, "the reason")
        await rewind(self.hub, check_instance_id(self.id), reason)
        return await self._existing()

    async def restart(self, *, new_id: bool = False) -> InstanceState:
        """Start the instance again with the orchestrator, version, input and tags of its last start.

        :param new_id: start it under a new random id, in whatever state this instance is. Else under the same id, which
            needs an instance that has ended.
        :returns: the new instance's state.
        :raises InstanceNotFound: if there is no such instance.
        :raises InstanceExists: if the instance has not ended and ``new_id`` is False.
        """
        row = await self._existing(payloads=True)
        into = uuid4().hex if new_id else self.id
        policy = StartPolicy.REFUSE if new_id else StartPolicy.REPLACE_FINISHED
        return await Starter(self.hub).begin(row.name, row.input, into, row.version, row.tags, None, policy)

    async def purge(self) -> bool:
        """Remove an instance that has ended, with everything that is stored of it: history, payloads, records, logs.

        Its children are instances of their own, and stay.

        :returns: False if there was no such instance. :raises InvalidStateError: if the instance has not ended.
        """
        check_instance_id(self.id)
        for _ in range(TRIES):
            row = await self.get(payloads=False)
            if row is None:
                return False
            if not row.status.is_final:
                raise InvalidStateError(f"instance {self.id!r} is {row.status}: terminate it first, then purge it")
            try:
                await purge(self.hub.store, self.hub.names, row)
                return True
            except (Conflict, NotFound) as error:  # started again, rewound, or purged by somebody else: look again
                last = error
        raise last


async def _steer(
    hub: Hub, row: InstanceState, event: ExecutionSuspended | ExecutionResumed, what: str
) -> InstanceState:
    """Send a suspension or a resume to the run that a row shows."""
    if row.status.is_final:
        raise InvalidStateError(f"instance {row.instance_id!r} has ended ({row.status}): it cannot be {what}")
    named = replace(event, taskhub_execution_id=row.execution_id)
    await hub.send(hub.mail(named, OrchestrationInstance(instance_id=row.instance_id)))
    return row


def _user_and_host() -> str:
    try:
        user = getuser()
    except (KeyError, OSError):  # a process of a user without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


async def _end_of(
    instance: InstanceHandle, run: str | None, timeout: timedelta | None, longest: float = LONGEST_PAUSE
) -> InstanceState:
    """Wait until an instance has ended. Other parameters and errors as for :meth:`InstanceHandle.wait`.

    :param run: wait for the end of this run only: another one under the same id is not waited for.
    """
    hub = instance.hub
    deadline = Deadline(hub.clock, timeout)
    pause = FIRST_PAUSE
    async with hub.store.subscribe(ended(hub.names, escape(instance.id))) as changed:
        while True:
            row = await instance._existing()
            if row.status.is_final or (run is not None and not same_start(row.execution_id, run)):
                return await instance.get() or row
            deadline.check(f"instance {instance.id!r} is {row.status} after {timeout}")
            await changed(deadline.shorten(pause))
            pause = min(longest, pause * 1.5)
