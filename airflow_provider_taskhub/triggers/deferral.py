"""Airflow's own time limit of a deferral. It acts only if no triggerer was running at the trigger's deadline."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_taskhub.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from airflow_provider_taskhub.codec import Timestamp

BACKSTOP = timedelta(minutes=5)
"""Time from the trigger's deadline to Airflow's own time limit."""


def deferral_timeout(deadline: Timestamp | None, grace: timedelta | None = None) -> timedelta | None:
    """Return the ``timeout`` with which a task defers.

    :param deadline: the trigger's deadline; None: the task has no time limit, so the result is None too.
    :param grace: the time for a clean-up, for which the trigger waits after the deadline; None: there is none.
    """
    if deadline is None:
        return None
    return max(deadline - SYSTEM_CLOCK.utc_now(), timedelta(0)) + BACKSTOP + (grace or timedelta(0))
