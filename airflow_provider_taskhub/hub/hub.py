"""Define an opened task hub: its store, its names, its hub row, and methods that join partitions, messages and history.

The packages ``hub.partitions``, ``hub.queues`` and ``hub.history`` do not import each other. Code that needs two of
them is in this module. The client and the workers use this module.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace
from datetime import timedelta
from functools import cached_property
from secrets import token_hex

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.episode import Episode
from airflow_provider_taskhub.engine.events import EventRaised, HistoryEvent, OrchestrationInstance, TaskScheduled
from airflow_provider_taskhub.engine.identity import run_name
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.change_hints import AwaitedInstances
from airflow_provider_taskhub.hub.formats.instance_rows import decode_instance, fill, inline_text, large_texts
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.formats.large_texts import status_blob, text_of_blob
from airflow_provider_taskhub.hub.history import checkpoint
from airflow_provider_taskhub.hub.history.cancelled_calls import CancelledCalls
from airflow_provider_taskhub.hub.model import HubInfo, HubNames, InstanceState
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.event_order import SentEvents
from airflow_provider_taskhub.hub.queues.outgoing import (
    NOBODY,
    OutboundMessage,
    Routing,
    outbound_message,
    outbound_messages,
    sending,
)
from airflow_provider_taskhub.hub.unreadable_rows import unreadable
from airflow_provider_taskhub.storage.primitives import Entity, Store, Transact, Unit


@dataclass(frozen=True, kw_only=True)
class Hub:
    """A task hub whose store is open.

    :param info: the hub row, as it was read when the hub was opened.
    :param process: random id of this process; messages carry it.
    :param sequence: returns the number of the next message that this process sends.
    :param awaited: the instances that sensors of Airflow wait for. Only a worker updates it.
    :param sent_events: the numbers of the last events that this process sent as a client.
    """

    store: Store
    names: HubNames
    info: HubInfo
    clock: Clock
    process: str = field(default_factory=lambda: token_hex(8))
    sequence: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    awaited: AwaitedInstances = field(default_factory=AwaitedInstances)
    sent_events: SentEvents = field(default_factory=SentEvents)

    @cached_property
    def cancelled_calls(self) -> CancelledCalls:
        """Tells which calls orchestrators have cancelled."""
        return CancelledCalls(self.store, self.names)

    def queue_of(self, instance_id: str) -> str:
        """Return the name of the control queue that receives the messages for an instance."""
        return self.names.control(partition_of(instance_id, self.info.partitions))

    @property
    def container_url(self) -> str:
        """Address of the container of large payloads. Instance rows contain this address."""
        return self.store.container_url(self.names.large_messages)

    # Methods that read instance rows:

    async def instance(self, instance_id: str, *, payloads: bool | Collection[str] = False) -> InstanceState | None:
        """Read the row of an instance.

        :param payloads: True: also read the texts that are stored in blobs. A collection of field names: read only the
            blobs of these fields. Texts in blobs that are not read are None.
        :returns: the instance; None if there is no row.
        """
        entity = await self._row(instance_id)
        while entity is not None:
            state = self.state_of(entity)
            if not payloads:
                return state
            large = large_texts(entity, container_url=self.container_url)
            if not isinstance(payloads, bool):
                large = {field: blob for field, blob in large.items() if field in payloads}
            texts = {column: await self._text(name) for column, name in large.items()}
            missing = [column for column, text in texts.items() if text is None]
            if missing and (again := await self._row(instance_id)) != entity:
                entity = again  # the row has changed, and the blobs that the old row names were deleted: read again
                continue
            found = {
                column: inline_text(entity, column) if text is None else text_of_blob(large[column], text)
                for column, text in texts.items()
            }
            return fill(state, found) if found else state
        return None

    async def custom_status(self, column: str) -> str | None:
        """Read a custom status.

        :param column: value of the column ``CustomStatus`` of the instance row: JSON text, or the address of a blob.
        :returns: JSON text; None if there is no custom status.
        """
        blob = status_blob(column, self.container_url)
        text = None if blob is None else await self._text(blob)
        return text or (None if column == "null" else column)

    async def _row(self, instance_id: str) -> Entity | None:
        return await self.store.get(self.names.instances, escape(instance_id), "")

    async def _text(self, blob: str) -> str | None:
        """Read the text of a blob.

        :returns: None if the blob is missing or damaged, or if its name is invalid. A damaged row thus raises no error.
        """
        try:
            return await self.store.get_text(self.names.large_messages, blob)
        except InputError as error:
            unreadable(self.names.large_messages, blob, str(error))
            return None

    def state_of(self, entity: Entity) -> InstanceState:
        """Decode an instance row that was just read or written."""
        return decode_instance(entity, container_url=self.container_url)

    # Methods that make and send messages:

    def message_to(
        self,
        event: HistoryEvent,
        target: OrchestrationInstance,
        *,
        sender: OrchestrationInstance = NOBODY,
        episode: int | None = None,
        claim: timedelta | None = None,
        action_id: str | None = None,
        now: Timestamp | None = None,
    ) -> OutboundMessage:
        """Make a message to an instance. The message is not sent yet.

        :param claim: how long the message is hidden from other workers after the put, because this worker hands the
            message over in memory. None: the message is visible at once.
        :param action_id: identity of the sender's action that this message carries out; None: there is no such action.
        :param now: present time, from which the delay of a timer's message is counted. It must come from the clock that
            set the timer. None: the present time of this machine.
        """
        return outbound_message(
            event,
            target,
            names=self.names,
            queue=self.queue_of(target.instance_id),
            process=self.process,
            sequence=self.sequence(),
            sender=sender,
            now=now or self.clock.utc_now(),
            episode=episode,
            claim=claim,
            activity_id=action_id,
        )

    def change_hints(self, episode: Episode, stored: checkpoint.Stored) -> tuple[Transact, ...]:
        """Return the writes of the change hints for the checkpoint of an episode.

        :param stored: what was stored before the checkpoint.
        """
        hints = self.awaited.hints(self.names, episode.current.instance_id)
        return hints if hints and checkpoint.is_visible_to_sensors(episode, stored) else ()

    async def send(self, made: OutboundMessage) -> None:
        """Put a message into its queue. A large payload is written before the message."""
        await self.store.commit(Unit(steps=sending([made])))

    async def raise_event(self, event: EventRaised, target: OrchestrationInstance) -> None:
        """Send an event of a client. The message names the event that this process sent to the same run before it."""
        run = event.taskhub_execution_id
        number, now = self.sequence(), self.clock.utc_now()
        with self.sent_events.next((target.instance_id, run_name(run or "")), number) as after:
            made = outbound_message(
                event,
                target,
                names=self.names,
                queue=self.queue_of(target.instance_id),
                process=self.process,
                sequence=number,
                sender=NOBODY,
                now=now,
                after=after,
            )
            await self.send(made)

    # Methods that build a checkpoint:

    def outbound(
        self,
        episode: Episode,
        claims: Callable[[str], tuple[int, timedelta]],
        work_items: Callable[[Sequence[TaskScheduled]], Sequence[tuple[str, str | None]]],
    ) -> tuple[OutboundMessage, ...]:
        """Encode the messages that an episode sends.

        :param claims: returns, for the name of a queue, how many more messages this worker may hand over in memory, and
            for how long these messages are hidden from other workers.
        :param work_items: see :class:`.Routing`.
        """
        routing = Routing(
            names=self.names,
            control=self.queue_of,
            claims=claims,
            process=self.process,
            sequence=self.sequence,
            work_items=work_items,
        )
        return outbound_messages(episode, routing, self.clock.utc_now())

    def checkpoint(
        self,
        episode: Episode,
        history: checkpoint.Written,
        stored: checkpoint.Stored,
        outgoing: Sequence[OutboundMessage],
        processed: checkpoint.Processed,
        *,
        tags: dict[str, str],
        check: Callable[[], None],
        commit_id: str,
    ) -> checkpoint.CheckpointPlan:
        """Build the checkpoint of an episode. Nothing is written yet.

        :param outgoing: the messages that the episode sends.
        :param check: called before each write; raises an error if the lease is lost.
        """
        now = self.clock.utc_now()
        return checkpoint.build(
            episode,
            history,
            stored,
            names=self.names,
            puts=[made.put(now) for made in outgoing],
            blobs=[made.blob for made in outgoing if made.blob is not None],
            processed=processed,
            commit_id=commit_id,
            now=now,
            container_url=self.container_url,
            tags=tags,
            change_hints=self.change_hints(episode, stored),
            write_instance=checkpoint.visible(episode, stored, now=self.clock.monotonic()),
            check=check,
        )


def processed(batch: Sequence[Delivery], *, leave: bool = False) -> checkpoint.Processed:
    """Return the messages that an episode consumed, for its checkpoint.

    :param leave: True: the checkpoint must delete no message.
    :returns: the identity of each message and its deletion with the newest pop receipt.
    """
    deletes = () if leave else tuple([held.deletion() for held in batch])
    return checkpoint.Processed(deletes=deletes, message_ids=tuple([held.identity for held in batch]))


def brought(held: Delivery) -> HistoryEvent:
    """Return the event of a delivered message. The event's ``taskhub_message_id`` is the identity of the message."""
    return replace(held.message.event, taskhub_message_id=held.identity)
