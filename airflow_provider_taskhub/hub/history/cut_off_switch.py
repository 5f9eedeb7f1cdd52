"""Complete a generation switch (the commit of a ``continue_as_new``) that was cut off between two transactions.

The missing rows are in a blob that the sentinel names. So no orchestrator code is needed, and any worker can write
them. Making the rows again by a replay was rejected: the code does not make the events again that the old generation
had received and no wait had taken. Only switches that an older version has cut off, without a blob, are completed by a
replay (``Execution.resume``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hub.formats import unwritten_rows
from airflow_provider_taskhub.hub.formats.history_rows import Sentinel, encode_sentinel, row_key
from airflow_provider_taskhub.hub.formats.payload_spill import batches
from airflow_provider_taskhub.hub.formats.unwritten_rows import UnwrittenRows
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable, payload
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import (
    DeleteBlob,
    EtagOf,
    RowOperation,
    RowVerb,
    Step,
    Store,
    Transact,
    Unit,
)


async def read_unwritten(store: Store, names: HubNames, instance_id: str, blob: str) -> UnwrittenRows:
    """Read the rows that a generation switch has not written.

    :param blob: name of the blob, from the sentinel.
    :raises HistoryUnreadable: the blob is missing or damaged.
    """
    try:
        return unwritten_rows.decode(await payload(store, names, blob), instance_id)
    except InputError as error:
        raise HistoryUnreadable(f"rows of {instance_id!r} that a continue_as_new has not written: {error}") from error


def completion_of_switch(
    names: HubNames,
    instance_id: str,
    sentinel: Sentinel,
    found: UnwrittenRows,
    *,
    now: Timestamp,
    check: Callable[[], None],
) -> Unit:
    """Return the missing transactions of a generation switch.

    They leave the same rows as the interrupted commit, under the same commit id. The instance is then in the state of a
    checkpoint that was interrupted after its history: its messages were sent, its instance row is old, and the
    redelivery of the processed messages repairs the row.

    :param sentinel: the incomplete sentinel, as it was read.
    :param found: the rows of the blob. Some of them may be written already.
    :param now: time of the checkpoint.
    :param check: raises ``LeaseLost`` if the lease is lost (see :class:`Unit`).
    """
    counted = sentinel.committed_rows or 0
    rows = [row for row in found.rows if row.row_key >= row_key(counted)]
    groups = batches(rows) or [()]
    suspension = sentinel.suspension
    begun = suspension is not None and same_start(suspension.run, sentinel.execution_id)
    steps: list[Step] = []
    for index, group in enumerate(groups):
        counted += len(group)
        written = replace(sentinel, committed_rows=counted)
        if index == len(groups) - 1:
            written = replace(
                written,
                complete=True,
                checkpoint_completed=now,
                awaits=found.awaits,
                suspension=None if begun else suspension,
                clears=begun,
            )
        entity = encode_sentinel(written, instance_id=instance_id)
        etag = EtagOf(step=index - 1, row=len(groups[index - 1])) if index else sentinel.etag
        puts = tuple(RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=row) for row in group)
        lock = RowOperation(verb=RowVerb.MERGE, entity=entity, etag=etag)
        name = "history" if index == 0 else f"history:{index}"
        steps.append(Step(name=name, operations=(Transact(table=names.history, rows=(*puts, lock)),)))
    assert sentinel.unwritten is not None
    blob = DeleteBlob(container=names.large_messages, name=sentinel.unwritten)
    return Unit(steps=(*steps, Step(name="blobs", operations=(blob,))), check=check)
