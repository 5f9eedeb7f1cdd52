"""Waits for an instance in the Airflow worker, for tasks with ``deferrable=False``."""

from __future__ import annotations

import os
from configparser import RawConfigParser
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from airflow.sdk import conf

from airflow_provider_taskhub.hooks.taskhub import run_async

if TYPE_CHECKING:
    from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger

_SECTION, _OPTION = "operators", "default_deferrable"


def default_deferrable() -> bool:
    """Return the value of Airflow's option ``[operators] default_deferrable`` if somebody has set it, else True.

    Airflow's own default of the option is False. It was not applied here, because a task that waits in a worker holds a
    worker slot for the whole orchestration. Only a value in ``airflow.cfg`` or in the environment counts.
    """
    in_environment = f"AIRFLOW__{_SECTION}__{_OPTION}".upper() in os.environ
    if in_environment or RawConfigParser.has_option(conf, _SECTION, _OPTION):
        return bool(conf.getboolean(_SECTION, _OPTION, fallback=True))
    return True


def wait_in_worker(trigger: TaskHubTrigger) -> dict[str, Any]:
    """Run a trigger in this process, and return the content of its first event.

    The wait therefore behaves and logs as in the triggerer. It has no deadline of its own: Airflow itself interrupts a
    task at its ``execution_timeout``.

    :param trigger: a trigger that Airflow does not know.
    """

    async def first() -> dict[str, Any]:
        async with aclosing(trigger.run()) as events:  # type: ignore[type-var]  # an async generator
            async for event in events:
                return dict(event.payload)
        raise AssertionError("a trigger fires one event")

    return run_async(first)
