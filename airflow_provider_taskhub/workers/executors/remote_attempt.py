"""What the host (the main process of a worker) knows of one attempt that an executor process runs: the request, the
progress, and how it ended. It does no I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import structlog

from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.workers.executors.attempt_log import OutputLog
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityProgress, ActivityRequest
from airflow_provider_taskhub.workers.executors.protocol import Done, Failed, Run

_log = structlog.get_logger()

ProgressListener = Callable[[ActivityProgress], None]
"""A function that is called with each change of an attempt's progress."""


class RemoteAttempt:
    """One attempt that an executor runs.

    :param number: identifies the attempt in the messages to and from the executor.
    :param request: what to run.
    :param output: the log that gets the output of the attempt.
    :param state: the progress that is known so far.
    :param listener: called with each change of the progress; None: nothing is reported.
    :ivar ended: a future; its result is the executor's answer, or None if the executor died before it answered.
    :ivar shared: True if other attempts ran in the executor when it died, so that any of them may be the cause.
    """

    def __init__(
        self,
        number: int,
        request: ActivityRequest,
        output: OutputLog,
        state: ActivityProgress,
        listener: ProgressListener | None,
    ) -> None:
        self.number, self.request, self.output, self.state = number, request, output, state
        self.ended: asyncio.Future[Done | Failed | None] = asyncio.get_running_loop().create_future()
        self.shared = True
        self._listener = listener

    def run_message(self) -> Run:
        """Return the message that starts the attempt in the executor."""
        request = self.request
        return Run(
            number=self.number,
            name=request.name,
            instance_id=request.instance.instance_id,
            execution_id=request.instance.execution_id,
            task_id=request.task_id,
            action_id=request.action_id,
            attempt=request.attempt,
            tags=dict(request.tags or {}),
            job_group=self.state.job_group or "",
            has_input=request.input is not None,
            spark_conf=dict(request.spark_conf or {}),
            spark_session=request.spark_session,
            trace_parent=request.trace.trace_parent if request.trace else None,
            trace_state=request.trace.trace_state if request.trace else None,
            begin_by=request.begin_by,
            saved=request.saved,
            clean_up=request.clean_up,
            body=(request.input or "").encode(),
        )

    def was_killed(self) -> None:
        """Tell the listener that the code of the attempt has not ended by itself, or has not begun."""
        self.state = replace(self.state, killed=True, confirm=None)
        self.announce()

    def report(self, fraction: float | None, message: str | None, *, observed: bool = False) -> None:
        """Note a progress report of the activity, and pass it to the listener.

        :param fraction: finished part of the work, from 0 to 1; None: the earlier value stays.
        :param message: one line for people; None: the earlier line stays.
        :param observed: as :class:`.ActivityProgress` has it.
        """
        self.state = replace(
            self.state,
            fraction=self.state.fraction if fraction is None else fraction,
            message=self.state.message if message is None else message,
            observed=observed,
        )
        self.announce()

    def save(self, state: str, confirm: Callable[[], None]) -> None:
        """Note the state that the activity saves, and pass it to the listener.

        :param state: JSON text.
        :param confirm: called when the state is in the activity record.
        """
        self.state = replace(self.state, saved=state, confirm=confirm, observed=False)
        self.announce()
        self.state = replace(self.state, confirm=None)

    def announce(self) -> None:
        """Call the listener with the newest progress. An error of the listener is logged and never ends the attempt."""
        if self._listener is None:
            return
        try:
            self._listener(self.state)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            _log.warning("progress_listener_failed", activity=self.request.name, error=text)

    def end(self, answer: Done | Failed | None) -> None:
        """Note the end of the attempt. Only the first call has an effect.

        :param answer: the executor's answer; None: the executor has died.
        """
        if not self.ended.done():
            self.ended.set_result(answer)

    def outcome(self, reason: str | None) -> ActivityOutcome:
        """Return the outcome of an attempt that has ended.

        :param reason: why the executor died, as the rest of a sentence that begins with "executor X". It is used only
            if the executor died before it answered.
        """
        match self.ended.result():
            case Done(body=body, lineage=lineage):
                return replace(self._outcome(result=body.decode()), lineage=lineage)
            case Failed(failure=failure, too_late=too_late):
                return replace(self._outcome(failure=failure), too_late=too_late)
            case None:
                text = f"executor {self.state.executor}, running activity {self.request.name!r}, {reason}"
                failure = FailureDetails(error_type="ExecutorCrashed", error_message=text)
                return replace(self._outcome(failure=failure), crashed=True, shared=self.shared)

    def timed_out(self) -> ActivityOutcome:
        """Return the outcome of an attempt that was stopped because it ran longer than its timeout."""
        timeout = self.request.timeout or timedelta()
        killed = self.ended.result() is None
        stopped = "killed with its executor" if killed else "stopped"
        text = (
            f"activity {self.request.name!r} ran longer than its timeout of {timeout.total_seconds():g} s and was "
            f"{stopped}"
        )
        failure = FailureDetails(error_type="TimeoutError", error_message=text)
        return replace(self._outcome(failure=failure), killed=killed)

    def _outcome(self, *, result: str | None = None, failure: FailureDetails | None = None) -> ActivityOutcome:
        return ActivityOutcome(
            result=result,
            failure=failure,
            log_tail=self.output.tail,
            executor=self.state.executor,
        )
