"""Waits for an instance in the Airflow worker, for tasks with ``deferrable=False``."""

from __future__ import annotations

import os
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from airflow.sdk import conf

from airflow_provider_taskhub.hooks.taskhub import run_async

if TYPE_CHECKING:
    from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger


def default_deferrable() -> bool:
    """Return the value of ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` if this environment variable is set, else True.

    ``airflow.cfg`` does not count: Airflow writes its own default (False) into each new ``airflow.cfg``, so a False
    there is nobody's decision. With it, each task would hold a worker slot for the whole orchestration.
    """
    if "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE" in os.environ:
        return bool(conf.getboolean("operators", "default_deferrable"))
    return True


def wait_in_worker(trigger: TaskHubTrigger) -> dict[str, Any]:
    """Run a trigger in this process, and return the content of its first event.

    The wait therefore behaves and logs as in the triggerer.

    :param trigger: a trigger that Airflow does not know. It needs the deadline of the task, although Airflow also
        interrupts the task at its ``execution_timeout``: Airflow raises the error once, in the code that runs at this
        moment. If this is code of a background task, asyncio stores the error there, and the wait would go on.
    """

    async def first() -> dict[str, Any]:
        async with aclosing(trigger.run()) as events:  # type: ignore[type-var]  # an async generator
            async for event in events:
                return dict(event.payload)
        raise AssertionError("a trigger fires one event")

    return run_async(first)
