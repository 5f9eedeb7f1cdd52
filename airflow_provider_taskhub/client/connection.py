"""The objects that a :class:`.Client`, its :class:`.InstanceHandle` objects and its :class:`.HubAdmin` share."""

from __future__ import annotations

from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.intake import Intake
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.hub.partitions.observer import LeaseObserver
from airflow_provider_taskhub.hub.partitions.routing import Routes
from airflow_provider_taskhub.hub.waiting.snapshot import WaitingReader
from airflow_provider_taskhub.settings import LeaseTimes


class Connection:
    """An open hub, with the objects that remember what a client last read about workers and partitions.

    A worker is known to be alive if its row changes between two readings. All parts of a client share one connection,
    so that each part can compare its reading with the last reading of any part.
    """

    def __init__(self, hub: Hub, times: LeaseTimes) -> None:
        self.hub, self.times = hub, times
        self.observer = LeaseObserver(hub.store, hub.names, hub.info, times=times, clock=hub.clock)
        self.routes = Routes(self.observer, hub.names, hub.clock)
        self.members = Members(hub.store, hub.names, times=times, clock=hub.clock)
        self.intake = Intake(hub.store, hub.names, hub.info, hub.clock)
        self.snapshots = WaitingReader(hub, self.observer)

    def describe(self) -> str:
        """Return the hub's name and the place of its storage, to show to people. The text contains no secret."""
        return f"{self.hub.names.hub} at {self.hub.store.describe()}"
