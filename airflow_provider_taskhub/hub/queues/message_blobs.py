"""Delete the blobs of large messages after their messages were deleted.

DurableTask keeps these blobs until the instance is purged. An orchestration that never ends is never purged.
"""

from __future__ import annotations

import asyncio

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.engine.events import ExecutionStarted
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.formats.message_envelope import is_blob_of
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.primitives import MAX_TRANSACTION_OPERATIONS, DeleteBlob, Step, Store, Unit

log = structlog.get_logger(__name__)

QUIET = 600.0
"""Seconds between the deletion of a message and the deletion of its blob. If the answer to a put was lost, the sender
has put the message twice, and both copies name the same blob. The second copy is received and deleted meanwhile."""
MAX_WAITING = 10_000
"""The most blobs that wait for their deletion. Of more, the oldest stay until their instance is purged."""
RETRY = 60.0
"""Seconds until the next try after the store has failed."""


class MessageBlobs:
    """Deletes the blobs of the messages that this worker has deleted, each :data:`QUIET` seconds later.

    The list of these blobs is only in memory. What a worker has not deleted at its end stays until the purge.
    """

    def __init__(self, store: Store, names: HubNames, clock: Clock) -> None:
        self._store, self._names, self._clock = store, names, clock
        self._due: dict[str, float] = {}  # the monotonic time of each deletion, the earliest first
        self._added = asyncio.Event()

    def add(self, held: Delivery) -> None:
        """Note a message that was deleted from its queue.

        The blob of a start stays, because the instance row names it as the input. A blob that is not the message's own
        stays too.
        """
        name = held.envelope.blob_name
        if name is None or not is_blob_of(name, held.message) or isinstance(held.message.event, ExecutionStarted):
            return
        self._due.pop(name, None)  # the second copy of a message: the time begins again
        self._due[name] = self._clock.monotonic() + QUIET
        if len(self._due) > MAX_WAITING:
            del self._due[next(iter(self._due))]
        self._added.set()

    async def run(self) -> None:
        """Delete the blobs that are due, until this task is cancelled."""
        while True:
            while not self._due:
                self._added.clear()
                await self._added.wait()
            await self._clock.sleep(max(0.0, next(iter(self._due.values())) - self._clock.monotonic()))
            now = self._clock.monotonic()
            names = [name for name, due in self._due.items() if due <= now][:MAX_TRANSACTION_OPERATIONS]
            deletions = tuple([DeleteBlob(container=self._names.large_messages, name=name) for name in names])
            try:
                await self._store.commit(Unit(steps=(Step(name="blobs", operations=deletions),)))
            except StorageError as error:
                log.info("message_blobs_left", blobs=len(names), error=str(error))
                await self._clock.sleep(RETRY)
                continue
            for name in names:
                self._due.pop(name, None)
