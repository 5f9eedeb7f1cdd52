"""A handle for one instance: read its state and history, wait for it, control it, and remove it.

The module has more than 400 lines, because users find all operations on an instance in one class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from socket import gethostname
from typing import Any
from uuid import uuid4

from airflow_provider_taskhub import codec, tracing
from airflow_provider_taskhub.client.connection import Connection
from airflow_provider_taskhub.client.families import descendants
from airflow_provider_taskhub.client.purging import PURGED_AT_ONCE, purge_instance
from airflow_provider_taskhub.client.starting import Starter
from airflow_provider_taskhub.client.suspension import SUSPENDED_WITHIN, resume_children, suspend_children
from airflow_provider_taskhub.client.termination import (
    LONGEST_PAUSE,
    end_of,
    nothing_runs,
    something_runs,
    terminate,
    was_asked_to_clean_up,
)
from airflow_provider_taskhub.client.watching import Watches
from airflow_provider_taskhub.clock import Deadline
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionResumed,
    ExecutionSuspended,
    HistoryEvent,
    OrchestrationInstance,
    Status,
)
from airflow_provider_taskhub.engine.identity import check_instance_id
from airflow_provider_taskhub.engine.validation import check_column, check_event, check_text, grace_seconds
from airflow_provider_taskhub.errors import Conflict, InstanceExists, InstanceNotFound, InvalidStateError
from airflow_provider_taskhub.hub import logs
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history import failed_attempt as blame
from airflow_provider_taskhub.hub.history import pages
from airflow_provider_taskhub.hub.history.failed_attempt import FailedAttempt
from airflow_provider_taskhub.hub.history.lineage import lineage_of_family
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable, load, request_to_end
from airflow_provider_taskhub.hub.history.pages import ChildPage, HistoryPage
from airflow_provider_taskhub.hub.history.salvage import salvage
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord, InstanceState, Member, StartPolicy
from airflow_provider_taskhub.hub.partitions.operations import this_user
from airflow_provider_taskhub.hub.refusals import refused, refused_at_its_end
from airflow_provider_taskhub.hub.rewind import rewind
from airflow_provider_taskhub.hub.waiting.reasons import Why
from airflow_provider_taskhub.lineage import Lineage
from airflow_provider_taskhub.tags import OWNER_TAG, WATCH_TAG

FINAL = tuple(status for status in Status if status.is_final)
MISSED = 3.0
"""Seconds for which a client must miss a worker before it shows the attempts of the worker as lost. A worker that has
just started can run an activity before the client reads its row."""
TERMINATION_ENDS = timedelta(minutes=1)
"""How long a rewind of a terminated instance waits until nothing of it runs."""


class InstanceHandle:
    """One instance of a hub. Get a handle from ``Client.instance``.

    :ivar id: the instance id.
    :ivar hub: the open hub; internal.
    """

    def __init__(self, connection: Connection, instance_id: str) -> None:
        self._connection = connection
        self.hub, self.id = connection.hub, instance_id

    def __repr__(self) -> str:
        return f"<InstanceHandle {self.id!r} of {self._connection.describe()}>"

    def other(self, instance_id: str) -> InstanceHandle:
        """Return a handle for another instance of the same hub. :param instance_id: the id of that instance."""
        return InstanceHandle(self._connection, instance_id)

    # operations that read

    async def get(self, *, payloads: bool = True) -> InstanceState | None:
        """Return the instance's state; None if there is no such instance.

        :param payloads: True: also read large inputs and outputs, which are stored as blobs. False: large inputs and
            outputs are None in the state.
        """
        return await self.hub.instance(self.id, payloads=payloads)

    async def status(self) -> Status:
        """Return the instance's status. :raises InstanceNotFound: if there is no such instance."""
        return (await self._existing()).status

    async def _existing(self, *, payloads: bool = False) -> InstanceState:
        check_instance_id(self.id)
        row = await self.get(payloads=payloads)
        if row is None:
            raise InstanceNotFound(f"no instance {self.id!r} in hub {self._connection.describe()}")
        return row

    async def wait(self, *, timeout: timedelta | None = None, longest: float = LONGEST_PAUSE) -> InstanceState:
        """Wait until the instance has ended, and return its state with input and output.

        :param timeout: the longest time to wait; None: no limit.
        :param longest: the longest pause between two readings of the instance row, in seconds.
        :raises TimeoutError: if the instance has not ended within ``timeout``. The instance itself continues.
        :raises InstanceNotFound: if there is no such instance.
        """
        return await end_of(self, None, timeout, longest)

    async def waiting(self, *, members: Sequence[Member] | None = None) -> tuple[Why, ...]:
        """Return why the instance makes no progress, the most important reason first.

        The result is empty if the instance makes progress or has ended. Cost: about six requests for any length of the
        history, and two more for each awaited child, for at most three children.

        :param members: the workers, if the caller has just read them; None: read them now. A worker that has died stays
            in the list for a while. Pass ``await client.admin.workers(prove=True)`` to know which workers are alive.
        :raises InstanceNotFound: if there is no such instance.
        """
        row, shared = await self._existing(), self._connection
        found = await shared.members.live() if members is None else members
        return await shared.snapshots.one(row, found, shared.members.watching)

    async def history(self) -> tuple[HistoryEvent, ...]:
        """Return the events of the instance's current generation. All of them are from the same moment.

        Each ``continue_as_new`` begins a new generation with an empty history.

        :raises HistoryUnreadable: if an event cannot be read; use :meth:`readable_history` to see the others.
        :raises Conflict: if the instance was rewound, purged or started again during each of 5 readings.
        """
        return (await load(self.hub.store, self.hub.names, self.id, growing=True)).past

    async def readable_history(self) -> tuple[tuple[HistoryEvent, ...], tuple[str, ...]]:
        """Return the part of the history that can be read, to show it to people.

        Code that makes decisions must use :meth:`history`. An instance with a damaged history makes no progress: call
        :meth:`terminate` and then :meth:`purge` to remove it.

        :returns: the events, and one line of text for each part that cannot be read.
        """
        found = await salvage(self.hub.store, self.hub.names, self.id, growing=True)
        return found.events, found.unreadable

    async def history_page(self, *, before: int | None = None, limit: int = 1000) -> HistoryPage:
        """Return a part of the history that can be read, to show it to people. The cost does not depend on the length.

        :param before: the position of the first event that is not wanted; the first event of the history has position
            0. None: return the newest events.
        :param limit: the largest number of events, from 1.
        """
        try:
            return await pages.history_page(self.hub.store, self.hub.names, self.id, before=before, limit=limit)
        except HistoryUnreadable:  # the row that counts the events is damaged: read everything that is there
            events, unreadable = await self.readable_history()
            end = len(events) if before is None else min(before, len(events))
            first = max(0, end - limit)
            numbers = tuple(range(first, end))
            return HistoryPage(
                events=events[first:end], numbers=numbers, first=first, total=len(events), unreadable=unreadable
            )

    async def children(self, *, after: int = -1, limit: int = 50) -> ChildPage:
        """Return events with which the instance's current generation started children, the oldest first.

        :param after: ``ChildPage.after`` of the previous part; -1: begin with the first child.
        :param limit: the largest number of children, from 1.
        :raises HistoryUnreadable: if the row that counts the events is damaged.
        """
        return await pages.children(self.hub.store, self.hub.names, self.id, after=after, limit=limit)

    async def activities(self) -> tuple[ActivityRecord, ...]:
        """Return all activity records of the instance, of all its generations: one record for each attempt.

        The records are ordered by execution id, task id and attempt. Only activities that are declared with
        ``record=True`` have records.
        """
        found = await records.of_instance(self.hub.store, self.hub.names, self.id)
        return tuple(record for record, _ in found)

    async def shown_activities(self, *, patience: float = MISSED) -> tuple[ActivityRecord, ...]:
        """Return the records of :meth:`activities` as a person should see them.

        The record of a worker that has died says ``running`` until another worker begins the next attempt, which can
        take long if no slot is free. Here such an attempt is ``lost``, and ended when its worker was last heard of.

        :param patience: seconds for which this client must have missed the worker; 0 for a client that reads only once,
            such as a command. The client uses the list of live workers that it read last, for example with
            ``client.admin.workers()``. No clocks are compared.
        """
        gone = self._connection.members.gone
        return tuple(
            record.lost() if record.runs and gone(record.worker, patience=patience) else record
            for record in await self.activities()
        )

    async def lineage(self) -> tuple[Lineage, int]:
        """Return the data that activities have declared with ``inlet`` and ``outlet``.

        The completed activities of this instance count, and those of its completed children.

        :returns: the URIs, sorted; and how many children were not read, because there are more than 1,000.
        """
        return await lineage_of_family(self.hub.store, self.hub.names, self.id)

    async def logs(self) -> tuple[str, ...]:
        """Return the names of the logs of all attempts of the instance's activities. :meth:`log` reads a log."""
        return await logs.names_of(self.hub.store, self.hub.names, self.id)

    async def log(self, name: str, *, last: int | None = None) -> str:
        """Return the log of one attempt of an activity; "" if the attempt wrote nothing.

        :param name: the log's name from :meth:`logs`, ``ActivityRecord.log`` or :meth:`failed_attempt`.
        :param last: return only this number of lines from the end of the log; None: return the whole log.
        """
        return await logs.read(self.hub.store, self.hub.names, name, last=last)

    async def failed_attempt(self) -> FailedAttempt | None:
        """Return the last attempt of the activity whose failure made the instance fail.

        The activity can be one without activity records. If the failure of a child made the instance fail, the result
        is an attempt of the child's activity. None: the attempt stored no log, or the error did not come from an
        activity.
        """
        return await blame.failed_attempt(
            self.hub.store, self.hub.names, self.id, lambda one: self.other(one).get(payloads=False)
        )

    # operations that change the instance

    async def raise_event(self, name: str, data: Any = None) -> None:
        """Send an external event to the instance. Temporal calls such an event a signal.

        The orchestrator receives the event with ``ctx.wait_for_external_event(name)``. An event that arrives earlier is
        kept until the orchestrator waits for it.

        :param name: the event's name.
        :param data: the event's content: one value, which is written as JSON.
        :raises InstanceNotFound: if there is no such instance.
        :raises InvalidStateError: if the instance has ended.
        :raises InputError: for data that JSON cannot express, or a name that cannot be stored.
        """
        check_event(name, "raise_event")
        row = await self._existing()
        if row.status.is_final:
            raise refused(row, "it takes no events")
        text = codec.dumps(data, what=f"data of event {name!r}")
        # Before the first checkpoint of an instance, a .NET worker accepts only events that have the execution id.
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
            await self.hub.raise_event(event, target)

    async def terminate(
        self,
        reason: str = "",
        *,
        wait: bool = False,
        recurse: bool = True,
        grace: timedelta | None = None,
        timeout: timedelta | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> InstanceState:
        """Terminate the instance and its children. An instance that has already ended keeps its status.

        Without ``grace`` the instance ends at once, and its code does not clean up. With ``grace``, what the
        orchestrator has started is cancelled, and the await at which it waits raises :class:`TerminationRequested`. The
        orchestrator can then call its last activities. The instance ends when its code has ended, at the latest after
        this time. An instance that has not begun, or whose code cannot run, ends without a clean-up. A suspended
        instance is resumed. Of several requests with ``grace`` the first one counts, and a call without ``grace`` ends
        the instance at once.

        When an instance fails, its activities that have an activity record go on, so that a rewind can use their
        results. This call ends these activities, and with ``recurse`` also those of its children. If the instance was
        terminated without its children, a call with ``recurse`` ends them.

        An instance with a damaged history can be terminated too. The worker finds the instance's children and parent in
        the events that can still be read. Afterwards the history contains only the termination.

        :param reason: this text becomes the instance's output.
        :param wait: True: return only when the instance has ended, none of its activities can begin any more, and the
            workers have confirmed that none of its activities with an activity record runs. An activity without a
            record that has begun may still run; its worker ends it soon. If the instance waited for an activity, this
            takes two seconds more. With ``grace`` the call may see the end 10 seconds late, because it reads the
            instance more and more seldom. With ``recurse`` the call waits for all children in the same way.
        :param recurse: True: also terminate every child that has not ended, and the children of these children.
            Children that were started with the tag for fire and forget always continue. A child that somebody has
            rewound after it had told its parent of its failure continues, too.
        :param grace: time for the clean-up of the instance, and of each child; None: no clean-up. It is rounded up to
            whole seconds. It begins when a worker interrupts the orchestrator.
        :param timeout: the longest time that ``wait`` may take; None: no limit.
        :param progress: called with the id of each child before ``wait`` begins to wait for that child.
        :returns: the state before the termination; with ``wait`` the state after it.
        :raises InstanceNotFound: if there is no such instance.
        :raises InputError: if the reason cannot be stored, or ``grace`` is not above zero or longer than six days.
        :raises TimeoutError: if something still runs after ``timeout``. The termination itself continues.
        """
        check_text(reason, "the reason")
        grace_seconds(grace)
        row = await self._existing()
        return await terminate(
            self, row, reason, wait=wait, recurse=recurse, grace=grace, timeout=timeout, progress=progress
        )

    async def suspend(
        self,
        reason: str = "",
        *,
        by: str | None = None,
        recurse: bool = False,
        timeout: timedelta | None = SUSPENDED_WITHIN,
    ) -> InstanceState:
        """Suspend the instance: running activities continue, but nothing else begins before :meth:`resume`.

        The orchestrator does not run. Activities that it has called and that have not begun do not begin: their
        messages go back to the queue. After a resume these activities begin within 30 seconds. Child orchestrations go
        on, as in DurableTask, unless ``recurse`` is set.

        An instance that has not begun yet first runs its orchestrator until it waits (its first episode), and is then
        suspended. The actions of this episode, for example calls of activities, are executed only after the resume,
        unless the orchestrator ends in this episode.

        :param reason: this text is the instance's output until the instance ends, as in DurableTask.
        :param by: the name of the person or program that suspends the instance, to show to people. None: ``user@host``
            of this process.
        :param recurse: True: also suspend every child that has not ended, and the children of these children, except
            those that were started with the tag for fire and forget. The call returns when all of them are suspended.
            What cleans up after a terminate, or was cancelled by its parent, goes on to its end.
        :param timeout: with ``recurse``, the longest time that the call may take; None: no limit.
        :returns: the state before the suspension. A suspended instance stays so, with its reason and its time.
        :raises InstanceNotFound: if there is no such instance.
        :raises InvalidStateError: if the instance has ended, cleans up after a terminate, or was cancelled by its
            parent.
        :raises InputError: if the reason or ``by`` cannot be stored.
        :raises TimeoutError: with ``recurse``, if an instance is not suspended after ``timeout``. What was requested
            until then stays requested. The call can be repeated.
        """
        check_text(reason, "the reason")
        suspended_by = f"{this_user()}@{gethostname()}" if by is None else by
        check_column(suspended_by, "by")
        event = ExecutionSuspended(
            timestamp=self.hub.clock.utc_now(),
            reason=reason,
            taskhub_by=suspended_by,
        )
        row = await self._existing()
        if row.status is Status.RUNNING:
            instance = OrchestrationInstance(instance_id=self.id, execution_id=row.execution_id)
            request = await request_to_end(self.hub.store, self.hub.names, instance)
            if request is not None:
                raise refused_at_its_end(row, request)
        state = await _send_suspension(self.hub, row, event, "suspended")

        async def suspend(child: InstanceHandle) -> None:
            with suppress(InstanceNotFound, InvalidStateError):  # it has ended, is about to, or was purged
                await child.suspend(reason, by=suspended_by)

        if recurse:
            await suspend_children(self, suspend, timeout)
        return state

    async def resume(self, reason: str = "", *, recurse: bool = False) -> InstanceState:
        """Let a suspended instance continue with all events that arrived during the suspension.

        The call does not change an instance that is not suspended.

        :param reason: this text is the instance's output until the instance ends, as in DurableTask.
        :param recurse: True: also resume every child that has not ended, and the children of these children, whoever
            suspended them.
        :returns: the state before the instance continues.
        :raises InstanceNotFound: if there is no such instance.
        :raises InvalidStateError: if the instance has ended.
        :raises InputError: if the reason cannot be stored.
        """
        check_text(reason, "the reason")
        event = ExecutionResumed(timestamp=self.hub.clock.utc_now(), reason=reason)
        state = await _send_suspension(self.hub, await self._existing(), event, "resumed")

        async def resume(child: InstanceHandle) -> None:
            with suppress(InstanceNotFound, InvalidStateError):  # it has ended, or was purged
                await child.resume(reason)

        if recurse:
            await resume_children(self, resume)
        return state

    async def rewind(self, reason: str = "", *, terminated: bool = False) -> InstanceState:
        """Let a failed instance continue from before its failure: the activities and children that failed run again.

        Activities and children that completed do not run again. Children that failed are rewound too. The orchestrator
        may have caught a failure, done other work (for example a cleanup), and raised the failure again. The rewind
        then also takes back the other work, and the orchestrator waits again for the activity that failed. The rewind
        finds that failure in the causes of the instance's error. If you raise an error of your own, therefore write
        ``raise MyError(...) from failure``.

        A failure that the orchestrator caught stays as it is if the orchestrator took another action between that
        failure and the failure that ended the instance. If it took no action, the activity that failed runs again,
        because the history does not show whether the failure was caught. A rewind that was interrupted can be called
        again.

        :param reason: this text is stored in the history.
        :param terminated: True: an instance that was terminated goes on too. It makes its unanswered calls again, and
            its terminated children go on. DurableTask cannot do this.
        :returns: the state. Its status is Pending until the instance ends, as in DurableTask.
        :raises InstanceNotFound: if there is no such instance.
        :raises InvalidStateError: if the instance has not failed (or, with ``terminated``, was not terminated).
        :raises InputError: if the reason cannot be stored.
        :raises Conflict: if the last checkpoint of a child that has failed is still under way after 30 seconds, if
            something of a terminated instance still runs after a minute, or if other clients change the instance again
            and again. Call the rewind again later.
        """
        check_column(reason, "the reason")
        check_instance_id(self.id)
        ended = (Status.FAILED, Status.TERMINATED) if terminated else (Status.FAILED,)
        released = await Watches(self._connection).release_ended(self.id, ended)
        if terminated:
            await self._end_of_termination()
        await rewind(self.hub, self.id, reason, terminated=terminated, released=released)
        return await self._existing()

    async def runs_on(self) -> bool:
        """Return True if the instance has not ended, if activities of a failed family still run, or if a child that was
        terminated with its parent still cleans up.

        :raises InstanceNotFound: if there is no such instance.
        """
        status = (await self._existing()).status
        if status in (Status.FAILED, Status.TERMINATED):
            return await something_runs(self, status)
        return not status.is_final

    async def _end_of_termination(self) -> None:
        """Wait until nothing of a terminated instance runs. Its children may still be about to end, and their answers
        would let the rewound instance fail again. There is no wait for an instance that was terminated with
        grace: the rewind refuses it."""
        row = await self._existing()
        if row.status is Status.TERMINATED and not await was_asked_to_clean_up(self):
            deadline = Deadline(self.hub.clock, TERMINATION_ENDS)
            try:
                await nothing_runs(self, deadline, lambda child: None, recurse=True)
            except TimeoutError as error:
                raise Conflict(f"{error}: rewind it again later") from error

    async def restart(self, *, new_id: bool = False) -> InstanceState:
        """Start the instance again with the orchestrator, version, input and tags of its last start.

        :param new_id: True: start a new instance with a new random id, whatever the state of this instance is. No
            Airflow task waits for it, so it does not get the tags ``taskhub.owner`` and ``taskhub.watch``. False:
            keep the id; this instance must have ended. A restart that was interrupted can be called again.
        :returns: the state of the new instance.
        :raises InstanceNotFound: if there is no such instance.
        :raises InstanceExists: if the instance has not ended and ``new_id`` is False.
        :raises IntakeFull: if too many messages wait in the hub. A restart does not wait for room.
            The instance is unchanged.
        """
        row = await self._existing(payloads=True)
        into, policy, tags = self.id, StartPolicy.REPLACE_FINISHED, row.tags
        if new_id:
            into, policy = uuid4().hex, StartPolicy.REFUSE
            tags = {name: value for name, value in (tags or {}).items() if name not in (OWNER_TAG, WATCH_TAG)}
        elif row.status is Status.PENDING and row.restarts and row.completed is None:
            policy = StartPolicy.ATTACH  # puts the start message again: the first restart was perhaps interrupted
        elif not row.status.is_final:
            error = refused(
                row, "it has not ended, so it cannot be restarted. To start another one with its input, use a new id"
            )
            raise InstanceExists(str(error))

        async def release() -> None:
            if not new_id:
                await Watches(self._connection).release_ended(self.id, FINAL)

        starter = Starter(self._connection)
        never = timedelta(0)
        return await starter.begin(row.name, row.input, into, row.version, tags, None, policy, never, before=release)

    async def purge(self, *, recurse: bool = False) -> bool:
        """Delete an instance that has ended, with its history, payloads, activity records and logs.

        :param recurse: True: delete its children too, the children of these, and so on, before the instance itself.
            They are found even if the instance was purged before. False: its children stay.
        :returns: False if nothing was deleted, because there was no such instance.
        :raises InvalidStateError: if the instance, or with ``recurse`` one of its descendants, has not ended. Then no
            instance is deleted. But if another client rewinds or restarts one of them at the same time, some may be.
        """
        if not recurse:
            return await purge_instance(self)
        check_instance_id(self.id)
        row = await self.get(payloads=False)
        found = await descendants(self.hub, self.id, row.root if row is not None else None)
        for one in (*(() if row is None else (row,)), *found):
            if not one.status.is_final:
                of = "" if one is row else f"it belongs to {self.id!r}: "
                raise refused(one, f"{of}terminate it first, then purge it")
        purged = await gather_bounded(
            lambda one: purge_instance(self.other(one.instance_id)), found, limit=PURGED_AT_ONCE
        )
        return await purge_instance(self) or any(purged)


async def _send_suspension(
    hub: Hub, row: InstanceState, event: ExecutionSuspended | ExecutionResumed, what: str
) -> InstanceState:
    """Send a suspend or resume message to an instance, for the run that its row shows.

    :param what: "suspended" or "resumed", for the error text.
    """
    if row.status.is_final:
        raise refused(row, f"it cannot be {what}")
    named = replace(event, taskhub_execution_id=row.execution_id)
    await hub.send(hub.message_to(named, OrchestrationInstance(instance_id=row.instance_id)))
    return row
