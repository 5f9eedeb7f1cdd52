"""Committing a checkpoint whatever the store answers: unknown outcomes are read back, never repeated blindly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from secrets import token_hex

import structlog

from airflow_provider_taskhub.engine.episode import Episode
from airflow_provider_taskhub.engine.events import ExecutionStarted, Status
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.errors import (
    Conflict,
    InputError,
    NotFound,
    PayloadTooLarge,
    StorageError,
    Throttled,
    Unavailable,
)
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.history_rows import Sentinel
from airflow_provider_taskhub.hub.history import checkpoint
from airflow_provider_taskhub.hub.history.checkpoint import CheckpointPlan, Stored, Written
from airflow_provider_taskhub.hub.history.load import sentinel_of
from airflow_provider_taskhub.hub.hub import Hub, processed
from airflow_provider_taskhub.hub.model import InstanceState, Tenure
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.outgoing import OutboundMessage, claimed
from airflow_provider_taskhub.retries import Retries
from airflow_provider_taskhub.storage.primitives import Results, Step, Unit

log = structlog.get_logger(__name__)

TRIES = 5
COMMITS = Retries(after=(Throttled, Unavailable), first=0.1)
"""Pauses between two tries of a commit."""


class Aborted(StorageError):
    """Another episode over the same sentinel was committed: this session is not the instance's owner any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """:param claimed: messages that the commit put and claimed, to be handed over.
    :param deleted: those of the batch that are known to be deleted.
    """

    stored: Stored
    claimed: tuple[Delivery, ...] = ()
    deleted: tuple[Delivery, ...] = ()


def was_replaced(row: InstanceState | None, episode: Episode) -> bool:
    """Whether the row is of a newer start, whose client saw the instance end: here, or before its first checkpoint.

    Of a child that goes on it saw no end: only of the run before, of which the row tells still.
    """
    if row is None or row.status is not Status.PENDING or same_start(row.execution_id, episode.current.execution_id):
        return False
    return episode.completed is not None or not _starts_child(episode)


def _starts_child(episode: Episode) -> bool:
    return any(isinstance(event, ExecutionStarted) and event.parent is not None for event in episode.history)


def _certainly(error: Exception) -> bool:
    """Whether what was refused was not done for certain."""
    return not (isinstance(error, Unavailable) and error.maybe_done)


class Committer:
    """Carries checkpoints out."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def commit(
        self,
        episode: Episode,
        stored: Stored,
        mail: Sequence[OutboundMessage],
        batch: Sequence[Delivery],
        *,
        tenure: Tenure,
        tags: dict[str, str],
        leave: bool = False,
    ) -> Done:
        """Make an episode durable.

        :param leave: the messages are not deleted: what is to be done before that follows, and they stand for it.

        :raises Aborted: when somebody else committed over the sentinel. :raises LeaseLost: from the tenure's check.
        :raises PayloadTooLarge: when no store takes it. :raises InputError: as well.
        :raises StorageError: when the store does not answer for too long; whether it was committed is then unknown,
            and the redelivery of the messages finds out.
        """
        hub, commit_id = self._hub, token_hex(16)  # of all tries: a write that was only late is found to be ours
        history = checkpoint.written(episode, hub.names)
        spilled = tuple(blob.name for blob in history.blobs)

        def planned(stored: Stored) -> CheckpointPlan:
            taken, check = processed(batch, leave=leave), tenure.check
            return hub.checkpoint(episode, history, stored, mail, taken, tags=tags, check=check, commit_id=commit_id)

        def whole(done: Done) -> Done:
            return replace(done, stored=replace(done.stored, blobs=done.stored.blobs + spilled))

        plan = planned(stored)
        put: list[Delivery] = []  # claimed by tries that ended in an error
        refused = True  # all of them for certain: nothing of this episode is in the history
        last: StorageError | None = None
        for turn in range(TRIES):  # not retries.retry: what was stored is read between two tries
            sent = hub.clock.monotonic()
            try:
                results = await hub.store.commit(plan.unit)
                await self._withdraw(put)
                return whole(self._done(plan, episode, stored, mail, batch, results, sent))
            except (PayloadTooLarge, InputError, Conflict, NotFound, Throttled, Unavailable) as error:
                done = error.results if isinstance(error, StorageError) else ()
                if len(done) > plan.outbound:
                    put += claimed(mail, done[plan.outbound], sent=sent)
                refused = refused and _certainly(error) and len(done) <= plan.outbound + 1
                if isinstance(error, PayloadTooLarge | InputError):  # the same at each try
                    await self._withdraw(put if refused else ())
                    raise
                last = error
                log.info(
                    "checkpoint_unsettled",
                    instance_id=episode.current.instance_id,
                    error=str(error),
                    notes=getattr(error, "__notes__", []),
                )
            if isinstance(last, Throttled | Unavailable):
                await hub.clock.sleep(COMMITS.pause(turn + 1, last))
            sentinel = await self._sentinel(episode.current.instance_id)
            if sentinel is not None and sentinel.commit_id == plan.commit_id and sentinel.complete:
                try:
                    finished = await self._finish(episode, history, stored, sentinel, batch, tenure, tags, leave)
                except Aborted:
                    await self._withdraw(put)
                    raise
                return whole(replace(finished, claimed=tuple(put)))
            if sentinel is not None and sentinel.commit_id == plan.commit_id:
                break  # a half commit of our own: reload, which cuts it off
            if (sentinel.etag if sentinel else None) != stored.sentinel_etag:
                await self._withdraw(put if refused else ())
                raise Aborted("another episode was committed over the sentinel") from last
            row_etag = await self._row_etag(episode.current.instance_id)
            if stored.sentinel_etag is None and stored.row_etag is not None and row_etag is None:
                await self._withdraw(put if refused else ())
                raise Aborted("the instance was purged before its first checkpoint") from last
            stored = replace(stored, row_etag=row_etag)
            plan = planned(stored)
        assert last is not None
        raise last

    async def _withdraw(self, put: Sequence[Delivery]) -> None:
        """Delete what a refused try has put and claimed: nobody has seen it, and nothing stands behind it."""
        if not put:
            return
        try:
            step = Step(name="withdraw", operations=tuple([held.deletion() for held in put]))
            await self._hub.store.commit(Unit(steps=(step,)))
        except StorageError as error:  # they become visible, and their identities tell what they are
            log.info("claimed_puts_left", messages=len(put), error=str(error))

    def _done(
        self,
        plan: CheckpointPlan,
        episode: Episode,
        stored: Stored,
        mail: Sequence[OutboundMessage],
        batch: Sequence[Delivery],
        results: Results,
        sent: float,
    ) -> Done:
        etags = results[plan.history][0]
        assert isinstance(etags, tuple)
        row_etag: str | None = None
        if plan.instance is not None:
            merged = results[plan.instance][0]
            assert isinstance(merged, tuple)
            row_etag = merged[0]
        after = checkpoint.after(
            stored,
            episode,
            sentinel_etag=etags[-1],
            completed=plan.completed,
            consumed=plan.consumed,
            row_etag=row_etag,
            now=self._hub.clock.monotonic(),
        )
        return Done(
            stored=after,
            claimed=tuple(claimed(mail, results[plan.outbound], sent=sent)),
            deleted=tuple(held for held, done in zip(batch, results[-1], strict=False) if done is not None),
        )

    async def _finish(
        self,
        episode: Episode,
        history: Written,
        stored: Stored,
        sentinel: Sentinel,
        batch: Sequence[Delivery],
        tenure: Tenure,
        tags: dict[str, str],
        leave: bool,
    ) -> Done:
        """The history is committed: what is behind it is done under the row's newest ETag.

        :raises Aborted: when another owner has committed since: its row would become what it was.
        """
        hub, instance_id = self._hub, episode.current.instance_id
        for _ in range(TRIES):
            row = await hub.instance(instance_id)
            again = await self._sentinel(instance_id)  # after the row: a later commit's merge makes the row's ETag old
            if again is None or again.etag != sentinel.etag:
                raise Aborted("another episode was committed behind this one")
            row_etag, taken = row.etag if row is not None else None, processed(batch, leave=leave)
            if row is None and stored.sentinel_etag is None and stored.row_etag is not None:
                # the instance was ended by another worker, and purged, while this was on its way
                log.info("purged_before_its_start", instance_id=instance_id)
                unit = checkpoint.withdrawn(hub.names, instance_id, history, sentinel.etag)
                await hub.store.commit(unit)
                raise Aborted("the instance was purged before its first checkpoint")
            if was_replaced(row, episode):
                steps = checkpoint.tail(hub.names, episode, taken, tags)
                await hub.store.commit(Unit(steps=steps, check=tenure.check))
                return Done(stored=replace(self._after(stored, episode, sentinel, None), row_etag=None))
            unit = checkpoint.rest(
                episode,
                history,
                replace(stored, row_etag=row_etag),
                names=hub.names,
                processed=taken,
                now=hub.clock.utc_now(),
                container_url=hub.container_url,
                tags=tags,
                check=tenure.check,
            )
            try:
                results = await hub.store.commit(unit)
            except (Conflict, NotFound):
                continue
            merged = results[1][0]
            assert isinstance(merged, tuple)
            return Done(stored=self._after(stored, episode, sentinel, merged[0]))
        raise Conflict(f"the instance row of {instance_id!r} keeps changing under its checkpoint")

    def _after(self, stored: Stored, episode: Episode, sentinel: Sentinel, row_etag: str | None) -> Stored:
        return checkpoint.after(
            stored,
            episode,
            sentinel_etag=sentinel.etag,
            completed=sentinel.checkpoint_completed or self._hub.clock.utc_now(),
            consumed=sentinel.consumed,
            row_etag=row_etag,
            now=self._hub.clock.monotonic(),
        )

    async def _sentinel(self, instance_id: str) -> Sentinel | None:
        return await sentinel_of(self._hub.store, self._hub.names, instance_id)

    async def _row_etag(self, instance_id: str) -> str | None:
        row = await self._hub.instance(instance_id)
        return row.etag if row is not None else None
