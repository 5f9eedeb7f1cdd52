"""The trigger that starts the instance of a task, so that the task needs no Airflow worker and no slot.

The scheduler puts such a task into the triggerer at once (Airflow's ``start_from_trigger``). The trigger does there
what ``execute()`` of the operator does in a worker, and then waits with :class:`.taskhub.TaskHubTrigger`.

Only the first try of a task starts here. A trigger cannot read the task's ``max_tries`` or its ``task_state_store``, so
it cannot tell a retry from a clear: a retry continues with the instance of the earlier try, and a clear may
need a new one. A worker therefore starts each later try. It also starts a task for which anything goes wrong here, so
that the user sees the same error on both ways.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_provider_taskhub.errors import ConfigurationError, InputError, IntakeFull
from airflow_provider_taskhub.hooks.identity import TaskIdentity
from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION, naming
from airflow_provider_taskhub.intake_limit import waiting_for_room
from airflow_provider_taskhub.no_input import NO_INPUT, restored, storable
from airflow_provider_taskhub.retries import Retries, retry
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.tags import OWNER_TAG
from airflow_provider_taskhub.triggers import instance_limits
from airflow_provider_taskhub.triggers.plain_types import check
from airflow_provider_taskhub.triggers.reactions import REACTION_TEXTS, StartDecision
from airflow_provider_taskhub.triggers.request import request_of
from airflow_provider_taskhub.triggers.shared_client import starting_client
from airflow_provider_taskhub.triggers.shared_requests import shared_settings
from airflow_provider_taskhub.triggers.start_or_attach import Launched, StartRequest, Taken, launch, recall
from airflow_provider_taskhub.triggers.starting import StartingTrigger
from airflow_provider_taskhub.triggers.task_end import (
    OWNER_KEY,
    STARTED,
    place_of,
    still_waits,
    waits_for,
)
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client

__all__ = ["TaskHubStartTrigger"]

_OTHERS = (Taken, ConfigurationError, IntakeFull)
"""Errors that another try a second later does not change."""
_FOR_ROOM = timedelta(hours=1)
"""How long a start waits here for room in a hub that takes no new start and lets starts wait: longer than elsewhere,
because it waits without a worker."""
_RETRIES = Retries(after=(Exception,), tries=4, first=1.0, unless=lambda error: isinstance(error, _OTHERS))
"""How a start is tried again. After the last try a worker starts the instance, and reports the error if it remains."""
_STARTS = Supervisor()
"""Runs the starts and the terminations after a kill as tasks of their own. Airflow may cancel a trigger in the middle
of a start, and the trigger must then know the instance that it has to terminate."""


class TaskHubStartTrigger(StartingTrigger):
    """Starts the instance of a task, waits for its end, and ends the task.

    Airflow renders the Jinja templates in the arguments that are templated in the operator too. The trigger fires the
    same events as :class:`.taskhub.TaskHubTrigger`, and two more: with the reason ``start`` it hands the start of the
    instance over to a worker, and with ``started`` the end of a task that does not wait for its instance.

    :param orchestrator: the orchestrator's name, templated.
    :param input: the orchestrator's input, templated; ``NO_INPUT``: none.
    :param taskhub_conn_id: the Airflow connection that names the hub, templated.
    :param instance_id: the instance id that the user chose, templated; None: derive the id from the task.
    :param version: the version of the instance, templated; "": any.
    :param tags: the user's tags, templated.
    :param no_worker_timeout: seconds to wait while no worker can run the instance; None: the value of the settings.
    :param wait_for_completion: False: the task ends when the instance is started, and its output is the instance id.
    :param start_at: the instance does not begin before this time, in ISO 8601, templated; None: it begins at once.
    :param input_types: the types that parts of the input must have, as :func:`.plain_types.check` takes them.
    :param limit: the limit of instances, as :func:`.instance_limits.stored` returns it.
    :param terminate_grace: seconds for the clean-up of the instance when Airflow ends it; None: no clean-up.
    :param priority: the priority of the task, before it is known whether its run belongs to a backfill.
    :param of_base: the arguments of :class:`.starting.StartingTrigger`.
    """

    _later_try = "only a worker can tell a retry from a clear"

    def __init__(
        self,
        *,
        orchestrator: str,
        input: Any = NO_INPUT,
        taskhub_conn_id: str = DEFAULT_CONNECTION,
        instance_id: str | None = None,
        version: str = "",
        tags: Mapping[str, str] | None = None,
        no_worker_timeout: float | None = None,
        wait_for_completion: bool = True,
        start_at: str | None = None,
        input_types: Mapping[str, Any] = MappingProxyType({}),
        limit: Sequence[Any] | None = None,
        priority: int = 0,
        terminate_grace: float | None = None,
        **of_base: Any,
    ) -> None:
        super().__init__(**of_base)
        self.orchestrator = orchestrator
        self.input = restored(input)
        self.taskhub_conn_id = taskhub_conn_id
        self.instance_id = instance_id
        self.version = version
        self.tags = tags
        self.no_worker_timeout = no_worker_timeout
        self.wait_for_completion = wait_for_completion
        self.start_at = start_at
        self.input_types = dict(input_types)
        self.instance_limit, self.instance_priority = instance_limits.restored(limit), priority
        self.terminate_grace = terminate_grace
        self._start: asyncio.Task[Launched] | None = None

    def _arguments(self) -> dict[str, Any]:
        return {
            "orchestrator": self.orchestrator,
            "input": storable(self.input),
            "taskhub_conn_id": self.taskhub_conn_id,
            "instance_id": self.instance_id,
            "version": self.version,
            "tags": self.tags,
            "no_worker_timeout": self.no_worker_timeout,
            "wait_for_completion": self.wait_for_completion,
            "start_at": self.start_at,
            "input_types": self.input_types,
            "limit": instance_limits.stored(self.instance_limit),
            "priority": self.instance_priority,
            "terminate_grace": self.terminate_grace,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Start the instance, wait for its end, write the task's log, and fire one event."""
        why, waited = await self._needs_worker() or self._wrong_input(), False
        if why is None:
            try:
                launched = await self._started()
            except IntakeFull as error:
                why, waited = str(error), error.waits
            except InputError as error:
                why = str(error)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
        if why is not None:
            yield self._left_to_worker(why, waited=waited)
            return
        told = await self._tell(launched)
        if not self.wait_for_completion:
            yield await self._end(launched)
            return
        waiting = self._waiting(launched)
        if told and not self._owner_named:
            waiting.task_end.successor = TaskIdentity.successor(launched.instance_id)
        async for event in waiting.run():
            yield event

    def _wrong_input(self) -> str | None:
        """Return the error of an input that does not fit its types. A worker reports the error."""
        try:
            check(self.input, self.input_types)
        except InputError as error:
            return str(error)
        return None

    async def on_kill(self) -> None:
        """Terminate the instance after a user has killed the task. Airflow calls this method.

        If the start is not over yet, the method first waits for its end. A task that does not wait for its instance
        terminates it only in this case.
        """
        if self._start is not None and (self.wait_for_completion or not self._start.done()):
            await asyncio.shield(_STARTS.spawn(self._kill(self._start), name="terminate after a kill"))

    async def _started(self) -> Launched:
        """Start the instance, or wait for room in the hub. The wait is not part of the start, so a kill ends it."""

        async def once() -> Launched:
            self._start = _STARTS.spawn(self._launch(), name="start an instance", awaited=True)
            return await asyncio.shield(self._start)

        def waits(error: Exception, failures: int) -> None:
            if failures % 20 == 1:
                self.log.info("the triggerer waits until the hub takes the start: %s", error)

        return await retry(once, waiting_for_room(_FOR_ROOM), self.clock, failed=waits)

    async def _launch(self) -> Launched:
        def failed(error: Exception, failures: int) -> None:
            self.log.warning("cannot start the instance, trying again: %s: %s", type(error).__name__, error)

        request = self._request()
        return await retry(lambda: self._launch_once(request), _RETRIES, self.clock, failed=failed)

    async def _launch_once(self, request: StartRequest) -> Launched:
        settings = await shared_settings(self.taskhub_conn_id)
        with naming(self.taskhub_conn_id):
            async with starting_client(settings, create=True) as client:
                return await self._start_or_attach(client, request)

    async def _start_or_attach(self, client: Client, request: StartRequest) -> Launched:
        """Start the instance, or attach to the instance that this try has started in another triggerer.

        If that instance has ended, its result is the result of the try, also if it is a failure. If another task or
        program has replaced it since, a worker ends the task with an error, and nothing is started again.
        """
        counter, absent = await recall(client, request)
        instance_id = request.instance_id or request.task.instance_id(counter.generation)
        state = None if absent else await client.get(instance_id, payloads=False)
        owner = request.task.owner
        if state is not None:
            mine = (state.tags or {}).get(OWNER_TAG) == owner
            if state.status.is_final if mine else await waits_for(self.task_instance, instance_id, self._owners(owner)):
                return Launched(instance_id=instance_id, owner=owner, reaction=StartDecision.RETURN, notes=())
        return await launch(client, request, counter=counter, remember=lambda _: None, absent=absent)

    def _request(self) -> StartRequest:
        ti = self.task_instance
        task = TaskIdentity(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=place_of(ti)["map_index"],
            try_number=ti.try_number,
            max_tries=ti.task.retries,  # true in a first try; Airflow gives no other value to a trigger
            owner=str(ti.id),
        )
        request = request_of(self, self.input, task, self._context or {})
        return replace(request, intake_timeout=timedelta(0))

    async def _tell(self, launched: Launched) -> bool:
        """Write what was started into the task's log and into its XComs. Return whether Airflow has the XComs."""
        for note in launched.notes:
            self.log.warning(note)
        self.log.info("instance %s %s, by the triggerer", launched.instance_id, REACTION_TEXTS[launched.reaction])
        owner = {OWNER_KEY: launched.owner} if self._owner_named else {}
        return await self._push(launched.instance_id, **owner)

    def _waiting(self, launched: Launched) -> TaskHubTrigger:
        """Return the trigger that waits for the instance, with the task of this trigger."""
        waiting = TaskHubTrigger(
            instance_id=launched.instance_id,
            taskhub_conn_id=self.taskhub_conn_id,
            orchestrator=self.orchestrator,
            owner=launched.owner,
            deadline=self.timeout_after.isoformat() if self.timeout_after is not None else None,
            no_worker_timeout=self.no_worker_timeout,
            end_from_trigger=self.end_from_trigger,
            push_output=self.push_output,
            fail_from_trigger=self.fail_from_trigger,
            deferred_by_worker=False,
        )
        return self._handed_over(waiting, owner_named=self._owner_named)

    @property
    def _owner_named(self) -> bool:
        """Whether the owner of the instance is in an XCom, beside the instance id.

        An id that is derived from the task names its generation, so the id is enough. Each request to Airflow costs
        the triggerer more than the start itself.
        """
        return bool(self.instance_id)

    def _owners(self, owner: str) -> list[str | None]:
        return [owner] if self._owner_named else []

    async def _end(self, launched: Launched) -> TriggerEvent:
        """Return the event that ends a task that does not wait for its instance."""
        from airflow.sdk.execution_time.xcom import XCom

        ti, instance_id = self.task_instance, launched.instance_id
        try:
            if self.end_from_trigger and await still_waits(ti, instance_id, self._owners(launched.owner)):
                if self.push_output:
                    await XCom.aset(key=XCom.XCOM_RETURN_KEY, value=instance_id, **place_of(ti))
                self.log.info("the task ends in the triggerer: nothing in the task needs a worker")
                return TaskSuccessEvent()
        except Exception as error:  # an error of Airflow
            self.log.warning("the triggerer cannot end the task: %s: %s", type(error).__name__, error)
        self.log.info("a worker ends the task")
        return self._event(STARTED, instance_id, "")

    async def _kill(self, start: asyncio.Task[Launched]) -> None:
        with suppress(Exception):  # nothing was started, or the sweep finds it by its watch row
            await self._waiting(await start).on_kill()
