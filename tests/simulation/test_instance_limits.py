"""Instances with a limit: no more of them run at once in the hub, whoever dies, in the order in which they were
started, and those that wait cost nothing."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.client import InstanceLimit
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import OrchestrationInstance, Status
from airflow_provider_taskhub.errors import Conflict, InputError
from airflow_provider_taskhub.hub import instance_places
from airflow_provider_taskhub.hub.history import places, waiting_instances
from airflow_provider_taskhub.hub.history.places import Limit, LimitKind
from airflow_provider_taskhub.hub.history.waiting_instances import WaitingInstance
from airflow_provider_taskhub.hub.model import StartPolicy
from airflow_provider_taskhub.hub.waiting.reasons import Reason
from airflow_provider_taskhub.storage.primitives import Operation, Result, Transact
from airflow_provider_taskhub.tags import LIMIT_TAG
from tests.simulation.world import World, running, simulate

LIMIT = InstanceLimit(name="nightly", instances=2)


class Gate:
    """Counts which instances have begun and not ended, and how many did so at once."""

    def __init__(self) -> None:
        self.inside: set[str] = set()
        self.most = 0
        self.order: list[str] = []
        self.ran: Counter[str] = Counter()
        self.broken: set[str] = set()
        self.app = app = App("limited")

        @app.activity
        async def work(seconds: float) -> str:
            name = running().instance.instance_id
            self.inside.add(name)
            if name not in self.order:
                self.order.append(name)
            self.most = max(self.most, len(self.inside))
            try:
                await asyncio.sleep(seconds)
            finally:
                self.inside.discard(name)
            self.ran[name] += 1
            if name in self.broken:
                raise ValueError(f"{name} is broken")
            return name

        @app.orchestrator
        async def load(ctx: OrchestrationContext, seconds: float) -> str:
            return await ctx.call_activity(work, seconds)

        @app.orchestrator
        async def family(ctx: OrchestrationContext, seconds: float) -> list[str]:
            return await ctx.when_all([ctx.call_sub_orchestrator(load, seconds) for _ in range(3)])

        @app.orchestrator
        async def rounds(ctx: OrchestrationContext, left: int) -> int:
            await ctx.create_timer(timedelta(seconds=1))
            if left:
                ctx.continue_as_new(left - 1)
            return left

        @app.orchestrator
        async def listens(ctx: OrchestrationContext) -> list[int]:
            return [await ctx.wait_for_external_event("go", int) for _ in range(3)]


async def _start(world: World, count: int, seconds: float = 3.0, **more: object) -> None:
    for number in range(count):
        await world.client.start("load", seconds, instance_id=f"i{number:02}", limit=LIMIT, **more)  # type: ignore[arg-type]


async def _all_complete(world: World, count: int) -> None:
    for number in range(count):
        assert (await world.wait(f"i{number:02}")).status is Status.COMPLETED


@pytest.mark.rows("D85", "D88")
def test_no_more_instances_than_the_limit_run_and_the_first_come_first() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            for name in ("one", "two"):
                await world.join(name)
            begun = world.clock.monotonic()
            for number in range(12):
                await world.client.start("load", 3.0, instance_id=f"i{number:02}", limit=LIMIT)
                await world.clock.sleep(0.01)  # those that are started at the same moment have no order
            await _all_complete(world, 12)
            assert gate.most == 2
            assert set(gate.ran.values()) == {1}
            # two that begin at the same moment, on two workers, may change places
            assert all(abs(int(name[1:]) - place) <= 1 for place, name in enumerate(gate.order)), gate.order
            assert world.clock.monotonic() - begun < 25, "12 instances of 3 s, two at once, take 18 s"
            await world.settle()

    simulate(main)


def test_an_instance_without_the_limit_does_not_wait() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            await _start(world, 4, 600.0)
            await world.clock.sleep(5)
            begun = world.clock.monotonic()
            await world.client.start("load", 1.0, instance_id="free")
            other = InstanceLimit(name="hourly", instances=1)
            await world.client.start("load", 1.0, instance_id="other", limit=other)
            for name in ("free", "other"):
                assert (await world.wait(name)).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 3

    simulate(main)


def test_children_do_not_count_and_do_not_wait() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            one = InstanceLimit(name="nightly", instances=1)
            for name in ("a", "b"):
                await world.client.start("family", 2.0, instance_id=name, limit=one)
            for name in ("a", "b"):
                assert (await world.wait(name)).status is Status.COMPLETED
            assert gate.most == 3
            tags = [state.tags or {} for state in (await world.client.list()).instances]
            assert sum(LIMIT_TAG in one for one in tags) == 2, tags
            await world.settle()

    simulate(main)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.rows("D88")
def test_the_limit_holds_while_workers_die_and_join(seed: int) -> None:
    gate, draw = Gate(), random.Random(seed)

    async def main() -> None:
        async with World(gate.app) as world:
            machines = [await world.join(f"w{number}") for number in range(3)]
            await _start(world, 20, draw.uniform(1, 4))
            for number in range(3, 10):
                await world.clock.sleep(draw.uniform(0.5, 8))
                dead = draw.choice(machines)
                dead.die()
                gate.inside.clear()  # what a dead worker ran has ended
                machines.remove(dead)
                machines.append(await world.join(f"w{number}"))
            await _all_complete(world, 20)
            assert gate.most <= 2
            await world.clock.sleep(300)  # the last worker may have died before it freed the place of the last instance
            for state in await world.client.admin.limits():
                assert (state.waiting, state.holders) == (0, ())
            await world.settle()

    simulate(main)


@pytest.mark.rows("D88")
def test_a_rewound_instance_waits_for_its_turn_and_comes_before_the_others() -> None:
    gate = Gate()
    gate.broken = {"i00"}

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            await _start(world, 8, 5.0)
            assert (await world.wait("i00")).status is Status.FAILED
            gate.broken.clear()
            await world.client.rewind("i00", "the data is repaired")
            await world.clock.sleep(1)
            assert len(gate.inside) == 2
            state = await world.client.get("i00")
            assert state is not None
            assert state.status is Status.PENDING
            (why,) = await world.client.instance("i00").waiting()
            assert why.reason is Reason.LIMIT
            begun = len(gate.order)
            assert (await world.wait("i00")).status is Status.COMPLETED
            assert len(gate.order) <= begun + 1, "the rewound instance begins with the next free place"
            await _all_complete(world, 8)
            assert gate.most == 2
            assert gate.ran["i00"] == 2
            await world.settle()

    simulate(main)


def test_a_waiting_instance_can_be_terminated_and_purged() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            begun = world.clock.monotonic()
            await _start(world, 6, 10.0)
            await world.clock.sleep(2)
            assert (await world.client.terminate("i03", "enough", wait=True)).status is Status.TERMINATED
            await world.client.terminate("i04", "enough", wait=True)
            assert await world.client.purge("i04")
            for name in ("i00", "i01", "i02", "i05"):
                assert (await world.wait(name)).status is Status.COMPLETED
            assert set(gate.ran) == {"i00", "i01", "i02", "i05"}
            assert world.clock.monotonic() - begun < 23, "the ended instances have held no place"
            await world.clock.sleep(1)  # the place of the last one is freed after its end is seen
            (state,) = await world.client.admin.limits()
            assert (state.waiting, state.holders) == (0, ())
            await world.settle()

    simulate(main)


def test_a_waiting_instance_can_be_suspended_and_gets_its_events_in_order() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            await _start(world, 2, 20.0)
            await world.clock.sleep(1)
            await world.client.start("listens", instance_id="l", limit=LIMIT)
            await world.client.start("load", 1.0, instance_id="held", limit=LIMIT)
            await world.clock.sleep(1)
            for number in range(3):
                await world.client.raise_event("l", "go", number)
            await world.client.suspend("held", "not yet")
            assert (await world.wait("l")).output == "[0,1,2]"
            await world.clock.sleep(60)
            assert not gate.ran["held"]
            await world.client.resume("held", "now")
            assert (await world.wait("held")).status is Status.COMPLETED
            await world.settle()

    simulate(main)


def test_a_higher_priority_comes_first_and_a_lower_one_does_not_wait_for_ever() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")

            async def start(name: str, priority: int) -> None:
                limit = InstanceLimit(name="nightly", instances=1)
                await world.client.start("load", 60.0, instance_id=name, limit=limit, priority=priority)
                await world.clock.sleep(1)

            await start("runs", 0)
            for name, priority in (("backfill1", -2), ("backfill2", -2), ("plain1", 0), ("urgent", 1), ("plain2", 0)):
                await start(name, priority)
            (why,) = await world.client.instance("plain2").waiting()
            assert str(why).endswith("now runs; 2 before it"), str(why)
            (why,) = await world.client.instance("urgent").waiting()
            assert str(why).endswith("now runs; it is the next"), str(why)
            await world.clock.sleep(720)
            await start("late", 0)
            await world.wait("late")
            assert gate.order == ["runs", "urgent", "plain1", "plain2", "backfill1", "backfill2", "late"]
            await world.settle()

    simulate(main)


def test_who_has_ended_while_waiting_is_not_before_the_others() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            one = InstanceLimit(name="nightly", instances=1)
            for number in range(5):
                await world.client.start("load", 600.0, instance_id=f"i{number:02}", limit=one)
                await world.clock.sleep(1)
            for name in ("i01", "i02"):
                await world.client.terminate(name, "not needed", wait=True)
            again = StartPolicy.REPLACE_FINISHED
            await world.client.start("load", 1.0, instance_id="i01", limit=one, priority=-1, policy=again)
            await world.clock.sleep(2)
            turns = [(await world.client.instance(name).waiting())[0].turn for name in ("i03", "i04", "i01")]
            assert turns == [0, 1, 2]
            (state,) = await world.client.admin.limits()
            assert state.waiting == 3

    simulate(main)


def test_the_late_end_of_a_run_does_not_delete_the_message_of_the_rewound_run() -> None:
    """A worker that has lost the partition says that the run has ended, when the rewound run waits for its turn."""
    gate = Gate()
    gate.broken = {"i00"}

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            one = InstanceLimit(name="nightly", instances=1)
            state = await world.client.start("load", 1.0, instance_id="i00", limit=one)
            assert (await world.wait("i00")).status is Status.FAILED
            await world.client.start("load", 60.0, instance_id="i01", limit=one)
            await world.clock.sleep(2)
            gate.broken.clear()
            await world.client.rewind("i00", "the data is repaired")
            await world.clock.sleep(2)
            run = OrchestrationInstance(instance_id="i00", execution_id=state.execution_id)
            await instance_places.InstancePlaces(world.client.hub).leave(one, run)
            assert (await world.wait("i00")).status is Status.COMPLETED
            await world.settle()

    simulate(main)


def test_the_oldest_is_the_longest_wait_whatever_the_priorities() -> None:
    gate = Gate()
    gate.broken = {"back"}

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            one = InstanceLimit(name="nightly", instances=1)
            await world.client.start("load", 1.0, instance_id="back", limit=one)
            assert (await world.wait("back")).status is Status.FAILED
            await world.client.start("load", 600.0, instance_id="runs", limit=one)
            await world.clock.sleep(5)
            begins = []
            for name, priority in (("rewound", 0), ("later", -1000), ("first", 5)):
                begins.append(world.clock.utc_now())
                if name == "rewound":
                    await world.client.rewind("back", "repaired")
                else:
                    await world.client.start("load", 1.0, instance_id=name, limit=one, priority=priority)
                await world.clock.sleep(10)
                (state,) = await world.client.admin.limits()
                assert state.oldest is not None
                assert (state.waiting, abs((state.oldest - begins[0]).total_seconds()) < 2) == (len(begins), True)

    simulate(main)


def test_a_rewound_instance_of_a_low_priority_does_not_come_before_the_others() -> None:
    gate = Gate()
    gate.broken = {"back"}

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            one = InstanceLimit(name="nightly", instances=1)
            await world.client.start("load", 1.0, instance_id="back", limit=one, priority=-1000)
            assert (await world.wait("back")).status is Status.FAILED
            for name in ("a", "b", "c"):
                await world.client.start("load", 30.0, instance_id=name, limit=one)
            await world.clock.sleep(2)
            gate.broken.clear()
            for _ in range(2):
                await world.client.rewind("back", "repaired")
                await world.clock.sleep(1)
                await world.client.raise_event("back", "nothing", 1)
            (state,) = await world.client.admin.limits()
            assert state.waiting == 3
            for name in ("a", "b", "c"):
                await world.wait(name)
            assert gate.ran["back"] == 1
            assert (await world.wait("back")).status is Status.COMPLETED
            assert gate.ran["back"] == 2
            await world.settle()

    simulate(main)


def test_an_instance_keeps_its_place_over_continue_as_new() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            one = InstanceLimit(name="nightly", instances=1)
            await world.client.start("rounds", 5, instance_id="r", limit=one)
            await world.client.start("load", 1.0, instance_id="after", limit=one)
            await world.clock.sleep(4)
            assert not gate.inside
            assert (await world.wait("r")).status is Status.COMPLETED
            assert (await world.wait("after")).status is Status.COMPLETED
            await world.settle()

    simulate(main)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_the_number_of_the_last_start_counts(before: int, after: int) -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            for number, count in enumerate([before] * 6 + [after] * 6):
                await world.clock.sleep(0.5)
                limit = InstanceLimit(name="nightly", instances=count)
                await world.client.start("load", 5.0, instance_id=f"i{number:02}", limit=limit)
            gate.most = 0
            await world.clock.sleep(1)
            assert gate.most <= max(before, after)
            gate.most = 0
            await _all_complete(world, 12)
            assert gate.most == after
            assert world.said("limit_changed")

    simulate(main)


def test_the_number_of_a_start_that_is_due_later_does_not_count_again() -> None:
    async def main() -> None:
        async with World(Gate().app) as world:
            await world.join("one")
            due = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
            await world.client.start(
                "load", 1.0, instance_id="old", limit=InstanceLimit(name="nightly", instances=5), start_at=due
            )
            one = InstanceLimit(name="nightly", instances=1)
            for number in range(4):
                await world.client.start("load", 300.0, instance_id=f"i{number:02}", limit=one)
            await world.clock.sleep(90)
            (state,) = await world.client.admin.limits()
            assert (state.limit, len(state.holders), state.waiting) == (1, 1, 4)
            assert not world.said("limit_changed")
            assert [number for number, _ in state.changes] == [5, 1]

    simulate(main)


@pytest.mark.parametrize("numbers", [(5, 5, 5, 5, 5, 1), (4, 1, 4, 1, 4, 1)])
def test_the_start_that_was_made_last_counts_in_whatever_order_they_are_met(numbers: tuple[int, ...]) -> None:
    async def main() -> None:
        async with World(Gate().app) as world:
            for place, number in enumerate(numbers):
                limit = InstanceLimit(name="nightly", instances=number)
                await world.client.start("load", 300.0, instance_id=f"i{place:02}", limit=limit)
                await world.clock.sleep(0.01)
            await world.join("one")
            await world.clock.sleep(30)
            (state,) = await world.client.admin.limits()
            assert (state.limit, state.changes[-1][0]) == (1, 1)
            assert [number for number, _ in state.changes][-2] == numbers[0]

    simulate(main)


def test_a_client_whose_clock_is_fast_does_not_fix_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with World(Gate().app) as world:
            await world.join("one")
            real = world.client.hub.clock.utc_now
            for place, (number, ahead) in enumerate([(2, timedelta(days=1)), (1, timedelta())]):
                limit = InstanceLimit(name="nightly", instances=number)
                with monkeypatch.context() as patch:
                    patch.setattr(world.client.hub.clock, "utc_now", lambda ahead=ahead: real() + ahead)
                    await world.client.start("load", 1.0, instance_id=f"i{place:02}", limit=limit)
                await world.clock.sleep(5)
            (state,) = await world.client.admin.limits()
            assert state.limit == 1

    simulate(main)


def test_a_large_input_is_there_when_the_instance_has_waited() -> None:
    gate, got = Gate(), list[int]()

    @gate.app.orchestrator
    async def large(ctx: OrchestrationContext, text: str) -> None:
        got.append(len(text))

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            await _start(world, 2, 300.0)
            await world.clock.sleep(1)
            await world.client.start("large", "ä" * 100_000, instance_id="l", limit=LIMIT)
            await world.client.start("large", "ä" * 25_000, instance_id="m", limit=LIMIT)
            for name in ("l", "m"):
                assert (await world.wait(name)).status is Status.COMPLETED
            assert sorted(got) == [25_000, 100_000]

    simulate(main)


def test_a_start_that_is_put_again_changes_nothing() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            await _start(world, 5, 5.0)
            await world.clock.sleep(1)
            await _start(world, 5, 5.0, policy=StartPolicy.ATTACH)
            await _all_complete(world, 5)
            assert set(gate.ran.values()) == {1}
            assert gate.most == 2
            await world.settle()

    simulate(main)


@pytest.mark.parametrize("at", ["place taken", "message put", "row removed"])
def test_a_worker_that_dies_while_it_hands_a_place_over_leaves_nothing_undone(at: str) -> None:
    """The first instance ends, and the worker dies after it has given its place to the next, after the put,
    or after it has deleted the row."""
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            one = await world.join("one")
            limit = InstanceLimit(name="nightly", instances=1)
            for number in range(3):
                await world.client.start("load", 5.0, instance_id=f"i{number:02}", limit=limit)
            await world.clock.sleep(2)
            store, execute = one.backend.hub.store, one.backend.hub.store.execute
            dead: list[str] = []
            after = "limit-instances:" if at == "place taken" else "waiting:"

            async def dies(operation: Operation) -> Result:
                concerned = isinstance(operation, Transact) and any(
                    row.entity.partition_key.startswith(after) for row in operation.rows
                )
                given = concerned and isinstance(operation, Transact)
                if given and at == "message put":
                    dead.append(at)
                    one.die()
                    raise asyncio.CancelledError
                done = await execute(operation)
                taken = isinstance(operation, Transact) and operation.rows[0].entity.properties.get("Held")
                if given and (taken or at == "row removed"):
                    dead.append(at)
                    one.die()
                    raise asyncio.CancelledError
                return done

            store.execute = dies  # type: ignore[method-assign]
            await world.clock.sleep(10)
            assert dead
            await world.join("two")
            await _all_complete(world, 3)
            assert set(gate.ran.values()) == {1}
            await world.settle()

    simulate(main)


def test_a_rewind_that_comes_first_does_not_hide_the_message_of_the_one_that_has_the_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker dies after it has given the place, and before it puts the message. Then a rewound instance waits."""
    gate = Gate()
    gate.broken = {"i00"}
    monkeypatch.setattr(instance_places, "AT_ONCE", 1)

    async def main() -> None:
        async with World(gate.app) as world:
            one = await world.join("one")
            limit = InstanceLimit(name="nightly", instances=1)
            for number in range(3):
                await world.client.start("load", 5.0, instance_id=f"i{number:02}", limit=limit)
            await world.clock.sleep(2)
            execute = one.backend.hub.store.execute

            async def dies(operation: Operation) -> Result:
                done = await execute(operation)
                if isinstance(operation, Transact) and operation.rows[0].entity.properties.get("InstanceId") == "i01":
                    one.die()
                    raise asyncio.CancelledError
                return done

            one.backend.hub.store.execute = dies  # type: ignore[method-assign]
            await world.clock.sleep(10)
            gate.broken.clear()
            await world.client.rewind("i00", "the data is repaired")
            await world.join("two")
            await _all_complete(world, 3)
            assert gate.order == ["i00", "i01", "i02"]
            assert gate.ran == {"i00": 2, "i01": 1, "i02": 1}
            await world.settle()

    simulate(main)


def test_the_late_end_of_a_run_does_not_free_the_place_of_the_rewound_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has lost the partition reads the place while the instance is failed, and frees it late."""
    gate = Gate()
    gate.broken = {"i00"}

    async def nothing(*given: object) -> None:
        return None

    async def main() -> None:
        async with World(gate.app) as world:
            hub = world.client.hub
            wanted = Limit(name="nightly", places=2, kind=LimitKind.INSTANCES)
            await world.join("one")
            with monkeypatch.context() as patch:
                patch.setattr(instance_places.InstancePlaces, "leave", nothing)
                await world.client.start("load", 1.0, instance_id="i00", limit=LIMIT)
                assert (await world.wait("i00")).status is Status.FAILED
            (seen,) = (await places.state_of(world.store, hub.names, wanted)).holders
            gate.broken.clear()
            await world.client.rewind("i00", "the data is repaired")
            await world.clock.sleep(0.8)
            assert gate.inside == {"i00"}
            with pytest.raises(Conflict):
                await world.store.execute(places.freed(hub.names, seen))
            assert (await world.wait("i00")).status is Status.COMPLETED
            await world.settle()

    simulate(main)


def test_who_comes_later_does_not_take_a_free_place_before_who_waits() -> None:
    """A worker has died after it freed the place, so the place is free although an instance waits."""

    async def main() -> None:
        async with World(Gate().app) as world:
            hub, one = world.client.hub, InstanceLimit(name="nightly", instances=1)
            waiting = {}
            for name in ("first", "second"):
                state = await world.client.start("load", 1.0, instance_id=name, limit=one)
                instance = OrchestrationInstance(instance_id=name, execution_id=state.execution_id)
                now = world.clock.utc_now()
                waiting[name] = WaitingInstance(instance=instance, text="{}", since=now, turn=now)
                await world.clock.sleep(1)
            await world.store.execute(waiting_instances.stored(hub.names, "nightly", waiting["first"]))
            assert not await instance_places.InstancePlaces(hub).admit(one, waiting["second"])
            (state,) = await world.client.admin.limits()
            assert ([place.instance.instance_id for place in state.holders], state.waiting) == (["first"], 1)

    simulate(main)


def test_a_place_is_freed_when_two_looks_find_its_instance_ended_and_the_place_unchanged() -> None:
    """An instance that is just being rewound has its place before its row says Pending."""

    async def main() -> None:
        async with World(Gate().app) as world:
            hub, one = world.client.hub, InstanceLimit(name="nightly", instances=1)
            looking, wanted = instance_places.InstancePlaces(hub), instance_places.limit_of(one)
            gone = OrchestrationInstance(instance_id="gone", execution_id="1")
            since, turn = world.clock.utc_now(), waiting_instances.REWOUND
            waiting = WaitingInstance(instance=gone, text="{}", since=since, turn=turn, again=True)
            held = []
            for rewound in (True, False, True, False, False):
                if rewound:
                    assert await looking.admit(one, waiting)
                await looking.look(await places.state_of(world.store, hub.names, wanted))
                held.append(len((await places.state_of(world.store, hub.names, wanted)).holders))
            assert held == [1, 0, 1, 0, 0]
            assert await looking.admit(one, waiting)
            await looking.look(await places.state_of(world.store, hub.names, wanted))
            assert await looking.admit(one, waiting)
            await looking.look(await places.state_of(world.store, hub.names, wanted))
            assert len((await places.state_of(world.store, hub.names, wanted)).holders) == 1

    simulate(main)


def _requests_while_waiting(count: int) -> int:
    """Return the requests of two minutes in which ``count`` instances wait."""
    gate = Gate()

    async def main() -> int:
        async with World(gate.app) as world:
            for name in ("one", "two"):
                await world.join(name)
            await _start(world, count + 2, 1200.0)
            await world.clock.sleep(60)
            (state,) = await world.client.admin.limits()
            assert (state.limit, len(state.holders), state.waiting) == (2, 2, count)
            before = sum(world.store.requests.values())  # type: ignore[attr-defined]
            await world.clock.sleep(130)
            return int(sum(world.store.requests.values()) - before)  # type: ignore[attr-defined]

    asked: int = simulate(main)
    return asked


def test_instances_that_wait_cost_no_requests() -> None:
    few, many = _requests_while_waiting(10), _requests_while_waiting(60)
    assert abs(many - few) < 10, (few, many)  # 50 more wait; one look may lie within the two minutes or not


def test_people_see_why_an_instance_waits() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            await _start(world, 2, 600.0)
            await world.clock.sleep(1)
            await _start(world, 4, 600.0, policy=StartPolicy.ATTACH)
            await world.clock.sleep(4)
            (why,) = await world.client.instance("i03").waiting()
            ids = sorted(gate.inside)
            said = f"its turn: at most 2 instances with the limit 'nightly' run at once, now {', '.join(ids)}"
            assert str(why) == f"{said}; 1 before it"
            assert not why.reason.is_fault
            found = await world.client.get("i03", payloads=False)
            assert found is not None
            other = await world.client.get("i02", payloads=False)
            assert other is not None
            assert (await world.client.admin.waiting_of([found]))["i03"] == (why,)
            assert str((await world.client.admin.waiting_of([found, other]))["i03"][0]) == str(why)
            assert await world.client.instance("i00").waiting() != (why,)
            waiting = await waiting_instances.in_order(world.store, world.client.hub.names, "nightly")
            assert len(waiting) == 2

    simulate(main)


@pytest.mark.parametrize(
    ("name", "instances", "said"),
    [
        ("", 2, "name is ''"),
        ("x" * 201, 2, "1 to 200 printable characters"),
        ("a\nb", 2, "1 to 200 printable characters"),
        ("load", 0, "instances is 0"),
        ("load", -1, "whole number from 1"),
        ("load", True, "instances is True"),
        ("load", 10_001, "to 10,000"),
    ],
)
def test_a_wrong_limit_is_refused(name: str, instances: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        InstanceLimit(name=name, instances=instances)


def test_a_tag_that_is_no_limit_is_none() -> None:
    for text in ("", "two nightly", "0 nightly", "2", "²  nightly"):
        assert InstanceLimit.of({"taskhub.limit": text}) is None
    assert InstanceLimit.of(LIMIT.tags) == LIMIT
    assert InstanceLimit.of(None) is None
