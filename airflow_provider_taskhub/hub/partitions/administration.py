"""Making, reading and removing a hub. The hub row in ``{Hub}Controls`` alone says how many partitions it has.

The row is inserted first and made ready last, everything between is "make it unless it is there": a
creation that was interrupted, or that two processes do at once, ends in one whole hub. Never decides who serves what.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
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
from airflow_provider_taskhub.hub.model import BLOB, FORMAT_VERSION, TABLE, HubInfo, HubNames, PartitionState
from airflow_provider_taskhub.hub.partitions.app_lease import SECONDS
from airflow_provider_taskhub.hub.partitions.lease import NOBODY, Lease
from airflow_provider_taskhub.hub.partitions.lease_stores import insert_row, leases_of
from airflow_provider_taskhub.hub.partitions.observer import LeaseObserver
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
_RETRIES = Retries(
    after=(Throttled, Unavailable), unless=lambda error: isinstance(error, AccessDenied), tries=5, first=0.2, factor=1.0
)
"""Each request that makes a part of a hub: 5 tries, 0.2 s apart, or as long as the store asks."""
_AT_ONCE = 16
"""Requests under way while a hub is made or shown."""
_KEY = ("hub", "hub")


async def create_hub(
    store: Store, names: HubNames, partitions: int, *, lease_store: str | None = None, clock: Clock = SYSTEM_CLOCK
) -> HubInfo:
    """Make a hub, finish one that was begun, adopt one that .NET made, or find it as asked for.

    :param partitions: 1 to 1024. :param lease_store: of a new hub, table unless told otherwise; None: as it is.
    :param clock: for the date that people see, and for the pauses between tries.
    :raises ConfigurationError: for a count out of range.
    :raises HubError: the hub is there with another count, newer, or with another lease store.
    """
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise ConfigurationError(f"a hub has 1 to {MAX_PARTITIONS} partitions, not {partitions}")
    info = await _hub_row(store, names)
    if info is None:
        await _check_adoptable(store, names, partitions, lease_store or TABLE)
        await _retried(lambda: store.create_table(names.controls), f"table {names.controls}", clock)
        row = _entity(HubInfo(partitions=partitions, lease_store=lease_store or TABLE), clock)
        await insert_row(store, names.controls, row)  # refused: another creator was first; its row counts
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
    """How the hub is made.

    :param partitions, lease_store: what the caller was told to expect, if anything.
    :raises HubError: it is missing, not ready, newer than this package, or has another count or store.
    """
    info = await _hub_row(store, names)
    if info is None:
        if await _control_queues(store, names):
            raise HubError(
                f"hub {names.hub!r} at {store.describe()} was made by DurableTask: adopt it with `taskhub hub create`"
            )
        raise HubError(
            f"there is no hub {names.hub!r} at {store.describe()}: create it with `taskhub hub create`, or set "
            "TASKHUB_HUB and TASKHUB_CONNECTION to the one you mean"
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
    """A ready hub: read if it is there, else made (or its creation finished) with ``partitions``, else ``default``.

    :param cap: that will be ordered for every worker.
    :raises HubError: as :func:`create_hub`.
    :raises InputError: for a cap above the number of partitions, before anything is made.
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


async def delete_hub(store: Store, names: HubNames, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """Remove everything of a hub, its row last; interrupted, it can be run again. A missing hub is no error.

    First goes the container of the app lease: while a worker serves the hub it is leased, and without it none can
    start. Then the hub counts as not ready, and clients refuse it too.

    :raises HubError: a worker serves the hub, or was killed a moment ago; nothing was removed.
    """
    try:
        await _gone(store.delete_container(names.app_lease))
    except LeaseLost:
        raise HubError(
            f"hub {names.hub!r} at {store.describe()} is served: stop its workers. If they were killed, wait "
            f"{SECONDS} s"
        ) from None
    if await _hub_row(store, names, deleting=True) is not None:
        await _mark(store, names, "deleting", clock)
    for queue in [*(name for name, _ in await _control_queues(store, names)), names.work_items]:
        await _gone(store.delete_queue(queue))
    for container in (names.leases, names.large_messages, names.logs):
        await _gone(store.delete_container(container))
    for table in (*_tables(names), names.partitions, names.controls):
        await _gone(store.delete_table(table))


async def partition_states(
    store: Store, names: HubNames, observer: LeaseObserver | None = None, *, prove: bool = False, counts: bool = True
) -> tuple[PartitionState, ...]:
    """Every partition of the hub, for people, those without a lease row too.

    :param observer: of this reader so far. :param prove: look until it is known whether each owner lives: at most 1.5
        renewal intervals; else an owner that ``observer`` has not watched for long enough stays unproven.
    :param counts: also ask each control queue for its approximate number of messages.
    :raises HubError: when there is no such hub.
    """
    observer = observer or LeaseObserver(store, names, await read_hub(store, names))
    try:
        await (observer.prove() if prove else observer.refresh())
    except NotFound:  # its tables are gone
        raise HubError(f"there is no hub {names.hub!r} at {store.describe()}") from None
    leases = {number: Lease(queue=names.control(number)) for number in range(observer.partitions)} | observer.leases

    async def state(lease: Lease) -> PartitionState:
        messages = await _count(store, lease.queue) if counts else None
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
        )

    return tuple(await gather_bounded(state, leases.values(), limit=_AT_ONCE))


# --- the hub row --------------------------------------------------------------------------------------------------


async def _hub_row(store: Store, names: HubNames, *, deleting: bool = False) -> HubInfo | None:
    try:
        row = await store.get(names.controls, *_KEY)
    except NotFound:  # the table is not there
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
    )


def _entity(info: HubInfo, clock: Clock) -> Entity:
    return Entity(
        partition_key=_KEY[0],
        row_key=_KEY[1],
        properties={
            "Partitions": info.partitions,
            "LeaseStore": info.lease_store,
            "FormatVersion": info.format_version,
            "State": "creating",
            "Created": clock.utc_now(),
        },
    )


async def _mark(store: Store, names: HubNames, state: str, clock: Clock) -> None:
    entity = Entity(partition_key=_KEY[0], row_key=_KEY[1], properties={"State": state})
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


# --- what a hub is made of ----------------------------------------------------------------------------------------


def _tables(names: HubNames) -> tuple[str, ...]:
    return (names.history, names.instances, names.activities, names.completions, names.quarantine, names.members)


async def _make_everything(store: Store, names: HubNames, made: HubInfo, clock: Clock) -> None:
    """In the original's order, each "unless it is there"."""
    await _retried(lambda: store.create_container(names.app_lease), f"container {names.app_lease}", clock)
    info = PutBlob(container=names.app_lease, name=names.app_lease_info, data=b"{}", if_absent=True)
    with suppress(Conflict):  # it is there
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

    async def partition(number: int) -> None:  # each lease after its own queue
        queue = names.control(number)
        await _retried(lambda: store.create_queue(queue), f"queue of partition {number}", clock)
        await _retried(lambda: leases.insert(queue), f"lease of partition {number}", clock)

    async def table(name: str) -> None:
        await _retried(lambda: store.create_table(name), f"table {name}", clock)

    async def container(name: str) -> None:
        await _retried(lambda: store.create_container(name), f"container {name}", clock)

    async def work_items() -> None:
        await _retried(lambda: store.create_queue(names.work_items), f"queue {names.work_items}", clock)

    works: list[Callable[[], Awaitable[None]]] = [
        work_items,
        partial(container, names.logs),
        # DurableTask makes this container with the first large payload. It is made here, so that no checkpoint has to.
        partial(container, names.large_messages),
        *(partial(table, name) for name in _tables(names)),
        *(partial(partition, number) for number in range(made.partitions)),
    ]
    await gather_bounded(lambda work: work(), works, limit=_AT_ONCE)


async def _check_adoptable(store: Store, names: HubNames, partitions: int, lease_store: str) -> None:
    """Refuse what another program left unless its control queues are numbered without a gap."""
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
    """Names and numbers of the hub's control queues, by number."""
    prefix = names.control_prefix
    found = [
        (name, int(name[len(prefix) :]))
        for name in await store.list_queues(prefix)
        if re.fullmatch(r"\d{2,}", name[len(prefix) :], re.ASCII)
    ]
    return sorted(found, key=lambda item: item[1])


async def _count(store: Store, queue: str) -> int | None:
    try:
        return await store.count(queue)
    except NotFound:
        return None


async def _gone(deletion: Awaitable[None]) -> None:
    try:
        await deletion
    except NotFound:
        return


async def _retried(action: Callable[[], Awaitable[object]], what: str, clock: Clock) -> None:
    """Carry out ``action`` as :data:`_RETRIES` says.

    :raises Throttled, Unavailable: after the last try, with ``what`` in the text.
    """
    told: list[int] = [1]  # of tries that failed; a refusal is not tried again
    try:
        await retry(action, _RETRIES, clock, failed=lambda _, failures: told.append(failures))
    except (Throttled, Unavailable) as error:
        raise type(error)(f"{what} of the hub could not be written in {told[-1]} tries: {error}") from error
    except StorageError as error:
        error.add_note(f"while making {what}")
        raise
