"""Values about one attempt of an activity: its request, its progress, its outcome, and the crashes of its executors.

If an executor dies while it runs several attempts, nobody knows which attempt is the cause. So each of these activities
runs together with others once more. If an activity then loses a second executor together with others, the activity is a
*suspect* and runs alone. Crashes let an activity fail only if the activity ran alone in the executors that died.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import timedelta

from airflow_provider_taskhub.engine.events import FailureDetails, OrchestrationInstance, TraceContext
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.model import ActivityRecord
from airflow_provider_taskhub.lineage import NO_LINEAGE, Lineage

MAX_CRASHES = 3
"""An activity fails after this many executors have died while they ran only this activity.

The count begins again with each delivery of the activity's message."""
LOST = "lost"
"""The message with which the task of an attempt is cancelled if the next attempt goes on: its worker ends, or has
lost it. Without a message, nobody wants the activity any more."""
NO_EXECUTOR = "ExecutorUnavailable"
"""Error type of an attempt that has got no executor."""
MAX_SHARED = 2
"""An activity runs alone after this many executors have died while they ran this activity and others.

The count begins again with each delivery of the activity's message. The first crash is not enough: after most crashes
(lack of memory) a second try succeeds, and running activities one at a time can take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityRequest:
    """A request to run one attempt of an activity.

    :param name: name of the activity.
    :param version: version of the activity; "" or None if it has none.
    :param input: a JSON array of one argument, or None if the call has no input.
    :param instance: the instance that called the activity.
    :param task_id: number of the call in the history of the instance.
    :param action_id: identity of the call; it is the idempotency key that the activity sees.
    :param attempt: number of the attempt, from 1.
    :param tags: tags of the call.
    :param timeout: time limit of the attempt, from the moment an executor takes it. The wait for an executor does not
        count. None: no limit.
    :param spark: True if the activity needs a Spark executor.
    :param alone: True if the executor must run no other attempt at the same time.
    :param trace: W3C trace context; spans that the activity's code makes belong to it. None: the attempt is not traced.
    :param log: name of the log that gets the output of the attempt.
    :param application: settings of the Spark application in which the attempt must run, beside those of the worker.
        None or empty: it runs in the worker's own.
    :param spark_conf: configuration for the attempt's Spark session, beside the worker's own; None: nothing.
    :param spark_session: name of the attempt's Spark Connect session; None: the worker makes one if it needs one.
    :param left_sessions: names of Spark Connect sessions that earlier attempts may have left running on the server.
        They are ended before this attempt runs.
    :param watched: True if an Airflow task waits for the instance, whose log follows the log of the attempt.
    :param begin_by: monotonic time of this machine, in seconds, after which the executor must not begin the attempt.
        None: no limit.
    :param saved: the state that an earlier attempt of the call has saved, as JSON text; None: there is none.
    :param clean_up: True: nobody wants the activity any more, and it is called only to end what a dead attempt has left
        running elsewhere: it is asked to stop from the beginning.
    """

    name: str
    version: str | None = ""
    input: str | None = None
    instance: OrchestrationInstance
    task_id: int
    action_id: str
    attempt: int = 1
    tags: Mapping[str, str] | None = None
    timeout: timedelta | None = None
    spark: bool = False
    alone: bool = False
    trace: TraceContext | None = None
    log: str
    application: Mapping[str, str] | None = None
    spark_conf: Mapping[str, str] | None = None
    spark_session: str | None = None
    left_sessions: tuple[str, ...] = ()
    watched: bool = False
    begin_by: float | None = None
    saved: str | None = None
    clean_up: bool = False


def tag_of(action_id: str, attempt: int) -> str:
    """Return the tag of the Spark operations of an attempt. Spark Connect allows no comma in a tag."""
    return f"taskhub-{action_id}-{attempt}".replace(",", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityProgress:
    """The progress of an attempt. Each value holds all that is known so far, not only the last change.

    :param executor: name of the executor that runs the attempt.
    :param fraction: finished part of the work, from 0 to 1; None: not reported yet.
    :param message: the text that the activity has reported last; None: not reported yet.
    :param application_id: Spark's application id; None for an activity without Spark.
    :param job_group: Spark's job group of the attempt; None for an activity without Spark.
    :param spark_ui: URL of Spark's UI; None if there is no UI.
    :param observed: True: the last change was seen in Spark, so nobody waits for it: it is written with the next
        renewal of the record. False: the activity has reported it.
    :param saved: the state that the activity has saved last, as JSON text; None: it has saved none.
    :param killed: True: it was asked to stop, and its code has not begun, or was killed with its executor.
    :param confirm: to be called when ``saved`` is in the record, because the activity waits for it; None: it does not.
    """

    executor: str
    fraction: float | None = None
    message: str | None = None
    application_id: str | None = None
    job_group: str | None = None
    spark_ui: str | None = None
    observed: bool = False
    saved: str | None = None
    killed: bool = False
    confirm: Callable[[], None] | None = None

    def onto(self, record: ActivityRecord) -> ActivityRecord:
        """Return a copy of the activity record with this progress. A field that is None keeps the record's value."""
        known = {name: value for name, value in asdict(replace(self, confirm=None)).items() if value is not None}
        del known["observed"], known["killed"]
        if "fraction" in known:
            known["progress"] = known.pop("fraction")
        return replace(record, **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityOutcome:
    """How an attempt ended. When this value exists, no code of the attempt runs any more.

    :param result: the result as JSON text; None if the attempt failed.
    :param failure: why the attempt failed; None if it succeeded.
    :param crashed: True if the attempt is lost, because its executor died or its worker stopped. A lost attempt does
        not count against a retry policy.
    :param shared: True if other attempts ran in the executor when it died, so that any of them may be the cause.
    :param killed: True if the attempt did not end within its timeout and the grace, so that its executor was killed.
    :param too_late: True if the attempt has not begun, because ``begin_by`` of its request was over.
    :param log_tail: the last 50 lines of the attempt's output.
    :param executor: name of the executor that ran the attempt; empty if no executor ran it.
    :param lineage: the data that a successful attempt has declared.
    """

    result: str | None = None
    failure: FailureDetails | None = None
    crashed: bool = False
    shared: bool = False
    killed: bool = False
    too_late: bool = False
    log_tail: tuple[str, ...] = ()
    executor: str = ""
    lineage: Lineage = NO_LINEAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashes:
    """How many executors died while they ran an activity, in one delivery of the activity's message.

    :param own: deaths while the activity ran alone in the executor.
    :param shared: deaths while other activities ran in the executor too; any of them may be the cause.
    """

    own: int = 0
    shared: int = 0

    def after(self, outcome: ActivityOutcome) -> Crashes:
        """Return the counts after one more attempt that has ended with this outcome."""
        if not outcome.crashed:
            return self
        return replace(self, shared=self.shared + 1) if outcome.shared else replace(self, own=self.own + 1)

    @property
    def suspect(self) -> bool:
        """Whether the next attempt must run alone. If the executor then dies too, this activity is surely the cause."""
        return self.shared >= MAX_SHARED

    @property
    def too_many(self) -> bool:
        """Whether so many executors died while they ran only this activity that the activity fails."""
        return self.own >= MAX_CRASHES
