"""What an activity may know about itself while it runs, wherever that is.

::

    from airflow_provider_taskhub.activity import activity_info, progress

    @app.activity
    def publish(summary: dict) -> str:
        upload(summary, key=activity_info().idempotency_key)   # the same for every attempt of this call
        progress(0.5, "uploaded")
        ...

Outside of an activity (a unit test that calls the function itself) ``progress`` does nothing and ``cancelled`` says no;
``activity_info`` has nothing to say and raises. The executor's child process enters an :class:`Attempt` around user
code; nothing here knows of processes, hubs or Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from airflow_provider_taskhub.errors import TaskHubError

__all__ = ["ActivityCancelled", "ActivityInfo", "activity_info", "cancelled", "check_cancelled", "progress"]

_attempt: ContextVar[Attempt] = ContextVar("taskhub_attempt")


class ActivityCancelled(BaseException):
    """Raised inside an activity that was asked to stop: by :func:`check_cancelled`, or in place of a stopped Spark job.

    Like ``asyncio.CancelledError`` it is no ``Exception``: a retry loop with ``except Exception`` must not swallow it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityInfo:
    """What an activity may know of its own call.

    :param name: of the activity. :param instance_id: of the instance that called it.
    :param execution_id: of that instance's generation.
    :param tags: of the call: ``call_activity(tags=…)``.
    :param task_id: number of the call in its orchestration's history.
    :param attempt: from 1; grows with every try of this call that was lost with its executor or worker. A retry by
        a ``RetryPolicy`` is a call of its own, with a ``task_id`` and an ``idempotency_key`` of its own.
    :param idempotency_key: the same for every attempt of one call, and for nothing else: safe to deduplicate effects
        by.
    :param trace_parent, trace_state: W3C trace context of this attempt, to hand to what it calls; None: not traced.
    """

    name: str
    instance_id: str
    execution_id: str | None
    task_id: int
    attempt: int
    idempotency_key: str
    tags: Mapping[str, str]
    trace_parent: str | None = None
    trace_state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of an activity's function. Made by who runs it, entered around user code.

    :param report: takes what :func:`progress` was told; must be quick and callable from any thread.
    """

    info: ActivityInfo
    report: Callable[[float | None, str | None], None]
    cancelled: threading.Event = field(default_factory=threading.Event)


@contextmanager
def entered(attempt: Attempt) -> Iterator[None]:
    """Make an attempt the current one of this thread or task."""
    token = _attempt.set(attempt)
    try:
        yield
    finally:
        _attempt.reset(token)


def activity_info() -> ActivityInfo:
    """The running activity's own data.

    :raises TaskHubError: outside of an activity.
    """
    attempt = _attempt.get(None)
    if attempt is None:
        raise TaskHubError("activity_info() was called outside of an activity: call it in the function of an activity")
    return attempt.info


def progress(fraction: float | None = None, message: str | None = None) -> None:
    """Tell whoever looks how far the activity is. Cheap: the newest value wins, older ones may never be sent.

    :param fraction: between 0 and 1; clipped to that. None leaves it as it was.
    :param message: one line for people; the first 500 characters are kept.
    """
    attempt = _attempt.get(None)
    if attempt is not None:
        clipped = None if fraction is None else min(1.0, max(0.0, float(fraction)))
        attempt.report(clipped, None if message is None else str(message)[:500])


def cancelled() -> bool:
    """Whether the activity was asked to stop (terminated, timed out, its worker is losing its right to run it).

    Its executor is killed a few seconds after the request, so look often in long loops.
    """
    attempt = _attempt.get(None)
    return attempt is not None and attempt.cancelled.is_set()


def check_cancelled() -> None:
    """Stop here if the activity was asked to.

    :raises ActivityCancelled: when it was.
    """
    if cancelled():
        raise ActivityCancelled("the activity was asked to stop")
