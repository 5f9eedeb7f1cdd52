"""How often a history is read: once for a batch of a cold instance, and not again while nobody else has changed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import EventRaised
from airflow_provider_taskhub.hub.formats.history_rows import SENTINEL
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore, late, refused
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact, Unit
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.hub.in_process_worker import House, house

IDLE = timedelta(seconds=30)
OFF = timedelta(0)
"""Extended sessions off."""
HISTORY, ROW, CHECKPOINT = "history", "instance row", "checkpoint"
COLD = {HISTORY: 1, ROW: 1, CHECKPOINT: 1}


class Stage:
    """A store under a clock, an orchestrator that waits for rings, and workers.

    :ivar live, replayed: rings that its code saw for the first time, and again. :ivar asked: reads and checkpoints.
    :ivar delays: seconds that one of them takes. :ivar refused: the instance whose history the store refuses.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.live: list[int] = []
        self.replayed: list[int] = []
        self.asked: Counter[str] = Counter()
        self.delays: dict[str, float] = {}
        self.refused: str | None = None
        self.app = App("bells", version="1")
        self.store = FaultyStore(SqliteStore(None, clock=self.clock), self._plan, clock=self.clock)

        @self.app.orchestrator
        async def bell(ctx: OrchestrationContext, rings: int) -> int:
            for _ in range(rings):
                ring = await ctx.wait_for_external_event("ring", int)
                (self.replayed if ctx.is_replaying else self.live).append(ring)
            return rings

    def _plan(self, call: Call) -> Fault | None:
        match call.kind, call.what:
            case "table.query", ("HouseHistory", _):
                what = HISTORY
            case "table.get", ("HouseInstances", _, _):
                what = ROW
            case "unit", Unit(steps=steps) if any(
                isinstance(one, Transact) for step in steps for one in step.operations
            ):
                what = CHECKPOINT
            case _:
                return None
        self.asked[what] += 1
        if what is HISTORY and self.refused is not None and self.refused in str(call.what):
            return refused()
        return late(self.delays.pop(what)) if what in self.delays else None

    def worker(self, **settings: Any) -> AbstractAsyncContextManager[House]:
        """A new one has nothing in memory."""
        return house(self.store, self.app, clock=self.clock, **settings)

    async def ring(self, hub: House, *rings: int, instance_id: str = "bell") -> Counter[str]:
        """Raise events at once; what the worker asked for until it had nothing left to do."""
        for number in rings:
            await hub.client.raise_event(instance_id, "ring", number)
        self.asked.clear()
        await self.clock.sleep(5.0)
        return self.asked.copy()


def play(scene: Callable[[Stage], Awaitable[Any]]) -> tuple[Any, Stage]:
    async def main() -> tuple[Any, Stage]:
        stage = Stage()
        async with stage.store:
            return await scene(stage), stage

    found: tuple[Any, Stage] = run(main())
    return found


@pytest.mark.rows("K17", "K18")
def test_a_batch_of_a_cold_instance_is_one_read_of_its_history_and_one_episode() -> None:
    """The state is there before the orchestrator goes on: what was is replayed, what is new is not. The second worker
    asks for work when all three wait, so they are one batch."""

    async def scene(stage: Stage) -> Counter[str]:
        async with stage.worker() as hub:
            await hub.client.start("bell", 10, instance_id="bell")
            await stage.ring(hub, 0, 1)
        for number in (2, 3, 4):
            await hub.client.raise_event("bell", "ring", number)
        async with stage.worker() as hub:
            return await stage.ring(hub)

    asked, stage = play(scene)
    assert asked == COLD
    assert (stage.live, stage.replayed) == ([0, 1, 2, 3, 4], [0, 1])


async def rung(hub: House, instance_id: str) -> list[str | None]:
    """The rings that the store has."""
    return [event.input for event in await hub.client.instance(instance_id).history() if isinstance(event, EventRaised)]


@pytest.mark.rows("D23", "K17")
@pytest.mark.parametrize("what", [HISTORY, CHECKPOINT, "refused"])
def test_who_waits_for_the_store_keeps_nobody_waiting(what: str) -> None:
    """For a minute the store does not give the history of the first, or refuses it, or does not take its checkpoint."""

    async def scene(stage: Stage) -> list[Any]:
        async with stage.worker(partitions=1) as hub:
            for name in ("first", "second"):
                await hub.client.start("bell", 3, instance_id=name)
            await stage.clock.sleep(5.0)
        async with stage.worker(partitions=1) as hub:
            if what == "refused":
                stage.refused = "first"
            else:
                stage.delays[what] = 60.0
            await stage.ring(hub, 1, instance_id="first")
            await stage.ring(hub, 2, instance_id="second")
            stage.refused = None
            during = [await rung(hub, name) for name in ("first", "second")]
            await stage.clock.sleep(60.0)
            return [during, [await rung(hub, name) for name in ("first", "second")]]

    found, stage = play(scene)
    assert found == [[[], ["2"]], [["1"], ["2"]]]
    assert sorted(stage.live) == [1, 2], "each was heard once"


@pytest.mark.rows("D23")
@pytest.mark.parametrize(("waiting", "heard"), [(3, ["9"]), (4, [])])
def test_an_instance_goes_on_if_fewer_wait_for_the_store_than_a_worker_runs_at_once(
    waiting: int, heard: list[str]
) -> None:
    async def scene(stage: Stage) -> list[str | None]:
        names = [f"i{number}" for number in range(waiting)]
        async with stage.worker(partitions=1) as hub:
            for name in (*names, "last"):
                await hub.client.start("bell", 3, instance_id=name)
            await stage.clock.sleep(5.0)
        async with stage.worker(partitions=1, orchestrations=4) as hub:
            for name in names:
                stage.delays[HISTORY] = 60.0
                await stage.ring(hub, 1, instance_id=name)
            await stage.ring(hub, 9, instance_id="last")
            return await rung(hub, "last")

    found, _ = play(scene)
    assert found == heard


@pytest.mark.rows("K22", "K23")
def test_the_history_of_an_orchestrator_that_idled_is_not_read_again() -> None:
    async def scene(stage: Stage) -> list[Counter[str]]:
        async with stage.worker(session_idle=IDLE) as hub:
            await hub.client.start("bell", 10, instance_id="bell")
            asked = [await stage.ring(hub, 0)]
            await stage.clock.sleep(3600.0)
            return [*asked, await stage.ring(hub, 1), await stage.ring(hub, 2)]

    (first, woken, alive), stage = play(scene)
    assert first == {CHECKPOINT: 1}, "the start joined by the ring"
    assert woken == alive == {CHECKPOINT: 1}
    assert (stage.live, stage.replayed) == ([0, 1, 2], [0])


@pytest.mark.rows("K22", "K23")
def test_a_history_that_memory_had_no_room_for_is_read_again() -> None:
    async def scene(stage: Stage) -> Counter[str]:
        async with stage.worker(session_idle=IDLE) as hub:
            hub.backend.sessions._limit = 0  # as if others filled it
            await hub.client.start("bell", 10, instance_id="bell")
            await stage.ring(hub, 0)
            return await stage.ring(hub, 1)

    asked, stage = play(scene)
    assert asked == COLD
    assert (stage.live, stage.replayed) == ([0, 1], [0])


@pytest.mark.rows("K23")
@pytest.mark.parametrize("idle", [IDLE, OFF])
def test_a_history_that_somebody_else_has_committed_to_is_read_again(idle: timedelta) -> None:
    """The sentinel's ETag decides: the checkpoint over the old one is refused, and the event taken over the new one."""

    async def scene(stage: Stage) -> list[Any]:
        async with stage.worker(session_idle=idle) as hub:
            await hub.client.start("bell", 10, instance_id="bell")
            await stage.ring(hub, 0)
            await stage.clock.sleep(3600.0)
            sentinel = Entity(partition_key="bell", row_key=SENTINEL)
            row = RowOperation(verb=RowVerb.MERGE, entity=sentinel, etag="*")
            await stage.store.execute(Transact(table=hub.client.hub.names.history, rows=(row,)))
            asked = [await stage.ring(hub, 1), await stage.ring(hub, 2)]
            past = await hub.client.instance("bell").history()
            return [*asked, [event.input for event in past if event.event_type.name == "EventRaised"]]

    (changed, same, events), _ = play(scene)
    assert changed == {HISTORY: 1, ROW: 1, CHECKPOINT: 2}
    assert same == {CHECKPOINT: 1}
    assert events == ["0", "1", "2"]


@pytest.mark.rows("K21", "K23")
def test_without_extended_sessions_each_batch_replays_the_history_in_memory() -> None:
    """What comes while an episode is under way waits in the buffer, and is one batch of the next."""

    async def scene(stage: Stage) -> tuple[int, Counter[str]]:
        async with stage.worker(session_idle=OFF, partitions=1) as hub:
            await hub.client.start("bell", 4, instance_id="bell")
            await stage.ring(hub, 0)
            stage.delays[CHECKPOINT] = 20.0
            await stage.ring(hub, 1)
            await stage.ring(hub, 2, 3)
            buffered = hub.backend.queues.buffered
            stage.asked.clear()
            await stage.clock.sleep(30.0)
            return buffered, stage.asked

    (buffered, asked), stage = play(scene)
    assert buffered == 2
    assert asked == {CHECKPOINT: 1}
    assert (stage.live, stage.replayed) == ([0, 1, 2, 3], [0, 0, 1])
