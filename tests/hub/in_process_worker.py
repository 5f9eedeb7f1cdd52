"""A worker in the test's process that serves all partitions of a hub for ever, on any store and any clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.hub.model import HubNames, Member, WorkerIdentity
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.primitives import Store
from airflow_provider_taskhub.testing import InProcess
from airflow_provider_taskhub.workers.backend import Backend
from airflow_provider_taskhub.workers.peers import Peers


class Stay:
    """A tenure that nothing ends."""

    epoch, draining, failover = 1, False, None

    def __init__(self, names: HubNames, partition: int) -> None:
        self.partition, self.queue = partition, names.control(partition)

    def check(self) -> None:
        """Never too old."""

    def drained(self) -> None:
        """Nobody waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    client: Client
    backend: Backend


@asynccontextmanager
async def house(store: Store, app: App, *, clock: Clock = SYSTEM_CLOCK, **settings: Any) -> AsyncIterator[House]:
    """:param store: open."""
    chosen = Settings(**{"hub": "House", "partitions": 4, **settings})
    registry = Registry.of([app])

    async def members() -> tuple[Member, ...]:
        return ()

    client = await Client.over(store, chosen, create=True, clock=clock)
    backend = Backend(
        hub=client.hub,
        registry=registry,
        runner=InProcess(registry, {}, None),
        me=WorkerIdentity(name="house", host="here", incarnation="1"),
        settings=chosen,
        peers=Peers(live=members),
    )
    stays = [Stay(client.hub.names, partition) for partition in range(chosen.partitions)]
    backend.start()
    for stay in stays:
        backend.taken(stay)
    try:
        yield House(client=client, backend=backend)
    finally:
        await backend.drain(0.0)
        for stay in stays:
            backend.lost(stay, "the test is over")
        await backend.stop()
