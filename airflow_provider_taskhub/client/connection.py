"""What a client, its handles and its administration share."""

from __future__ import annotations

from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.hub.partitions.observer import LeaseObserver
from airflow_provider_taskhub.hub.partitions.routing import Routes
from airflow_provider_taskhub.hub.waiting.snapshot import WaitingReader
from airflow_provider_taskhub.settings import LeaseTimes


class Connection:
    """An open hub, and what this client has seen of its workers and partitions.

    A worker is proven to live by the change of its row between two looks. All parts of a client therefore share these
    objects: each remembers what it saw last.
    """

    def __init__(self, hub: Hub, times: LeaseTimes) -> None:
        self.hub, self.times = hub, times
        self.observer = LeaseObserver(hub.store, hub.names, hub.info, times=times, clock=hub.clock)
        self.routes = Routes(self.observer, hub.names, hub.clock)
        self.members = Members(hub.store, hub.names, times=times, clock=hub.clock)
        self.snapshots = WaitingReader(hub, self.observer)

    def describe(self) -> str:
        """The hub's name and place, for people; never a secret."""
        return f"{self.hub.names.hub} at {self.hub.store.describe()}"
