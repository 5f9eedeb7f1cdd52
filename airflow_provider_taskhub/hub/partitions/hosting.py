"""What the owner of partitions knows about the worker that it runs in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_taskhub.hub.model import Member, Service, TenureListener, WorkerIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHost:
    """The worker, as it presents itself to its :class:`PartitionOwner`.

    :param me: this incarnation; its text is the owner in lease rows.
    :param listener: told of every tenure: taken, asked (drain!), lost; each at most once, lost exactly once.
    :param predecessors: full names of workers that are proven dead (their lock file could be taken), or a function that
        lists them. It is called at each scan.
    :param member: returns this worker's row in the members table; called at each renewal. Without the role
        ``orchestrator`` the worker is listed but takes no partitions. None: a worker with that role and no apps.
    :param services: returns what the worker says about the partitions that it serves; called at each renewal and
        published with it.
    :param stuck: a partition that has not been polled for so long is given up, so that it is served anew.
    """

    me: WorkerIdentity
    listener: TenureListener
    predecessors: Sequence[str] | Callable[[], Collection[str]] = ()
    member: Callable[[], Member] | None = None
    services: Callable[[], Mapping[int, Service]] = dict
    stuck: timedelta = timedelta.max

    @property
    def name(self) -> str:
        """The full name, as lease rows have it."""
        return str(self.me)

    def dead(self) -> Collection[str]:
        """Full names of workers that are proven dead; never this one's."""
        listed = self.predecessors
        return frozenset(listed() if callable(listed) else listed) - {self.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanningWorker:
    """What a scan asks of the worker that scans.

    :param me: its full name. :param dead: returns the full names of workers that are proven dead.
    :param may_take: whether partitions may be taken; asked before each taking.
    :param services: what the worker said last about the partitions that it serves.
    """

    me: str
    dead: Callable[[], Collection[str]]
    may_take: Callable[[], Awaitable[bool]]
    services: Callable[[], Mapping[int, Service]]
