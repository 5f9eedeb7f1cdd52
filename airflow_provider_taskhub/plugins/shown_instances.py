"""Reads instances for a user of the page: only those that the user may see, with payloads that the user may read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hooks.masking import masked
from airflow_provider_taskhub.plugins.access import dag_of, require, rights_of
from airflow_provider_taskhub.plugins.index import Row, row_of
from airflow_provider_taskhub.plugins.listing import visible, with_error

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


async def rows_of(cache: ClientCache, text: str) -> tuple[Row, ...]:
    """Return the instances that the index has, the newest first, and the one whose whole id is the text.

    Call this function after :meth:`.ClientCache.instances`.

    :param cache: the cache of the hub.
    :param text: what the user searches for. If the index has no instance with this id, the instance is read by its id,
        because the index may not have read it yet, or may have no room for it.
    """
    if not text or cache.index.get(text) is not None:
        return cache.index.rows()
    state = None
    with suppress(InputError):  # no instance can have this id
        state = await cache.row(text)
    rows = cache.index.rows()
    if state is None or cache.index.get(text) is not None:
        return rows
    return tuple(sorted((row_of(state), *rows), key=attrgetter("created"), reverse=True))


async def error_rights(user: Any, rows: Iterable[Row], text: str) -> Callable[[Row], bool]:
    """Return a function that says of each row whose error contains a text whether the user may read the error.

    :param user: the user who is logged in.
    :param rows: instances that the user may see.
    :param text: a part of an error; "": the function is not needed.
    """
    reads = await payload_rights(user, {row.dag for row in with_error(rows, text)} if text else set())
    return lambda row: reads[row.dag]


async def shows(states: Sequence[InstanceState], user: Any) -> list[Show]:
    """Return for each instance a function that masks its payloads, or hides them if the user may not see them.

    The user's rights are checked once for each DAG and not for each instance, because a check may read Airflow's
    database.
    """
    dags = [dag_of(state) for state in states]
    reads = await payload_rights(user, dags)
    return [masked if reads[dag_id] else _hidden for dag_id in dags]


async def payload_rights(user: Any, dags: Iterable[str | None]) -> Mapping[str | None, bool]:
    """Return for each DAG whether the user may read the payloads of its instances.

    :param user: the user who is logged in, and who may see these instances.
    :param dags: ids of DAGs; None: of no DAG.
    """
    return await asyncio.to_thread(lambda: {dag_id: _may_read(user, dag_id) for dag_id in set(dags)})


def _hidden(text: str | None) -> str:
    return HIDDEN if text else ""


def _may_read(user: Any, dag_id: str | None) -> bool:
    from fastapi import HTTPException

    try:
        require(user, dag_id, "TASK_INSTANCE")
    except HTTPException:
        return False
    return True
