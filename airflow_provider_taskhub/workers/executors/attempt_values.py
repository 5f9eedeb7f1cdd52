"""What activities are to executors: request, progress, outcome, and the crashes of their executors. Pure values.

When an executor dies with several attempts in it, nobody knows which one is the cause. They run together once more; an
activity that loses a second executor in company is a *suspect* and runs alone from then on. Only crashes without
company count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import timedelta

from airflow_provider_taskhub.engine.events import FailureDetails, OrchestrationInstance, TraceContext
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.model import ActivityRecord

MAX_CRASHES = 3
"""Executors that an activity may lose in one delivery while nothing else runs in them. Then it fails."""
MAX_SHARED = 2
"""Executors that an activity may lose in one delivery together with others. Then it runs alone. Not after the first
loss: after most crashes (memory) it is enough to run again, and to run activities one at a time may take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityRequest:
    """One attempt of an activity.

    :param input: JSON array of one argument, or None. :param action_id: identity of the call, the idempotency key.
    :param attempt: from 1. :param timeout: of this attempt, from when an executor takes it; waiting for one is not
        counted.
    :param spark: whether it needs a Spark executor. :param alone: on one that runs nothing else meanwhile.
    :param log: name of the log that its output goes to.
    :param trace: W3C context for the spans of its code; None: not traced.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityProgress:
    """How far an attempt is: the whole picture each time.

    :param executor: who runs it. :param fraction: between 0 and 1. :param application_id, job_group, spark_ui: Spark's.
    """

    executor: str
    fraction: float | None = None
    message: str | None = None
    application_id: str | None = None
    job_group: str | None = None
    spark_ui: str | None = None

    def onto(self, record: ActivityRecord) -> ActivityRecord:
        """The record with what is newly known; what is not known leaves it as it was."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        if "fraction" in known:
            known["progress"] = known.pop("fraction")
        return replace(record, **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityOutcome:
    """How an attempt ended. When there is one, nothing of the attempt runs any more.

    :param result: JSON text, unless it failed. :param failure: why it failed.
    :param crashed: the executor failed, not the activity: the attempt was lost and does not count against a retry
        policy. :param shared: others ran in the executor, so any of them may be the cause.
    :param log_tail: last 50 lines of its output. :param executor: who ran it, empty if nobody could.
    """

    result: str | None = None
    failure: FailureDetails | None = None
    crashed: bool = False
    shared: bool = False
    log_tail: tuple[str, ...] = ()
    executor: str = ""
    application_id: str | None = None
    job_group: str | None = None
    spark_ui: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashes:
    """How often an activity lost its executor in one delivery.

    :param own: while nothing else ran in it. :param shared: while others ran in it: any of them may be the cause.
    """

    own: int = 0
    shared: int = 0

    def after(self, outcome: ActivityOutcome) -> Crashes:
        if not outcome.crashed:
            return self
        return replace(self, shared=self.shared + 1) if outcome.shared else replace(self, own=self.own + 1)

    @property
    def suspect(self) -> bool:
        """Whether its next try runs alone: then the cause of the next crash is certain."""
        return self.shared >= MAX_SHARED

    @property
    def too_many(self) -> bool:
        return self.own >= MAX_CRASHES
