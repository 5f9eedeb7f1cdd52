"""A thousand sensors of one triggerer over a real store, where a worker brings all instances to their moments at once.

The triggers, the watcher, the worker and the store are those of production. The time is virtual, and each request of
the triggerer takes some of it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.hooks.taskhub import TaskHubHook
from airflow_provider_taskhub.hub import change_hints
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.hint_rows import TOGETHER
from airflow_provider_taskhub.settings import AZURE_LEASE, EMBEDDED_LEASE, Settings
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore
from airflow_provider_taskhub.storage.primitives import Transact
from airflow_provider_taskhub.triggers import shared_client
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger
from airflow_provider_taskhub.triggers.watcher import AT_ONCE, IDLE, IN_TURN, MEMBERS_EVERY
from tests.simulation.azurite_clock import still_azurite
from tests.simulation.crash import azurite_at
from tests.simulation.world import WHOLE, Place, World, simulate

SENSORS = 1_000
MOMENTS: tuple[dict[str, Any], ...] = (
    {"custom_status": "custom_status.rows > 1"},
    {"awaited_event": "go"},
    {"statuses": ["Running"]},
)
RUNNING = MOMENTS[-1]
TURNS = 10
"""The number of intervals for which requests are counted while nothing happens."""


def moving() -> App:
    app = App("moving")

    @app.orchestrator
    async def moves(ctx: OrchestrationContext, after: float) -> None:
        if after:
            await ctx.create_timer(timedelta(seconds=after))
        ctx.set_custom_status({"rows": 2})
        await ctx.wait_for_external_event("go")

    return app


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where the hub is kept.

    :param interval: the pause of the watcher, in seconds. :param answer: seconds that a request of the triggerer takes.
    """

    place: Place
    settings: dict[str, Any]
    interval: float
    answer: float


@pytest.fixture(params=["embedded", "azurite"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    if request.param == "embedded":
        yield Stage(place=WHOLE, settings={"lease": EMBEDDED_LEASE}, interval=1.0, answer=0.001)
        return
    with still_azurite() as still:
        settings = {"lease": AZURE_LEASE, "connection": still.connection}
        yield Stage(place=azurite_at(lambda clock: still.store()), settings=settings, interval=3.0, answer=0.01)


@dataclass(slots=True)
class Requests:
    """The triggerer's way to the store.

    :param counts: requests by kind and table. A table is named without the name of the hub.
    :param since: the time of the last check.
    """

    world: World
    answer: float
    counts: Counter[str] = field(default_factory=Counter)
    since: float = 0.0

    @asynccontextmanager
    async def open(self, settings: Settings, *, create: bool = False) -> AsyncIterator[Client]:
        assert not create
        store = FaultyStore(self.world.store, self._answered, clock=self.world.clock)
        yield await Client.over(store, settings, clock=self.world.clock)

    def _answered(self, call: Call) -> Fault:
        what: Any = call.what
        table = what.table if isinstance(what, Transact) else what[0]
        self.counts[f"{call.kind} {table.removeprefix(self.world.settings.hub)}"] += 1
        return Fault(delay=self.answer)

    def check(self, *, read: int, hints: int, turns: float) -> None:
        """Compare the requests since the last check with what they may be.

        :param read: the number of instances that a wait or a hint lets the watcher read.
        :param hints: the number of hints that it deletes.
        :param turns: the largest number of its polls. Each reads both kinds of hints, and some instances in rotation.
        """
        seconds, self.since = self.world.clock.monotonic() - self.since, self.world.clock.monotonic()
        lists = math.ceil(seconds / MEMBERS_EVERY.total_seconds()) + 1
        instances = read + IN_TURN * math.ceil(turns)
        most = {
            "table.query Completions": 2 * math.ceil(turns),
            "table.batch Completions": math.ceil(hints / TOGETHER),
            "table.get Instances": instances,
            "table.query Activities": instances,
            "table.get History": instances,
            "table.upsert Members": 2,
            "table.update Members": seconds / self.world.settings.lease_times.renew.total_seconds() + 2,
            "table.query Members": 2 * lists,
        }
        most |= dict.fromkeys((f"table.query {name}" for name in ("Quarantine", "Partitions", "Controls")), lists)
        most["table.get Controls"] = 1
        assert {name: count for name, count in self.counts.items() if count > most.get(name, 0)} == {}
        self.counts.clear()


async def sense(name: str, moment: dict[str, Any], world: World) -> Timestamp:
    """Wait as a sensor does in a triggerer. Return the time at which its event is fired."""
    trigger = TaskHubTrigger(instance_id=name, may_be_missing=True, **moment)
    trigger.clock = world.clock
    (event,) = [event.payload async for event in trigger.run()]
    assert (event["reason"], event["met"]) == ("reached", True)
    return world.clock.utc_now()


@pytest.mark.long
def test_a_thousand_sensors_see_their_moments_within_two_intervals_with_bounded_requests(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = {f"i{number}": MOMENTS[number % len(MOMENTS)] for number in range(SENSORS)}

    async def play() -> None:
        async with World(moving(), place=stage.place, **stage.settings) as world:
            requests = Requests(world, stage.answer)

            async def settings(self: TaskHubHook) -> Settings:
                return world.settings

            monkeypatch.setattr(TaskHubHook, "asettings", settings)
            monkeypatch.setattr(shared_client, "open_client", requests.open)
            await world.join("w")
            known = world.client.watches.known_after
            until = known + (2 * TURNS + 2.5) * stage.interval
            await asyncio.gather(*(start(world, name, moment, until) for name, moment in moments.items()))
            waits = [asyncio.create_task(sense(name, moment, world)) for name, moment in moments.items()]

            await world.clock.sleep(known + TURNS * stage.interval)
            # each instance is read when its wait begins, and again when the workers know of the wait
            turns = 2 * SENSORS / AT_ONCE + known / stage.interval + TURNS + 1
            requests.check(read=2 * SENSORS, hints=0, turns=turns)
            await world.clock.sleep(TURNS * stage.interval)
            requests.check(read=0, hints=0, turns=TURNS + 1)
            assert not any(wait.done() for wait in waits)

            fired = dict(zip(moments, await asyncio.gather(*waits), strict=True))
            requests.check(read=SENSORS, hints=SENSORS, turns=SENSORS / AT_ONCE + 4)
            written = {name: await changed(world, name) for name in moments}
            assert max(written.values()) - min(written.values()) < timedelta(seconds=stage.interval), "all at once"
            late = max(fired[name].datetime() - written[name] for name in moments)
            assert late <= timedelta(seconds=2 * stage.interval)
            assert Counter(hinted(world)) == dict.fromkeys(moments, 1)
            await world.clock.sleep(IDLE.total_seconds() + 1)  # the watcher closes its client
            assert await change_hints.read_all(world.store, world.client.hub.names) == {}

    simulate(play)


async def start(world: World, name: str, moment: dict[str, Any], until: float) -> None:
    """Start an instance that comes to its moment after some seconds."""
    if moment is RUNNING:
        at = (world.clock.utc_now() + timedelta(seconds=until)).datetime()
        await world.client.start("moves", 0.0, instance_id=name, start_at=at)
    else:
        await world.client.start("moves", until, instance_id=name)


async def changed(world: World, name: str) -> datetime:
    """Return the time at which the worker last wrote the row of an instance, by the clock of the store."""
    row = await world.store.get(world.client.hub.names.instances, escape(name), "")
    assert row is not None
    return row.timestamp.datetime()


def hinted(world: World) -> list[str]:
    """Return the ids of the instances for which the worker has written change hints."""
    table = world.client.hub.names.completions
    written = [done.operation for done in world.tape if isinstance(done.operation, Transact)]
    return [row.entity.row_key for operation in written if operation.table == table for row in operation.rows]
