"""The time windows of the list of instances."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow_provider_taskhub.clock import SYSTEM_CLOCK

WINDOWS = {"hour": 1, "day": 24, "week": 24 * 7, "month": 24 * 31, "all": None, "between": None}
"""The age in hours of the oldest instances in a list, by the name of the time window; None: no limit. ``between`` is
for a list with the times ``from`` and ``to``."""


def since(window: str) -> datetime | None:
    """Return the time at which a window begins; None: it has no limit. :param window: a name in :data:`WINDOWS`."""
    hours = WINDOWS[window]
    return None if hours is None else SYSTEM_CLOCK.utc_now().datetime() - timedelta(hours=hours)
