"""Writes what users do on the page into Airflow's audit log: the table ``log``, which Airflow shows as *Audit Log*."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_taskhub.hooks import identity

EVENT = "taskhub.{}"
"""The name of an entry, with the name of the action."""


def record(user: str, action: str, facts: Mapping[str, Any], tags: Mapping[str, str] | None = None) -> None:
    """Write one entry, before the action itself: so there is no action without an entry.

    Airflow writes the entries of its own API in the same way. The call blocks: call it in a thread.

    :param user: the name of the user.
    :param action: the name of the action, at most 50 characters.
    :param facts: what is done to what. The values must be JSON values without secrets.
    :param tags: the tags of the instance. They name the task to which Airflow assigns the entry.
    :raises HTTPException: with status 503 if Airflow's database refuses the entry.
    """
    from airflow.models import Log
    from airflow.utils.session import create_session
    from fastapi import HTTPException
    from sqlalchemy.exc import SQLAlchemyError

    tags = tags or {}
    index = tags.get(identity.MAP_TAG, "")
    task = {
        "dag_id": tags.get(identity.DAG_TAG),
        "run_id": tags.get(identity.RUN_TAG),
        "task_id": tags.get(identity.TASK_TAG),
        "map_index": int(index) if index.lstrip("-").isdigit() else None,
    }
    try:
        with create_session() as session:
            session.add(
                Log(
                    event=EVENT.format(action),
                    owner=user,
                    owner_display_name=user,
                    extra=json.dumps(dict(facts), ensure_ascii=False),
                    **task,
                )
            )
    except SQLAlchemyError as error:
        raise HTTPException(
            503, f"nothing was done, because Airflow's audit log cannot be written ({type(error).__name__}): try again"
        ) from error
