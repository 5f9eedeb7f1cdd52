"""Build checkpoints: pure functions that turn the result of an episode into ordered steps of storage operations.

An episode is one run of an orchestrator over new events. A generation is a part of a run: one begins at the start, and
one at each ``continue_as_new``. Its history begins empty. The sentinel is the last row of the history.

The order is always the same: write large payloads ("payloads"), send messages ("outbound"), write history rows
("history", one step for each batch), write the instance row ("instance"), delete blobs of the previous generation
("blobs"), write the completion hint and the change hints ("completion"), delete the processed messages ("delete").
Tests interrupt a checkpoint at each of these names.

This module is longer than others because these functions share one order of steps and one value, :class:`Stored`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from airflow_provider_taskhub.codec import Packed, Timestamp
from airflow_provider_taskhub.engine.episode import Episode
from airflow_provider_taskhub.engine.events import HistoryEvent, OrchestrationInstance, Status
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats import unwritten_rows
from airflow_provider_taskhub.hub.formats.history_rows import (
    MAX_CONSUMED,
    MAX_ENDED,
    SENTINEL,
    Sentinel,
    encode_event,
    encode_sentinel,
    row_key,
)
from airflow_provider_taskhub.hub.formats.instance_rows import changed, last_cancel, merge_row
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.formats.payload_spill import BATCH_ROWS, batches, spill_columns
from airflow_provider_taskhub.hub.formats.waits_column import encode_awaits
from airflow_provider_taskhub.hub.model import HubNames, Stamp, Suspension
from airflow_provider_taskhub.storage.primitives import (
    DeleteBlob,
    DeleteMessage,
    Entity,
    EtagOf,
    Property,
    PutBlob,
    PutMessage,
    RowOperation,
    RowVerb,
    Step,
    Transact,
    Unit,
)
from airflow_provider_taskhub.tags import WATCH_TAG


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What is stored of an instance, as far as its session knows.

    :param sentinel_etag: ETag of the sentinel; None: there is no sentinel yet, and the checkpoint inserts the sentinel.
    :param rows: number of committed history rows of the generation.
    :param uncommitted_rows: number of rows behind the committed rows. An interrupted checkpoint wrote them; they do not
        count.
    :param has_old_rows: True if rows of an earlier, longer generation may follow the rows of this generation.
    :param completed: value of the sentinel's column CheckpointCompletedTimestamp.
    :param consumed: identities of the messages that were consumed by ``continue_as_new``, as the sentinel lists them.
        Such a message may be delivered again much later, and no history row of the new generation contains its event.
    :param suspension_stamp: stamp (time and sender) of the newest suspension or resume that was processed. The
        checkpoint of its episode stores the stamp.
    :param arrived: for each process that sent events, the number of the last one that has arrived
        (``event_order.with_arrived``).
    :param ended: names of earlier runs under this id, the newest last.
    :param suspension: suspension in the sentinel, with which a run without a checkpoint begins.
    :param blobs: names of the known blobs that hold large columns of the generation's rows. They are deleted when the
        next generation begins.
    :param unwritten: name of the blob in which the last commit, a generation switch, has stored rows that it had not
        written yet. The next checkpoint deletes the blob. None: there is none.
    :param unprojected_events: events of the loaded history that the instance row does not show yet. The next write of
        the row shows them.
    :param row_etag: ETag of the instance row; None: no row is known, and the checkpoint inserts the row.
    :param status: status in the instance row.
    :param custom_status: custom status in the instance row.
    :param merged: when this process last wrote the instance row, in seconds of the monotonic clock; ``-inf``: never.
    """

    sentinel_etag: str | None = None
    rows: int = 0
    uncommitted_rows: int = 0
    has_old_rows: bool = False
    completed: Timestamp | None = None
    consumed: tuple[str, ...] = ()
    suspension_stamp: Stamp | None = None
    arrived: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    suspension: Suspension | None = None
    blobs: tuple[str, ...] = ()
    unwritten: str | None = None
    unprojected_events: tuple[HistoryEvent, ...] = ()
    row_etag: str | None = None
    status: Status | None = None
    custom_status: str | None = None
    merged: float = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """A checkpoint that is ready to be committed. With the indexes, the caller finds the result of a step.

    :param unit: the storage operations of the checkpoint, as ordered steps. The caller gives them to the store.
    :param completed: time of the checkpoint; the sentinel stores it.
    :param consumed: identities of consumed messages that the sentinel lists after the checkpoint (:class:`Stored`).
    :param outbound: index of the step that sends the messages.
    :param history: index of the last step that writes the history.
    :param instance: index of the step that writes the instance row; None: the row is not written.
    """

    unit: Unit
    completed: Timestamp
    consumed: tuple[str, ...]
    outbound: int
    history: int
    instance: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """The messages that an episode consumed.

    :param deletes: how the messages are deleted, with their newest pop receipts.
    :param message_ids: identities of the messages.
    """

    deletes: tuple[DeleteMessage, ...]
    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The new history rows of an episode, and the blobs of their large columns. They are encoded only once, even if the
    commit of the episode is tried several times.

    :param unwritten: the blob with all rows behind the first transaction, if the episode begins a new generation and
        its rows need several transactions; else None. See the module ``unwritten_rows``.
    """

    rows: tuple[Entity, ...]
    blobs: tuple[PutBlob, ...]
    unwritten: PutBlob | None = None


def written(episode: Episode, names: HubNames, *, commit_id: str) -> Written:
    """Encode the events that an episode adds to its history.

    :param commit_id: id of the commit, for the name of the blob ``unwritten``.
    """
    rows: list[Entity] = []
    blobs: list[PutBlob] = []
    instance_id, execution_id = episode.current.instance_id, episode.current.execution_id or ""
    for ordinal, event in enumerate(episode.history, episode.first_ordinal):
        entity = encode_event(event, instance_id=instance_id, execution_id=execution_id, ordinal=ordinal)
        entity, spilled = spill_columns(entity, names.large_messages)
        rows.append(entity)
        blobs.extend(spilled)
    unwritten: PutBlob | None = None
    if episode.switched and len(groups := batches(rows)) > 1:
        text = unwritten_rows.encode(rows[len(groups[0]) :], encode_awaits(episode.awaits))
        name = unwritten_rows.blob_name(instance_id, commit_id)
        unwritten = PutBlob(container=names.large_messages, name=name, data=Packed(text))
    return Written(rows=tuple(rows), blobs=tuple(blobs), unwritten=unwritten)


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
    change_hints: tuple[Transact, ...] = (),
    write_instance: bool,
    check: Callable[[], None],
) -> CheckpointPlan:
    """Build the checkpoint of an episode.

    :param history: the new history rows (:func:`written`).
    :param stored: what was stored before the checkpoint.
    :param puts: the messages that the episode sends, encoded.
    :param blobs: the large payloads of these messages.
    :param processed: the messages that the episode consumed.
    :param commit_id: id of this commit; the sentinel stores it.
    :param now: time of the checkpoint.
    :param tags: tags of the instance.
    :param change_hints: the writes of the change hints.
    :param write_instance: True: write the instance row too (see :func:`visible`).
    :param check: the unit's check (see :class:`Unit`), which raises ``LeaseLost`` if the lease is lost.
    """
    payloads = [*history.blobs, *((history.unwritten,) if history.unwritten is not None else ())]
    instance: list[Step] = []
    status: str | None = None
    if write_instance:
        merge, merge_blobs = _merge(episode, history, stored, names, now, container_url)
        payloads.extend(merge_blobs)
        instance.append(Step(name="instance", operations=(changed(names, merge, stored.row_etag),)))
        status = str(merge.properties["CustomStatus"]) if episode.switched else None
    commits = _history_steps(episode, stored, history, names, processed, commit_id, now, status)
    steps = [
        Step(name="payloads", operations=(*blobs, *payloads)),
        Step(name="outbound", operations=tuple(puts)),
        *commits,
        *instance,
        _superseded(names, episode, history, stored),
    ]
    steps.extend(tail(names, episode, processed, tags, change_hints))
    return CheckpointPlan(
        unit=Unit(steps=tuple(steps), check=check),
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
    change_hints: tuple[Transact, ...] = (),
    check: Callable[[], None],
) -> Unit:
    """Build the remaining steps of a checkpoint that has written its history, but not its instance row, because the row
    had another ETag than expected.

    :param stored: what was stored before the checkpoint, with the new ETag of the instance row.
    """
    merge, merge_blobs = _merge(episode, history, stored, names, now, container_url)
    steps = (
        Step(name="payloads", operations=tuple(merge_blobs)),
        Step(name="instance", operations=(changed(names, merge, stored.row_etag),)),
        _superseded(names, episode, history, stored),
        *tail(names, episode, processed, tags, change_hints),
    )
    return Unit(steps=steps, check=check)


def _merge(
    episode: Episode, history: Written, stored: Stored, names: HubNames, now: Timestamp, container_url: str
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """Return the columns of the instance row that a checkpoint writes, and the blobs of large columns."""
    return merge_row(
        episode,
        names=names,
        now=now,
        container_url=container_url,
        history_blobs=history.blobs,
        unprojected_events=stored.unprojected_events,
        row_custom_status=stored.custom_status,
    )


def _superseded(names: HubNames, episode: Episode, history: Written, stored: Stored) -> Step:
    """Return the step that deletes the blobs of the previous generation after ``continue_as_new``, and the blobs of
    unwritten rows. The step comes after history and instance row, so nothing needs these blobs any more."""
    blobs = list(stored.blobs if episode.switched else ())
    if stored.unwritten is not None:
        blobs.append(stored.unwritten)
    if history.unwritten is not None:
        blobs.append(history.unwritten.name)
    deletions = tuple(DeleteBlob(container=names.large_messages, name=name) for name in blobs)
    return Step(name="blobs", operations=deletions)


def tail(
    names: HubNames,
    episode: Episode,
    processed: Processed,
    tags: dict[str, str],
    change_hints: tuple[Transact, ...] = (),
) -> tuple[Step, ...]:
    """Return the last two steps: write the hints for Airflow, then delete the processed messages."""
    ended = episode.completed is not None
    hint = completion(names, episode.current, episode.status, tags) if ended else ()
    hints = Step(name="completion", operations=(*hint, *change_hints))
    return hints, Step(name="delete", operations=processed.deletes)


def completion(
    names: HubNames, instance: OrchestrationInstance, status: Status, tags: Mapping[str, str]
) -> tuple[Transact, ...]:
    """Return the write of the completion hint of an ended instance. If no Airflow task watches the instance, the result
    is empty."""
    if WATCH_TAG not in tags:
        return ()
    entity = Entity(
        partition_key="",
        row_key=escape(instance.instance_id),
        properties={"ExecutionId": instance.execution_id, "RuntimeStatus": str(status)},
    )
    return (Transact(table=names.completions, rows=(RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=entity),)),)


def visible(episode: Episode, stored: Stored, *, now: float, longest: float = 10.0) -> bool:
    """Return True if a checkpoint must write the instance row.

    It must if a reader of the row would see a difference, or if the last write was ``longest`` seconds ago.

    :param now: present time of the monotonic clock, in seconds.
    """
    return (
        episode.started
        or episode.completed is not None
        or episode.output is not None
        or episode.status is not stored.status
        or episode.custom_status != stored.custom_status
        or last_cancel(episode.history, episode.current.instance_id) is not None
        or now - stored.merged >= longest
    )


def is_visible_to_sensors(episode: Episode, stored: Stored) -> bool:
    """Return True if a sensor of Airflow may see a difference after the checkpoint.

    A sensor sees the status, the custom status and the awaited events. While an instance awaits an event, the result is
    True for each checkpoint, because ``stored`` does not say for which events the instance waited before.
    """
    return (
        episode.started
        or episode.completed is not None
        or episode.status is not stored.status
        or episode.custom_status != stored.custom_status
        or bool(episode.awaits.events)
    )


def after(
    stored: Stored,
    episode: Episode,
    history: Written,
    *,
    sentinel_etag: str,
    completed: Timestamp,
    consumed: tuple[str, ...],
    row_etag: str | None,
    now: float,
) -> Stored:
    """Return what is stored after a checkpoint was committed.

    :param stored: what was stored before the checkpoint.
    :param history: the new history rows with their blobs.
    :param sentinel_etag: new ETag of the sentinel.
    :param completed: new CheckpointCompletedTimestamp of the sentinel.
    :param consumed: identities of consumed messages that the sentinel now lists.
    :param row_etag: new ETag of the instance row; None: the row was not written.
    :param now: present time of the monotonic clock, in seconds.
    """
    count = (0 if episode.switched else stored.rows) + len(episode.history)
    written = row_etag is not None
    return Stored(
        sentinel_etag=sentinel_etag,
        rows=count,
        has_old_rows=stored.has_old_rows or episode.switched,
        completed=completed,
        consumed=consumed,
        suspension_stamp=stored.suspension_stamp,
        arrived=stored.arrived,
        ended=stored.ended,
        suspension=None if _takes(episode, stored) else stored.suspension,
        blobs=(() if episode.switched else stored.blobs) + tuple(blob.name for blob in history.blobs),
        row_etag=row_etag if written else stored.row_etag,
        status=episode.status if written else stored.status,
        custom_status=episode.custom_status if written else stored.custom_status,
        merged=now if written else stored.merged,
    )


def _history_steps(
    episode: Episode,
    stored: Stored,
    history: Written,
    names: HubNames,
    processed: Processed,
    commit_id: str,
    now: Timestamp,
    custom_status: str | None,
) -> list[Step]:
    """Return one transaction for each batch of rows to delete (:func:`_deletions`) and of new history rows. Each
    transaction also writes the sentinel under the ETag that the transaction before it has produced."""
    rows = history.rows
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
    counted = before
    for index, group in enumerate(groups):
        last = index == len(groups) - 1
        if episode.switched:
            # The first row of the new generation overwrites a row of the old generation, so the old one cannot be used
            # any more. The rows of the new generation therefore count at once. If the checkpoint is interrupted, the
            # next owner takes the missing rows from the blob (`cut_off_switch`).
            counted += len(group)
        sentinel = Sentinel(
            execution_id=episode.current.execution_id or "",
            complete=last,
            checkpoint_completed=now if last else stored.completed,
            commit_id=commit_id,
            committed_rows=committed if last else counted,
            consumed=consumed,
            # Store the stamp only when the history row of its suspension or resume counts.
            suspension_stamp=stored.suspension_stamp if last or episode.switched else None,
            arrived=stored.arrived if last or episode.switched else {},
            ended=stored.ended if stored.ended and episode.started else (),
            clears=last and _takes(episode, stored),
            custom_status=custom_status,
            awaits=encode_awaits(episode.awaits) if last else None,
            unwritten=history.unwritten.name if history.unwritten is not None else None,
        )
        entity = encode_sentinel(sentinel, instance_id=episode.current.instance_id)
        if index == 0 and stored.sentinel_etag is None:
            lock = RowOperation(verb=RowVerb.INSERT, entity=entity)
        else:
            # The steps "payloads" and "outbound" have the numbers 0 and 1. So the previous history step has 1 + index.
            previous = EtagOf(step=1 + index, row=len(groups[index - 1])) if index else stored.sentinel_etag
            lock = RowOperation(verb=RowVerb.MERGE, entity=entity, etag=previous)
        name = "history" if index == 0 else f"history:{index}"
        steps.append(Step(name=name, operations=(Transact(table=names.history, rows=(*group, lock)),)))
    return steps


def _consumed(stored: Stored, episode: Episode, processed: Processed) -> tuple[str, ...]:
    """Return the identities of consumed messages for the sentinel (:attr:`Stored.consumed`). Of too many identities,
    only the newest are kept."""
    return (stored.consumed + (processed.message_ids if episode.switched else ()))[-MAX_CONSUMED:]


def _takes(episode: Episode, stored: Stored) -> bool:
    """Return True if the episode belongs to the run for which the sentinel stores a suspension."""
    return stored.suspension is not None and same_start(stored.suspension.run, episode.current.execution_id)


def withdrawn(names: HubNames, instance_id: str, history: Written, etag: str) -> Unit:
    """Return the deletions that undo a first checkpoint, because the instance was purged while the checkpoint was
    written.

    :param history: the history rows that the checkpoint wrote.
    :param etag: ETag of the sentinel that the checkpoint wrote.
    """
    key = escape(instance_id)
    lock = RowOperation(verb=RowVerb.DELETE, entity=Entity(partition_key=key, row_key=SENTINEL), etag=etag)
    rows = [RowOperation(verb=RowVerb.DELETE, entity=replace(row, properties={}), etag="*") for row in history.rows]
    groups = [(lock, *rows[:BATCH_ROWS])]
    groups += [tuple(rows[at : at + BATCH_ROWS]) for at in range(BATCH_ROWS, len(rows), BATCH_ROWS)]
    steps = [Step(name="withdraw", operations=(Transact(table=names.history, rows=group),)) for group in groups]
    payloads = [*history.blobs, *((history.unwritten,) if history.unwritten is not None else ())]
    blobs = tuple(DeleteBlob(container=names.large_messages, name=blob.name) for blob in payloads)
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
    """Build the write that stores a suspension or resume in the sentinel. This message came before the first checkpoint
    of its run, so there is no history that could hold its event.

    :param before: the sentinel as it was read; None: there is no sentinel.
    :param run: execution id of the run.
    :param stamp: when the suspension or resume was sent.
    :param suspension: the suspension; None: the message was a resume.
    :param identity: identity of the message.
    :returns: the write, and what is stored after the write. The caller adds the sentinel's new ETag.
    """
    after = replace(
        stored, suspension_stamp=stamp, suspension=suspension, consumed=(*stored.consumed, identity)[-MAX_CONSUMED:]
    )
    sentinel = replace(
        before or Sentinel(execution_id=run, complete=False),
        commit_id=commit_id,
        committed_rows=stored.rows,
        consumed=after.consumed,
        suspension_stamp=stamp,
        arrived=stored.arrived,
        suspension=suspension,
        clears=suspension is None,
    )
    entity = encode_sentinel(sentinel, instance_id=instance_id)
    if before is None:
        row = RowOperation(verb=RowVerb.INSERT, entity=entity)
    else:
        row = RowOperation(verb=RowVerb.MERGE, entity=entity, etag=before.etag)
    return Transact(table=names.history, rows=(row,)), after


def steered(names: HubNames, instance_id: str, stored: Stored) -> Transact:
    """Build the write that stores in the sentinel the stamp of a suspension that changes nothing. So an older resume
    that comes later changes nothing either."""
    assert stored.suspension_stamp is not None
    return _merged(names, instance_id, stored, {"TaskHubSteered": stored.suspension_stamp.text()})


def refused(names: HubNames, instance_id: str, stored: Stored, runs: Iterable[str]) -> tuple[Transact, Stored]:
    """Build the write that stores in the sentinel the names of runs that never begin, as if these runs had ended.

    :param runs: names of the runs (``identity.run_name``).
    :returns: the write, and what is stored after the write. The caller adds the sentinel's new ETag.
    """
    ended = tuple(dict.fromkeys((*stored.ended, *runs)))[-MAX_ENDED:]
    return _merged(names, instance_id, stored, {"TaskHubEnded": ",".join(ended)}), replace(stored, ended=ended)


def _merged(names: HubNames, instance_id: str, stored: Stored, properties: Mapping[str, Property]) -> Transact:
    entity = Entity(partition_key=escape(instance_id), row_key=SENTINEL, properties=properties)
    row = RowOperation(verb=RowVerb.MERGE, entity=entity, etag=stored.sentinel_etag)
    return Transact(table=names.history, rows=(row,))


def _deletions(episode: Episode, stored: Stored, committed: int) -> list[tuple[RowOperation, ...]]:
    """Return deletions of the rows that an interrupted checkpoint left and that this checkpoint does not overwrite."""
    if episode.switched:
        return []  # the rows that were left belong to an earlier generation now, and readers ignore its rows
    partition_key = escape(episode.current.instance_id)
    left = [
        RowOperation(
            verb=RowVerb.DELETE, entity=Entity(partition_key=partition_key, row_key=row_key(ordinal)), etag="*"
        )
        for ordinal in range(committed, stored.rows + stored.uncommitted_rows)
    ]
    return [tuple(left[start : start + BATCH_ROWS]) for start in range(0, len(left), BATCH_ROWS)]
