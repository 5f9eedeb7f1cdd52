"""Operators for instances that have ended: rewind a failed one, purge what is no longer needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_taskhub.errors import InputError, InvalidStateError
from airflow_provider_taskhub.hooks import identity
from airflow_provider_taskhub.hooks.at_parse import check_choice, check_flag, check_text, is_template
from airflow_provider_taskhub.hooks.deployment import deployment
from airflow_provider_taskhub.hooks.outputs import returned
from airflow_provider_taskhub.operators.acting import (
    ActingOperator,
    NotYet,
    Wait,
    WaitingOperator,
    source,
)
from airflow_provider_taskhub.tags import OWNER_TAG
from airflow_provider_taskhub.triggers.grace import grace_of, seconds_of
from airflow_provider_taskhub.triggers.outcome import log_failure, reason, retryable
from airflow_provider_taskhub.triggers.worker_reasons import needs_whole_output, needs_worker

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.model import InstanceState
    from airflow_provider_taskhub.hub.watches import Watch

__all__ = ["TaskHubPurgeOperator", "TaskHubRewindOperator"]

FINAL = ("Completed", "Failed", "Terminated", "Canceled")
"""Statuses of instances that can be purged. The engine has them too, but a DAG's parse must not load the engine."""

_TRIGGERER_ENDS = timedelta(seconds=10)
"""How long the Airflow worker waits for the end of the instance if the triggerer can end the task."""


class TaskHubRewindOperator(WaitingOperator):
    """Lets a failed instance continue from before its failure, and waits until it has ended.

    Only the activities and children that failed run again. A repeat looks first: an instance that has completed
    meanwhile gives its output, one that still runs is waited for, one that has failed again is rewound again. An
    instance that was terminated fails the task.

    An instance that an Airflow task has started belongs to this task after this task has rewound it: if a user marks
    this task, or ``execution_timeout`` is over, the instance is terminated. If a retry of the task that started the
    instance waits for it too, the instance belongs to that retry again. Returns the output of the instance.

    :param instance_id: the id of the instance; templated.
    :param reason: why, for people; templated. The history stores it, with the DAG, the run and the task.
    :param wait_for_completion: False: the task succeeds when the instance is rewound, and returns its status.
    :param deferrable: True: a wait longer than 30 s goes on in the triggerer, without a worker slot. False: it
        goes on in the Airflow worker, and needs no triggerer. None: the environment variable
        ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` if it is set, else True.
    :param poll_interval: a timedelta, or seconds: how often a wait in the Airflow worker asks the hub. None: every 1 s
        on SQLite and every 3 s on Azure.
    :param taskhub_conn_id: connection of type ``taskhub``; templated. Without such a connection, the environment and
        the settings file name the hub, and the embedded hub is the default.
    :raises InputError: while the DAG file is parsed, if an argument cannot be right.
    """

    template_fields: Sequence[str] = ("instance_id", "reason", "taskhub_conn_id")

    def __init__(self, *, reason: str = "", wait_for_completion: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reason = reason
        self.wait_for_completion = wait_for_completion
        check_text(self._where(), "reason", reason)
        check_flag(self._where(), "wait_for_completion", wait_for_completion)

    async def _act(self, client: Client, context: Context) -> Any:
        from airflow_provider_taskhub.engine.events import Status

        state = await client.get(self.instance_id, payloads=False)
        owner = before = None
        if state is not None and state.status is Status.FAILED:
            owner = (state.tags or {}).get(OWNER_TAG)
            before = await client.watches.get(self.instance_id) if owner is not None else None
            await self._take_over(client, context, owner, before)
        elif state is not None and not state.status.is_final and self.wait_for_completion:
            owner = await self._owner(client, context, state)
        if state is None or state.status in (Status.FAILED, Status.PENDING):
            try:
                state = await self._rewind(client, context, state)
            except InvalidStateError:  # somebody else has rewound the instance since the reading above
                await self._give_back(client, context, owner, before)
                raise
        elif state.status.is_final and state.status is not Status.COMPLETED:
            raise AirflowException(
                f"instance {self.instance_id!r} is {state.status}: only a failed instance can be rewound. "
                "Clear the task that started it, to start it again"
            )
        else:
            self.log.info("instance %s is %s already: nothing to rewind", self.instance_id, state.status)
        if owner is not None:  # a clear of the task that has started the instance waits for it, or takes its result
            await client.watches.release(self.instance_id, state.execution_id)
        if not self.wait_for_completion:
            return str(state.status)
        try:
            longest = self._longest() if needs_worker(self) else min(self._longest(), _TRIGGERER_ENDS)
            return await self._result(client, await client.wait(self.instance_id, timeout=longest))
        except TimeoutError:
            raise NotYet(self._wait(state, owner)) from None

    def _wait(self, state: InstanceState, owner: str | None) -> Wait:
        return Wait(
            instance_id=self.instance_id,
            statuses=(),
            orchestrator=state.name or "",
            owner=owner,
            started_by=(state.tags or {}).get(OWNER_TAG),
            grace=seconds_of(grace_of(state)),
        )

    async def _rewind(self, client: Client, context: Context, state: InstanceState | None) -> InstanceState:
        """Rewind the instance, and return its new state.

        A Pending instance may be one whose rewind was interrupted: then the rewind goes on. Else it is left as it is.
        """
        why = f"{self.reason} ({source(context)})" if self.reason else source(context)
        try:
            rewound = await client.rewind(self.instance_id, f"from Airflow: {why}")
        except InvalidStateError:
            if state is None or state.status.is_final:
                raise
            self.log.info("instance %s is %s already: nothing to rewind", self.instance_id, state.status)
            return state
        self.log.info("instance %s is rewound", self.instance_id)
        return rewound

    async def _reached(self, client: Client, context: Context, status: str, wait: Wait | None) -> Any:
        state = await client.get(self.instance_id)
        if state is None:
            raise AirflowException(f"instance {self.instance_id} was {status}, and is not in the hub any more")
        started_by = wait.started_by if wait is not None else None
        if started_by is not None and (state.tags or {}).get(OWNER_TAG) != started_by:
            raise AirflowException(
                f"instance {self.instance_id} was {status}, and was started again by another task or program: "
                "its result is gone"
            )
        if not state.status.is_final:  # another client has started or rewound the instance again
            owner = await self._owner(client, context, state)
            raise NotYet(self._wait(state, owner))
        return await self._result(client, state)

    async def _owner(self, client: Client, context: Context, state: InstanceState) -> str | None:
        """Return the instance's owner tag if this task may end the instance, else None.

        The watch row decides. It names this task if an earlier try of this task has rewound the instance. It names
        another task if that task waits for the instance: then this task waits too, but does not end the instance.
        """
        owner = (state.tags or {}).get(OWNER_TAG)
        if owner is None or (found := await client.watches.get(self.instance_id)) is None:
            return None
        mine = self._watch(context, owner)
        if replace(found, waiter=mine.waiter, etag=mine.etag) != mine:
            return None
        if found.waiter != mine.waiter:
            await client.watches.add(mine)  # from now on this try may end the instance, and the earlier try may not
        return owner

    async def _result(self, client: Client, state: InstanceState) -> Any:
        from airflow_provider_taskhub.engine.events import Status

        await log_failure(client, state, self.log)
        await client.watches.forget([self.instance_id])
        if state.status is Status.COMPLETED:
            return returned(state, self.taskhub_conn_id, whole=needs_whole_output(self))
        text = f"instance {self.instance_id} {state.status.lower()}: {reason(state)}"
        raise (AirflowException if retryable(state) else AirflowFailException)(text)

    async def _take_over(self, client: Client, context: Context, owner: str | None, before: Watch | None) -> None:
        """Make this task the one that waits for the instance, or nobody if this task does not wait.

        The watch row of the task that has started the instance may still be there. That task has failed, so the sweep
        would terminate the rewound instance.

        :param owner: the instance's owner tag; None: no Airflow task has started it, and the sweep does not know it.
        :param before: the watch row of the instance, as it is in the hub; None: the hub has no row for the instance.
        """
        if owner is None:
            return
        if self.wait_for_completion:
            await client.watches.add(self._watch(context, owner))
        elif before is not None and before.deployment == deployment():
            await client.watches.remove(before)

    async def _give_back(self, client: Client, context: Context, owner: str | None, before: Watch | None) -> None:
        """Undo :meth:`_take_over` after a rewind that was refused. Else the sweep would end the instance of another.

        :param owner: the instance's owner tag.
        :param before: the watch row before the take-over; None: there was no row.
        """
        if owner is None:
            return
        if before is not None:
            await client.watches.add(before)
            return
        found = await client.watches.get(self.instance_id)
        if found is not None and found.waiter == identity.TaskIdentity.of(context["ti"]).owner:
            await client.watches.remove(found)

    def _watch(self, context: Context, owner: str) -> Watch:
        """Return the watch row which says that this try waits for the instance. A rewind does not change the owner."""
        task = identity.TaskIdentity.of(context["ti"])
        return task.watch(self.instance_id, deployment=deployment(), owner=owner, generation=1, cleared_continues=True)

    def _late(self) -> str:
        return "the instance is rewound, and this task waits for it no longer"


class TaskHubPurgeOperator(ActingOperator):
    """Deletes one ended instance, or all ended instances that match, with history, payloads, records and logs.

    Give either ``instance_id`` or parameters that select instances. Instances that have not ended are never deleted:
    with ``instance_id`` such an instance fails the task. A repeat deletes the rest. An instance whose result an Airflow
    task may still read is deleted only with ``instance_id``, or a week after its end. Returns the number of deleted
    instances.

    :param instance_id: the id of the instance; templated. An instance that is not there counts as purged already.
    :param older_than: select instances that were created longer ago: a timedelta. The time when an instance ended does
        not matter. ``timedelta(0)`` alone selects every ended instance.
    :param statuses: select instances with one of these final statuses, for example ``["Completed"]``; templated. Empty:
        any final status.
    :param prefix: select instances whose id begins with this text; templated.
    :param tags: select instances that have all of these tags, for example ``{"airflow.dag_id": "flights"}``; templated.
    :param limit: the largest number of instances that one run of the task deletes; None: no limit.
    :param rate: the largest number of instances to delete in one second; None: no limit.
    :param taskhub_conn_id: connection of type ``taskhub``; templated. Without such a connection, the environment and
        the settings file name the hub, and the embedded hub is the default.
    :raises InputError: while the DAG file is parsed, if an argument cannot be right.
    """

    template_fields: Sequence[str] = ("instance_id", "statuses", "prefix", "tags", "taskhub_conn_id")
    template_fields_renderers = {"tags": "json"}  # noqa: RUF012  # as Airflow declares it
    _needs_instance_id = False

    def __init__(
        self,
        *,
        instance_id: str | None = None,
        older_than: timedelta | None = None,
        statuses: Sequence[str] = (),
        prefix: str = "",
        tags: Mapping[str, str] | None = None,
        limit: int | None = None,
        rate: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(instance_id=instance_id, **kwargs)  # type: ignore[arg-type]  # None: the others select
        self.older_than = older_than
        self.statuses = statuses
        self.prefix = prefix
        self.tags = tags
        self.limit = limit
        self.rate = rate
        self._check_selection()

    def _check_selection(self) -> None:
        where = self._where()
        selects = self.older_than is not None or bool(self.statuses) or bool(self.prefix) or bool(self.tags)
        if selects == (self.instance_id is not None):
            raise InputError(
                f"{where}: give either instance_id, or one or more of older_than, statuses, prefix and tags. "
                "older_than=timedelta(0) alone selects every ended instance"
            )
        if self.older_than is not None and not (
            isinstance(self.older_than, timedelta) and self.older_than >= timedelta(0)
        ):
            raise InputError(f"{where}: older_than is {self.older_than!r}: give a timedelta that is not negative")
        if isinstance(self.statuses, str) and not is_template(self.statuses):
            raise InputError(f"{where}: statuses is {self.statuses!r}: give a list, for example ['Completed']")
        for status in () if is_template(self.statuses) else self.statuses:
            check_choice(where, "a name in statuses", status, FINAL)
        check_text(where, "prefix", self.prefix)
        if self.tags is not None and not is_template(self.tags) and not isinstance(self.tags, Mapping):
            raise InputError(f"{where}: tags is {self.tags!r}: give a dictionary of texts")
        for name, value, least in (("limit", self.limit, 1), ("rate", self.rate, 0)):
            if value is not None and not (isinstance(value, int | float) and value >= least and value > 0):
                raise InputError(f"{where}: {name} is {value!r}: give a number above 0, or None")

    async def _act(self, client: Client, context: Context) -> int:
        if self.instance_id is not None:
            purged = await client.purge(self.instance_id)
            self.log.info("instance %s %s", self.instance_id, "is purged" if purged else "is not in the hub (any more)")
            return int(purged)
        if self.tags is not None:
            from airflow_provider_taskhub.engine.validation import check_tags

            check_tags(self.tags, "the selection")
        result = await client.purge_many(
            statuses=self._statuses(),
            created_to=self._created_to(),
            prefix=self.prefix or None,
            tags=self.tags,
            limit=self.limit,
            rate=self.rate,
        )
        self.log.info("%d purged%s", result.purged, "" if result.complete else ", more are left")
        if result.watched:
            self.log.info("%d are left because an Airflow task may still read them", len(result.watched))
        if result.failed:
            some = "; ".join(f"{name}: {error}" for name, error in [*result.failed.items()][:5])
            raise AirflowException(f"{result.purged} purged, {len(result.failed)} could not be: {some}")
        return result.purged

    def _statuses(self) -> tuple[Any, ...]:
        from airflow_provider_taskhub.engine.events import Status

        known = {str(status).lower(): status for status in Status if status.is_final}
        for name in self.statuses:
            if str(name).lower() not in known:
                raise InputError(f"statuses: {name!r} is not a final status: choose from {', '.join(FINAL)}")
        return tuple(known[str(name).lower()] for name in self.statuses)

    def _created_to(self) -> datetime | None:
        from airflow_provider_taskhub.clock import SYSTEM_CLOCK

        return SYSTEM_CLOCK.utc_now().datetime() - self.older_than if self.older_than is not None else None
