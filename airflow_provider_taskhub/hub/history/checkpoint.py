"""The checkpoint: a pure function from the outcome of an episode to ordered steps of storage operations.

Order, always: payloads, outbound, history (one step a batch), instance, blobs, completion, delete. The names of the
steps are the names of the crash points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.actions import WATCH_TAG
from airflow_provider_taskhub.engine.episode import Episode
from airflow_provider_taskhub.engine.events import HistoryEvent, OrchestrationInstance, Status
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.history_rows import (
    MAX_CONSUMED,
    SENTINEL,
    Sentinel,
    encode_event,
    encode_sentinel,
    row_key,
)
from airflow_provider_taskhub.hub.formats.instance_rows import changed, merge_row
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.formats.payload_spill import BATCH_ROWS, batches, spill_columns
from airflow_provider_taskhub.hub.formats.waits_column import encode_awaits
from airflow_provider_taskhub.hub.model import HubNames, Stamp, Suspension
from airflow_provider_taskhub.storage.primitives import (
    DeleteBlob,
    DeleteMessage,
    Entity,
    EtagOf,
    PutBlob,
    PutMessage,
    RowOperation,
    RowVerb,
    Step,
    Transact,
    Unit,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a session knows to be stored of its instance.

    :param sentinel_etag: None: there is no sentinel yet, it will be inserted.
    :param rows: history rows of the generation that count.
    :param uncommitted_rows: rows of the generation behind them, which a half commit left. They do not count.
    :param has_old_rows: True if rows of an earlier, longer generation may follow ours.
    :param completed: CheckpointCompletedTimestamp as stored.
    :param consumed: ids of messages that generation switches consumed, as the sentinel has them. Such a message may be
        delivered again long after, and no row of this generation tells that its event was taken.
    :param steered: time of the newest suspension or resume that was taken. The commit of its episode stores it.
    :param ended: names of earlier runs under this id, the newest last.
    :param suspension: with which a run without a checkpoint will begin, as the sentinel has it.
    :param blobs: names of the blobs to which the generation's rows were spilled, as far as the session knows. They are
        deleted with the generation.
    :param unprojected_events: events of the loaded history that the instance row does not show yet. The next merge of
        the row shows them.
    :param row_etag: of the instance row; None: not known, the merge is then an upsert.
    :param status, custom_status: as the instance row has them.
    :param merged: monotonic second of the last merge of the row.
    """

    sentinel_etag: str | None = None
    rows: int = 0
    uncommitted_rows: int = 0
    has_old_rows: bool = False
    completed: Timestamp | None = None
    consumed: tuple[str, ...] = ()
    steered: Stamp | None = None
    ended: tuple[str, ...] = ()
    suspension: Suspension | None = None
    blobs: tuple[str, ...] = ()
    unprojected_events: tuple[HistoryEvent, ...] = ()
    row_etag: str | None = None
    status: Status | None = None
    custom_status: str | None = None
    merged: float = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """A checkpoint ready to be sent.

    :param consumed: as the sentinel will remember them (:class:`Stored`).
    :param history, instance: indexes of the step that ends the history, and of the instance row's (None: not written).
    """

    unit: Unit
    commit_id: str
    completed: Timestamp
    consumed: tuple[str, ...]
    outbound: int
    history: int
    instance: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """The messages that an episode consumed."""

    deletes: tuple[DeleteMessage, ...]
    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An episode's history as rows, and the payloads that do not fit into them. Made once for all tries to commit."""

    rows: tuple[Entity, ...]
    blobs: tuple[PutBlob, ...]


def written(episode: Episode, names: HubNames) -> Written:
    """What an episode adds to its history."""
    rows: list[Entity] = []
    blobs: list[PutBlob] = []
    instance_id, execution_id = episode.current.instance_id, episode.current.execution_id or ""
    for ordinal, event in enumerate(episode.history, episode.first_ordinal):
        entity = encode_event(event, instance_id=instance_id, execution_id=execution_id, ordinal=ordinal)
        entity, spilled = spill_columns(entity, names.large_messages)
        rows.append(entity)
        blobs.extend(spilled)
    return Written(rows=tuple(rows), blobs=tuple(blobs))


def build(
    episode: Episode,
    history: Written,
    stored: Stored,
    *,
    names: HubNames,
    puts: Sequence[PutMessage],
    blobs: Sequence[PutBlob],
    processed: Processed,
    commit_id: str,
    now: Timestamp,
    container_url: str,
    tags: dict[str, str],
    write_instance: bool,
    check: Callable[[], None],
) -> CheckpointPlan:
    """All that makes an episode durable.

    :param history: of the episode (:func:`written`).
    :param puts, blobs: the outbound messages, encoded, and the payloads that they spilled.
    :param tags: the instance's tags. :param write_instance: see :func:`visible`.
    """
    payloads = list(history.blobs)
    instance: list[Step] = []
    status: str | None = None
    if write_instance:
        merge, merge_blobs = _merge(episode, history, stored, names, now, container_url)
        payloads.extend(merge_blobs)
        instance.append(Step(name="instance", operations=(changed(names, merge, stored.row_etag),)))
        status = str(merge.properties["CustomStatus"]) if episode.switched else None
    commits = _history_steps(episode, stored, history.rows, names, processed, commit_id, now, status)
    steps = [
        Step(name="payloads", operations=(*blobs, *payloads)),
        Step(name="outbound", operations=tuple(puts)),
        *commits,
        *instance,
        _superseded(names, episode, stored),
    ]
    steps.extend(tail(names, episode, processed, tags))
    return CheckpointPlan(
        unit=Unit(steps=tuple(steps), check=check),
        commit_id=commit_id,
        completed=now,
        consumed=_consumed(stored, episode, processed),
        outbound=1,
        history=1 + len(commits),
        instance=2 + len(commits) if instance else None,
    )


def rest(
    episode: Episode,
    history: Written,
    stored: Stored,
    *,
    names: HubNames,
    processed: Processed,
    now: Timestamp,
    container_url: str,
    tags: dict[str, str],
    check: Callable[[], None],
) -> Unit:
    """What remains of a checkpoint whose history is committed but whose instance row was refused.

    :param stored: as before the checkpoint, but for the instance row's ETag.
    """
    merge, merge_blobs = _merge(episode, history, stored, names, now, container_url)
    steps = (
        Step(name="payloads", operations=tuple(merge_blobs)),
        Step(name="instance", operations=(changed(names, merge, stored.row_etag),)),
        _superseded(names, episode, stored),
        *tail(names, episode, processed, tags),
    )
    return Unit(steps=steps, check=check)


def _merge(
    episode: Episode, history: Written, stored: Stored, names: HubNames, now: Timestamp, container_url: str
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """The columns of the instance row that a checkpoint writes, and their blobs."""
    return merge_row(
        episode,
        names=names,
        now=now,
        container_url=container_url,
        history_blobs=history.blobs,
        unprojected_events=stored.unprojected_events,
        told=stored.custom_status,
    )


def _superseded(names: HubNames, episode: Episode, stored: Stored) -> Step:
    """Blobs of the generation that the episode has left: once neither history nor instance row names them."""
    blobs = stored.blobs if episode.switched else ()
    deletions = tuple(DeleteBlob(container=names.large_messages, name=name) for name in blobs)
    return Step(name="blobs", operations=deletions)


def tail(names: HubNames, episode: Episode, processed: Processed, tags: dict[str, str]) -> tuple[Step, ...]:
    """Completion hint, then the processed messages."""
    ended = episode.completed is not None
    hint = completion(names, episode.current, episode.status, tags) if ended else ()
    return Step(name="completion", operations=hint), Step(name="delete", operations=processed.deletes)


def completion(
    names: HubNames, instance: OrchestrationInstance, status: Status, tags: Mapping[str, str]
) -> tuple[Transact, ...]:
    """The hint that a watched instance has ended; nothing for one that nobody watches."""
    if WATCH_TAG not in tags:
        return ()
    entity = Entity(
        partition_key="",
        row_key=escape(instance.instance_id),
        properties={"ExecutionId": instance.execution_id, "RuntimeStatus": str(status)},
    )
    return (Transact(table=names.completions, rows=(RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=entity),)),)


def visible(episode: Episode, stored: Stored, *, now: float, longest: float = 10.0) -> bool:
    """Whether a reader of the instance row can see a difference, or the last merge is ``longest`` seconds ago."""
    return (
        episode.started
        or episode.completed is not None
        or episode.output is not None
        or episode.status is not stored.status
        or episode.custom_status != stored.custom_status
        or now - stored.merged >= longest
    )


def after(
    stored: Stored,
    episode: Episode,
    *,
    sentinel_etag: str,
    completed: Timestamp,
    consumed: tuple[str, ...],
    row_etag: str | None,
    now: float,
) -> Stored:
    """What is stored once the checkpoint is committed, but for the blobs to which it was spilled.

    :param completed, consumed: as the sentinel now has them. :param row_etag: None: the row was not written.
    """
    count = (0 if episode.switched else stored.rows) + len(episode.history)
    written = row_etag is not None
    return Stored(
        sentinel_etag=sentinel_etag,
        rows=count,
        has_old_rows=stored.has_old_rows or episode.switched,
        completed=completed,
        consumed=consumed,
        steered=stored.steered,
        ended=stored.ended,
        suspension=None if _takes(episode, stored) else stored.suspension,
        blobs=() if episode.switched else stored.blobs,
        row_etag=row_etag if written else stored.row_etag,
        status=episode.status if written else stored.status,
        custom_status=episode.custom_status if written else stored.custom_status,
        merged=now if written else stored.merged,
    )


def _history_steps(
    episode: Episode,
    stored: Stored,
    rows: Sequence[Entity],
    names: HubNames,
    processed: Processed,
    commit_id: str,
    now: Timestamp,
    custom_status: str | None,
) -> list[Step]:
    """One entity-group transaction a batch, chained by the sentinel's ETag."""
    before = 0 if episode.switched else stored.rows
    committed = before + len(rows)
    consumed = _consumed(stored, episode, processed)
    groups = _deletions(episode, stored, committed)
    absent = not (episode.switched or stored.uncommitted_rows or stored.has_old_rows)
    groups.extend(
        tuple(RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=row, absent=absent) for row in group)
        for group in batches(rows)
    )
    steps: list[Step] = []
    standing = before
    for index, group in enumerate(groups):
        last = index == len(groups) - 1
        if episode.switched:
            # the generation before is gone with the first of its rows: what there is of the new one counts at once,
            # and `Execution.resume` makes the rest of it again
            standing += len(group)
        sentinel = Sentinel(
            execution_id=episode.current.execution_id or "",
            complete=last,
            checkpoint_completed=now if last else stored.completed,
            commit_id=commit_id,
            committed_rows=committed if last else standing,
            consumed=consumed,
            steered=stored.steered if last or episode.switched else None,  # else its row does not count yet
            ended=stored.ended if episode.started else (),
            clears=last and _takes(episode, stored),
            custom_status=custom_status,
            awaits=encode_awaits(episode.awaits) if last else None,
        )
        entity = encode_sentinel(sentinel, instance_id=episode.current.instance_id)
        if index == 0 and stored.sentinel_etag is None:
            lock = RowOperation(verb=RowVerb.INSERT, entity=entity)
        else:
            # the step before is number 1 + index: payloads and outbound come first
            previous = EtagOf(step=1 + index, row=len(groups[index - 1])) if index else stored.sentinel_etag
            lock = RowOperation(verb=RowVerb.MERGE, entity=entity, etag=previous)
        name = "history" if index == 0 else f"history:{index}"
        steps.append(Step(name=name, operations=(Transact(table=names.history, rows=(*group, lock)),)))
    return steps


def _consumed(stored: Stored, episode: Episode, processed: Processed) -> tuple[str, ...]:
    """The newest ones, as many as a sentinel holds."""
    return (stored.consumed + (processed.message_ids if episode.switched else ()))[-MAX_CONSUMED:]


def _takes(episode: Episode, stored: Stored) -> bool:
    """Whether the episode is the first one of the run that was to begin suspended."""
    return stored.suspension is not None and same_start(stored.suspension.run, episode.current.execution_id)


def withdrawn(names: HubNames, instance_id: str, history: Written, etag: str) -> Unit:
    """What deletes a first checkpoint again: its instance was purged while it was on its way.

    :param etag: of the sentinel that it has written.
    """
    key = escape(instance_id)
    lock = RowOperation(verb=RowVerb.DELETE, entity=Entity(partition_key=key, row_key=SENTINEL), etag=etag)
    rows = [RowOperation(verb=RowVerb.DELETE, entity=replace(row, properties={}), etag="*") for row in history.rows]
    groups = [(lock, *rows[:BATCH_ROWS])]
    groups += [tuple(rows[at : at + BATCH_ROWS]) for at in range(BATCH_ROWS, len(rows), BATCH_ROWS)]
    steps = [Step(name="withdraw", operations=(Transact(table=names.history, rows=group),)) for group in groups]
    blobs = tuple(DeleteBlob(container=names.large_messages, name=blob.name) for blob in history.blobs)
    return Unit(steps=(*steps, Step(name="blobs", operations=blobs)))


def recorded(
    names: HubNames,
    instance_id: str,
    before: Sentinel | None,
    stored: Stored,
    *,
    run: str,
    stamp: Stamp,
    suspension: Suspension | None,
    identity: str,
    commit_id: str,
) -> tuple[Transact, Stored]:
    """A checkpoint of the sentinel alone: a suspension or resume has come before the first checkpoint of its run.

    :param before: the sentinel; None: there is none. :param run: execution id of the run.
    :param suspension: None: it was a resume. :param identity: of the message.
    :returns: the write, and what is stored after it, but for the sentinel's ETag.
    """
    after = replace(stored, steered=stamp, suspension=suspension, consumed=(*stored.consumed, identity)[-MAX_CONSUMED:])
    sentinel = replace(
        before or Sentinel(execution_id=run, complete=False),
        commit_id=commit_id,
        committed_rows=stored.rows,
        consumed=after.consumed,
        steered=stamp,
        suspension=suspension,
        clears=suspension is None,
    )
    entity = encode_sentinel(sentinel, instance_id=instance_id)
    if before is None:
        row = RowOperation(verb=RowVerb.INSERT, entity=entity)
    else:
        row = RowOperation(verb=RowVerb.MERGE, entity=entity, etag=before.etag)
    return Transact(table=names.history, rows=(row,)), after


def _deletions(episode: Episode, stored: Stored, committed: int) -> list[tuple[RowOperation, ...]]:
    """Rows of a half commit that this one does not overwrite, removed under the sentinel's ETag."""
    if episode.switched:
        return []  # they are of another generation now, and no reader counts them
    partition_key = escape(episode.current.instance_id)
    left = [
        RowOperation(
            verb=RowVerb.DELETE, entity=Entity(partition_key=partition_key, row_key=row_key(ordinal)), etag="*"
        )
        for ordinal in range(committed, stored.rows + stored.uncommitted_rows)
    ]
    return [tuple(left[start : start + BATCH_ROWS]) for start in range(0, len(left), BATCH_ROWS)]
