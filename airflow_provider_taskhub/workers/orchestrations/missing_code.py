"""What happens to a batch of messages if this worker does not have the code of the orchestrator.

The messages wait in their queue, because another worker may have the code. If no live worker has the code for the
no-worker timeout, the instance fails. A terminate needs no code, so the worker processes a terminate at once. If the
terminate leaves time for a clean-up, it waits for the code, but no longer than this time. A
suspension or resume that came together with a start is stored at once too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import structlog

from airflow_provider_taskhub.engine.events import ExecutionStarted, ExecutionTerminated, FailureDetails
from airflow_provider_taskhub.errors import UnknownOrchestrator
from airflow_provider_taskhub.hub.admission.facts import SUSPENSIONS
from airflow_provider_taskhub.hub.model import Need
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.workers.demand import Demand
from airflow_provider_taskhub.workers.missing_functions import MissingFunctions, wait_of
from airflow_provider_taskhub.workers.orchestrations.loading import LoadedInstance, Loader
from airflow_provider_taskhub.workers.orchestrations.sessions import Session, Sessions
from airflow_provider_taskhub.workers.orchestrations.settling import Settler
from airflow_provider_taskhub.workers.orchestrations.triage import Triage

log = structlog.get_logger(__name__)

BEHIND_TERMINATE = timedelta(seconds=1)
"""The pause after which messages that were received together with a terminate are delivered again. By then the
terminate has been processed."""


class MissingCode:
    """Decides for each batch whose orchestrator this worker does not have: wait, fail, or process the terminate.

    :param sessions: the instances that this worker has in memory.
    :param loader: loads an instance from the store.
    :param triage: applies admission to the suspensions and resumes of a batch.
    :param settler: carries out what admission has decided about suspensions and resumes.
    :param absences: the functions that this worker does not have, and how long no live worker has had them.
    :param demand: remembers which functions the instances of each partition need.
    """

    def __init__(
        self,
        *,
        sessions: Sessions[LoadedInstance],
        loader: Loader,
        triage: Triage,
        settler: Settler,
        absences: MissingFunctions,
        demand: Demand,
    ) -> None:
        self._sessions, self._loader, self._triage, self._settler = sessions, loader, triage, settler
        self._absences, self._demand = absences, demand

    async def terminates_or_wait(
        self, session: Session[LoadedInstance], live: LoadedInstance, batch: list[Delivery], error: UnknownOrchestrator
    ) -> list[Delivery]:
        """Return the terminates of the batch, and give back all its other messages.

        Call it if the commit of a new generation (``continue_as_new``) was cut off and its rest needs the missing code.

        :returns: the messages that can be processed without the code; empty if the whole batch waits.
        """
        ends = [held for held in batch if isinstance(held.message.event, ExecutionTerminated)]
        if not ends:
            await self.wait(session, batch, error)
            return []
        live.stuck = True
        await session.reader.give_back(
            [held for held in batch if held not in ends], delay=BEHIND_TERMINATE, begun=False
        )
        return ends

    def ends(self, session: Session[LoadedInstance], live: LoadedInstance, batch: Sequence[Delivery]) -> bool:
        """Return whether a message ends the instance although its code is missing.

        A terminate that leaves time for a clean-up does so when it has waited for the code as long as this time.
        """
        ends = [held for held in batch if live.execution.ends(held.message.event)]
        _, waited = wait_of(ends, session.reader.visibility)
        events = (held.message.event for held in ends)
        times = (event.taskhub_grace or 0 if isinstance(event, ExecutionTerminated) else 0 for event in events)
        return any(waited >= timedelta(seconds=time) for time in times)

    def failure(
        self, session: Session[LoadedInstance], batch: Sequence[Delivery], error: UnknownOrchestrator
    ) -> FailureDetails:
        """Return the failure of an instance whose orchestrator no live worker has had for the no-worker timeout.

        :param error: names the missing orchestrator.
        :raises UnknownOrchestrator: before the timeout is over: the instance must wait.
        """
        _, waited = wait_of(batch, session.reader.visibility)
        text = self._absences.gave_up(_need(error), waited)
        if text is None:
            raise error
        return FailureDetails(error_type="UnknownOrchestrator", error_message=text)

    async def wait(
        self, session: Session[LoadedInstance], batch: Sequence[Delivery], error: UnknownOrchestrator
    ) -> None:
        """Give the batch back to its queue, so that later a worker that has the code can receive it."""
        need = _need(error)
        since = min((held.inserted for held in batch), key=lambda time: time.ticks)
        self._demand.lacks(session.reader.tenure.partition, need, since)
        level = logging.WARNING if self._absences.is_log_due(need) else logging.DEBUG
        log.log(level, "orchestrator_unknown", instance_id=session.instance_id, error=str(error))
        delay = self._absences.delay(need, batch[0].dequeue_count)
        self._sessions.keep(session, None)
        batch = await self._settle_suspensions(session, batch)
        terminates = [held for held in batch if isinstance(held.message.event, ExecutionTerminated)]
        for some in (terminates, [held for held in batch if held not in terminates]):
            if some:  # a terminate that leaves time for a clean-up waits for the code so long, whatever else waits
                waiting_since, _ = wait_of(some, session.reader.visibility)
                await session.reader.give_back(some, delay=delay, begun=False, waiting_since=waiting_since)

    async def _settle_suspensions(self, session: Session[LoadedInstance], batch: Sequence[Delivery]) -> list[Delivery]:
        """Store the suspensions and resumes that came together with a start, because storing them needs no code.

        The instance row shows the suspension at once, while the start still waits for its code.

        :returns: the messages of the batch that must still be given back to the queue.
        """
        suspensions = [held for held in batch if isinstance(held.message.event, SUSPENSIONS)]
        if not (suspensions and isinstance(batch[0].message.event, ExecutionStarted)):
            return list(batch)
        live, loaded = await self._loader.load(session.instance_id)
        checkpointed = loaded.sentinel.timestamp if loaded.sentinel else None
        found = await self._triage.judge_batch(
            session, live, suspensions, replace(live.facts(), checkpointed=checkpointed)
        )
        await self._settler.settle(session, live, found)
        return [held for held in batch if held not in suspensions or held in found.process]


def _need(error: UnknownOrchestrator) -> Need:
    return Need("orchestrator", error.name, error.version)
