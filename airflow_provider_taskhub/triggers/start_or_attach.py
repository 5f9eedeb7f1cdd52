"""Starts the instance of an Airflow task, or continues with the instance that the task has started before.

:func:`launch` reads the instance with the wanted id, looks the decision up in the table of :mod:`.reactions`, and
carries the decision out. The decision depends on what is found and on the operator's parameter ``on_retry``.

The generation of a task is a counter that rises when a user clears the task. All tries of one generation use the same
instance. If the instance has failed, or Airflow has terminated it, the generation stays, and the instance goes on
(``on_clear="rewind"``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.errors import (
    Conflict,
    InputError,
    InstanceExists,
    InstanceNotFound,
    IntakeFull,
    InvalidStateError,
    StorageError,
    TaskHubError,
)
from airflow_provider_taskhub.hooks.identity import GENERATION_TAG, MAX_TRIES_TAG, TaskIdentity
from airflow_provider_taskhub.tags import OWNER_TAG, WATCH_TAG
from airflow_provider_taskhub.triggers.grace import Confirmation, grace_of
from airflow_provider_taskhub.triggers.reactions import (
    REACTIONS,
    STARTS,
    OnClear,
    OnRetry,
    StartDecision,
    difference,
    found,
)

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.model import InstanceState
    from airflow_provider_taskhub.hub.watches import Watch
    from airflow_provider_taskhub.instance_limit import InstanceLimit

TERMINATE_DEADLINE = 60.0
"""Seconds to wait until a terminated instance of an older generation has ended. After that the start continues: if no
worker is alive, the old instance cannot end, but nothing of it runs either."""
_GENERATIONS = 10_000
"""The largest number of generations that are read from the hub to find the newest."""
_BY_AIRFLOW = re.compile(
    r"from Airflow: ((?!task cleared)task (marked )?\w+|the task is \w+|execution timeout|no worker came in time)"
)
"""The reasons with which an instance is terminated because its task has ended. The reasons of a clear, of people and of
operators are others."""
_TRIES = 4
"""How often a start is tried if another client starts, purges or rewinds the same instance at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """The generation of an Airflow task, which Airflow's ``task_state_store`` keeps between tries.

    A clear of the task changes ``max_tries``. The generation therefore rises when ``max_tries`` differs from the stored
    value.

    :param cleared: True: the task was cleared since its last try.
    :param goes_on: True: the task was cleared, its instance goes on, and the rewind is perhaps not complete.
    """

    generation: int
    max_tries: int
    goes_on: bool = False
    cleared: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, stored: Any) -> Counter | None:
        """Make a counter from the stored value. None: there is no stored value, or it has another form."""
        if isinstance(stored, dict) and all(isinstance(stored.get(key), int) for key in ("generation", "max_tries")):
            goes_on = stored.get("goes_on") is True
            return cls(generation=stored["generation"], max_tries=stored["max_tries"], goes_on=goes_on)
        return None

    def now(self, max_tries: int) -> Counter:
        """Return the counter for this try. :param max_tries: the task's ``max_tries`` in this try."""
        if max_tries == self.max_tries:
            return self
        return Counter(generation=self.generation + 1, max_tries=max_tries, cleared=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """The instance that a task wants to start.

    :param task: the try of the Airflow task.
    :param orchestrator: the orchestrator's name.
    :param input: the orchestrator's input; ``NO_INPUT``: none.
    :param version: the version that a worker's app must be compatible with; "": any.
    :param instance_id: the instance id that the user chose; None: derive the id from the task.
    :param tags: the user's tags and those of the run's dates. The tags that name the task are added to them.
    :param deployment: the name of this Airflow deployment, from
        :func:`airflow_provider_taskhub.hooks.deployment.deployment`.
    :param on_retry: what to do with an instance of this task that has ended without a result.
    :param on_clear: what the first try after a clear does with such an instance.
    :param start_at: the instance does not begin before this time; None: it begins at once.
    :param limit: how many instances with a limit of this name may run at once; None: no limit.
    :param priority: see :meth:`.Client.start`.
    :param waits: False: the task ends when the instance is started. Then nothing may terminate the instance because the
        task has ended, so the instance gets no watch row.
    :param intake_timeout: see :meth:`.Client.start`.
    """

    task: TaskIdentity
    orchestrator: str
    input: Any
    version: str
    instance_id: str | None
    tags: Mapping[str, str]
    deployment: str
    on_retry: OnRetry = OnRetry.REWIND
    on_clear: OnClear = OnClear.REWIND
    start_at: datetime | None = None
    limit: InstanceLimit | None = None
    priority: int = 0
    waits: bool = True
    intake_timeout: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The instance for which the task now waits.

    :param instance_id: the id of the instance.
    :param owner: the instance's owner tag: the id of the task instance that started it. After a rewind this is still
        the id of the earlier try.
    :param reaction: what the task did.
    :param notes: lines for the task's log.
    """

    instance_id: str
    owner: str
    reaction: StartDecision
    notes: tuple[str, ...]


class Taken(TaskHubError):
    """An instance with the wanted id runs, and another task or program started it."""


class _CannotRewind(TaskHubError):
    """The instance cannot be rewound, or another client has changed it. The text says why."""


async def launch(
    client: Client,
    request: StartRequest,
    *,
    counter: Counter | None,
    remember: Callable[[Counter], None],
    absent: bool = False,
) -> Launched:
    """Start the instance of this task, or attach to the instance that an earlier try has started.

    :param client: a client of the hub.
    :param request: what to start.
    :param counter: the stored generation; None: nothing is stored, as in the first try.
    :param remember: stores the generation. It is called before the start. Otherwise a crash after the start could leave
        an instance that the next try does not find.
    :param absent: True: the caller has just seen that there is no instance with the wanted id. It is not read again.
    :raises Taken: if another task or program uses the instance id that the user chose.
    :raises IntakeFull: if too many messages wait in the hub. Nothing of the start is left there.
    """
    if counter is None:
        counter, absent = await recall(client, request)
    else:
        counter = counter.now(request.task.max_tries)
    notes: list[str] = []
    goes_on = counter.goes_on
    if counter.cleared and await _goes_on(client, request, counter.generation - 1, notes):
        counter, goes_on = replace(counter, generation=counter.generation - 1, goes_on=True), True
    if goes_on:
        absent = False
        request = replace(request, on_retry=OnRetry.REWIND)
    remember(counter)
    if request.instance_id is None and counter.generation > 1 and not goes_on:
        older = request.task.instance_id(counter.generation - 1)
        state = await client.get(older, payloads=False)
        if state is not None and await client.instance(older).runs_on():
            notes.append(await _terminate(client, state))
    launched = await _launched(client, request, counter.generation, notes, absent=absent, goes_on=goes_on)
    if goes_on:
        remember(replace(counter, goes_on=False))
    if not request.waits and (why := await _unknown(client, request.orchestrator)) is not None:
        launched = replace(launched, notes=(*launched.notes, why))
    return launched


async def _unknown(client: Client, orchestrator: str) -> str | None:
    """Return a line that says that no live worker knows the orchestrator. A task that does not wait for its instance
    would not hear of it. None: a worker knows it, or the workers cannot be read now."""
    from airflow_provider_taskhub.triggers.task_log import known, no_worker

    with suppress(TaskHubError):
        members = await client.admin.workers()
        if not known(members, orchestrator):
            return no_worker(members, orchestrator, None)
    return None


async def _launched(
    client: Client, request: StartRequest, generation: int, notes: list[str], *, absent: bool, goes_on: bool
) -> Launched:
    """Do what :func:`_react` does, again if another client was faster."""
    obstacle: str | None = None
    waited = set[str | None]()
    for _ in range(_TRIES - 1):
        try:
            return await _react(client, request, generation, notes, obstacle, waited, absent=absent, goes_on=goes_on)
        except _CannotRewind as error:
            obstacle = str(error)
        except (InstanceExists, InstanceNotFound, Conflict):
            absent = False
    return await _react(client, request, generation, notes, obstacle, waited, goes_on=goes_on)


async def _goes_on(client: Client, request: StartRequest, generation: int, notes: list[str]) -> bool:
    """Return whether the instance that the task had before it was cleared goes on.

    It does if somebody has rewound it since; then it may have completed too. Without ``on_clear="restart"``, it also
    does if it has failed, or if Airflow has terminated it because the task had ended. An instance for which the task
    still waits, or whose result the task has taken, is computed anew.

    :param generation: the generation of the task before the clear.
    :param notes: gets a line for the task's log if the instance cannot go on.
    """
    from airflow_provider_taskhub.engine.events import Status

    instance_id = request.instance_id or request.task.instance_id(generation)
    state = await client.get(instance_id, payloads=False)
    tags = (state.tags if state is not None else None) or {}
    if state is None or not request.task.started(tags) or tags.get(GENERATION_TAG) != str(generation):
        return False
    without_result = state.status in (Status.FAILED, Status.TERMINATED)
    if not (request.on_clear is OnClear.REWIND if without_result else state.released):
        return False
    obstacle = await _changed(client, instance_id, request, by_airflow=state.status is Status.TERMINATED)
    if obstacle is not None:
        notes.append(f"instance {instance_id} does not go on: {obstacle}. A new one starts")
    return obstacle is None


async def recall(client: Client, request: StartRequest) -> tuple[Counter, bool]:
    """Find the generation from the instances in the hub, when ``task_state_store`` has no stored value.

    No value is stored in a first try, after somebody deleted the value, and for a task that its trigger has started: a
    trigger cannot use ``task_state_store``. The second value is True if there is no instance of this generation yet.

    The instance of this very try has the try's owner tag. If a first try finds
    other instances, the DAG run was deleted and created again. The task's generation is then higher than the
    generations of these instances.
    """
    task, last, tags, taken = request.task, 0, None, False
    if request.instance_id is not None:
        state = await client.get(request.instance_id, payloads=False)
        taken = state is not None
        if state is not None and task.started(state.tags):
            tags = state.tags or {}
            last = int(tags.get(GENERATION_TAG, "1"))
    else:
        for generation in range(1, _GENERATIONS):
            state = await client.get(task.instance_id(generation), payloads=False)
            if state is None:
                break
            last, tags = generation, state.tags or {}
    mine = (tags or {}).get(OWNER_TAG) == task.owner
    retried = task.try_number > 1 and (tags or {}).get(MAX_TRIES_TAG) == str(task.max_tries)
    same = last > 0 and (mine or retried)
    cleared = last > 0 and not same and task.try_number > 1
    counter = Counter(generation=last if same else last + 1, max_tries=task.max_tries, cleared=cleared)
    return counter, not (same or taken)


async def _react(
    client: Client,
    request: StartRequest,
    generation: int,
    notes: list[str],
    obstacle: str | None,
    waited: set[str | None],
    *,
    absent: bool = False,
    goes_on: bool = False,
) -> Launched:
    """Read the instance, decide, and carry the decision out.

    :param obstacle: why the instance cannot be rewound, if an earlier call found that; else None.
    :param waited: execution ids of the runs for whose end an earlier call has waited already. This call adds its own.
    :param absent: as :func:`launch` takes it. If an instance has appeared since, its start is refused here.
    :param goes_on: True: the task was cleared, and its instance goes on.
    :raises _CannotRewind: the instance that this call wanted to rewind cannot be rewound.
    """
    from airflow_provider_taskhub.engine.events import Status
    from airflow_provider_taskhub.hub.model import StartPolicy

    task = request.task
    instance_id = request.instance_id or task.instance_id(generation)
    state = None if absent else await client.get(instance_id, payloads=False)
    finding = found(state, task, generation, stopped=goes_on)
    rewinds = (StartDecision.REWIND, StartDecision.CONTINUE)
    if REACTIONS[finding][request.on_retry] in rewinds:
        obstacle = obstacle or await _changed(client, instance_id, request)
        finding = found(state, task, generation, otherwise=obstacle is not None, stopped=goes_on)
        if obstacle is not None:
            notes.append(f"instance {instance_id} is not rewound: {obstacle}. It starts from its beginning")
    reaction = REACTIONS[finding][request.on_retry]
    if reaction is StartDecision.REFUSE:
        raise Taken(
            f"instance id {instance_id!r} belongs to another run or program, whose instance is "
            f"{state.status if state else 'starting'}: give an id that contains '{{{{ run_id }}}}', or omit instance_id"
        )
    replaced = state is not None and reaction in STARTS and state.execution_id not in waited
    if state is not None and replaced and await client.instance(instance_id).runs_on():
        waited.add(state.execution_id)
        notes.append(await _terminate(client, state))
    starts, watched = reaction in STARTS, True
    if state is not None and state.released and not starts:
        await client.watches.attend(instance_id)  # this try waits for it, or takes its result
    if not request.waits:
        await _unwatch(client, request, instance_id)
    elif reaction is not StartDecision.RETURN:  # before the start, so that the sweep knows each started instance
        tags = {} if starts or state is None else state.tags or {}
        watch = _watch(request, instance_id, generation, tags.get(OWNER_TAG, task.owner))
        watched = await _announce(client, watch, chosen=request.instance_id is not None)
    if starts:
        # Not ATTACH, which would give this task the instance that another task has started since the reading above. If
        # it is this task's own start whose answer was lost, the next reading finds that.
        policy = StartPolicy.REFUSE if reaction is StartDecision.START else StartPolicy.REPLACE_FINISHED
        try:
            state = await _start(client, request, instance_id, generation, policy)
        except IntakeFull:
            if request.waits and watched:
                await _withdraw(client, watch)
            raise
    elif reaction in rewinds:
        state = await _rewind(client, instance_id, task, terminated=reaction is StartDecision.CONTINUE)
        if not (request.waits and watched):  # without a watch row, the rewind looks like that of somebody else
            await client.watches.attend(instance_id)
    elif state is not None and state.status is Status.PENDING:
        # An earlier try may have died in the middle of its rewind or of its start. A second rewind completes the first
        # one. If no rewind is open, the start message of the Pending instance is put again.
        try:
            state = await _rewind(client, instance_id, task)
        except _CannotRewind:
            state = await _start(client, request, instance_id, generation, StartPolicy.ATTACH)
    if state is not None and not task.started(state.tags):
        raise Conflict(f"another task or program has started instance {instance_id!r} meanwhile")
    owner = ((state.tags if state else None) or {}).get(OWNER_TAG, task.owner)
    if not watched:
        await client.watches.add(_watch(request, instance_id, generation, owner))
    return Launched(instance_id=instance_id, owner=owner, reaction=reaction, notes=tuple(notes))


async def _changed(client: Client, instance_id: str, request: StartRequest, *, by_airflow: bool = False) -> str | None:
    """Read an ended instance with its input, and return how it differs from what the task asks for now.

    :param by_airflow: True: also return who has terminated the instance, if that was not Airflow, or a clear.
    """
    try:
        state = await client.get(instance_id)
    except InputError as error:
        return f"its input cannot be read ({error})"
    if state is None:
        raise InstanceNotFound(f"instance {instance_id!r} was purged meanwhile")
    reason = state.output or ""
    if by_airflow and not _BY_AIRFLOW.fullmatch(reason):
        return f"it was terminated, {reason!r}"
    return difference(state, orchestrator=request.orchestrator, version=request.version, given=request.input)


async def _rewind(client: Client, instance_id: str, task: TaskIdentity, *, terminated: bool = False) -> InstanceState:
    from airflow_provider_taskhub.hub.history.load import HistoryUnreadable

    try:
        why = f"from Airflow: try {task.try_number} of the task"
        return await client.rewind(instance_id, why, terminated=terminated)
    except (InvalidStateError, HistoryUnreadable) as error:
        raise _CannotRewind(str(error)) from error


async def _announce(client: Client, watch: Watch, *, chosen: bool) -> bool:
    """Write the watch row before the start, and return whether it is written.

    Another task may be starting an instance with the same id at the same moment. If this task loses, the row of the
    other task must stay. So the row of another task is replaced only after the start.

    :param chosen: True: the user chose the instance id. False: the id is derived from the task, so no other task has
        it.
    """
    if await client.watches.add(watch, replaces=not chosen):
        return True
    old = await client.watches.get(watch.instance_id)
    if old is None or _task(old) != _task(watch):
        return False
    return await client.watches.add(watch, replaces=old)


async def _withdraw(client: Client, watch: Watch) -> None:
    """Delete the watch row of a start that the hub did not take. If that fails, the sweep deletes it later."""
    with suppress(StorageError):
        found = await client.watches.get(watch.instance_id)
        if found is not None and replace(found, etag=watch.etag) == watch:  # a later try has another waiter
            await client.watches.remove(found)


def _task(watch: Watch) -> object:
    return watch.deployment, watch.dag_id, watch.run_id, watch.task_id, watch.map_index


def _watch(request: StartRequest, instance_id: str, generation: int, owner: str) -> Watch:
    return request.task.watch(instance_id, deployment=request.deployment, owner=owner, generation=generation)


async def _unwatch(client: Client, request: StartRequest, instance_id: str) -> None:
    """Delete the watch row of an earlier try, if the DAG was changed to ``wait_for_completion=False`` in between."""
    if request.task.try_number > 1:
        old = await client.watches.get(instance_id)
        if old is not None and old.deployment == request.deployment:
            await client.watches.remove(old)


async def _start(
    client: Client, request: StartRequest, instance_id: str, generation: int, policy: Any
) -> InstanceState:
    tags = {**request.tags, **request.task.tags(generation)}
    if not request.waits:
        del tags[WATCH_TAG]  # with this tag, the end of the instance would leave a hint that nobody reads
    return await client.start(
        request.orchestrator,
        request.input,
        instance_id=instance_id,
        version=request.version,
        tags=tags,
        start_at=request.start_at,
        limit=request.limit,
        priority=request.priority,
        policy=policy,
        intake_timeout=request.intake_timeout,
    )


async def _terminate(client: Client, state: InstanceState) -> str:
    """Terminate the instance that an earlier generation of the task has started.

    Each clear of the task begins a new generation. This function waits until the instance, its children and its
    activities have ended, but at most :data:`TERMINATE_DEADLINE` seconds and, if a worker is alive, the time for its
    clean-up.

    :param state: the state of the instance.
    :returns: a line for the log, which says whether they have ended.
    """
    instance_id, grace, within = state.instance_id, grace_of(state), Confirmation(TERMINATE_DEADLINE)
    try:
        async with within:
            if grace is not None and any(member.alive for member in await client.admin.workers()):
                within.add(grace)
            why = "from Airflow: the task was cleared and runs again"
            await client.terminate(instance_id, why, wait=True, grace=grace)
    except TimeoutError:
        return f"instance {instance_id}: {within}"
    return f"instance {instance_id} was still running: it is terminated"
