"""Clears the Airflow task of an instance through Airflow's own API, in the name of the user of the page.

The request goes to the application of this API server, in memory, with the credentials of the user's own request. So
Airflow checks the user's rights, and its audit log names the user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from airflow_provider_taskhub.hooks import identity

DEADLINE = 60.0
"""Seconds to wait for Airflow's answer. A clear of a mapped task with many rows takes some seconds."""
_CREDENTIALS = ("authorization", "cookie")


@dataclass(frozen=True, slots=True)
class Sender:
    """The user who has sent an order.

    :param name: the user's name.
    :param credentials: the headers of the user's request that say who it is.
    """

    name: str
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, user: Any, headers: Mapping[str, str]) -> Sender:
        """Make it from the user whom Airflow has recognised, and the headers of the request."""
        return cls(user.get_name(), {name: headers[name] for name in _CREDENTIALS if name in headers})


async def clear(task: identity.TaskIds, sender: Sender, note: str, *, before: Callable[[], Awaitable[None]]) -> int:
    """Clear a failed task, and the failed tasks downstream of it, so that the DAG run goes on.

    :param task: the task.
    :param note: a note that Airflow shows beside the tasks.
    :param before: is called when Airflow has said that it would clear the task, and before it does.
    :returns: the number of tasks that were cleared.
    :raises HTTPException: if Airflow refuses it, or the task has not failed.
    """
    from fastapi import HTTPException

    task_id, index = task.task_id, task.map_index
    order = {
        "dag_run_id": task.run_id,
        "task_ids": [task_id if index < 0 else [task_id, index]],
        "only_failed": True,
        "include_downstream": True,
        "reset_dag_runs": True,
        "note": note[:1000],
    }
    path = f"/api/v2/dags/{quote(task.dag_id, safe='')}/clearTaskInstances"
    cleared: list[Any] = []
    for dry_run in (True, False):
        if not dry_run:
            await before()
        answer = await _post(path, {**order, "dry_run": dry_run}, sender)
        if answer.status_code != 200:
            done = "" if dry_run else ". The instance is rewound and goes on: clear its task in Airflow"
            raise HTTPException(answer.status_code, f"Airflow refuses to clear the task: {_why(answer)}{done}")
        cleared = answer.json()["task_instances"]
        if not any((one["task_id"], one.get("map_index", identity.UNMAPPED)) == (task_id, index) for one in cleared):
            run = f"run {task.run_id!r}"
            raise HTTPException(
                409,
                f"task {task_id!r} of {run} has not failed, so there is nothing to clear. If a retry of it follows, "
                "the retry goes on from the failure. If the task did not wait for the instance, rewind the instance",
            )
    return len(cleared)


async def _post(path: str, order: Mapping[str, Any], sender: Sender) -> Any:
    import httpx
    from fastapi import HTTPException

    transport = httpx.ASGITransport(app=_airflow(), raise_app_exceptions=False)
    try:
        async with (
            asyncio.timeout(DEADLINE),
            httpx.AsyncClient(transport=transport, base_url="http://in-process.invalid", timeout=None) as client,
        ):
            return await client.post(path, json=order, headers=dict(sender.credentials))
    except TimeoutError:
        raise HTTPException(
            503, f"Airflow has not answered within {DEADLINE:g} s: look at the task before you repeat the order"
        ) from None


def _airflow() -> Any:
    """Return the application of this API server."""
    from airflow.api_fastapi.main import app

    return app


def _why(answer: Any) -> str:
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.text
    return str(detail)[:1000]
