"""Orders to all instances that match the list's filter.

The page reads what it would change (``/api/targets``), asks the user, and then sends the order in batches, one after
another. So the server keeps no job: a restart of the API server loses nothing, several API servers need no common
memory, and the page can show each refusal, stop, and go on after a reload. Each instance of a batch is checked and
audited like a single order, with what the page saw before it asked.

No ``from __future__ import annotations`` here: FastAPI could not resolve the annotations of routes that are defined
inside a function.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import TaskHubError
from airflow_provider_taskhub.hooks.masking import masked
from airflow_provider_taskhub.plugins import access, actions, orders
from airflow_provider_taskhub.plugins.clearing import Sender
from airflow_provider_taskhub.plugins.filters import Wanted, wanted
from airflow_provider_taskhub.plugins.index import Row
from airflow_provider_taskhub.plugins.listing import chosen, seen_by
from airflow_provider_taskhub.plugins.shown_hubs import open_hub
from airflow_provider_taskhub.plugins.shown_instances import error_rights, rows_of

MOST_ORDERS = 25
"""The largest number of instances in one batch."""
MOST_TARGETS = 1_000
"""The largest number of instances in one answer about what an order would change."""
PATIENCE = 10.0
"""Seconds for which a question for targets waits for the newest changes, because they tell what an order would do."""
_PARALLEL = 4


class Target(BaseModel):
    """One instance of a batch, and what the user saw of it. The fields mean the same as those of a single order."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: str = Field(min_length=1, max_length=300)
    execution: str | None = Field(None, max_length=300)
    status: Status | None = None


class Batch(orders.Order):
    """:param targets: the instances that get the order."""

    targets: list[Target] = Field(min_length=1, max_length=MOST_ORDERS)


class TerminationBatch(Batch):
    """:param children: True: also terminate the children that have not ended."""

    children: bool = True


BATCHES: Mapping[str, type[Batch]] = {
    "terminate": TerminationBatch,
    "suspend": Batch,
    "resume": Batch,
    "repair": Batch,
    "rewind": Batch,
    "restart": Batch,
    "purge": Batch,
}
"""The orders that can be given to many instances at once, by the last part of their addresses."""


def routes() -> Any:
    """Create the routes. They need the right to see plugins, as the page does."""
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
    from fastapi import APIRouter, Depends, HTTPException, Query, Request

    router = APIRouter(prefix="/api", dependencies=[Depends(requires_access_view(AccessView.PLUGINS))])

    @router.get("/orders")
    async def allowed(user: GetUserDep) -> dict[str, Any]:
        """Return the orders that the user may give to many instances; none for a user who may only look."""
        return {"orders": list(BATCHES) if await access.may_edit_runs(user) else [], "most": MOST_ORDERS}

    @router.get("/targets")
    async def targets(
        user: GetUserDep,
        action: Annotated[str, Query(max_length=30)],
        filter: Annotated[Wanted, Depends(wanted())],
        conn: Annotated[str, Query(max_length=250)] = "",
        after: Annotated[str, Query(max_length=300)] = "",
    ) -> dict[str, Any]:
        """Return instances that an order over the list's filter would change, in the order of their ids.

        An instance that the user may not change, or whose status does not allow the order, is only counted. ``after``
        of the answer begins the next part; null: there are no more. So an instance that is started or ends meanwhile
        moves no other one from one part to another.
        """
        if action not in BATCHES:
            raise HTTPException(422, f"action {action!r} does not exist")
        cache, head = await open_hub(conn)
        index = await cache.instances(patience=PATIENCE)
        reading = index.reading  # before the instances are looked at: later it could say that all were read
        own = seen_by(await rows_of(cache, filter.text), *await access.rights_of(user))
        matching = chosen(own, filter, reads=await error_rights(user, own, filter.error))
        may = await access.editable(user, matching)
        able = sorted((one for one in matching if _allows(one, action) and may(one)), key=lambda one: one.instance_id)
        left = [one for one in able if one.instance_id > after]
        return head | {
            "capped": index.capped,
            "reading": reading,
            "matching": len(matching),
            "forbidden": sum(not may(one) for one in matching),
            "able": len(able),
            "targets": [
                {"id": one.instance_id, "execution": one.execution_id, "status": str(one.status)}
                for one in left[:MOST_TARGETS]
            ],
            "after": left[MOST_TARGETS - 1].instance_id if len(left) > MOST_TARGETS else None,
        }

    @router.post("/instances/{name}")
    async def act(name: str, request: Request, user: GetUserDep) -> dict[str, Any]:
        """Carry out one batch. Each instance has its own result: a refusal of one does not stop the others."""
        model = BATCHES.get(name)
        if model is None:
            raise HTTPException(404, f"no order {name!r} for many instances: there are {', '.join(BATCHES)}")
        batch = await orders.read(request, model)
        if len({target.id for target in batch.targets}) < len(batch.targets):
            raise HTTPException(422, "targets: an instance is there twice")
        cache, head = await open_hub(batch.conn)
        common = batch.model_dump(exclude={"targets"})
        sender = Sender.of(user, request.headers)

        async def one(target: Target) -> dict[str, Any]:
            order = actions.ACTIONS[name].order.model_validate(common | target.model_dump())
            try:
                done = await actions.carry_out(name, order, user, sender, cache, head["hub"])
            except HTTPException as refused:
                return {"id": target.id, "code": refused.status_code, "text": refused.detail}
            except TaskHubError as error:  # before the order: the store did not answer the question for the instance
                return {"id": target.id, "code": 503, "text": f"{masked(str(error))}; nothing was done"}
            return {"id": target.id, "code": 200, "text": done["text"]}

        return {"results": await gather_bounded(one, batch.targets, limit=_PARALLEL)}

    return router


def _allows(state: Row, action: str) -> bool:
    """Return whether an order makes sense for an instance: as the buttons on the page of the instance."""
    return action in actions.actions_of(state)
