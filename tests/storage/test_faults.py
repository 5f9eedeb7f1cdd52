"""Faults do what they say, the same seed the same; and the store in memory lives under a jumping loop."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_taskhub.errors import LeaseLost, StorageError, Throttled, Unavailable
from airflow_provider_taskhub.storage import faults
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore, Plan, Rates
from airflow_provider_taskhub.storage.primitives import (
    Entity,
    EtagOf,
    PutMessage,
    RowOperation,
    RowVerb,
    Step,
    Store,
    Transact,
    Unit,
)
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import VirtualClock, run

PUT = PutMessage(queue="abc", text="x")


def never(call: Call) -> Fault | None:
    return None


def row(verb: RowVerb, etag: EtagOf | None = None) -> Transact:
    entity = Entity(partition_key="p", row_key="1", properties={verb.value: 1})
    return Transact(table="Rows", rows=(RowOperation(verb=verb, entity=entity, etag=etag),))


UNIT = Unit(
    steps=(
        Step(name="messages", operations=(PUT, PUT)),
        Step(name="history", operations=(row(RowVerb.INSERT),)),
        Step(name="instance", operations=(row(RowVerb.MERGE, EtagOf(step=1)),)),
    )
)


async def made(plan: Plan, *, stepwise: bool = False) -> tuple[FaultyStore, SqliteStore]:
    clock = VirtualClock()
    inner = SqliteStore(None, clock=clock)
    async with inner:
        await inner.create_queue("abc")
        await inner.create_table("Rows")
    faulty: Store = FaultyStore(inner, plan, clock=clock, stepwise=stepwise)
    assert isinstance(faulty, FaultyStore)
    return faulty, inner


def test_without_faults_everything_goes_through() -> None:
    async def scenario() -> None:
        store, inner = await made(never)
        async with store:
            await store.execute(PUT)
            assert len(await store.receive("abc", limit=1, visibility=timedelta(seconds=1))) == 1
            await store.commit(UNIT)
            assert await store.get("Rows", "p", "1") == await inner.get("Rows", "p", "1")
            assert [entity.row_key async for entity in store.rows("Rows")] == ["1"]
            assert store.requests is inner.requests
            assert store.local is True

    run(scenario())


@pytest.mark.parametrize(
    ("fault", "error", "maybe_done", "count"),
    [
        (faults.refused(), Unavailable, False, 0),
        (faults.unsent(), Unavailable, True, 0),
        (faults.lost(), Unavailable, True, 1),
        (faults.throttled(3.0), Throttled, None, 0),
        (Fault(after=LeaseLost("any")), LeaseLost, None, 1),
    ],
)
def test_a_fault_at_a_call(fault: Fault, error: type[StorageError], maybe_done: bool | None, count: int) -> None:
    async def scenario() -> None:
        store, inner = await made(faults.at(2, fault, kind="queue.put"))
        async with store:
            await store.execute(PUT)
            await store.peek("abc")
            with pytest.raises(error) as caught:
                await store.execute(PUT)
            assert getattr(caught.value, "maybe_done", None) is maybe_done
            await store.execute(PUT)
        assert await inner.count("abc") == 2 + count

    run(scenario())


def test_a_straggler_is_done_after_what_follows_it() -> None:
    async def scenario() -> None:
        store, inner = await made(faults.at(1, faults.straggling(2.0), kind="queue.put"))
        async with store:
            with pytest.raises(Unavailable) as caught:
                await store.execute(replace(PUT, text="first"))
            assert caught.value.maybe_done
            await store.execute(replace(PUT, text="second"))
            assert await inner.count("abc") == 1
            await asyncio.sleep(3.0)
            found = await store.receive("abc", limit=2, visibility=timedelta(seconds=1))
        assert [message.text for message in found] == ["second", "first"]

    run(scenario())


def test_a_crash_need_not_be_an_error_of_storage() -> None:
    class Crash(BaseException):
        pass

    async def scenario() -> None:
        store, inner = await made(faults.at(1, Fault(after=Crash())))
        async with store:
            with pytest.raises(Crash):
                await store.execute(PUT)
        assert await inner.count("abc") == 1

    run(scenario())


def test_delays_pass_in_virtual_time() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        store, inner = await made(faults.at(1, Fault(delay=30.0, pause=10.0)))
        async with store:
            start = clock.monotonic()
            putting = asyncio.ensure_future(store.execute(PUT))
            await clock.sleep(29)
            assert await inner.count("abc") == 0
            await clock.sleep(2)
            assert await inner.count("abc") == 1
            assert not putting.done()
            await putting
            assert clock.monotonic() - start == pytest.approx(40)

    run(scenario())


def test_a_whole_unit_is_one_call() -> None:
    async def scenario() -> None:
        store, inner = await made(faults.at(1, faults.lost(), kind="unit"))
        async with store:
            with pytest.raises(Unavailable):
                await store.commit(UNIT)
        assert await inner.count("abc") == 2

    run(scenario())


def test_stepwise_the_plan_sees_each_operation() -> None:
    async def scenario() -> None:
        kinds: list[str] = []

        def plan(call: Call) -> Fault | None:
            kinds.append(call.kind)
            return faults.lost() if call.kind == "table.insert" else None

        store, inner = await made(plan, stepwise=True)
        async with store:
            with pytest.raises(Unavailable) as caught:
                await store.commit(UNIT)
        assert "step: history" in caught.value.__notes__
        assert kinds == ["queue.put", "queue.put", "table.insert"]
        entity = await inner.get("Rows", "p", "1")
        assert entity is not None
        assert entity.properties == {"insert": 1}

    run(scenario())


def test_a_seed_gives_the_same_faults_again() -> None:
    rates = Rates(refused=0.1, unsent=0.1, lost=0.1, throttled=0.1, late=0.2, kinds={"table.get": 0.0})

    def drawn(seed: int) -> list[tuple[str, str, float]]:
        plan = faults.seeded(seed, rates)
        found = [plan(Call(number=number, kind="queue.put", what=None)) or Fault() for number in range(200)]
        return [(repr(fault.before), repr(fault.after), fault.delay) for fault in found]

    first = drawn(7)
    assert first == drawn(7)
    assert first != drawn(8)
    assert 60 < sum(fault != ("None", "None", 0.0) for fault in first) < 180
    spared = faults.seeded(7, rates)
    assert all(spared(Call(number=number, kind="table.get", what=None)) is None for number in range(200))


# --- memory under a jumping loop


def test_a_delayed_message_arrives_on_time_in_virtual_time() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        async with SqliteStore(None, clock=clock) as store:
            await store.create_queue("abc")
            await store.execute(PutMessage(queue="abc", text="later", visibility=timedelta(hours=5)))
            start = clock.monotonic()
            assert await store.arrival(["abc"], 10.0) == []
            assert clock.monotonic() - start == pytest.approx(10)
            assert await store.arrival(["abc"], 100_000.0) == ["abc"]
            assert clock.monotonic() - start == pytest.approx(5 * 3600, abs=0.01)
            (message,) = await store.receive("abc", limit=1, visibility=timedelta(seconds=1))
            assert message.receipt.next_visible - message.inserted == pytest.approx(
                timedelta(hours=5, seconds=1), abs=timedelta(seconds=0.01)
            )

    run(scenario())


def test_a_put_wakes_every_waiter_at_once_in_virtual_time() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        async with SqliteStore(None, clock=clock) as store:
            await store.create_queue("abc")
            waiting = [asyncio.ensure_future(store.arrival(["abc", "not-there"], 1e6)) for _ in range(3)]
            await clock.sleep(50)
            await store.execute(PUT)
            assert await asyncio.gather(*waiting) == [["abc"]] * 3
            assert clock.monotonic() == pytest.approx(50)

    run(scenario())


def test_store_time_is_the_clocks() -> None:
    async def scenario() -> None:
        clock = VirtualClock(skew=timedelta(days=1))
        async with SqliteStore(None, clock=clock) as store:
            await store.create_queue("abc")
            await clock.sleep(3600)
            await store.execute(PUT)
            (message,) = await store.peek("abc")
            assert message.inserted == clock.utc_now()

    run(scenario())
