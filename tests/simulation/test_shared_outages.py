"""An outage that hits all workers takes no attempt of a recorded activity from its worker, and none ever runs twice."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.hub.history import activity_records
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.settings import AZURE_LEASE, EMBEDDED_LEASE, LeaseTimes, SparkSettings
from airflow_provider_taskhub.storage.faults import Call, Fault, Plan, lost, unsent
from airflow_provider_taskhub.storage.primitives import PutMessage, Transact
from airflow_provider_taskhub.workers.activities.recorded import LOCKED_FILE_PAUSE
from tests.simulation.world import Machine, World, running, simulate

STEP = 0.25
READS = ("table.get", "table.query", "blob.get", "blob.list", "queue.peek")


@dataclass(slots=True)
class Diary:
    """Which attempt has done a step of an activity, and when."""

    steps: list[tuple[float, int]] = field(default_factory=list)

    def app(self, *, spark: bool = False) -> App:
        made = App("outage")

        if spark:

            @made.spark_activity
            def spark_job(session: Any, seconds: float) -> str:
                raise AssertionError("the test replaces it")

        else:

            @made.activity(record=True)
            async def job(seconds: float) -> str:
                return await self.work(seconds)

        @made.orchestrator
        async def long(ctx: OrchestrationContext, seconds: float) -> str:
            return str(await ctx.call_activity("spark_job" if spark else "job", seconds))

        return made

    async def work(self, seconds: float) -> str:
        for _ in range(round(seconds / STEP)):
            await asyncio.sleep(STEP)
            self.steps.append((asyncio.get_running_loop().time(), running().attempt))
        return "done"

    @property
    def attempts(self) -> list[int]:
        """The attempts in the order of their steps. Two that run at once would come by turns."""
        order: list[int] = []
        for _, attempt in self.steps:
            if not order or order[-1] != attempt:
                order.append(attempt)
        return order


def hangs(world: World, begin: float, end: float, *, answer: float = 30.0) -> Plan:
    """No call is answered between two times. A call ends with an error after ``answer`` seconds, as its deadline says,
    or is carried out at the end of the outage."""

    def plan(call: Call) -> Fault | None:
        now = world.clock.monotonic()
        if not begin <= now < end:
            return None
        if end - now < answer:
            return Fault(delay=end - now)
        return Fault(delay=answer, before=Unavailable("no answer (fault)"))

    return plan


def refuses(world: World, begin: float, end: float) -> Plan:
    def plan(call: Call) -> Fault | None:
        out = begin <= world.clock.monotonic() < end
        return Fault(before=Unavailable("connection refused (fault)", maybe_done=False)) if out else None

    return plan


def locked(world: World, begin: float, end: float) -> Plan:
    """As the file of an embedded hub that another program has locked: all can read, and nobody can write."""

    def plan(call: Call) -> Fault | None:
        now = world.clock.monotonic()
        if call.kind in READS or not begin <= now < end:
            return None
        if end - now < 30.0:
            return Fault(delay=end - now)
        return Fault(delay=30.0, before=Unavailable("another process has locked the file", maybe_done=False))

    return plan


def unrenewed(world: World, begin: float, end: float) -> Plan:
    """The store answers every request but the renewals of records."""

    def plan(call: Call) -> Fault | None:
        if not (isinstance(call.what, Transact) and call.what.table.endswith("Activities")):
            return None
        rows, now = call.what.rows, world.clock.monotonic()
        if len(rows) > 1 or rows[0].etag in (None, activity_records.NO_ROW) or not begin <= now < end:
            return None
        return Fault(before=Unavailable("no answer (fault)"))

    return plan


def cut_off(world: World, machine: Machine, plan: Plan) -> None:
    machine.plan = machine.leases = plan


@pytest.mark.rows("D68")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("seconds", [15.0, 25.0, 45.0, 200.0])
@pytest.mark.parametrize(
    ("outage", "lease"),
    [(hangs, AZURE_LEASE), (refuses, AZURE_LEASE), (locked, EMBEDDED_LEASE)],
    ids=["hangs", "refuses", "locked-embedded"],
)
def test_an_outage_that_hits_all_workers_supersedes_no_attempt(
    outage: Any, seconds: float, workers: int, lease: LeaseTimes
) -> None:
    """The attempt stands still at the give-up time, goes on when the store answers, and runs once."""
    diary = Diary()

    async def play() -> Any:
        async with World(diary.app(), lease=lease, partitions=1) as hub:
            machines = [await hub.join(f"worker-{number}") for number in range(workers)]
            await hub.client.start("long", 60.0, instance_id="one")
            await hub.clock.sleep(17.0)
            begin = hub.clock.monotonic()
            for machine in machines:
                cut_off(hub, machine, outage(hub, begin, begin + seconds))
            state = await hub.wait("one")
            attempts = await hub.client.instance("one").activities()
            await hub.settle()
            paused = hub.said("activity_paused")
            return state.output, [(record.attempt, record.state) for record in attempts], len(paused), begin

    output, attempts, paused, begin = simulate(play)
    assert (output, attempts) == ('"done"', [(1, RecordState.COMPLETED)])
    assert diary.attempts == [1]
    assert len(diary.steps) == round(60.0 / STEP)
    give_up, renew = lease.give_up.total_seconds(), lease.renew.total_seconds()
    if seconds > give_up:
        assert paused == 1
        during = [at for at, _ in diary.steps if begin + give_up + STEP < at < begin + seconds]
        assert during == [], "another worker may have it by then"
        after = min(at for at, _ in diary.steps if at > begin + seconds)
        assert after < begin + seconds + 5.0 + 1.0 + 2 * STEP, "it goes on with its first renewal"
    elif seconds < give_up - renew:
        assert paused == 0


def watched(outage: Any, lease: LeaseTimes, *, same: bool, after: float, seconds: float) -> None:
    """The work item of a recorded activity comes twice, then an outage begins. The activity must run once.

    :param same: whether the same worker gets the second copy.
    :param after: when the outage begins, in renewal intervals.
    """
    diary = Diary()

    async def play() -> Any:
        async with World(diary.app(), lease=lease, partitions=1) as hub:
            machines = [await hub.join("first")]
            await hub.client.start("long", 60.0, instance_id="one")
            await hub.clock.sleep(2.0)
            queue = hub.client.hub.names.work_items
            puts = [done.operation for done in hub.tape if isinstance(done.operation, PutMessage)]
            (text,) = {put.text for put in puts if put.queue == queue}
            if not same:
                cut_off(hub, machines[0], lambda call: Fault(delay=1.0) if call.kind == "queue.receive" else None)
                machines.append(await hub.join("second", roles=("activity",)))
            await hub.store.execute(PutMessage(queue=queue, text=text))
            await hub.clock.sleep(12.0 + after * lease.renew.total_seconds())
            begin = hub.clock.monotonic()
            for machine in machines:
                cut_off(hub, machine, outage(hub, begin, begin + seconds))
            state = await hub.wait("one")
            attempts = await hub.client.instance("one").activities()
            await hub.settle()
            return state.output, [(record.attempt, record.state) for record in attempts]

    assert simulate(play) == ('"done"', [(1, RecordState.COMPLETED)])
    assert diary.attempts == [1]
    assert len(diary.steps) == round(60.0 / STEP)


@pytest.mark.rows("D100")
@pytest.mark.parametrize("seconds", [29.0, 45.0])
@pytest.mark.parametrize("after", [0.1, 0.8])
@pytest.mark.parametrize("same", [False, True], ids=["another worker", "same worker"])
@pytest.mark.parametrize(
    ("outage", "lease"),
    [(hangs, AZURE_LEASE), (locked, EMBEDDED_LEASE)],
    ids=["hangs", "locked-embedded"],
)
def test_who_watches_a_record_when_the_outage_begins_does_not_take_the_attempt_over(
    outage: Any, lease: LeaseTimes, same: bool, after: float, seconds: float
) -> None:
    """The work item has come twice, so a second task watches the record, in another worker or in the same one.

    :param after: when the outage begins, in renewal intervals.
    """
    watched(outage, lease, same=same, after=after, seconds=seconds)


def test_a_worker_never_takes_over_an_attempt_that_runs_in_the_same_worker() -> None:
    """The work item has come twice, and only the renewals fail, for longer than the take time."""
    watched(unrenewed, AZURE_LEASE, same=True, after=0.5, seconds=90.0)


@pytest.mark.parametrize("fault", [unsent, lost])
@pytest.mark.parametrize("number", [1, 2])
def test_a_worker_that_gets_two_copies_of_a_work_item_runs_the_attempt_once_though_a_claim_gets_no_answer(
    number: int, fault: Callable[[], Fault]
) -> None:
    """Both copies are claimed at the same moment, so the two claims are equal to the last byte.

    :param number: which of the two claims gets no answer.
    """
    diary = Diary()

    async def play() -> Any:
        async with World(diary.app(), partitions=1) as hub:
            await hub.join("decides", roles=("orchestrator",))
            await hub.client.start("long", 2.0, instance_id="one")
            await hub.clock.sleep(5.0)
            queue = hub.client.hub.names.work_items
            puts = [done.operation for done in hub.tape if isinstance(done.operation, PutMessage)]
            (text,) = {put.text for put in puts if put.queue == queue}
            await hub.store.execute(PutMessage(queue=queue, text=text))
            claims = itertools.count(1)

            def plan(call: Call) -> Fault | None:
                what = call.what
                if isinstance(what, Transact) and what.table == hub.client.hub.names.activities:
                    return fault() if next(claims) == number else None
                return None

            cut_off(hub, await hub.join("acts", roles=("activity",)), plan)
            state = await hub.wait("one")
            await hub.settle()
            return state.output, next(claims) > 2

    assert simulate(play) == ('"done"', True)
    assert Counter(diary.steps).most_common(1)[0][1] == 1
    assert len(diary.steps) == round(2.0 / STEP)


@pytest.mark.rows("D101", "D103")
@pytest.mark.parametrize("lease", [AZURE_LEASE, EMBEDDED_LEASE], ids=["azure", "embedded"])
@pytest.mark.parametrize("outage", [hangs, refuses])
def test_an_attempt_whose_worker_alone_is_cut_off_stands_still_before_another_worker_runs_it(
    outage: Any, lease: LeaseTimes
) -> None:
    """It ends when its worker finds that the record belongs to another worker."""
    diary = Diary()

    async def play() -> Any:
        async with World(diary.app(), lease=lease, partitions=1) as hub:
            decides = await hub.join("decides", roles=("orchestrator",))
            first = await hub.join("first", roles=("activity",))
            await hub.client.start("long", 60.0, instance_id="one")
            await hub.clock.sleep(17.0)
            await hub.join("second", roles=("activity",))
            begin = hub.clock.monotonic()
            cut_off(hub, first, outage(hub, begin, begin + 80.0))
            state = await hub.wait("one")
            await hub.settle()
            attempts = await hub.client.instance("one").activities()
            assert not decides.dead
            return state.output, [(record.attempt, record.state) for record in attempts], begin

    output, attempts, begin = simulate(play)
    assert (output, attempts) == ('"done"', [(1, RecordState.LOST), (2, RecordState.COMPLETED)])
    assert diary.attempts == [1, 2]
    last = max(at for at, attempt in diary.steps if attempt == 1)
    first_step = min(at for at, attempt in diary.steps if attempt == 2)
    assert last < begin + lease.give_up.total_seconds() + STEP
    # The message of the work item is visible again after at most the visibility time; then the silence is watched.
    longest = lease.take + lease.visibility + lease.renew
    assert first_step < begin + longest.total_seconds() + 5.0


@pytest.mark.parametrize("seed", range(12))
def test_two_attempts_never_run_at_once_whatever_fails(seed: int) -> None:
    """Each worker is cut off at times of its own, and all are at others. Renewals and their answers come late."""
    diary, dice = Diary(), random.Random(seed)
    lease = dice.choice((AZURE_LEASE, EMBEDDED_LEASE))
    unit = lease.give_up.total_seconds()

    async def play() -> Any:
        async with World(diary.app(), lease=lease, partitions=1) as hub:
            machines = [await hub.join(f"worker-{number}") for number in range(3)]
            await hub.client.start("long", 8 * unit, instance_id="one")
            shared = [(at, at + dice.uniform(0.2, 3.0) * unit) for at in (dice.uniform(1, 60) * unit for _ in range(4))]

            def faults(own: list[tuple[float, float]]) -> Plan:
                def plan(call: Call) -> Fault | None:
                    now = hub.clock.monotonic()
                    if now > 80 * unit:
                        return None
                    for begin, end in (*shared, *own):
                        if begin <= now < end:
                            return dice.choice(
                                (
                                    Fault(before=Unavailable("refused (fault)", maybe_done=False)),
                                    Fault(delay=min(30.0, end - now)),
                                )
                            )
                    record = isinstance(call.what, Transact) and call.what.table.endswith("Activities")
                    if record and dice.random() < 0.2:
                        slow = dice.uniform(0.1, 1.5) * unit
                        return dice.choice((Fault(delay=slow), Fault(pause=slow), Fault(straggles=slow)))
                    return None

                return plan

            for machine in machines:
                begins = [dice.uniform(1, 60) * unit for _ in range(4)]
                cut_off(hub, machine, faults([(at, at + dice.uniform(0.5, 4.0) * unit) for at in begins]))
            state = await hub.wait("one")
            await hub.settle()
            return state.output, [record.attempt for record in await hub.client.instance("one").activities()]

    output, attempts = simulate(play)
    assert output == '"done"'
    assert diary.attempts == sorted(set(diary.attempts)), (seed, diary.attempts)
    assert attempts == list(range(1, len(attempts) + 1))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_attempt_that_cannot_stand_still_ends_and_the_next_begins_soon_after_the_outage(workers: int) -> None:
    """A driver of a Spark cluster: its tasks run on other machines, and would not stand still."""
    diary = Diary()

    async def play() -> Any:
        app = diary.app(spark=True)
        spark = SparkSettings(master="spark://cluster:7077")
        async with World(app, functions={"spark_job": diary.work}, lease=AZURE_LEASE, partitions=1, spark=spark) as hub:
            machines = [await hub.join(f"worker-{number}") for number in range(workers)]
            await hub.client.start("long", 60.0, instance_id="one")
            await hub.clock.sleep(17.0)
            begin = hub.clock.monotonic()
            for machine in machines:
                cut_off(hub, machine, refuses(hub, begin, begin + 45.0))
            state = await hub.wait("one")
            await hub.settle()
            attempts = await hub.client.instance("one").activities()
            return (
                state.output,
                [(record.attempt, record.state) for record in attempts],
                begin,
                hub.said("activity_paused"),
            )

    output, attempts, begin, paused = simulate(play)
    assert (output, attempts, paused) == ('"done"', [(1, RecordState.LOST), (2, RecordState.COMPLETED)], [])
    assert diary.attempts == [1, 2]
    assert max(at for at, attempt in diary.steps if attempt == 1) < begin + 20.0 + STEP
    if workers == 1:  # otherwise the other worker may receive the message first, and it can only watch the record
        assert min(at for at, attempt in diary.steps if attempt == 2) < begin + 45.0 + 8.0


@pytest.mark.parametrize(("seconds", "ends"), [(LOCKED_FILE_PAUSE - 10.0, 1), (LOCKED_FILE_PAUSE + 30.0, 2)])
def test_an_attempt_stands_still_for_five_minutes_while_its_hubs_file_is_locked(seconds: float, ends: int) -> None:
    """It may be the attempt itself that has locked the file. Then nothing could go on while it stands still."""
    diary = Diary()

    async def play() -> Any:
        async with World(diary.app(), lease=EMBEDDED_LEASE, partitions=1) as hub:
            machine = await hub.join("only")
            await hub.client.start("long", 60.0, instance_id="one")
            await hub.clock.sleep(17.0)
            begin = hub.clock.monotonic()
            cut_off(hub, machine, locked(hub, begin, begin + seconds))
            state = await hub.wait("one")
            await hub.settle()
            return state.output, [record.state for record in await hub.client.instance("one").activities()]

    assert simulate(play) == ('"done"', [RecordState.LOST, RecordState.COMPLETED][-ends:])
    assert diary.attempts == [1, 2][:ends]


@pytest.mark.rows("D60", "D63")
@pytest.mark.parametrize("lease", [AZURE_LEASE, EMBEDDED_LEASE], ids=["azure", "embedded"])
def test_an_attempt_that_is_cancelled_while_its_worker_is_cut_off_cleans_up_afterwards(lease: LeaseTimes) -> None:
    """Nobody else has taken it over, so its executor goes on and has its grace time, and its record is renewed."""
    made, cleaned, longest = App("outage"), list[float](), 3 * lease.give_up.total_seconds()

    @made.activity(record=True)
    async def job(seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.sleep(longest)
            cleaned.append(asyncio.get_running_loop().time())

    @made.orchestrator
    async def long(ctx: OrchestrationContext, seconds: float) -> None:
        await ctx.call_activity(job, seconds)

    async def play() -> Any:
        async with World(made, lease=lease, partitions=1) as hub:
            await hub.join("decides", roles=("orchestrator",))
            first = await hub.join("first", roles=("activity",))
            await hub.client.start("long", 600.0, instance_id="one")
            await hub.clock.sleep(17.0)
            begin = hub.clock.monotonic()
            cut_off(hub, first, refuses(hub, begin, begin + 50.0))
            await hub.clock.sleep(20.0)
            await hub.client.terminate("one", wait=True)
            confirmed = hub.clock.monotonic()
            (record,) = await hub.client.instance("one").activities()
            return confirmed, begin, record.state, hub.said("attempt_ended_while_it_stood_still")

    confirmed, begin, state, killed = simulate(play)
    assert (state, killed, len(cleaned)) == (RecordState.CANCELLED, [], 1)
    assert begin + 50.0 + longest <= cleaned[0] <= confirmed


@pytest.mark.rows("D60", "D63")
def test_a_clean_up_goes_on_after_an_outage_of_its_worker() -> None:
    made, cleaned = App("outage"), list[float]()

    @made.activity(record=True)
    async def job(seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.sleep(8.0)
            cleaned.append(asyncio.get_running_loop().time())

    @made.orchestrator
    async def long(ctx: OrchestrationContext, seconds: float) -> None:
        await ctx.call_activity(job, seconds)

    async def play() -> Any:
        async with World(made, lease=EMBEDDED_LEASE, partitions=1) as hub:
            await hub.join("decides", roles=("orchestrator",))
            first = await hub.join("first", roles=("activity",))
            await hub.client.start("long", 600.0, instance_id="one")
            await hub.clock.sleep(17.0)
            begin = hub.clock.monotonic()
            cut_off(hub, first, refuses(hub, begin + 3.0, begin + 6.5))
            await hub.client.terminate("one", wait=True, timeout=timedelta(minutes=2))
            (record,) = await hub.client.instance("one").activities()
            return record.state

    assert simulate(play) is RecordState.CANCELLED
    assert len(cleaned) == 1


@pytest.mark.rows("D60")
@pytest.mark.parametrize("seconds", [4.0, 4.5, 5.0, 5.5, 6.0, 6.5])
def test_an_outcome_that_comes_after_the_cancel_is_not_stored(seconds: float) -> None:
    """The activity ends while the heartbeat that finds the cancel waits for its answer."""
    made = App("outage")

    @made.activity(record=True)
    async def job(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @made.orchestrator
    async def long(ctx: OrchestrationContext, seconds: float) -> str:
        return await ctx.call_activity(job, seconds)

    async def play() -> Any:
        async with World(made, lease=EMBEDDED_LEASE, partitions=1) as hub:
            await hub.join("decides", roles=("orchestrator",))
            first = await hub.join("first", roles=("activity",))
            await hub.client.start("long", seconds, instance_id="one")
            await hub.clock.sleep(2.0)
            first.plan = lambda call: Fault(pause=2.0) if call.kind == "table.query" else None
            await hub.client.terminate("one")
            await hub.clock.sleep(1.5)
            (record,) = await hub.client.instance("one").activities()
            assert record.state is RecordState.CANCELLING
            await hub.settle()
            (record,) = await hub.client.instance("one").activities()
            return record.state

    assert simulate(play) is RecordState.CANCELLED
