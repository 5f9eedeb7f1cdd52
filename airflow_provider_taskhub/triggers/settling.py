"""Says how long a task that an Airflow worker has deferred must wait before it may be resumed in a worker.

The process that deferred the task may still run, or the scheduler may not know yet that it has ended. Airflow fails a
task that is resumed before that (apache/airflow#67287, #71580, #72716; reports name 7 s and 27 s after the deferral).
A trigger cannot find out when the resume is safe, so it waits.

With ``CeleryExecutor`` it need not wait. When a scheduler sends the resumed task to Celery, it forgets the process that
has deferred the task. A scheduler that hears of the end of this process before that finds the task deferred or
scheduled, or queued by another scheduler. Airflow leaves the task alone in all these cases since 3.2.2
(apache/airflow#66374).
"""

from __future__ import annotations

from airflow.sdk import conf

SETTLE = 30.0
"""Seconds from the start of a trigger before which the trigger does not resume its task in an Airflow worker."""
_CELERY = ("CeleryExecutor", "airflow.providers.celery.executors.celery_executor.CeleryExecutor")


def settle() -> float:
    """Return the seconds from the start of a trigger before which it must not resume its task in an Airflow worker.

    Other executors may be configured beside Celery, and a trigger does not know which one has run its task. So only
    ``CeleryExecutor`` alone counts.
    """
    return 0.0 if conf.get("core", "executor", fallback="").strip() in _CELERY else SETTLE
