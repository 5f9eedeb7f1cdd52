"""The orders of the page's users to one instance: terminate, suspend, resume, repair, rewind, restart, and so on.

A user needs the right to edit the runs of the DAG that started the instance. The user's name is in the reason, and in
Airflow's audit log.

No ``from __future__ import annotations`` here: FastAPI could not resolve the annotations of routes that are defined
inside a function.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.errors import InstanceNotFound, InvalidStateError
from airflow_provider_taskhub.hooks.identity import TaskIds
from airflow_provider_taskhub.hooks.masking import masked
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.hub.refusals import refused
from airflow_provider_taskhub.plugins import access, audit, orders
from airflow_provider_taskhub.plugins.clearing import Sender, clear
from airflow_provider_taskhub.plugins.index import Row
from airflow_provider_taskhub.plugins.shown_hubs import open_hub

if TYPE_CHECKING:
    from airflow_provider_taskhub.client.handle import InstanceHandle
    from airflow_provider_taskhub.plugins.client_cache import ClientCache


class InstanceOrder(orders.Order):
    """An order to one instance.

    :param id: the instance id.
    :param execution: the execution id that the user saw. If it belongs to another run now, the instance was started
        again meanwhile, and the order is refused. Later generations (``continue_as_new``) belong to the run. None: any.
    :param status: the status that the user saw. Orders to an ended instance are refused if the status is another one
        now. None: any status.
    """

    id: str = Field(min_length=1, max_length=300)
    execution: str | None = Field(None, max_length=300)
    status: Status | None = None


class Termination(InstanceOrder):
    """:param children: True: also terminate the children that have not ended."""

    children: bool = True


class Restart(InstanceOrder):
    """:param new_id: True: start a new instance beside this one; False: this instance must have ended."""

    new_id: bool = False


class Event(InstanceOrder):
    """:param name: the name of the event. :param data: its content: any JSON value."""

    name: str = Field(min_length=1, max_length=250)
    data: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One kind of order.

    :param order: the fields of the order.
    :param do: carries the order out, and returns the id of the instance to look at afterwards. Its arguments are the
        instance, the order, the reason with the user's name, and the user.
    :param done: what the page says afterwards.
    :param ended: the statuses that an instance may have; empty: the client decides.
    """

    order: type[InstanceOrder]
    do: Callable[["InstanceHandle", Any, str, Sender], Awaitable[str]]
    done: str
    ended: frozenset[Status] = frozenset()


async def _terminate(instance: "InstanceHandle", order: Termination, reason: str, user: Sender) -> str:
    runs = await instance.runs_on()
    before = await instance.terminate(reason, recurse=order.children)
    if not runs:
        raise refused(before, "there is nothing to terminate")
    return instance.id


async def _suspend(instance: "InstanceHandle", order: InstanceOrder, reason: str, user: Sender) -> str:
    await instance.suspend(reason, by=f"{user.name} (Airflow)")
    return instance.id


async def _resume(instance: "InstanceHandle", order: InstanceOrder, reason: str, user: Sender) -> str:
    await instance.resume(reason)
    return instance.id


async def _repair(instance: "InstanceHandle", order: InstanceOrder, reason: str, user: Sender) -> str:
    state = await instance.get(payloads=False)
    task = TaskIds.of_tags(state.tags) if state is not None else None
    if task is None:
        raise InvalidStateError(f"instance {instance.id!r} has no Airflow task: rewind it")
    if (newer := await _newer(instance, task)) is not None:
        raise InvalidStateError(
            f"the task of instance {instance.id!r} was cleared since, and now has instance {newer!r}: repair that one"
        )

    async def rewind() -> None:
        """The task that was cleared then goes on with the instance, whatever its ``on_clear`` is."""
        if state is not None and state.status is Status.FAILED:
            await instance.rewind(reason)

    await clear(task, user, reason, before=rewind)
    return instance.id


async def _newer(instance: "InstanceHandle", task: TaskIds) -> str | None:
    """Return the id of the instance that a clear of the task has started after this one; None: there is none."""
    generation = instance.id.rpartition(":g")[2]
    if not generation.isascii() or not generation.isdigit() or task.instance_id(int(generation)) != instance.id:
        return None  # its author chose the id, or it is a child
    newer = TaskIds.successor(instance.id)
    return newer if await instance.other(newer).get(payloads=False) is not None else None


async def _rewind(instance: "InstanceHandle", order: InstanceOrder, reason: str, user: Sender) -> str:
    await instance.rewind(reason)
    return instance.id


async def _restart(instance: "InstanceHandle", order: Restart, reason: str, user: Sender) -> str:
    return (await instance.restart(new_id=order.new_id)).instance_id


async def _raise_event(instance: "InstanceHandle", order: Event, reason: str, user: Sender) -> str:
    await instance.raise_event(order.name, order.data)
    return instance.id


async def _purge(instance: "InstanceHandle", order: InstanceOrder, reason: str, user: Sender) -> str:
    if not await instance.purge():
        raise InstanceNotFound(f"instance {instance.id!r} was purged meanwhile")
    return instance.id


_DONE = {"repair": "repaired", "rewind": "rewound"}
_ENDED = frozenset(status for status in Status if status.is_final)
ACTIONS: Mapping[str, Action] = {
    "terminate": Action(
        order=Termination, do=_terminate, done="The hub has the order. A worker terminates the instance."
    ),
    "suspend": Action(order=InstanceOrder, do=_suspend, done="The hub has the order. A worker suspends the instance."),
    "resume": Action(order=InstanceOrder, do=_resume, done="The hub has the order. A worker resumes the instance."),
    "repair": Action(
        order=InstanceOrder,
        do=_repair,
        done="Airflow has cleared the task. When it runs, the instance goes on from before its failure.",
        ended=frozenset({Status.FAILED}),
    ),
    "rewind": Action(
        order=InstanceOrder,
        do=_rewind,
        done="The instance goes on from before its failure. Until it ends, its status is Pending.",
        ended=frozenset({Status.FAILED, Status.PENDING}),  # Pending: perhaps a rewind was interrupted
    ),
    "restart": Action(order=Restart, do=_restart, done="The instance is started again."),
    "raise-event": Action(order=Event, do=_raise_event, done="The event is sent."),
    "purge": Action(order=InstanceOrder, do=_purge, done="The instance is deleted.", ended=_ENDED),
}
"""The actions by the last part of their addresses."""


def actions_of(state: InstanceState | Row, *, runs: bool = False) -> tuple[str, ...]:
    """Return the names of the actions that the state of an instance allows.

    The row of an instance is Pending before the message of a rewind or restart is sent. If the order was interrupted in
    between, a second one completes it.

    :param state: the instance.
    :param runs: True if activities of the instance run.
    """
    if not state.status.is_final:
        opposite = "resume" if state.status is Status.SUSPENDED else "suspend"
        names = ("raise-event", opposite, "terminate")
        if state.status is not Status.PENDING:
            return names
        if state.completed is not None:  # the row of a rewound instance keeps the time of the failure
            return (*names, "rewind")
        return (*names, "restart") if state.restarts else names
    if state.status is not Status.FAILED:
        return ("restart", "purge")
    stops = ("terminate",) if runs else ()
    return (*(("repair",) if TaskIds.of_tags(state.tags) else ()), "rewind", "restart", *stops, "purge")


def routes() -> Any:
    """Create the routes of the actions. They need the right to see plugins, as the page does."""
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
    from fastapi import APIRouter, Depends, HTTPException, Request

    router = APIRouter(prefix="/api", dependencies=[Depends(requires_access_view(AccessView.PLUGINS))])

    @router.post("/instance/{name}")
    async def act(name: str, request: Request, user: GetUserDep) -> dict[str, str]:
        action = ACTIONS.get(name)
        if action is None:
            raise HTTPException(404, f"no action {name!r}: there are {', '.join(ACTIONS)}")
        order = await orders.read(request, action.order)
        cache, head = await open_hub(order.conn)
        return await carry_out(name, order, user, Sender.of(user, request.headers), cache, head["hub"])

    return router


async def carry_out(
    name: str, order: InstanceOrder, user: Any, sender: Sender, cache: "ClientCache", hub: str
) -> dict[str, str]:
    """Check one order, write it into the audit log, and send it to the hub.

    :param name: the name of the action.
    :param order: the order, of the class that the action demands.
    :param user: the user who is logged in, whose rights are checked.
    :param sender: the same user, with the credentials of the request.
    :param cache: the cache of the hub.
    :param hub: the name of the hub, for the audit log.
    :returns: the id of the instance to look at, and a text for the user.
    :raises HTTPException: if the order is refused, with the reason and the way out.
    """
    from fastapi import HTTPException

    action = ACTIONS[name]
    client = await cache.client()
    state = await client.get(order.id, payloads=False)
    if state is None or not await access.sees(user, state):
        raise HTTPException(404, f"there is no instance {order.id!r}, or you may not see it")
    await _check_right(user, state)
    check_unchanged(state, name, order)
    who = sender.name
    facts = {"hub": hub, "instance_id": order.id, "execution_id": state.execution_id} | _extra(order)
    await asyncio.to_thread(audit.record, who, name, facts, state.tags)
    with orders.answered(cache):
        shown = await action.do(client.instance(order.id), order, signed(order.reason, who), sender)
    if name == "purge":
        cache.index.drop(order.id)
    return {"id": shown, "text": action.done}


async def _check_right(user: Any, state: InstanceState) -> None:
    from fastapi import HTTPException

    if not await access.may_edit(user, state):
        raise HTTPException(
            403,
            f"this needs the right to edit runs of DAG {access.dag_of(state)!r}: ask an administrator of Airflow",
        )


def check_unchanged(state: InstanceState, name: str, order: InstanceOrder) -> None:
    """Check that the instance is still what the user saw.

    :param state: the instance now.
    :param name: the name of the action.
    :param order: the order, with what the user saw.
    :raises HTTPException: with status 409 if the order would do something else than the user wanted.
    """
    from fastapi import HTTPException

    if order.execution is not None and not same_start(order.execution, state.execution_id):
        raise HTTPException(
            409, f"instance {order.id!r} was started again meanwhile: look at it, then repeat the order if you want"
        )
    allowed = ACTIONS[name].ended
    if allowed and state.status not in allowed:
        way = "terminate it first" if name == "purge" else f"only a failed instance can be {_DONE[name]}"
        raise HTTPException(409, f"instance {order.id!r} is {state.status} now: {way}")
    ends = order.status is not None and order.status.is_final
    if ends and order.status is not state.status:
        raise HTTPException(
            409,
            f"instance {order.id!r} was {order.status} and is {state.status} now: look at it, then repeat the order",
        )


def signed(reason: str, user: str) -> str:
    """Return the reason that the hub stores: who gave the order, and why.

    :param reason: the user's own text; may be empty.
    :param user: the name of the user.
    """
    who = f"from Airflow: {user} on TaskHub's page"
    return f"{who}: {reason.strip()}" if reason.strip() else who


def _extra(order: InstanceOrder) -> dict[str, Any]:
    """Return what the audit log says about an order. The data of an event is left out: it may be secret."""
    extra: dict[str, Any] = {"reason": masked(order.reason)} if order.reason.strip() else {}
    match order:
        case Termination():
            extra["children"] = order.children
        case Restart():
            extra["new_id"] = order.new_id
        case Event():
            extra["event"] = masked(order.name)
    return extra
