"""The one trigger: waits for an instance in the triggerer, for operators and sensors alike.

Never ends by an error of the hub: an exception in a trigger fails its task. Cancels the
instance only when a user has really killed the task (:meth:`TaskHubTrigger.on_kill`) or at the deadline, never on a
shutdown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION, TaskHubHook, open_client, served_at
from airflow_provider_taskhub.retries import Retries, retry
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.triggers.airflow_tasks import SupervisorTasks, index_of, key, state_of, why_nobody_waits
from airflow_provider_taskhub.triggers.outcome import EXECUTION_TIMEOUT, OVERDUE, terminate_owned

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.model import InstanceState
    from airflow_provider_taskhub.settings import Settings
    from airflow_provider_taskhub.triggers.sweep import Sweep
    from airflow_provider_taskhub.triggers.task_log import Presence, Progress, TaskLog, Waits
    from airflow_provider_taskhub.triggers.watcher import WatchedInstance

__all__ = ["TaskHubTrigger"]

CONFIRM_DEADLINE = 60.0
"""Seconds that a termination waits until nothing of the instance runs."""
_KILL_TRIES = 6
_RETRIES = Retries(after=(Exception,), tries=_KILL_TRIES, first=1.0)
"""Requests to Airflow and to the hub at the end of a wait."""
_ENDLESS = Retries(after=(Exception,), first=1.0, longest=30.0)
"""Reading the connection: until it can be read, or until :data:`_KILL_TRIES` tries after the deadline."""
_EMBEDDED_INTERVAL, _AZURE_INTERVAL = timedelta(seconds=1), timedelta(seconds=3)
_LOOK = 5.0
"""Seconds between two looks at deadlines when nothing changes."""
SETTLE = 30.0
"""Seconds from its start before which a trigger does not hand its task back to a worker. The process that deferred the
task may not have ended, or the scheduler may not have heard of it: Airflow fails a task that is resumed before that
(apache/airflow#67287, #71580, #72716; 7 s and 27 s after the deferral have been reported). Nothing that a trigger can
ask says when it is safe. A task that ends in the triggerer does not wait for this (:mod:`.ending`)."""
_KILLS = Supervisor()
"""Detached kills: Airflow cancels ``on_kill`` again every second."""


class TaskHubTrigger(BaseTrigger):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Waits until an instance has ended, or has reached one of some statuses.

    Fires one event. Where the task ends here, that is Airflow's ``TaskSuccessEvent``; else it is for the operator:
    ``{"reason", "instance_id", "owner", "status", "message"}`` with reason ``reached``, ``timeout``, ``no_worker``,
    ``missing`` or ``unusable``. Receivers compare id and owner: Airflow on SQLite gives a trigger's number again once
    it is deleted, and then a trigger that is just being cancelled wakes the wrong task.

    :param taskhub_conn_id: the hub. :param instance_id: what to wait for.
    :param orchestrator: its name; with it, waiting without a worker that knows it ends after ``no_worker_timeout``.
    :param owner: value of the tag ``taskhub.owner`` of the start that this trigger may cancel; None: it never cancels.
    :param statuses: names of statuses to wait for besides final ones; a final one always ends the wait.
    :param deadline: ISO 8601 time at which to terminate (with an owner) and give up.
    :param no_worker_timeout: seconds.
    :param may_be_missing: an instance that does not exist yet is waited for (sensors) instead of reported.
    :param end_from_trigger: end the task here when the instance has completed; nothing else needs a worker.
    :param push_output: then push the output as the task's XCom.
    """

    clock: Clock = SYSTEM_CLOCK

    def __init__(
        self,
        *,
        instance_id: str,
        taskhub_conn_id: str = DEFAULT_CONNECTION,
        orchestrator: str = "",
        owner: str | None = None,
        statuses: Sequence[str] = (),
        deadline: str | None = None,
        no_worker_timeout: float | None = None,
        may_be_missing: bool = False,
        end_from_trigger: bool = False,
        push_output: bool = True,
        **_of_other_versions: Any,
    ) -> None:
        super().__init__()
        self.instance_id = instance_id
        self.taskhub_conn_id = taskhub_conn_id
        self.orchestrator = orchestrator
        self.owner = owner
        self.statuses = list(statuses)
        self.deadline = deadline
        self.no_worker_timeout = no_worker_timeout
        self.may_be_missing = may_be_missing
        self.end_from_trigger = end_from_trigger
        self.push_output = push_output
        self._completed: InstanceState | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where to find this class, and plain values to make it again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "instance_id": self.instance_id,
            "taskhub_conn_id": self.taskhub_conn_id,
            "orchestrator": self.orchestrator,
            "owner": self.owner,
            "statuses": self.statuses,
            "deadline": self.deadline,
            "no_worker_timeout": self.no_worker_timeout,
            "may_be_missing": self.may_be_missing,
            "end_from_trigger": self.end_from_trigger,
            "push_output": self.push_output,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait; log what happens; fire once, not before the executor has had time to report the deferral."""
        began = self.clock.monotonic()
        event = await self._outcome()
        if message := event.payload["message"]:
            self.log.error(message)
        if self.trigger_id is not None:  # dag.test() has no executor, and gives none
            if await self._ends_here():
                self.log.info("the task ends in the triggerer: nothing in it needs a worker")
                yield TaskSuccessEvent()
                return
            left = began + SETTLE - self.clock.monotonic()
            if left >= 1:
                self.log.info(
                    "the wait for %s has ended; the task goes on in a worker in %.0f s, "
                    "because Airflow may fail a task that is resumed sooner",
                    self.instance_id,
                    left,
                )
            await self.clock.sleep(max(0.0, left))
        yield event

    async def on_kill(self) -> None:
        """A user has killed the task, or so Airflow says: look again, then terminate what this trigger owns."""
        if self.owner is None:
            return
        await asyncio.shield(_KILLS.spawn(self._kill(), name=f"terminate {self.instance_id}"))

    async def _ends_here(self) -> bool:
        from airflow_provider_taskhub.triggers.task_end import end

        if self._completed is None or self.task_instance is None:
            return False
        try:
            return await end(self.task_instance, self._completed, owner=self.owner, push=self.push_output)
        except Exception as error:  # an error of Airflow: a worker ends the task, which takes longer
            self.log.warning(
                "the triggerer cannot end the task, so a worker ends it: %s: %s", type(error).__name__, error
            )
            return False

    async def _outcome(self) -> TriggerEvent:
        try:
            settings = await self._settings()
        except ConfigurationError as error:
            return self._event("unusable", None, str(error))
        return await self._watch(settings) if settings is not None else await self._timed_out(None)

    async def _settings(self) -> Settings | None:
        """Settings of the connection, asked for until Airflow answers; None some tries after the deadline.

        At least one try: a trigger that starts after its deadline (no triggerer ran) must terminate the instance too.
        """
        late = 0

        def is_final(error: Exception) -> bool:
            nonlocal late
            late += self._late()
            return isinstance(error, ConfigurationError) or late >= _KILL_TRIES

        def failed(error: Exception, failures: int) -> None:
            self.log.warning("cannot read connection %s, trying again: %s", self.taskhub_conn_id, error)

        hook = TaskHubHook(self.taskhub_conn_id)
        try:
            return await retry(hook.asettings, replace(_ENDLESS, unless=is_final), self.clock, failed=failed)
        except ConfigurationError:
            raise
        except Exception:
            return None

    async def _watch(self, settings: Settings) -> TriggerEvent:
        from airflow_provider_taskhub.triggers.task_log import Presence, Progress, TaskLog, Waits
        from airflow_provider_taskhub.triggers.watcher import news, watcher_of

        self.log.info("waiting for %s in hub %s (%s)", self.instance_id, settings.hub, served_at(settings))
        place = settings.hub, settings.connection.get_secret_value() if settings.connection else None
        interval = _EMBEDDED_INTERVAL if settings.embedded else _AZURE_INTERVAL
        watcher = watcher_of(
            place, lambda: open_client(settings), interval=interval, clock=self.clock, sweep=self._sweep
        )
        journal, waits, progress = TaskLog(), Waits(), Progress()
        presence, absence = Presence(), _Absence(self, settings)
        with watcher.waiting(self.instance_id) as wait:
            while not self._late():
                await news(wait, patience=self._patience())
                self._tell(wait, journal, waits, progress, presence, absence)
                if (event := self._verdict(wait, absence)) is not None:
                    if self.end_from_trigger and event.payload["status"] == "Completed":
                        self._completed = await watcher.ended(self.instance_id)
                    return event
        return await self._timed_out(settings)

    def _sweep(self) -> Sweep | None:
        """For the watcher of a triggerer; ``dag.test()`` runs the only task there is."""
        if self.trigger_id is None:
            return None
        from airflow_provider_taskhub.hooks.deployment import deployment
        from airflow_provider_taskhub.triggers.sweep import Sweep

        return Sweep(SupervisorTasks(), deployment=deployment, clock=self.clock)

    def _tell(
        self,
        seen: WatchedInstance,
        journal: TaskLog,
        waits: Waits,
        progress: Progress,
        presence: Presence,
        absence: _Absence,
    ) -> None:
        for line in absence.lines(seen):
            self.log.info(line)
        if self.may_be_missing and seen.looked:
            for line in presence.lines(self.instance_id, there=seen.state is not None):
                self.log.info(line)
        if seen.state is None:
            return
        for line in journal.lines(seen.state, seen.records):
            self.log.info(line)
        if not seen.state.status.is_final:
            for line in waits.lines(seen.state.name or seen.instance_id, seen.whys):
                self.log.info(line)
            for line in progress.lines(seen.state, seen.records, seen.whys, self.clock.monotonic()):
                self.log.info(line)

    def _verdict(self, seen: WatchedInstance, absence: _Absence) -> TriggerEvent | None:
        state = seen.state
        if state is not None and (state.status.is_final or state.status in self.statuses):
            return self._event("reached", state, "")
        if seen.looked and state is None and not self.may_be_missing:
            return self._event("missing", None, f"instance {self.instance_id!r} is not in the hub any more")
        if (text := absence.over(seen)) is not None:
            return self._event("no_worker", state, text)
        return None

    async def _timed_out(self, settings: Settings | None) -> TriggerEvent:
        """The deadline has passed: end what we own, see it ended, report."""
        message = OVERDUE
        if self.owner is not None and settings is None:
            message += f"; the connection cannot be read: {self.instance_id} is not terminated"
        elif self.owner is not None and settings is not None:
            self.log.warning("%s: terminating %s", message, self.instance_id)
            message += f"; {await self._terminate(settings, EXECUTION_TIMEOUT)}"
        return self._event("timeout", None, message)

    async def _terminate(self, settings: Settings, reason: str) -> str:
        """Terminate if it is still ours and live; says how that went. Tries again through errors of the hub."""
        said = ""

        async def terminate() -> str:
            try:
                async with asyncio.timeout(CONFIRM_DEADLINE), open_client(settings) as client:
                    return await terminate_owned(client, self.instance_id, self.owner, reason)
            except TimeoutError:
                return f"asked to end, but it has not ended within {CONFIRM_DEADLINE:g} s"

        def failed(error: Exception, failures: int) -> None:
            nonlocal said
            said = f"cannot terminate: {type(error).__name__}: {error}"
            self.log.warning("%s; trying again", said)

        try:
            return await retry(terminate, _RETRIES, self.clock, failed=failed)
        except Exception:
            return said

    async def _kill(self) -> None:
        with suppress(asyncio.CancelledError):  # at the end of the process: the next attempt ends older generations
            killed = await self._killed()
            if killed is None:
                self.log.info("the task waits in another triggerer, or continues: the instance keeps running")
                return
            settings = await self._settings()
            if settings is not None:
                self.log.warning("%s: terminating %s", killed, self.instance_id)
                self.log.info(await self._terminate(settings, f"from Airflow: {killed}"))

    async def _killed(self) -> str | None:
        """What a user did to the task; None if a try of it waits or may go on: then it was not killed.

        Airflow also calls ``on_kill`` of a trigger that it has moved, or whose task is just being resumed.
        A task that runs, or is about to, either goes on with this instance or ends it itself.
        """
        ti = self.task_instance
        if ti is None:
            return "task killed"

        def failed(error: Exception, failures: int) -> None:
            self.log.warning("cannot read the task's state, trying again: %s", error)

        try:
            states = await retry(lambda: state_of(ti), _RETRIES, self.clock, failed=failed)
        except Exception:
            self.log.error("the task's state cannot be read: instance %s keeps running", self.instance_id)
            return None
        return why_nobody_waits(states, ti.run_id, key(ti.task_id, index_of(ti)), killed=True)

    def _late(self) -> bool:
        return self.deadline is not None and self.clock.utc_now() >= Timestamp.parse(self.deadline)

    def _patience(self) -> float:
        if self.deadline is None:
            return _LOOK
        left = (Timestamp.parse(self.deadline) - self.clock.utc_now()).total_seconds()
        return min(_LOOK, max(0.1, left))

    def _event(self, reason: str, state: InstanceState | None, message: str) -> TriggerEvent:
        status = str(state.status) if state is not None else None
        waited = {"instance_id": self.instance_id, "owner": self.owner}
        return TriggerEvent({"reason": reason, **waited, "status": status, "message": message})


class _Absence:
    """How long no live worker could run what the instance needs, and how long the hub could not be used at all.

    No worker knows its orchestrator, or an activity that it awaits; or none has its version; or the worker that owns
    its partition cannot run it.

    Measured on this process's monotonic clock, from when the wait began here.
    """

    def __init__(self, trigger: TaskHubTrigger, settings: Settings) -> None:
        self._clock = trigger.clock
        self._orchestrator = trigger.orchestrator
        limit = trigger.no_worker_timeout
        self._limit = settings.no_worker_timeout.total_seconds() if limit is None else limit
        self._well = self._known = self._clock.monotonic()
        self._said: str | None = None
        self._trouble, self._what = "", "the hub"

    def lines(self, seen: WatchedInstance) -> Iterator[str]:
        """What is new about workers and the hub's health."""
        from airflow_provider_taskhub.triggers.task_log import served_by

        trouble = f"{type(seen.trouble).__name__}: {seen.trouble}" if seen.trouble else ""
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble:
                self._what = f"instance {seen.instance_id}" if seen.alone else "the hub"
                yield f"{self._what} cannot be read, trying again: {trouble}"
            else:
                yield f"{self._what} can be read again"
        if seen.members is None or not self._orchestrator:
            return
        said = served_by(seen.members, self._orchestrator)
        if said != self._said:
            self._said = said
            yield said

    def over(self, seen: WatchedInstance) -> str | None:
        """Why to give up, once the time is over."""
        from airflow_provider_taskhub.hub.model import ORCHESTRATOR, Need
        from airflow_provider_taskhub.hub.partitions.capabilities import able
        from airflow_provider_taskhub.triggers.task_log import lacking, nobody

        now = self._clock.monotonic()
        if not isinstance(seen.trouble, ConfigurationError):
            self._well = now
        elif now - self._well >= self._limit:
            return f"the hub cannot be used: {seen.trouble}"
        if seen.members is None or seen.trouble or not self._orchestrator:
            self._known = now
            return None
        lacks = lacking(seen.whys, self._limit)
        known = able(seen.members, Need(ORCHESTRATOR, self._orchestrator))
        if known and lacks is None:
            self._known = now
        elif now - self._known >= self._limit:
            if known and lacks is not None:
                return lacks
            return nobody(seen.members, self._orchestrator, self._limit)
        return None
