"""Asks Airflow what a user of the page may see and change.

An instance belongs to the DAG in its tags. Instances that no DAG has started belong to administrators. An administrator
is a user who may edit connections, because a connection contains the hub's key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.hooks import identity
from airflow_provider_taskhub.plugins.listing import Tagged, visible

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.model import InstanceState


async def rights_of(user: Any) -> tuple[set[str], bool]:
    """Return the ids of the DAGs that the user may read, and whether the user is an administrator.

    Airflow reads its database to find the ids of the DAGs, so the request runs in a thread.

    :param user: the user who is logged in.
    """
    from airflow.api_fastapi.app import get_auth_manager

    manager = get_auth_manager()
    dags: set[str] = await asyncio.to_thread(manager.get_authorized_dag_ids, user=user, method="GET")
    return dags, is_administrator(user)


def is_administrator(user: Any) -> bool:
    """Return whether the user may see and change everything in the hub. :param user: the user who is logged in."""
    from airflow.api_fastapi.app import get_auth_manager

    return bool(get_auth_manager().is_authorized_connection(method="PUT", user=user))


def require(user: Any, dag_id: str | None, entity: str, *, method: str = "GET") -> None:
    """Check that the user has one right on one kind of data of a DAG. The check may read Airflow's database.

    :param user: the user who is logged in.
    :param dag_id: the DAG that started the instance; None: no DAG started it. Only an administrator can get so far
        with such an instance, so nothing is checked.
    :param entity: the kind of data: the name of a ``DagAccessEntity`` of Airflow.
    :param method: GET: the right to read; PUT: the right to edit.
    :raises HTTPException: with status 403 if the user does not have the right.
    """
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
    from airflow.api_fastapi.core_api.security import requires_access_dag

    if dag_id is not None:
        requires_access_dag(method, DagAccessEntity[entity], dag_id)(None, user)


async def sees(user: Any, state: InstanceState | None) -> bool:
    """Return whether the user may see an instance. False for None.

    :param user: the user who is logged in.
    :param state: the instance; None: there is no instance.
    """
    return state is not None and visible(*await rights_of(user))(state)


async def may_edit(user: Any, state: InstanceState) -> bool:
    """Return whether the user may change an instance: whether the user may edit the runs of its DAG.

    :param user: the user who is logged in, and who may see the instance.
    :param state: the instance.
    """
    from fastapi import HTTPException

    try:
        await asyncio.to_thread(require, user, dag_of(state), "RUN", method="PUT")
    except HTTPException:
        return False
    return True


async def editable(user: Any, states: Iterable[Tagged]) -> Callable[[Tagged], bool]:
    """Return a function that says whether the user may change an instance. The right is checked once for each DAG.

    :param user: the user who is logged in, and who may see the instances.
    :param states: the instances about which the function can be asked.
    """
    from fastapi import HTTPException

    def may(dag_id: str | None) -> bool:
        try:
            require(user, dag_id, "RUN", method="PUT")
        except HTTPException:
            return False
        return True

    found = await asyncio.to_thread(lambda dags: {dag_id: may(dag_id) for dag_id in dags}, set(map(dag_of, states)))
    return lambda state: found[dag_of(state)]


async def may_edit_runs(user: Any) -> bool:
    """Return whether the user may edit runs of some DAG, so that buttons for orders make sense.

    :param user: the user who is logged in.
    """
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity

    manager = get_auth_manager()
    return is_administrator(user) or bool(
        await asyncio.to_thread(
            lambda: manager.is_authorized_dag(method="PUT", access_entity=DagAccessEntity.RUN, user=user)
        )
    )


def dag_of(state: Tagged) -> str | None:
    """Return the id of the DAG whose task started the instance; None: no DAG started it. :param state: the instance."""
    return (state.tags or {}).get(identity.DAG_TAG)
