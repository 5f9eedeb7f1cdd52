"""Functions for use inside an activity: read data about its call, report progress, keep a state for the attempt after a
crash, declare the data that it reads and writes, publish its output once, and ask whether it must stop.

::

    from airflow_provider_taskhub.activity import activity_info, progress

    @app.activity
    def send(summary: dict) -> str:
        upload(summary, key=activity_info().idempotency_key)   # the same for every attempt of this call
        progress(0.5, "uploaded")
        ...

Outside of an activity (in a unit test that calls the function itself) ``progress`` does nothing, ``save_state`` only
checks the value, ``saved_state`` returns None, ``inlet`` and ``outlet`` only check the URI, ``cancelled`` returns
False, each ``publish`` is a commit, and ``activity_info`` and
``output_path`` raise an error. The code that runs an activity makes an :class:`Attempt` and enters it around the call
of the user's function. This module knows nothing of processes, hubs or Spark.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_taskhub.codec import dumps, loads
from airflow_provider_taskhub.engine.references import Reference
from airflow_provider_taskhub.errors import InputError, PublishSuperseded, TaskHubError
from airflow_provider_taskhub.lineage import DeclaredLineage, checked_uri
from airflow_provider_taskhub.publishing.attempt import Publication
from airflow_provider_taskhub.publishing.layout import PublishMode, Writer, check_mode, safe_key

__all__ = [
    "ActivityCancelled",
    "ActivityInfo",
    "Reference",
    "activity_info",
    "cancelled",
    "check_cancelled",
    "inlet",
    "is_unwanted",
    "outlet",
    "output_path",
    "progress",
    "publish",
    "save_state",
    "saved_state",
]

_attempt: ContextVar[Attempt] = ContextVar("taskhub_attempt")
LONGEST_STATE = 30_000
"""The largest number of characters of a saved state as JSON. A column of Azure holds 32,768."""


class ActivityCancelled(BaseException):
    """Raised by :func:`check_cancelled` inside an activity that was asked to stop.

    The class is no ``Exception``, like ``asyncio.CancelledError``: a retry loop with ``except Exception`` in user code
    must not catch it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityInfo:
    """Data about the call of an activity.

    :param name: name of the activity.
    :param instance_id: id of the instance that called the activity.
    :param execution_id: execution id of that instance. Each ``continue_as_new`` gives the instance a new execution id.
        None: unknown.
    :param tags: tags of the call, from ``call_activity(tags=…)``.
    :param task_id: number of the call in the history of its orchestration.
    :param attempt: number of the attempt, from 1. It grows by 1 each time an attempt of this call is lost because its
        executor or worker has died. A retry by a ``RetryPolicy`` is a new call, with a new ``task_id`` and a new
        ``idempotency_key``.
    :param idempotency_key: a text that all attempts of one call share and no other call has. External systems can use
        it to ignore a repeated effect.
    :param trace_parent: W3C ``traceparent`` of this attempt, to pass on to other services; None: the attempt is not
        traced.
    :param trace_state: W3C ``tracestate`` of this attempt; None: there is none.
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


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One run of an activity's function. The code that runs the activity makes it and passes it to :func:`entered`.

    :param info: data about the call.
    :param report: gets the arguments of :func:`progress`. It must return quickly, and any thread may call it.
    :param lineage: collects the data that the activity declares.
    :param cancelled: set when the activity is asked to stop.
    :param lost: True, once it was asked to stop: the next attempt goes on with what this one has begun.
    :param recorded: whether the call has an activity record. Only a record gives each attempt a number of
        its own, by which :func:`publish` shuts out earlier attempts.
    :param saved: the state that this attempt or an earlier one has saved, as JSON text; None: there is none.
    :param save: writes a state into the activity record, and returns when it is there. None: there is no record.
    """

    info: ActivityInfo
    report: Callable[[float | None, str | None], None]
    lineage: DeclaredLineage = field(default_factory=DeclaredLineage)
    cancelled: threading.Event = field(default_factory=threading.Event)
    lost: bool = False
    recorded: bool = True
    saved: str | None = None
    save: Callable[[str], None] | None = None


@contextmanager
def entered(attempt: Attempt) -> Iterator[None]:
    """Make an attempt the current attempt of this thread or task until the end of the ``with`` block."""
    token = _attempt.set(attempt)
    try:
        yield
    finally:
        _attempt.reset(token)


def activity_info() -> ActivityInfo:
    """Return data about the call of the activity that runs here.

    :raises TaskHubError: if no activity runs here.
    """
    attempt = _attempt.get(None)
    if attempt is None:
        raise TaskHubError("activity_info() was called outside of an activity: call it in the function of an activity")
    return attempt.info


def progress(fraction: float | None = None, message: str | None = None) -> None:
    """Report the progress of the activity, for people and for Airflow.

    The call is cheap, so an activity may report often. Only the newest report is surely sent; older reports may be
    skipped.

    :param fraction: finished part of the work, from 0 to 1; other numbers are clipped to this range. None: the last
        reported fraction stays.
    :param message: one line for people, of which the first 500 characters are kept. None: the last reported message
        stays.
    """
    attempt = _attempt.get(None)
    if attempt is not None:
        clipped = None if fraction is None else min(1.0, max(0.0, float(fraction)))
        attempt.report(clipped, None if message is None else str(message)[:500])


def save_state(value: Any) -> None:
    """Keep a value for the next attempt of this call, and return when it is stored.

    If the worker dies, the next attempt reads the value with :func:`saved_state`. So an activity that has started a job
    in another system saves the job's id, and the next attempt waits for this job instead of starting another one. A
    value replaces the one before. A retry by a ``RetryPolicy`` is a new call, which begins without a value.

    In an ``async`` activity, write ``await asyncio.to_thread(save_state, value)``: the call waits for the store.

    :param value: a value that JSON can express, of at most :data:`LONGEST_STATE` characters as JSON.
    :raises InputError: if the value cannot be stored, or the activity has no record: a Spark activity has one, another
        activity has one if it is declared with ``record=True``.
    :raises TaskHubError: if it is called on the event loop.
    :raises ActivityCancelled: if the activity is asked to stop before the value is stored.
    """
    text = dumps(value, what="the value of save_state()")
    if len(text) > LONGEST_STATE:
        raise InputError(
            f"save_state(): the value has {len(text):,} characters as JSON, at most {LONGEST_STATE:,}: store the data "
            "elsewhere and save where they are"
        )
    attempt = _attempt.get(None)
    if attempt is None:
        return
    if not attempt.recorded or attempt.save is None:
        raise InputError(
            "save_state(): this activity has no record that could keep the value: declare it with "
            "@app.activity(record=True)"
        )
    attempt.save(text)
    attempt.saved = text


def saved_state() -> Any:
    """Return the value that this call has last saved with :func:`save_state`, in this attempt or an earlier one.

    :returns: the value as plain JSON has it; None if nothing was saved.
    """
    attempt = _attempt.get(None)
    return None if attempt is None or attempt.saved is None else loads(attempt.saved, what="the saved state")


def inlet(uri: str) -> None:
    """Declare data that the activity reads.

    If the activity succeeds, its record keeps the URI. An Airflow task that waits for the orchestration then reports it
    to OpenLineage. The activity needs a record: a Spark activity has one, another activity has one if it is declared
    with ``record=True``.

    :param uri: a folder, table or file, for example ``"s3://bucket/daily"``: at most 1,500 ASCII characters, without a
        password. All inlets of an attempt have at most 20,000 characters together. The same URI counts once.
    :raises InputError: if the URI is wrong, there are too many, or the activity has no record.
    """
    attempt = _attempt.get(None)
    if attempt is None:
        checked_uri(uri, what="inlet()")
    else:
        attempt.lineage.inlet(uri)


def outlet(uri: str) -> None:
    """Declare data that the activity writes.

    If the activity succeeds, its record keeps the URI. An Airflow task that waits for the orchestration then reports it
    to OpenLineage, and emits asset events for it through its outlets of the type ``AssetAlias``. The activity needs a
    record, as for :func:`inlet`.

    :param uri: as :func:`inlet` takes it, with the same limits.
    :raises InputError: if the URI is wrong, there are too many, or the activity has no record.
    """
    attempt = _attempt.get(None)
    if attempt is None:
        checked_uri(uri, what="outlet()")
    else:
        attempt.lineage.outlet(uri)


def cancelled() -> bool:
    """Return whether the activity was asked to stop; False outside of an activity.

    An activity is asked to stop if its instance was terminated, if its timeout has passed, or if its worker is losing
    the right to run it. If the activity still runs ten seconds later, its executor is killed. So call this function
    often in long loops.
    """
    attempt = _attempt.get(None)
    return attempt is not None and attempt.cancelled.is_set()


def is_unwanted() -> bool:
    """Return whether the activity was asked to stop because nobody wants it any more. False: it was not asked, or its
    worker ends or loses it, and the next attempt goes on with what this one has begun outside of the worker.
    """
    attempt = _attempt.get(None)
    return attempt is not None and attempt.cancelled.is_set() and not attempt.lost


def check_cancelled() -> None:
    """Raise an error if the activity was asked to stop; otherwise do nothing.

    :raises ActivityCancelled: if the activity was asked to stop.
    """
    if cancelled():
        raise ActivityCancelled("the activity was asked to stop")


def output_path(target: str, *, storage_options: Mapping[str, Any] | None = None) -> str:
    """Return the path of this attempt's own place for a target, where nobody sees the data before :func:`publish`.

    :func:`publish` gives the same path. Use this function if the path is needed before the block begins. Data that are
    never published are removed by the next attempt of this call.

    :param target: as :func:`publish` takes it.
    :param storage_options: as :func:`publish` takes them.
    :raises TaskHubError: if no activity runs here. Other errors are those of :func:`publish`.
    """
    activity_info()
    return _begun(target, storage_options).path


@contextmanager
def publish(
    target: str,
    *,
    mode: PublishMode = "overwrite",
    keep: int = 3,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """Give the ``with`` block a path to write to; at its end, make what was written visible in one step, and only once.

    ::

        with publish("s3a://bucket/monthly") as path:
            frame.write.parquet(path)

    The path is a folder that does not exist yet and that belongs to this attempt alone. If the block raises an error,
    the folder is removed. If an earlier attempt of this call has published already, its data stay and those of this
    attempt are removed. Read the data with ``airflow_provider_taskhub.publishing.read_published`` or ``published``.

    :param target: absolute path or URL of the folder: ``file``, ``hdfs``, ``viewfs``, ``ofs``, ``s3``, ``s3a``, ``gs``,
        ``gcs``, ``abfs``, ``abfss`` or ``az``.
    :param mode: "overwrite" replaces the data of the target, "append" adds to them, and "overwrite_partitions" replaces
        those partitions that were written.
    :param keep: number of earlier commits whose data stay, for readers that have begun with one of them; at least 1.
    :param storage_options: for an object store: arguments of its fsspec file system, such as credentials.
    :raises InputError: if an argument is wrong, the activity has no record, it has published to the target already,
        nothing was written, or the new data and the old ones have different partition columns.
    :raises ConfigurationError: if a package, a Spark session or an ability of the file system is missing.
    :raises PublishSuperseded: if a later attempt of this call has begun, or ``remove_unpublished`` was called during
        the block.
    :raises ActivityCancelled: if the activity was asked to stop before the end of the block.
    """
    check_mode(mode)
    if keep < 1:
        raise InputError(f"publish({target!r}, keep={keep!r}): readers need at least 1 earlier commit")
    publication = _begun(target, storage_options)
    try:
        yield publication.path
        check_cancelled()
    except BaseException:
        with suppress(Exception):  # the error of the block says more; the next attempt removes what is left
            publication.discard()
        raise
    try:
        publication.commit(mode, keep)
    except (InputError, PublishSuperseded):
        # After any other error the commit may be there. Then its data must stay.
        publication.discard()
        raise


def _begun(target: str, storage_options: Mapping[str, Any] | None) -> Publication:
    attempt = _attempt.get(None)
    if attempt is None:
        writer = Writer(key=uuid.uuid4().hex, attempt=1)
    elif not attempt.recorded:
        raise InputError(
            f"publish({target!r}): this activity has no record, so two attempts of it could publish at once: declare "
            "it with @app.activity(record=True)"
        )
    else:
        writer = Writer(key=safe_key(attempt.info.idempotency_key), attempt=attempt.info.attempt)
    publication = Publication.opened(target, writer, storage_options)
    publication.begin()
    return publication
