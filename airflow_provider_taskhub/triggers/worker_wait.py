"""Waits for an instance in the Airflow worker: tasks with ``deferrable=False``, and others for a moment."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import conf

from airflow_provider_taskhub.hooks.taskhub import run_async

if TYPE_CHECKING:
    from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger

WORKER_END_WAIT = timedelta(seconds=30)
"""How long the Airflow worker waits before it defers a task that a worker must end. Airflow may fail such a task if it
goes back to a worker sooner than 30 s after its deferral (:mod:`.settling`), so to defer for a shorter wait would only
lose time."""
_BEFORE_DEADLINE = timedelta(seconds=0.5)
"""Time between the end of the short wait and the task's deadline, so that the task can still defer."""


def short_wait(left: timedelta | None, longest: timedelta) -> timedelta:
    """Return how long the Airflow worker waits before it defers.

    :param left: the time until the task's deadline; None: there is no deadline.
    :param longest: how long it waits if there is no deadline.
    """
    return longest if left is None else max(timedelta(0), min(longest, left - _BEFORE_DEADLINE))


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


def ends_within(trigger: TaskHubTrigger, longest: timedelta) -> dict[str, Any] | None:
    """Run a trigger in this process for a moment.

    :param trigger: as :func:`wait_in_worker` takes it.
    :param longest: how long to wait.
    :returns: the content of its first event; None: it has fired none.
    """

    async def first() -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(longest.total_seconds()), aclosing(trigger.run()) as events:  # type: ignore[type-var]  # an async generator
                return dict((await anext(events)).payload)
        except TimeoutError:
            return None

    return run_async(first)
