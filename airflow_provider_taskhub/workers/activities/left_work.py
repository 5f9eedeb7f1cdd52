"""Ends what the attempts of dead workers have left running elsewhere, if no next attempt of the activity does it.

This is the session of a Spark Connect server, and what the activity itself has begun in another system and noted with
``save_state`` (``@app.activity(clean_up=True)``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import structlog

from airflow_provider_taskhub.engine.events import TaskScheduled
from airflow_provider_taskhub.engine.registry import ActivityDefinition
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.primitives import Entity
from airflow_provider_taskhub.workers.activities.begins import Begins
from airflow_provider_taskhub.workers.activities.cancellation import is_of
from airflow_provider_taskhub.workers.activities.runner import Runner, request_of
from airflow_provider_taskhub.workers.executors.attempt_values import NO_EXECUTOR, Crashes
from airflow_provider_taskhub.workers.executors.executor import ExecutorError

log = structlog.get_logger(__name__)

CLEAN_UP = timedelta(seconds=60)
"""Time limit of a call that only cleans up."""
TRIES = 3
"""How often an activity is called to clean up if its executor dies."""
NO_CRASHES = Crashes()
_ENDED = (RecordState.COMPLETED, RecordState.FAILED, RecordState.CANCELLED)
"""States of attempts that have ended themselves what they had begun."""

Found = Sequence[tuple[ActivityRecord, Entity]]
"""The records of the attempts of a call, and their rows."""


class LeftWork:
    """Ends what dead workers have left.

    :param runner: runs what ends it.
    :param begins: tells whether the call was cancelled: then its answer says that nothing of it runs any more.
    """

    def __init__(self, runner: Runner, begins: Begins) -> None:
        self._runner, self._begins = runner, begins

    async def end(self, held: Delivery, event: TaskScheduled, definition: ActivityDefinition, found: Found) -> bool:
        """End what earlier attempts of a call have left running. Call it if no later attempt will do this.

        :param found: the records of the attempts; some may belong to a call that a rewind has undone.
        :returns: whether the activity was called to clean up, so that its state is of no use any more.
        :raises Unavailable: if the call was cancelled, and the end is not confirmed.
        """
        await self.end_sessions(held, sessions_of(found))
        last = next((record for record, _ in reversed(found) if is_of(record, event)), None)
        return last is not None and last.state not in _ENDED and await self.clean_up(held, event, definition, last)

    async def clean_up(
        self,
        held: Delivery,
        event: TaskScheduled,
        definition: ActivityDefinition,
        record: ActivityRecord,
        crashes: Crashes = NO_CRASHES,
    ) -> bool:
        """Call an activity so that it ends what a dead attempt of it has begun.

        :param record: the record of the dead attempt, with the newest state.
        :param crashes: how many executors have died under the activity: after some it runs alone.
        :returns: True: it has cleaned up; False: there is nothing to clean up, or it has failed. The log says so.
        :raises Unavailable: if its executors died or none was free, or if the call was cancelled and the activity has
            failed to clean up: the work item comes again.
        """
        if not definition.clean_up or record.saved is None:
            return False
        request = replace(
            request_of(held, event, definition, attempt=record.attempt, crashes=crashes, begin_by=0.0),
            begin_by=None,
            watched=False,
            saved=record.saved,
            timeout=CLEAN_UP,
            clean_up=True,
        )
        log.info("activity_cleans_up", activity=event.name, instance_id=record.instance.instance_id)
        failure = None
        for number in range(TRIES):  # another activity in the same executor may be the cause of a crash
            outcome = await self._runner.run(replace(request, alone=request.alone or number > 0))
            failure = outcome.failure
            if failure is None:
                return True
            log.warning(
                "activity_clean_up_failed",
                activity=event.name,
                instance_id=record.instance.instance_id,
                error=failure.error_message,
            )
            if not outcome.crashed:
                break
        assert failure is not None
        not_called = outcome.crashed or failure.error_type == NO_EXECUTOR
        if not_called or await self._begins.is_cancelled(held):
            raise Unavailable(f"what a dead attempt has begun is not ended: {failure.error_message}", maybe_done=False)
        return False

    async def end_sessions(self, held: Delivery, sessions: tuple[str, ...]) -> None:
        """End what dead executors have left running on a Spark Connect server.

        An error is only logged if the instance has ended and waits for nothing.

        :raises Unavailable: if the call was cancelled: its answer says that nothing of it runs any more.
        """
        if not sessions:
            return
        try:
            await self._runner.end_sessions(sessions)
        except ExecutorError as error:
            if await self._begins.is_cancelled(held):
                raise Unavailable(f"a session of a dead attempt is not ended: {error}", maybe_done=False) from error


def sessions_of(found: Found) -> tuple[str, ...]:
    """Return the names of the Spark Connect sessions that earlier attempts may have left running.

    An attempt whose record has an outcome has ended its session itself.
    """
    return tuple(
        record.spark_session for record, _ in found if record.spark_session is not None and record.state not in _ENDED
    )
