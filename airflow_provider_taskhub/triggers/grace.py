"""The time that a task leaves its instance to clean up when Airflow ends the instance: a tag of the instance.

Airflow ends an instance in the worker of its task, in a triggerer, and from the API server, which know the instance but
not the arguments of the task. So the time is stored with the instance.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.tags import GRACE_TAG
from airflow_provider_taskhub.triggers.arguments import duration

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.model import InstanceState


def grace_tags(grace: timedelta | float | None) -> dict[str, str]:
    """Return the tags with which an instance is started.

    :param grace: the operator's ``terminate_grace``, or the same in seconds.
    :raises InputError: if it is too long, or not above zero.
    """
    from airflow_provider_taskhub.engine.validation import grace_seconds  # a DAG file must not import the engine

    seconds = grace_seconds(duration(grace), "terminate_grace")
    return {} if seconds is None else {GRACE_TAG: str(seconds)}


def grace_of(state: InstanceState | None) -> timedelta | None:
    """Return the time for the clean-up of an instance; None: it was started without one, or its tag is damaged."""
    from airflow_provider_taskhub.engine.validation import LONGEST_GRACE

    text = ((state.tags if state is not None else None) or {}).get(GRACE_TAG, "")
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) <= LONGEST_GRACE.total_seconds():
        return None
    return timedelta(seconds=int(text))


def seconds_of(grace: timedelta | None) -> float:
    """Return the time for a clean-up in seconds; 0: there is none."""
    return 0.0 if grace is None else grace.total_seconds()


class Confirmation:
    """Limits how long Airflow waits for the end of a terminated instance: a fixed time, and the time of its clean-up.

    Use it as an asynchronous context manager, which raises ``TimeoutError`` at the end of the time.

    :param seconds: the fixed time in seconds; None: there is no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None
        self.grace: timedelta | None = None
        """The time for the clean-up; None: there is none, or the instance was not terminated."""

    async def __aenter__(self) -> Confirmation:
        self._timeout = asyncio.timeout(self._seconds)
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        assert self._timeout is not None
        await self._timeout.__aexit__(*error)

    def add(self, grace: timedelta | None) -> None:
        """Wait longer, by the time for a clean-up. Call it in the ``with`` block."""
        assert self._timeout is not None
        self.grace, due = grace, self._timeout.when()
        if due is not None and self._seconds is not None:
            self._seconds += seconds_of(grace)
            self._timeout.reschedule(due + seconds_of(grace))

    def __str__(self) -> str:
        """Return what to tell when the time is over."""
        return f"the termination was sent, but the instance has not ended within {self._seconds:g} s"
