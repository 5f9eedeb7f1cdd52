"""The page's tabs Partitions, Workers, Limits and Quarantine: their data, and the orders of administrators.

Every user of the page sees the partitions and the workers. Only administrators see the names of orchestrators and
activities and the quarantine, because these belong to DAGs, and only administrators give orders. Who may edit runs sees
the limits and changes them, but only administrators see which instances run under them.

No ``from __future__ import annotations`` here: FastAPI could not resolve the annotations of routes that are defined
inside a function.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from airflow_provider_taskhub.hooks.masking import masked
from airflow_provider_taskhub.hub.model import Control, ControlKind
from airflow_provider_taskhub.instance_limit import MOST
from airflow_provider_taskhub.plugins import access, audit, hub_views, orders
from airflow_provider_taskhub.plugins.shown_hubs import open_hub

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client

MOST_MESSAGES = 200
"""The largest number of messages in quarantine that the page lists."""


class PartitionOrder(orders.Order):
    """An order about one partition.

    :param partition: its number.
    :param epoch: the epoch that the user saw. If the partition has another owner since then, the order is refused.
        None: any owner.
    """

    partition: int = Field(ge=0)
    epoch: int | None = None


class WorkerOrder(orders.Order):
    """:param worker: the worker: ``name@host``, ``name`` or ``@host``, as in the command line."""

    worker: str = Field(min_length=1, max_length=250)


class MessageOrder(orders.Order):
    """:param id: the id of the message in quarantine."""

    id: str = Field(min_length=1, max_length=300)


class LimitOrder(orders.Order):
    """An order about a limit.

    :param name: the name of the limit.
    :param kind: what it counts: ``activity``, ``rate`` or ``instances``.
    :param number: how many may run at once; None: the declared number counts again.
    """

    name: str = Field(min_length=1, max_length=300)
    kind: Literal["activity", "rate", "instances"]
    number: int | None = Field(None, ge=1, le=MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One kind of order.

    :param order: the fields of the order.
    :param do: carries the order out, and returns what the page says. Its arguments are the client, the order and the
        name of who gives it.
    :param edits_runs: True: a user who may edit runs may give the order; False: only an administrator.
    """

    order: type[orders.Order]
    do: Callable[["Client", Any, str], Awaitable[str]]
    edits_runs: bool = False


async def _kick(client: "Client", order: PartitionOrder, by: str) -> str:
    await _check_owner(client, order)
    owner = await client.admin.partition_operations_by(by).kick(order.partition, reason=order.reason)
    if owner is None:
        raise _refused(409, f"no worker owns partition {order.partition}: there is nobody to hand it over")
    return f"{owner} is asked to hand partition {order.partition} over. A worker takes it, perhaps the same one."


async def _offline(client: "Client", order: PartitionOrder, by: str) -> str:
    await client.admin.partition_operations_by(by).offline([order.partition], order.reason)
    return f"Partition {order.partition} goes offline. Its messages wait until you take it online again."


async def _online(client: "Client", order: PartitionOrder, by: str) -> str:
    if not await client.admin.partition_operations_by(by).online([order.partition]):
        raise _refused(409, f"partition {order.partition} is not offline by order: somebody has lifted the order")
    return f"Partition {order.partition} is online again. A worker takes it."


async def _drain(client: "Client", order: WorkerOrder, by: str) -> str:
    if not any(_means(order.worker, member.worker) for member in await client.admin.workers()):
        raise _refused(404, f"no worker has the name {order.worker!r} now: load the page again")
    await client.admin.partition_operations_by(by).drain_node(order.worker, order.reason)
    return f"{order.worker} hands over its partitions and takes none until you lift the order."


async def _undrain(client: "Client", order: WorkerOrder, by: str) -> str:
    if not await client.admin.partition_operations_by(by).undrain_node(order.worker):
        raise _refused(409, f"{order.worker} is not drained: somebody has lifted the order, or it has another name")
    return f"{order.worker} may take partitions again."


async def _put_back(client: "Client", order: MessageOrder, by: str) -> str:
    if not await client.admin.put_back(order.id):
        raise _gone(order.id)
    return "The message is in its queue again. If its instance was stuck, all messages of the instance are."


async def _drop(client: "Client", order: MessageOrder, by: str) -> str:
    if not await client.admin.drop_quarantined(order.id):
        raise _gone(order.id)
    return "The message is deleted."


async def _limit(client: "Client", order: LimitOrder, by: str) -> str:
    state = await client.admin.set_limit(order.name, order.number, kind=order.kind, by=by)
    what = "begin" if state.seconds else "run at once"
    return f"At most {state.shown} {what} from now on. What runs goes on."


ACTIONS: Mapping[str, Mapping[str, Action]] = {
    "partition": {
        "kick": Action(order=PartitionOrder, do=_kick),
        "offline": Action(order=PartitionOrder, do=_offline),
        "online": Action(order=PartitionOrder, do=_online),
    },
    "worker": {"drain": Action(order=WorkerOrder, do=_drain), "undrain": Action(order=WorkerOrder, do=_undrain)},
    "limit": {"set": Action(order=LimitOrder, do=_limit, edits_runs=True)},
    "message": {"put-back": Action(order=MessageOrder, do=_put_back), "drop": Action(order=MessageOrder, do=_drop)},
}
"""The actions by what they act on and by their names: the last two parts of their addresses."""


def routes() -> Any:
    """Create the routes of the three tabs. They need the right to see plugins, as the page does."""
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
    from fastapi import APIRouter, Depends, Query, Request

    router = APIRouter(prefix="/api", dependencies=[Depends(requires_access_view(AccessView.PLUGINS))])
    Conn = Annotated[str, Query(max_length=250)]

    @router.get("/partitions")
    async def partitions(user: GetUserDep, conn: Conn = "") -> dict[str, Any]:
        cache, head = await open_hub(conn)
        states, controls = await asyncio.gather(
            cache.once("partitions", lambda client: client.admin.partitions()), cache.once("controls", _controls)
        )
        return head | {
            "may": access.is_administrator(user),
            "partitions": [hub_views.partition(state, controls) for state in states],
            "orders": [hub_views.order(control) for control in controls if control.partition is None],
        }

    @router.get("/workers")
    async def workers(user: GetUserDep, conn: Conn = "") -> dict[str, Any]:
        cache, head = await open_hub(conn)
        members, states, controls = await asyncio.gather(
            cache.once("members", lambda client: client.admin.workers()),
            cache.once("partitions", lambda client: client.admin.partitions()),
            cache.once("controls", _controls),
        )
        may = access.is_administrator(user)
        rows = [hub_views.worker(one, states, _drained(one.worker, controls), names=may) for one in members]
        return head | {"may": may, "workers": rows}

    @router.get("/limits")
    async def limits(user: GetUserDep, conn: Conn = "") -> dict[str, Any]:
        await _check_editor(user)
        cache, head = await open_hub(conn)
        found = await cache.once("limits", lambda client: client.admin.limits())
        names = access.is_administrator(user)
        return head | {"may": True, "limits": [hub_views.limit(state, names=names) for state in found]}

    @router.get("/quarantine")
    async def quarantine(user: GetUserDep, conn: Conn = "") -> dict[str, Any]:
        await _check_administrator(user)
        cache, head = await open_hub(conn)
        found = await cache.once(
            "quarantine", lambda client: client.admin.quarantined(bodies=False, limit=MOST_MESSAGES + 1)
        )
        return head | {
            "may": True,
            "messages": [hub_views.message(item) for item in found[:MOST_MESSAGES]],
            "more": len(found) > MOST_MESSAGES,
        }

    @router.post("/{thing}/{name}")
    async def act(thing: str, name: str, request: Request, user: GetUserDep) -> dict[str, str]:
        action = ACTIONS.get(thing, {}).get(name)
        if action is None:
            known = ", ".join(f"{one}/{each}" for one, names in ACTIONS.items() for each in names)
            raise _refused(404, f"no action {thing}/{name}: there are instance/…, {known}")
        order = await orders.read(request, action.order)
        await (_check_editor(user) if action.edits_runs else _check_administrator(user))
        cache, head = await open_hub(order.conn)
        who = user.get_name()
        facts = {"hub": head["hub"]} | _facts(order)
        await asyncio.to_thread(audit.record, who, f"{thing}.{name}", facts)
        client = await cache.client()
        with orders.answered(cache):
            text = await action.do(client, order, f"{who} (Airflow)")
        return {"text": text}

    return router


async def _controls(client: "Client") -> tuple[Control, ...]:
    return await client.admin.partition_operations.controls()


async def _check_owner(client: "Client", order: PartitionOrder) -> None:
    if order.epoch is None:
        return
    states = await client.admin.partitions()
    epoch = next((state.epoch for state in states if state.partition == order.partition), order.epoch)
    if epoch != order.epoch:
        raise _refused(
            409, f"partition {order.partition} has another owner meanwhile: look at it, then repeat the order"
        )


def _drained(worker: str, controls: tuple[Control, ...]) -> Control | None:
    drains = (one for one in controls if one.kind is ControlKind.DRAIN and one.node is not None)
    return next((one for one in drains if _means(one.node or "", worker)), None)


def _facts(order: orders.Order) -> dict[str, Any]:
    """Return what the audit log says about an order."""
    given = order.model_dump(exclude={"conn", "epoch"})
    return {name: masked(value) if isinstance(value, str) else value for name, value in given.items() if value != ""}


def _means(node: str, worker: str) -> bool:
    """Return whether an administrator means this worker by a name. See ``taskhub partitions --help`` for the names."""
    from airflow_provider_taskhub.hub.partitions.orders import names

    return names(node, worker)


async def _check_editor(user: Any) -> None:
    if not await access.may_edit_runs(user):
        raise _refused(403, "this needs the right to edit runs of a DAG: ask an administrator of Airflow")


async def _check_administrator(user: Any) -> None:
    if not access.is_administrator(user):
        raise _refused(403, "this needs the right to edit connections, because it concerns instances of all DAGs")


def _gone(message_id: str) -> Exception:
    return _refused(404, f"message {message_id!r} is not in quarantine: somebody has put it back or dropped it")


def _refused(status: int, text: str) -> Exception:
    from fastapi import HTTPException

    return HTTPException(status, text)
