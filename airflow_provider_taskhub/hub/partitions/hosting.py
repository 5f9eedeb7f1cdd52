"""The interface of a worker to the code for partitions: all that this code knows about the worker that it runs in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_taskhub.hub.model import Member, Service, TenureListener, WorkerIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHost:
    """The worker, as its :class:`PartitionOwner` sees it.

    :param me: the incarnation of this worker. Its text is the worker's full name, which stands as the owner in leases.
    :param listener: called when a partition is taken, when its owner must drain it, and when it is lost. Each happens
        at most once in a tenure, and the loss exactly once.
    :param predecessors: returns the full names of workers that are proven dead, because their lock file could be
        taken. It is called at each scan.
    :param member: returns this worker's member row. It is called at each renewal. A worker without the role
        ``orchestrator`` has a row but takes no partitions. None: a worker with that role and without apps.
    :param services: returns the state of the partitions that the worker serves, by partition number. It is called at
        each renewal, and the renewal publishes the result.
    :param longest_unpolled: if the queue of a partition was not polled for this time, the worker gives the partition
        up, so that it is served again.
    :param watchers: called after each scan with the live triggerers, so that checkpoints write the change hints that
        their sensors need.
    """

    me: WorkerIdentity
    listener: TenureListener
    predecessors: Callable[[], Collection[str]] = tuple
    member: Callable[[], Member] | None = None
    services: Callable[[], Mapping[int, Service]] = dict
    longest_unpolled: timedelta = timedelta.max
    watchers: Callable[[Sequence[Member]], None] | None = None

    @property
    def name(self) -> str:
        """The full name of the worker, as it stands in lease rows."""
        return str(self.me)

    def dead(self) -> Collection[str]:
        """Return the full names of workers that are proven dead. This worker is never among them."""
        return frozenset(self.predecessors()) - {self.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanningWorker:
    """What a scan needs to know about the worker that scans.

    :param me: full name of the worker.
    :param dead: returns the full names of workers that are proven dead.
    :param may_take: returns whether this worker may take partitions; False: another app holds the app lease. It is
        called each time before partitions are taken.
    :param services: returns the last known state of the partitions that the worker serves.
    """

    me: str
    dead: Callable[[], Collection[str]]
    may_take: Callable[[], Awaitable[bool]]
    services: Callable[[], Mapping[int, Service]]
