"""``TaskHubOperator``: starts an orchestration, defers the task until the orchestration has ended, returns its output.

The triggerer starts and ends the task if nothing in it needs an Airflow worker (``triggers/placement``). Otherwise
``execute()`` starts the instance in a worker, waits a moment and defers, so that the task holds no worker slot while
the orchestration runs. The operator has no ``on_kill``, because Airflow also calls ``on_kill`` when it only shuts a
worker down. The trigger's ``on_kill`` first checks whether a user has killed the task.

The module has more than 400 lines, because Airflow reads the parameters, their description and its methods from one
class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import NEVER_EXPIRE, BaseOperator  # type: ignore[attr-defined]  # exported lazily
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowTaskTimeout,
    TaskDeferralTimeout,
)

from airflow_provider_taskhub.errors import InputError, InstanceNotFound, IntakeFull
from airflow_provider_taskhub.hooks import defaults, identity
from airflow_provider_taskhub.hooks.deployment import deployment, swept_connections
from airflow_provider_taskhub.hooks.outputs import returned
from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION, TaskHubHook
from airflow_provider_taskhub.intake_limit import WAITS_FOR
from airflow_provider_taskhub.links.taskhub import TaskHubInstanceLink
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.operators.giving_up import end_overdue, named, terminate
from airflow_provider_taskhub.operators.lineage import LineageReporter, inject_parent_by_default, parent_tags
from airflow_provider_taskhub.operators.short_wait import SHORT_WAIT, ends_soon, log_progress
from airflow_provider_taskhub.tags import OWNER_TAG
from airflow_provider_taskhub.triggers import instance_limits
from airflow_provider_taskhub.triggers.arguments import (
    check_at_parse,
    duration,
    evaluated,
    seconds,
    started_name,
    time_text,
)
from airflow_provider_taskhub.triggers.deferral import deferral_timeout
from airflow_provider_taskhub.triggers.outcome import EXECUTION_TIMEOUT, OVERDUE, error_class
from airflow_provider_taskhub.triggers.placed_task import PlacedTask
from airflow_provider_taskhub.triggers.placement import Placement, place
from airflow_provider_taskhub.triggers.reactions import REACTION_TEXTS, OnClear, OnRetry
from airflow_provider_taskhub.triggers.request import request_of
from airflow_provider_taskhub.triggers.start_from_trigger import FirstTrigger
from airflow_provider_taskhub.triggers.start_or_attach import Counter, Launched, StartRequest, Taken, launch
from airflow_provider_taskhub.triggers.task_end import INSTANCE_KEY, OWNER_KEY, STARTED, WAITED, WORKER_STARTS
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger
from airflow_provider_taskhub.triggers.worker_reasons import PLACES, needs_whole_output
from airflow_provider_taskhub.triggers.worker_wait import WORKER_END_WAIT, default_deferrable, wait_in_worker

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.codec import Timestamp
    from airflow_provider_taskhub.hub.model import InstanceState
    from airflow_provider_taskhub.instance_limit import InstanceLimit

__all__ = ["TaskHubOperator"]

COUNTER_KEY = "taskhub"
"""Key under which Airflow's ``task_state_store`` keeps the task's generation, a counter that a clear raises."""
OVERDUE_KEY = "taskhub_overdue"
"""Key of the XCom of a try whose time is over, and which has deferred again until its instance has cleaned up."""


class TaskHubOperator(PlacedTask, BaseOperator):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Runs an orchestration in a task hub; its output is the task's XCom.

    A retry of the task reads its instance. If the instance still runs, the retry waits for it. If the instance has
    completed, the retry returns its result. If the instance has failed, ``on_retry`` says what the retry does: by
    default the instance goes on from before its failure, and activities that have completed do not run again.
    A clear of the task lets an instance that has failed go on too. An instance that still runs is terminated, and a new
    one starts; after a success, a new one starts. The error of the
    orchestration fails the task; an error with ``retryable=False`` fails the task without retries.
    ``execution_timeout`` covers the whole wait: after this time the instance is terminated.

    :param orchestrator: name that an ``App`` of the hub's workers declares, or the function that ``@app.orchestrator``
        has declared. With a name, the DAG file imports neither the app nor Spark. Templated.
    :param activity: in place of ``orchestrator``: name or function of an activity that its app declares with
        ``standalone=True``. The task runs this one activity. Templated.
    :param input: one value that JSON can express, templated (XComArgs included); never a secret. None is an input too.
        Without it, the orchestrator runs with the default of its parameter.
    :param taskhub_conn_id: connection of type ``taskhub``. Without such a connection, the environment and the settings
        file name the hub, and the embedded hub is the default.
    :param instance_id: id of the instance. None: an id from DAG, task, map index, run and generation.
    :param version: version of the instance. Only workers whose app is compatible with it run the instance. "": every
        worker.
    :param tags: texts by name. ``taskhub instances list --tag`` and the page find the instance by them.
    :param no_worker_timeout: a timedelta, or seconds. The task fails if for this time no live worker could run the
        instance: none has its orchestrator in its version or an activity that it awaits, or the owner of its partition
        cannot run it. None: Airflow's option ``[taskhub] no_worker_timeout``; if it is empty, the setting
        ``no_worker_timeout`` of the triggerer, 10 minutes by default, but only 10 s if all live workers have the same
        apps and lack the orchestrator or activity.
    :param on_retry: what a retry of the task does with its instance. ``"rewind"``: a failed instance goes on from
        before its failure. It starts from its beginning if it was terminated, cannot be rewound, or was started with
        another orchestrator, version or input; the task's log then says why. ``"restart"``: the instance starts from
        its beginning. ``"attach"``: the retry starts nothing. It takes the result or the error of the instance, which
        somebody can rewind in the meantime. None: the option ``[taskhub] on_retry``, ``"rewind"`` by default.
    :param on_clear: what the first try after a clear of the task does with its instance. ``"rewind"``: if the instance
        has failed, or Airflow has terminated it (the task was marked, or its time was over), it goes on from there. A
        new one starts if it has completed, still ran, or was started with another orchestrator, version or input.
        ``"restart"``: a new instance starts. None: the option ``[taskhub] on_clear``, ``"rewind"`` by default.
    :param terminate_grace: time that the instance has for its clean-up when Airflow ends it, because the task was
        marked, cleared, or deleted, or its time is over: the orchestrator's await raises ``TerminationRequested``. A
        timedelta of at most 6 days. A task whose time is over, and the next run of a cleared task, wait for the end of
        the clean-up. The value with which the instance was started counts. None: the instance ends at once.
    :param wait_for_completion: False: the task ends when the instance is started. Its XCom is the instance id. Nothing
        in Airflow terminates the instance then, except a clear of the task.
    :param deferrable: True: the task waits in the triggerer and holds no worker slot. False: it uses no triggerer, and
        waits in its Airflow worker. None: the environment variable ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` if it is
        set, else True.
    :param poll_interval: a timedelta, or seconds: how often a wait in the Airflow worker asks the hub. None: the
        option ``[taskhub] poll_interval``; if it is empty, every 1 s on SQLite and every 3 s on Azure, as triggerers
        do.
    :param start_at: the instance does not begin before this time: a datetime, or a text in ISO 8601. A time without a
        zone is UTC. Templated. None: the instance begins at once.
    :param start_on: who starts the task. ``"auto"``: the triggerer, without a worker and its slot, unless something in
        the task needs a worker. ``"trigger"``: the same, but callbacks, hooks, listeners, pools and limits that only
        workers know are no reason. ``"worker"``: always a worker. The task's log says why a worker starts it.
        None: the option ``[taskhub] start_on``, ``"auto"`` by default.
    :param complete_on: who ends the task, with the same values. A task with outlets always ends in a worker. None: the
        option ``[taskhub] complete_on``, ``"auto"`` by default.
    :param short_wait: a timedelta, or seconds: how long the Airflow worker that has started the instance waits for its
        end before it defers. 0: it defers at once. None: the option ``[taskhub] short_wait``. If that is empty too, it
        waits for 30 s if a worker must end the task, because Airflow takes a deferred task back no sooner, and else for
        1.5 s.
    :param max_active_instances: at most so many instances of this task run at once in the hub, in all runs of its DAG
        and all its rows if it is mapped. The others are Pending in the hub, in the order of their starts, moved by
        ``priority_weight``. None: as many instances of the whole DAG as its ``max_active_tasks`` says, if that is not
        Airflow's default; else no limit.
    :param limit_name: name of the limit, if tasks or DAGs share it. Not templated. None: the ids of the DAG and of the
        task.
    :param openlineage_inject_parent_job_info: True: the Spark sessions of the activities get this task as their parent
        run, for OpenLineage's listener in Spark. None: Airflow's option ``[openlineage] spark_inject_parent_job_info``.
    :raises InputError: if an argument that is no template is wrong.
    """

    template_fields: Sequence[str] = (
        "orchestrator",
        "input",
        "taskhub_conn_id",
        "instance_id",
        "version",
        "tags",
        "start_at",
    )
    template_fields_renderers = {"input": "json", "tags": "json"}  # noqa: RUF012  # as Airflow declares it
    operator_extra_links = (TaskHubInstanceLink(),)
    ui_color = "#dbeafe"
    input_types: Mapping[str, Any] = {}  # never changed
    """The types of the parts of the input that are known only when the task starts, as a stub declares them."""

    def __init__(
        self,
        *,
        orchestrator: str | Callable[..., Any] | None = None,
        activity: str | Callable[..., Any] | None = None,
        input: Any = NO_INPUT,
        taskhub_conn_id: str = DEFAULT_CONNECTION,
        instance_id: str | None = None,
        version: str = "",
        tags: Mapping[str, str] | None = None,
        no_worker_timeout: timedelta | float | None = None,
        on_retry: Literal["rewind", "restart", "attach"] | None = None,
        on_clear: Literal["rewind", "restart"] | None = None,
        terminate_grace: timedelta | None = None,
        wait_for_completion: bool = True,
        deferrable: bool | None = None,
        poll_interval: timedelta | float | None = None,
        start_at: datetime | str | None = None,
        start_on: Literal["trigger", "worker", "auto"] | None = None,
        complete_on: Literal["trigger", "worker", "auto"] | None = None,
        short_wait: timedelta | float | None = None,
        max_active_instances: int | None = None,
        limit_name: str | None = None,
        openlineage_inject_parent_job_info: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        where = f"{self.operator_name} {self.task_id!r}"
        self.orchestrator = started_name(where, orchestrator, activity)
        self._function = next((one for one in (orchestrator, activity) if callable(one)), None)
        self.input = input
        self.taskhub_conn_id = taskhub_conn_id
        self.instance_id = instance_id
        self.version = version
        self.tags = tags
        self.no_worker_timeout = defaults.seconds("no_worker_timeout", no_worker_timeout)
        self.on_retry = defaults.choice("on_retry", on_retry, list(OnRetry))
        self.on_clear = defaults.choice("on_clear", on_clear, list(OnClear))
        self.terminate_grace = terminate_grace
        self.wait_for_completion = wait_for_completion
        self.deferrable = default_deferrable() if deferrable is None else deferrable
        self.poll_interval = defaults.seconds("poll_interval", poll_interval, least=0.1)
        self.start_at = start_at
        self.start_on = defaults.choice("start_on", start_on, PLACES)
        self.complete_on = defaults.choice("complete_on", complete_on, PLACES)
        self.short_wait = defaults.seconds("short_wait", short_wait)
        self.max_active_instances = max_active_instances
        self.limit_name = limit_name
        self.openlineage_inject_parent_job_info = (
            inject_parent_by_default()
            if openlineage_inject_parent_job_info is None
            else openlineage_inject_parent_job_info
        )
        self._lineage = LineageReporter()
        self._has_waited = False
        check_at_parse(
            where,
            orchestrator=self.orchestrator,
            input=input,
            taskhub_conn_id=taskhub_conn_id,
            instance_id=instance_id,
            version=version,
            tags=tags,
            no_worker_timeout=self.no_worker_timeout,
            on_retry=self.on_retry,
            on_clear=self.on_clear,
            terminate_grace=terminate_grace,
            wait_for_completion=wait_for_completion,
            deferrable=self.deferrable,
            poll_interval=self.poll_interval,
            start_at=start_at,
            start_on=self.start_on,
            complete_on=self.complete_on,
            short_wait=self.short_wait,
            max_active_instances=max_active_instances,
            limit_name=limit_name,
            openlineage_inject_parent_job_info=self.openlineage_inject_parent_job_info,
        )
        if not getattr(self, "_BaseOperator__from_mapped", False):
            instance_limits.check_others(where, self)

    def _input_type(self) -> Any:
        """Return the annotation of the input, if the orchestrator or the activity is given as a function."""
        from airflow_provider_taskhub.triggers.input_fields import type_of_input

        return None if self._function is None else type_of_input(self._function)

    def execute(self, context: Context) -> Any:
        """Start the instance or attach to it. If it ends at once, return its output; else defer to the triggerer.

        :param context: Airflow's context of the task.
        """
        ti = context["ti"]
        self._log_why_a_worker_starts(ti)
        deadline = self._deadline()
        request = self._request(context)
        # Each request to Airflow costs its API server about 10 ms of CPU, so the usual first try makes few of them.
        first = ti.try_number == 1
        if not first:
            self._push_link(ti)  # the start may take a while: it may terminate the instance of an older generation
        store = context["task_state_store"]
        stored: Counter | None = None
        generation: int | None = None

        def remember(counter: Counter) -> None:
            nonlocal generation
            generation = counter.generation
            if counter == stored or (first and generation == 1):
                return  # without a stored value, the next try finds the first generation in the hub
            value: dict[str, Any] = {"generation": counter.generation, "max_tries": counter.max_tries}
            if counter.goes_on:
                value["goes_on"] = True
            store.set(COUNTER_KEY, value, retention=NEVER_EXPIRE)

        async def use(client: Client) -> tuple[Launched, InstanceState | None]:
            nonlocal stored
            stored = None if first else Counter.of(store.get(COUNTER_KEY))
            launched = await launch(client, request, counter=stored, remember=remember)
            for note in launched.notes:
                self.log.warning(note)
            self.log.info("instance %s %s", launched.instance_id, REACTION_TEXTS[launched.reaction])
            ti.xcom_push(key=INSTANCE_KEY, value=launched.instance_id)
            if not self.wait_for_completion:
                return launched, None
            here = {"orchestrator": self.orchestrator, "longest": self._short_wait(), "log": self.log}
            if not await ends_soon(client, launched.instance_id, deadline, **here):
                return launched, None
            await log_progress(client, launched.instance_id, self.orchestrator, self.log)
            return launched, await self._ended(client, context, launched.instance_id, launched.owner)

        try:
            launched, state = self._hook().run(use, create=True)
            if self.wait_for_completion and not self.deferrable and state is None:
                return self._wait(context, launched.instance_id, launched.owner, deadline)
        except (Taken, IntakeFull) as error:
            raise AirflowException(str(error)) from error
        except AirflowTaskTimeout:  # Airflow raises this error at the timeout, whatever code is running
            raise AirflowTaskTimeout(end_overdue(self._hook(), request, generation)) from None
        if not self.wait_for_completion:
            return launched.instance_id
        if state is not None:
            return self._result(context, state, launched.instance_id, launched.owner, deadline)
        ti.xcom_push(key=OWNER_KEY, value=launched.owner)
        return self._wait(context, launched.instance_id, launched.owner, deadline)

    def execute_started(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue a task that its trigger has started. Airflow calls this when the trigger cannot end the task.

        :param context: Airflow's context of the task.
        :param event: the content of the trigger's event. If the trigger has started nothing, or the event belongs to
            another try, the instance is started here.
        """
        foreign = event["owner"] != str(context["ti"].id)
        if foreign or event["reason"] == WORKER_STARTS:
            why = "the trigger's event belongs to another try" if foreign else event["message"]
            self._take_over(context["ti"], why)
            self._has_waited = not foreign and event.get(WAITED) is True
            return self.execute.__wrapped__(self, context)  # type: ignore[attr-defined]
        return event["instance_id"] if event["reason"] == STARTED else self.execute_complete(context, event)

    def first_trigger(self) -> FirstTrigger:
        """Return the trigger that starts the instance if no worker does."""
        return FirstTrigger(
            path="airflow_provider_taskhub.triggers.start.TaskHubStartTrigger",
            arguments={
                "orchestrator": self.orchestrator,
                "input": self.input,
                "taskhub_conn_id": self.taskhub_conn_id,
                "instance_id": self.instance_id,
                "version": self.version,
                "tags": self.tags,
                "no_worker_timeout": seconds(self.no_worker_timeout),
                "wait_for_completion": self.wait_for_completion,
                "start_at": time_text(self.start_at),
                "input_types": self.input_types,
                "limit": instance_limits.stored(self.instance_limit),
                "priority": self.instance_priority,
                "terminate_grace": seconds(self.terminate_grace),
            },
        )

    @property
    def instance_limit(self) -> InstanceLimit | None:
        """The limit with which the instance is started; None: no limit."""
        return instance_limits.limit_of(self)

    @property
    def instance_priority(self) -> int:
        """The priority with which the instance is started, unless its run belongs to a backfill."""
        return instance_limits.priority_of(self)

    def execute_complete(
        self,
        context: Context,
        event: dict[str, Any],
        waits_for: Sequence[str] | None = None,
        deadline: str | None = None,
    ) -> Any:
        """Return the output, or fail with the orchestration's error. Airflow calls this after the trigger has fired.

        :param context: Airflow's context of the task.
        :param event: the content of the trigger's event.
        :param waits_for: the instance id and the owner for which this try waits; ``dag.test()`` does not pass them.
        :param deadline: the time, in ISO 8601, by which this try must end; ``dag.test()`` does not pass it.
        :raises AirflowFailException: if the orchestration's error forbids retries.
        """
        instance_id, why = event["instance_id"], event["reason"]
        from airflow_provider_taskhub.codec import Timestamp

        until = Timestamp.parse(deadline) if deadline else self._deadline()
        if waits_for is not None and [instance_id, event["owner"]] != [*waits_for]:
            self.log.info("the trigger of another wait (for %s) resumed this task: waiting again", instance_id)
            return self._wait(context, waits_for[0], waits_for[1], until)
        if why == "timeout":
            self._terminate(instance_id, event["owner"], EXECUTION_TIMEOUT)  # the trigger may have failed to do so
            raise AirflowTaskTimeout(f"{self._named(instance_id)}: {event['message']}")
        if why == "no_worker":
            self._give_up(context, instance_id, event["owner"])
        if why != "reached":
            raise error_class(why)(f"{self._named(instance_id)}: {event['message']}")
        owner = event["owner"]
        state = self._hook().run(lambda client: self._ended(client, context, instance_id, owner))
        return self._result(context, state, instance_id, owner, until)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the task as Airflow does. If the deferral timed out, first terminate the instance.

        A deferral times out if no triggerer was running at the trigger's deadline. If the trigger has started the task,
        Airflow's time limit is also the trigger's deadline, so either may come first. If the instance may clean up, the
        task then waits for this in the triggerer, without a worker slot.
        """
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as error:
            ti = context["ti"]
            index = identity.UNMAPPED if ti.map_index is None else ti.map_index
            instance_id, owner, overdue = (
                ti.xcom_pull(task_ids=self.task_id, key=key, map_indexes=index)
                for key in (INSTANCE_KEY, OWNER_KEY, OVERDUE_KEY)
            )
            if instance_id:
                # without the XCom, the trigger has started the instance, and the owner is this try
                owner = owner or str(ti.id)
                grace = self._terminate(instance_id, owner, EXECUTION_TIMEOUT, wait=True, clean_up=False)
                if grace is not None and not overdue:  # once: perhaps no triggerer runs
                    ti.xcom_push(key=OVERDUE_KEY, value=True)
                    return self._wait(context, instance_id, owner, self._now(), grace)
            raise AirflowTaskTimeout(f"{self._named(instance_id)}: {OVERDUE}") from error

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage:
        """Return the data that the orchestration has read and written. OpenLineage's listener calls this.

        :param task_instance: the run of the task; not used, because the operator remembers its instance.
        """
        return self._lineage.facets(self.orchestrator, self._hook())

    def _request(self, context: Context) -> StartRequest:
        """Check the operator's arguments and return what to start.

        :raises AirflowFailException: if an argument is wrong. A retry would not help.
        """
        try:
            given = TaskHubHook.output(evaluated(self.input))
            task = identity.TaskIdentity.of(context["ti"])
            request = request_of(
                self, given, task, context, on_retry=OnRetry(self.on_retry), on_clear=OnClear(self.on_clear)
            )
        except (InputError, InstanceNotFound) as error:
            raise AirflowFailException(str(error)) from None
        if self._has_waited:  # for room in the hub: this worker must not wait for it again
            request = replace(request, intake_timeout=timedelta(0))
        elif self.execution_timeout:  # so that the task's error says what it has waited for
            request = replace(request, intake_timeout=min(WAITS_FOR, self.execution_timeout * 0.8))
        if not self.openlineage_inject_parent_job_info:
            return request
        return replace(request, tags={**request.tags, **parent_tags(context)})

    def _short_wait(self) -> timedelta:
        """Return how long the Airflow worker waits for the end of the instance before it defers."""
        if (given := duration(self.short_wait)) is not None:
            return given
        return WORKER_END_WAIT if self.deferrable and self._place().success else SHORT_WAIT

    def _deadline(self) -> Timestamp | None:
        """Return the time by which this try must end, counted from now; None: there is no time limit."""
        return self._now() + self.execution_timeout if self.execution_timeout else None

    def _now(self) -> Timestamp:
        from airflow_provider_taskhub.clock import SYSTEM_CLOCK

        return SYSTEM_CLOCK.utc_now()

    def _wait(
        self,
        context: Context,
        instance_id: str,
        owner: str,
        deadline: Timestamp | None,
        grace: timedelta | None = None,
    ) -> Any:
        """Defer the task until the instance has ended. With ``deferrable=False``, wait here and return the output.

        :param grace: the time for the clean-up of the instance; None: what the operator gives.
        """
        text = deadline.text() if deadline else None
        if not self.deferrable:
            self.log.info("this Airflow worker waits for instance %s, because deferrable is False", instance_id)
            self._push_link(context["ti"])  # Airflow itself pushes it only when execute() has ended
            here = self._trigger(context["ti"], instance_id, owner, text)
            here.interval = duration(self.poll_interval)
            return self.execute_complete(context, wait_in_worker(here), [instance_id, owner], text)
        self._log_why_a_worker_ends(self._place().success)
        self.log.info("a triggerer now waits for instance %s: one must run (airflow triggerer)", instance_id)
        if self.taskhub_conn_id not in swept_connections():
            self.log.info(
                "if this task is killed while no triggerer watches this hub, its instance continues: "
                "add connection %r to the option [taskhub] page_connections, so that API servers end it",
                self.taskhub_conn_id,
            )
        self.defer(
            trigger=self._trigger(context["ti"], instance_id, owner, text),
            method_name="execute_complete",
            kwargs={"waits_for": [instance_id, owner], "deadline": text},
            timeout=deferral_timeout(deadline, grace or self.terminate_grace),
        )
        raise AssertionError("defer() raises")

    def _push_link(self, ti: Any) -> None:
        for link in self.operator_extra_links:
            ti.xcom_push(key=link.xcom_key, value=link.get_link(self, ti_key=ti))

    def _trigger(self, ti: Any, instance_id: str, owner: str, deadline: str | None) -> TaskHubTrigger:
        placement = self._place()
        is_last = not self.retries or ti.try_number > ti.max_tries
        return TaskHubTrigger(
            instance_id=instance_id,
            taskhub_conn_id=self.taskhub_conn_id,
            orchestrator=self.orchestrator,
            owner=owner,
            deadline=deadline,
            no_worker_timeout=seconds(self.no_worker_timeout),
            end_from_trigger=not placement.success,
            fail_from_trigger=not placement.failure and is_last,  # a retry soon after would meet the same race
            push_output=self.do_xcom_push,
        )

    def _place(self) -> Placement:
        return place(self, TaskHubOperator, start_on=self.start_on, complete_on=self.complete_on)

    async def _ended(self, client: Client, context: Context, instance_id: str, owner: str) -> InstanceState | None:
        """Read the ended instance with its output, log the cause of a failure, and delete the completion hint.

        Another client may have rewound or restarted the instance since its end. It then runs again, and this task must
        wait for it again. The page has deleted the watch row in this case, so this method writes the row again.

        :param owner: the owner tag of the instance for which this task has waited.
        :returns: the instance's state; None if the instance is not in the hub any more.
        :raises AirflowException: if another task or program has started an instance with this id since the end. Its
            result is not the result of this task.
        """
        from airflow_provider_taskhub.triggers.outcome import log_failure

        state = await client.get(instance_id)
        if state is not None and (state.tags or {}).get(OWNER_TAG) != owner:
            raise AirflowException(
                f"{self._named(instance_id)} was started again by another task or program: its result is gone"
            )
        if state is not None and not state.status.is_final:
            task, generation = identity.TaskIdentity.of(context["ti"]), int((state.tags or {})[identity.GENERATION_TAG])
            await client.watches.add(
                task.watch(instance_id, deployment=deployment(), owner=owner, generation=generation)
            )
        if state is not None:
            await log_failure(client, state, self.log)
            await self._lineage.read(client, instance_id, self.outlets)
        await client.watches.forget([instance_id])
        return state

    def _result(
        self, context: Context, state: InstanceState | None, instance_id: str, owner: str, deadline: Timestamp | None
    ) -> Any:
        from airflow_provider_taskhub.engine.events import Status
        from airflow_provider_taskhub.triggers.outcome import reason, retryable

        if state is None:
            raise AirflowException(f"{self._named(instance_id)} is not in the hub any more")
        if not state.status.is_final:  # another client has rewound or restarted the instance: see _ended
            return self._wait(context, instance_id, owner, deadline)
        if state.status is Status.COMPLETED:
            self._lineage.emit(context, self.outlets)
            return returned(state, self.taskhub_conn_id, whole=needs_whole_output(self))
        text = f"{self._named(instance_id)} {state.status.lower()}: {reason(state)}"
        raise (AirflowException if retryable(state) else AirflowFailException)(text)

    def _give_up(self, context: Context, instance_id: str, owner: str) -> None:
        """Terminate the instance that no worker could run, unless another try of the task follows.

        If it were not terminated, it would run without a waiting task as soon as a worker starts.
        """
        ti = context["ti"]
        if ti.try_number <= ti.max_tries:
            self.log.warning("instance %s stays in the hub: the next try attaches to it", instance_id)
            return
        self._terminate(instance_id, owner, "from Airflow: no worker came in time")

    def _terminate(self, instance_id: str, owner: str, why: str, **how: bool) -> timedelta | None:
        return terminate(self._hook(), instance_id, owner, why, self.log, **how)

    def _named(self, instance_id: str | None) -> str:
        return named(self.orchestrator, instance_id)

    def _hook(self) -> TaskHubHook:
        return TaskHubHook(self.taskhub_conn_id)
