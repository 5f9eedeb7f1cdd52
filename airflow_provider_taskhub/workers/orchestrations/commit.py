"""Commits the checkpoint of an episode (one run of an orchestrator).

If the store does not say whether a commit succeeded, the sentinel is read before the next try. The sentinel is the last
row of the history; each commit writes its own id into it. A second try without this read was rejected: after a conflict
nobody could tell the first try of this worker from the commit of another worker.
"""

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
from airflow_provider_taskhub.hub.history.cut_off_switch import completion_of_switch, read_unwritten
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable, sentinel_of
from airflow_provider_taskhub.hub.hub import Hub, processed
from airflow_provider_taskhub.hub.model import InstanceState, Tenure
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.outgoing import OutboundMessage, claimed
from airflow_provider_taskhub.retries import Retries
from airflow_provider_taskhub.storage.primitives import Results, Step, Unit

log = structlog.get_logger(__name__)

TRIES = 5
"""The largest number of tries of one commit."""
COMMITS = Retries(after=(Throttled, Unavailable), first=0.1)
"""The pauses between two tries of a commit after the store has throttled a try or did not answer."""


class Aborted(StorageError):
    """The loaded state of an instance is old, for example because another worker has committed an episode meanwhile.

    The instance is removed from memory. The messages are given back, and their next delivery loads the history again.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of a commit.

    :param stored: what the next checkpoint must know of the stored rows.
    :param claimed: messages that the commit has put into queues and hidden there from other workers. This worker's
        queue readers get them in memory.
    :param deleted: the messages of the batch that are known to be deleted.
    """

    stored: Stored
    claimed: tuple[Delivery, ...] = ()
    deleted: tuple[Delivery, ...] = ()


def was_replaced(row: InstanceState | None, episode: Episode) -> bool:
    """Return True if a client has replaced the instance row for a newer start, so that this run must not write the row.

    A client replaces the row only after it has seen that an instance under this id has ended. If the episode is the
    first one of a child and the child goes on, the client has seen only the end of the run before the child. The result
    is then False, and this run writes the row.

    :param row: the instance row as it is now; None: there is no row.
    """
    if row is None or row.status is not Status.PENDING or same_start(row.execution_id, episode.current.execution_id):
        return False
    return episode.completed is not None or not _starts_child(episode)


def _starts_child(episode: Episode) -> bool:
    return any(isinstance(event, ExecutionStarted) and event.parent is not None for event in episode.history)


def _certainly_not_done(error: Exception) -> bool:
    """Return True if an operation that ended with this error has certainly changed nothing."""
    return not (isinstance(error, Unavailable) and error.maybe_done)


class Committer:
    """Commits checkpoints to the store of a hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def commit(
        self,
        episode: Episode,
        stored: Stored,
        outgoing: Sequence[OutboundMessage],
        batch: Sequence[Delivery],
        *,
        tenure: Tenure,
        tags: dict[str, str],
        leave: bool = False,
    ) -> Done:
        """Make an episode durable: its history, its outgoing messages, its instance row; then delete its messages.

        :param stored: what is stored before the commit.
        :param outgoing: the messages that the episode sends.
        :param batch: the messages that the episode has processed.
        :param tenure: the time in which this worker serves the partition. The store checks that it has not ended right
            before the first write and, on Azure, before each step.
        :param tags: the tags of the instance.
        :param leave: True: the commit does not delete the messages of the batch. The caller has work to do before it
            deletes them; if the worker dies, they are delivered again and the work is repeated.
        :raises Aborted: if another worker has committed an episode meanwhile, or the instance was purged.
        :raises LeaseLost: if this worker no longer serves the partition.
        :raises PayloadTooLarge: if the store refuses a row or message as too large.
        :raises InputError: if the store refuses a value as invalid.
        :raises StorageError: if all tries have failed, or a try has written only a part of the history. Then it may be
            unknown whether the checkpoint was committed; the next delivery of the messages reads the history and finds
            out.
        """
        # All tries have the same id, so that a late write of an earlier try is recognized as this commit.
        hub, commit_id = self._hub, token_hex(16)
        history = checkpoint.written(episode, hub.names, commit_id=commit_id)

        def planned(stored: Stored) -> CheckpointPlan:
            taken, check = processed(batch, leave=leave), tenure.check
            return hub.checkpoint(
                episode, history, stored, outgoing, taken, tags=tags, check=check, commit_id=commit_id
            )

        plan = planned(stored)
        # The messages that the newest try without success has put into queues, hidden from other workers. They are
        # deleted if a later try succeeds or if the commit was certainly refused. If the history shows that a try was
        # committed after all, this worker gets them in memory. In all other cases they become visible later.
        put: list[Delivery] = []
        # The copies of the same messages that earlier tries have put. They are deleted in all cases, so that each
        # message stays once.
        older: list[Delivery] = []
        refused = True  # True while all tries have certainly left the history unchanged
        last: StorageError | None = None
        for turn in range(TRIES):  # retries.retry does not fit, because the sentinel is read between two tries
            sent = hub.clock.monotonic()
            try:
                results = await hub.store.commit(plan.unit)
                await self._withdraw([*older, *put])
                return self._done(plan, episode, history, stored, outgoing, batch, results, sent)
            except (PayloadTooLarge, InputError, Conflict, NotFound, Throttled, Unavailable) as error:
                done = error.results if isinstance(error, StorageError) else ()
                if len(done) > plan.outbound:
                    older += put
                    put = claimed(outgoing, done[plan.outbound], sent=sent)
                refused = refused and _certainly_not_done(error) and len(done) <= plan.outbound + 1
                if isinstance(error, PayloadTooLarge | InputError):
                    # The store would refuse each further try too. The caller lets the instance fail.
                    await self._withdraw([*older, *put] if refused else older)
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
            if sentinel is not None and sentinel.commit_id == commit_id and sentinel.complete:
                await self._withdraw(older)
                finished = await self._finish(episode, history, stored, sentinel, batch, put, tenure, tags, leave)
                return replace(finished, claimed=tuple(put))
            if sentinel is not None and sentinel.commit_id == commit_id:
                # This commit is half done. A generation switch has replaced rows, so it is tried again as a whole under
                # the new ETag. Else the error is raised, and the next load ignores the uncommitted rows. A first
                # checkpoint is not tried again either: the instance may have been purged before it.
                if not (episode.switched and stored.sentinel_etag and isinstance(last, Throttled | Unavailable)):
                    break
                stored = replace(stored, sentinel_etag=sentinel.etag)
            if (sentinel.etag if sentinel else None) != stored.sentinel_etag:
                await self._withdraw([*older, *put] if refused else older)
                raise Aborted("another episode was committed over the sentinel") from last
            row_etag = await self._row_etag(episode.current.instance_id)
            if stored.sentinel_etag is None and stored.row_etag is not None and row_etag is None:
                await self._withdraw([*older, *put] if refused else older)
                raise Aborted("the instance was purged before its first checkpoint") from last
            stored = replace(stored, row_etag=row_etag)
            plan = planned(stored)
        await self._withdraw(older)
        assert last is not None
        raise last

    async def complete_switch(self, instance_id: str, sentinel: Sentinel, blob: str, tenure: Tenure) -> None:
        """Write the rest of a generation switch that was cut off between two transactions, from its blob.

        :param sentinel: the incomplete sentinel, as it was read.
        :param blob: name of the blob that the sentinel names.
        :raises Aborted: if another worker has written the history meanwhile.
        :raises HistoryUnreadable: if the blob is missing or damaged.
        :raises PayloadTooLarge: if the store refuses a row as too large.
        :raises InputError: if the store refuses a value as invalid.
        """
        hub = self._hub
        try:
            found = await read_unwritten(hub.store, hub.names, instance_id, blob)
        except HistoryUnreadable:
            now = await self._sentinel(instance_id)
            if now is not None and now.etag == sentinel.etag:
                raise
            raise Aborted("another worker has completed the switch and deleted the blob") from None
        unit = completion_of_switch(
            hub.names, instance_id, sentinel, found, now=hub.clock.utc_now(), check=tenure.check
        )
        try:
            await hub.store.commit(unit)
        except (Conflict, NotFound) as error:
            raise Aborted("another worker has written the history") from error

    async def _withdraw(self, put: Sequence[Delivery]) -> None:
        """Delete messages that a try has put into queues and hidden from other workers.

        No reader of this worker has seen the messages. Either no history says that they were sent, or other copies of
        them stay.
        """
        if not put:
            return
        try:
            step = Step(name="withdraw", operations=tuple([held.deletion() for held in put]))
            await self._hub.store.commit(Unit(steps=(step,)))
        except StorageError as error:
            # The messages become visible later. Their receivers recognize repetitions by the identity of a message.
            log.info("claimed_puts_left", messages=len(put), error=str(error))

    def _done(
        self,
        plan: CheckpointPlan,
        episode: Episode,
        history: Written,
        stored: Stored,
        outgoing: Sequence[OutboundMessage],
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
            history,
            sentinel_etag=etags[-1],
            completed=plan.completed,
            consumed=plan.consumed,
            row_etag=row_etag,
            now=self._hub.clock.monotonic(),
        )
        return Done(
            stored=after,
            claimed=tuple(claimed(outgoing, results[plan.outbound], sent=sent)),
            deleted=tuple(held for held, done in zip(batch, results[-1], strict=False) if done is not None),
        )

    async def _finish(
        self,
        episode: Episode,
        history: Written,
        stored: Stored,
        sentinel: Sentinel,
        batch: Sequence[Delivery],
        put: Sequence[Delivery],
        tenure: Tenure,
        tags: dict[str, str],
        leave: bool,
    ) -> Done:
        """Do the steps of a checkpoint after the history: from the write of the instance row to the last deletion.

        If a client has replaced the instance row for a newer start, the row is not written.

        :param sentinel: the sentinel that this commit has written.
        :raises Aborted: if another worker has committed another episode after this one, so that its newer instance row
            must not be overwritten. The history says that the messages of ``put`` were sent, so they stay in their
            queues and become visible later. Or if the instance was purged; then ``put`` is withdrawn.
        :raises Conflict: if others have changed the instance row in each of the tries to write it.
        """
        hub, instance_id = self._hub, episode.current.instance_id

        def after(row_etag: str | None) -> Stored:
            return checkpoint.after(
                stored,
                episode,
                history,
                sentinel_etag=sentinel.etag,
                completed=sentinel.checkpoint_completed or hub.clock.utc_now(),
                consumed=sentinel.consumed,
                row_etag=row_etag,
                now=hub.clock.monotonic(),
            )

        for _ in range(TRIES):
            row = await hub.instance(instance_id)
            # The sentinel is read after the row. If another worker commits later than this read, it changes the ETag of
            # the row, and our write of the row fails.
            again = await self._sentinel(instance_id)
            if again is None or again.etag != sentinel.etag:
                raise Aborted("another episode was committed after this one")
            row_etag, taken = row.etag if row is not None else None, processed(batch, leave=leave)
            if row is None and stored.sentinel_etag is None and stored.row_etag is not None:
                # Another worker has terminated the instance and a client has purged it before this commit arrived.
                log.info("purged_before_its_start", instance_id=instance_id)
                unit = checkpoint.withdrawn(hub.names, instance_id, history, sentinel.etag)
                await hub.store.commit(unit)
                await self._withdraw(put)
                raise Aborted("the instance was purged before its first checkpoint")
            if was_replaced(row, episode):
                steps = checkpoint.tail(hub.names, episode, taken, tags)
                await hub.store.commit(Unit(steps=steps, check=tenure.check))
                return Done(stored=replace(after(None), row_etag=None))
            unit = checkpoint.rest(
                episode,
                history,
                replace(stored, row_etag=row_etag),
                names=hub.names,
                processed=taken,
                now=hub.clock.utc_now(),
                container_url=hub.container_url,
                tags=tags,
                change_hints=hub.change_hints(episode, stored),
                check=tenure.check,
            )
            try:
                results = await hub.store.commit(unit)
            except (Conflict, NotFound):
                continue
            merged = results[1][0]
            assert isinstance(merged, tuple)
            return Done(stored=after(merged[0]))
        raise Conflict(
            f"the instance row of {instance_id!r} was changed by others in each of {TRIES} tries to write it"
        )

    async def _sentinel(self, instance_id: str) -> Sentinel | None:
        return await sentinel_of(self._hub.store, self._hub.names, instance_id)

    async def _row_etag(self, instance_id: str) -> str | None:
        row = await self._hub.instance(instance_id)
        return row.etag if row is not None else None
