"""Create, read and delete a hub. The hub row in ``{Hub}Controls`` alone says how many partitions the hub has.

The hub row is inserted first and marked as ready last. Each step between the two creates a part of the hub (a queue, a
table, a container, a lease) unless the part exists. So if a creation is interrupted, or if two processes create the hub
at the same time, the result is one complete hub. This module does not decide which worker serves which partition.

The module has more than 400 lines because creating a hub, adopting one of DurableTask for .NET, and deleting a hub
share the list of its parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.errors import (
    AccessDenied,
    ConfigurationError,
    Conflict,
    HubError,
    InputError,
    LeaseLost,
    NotFound,
    StorageError,
    Throttled,
    Unavailable,
)
from airflow_provider_taskhub.hub import intake
from airflow_provider_taskhub.hub.model import (
    BLOB,
    CONTROLS,
    FORMAT_VERSION,
    HUB_ROW,
    TABLE,
    HubInfo,
    HubNames,
    PartitionState,
)
from airflow_provider_taskhub.hub.partitions.app_lease import SECONDS
from airflow_provider_taskhub.hub.partitions.capabilities import listed
from airflow_provider_taskhub.hub.partitions.dead_workers import app_lease_freed
from airflow_provider_taskhub.hub.partitions.lease import NOBODY, Lease
from airflow_provider_taskhub.hub.partitions.lease_stores import insert_row, leases_of
from airflow_provider_taskhub.hub.partitions.observer import LeaseObserver
from airflow_provider_taskhub.near_names import did_you_mean
from airflow_provider_taskhub.retries import Retries, retry
from airflow_provider_taskhub.storage.primitives import (
    Entity,
    PutBlob,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)

MAX_PARTITIONS = 1024
"""The most partitions that a hub may have."""
_RETRIES = Retries(
    after=(Throttled, Unavailable), unless=lambda error: isinstance(error, AccessDenied), tries=5, first=0.2, factor=1.0
)
"""Each request that creates a part of a hub is tried 5 times, 0.2 s apart, or as long as the store asks for."""
_AT_ONCE = 16
"""The most requests at the same time while a hub is created or shown."""


async def create_hub(
    store: Store, names: HubNames, partitions: int, *, lease_store: str | None = None, clock: Clock = SYSTEM_CLOCK
) -> HubInfo:
    """Create a hub, complete an interrupted creation, adopt a hub of DurableTask for .NET, or check an existing hub.

    :param partitions: how many partitions the hub has, 1 to 1024.
    :param lease_store: ``table`` or ``blob``. None: ``table`` for a new hub, and no change for an existing one.
    :param clock: gives the creation date in the hub row, and measures the pauses between tries.
    :raises ConfigurationError: the number of partitions is out of range.
    :raises HubError: the hub exists with another number of partitions or another lease store, or needs a newer package.
    """
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise ConfigurationError(f"a hub has 1 to {MAX_PARTITIONS} partitions, not {partitions}")
    info = await _hub_row(store, names)
    if info is None:
        await _check_adoptable(store, names, partitions, lease_store or TABLE)
        await _retried(lambda: store.create_table(names.controls), f"table {names.controls}", clock)
        row = _entity(HubInfo(partitions=partitions, lease_store=lease_store or TABLE), clock)
        await insert_row(store, names.controls, row)  # if another process was faster, its row counts
        info = await _hub_row(store, names)
        if info is None:
            raise HubError(f"hub {names.hub!r} was deleted while it was being created: try again")
    _check(info, names, partitions, lease_store)
    await _make_everything(store, names, info, clock)
    if not info.ready:
        await _mark(store, names, "ready", clock)
    return replace(info, ready=True)


async def read_hub(
    store: Store, names: HubNames, *, partitions: int | None = None, lease_store: str | None = None
) -> HubInfo:
    """Read how many partitions the hub has, and where its leases are.

    :param partitions: the number of partitions that the caller expects. None: any.
    :param lease_store: the lease store that the caller expects. None: any.
    :raises HubError: the hub does not exist, is not ready, needs a newer package, or is not what the caller expects.
    """
    info = await _hub_row(store, names)
    if info is None:
        if await _control_queues(store, names):
            raise HubError(
                f"hub {names.hub!r} at {store.describe()} was made by DurableTask: adopt it with `taskhub hub create`"
            )
        known = await _hubs(store)
        there = did_you_mean(names.hub, known) or (f"it has {listed(known, 5)}." if known else "")
        raise HubError(
            f"there is no hub {names.hub!r} at {store.describe()}{there and ': ' + there} "
            "Create it with `taskhub hub create`, start a worker for it, or name the hub and the storage that you mean"
        )
    _check(info, names, partitions, lease_store)
    if not info.ready:
        raise HubError(
            f"hub {names.hub!r} at {store.describe()} is not ready: its creation is under way or was "
            "interrupted. Run `taskhub hub create` again"
        )
    return info


async def ensure_hub(
    store: Store,
    names: HubNames,
    partitions: int | None = None,
    *,
    default: int = 4,
    lease_store: str | None = None,
    cap: int | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> HubInfo:
    """Return a ready hub: read it, or create it if it does not exist, or complete its creation.

    :param partitions: the number of partitions. None: the number that the hub has already, or ``default`` if there is
        no hub.
    :param lease_store: see :func:`create_hub`.
    :param cap: the most partitions of a worker that the caller is going to order next; it is only checked here. None:
        no cap.
    :raises HubError: see :func:`create_hub`.
    :raises InputError: the cap is larger than the number of partitions. Nothing was created.
    """
    info = await _hub_row(store, names)
    if info is not None:
        _check(info, names, partitions, lease_store)
        _check_cap(cap, names, info.partitions)
        if info.ready:
            return info
        return await create_hub(store, names, info.partitions, clock=clock)
    found = await _control_queues(store, names)
    count = partitions or len(found) or default
    _check_cap(cap, names, count)
    return await create_hub(store, names, count, lease_store=lease_store, clock=clock)


async def delete_hub(
    store: Store, names: HubNames, *, dead: Callable[[], Collection[str]] = tuple, clock: Clock = SYSTEM_CLOCK
) -> None:
    """Delete all parts of a hub, the hub row last. An interrupted deletion can be run again. A missing hub is no error.

    The container of the app lease is deleted first. The store refuses this while a worker serves the hub, and without
    the container no worker can start. Then the hub is marked as being deleted, so that clients refuse it too.

    :param dead: returns the full names of workers that are proven dead. If these are all workers of the hub, the hub is
        deleted at once. It is called only if the app lease is held.
    :raises HubError: a worker serves the hub, or was killed less than a minute ago and is not proven dead. Nothing was
        deleted.
    """
    info = await _hub_row(store, names, deleting=True)
    if not await _app_lease_deleted(store, names):
        freed = info is not None and await app_lease_freed(store, names, info, dead())
        if not freed or not await _app_lease_deleted(store, names):
            raise HubError(
                f"hub {names.hub!r} at {store.describe()} is in use: a worker serves it, or was killed less than "
                f"{SECONDS} s ago. Stop its workers. If they were killed, wait {SECONDS} s"
            )
    if info is not None:
        await _mark(store, names, "deleting", clock)
    for queue in [
        *(name for name, _ in await _control_queues(store, names)),
        *await store.list_queues(names.limited_prefix),
        *await store.list_queues(names.pool_prefix),
        *await store.list_queues(names.lane_prefix),
        names.work_items,
        names.spark_work_items,
    ]:
        await _gone(store.delete_queue(queue))
    for container in (names.leases, names.large_messages, names.logs):
        await _gone(store.delete_container(container))
    for table in (*_tables(names), names.partitions, names.controls):
        await _gone(store.delete_table(table))


async def _app_lease_deleted(store: Store, names: HubNames) -> bool:
    """Delete the container of the app lease. Return False if the store refuses, because the app lease is held."""
    try:
        await _gone(store.delete_container(names.app_lease))
    except LeaseLost:
        return False
    return True


async def partition_states(
    store: Store, names: HubNames, observer: LeaseObserver | None = None, *, prove: bool = False
) -> tuple[PartitionState, ...]:
    """Return the state of all partitions of the hub for people. Partitions without a lease are included.

    :param observer: knows what this reader has seen of the leases so far. None: this reader has seen nothing.
    :param prove: True: read until it is known whether each owner is alive, at most 1.5 renewal intervals. False: an
        owner that ``observer`` has not watched for long enough is unproven.
    :raises HubError: the hub does not exist.
    """
    observer = observer or LeaseObserver(store, names, await read_hub(store, names))
    try:
        await (observer.prove() if prove else observer.refresh())
    except NotFound:  # the tables of the hub do not exist
        raise HubError(f"there is no hub {names.hub!r} at {store.describe()}") from None
    leases = {number: Lease(queue=names.control(number)) for number in range(observer.partitions)} | observer.leases

    async def state(lease: Lease) -> PartitionState:
        messages = await _count(store, lease.queue)
        ownership = observer.ownership(lease.partition)
        return PartitionState(
            partition=lease.partition,
            queue=lease.queue,
            owner=lease.owner,
            state=ownership.state,
            next_owner=None if lease.next_owner == NOBODY else lease.next_owner,
            draining=lease.draining,
            epoch=lease.epoch or 0,
            owned_since=lease.owned_since,
            last_renewal=lease.last_renewal,
            messages=messages,
            load=lease.load,
            polled=lease.polled,
            kicked=lease.kicked_by,
            offline=ownership.offline,
            failover=lease.failover,
        )

    return tuple(await gather_bounded(state, leases.values(), limit=_AT_ONCE))


# --- read, check and write the hub row ----------------------------------------------------------------------------


async def _hub_row(store: Store, names: HubNames, *, deleting: bool = False) -> HubInfo | None:
    try:
        row = await store.get(names.controls, *HUB_ROW)
    except NotFound:  # the controls table does not exist, so there is no hub
        return None
    if row is None:
        return None
    columns = row.properties
    if columns.get("State") == "deleting" and not deleting:
        raise HubError(
            f"hub {names.hub!r} at {store.describe()} is being deleted: complete that with `taskhub hub delete`"
        )
    partitions, version = columns.get("Partitions"), columns.get("FormatVersion")
    if not isinstance(partitions, int) or not isinstance(version, int) or not 1 <= partitions <= MAX_PARTITIONS:
        raise HubError(f"the hub row in table {names.controls} is damaged: {dict(columns)}")
    return HubInfo(
        partitions=int(partitions),
        lease_store=str(columns.get("LeaseStore") or "table"),
        format_version=int(version),
        ready=columns.get("State") == "ready",
        intake=intake.decoded(columns),
    )


async def _hubs(store: Store) -> list[str]:
    """Return the names of all hubs of the store."""
    return [table.removesuffix(CONTROLS) for table in await store.list_tables() if table.endswith(CONTROLS)]


def _entity(info: HubInfo, clock: Clock) -> Entity:
    return Entity(
        partition_key=HUB_ROW[0],
        row_key=HUB_ROW[1],
        properties={
            "Partitions": info.partitions,
            "LeaseStore": info.lease_store,
            "FormatVersion": info.format_version,
            "State": "creating",
            "Created": clock.utc_now(),
        },
    )


async def _mark(store: Store, names: HubNames, state: str, clock: Clock) -> None:
    entity = Entity(partition_key=HUB_ROW[0], row_key=HUB_ROW[1], properties={"State": state})
    row = RowOperation(verb=RowVerb.MERGE, entity=entity, etag="*")
    try:
        await _retried(lambda: store.execute(Transact(table=names.controls, rows=(row,))), "the hub row", clock)
    except NotFound:
        raise HubError(f"hub {names.hub!r} was deleted meanwhile") from None


def _check(info: HubInfo, names: HubNames, partitions: int | None, lease_store: str | None) -> None:
    if info.format_version > FORMAT_VERSION:
        raise HubError(
            f"hub {names.hub!r} has format version {info.format_version}, this package knows {FORMAT_VERSION}: "
            "upgrade airflow-provider-taskhub"
        )
    if info.lease_store not in (TABLE, BLOB) or lease_store not in (None, info.lease_store):
        raise HubError(
            f"hub {names.hub!r} keeps its leases in a {info.lease_store} store, not in a {lease_store or TABLE} store: "
            f"workers of the two would not see each other's leases. Set TASKHUB_LEASE_STORE={info.lease_store}"
        )
    if partitions is not None and partitions != info.partitions:
        raise HubError(
            f"hub {names.hub!r} has {info.partitions} partitions, not {partitions}: a partition count never changes. "
            f"Set TASKHUB_PARTITIONS={info.partitions}, or use another hub"
        )


def _check_cap(cap: int | None, names: HubNames, partitions: int) -> None:
    if cap is not None and cap > partitions:
        raise InputError(
            f"a cap of {cap} is above the {partitions} partitions of hub {names.hub!r} and caps nothing: give 0 to "
            f"{partitions}"
        )


# --- the parts of a hub: create and check them --------------------------------------------------------------------


def _tables(names: HubNames) -> tuple[str, ...]:
    return (names.history, names.instances, names.activities, names.completions, names.quarantine, names.members)


async def _make_everything(store: Store, names: HubNames, made: HubInfo, clock: Clock) -> None:
    """Create all parts of a hub that do not exist, in the order in which DurableTask does it."""
    await _retried(lambda: store.create_container(names.app_lease), f"container {names.app_lease}", clock)
    info = PutBlob(container=names.app_lease, name=names.app_lease_info, data=b"{}", if_absent=True)
    with suppress(Conflict):  # an earlier or parallel creation of the hub has written the blob already
        await _retried(lambda: store.execute(info), f"blob {names.app_lease_info}", clock)
    if made.lease_store == BLOB:
        await _retried(lambda: store.create_container(names.leases), f"container {names.leases}", clock)
        about = {"CreatedAt": clock.utc_now().text(), "PartitionCount": made.partitions, "TaskHubName": names.hub}
        told = PutBlob(container=names.leases, name="taskhub.json", data=json.dumps(about).encode(), if_absent=True)
        with suppress(Conflict):
            await _retried(lambda: store.execute(told), "blob taskhub.json", clock)
    else:
        await _retried(lambda: store.create_table(names.partitions), f"table {names.partitions}", clock)
    leases = leases_of(store, names, made)

    async def partition(number: int) -> None:  # creates the queue first, so each lease has one
        queue = names.control(number)
        await _retried(lambda: store.create_queue(queue), f"queue of partition {number}", clock)
        await _retried(lambda: leases.insert(queue), f"lease of partition {number}", clock)

    async def table(name: str) -> None:
        await _retried(lambda: store.create_table(name), f"table {name}", clock)

    async def container(name: str) -> None:
        await _retried(lambda: store.create_container(name), f"container {name}", clock)

    async def work_items(queue: str) -> None:
        await _retried(lambda: store.create_queue(queue), f"queue {queue}", clock)

    works: list[Callable[[], Awaitable[None]]] = [
        partial(work_items, names.work_items),
        partial(work_items, names.spark_work_items),
        partial(container, names.logs),
        # DurableTask creates this container with the first large payload. It is created here, so that no checkpoint has
        # to create it.
        partial(container, names.large_messages),
        *(partial(table, name) for name in _tables(names)),
        *(partial(partition, number) for number in range(made.partitions)),
    ]
    await gather_bounded(lambda work: work(), works, limit=_AT_ONCE)


async def _check_adoptable(store: Store, names: HubNames, partitions: int, lease_store: str) -> None:
    """Check that a hub that DurableTask has made can be adopted.

    :raises HubError: the numbers of its control queues have a gap, or it has another number of partitions or another
        lease store than the arguments say.
    """
    found = await _control_queues(store, names)
    numbers = [number for _, number in found]
    if numbers and numbers != list(range(len(numbers))):
        missing = sorted(set(range(max(numbers))) - set(numbers))
        raise HubError(
            f"hub {names.hub!r} at {store.describe()} lacks the control queues {missing}: it cannot be adopted. Start "
            "its DurableTask app once to complete it, or delete its queues"
        )
    if numbers and len(numbers) != partitions:
        raise HubError(
            f"hub {names.hub!r} at {store.describe()} was made by DurableTask with {len(numbers)} partitions, not "
            f"{partitions}: set TASKHUB_PARTITIONS={len(numbers)}"
        )
    if not numbers:
        return
    blobs = [blob.name for blob in await store.list_blobs(names.leases) if "control-" in blob.name]
    if any(not name.startswith("default/") for name in blobs):
        raise HubError(
            f"hub {names.hub!r} at {store.describe()} was made by DurableTask with its safe blob leases (container "
            f"{names.leases}): switch that app to UseTablePartitionManagement and delete the container, or use "
            "another hub"
        )
    if bool(blobs) != (lease_store == BLOB):
        raise HubError(
            f"hub {names.hub!r} at {store.describe()} was made by DurableTask with {BLOB if blobs else TABLE} leases: "
            f"adopt it with TASKHUB_LEASE_STORE={BLOB if blobs else TABLE}, or use another hub"
        )


async def _control_queues(store: Store, names: HubNames) -> Sequence[tuple[str, int]]:
    """Return the names and numbers of the hub's control queues, ordered by number."""
    prefix = names.control_prefix
    found = [
        (name, int(name[len(prefix) :]))
        for name in await store.list_queues(prefix)
        if re.fullmatch(r"\d{2,}", name[len(prefix) :], re.ASCII)
    ]
    return sorted(found, key=lambda item: item[1])


async def _count(store: Store, queue: str) -> int | None:
    """Return the approximate number of messages in a queue. None: the queue does not exist."""
    try:
        return await store.count(queue)
    except NotFound:
        return None


async def _gone(deletion: Awaitable[None]) -> None:
    """Wait for a deletion. It is no error if the deleted thing does not exist."""
    try:
        await deletion
    except NotFound:
        return


async def _retried(action: Callable[[], Awaitable[object]], what: str, clock: Clock) -> None:
    """Run ``action``, and try it again as :data:`_RETRIES` says.

    :param what: the part of the hub that ``action`` creates, for the error text.
    :raises Throttled: the last try failed because the store throttles.
    :raises Unavailable: the last try failed because the store does not answer.
    """
    told: list[int] = [1]  # the last number says how many tries have failed
    try:
        await retry(action, _RETRIES, clock, failed=lambda _, failures: told.append(failures))
    except (Throttled, Unavailable) as error:
        raise type(error)(f"{what} of the hub could not be written in {told[-1]} tries: {error}") from error
    except StorageError as error:
        error.add_note(f"while making {what}")
        raise
