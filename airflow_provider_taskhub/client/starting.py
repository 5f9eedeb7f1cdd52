"""Starts an instance: first inserts the instance row, then puts the start message with the same execution id.

The insertion fails if a row with the same instance id exists. Two clients that start the same id at the same time
therefore make only one instance.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

import structlog

from airflow_provider_taskhub import tracing
from airflow_provider_taskhub.client.connection import Connection
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import ExecutionStarted, OrchestrationInstance, Status
from airflow_provider_taskhub.errors import Conflict, InstanceExists, IntakeFull, NotFound
from airflow_provider_taskhub.hub.formats.instance_rows import created_row
from airflow_provider_taskhub.hub.history import waiting_instances
from airflow_provider_taskhub.hub.model import InstanceState, StartPolicy
from airflow_provider_taskhub.hub.queues.outgoing import OutboundMessage
from airflow_provider_taskhub.instance_limit import InstanceLimit
from airflow_provider_taskhub.intake_limit import WAITS_FOR, waiting_for_room
from airflow_provider_taskhub.retries import retry
from airflow_provider_taskhub.storage.primitives import (
    Entity,
    EtagOf,
    PutBlob,
    RowOperation,
    RowVerb,
    Step,
    Transact,
    Unit,
)

log = structlog.get_logger(__name__)


class Starter:
    """Starts instances of one hub, and applies the start policy when an instance with the same id exists."""

    def __init__(self, connection: Connection) -> None:
        self.hub, self._intake = connection.hub, connection.intake

    async def begin(
        self,
        orchestrator: str,
        text: str | None,
        instance_id: str,
        version: str,
        tags: Mapping[str, str] | None,
        start_at: datetime | None,
        policy: StartPolicy,
        intake_timeout: timedelta | None = None,
        *,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> InstanceState:
        """Start an instance. Other parameters and errors: ``Client.start``.

        :param text: the input as JSON; None: no input.
        :param before: called after the hub has accepted the start, and before the client writes the start.
        """
        instance = OrchestrationInstance(instance_id=instance_id, execution_id=uuid4().hex)
        with tracing.creating(orchestrator, version, instance) as carried:
            start = ExecutionStarted(
                timestamp=self.hub.clock.utc_now(),
                instance=instance,
                name=orchestrator,
                input=text,
                version=version,
                tags=dict(tags) if tags else None,
                parent_trace_context=carried,
                scheduled_start_time=Timestamp.from_datetime(start_at) if start_at else None,
                generation=0,
            )

            async def make() -> InstanceState:
                made = replace(start, timestamp=self.hub.clock.utc_now())
                if before is not None:
                    await before()
                try:
                    return await self._insert(made)
                except Conflict:
                    return await self._taken(made, policy)

            if start.scheduled_start_time is not None and start.scheduled_start_time > start.timestamp:
                return await make()  # no worker needs to read it before its time
            return await self._let_in(start, policy, make, WAITS_FOR if intake_timeout is None else intake_timeout)

    async def _let_in(
        self,
        start: ExecutionStarted,
        policy: StartPolicy,
        make: Callable[[], Awaitable[InstanceState]],
        within: timedelta,
    ) -> InstanceState:
        """Make a start as soon as the intake limit of the hub leaves room.

        If the limit is reached, an existing instance is still returned, because it is no new start.
        """
        instance_id = start.instance.instance_id

        async def once() -> InstanceState:
            try:
                async with self._intake.place():
                    return await make()
            except IntakeFull:
                row = await self.hub.instance(instance_id)
                if row is None or (policy is StartPolicy.REPLACE_FINISHED and row.status.is_final):
                    raise
                return await self._taken(start, policy)

        def waits(error: Exception, failures: int) -> None:
            if within:
                log.info("start_waits", instance_id=instance_id, tries=failures, reason=str(error))

        return await retry(once, waiting_for_room(within), self.hub.clock, failed=waits)

    async def _insert(self, start: ExecutionStarted) -> InstanceState:
        # The message gets the ETag of the inserted row: the store replaces the placeholder `mark` when it puts the
        # message. With this ETag a worker can process the first episode without reading the row. The text of a message
        # that is too large for the queue is in a blob, which is written before the row, so it cannot have the ETag.
        mark = uuid4().hex
        made, entity, blobs = self._start_parts(replace(start, taskhub_row_etag=mark))
        put = replace(made.put(), naming=(mark, EtagOf(step=1)))
        if made.blob is not None:
            made, entity, blobs = self._start_parts(start)
            put = made.put()
        insert = Transact(table=self.hub.names.instances, rows=(RowOperation(verb=RowVerb.INSERT, entity=entity),))
        steps = (
            Step(name="payloads", operations=blobs),
            Step(name="instance", operations=(insert,)),
            Step(name="outbound", operations=(put,)),
        )
        etags = (await self.hub.store.commit(Unit(steps=steps)))[1][0]
        assert isinstance(etags, tuple)
        return self.hub.state_of(replace(entity, etag=etags[0]))

    def _start_parts(self, start: ExecutionStarted) -> tuple[OutboundMessage, Entity, tuple[PutBlob, ...]]:
        hub = self.hub
        made = hub.message_to(start, start.instance)
        entity, blobs = created_row(
            start, names=hub.names, now=hub.clock.utc_now(), container_url=hub.container_url, message_blob=made.blob
        )
        return made, entity, ((made.blob,) if made.blob is not None else ()) + tuple(blobs)

    async def _write_row(self, verb: RowVerb, entity: Entity, blobs: Sequence[PutBlob], etag: str | None) -> str:
        row = Transact(table=self.hub.names.instances, rows=(RowOperation(verb=verb, entity=entity, etag=etag),))
        steps = (Step(name="payloads", operations=tuple(blobs)), Step(name="instance", operations=(row,)))
        etags = (await self.hub.store.commit(Unit(steps=steps)))[1][0]
        assert isinstance(etags, tuple)
        return etags[0]

    async def _taken(self, start: ExecutionStarted, policy: StartPolicy) -> InstanceState:
        instance_id = start.instance.instance_id
        for _ in range(5):
            row = await self.hub.instance(instance_id)
            if row is None:
                try:
                    return await self._insert(start)  # the other instance was purged after our first insertion failed
                except Conflict:
                    continue
            if policy is StartPolicy.ATTACH:
                if row.status is Status.PENDING:
                    await self._put_again(row)
                return row
            if policy is StartPolicy.REFUSE or not row.status.is_final:
                again = ", or the policy replace_finished to start it again" if row.status.is_final else ""
                raise InstanceExists(
                    f"instance {instance_id!r} exists already ({row.status}): give another id, or the policy "
                    f"attach to use the instance that exists{again}"
                )
            try:
                return await self._replace(replace(start, generation=(row.restarts or 0) + 1), row)
            except (Conflict, NotFound):
                continue  # another client changed or purged the row first: read the row again
        raise InstanceExists(f"another client is starting instance {instance_id!r}: try again")

    async def _replace(self, start: ExecutionStarted, row: InstanceState) -> InstanceState:
        made, entity, blobs = self._start_parts(start)
        etag = await self._write_row(RowVerb.REPLACE, entity, blobs, row.etag)
        await self.hub.send(made)
        return self.hub.state_of(replace(entity, etag=etag))

    async def _put_again(self, row: InstanceState) -> None:
        """Put the start message of a Pending instance again, with the same content.

        The client that inserted the row may have died before it put the message. A worker ignores a second message of
        the same start.
        """
        hub, limit = self.hub, InstanceLimit.of(row.tags)
        run = OrchestrationInstance(instance_id=row.instance_id, execution_id=row.execution_id)
        if limit is not None and await waiting_instances.of_instance(hub.store, hub.names, limit.name, run):
            return  # the row of the waiting instance contains the start message
        full = await self.hub.instance(row.instance_id, payloads=True) or row
        start = ExecutionStarted(
            timestamp=row.created or self.hub.clock.utc_now(),
            instance=run,
            name=row.name,
            input=full.input,
            version=row.version,
            tags=dict(row.tags) if row.tags else None,
            scheduled_start_time=row.scheduled_start,
            generation=row.restarts,
        )
        await self.hub.send(self.hub.message_to(start, start.instance))
