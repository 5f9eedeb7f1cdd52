"""Reads instances for a user of the page: only those that the user may see, with payloads that the user may read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hooks.masking import masked
from airflow_provider_taskhub.plugins.access import dag_of, require, rights_of
from airflow_provider_taskhub.plugins.listing import visible

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.model import InstanceState
    from airflow_provider_taskhub.plugins.client_cache import ClientCache
    from airflow_provider_taskhub.plugins.json_views import Show

HIDDEN = "(needs the right to read task instances of this DAG)"
"""Stands in place of a payload that the user may not read."""


async def readable(cache: ClientCache, instance_id: str, user: Any) -> tuple[InstanceState, tuple[str, ...]]:
    """Return the instance, and error texts about unreadable parts of its row.

    :param cache: the cache of the hub.
    :param user: the user who is logged in.
    :raises HTTPException: with status 404. A user who may not see the instance gets the same error as for an instance
        that does not exist.
    """
    from fastapi import HTTPException

    damaged: tuple[str, ...] = ()
    try:
        state = await cache.once(("get", instance_id), lambda client: client.get(instance_id))
    except InputError as error:
        state = await cache.once(("row", instance_id), lambda client: client.get(instance_id, payloads=False))
        damaged = (str(error),)
    if state is None or not visible(*await rights_of(user))(state):
        raise HTTPException(404, f"there is no instance {instance_id!r}, or you may not see it")
    return state, damaged


async def shows(states: Sequence[InstanceState], user: Any) -> list[Show]:
    """Return for each instance a function that masks its payloads, or hides them if the user may not see them.

    The user's rights are checked once for each DAG and not for each instance, because a check may read Airflow's
    database.
    """
    dags = [dag_of(state) for state in states]
    found = await asyncio.to_thread(lambda: {dag_id: _show(user, dag_id) for dag_id in set(dags)})
    return [found[dag_id] for dag_id in dags]


def _show(user: Any, dag_id: str | None) -> Show:
    from fastapi import HTTPException

    try:
        require(user, dag_id, "TASK_INSTANCE")
    except HTTPException:
        return lambda text: HIDDEN if text else ""
    return masked
