"""The life of a lease: pace, order and bounds of renewals and scans, lost races, and what it all costs the store."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import pytest
from pydantic import ValidationError

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.errors import Conflict, Throttled, Unavailable
from airflow_provider_taskhub.hub.model import BLOB, TABLE
from airflow_provider_taskhub.hub.partitions.lease_stores import TableLeases
from airflow_provider_taskhub.hub.partitions.liveness import LeaseMap
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.hub.partitions.operations import PartitionOperations
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.storage.primitives import RowOperation, RowVerb, Store, Transact
from airflow_provider_taskhub.virtual_time import START, VirtualClock, run
from tests.hub.partitions.cluster import NAMES, Cluster, Faults
from tests.hub.partitions.test_owner import GIVE_UP, JITTER, RENEW, SCAN, TAKE, now, participant, scenario


def writes_a_lease(name: str, arguments: Sequence[object]) -> bool:
    operation = arguments[0] if arguments else None
    return name == "execute" and isinstance(operation, Transact) and operation.table == NAMES.partitions


def scans(name: str, arguments: Sequence[object]) -> bool:
    """Each scan reads the list of the workers once, and the leases only when there is a reason to."""
    return name == "rows" and arguments[0] == NAMES.members


@pytest.mark.rows("T09", "E58", "K05")
@pytest.mark.parametrize(
    ("renew", "give_up", "take"),
    [(10, 10, 30), (10, 30, 30), (30, 20, 10), (5, 5.4, 30), (5, 20, 20.4)],
)
def test_times_that_break_the_order_are_refused_with_the_reason(renew: float, give_up: float, take: float) -> None:
    with pytest.raises(ValidationError, match="lease times must") as refused:
        LeaseTimes(renew=timedelta(seconds=renew), give_up=timedelta(seconds=give_up), take=timedelta(seconds=take))
    assert "0.5 s between them" in str(refused.value)


@scenario
@pytest.mark.rows("T88", "T86", "T09")
async def test_clocks_that_drift_apart_for_minutes_leave_nobody_beside_another() -> None:
    """An owner whose clock is 0.1 % slow is cut off; who takes after it has one that is as much fast.

    The least times that are accepted for a give-up of ten minutes: half a second more than that was once enough.
    """
    give_up, take = timedelta(seconds=600), timedelta(seconds=601.806)
    for renew in (300, 1):
        with pytest.raises(ValidationError, match=r"0\.3 % of take between give_up and take because clocks drift"):
            LeaseTimes(renew=timedelta(seconds=renew), give_up=give_up, take=take - timedelta(seconds=0.01))
    times = LeaseTimes(renew=timedelta(seconds=300), give_up=give_up, take=take, scan=timedelta(seconds=1))
    async with Cluster(2, times=times) as cluster:
        faults = Faults(cluster.store)
        owner = await cluster.join("owner", store=faults, rate=0.999)  # type: ignore[arg-type]
        taker = await cluster.join("taker", rate=1.001)
        await asyncio.sleep(400)
        assert (len(owner.held), len(taker.held)) == (1, 1)

        async def cut(_: str, __: tuple[object, ...]) -> None:
            raise Unavailable("cut off")

        faults.before = cut
        await asyncio.sleep(1000)
        assert len(taker.held) == 2


@scenario
@pytest.mark.rows("T19", "E22", "E10")
async def test_renewals_go_out_together_whatever_a_scan_does() -> None:
    """Every answer takes 3 s: one after another eight of them would cost the lease of the last."""
    async with Cluster(8) as cluster:
        faults, sent = Faults(cluster.store), list[float]()

        async def slow(name: str, arguments: tuple[object, ...]) -> None:
            if scans(name, arguments):
                await asyncio.sleep(1000)
            if writes_a_lease(name, arguments):
                sent.append(now())
                await asyncio.sleep(3)

        node = await cluster.join("a", store=faults)  # type: ignore[arg-type]
        await cluster.settle()
        faults.before = slow
        await asyncio.sleep(10 * GIVE_UP)
        assert len(node.held) == 8
        assert not node.when("lost")
        rounds = Counter(round(at, 1) for at in sent)
        assert set(rounds.values()) == {8}


@scenario
@pytest.mark.rows("T19", "T18")
async def test_a_renewal_that_is_never_answered_is_cut_off_and_sent_again_before_give_up() -> None:
    async with Cluster(1) as cluster:
        faults, hung = Faults(cluster.store), list[float]()

        async def hang(name: str, arguments: tuple[object, ...]) -> None:
            if writes_a_lease(name, arguments) and not hung:
                hung.append(now())
                await asyncio.sleep(10_000)

        node = await cluster.join("a", store=faults)  # type: ignore[arg-type]
        await cluster.settle()
        faults.before = hang
        await asyncio.sleep(6 * GIVE_UP)
        assert hung
        assert not node.when("lost")


@participant
@pytest.mark.rows("E32", "T36")
async def test_what_is_free_is_taken_together() -> None:
    """Every write takes a second: one after another sixteen takes would need sixteen."""
    async with Cluster(16) as cluster:
        faults = Faults(cluster.store)

        async def slow(name: str, arguments: tuple[object, ...]) -> None:
            if name == "execute":
                await asyncio.sleep(1)

        faults.before = slow
        nodes = [await cluster.join(name, store=faults) for name in "ab"]  # type: ignore[arg-type]
        await cluster.settle(14)
        assert sum(len(node.when("taken")) for node in nodes) == 16
        for node in nodes:
            times = [at for at, _ in node.when("taken")]
            assert max(times) - min(times) <= 1.0


@scenario
@pytest.mark.rows("E13", "E14", "E12", "T24")
async def test_a_scan_that_hangs_is_cut_off_and_one_that_fails_is_not_repeated_at_once() -> None:
    async with Cluster() as cluster:
        faults, began = Faults(cluster.store), list[float]()
        mode = ["hang"]

        async def maybe(name: str, arguments: tuple[object, ...]) -> None:
            if not scans(name, arguments):
                return
            began.append(now())
            if mode[0] == "hang":
                await asyncio.sleep(10_000)
            if mode[0] == "fail":
                raise Unavailable("no answer")
            await asyncio.sleep(4)

        await cluster.join("a", store=faults)  # type: ignore[arg-type]
        await cluster.settle()
        faults.before = maybe
        await asyncio.sleep(200)
        gaps = [later - earlier for earlier, later in itertools.pairwise(began)]
        assert len(gaps) >= 15
        assert all(RENEW + 0.9 <= gap <= RENEW + 1.2 for gap in gaps), "cut off at the renew interval"
        mode[0] = "fail"
        await asyncio.sleep(50)
        began.clear()
        await asyncio.sleep(200)
        gaps = [later - earlier for earlier, later in itertools.pairwise(began)]
        assert all(gap >= 1.0 for gap in gaps)
        mode[0] = "slow"
        await asyncio.sleep(50)
        began.clear()
        await asyncio.sleep(400)
        gaps = [later - earlier for earlier, later in itertools.pairwise(began)]
        assert all(0.9 * SCAN - 0.1 <= gap <= JITTER * SCAN + 0.1 for gap in gaps), "the pause is what the turn left"


@scenario
@pytest.mark.rows("T22", "E17")
async def test_workers_that_start_together_do_not_stay_together() -> None:
    async with Cluster(8) as cluster:
        times: dict[str, list[float]] = {}
        for name in "abcd":
            faults = Faults(cluster.store)
            times[name] = []

            async def note(kind: str, arguments: tuple[object, ...], seen: list[float] = times[name]) -> None:
                if writes_a_lease(kind, arguments):
                    seen.append(now())

            faults.before = note
            await cluster.join(name, store=faults)  # type: ignore[arg-type]
        await asyncio.sleep(600)
        last = [seen[-1] % RENEW for seen in times.values()]
        assert max(last) - min(last) > 1
        for seen in times.values():
            turns = sorted({round(at, 2) for at in seen})
            gaps = {round(later - earlier, 2) for earlier, later in itertools.pairwise(turns)}
            assert len(gaps) > 10, "each turn has a length of its own"


@scenario
@pytest.mark.rows("T30", "T83", "E33", "E28", "E43", "E56")
async def test_of_many_takers_of_one_reading_exactly_one_wins() -> None:
    async with Cluster(1) as cluster:
        leases = TableLeases(cluster.store, NAMES)
        (free,) = await leases.scan()
        claims = [free.claimed(f"w{number}", START, timedelta(seconds=30)) for number in range(20)]
        random.Random(1).shuffle(claims)
        outcomes = await asyncio.gather(*(leases.write(claim) for claim in claims), return_exceptions=True)
        won = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        assert len(won) == 1
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 19
        (row,) = await leases.scan()
        assert (row.owner, row.epoch) == (won[0].owner, 1)
        with pytest.raises(Conflict):
            await leases.write(free.renewed(START, timedelta(seconds=30), draining=False))


@scenario
@pytest.mark.rows("T82", "T18", "E20", "E21")
async def test_one_renewal_in_each_give_up_limit_is_enough() -> None:
    """Of every two writes of a row the first fails: nothing changes its owner."""
    async with Cluster(8) as cluster:
        faults, tries = Faults(cluster.store), Counter[str]()

        async def every_other(name: str, arguments: tuple[object, ...]) -> None:
            if writes_a_lease(name, arguments):
                operation = arguments[0]
                assert isinstance(operation, Transact)
                key = operation.rows[0].entity.row_key
                tries[key] += 1
                if tries[key] % 2:
                    raise random.Random(tries[key]).choice([Unavailable("no answer"), Throttled("patience")])

        store: Store = faults  # type: ignore[assignment]
        nodes = [await cluster.join(name, store=store) for name in "ab"]
        await cluster.settle()
        events = [len(node.events) for node in nodes]
        faults.before = every_other
        await asyncio.sleep(2000)
        assert [len(node.events) for node in nodes] == events
        assert min(tries.values()) > 200


@scenario
@pytest.mark.rows("D90")
async def test_a_taking_over_that_fails_is_tried_again_after_a_scan() -> None:
    """Of the claims of a dead worker's partitions the first three tries are not carried out."""
    async with Cluster(2) as cluster:
        faults, tries = Faults(cluster.store), dict[str, list[float]]()
        a, b = await cluster.join("a"), await cluster.join("b", store=faults)  # type: ignore[arg-type]
        await cluster.settle()
        orphan = NAMES.control(*a.held)

        async def refuse(name: str, arguments: tuple[object, ...]) -> None:
            if writes_a_lease(name, arguments):
                operation = arguments[0]
                assert isinstance(operation, Transact)
                times = tries.setdefault(operation.rows[0].entity.row_key, [])
                times.append(now())
                if operation.rows[0].entity.row_key == orphan and len(times) <= 3:
                    raise Unavailable("connection refused", maybe_done=False)

        await cluster.crash(a)
        faults.before = refuse
        await cluster.settle(TAKE + 5 * SCAN * JITTER)
        gaps = [later - earlier for earlier, later in itertools.pairwise(tries[orphan])]
        assert len(b.held) == 2
        assert [round(gap) for gap in gaps[:3]] == pytest.approx([SCAN] * 3, abs=SCAN * (JITTER - 1) + 0.5)


@scenario
@pytest.mark.rows("D102")
async def test_a_short_interruption_moves_no_partition_and_a_long_one_does() -> None:
    """A worker is cut off for as long as one renewal may fail, and later for longer than the take time."""
    async with Cluster() as cluster:
        faults, cut = Faults(cluster.store), [False]

        async def maybe(_: str, __: tuple[object, ...]) -> None:
            if cut[0]:
                raise Unavailable("connection refused", maybe_done=False)

        faults.before = maybe
        a, b = await cluster.join("a", store=faults), await cluster.join("b")  # type: ignore[arg-type]
        await cluster.settle()
        before = len(a.events), len(b.events)
        for seconds in (0.9 * (GIVE_UP - RENEW), TAKE + 3 * SCAN):
            await asyncio.sleep(30)
            assert (len(a.events), len(b.events)) == before, seconds
            cut[0] = True
            await asyncio.sleep(seconds)
            cut[0] = False
        assert len(b.held) == 4


@scenario
@pytest.mark.rows("T81", "T80")
async def test_scans_return_to_their_pace_when_throttling_ends() -> None:
    async with Cluster() as cluster:
        faults, throttled, counted = Faults(cluster.store), [True], [0]

        async def throttle(name: str, arguments: tuple[object, ...]) -> None:
            if scans(name, arguments):
                counted[0] += 1
                if throttled[0]:
                    raise Throttled("slow down", retry_after=1.0)

        await cluster.join("a", store=faults)  # type: ignore[arg-type]
        await cluster.settle()
        faults.before = throttle
        await asyncio.sleep(1000)
        slow, throttled[0] = counted[0], False
        await asyncio.sleep(8 * SCAN * JITTER)
        counted[0] = 0
        await asyncio.sleep(1000)
        assert slow <= 1000 / (8 * SCAN) + 5
        assert counted[0] >= 1000 / SCAN / JITTER


@scenario
@pytest.mark.rows("T87", "K06", "T26")
async def test_an_orphan_is_taken_as_soon_as_its_silence_is_proof_not_a_scan_later() -> None:
    async with Cluster(4) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        await cluster.settle()
        for _ in range(5):
            await asyncio.sleep(37)
            died = now()
            await cluster.crash(a)
            await asyncio.sleep(TAKE + SCAN * JITTER + 1)
            assert len(b.held) == 4
            taken = [at for at, _ in b.when("taken") if at > died]
            assert max(taken) - died <= TAKE + SCAN * JITTER
            a = await cluster.join("a")
            await cluster.settle()


@pytest.mark.rows("T87", "T85")
@pytest.mark.parametrize("seed", range(12))
def test_who_dies_between_a_renewal_and_its_word_of_it_is_followed_within_a_scan(seed: int) -> None:
    """Others know its lease by an older sign; they must read the newer row before they have waited for nothing."""

    async def main() -> None:
        async with Cluster(4, seed=seed) as cluster:
            faults, dying, died = Faults(cluster.store), [False], asyncio.Event()

            async def gone(name: str, arguments: tuple[object, ...]) -> None:
                if died.is_set() or not writes_a_lease(name, arguments):
                    raise Unavailable("no answer")

            async def renewed(name: str, arguments: tuple[object, ...]) -> None:
                if dying[0] and writes_a_lease(name, arguments):
                    died.set()

            a, b = await cluster.join("a", store=faults), await cluster.join("b")  # type: ignore[arg-type]
            await cluster.settle()
            await asyncio.sleep(60 + 0.9 * seed)
            faults.before, faults.after, dying[0] = gone, renewed, True
            await died.wait()
            at = now()
            await cluster.crash(a)
            await asyncio.sleep(TAKE + SCAN * JITTER + 2)
            assert len(b.held) == 4
            assert max(when for when, _ in b.when("taken")) - at <= TAKE + 1.15 * SCAN + 0.6

    run(main())


SLOW = LeaseTimes(
    renew=timedelta(seconds=200),
    give_up=timedelta(seconds=220),
    take=timedelta(seconds=240),
    scan=timedelta(seconds=60),
)
"""Renewals are much rarer than scans: what is said only with them is said late."""


@scenario
@pytest.mark.rows("T87", "T85")
async def test_what_was_taken_is_said_at_once() -> None:
    """Else others go by the word of an earlier tenure for a renewal more, once its owner has died."""
    async with Cluster(4, times=SLOW) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        await cluster.settle(1000)
        await asyncio.sleep(1000)
        operations = PartitionOperations(cluster.store, NAMES, by="ops", clock=VirtualClock())
        for _ in range(3):
            before = len(a.when("taken")) + len(b.when("taken"))
            await operations.kick(min(a.held))
            while len(a.when("taken")) + len(b.when("taken")) == before:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await asyncio.sleep(1)
            died = now()
            await cluster.crash(a)
            await asyncio.sleep(240 + 1.15 * 60 + 1)
            assert len(b.held) == 4
            assert max(at for at, _ in b.when("taken")) - died <= 240 + 1.15 * 60 + 0.6
            a = await cluster.join("a")
            await cluster.settle(1000)
            await asyncio.sleep(1000)


@scenario
@pytest.mark.rows("T87", "T85", "T57")
async def test_what_was_let_go_is_said_at_once() -> None:
    async with Cluster(2, times=SLOW) as cluster:
        a, _ = await cluster.join("a"), await cluster.join("b")
        await cluster.settle(1000)
        await asyncio.sleep(1000)
        number = min(a.held)
        await PartitionOperations(cluster.store, NAMES, by="ops", clock=VirtualClock()).kick(number)
        while number in a.held:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.2)
        said = (await Members(cluster.store, NAMES).watch()).advertised[str(a.me)]
        assert (number in said.signs) == (number in a.held)


@pytest.mark.rows("T87", "E34")
@scenario
async def test_who_joins_and_asks_does_not_delay_the_taking_over_of_a_dead_workers_partitions() -> None:
    async with Cluster(4) as cluster:
        a, _ = await cluster.join("a"), await cluster.join("b")
        await cluster.settle()
        await asyncio.sleep(60)
        died = now()
        await cluster.crash(a)
        await asyncio.sleep(TAKE - 8)
        await cluster.join("c")
        await asyncio.sleep(8 + SCAN * JITTER + 1)
        assert sum(cluster.counts()) == 4
        assert now() - died <= TAKE + SCAN * JITTER + 1.1


class Steady(random.Random):
    """Chance without a spread: every interval is exactly as long as it is set."""

    def uniform(self, a: float, b: float) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a stable cluster asks of its store. :param requests: by kind. :param rows: read, by table."""

    requests: Counter[str]
    rows: Counter[str]


def cost(partitions: int, workers: int, *, period: float, periods: int, lease_store: str = TABLE) -> Cost:
    """Of so many periods, without jitter: each lease is renewed once in each of them, each worker scans once.

    :param period: seconds; no whole number of them ends where the counting begins.
    """

    async def main() -> Cost:
        every = timedelta(seconds=period)
        cluster = Cluster(partitions, times=LeaseTimes(renew=every, give_up=2 * every, take=3 * every, scan=every))
        cluster.lease_store, cluster.look = lease_store, period / 7
        async with cluster:
            faults, rows = Faults(cluster.store), Counter[str]()
            read = faults.rows

            async def counted(table: str, *arguments: object, **named: object):  # type: ignore[no-untyped-def]
                async for row in read(table, *arguments, **named):
                    rows[table.removeprefix(NAMES.hub)] += 1
                    yield row

            faults.rows = counted  # type: ignore[method-assign,assignment]
            for number in range(workers):
                await cluster.join(f"w{number}", store=faults, rng=Steady())  # type: ignore[arg-type]
            await cluster.settle()
            await asyncio.sleep(1.4 * period)
            before = cluster.store.requests.copy()
            rows.clear()
            await asyncio.sleep(periods * period)
            return Cost(requests=cluster.store.requests - before, rows=rows)

    return run(main(), limit=timedelta(days=2))


@pytest.mark.rows("T84", "E16")
@pytest.mark.long
def test_the_request_budget_is_what_the_arithmetic_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,024 rows, 64 nodes, 120 s: 8.5 writes and 546 row reads a second.

    Exactly, without the jitter; ``test_a_stable_cluster_only_renews`` counts with it. Beside it each node writes and
    reads the list of the nodes, reads the orders, and keeps the app lease every 20 s.
    """
    monkeypatch.setattr(LeaseMap, "by_advertisements", lambda self, *arguments, **named: None)
    partitions, nodes, period = 1024, 64, 120
    used = cost(partitions, nodes, period=period, periods=1)
    assert (round(partitions / period, 1), round(nodes * partitions / period)) == (8.5, 546)
    assert used.rows == {"Partitions": nodes * partitions, "Members": nodes * nodes}
    assert used.requests == {
        "table.update": partitions + nodes,
        "table.query": 4 * nodes,  # 1,024 rows are two pages
        "blob.lease": nodes * period / 20,
    }


@pytest.mark.rows("T85", "E16")
def test_while_nothing_moves_no_lease_is_read() -> None:
    partitions, nodes, period, periods = 64, 8, 10, 20
    used = cost(partitions, nodes, period=period, periods=periods)
    assert used.rows == {"Members": nodes * nodes * periods}
    assert used.requests == {
        "table.update": (partitions + nodes) * periods,
        "table.query": 2 * nodes * periods,
        "blob.lease": nodes * period * periods / 20,
    }


@pytest.mark.rows("T84", "T85", "E16")
@pytest.mark.parametrize("told", [False, True], ids=["by reading every lease", "by what owners say"])
def test_what_blob_leases_cost_is_what_their_module_says(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests a renewal; and where leases must be looked at, a listing and a request for each."""
    if not told:
        monkeypatch.setattr(LeaseMap, "by_advertisements", lambda self, *arguments, **named: None)
    partitions, nodes, period, periods = 64, 8, 10, 6
    used = cost(partitions, nodes, period=period, periods=periods, lease_store=BLOB)
    assert used.rows == {"Members": nodes * nodes * periods}
    looks = {} if told else {"blob.list": nodes * periods, "blob.get": nodes * partitions * periods}
    assert used.requests == looks | {
        "blob.lease": partitions * periods + nodes * period * periods / 20,
        "blob.put": partitions * periods,
        "table.update": nodes * periods,
        "table.query": 2 * nodes * periods,
    }


@scenario
@pytest.mark.rows("T85", "T86", "T16")
async def test_a_renewal_that_is_tried_again_is_a_new_sign() -> None:
    """Its worker says at each try what it has sent. The one that succeeds at last counts from its own sending."""
    renew, give_up, take = 2.0, 40.0, 41.0
    times = LeaseTimes(
        renew=timedelta(seconds=renew),
        give_up=timedelta(seconds=give_up),
        take=timedelta(seconds=take),
        scan=timedelta(seconds=2),
    )
    async with Cluster(2, times=times) as cluster:
        faults, failing, succeeded = Faults(cluster.store), [False], [0.0]

        async def fail(name: str, arguments: tuple[object, ...]) -> None:
            if succeeded[0] or (failing[0] and writes_a_lease(name, arguments)):
                raise Unavailable("no answer")

        async def cut_off(name: str, arguments: tuple[object, ...]) -> None:
            if writes_a_lease(name, arguments):
                succeeded[0] = now()

        a, b = await cluster.join("a", store=faults), await cluster.join("b")  # type: ignore[arg-type]
        await cluster.settle()
        await asyncio.sleep(60)
        faults.before, failing[0] = fail, True
        await asyncio.sleep(give_up - 5)
        faults.after, failing[0] = cut_off, False
        await asyncio.sleep(5 + take + 10)
        # meanwhile the cluster has looked, twenty times a second, whether two serve a partition
        lost, taken = max(at for at, _ in a.when("lost")), max(at for at, _ in b.when("taken"))
        assert lost - succeeded[0] == pytest.approx(give_up, abs=1)
        assert taken - succeeded[0] >= take


@participant
@pytest.mark.rows("T85", "T87")
async def test_who_cannot_say_what_it_serves_keeps_it() -> None:
    """Its line in the list of workers grows old, and is removed at last: others read its leases, which live."""
    async with Cluster(4) as cluster:
        faults = Faults(cluster.store)

        async def fail(name: str, arguments: tuple[object, ...]) -> None:
            operation = arguments[0] if arguments else None
            if name == "execute" and isinstance(operation, Transact) and operation.table == NAMES.members:
                raise Unavailable("no answer")

        a, b = await cluster.join("a", store=faults), await cluster.join("b")  # type: ignore[arg-type]
        await cluster.settle()
        await asyncio.sleep(60)
        faults.before, before = fail, len(a.events)
        await asyncio.sleep(cluster.long(500))
        assert (len(a.held), len(b.held)) == (2, 2)
        assert len(a.events) == before


@participant
@pytest.mark.rows("T85", "T83")
async def test_an_old_word_that_arrives_late_delays_nothing() -> None:
    """A dead worker's last lines in the list arrive in turns: its partitions are taken all the same."""
    async with Cluster(4) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        await cluster.settle()
        await asyncio.sleep(60)
        lines = []
        for _ in range(2):
            rows = [row async for row in cluster.store.rows(NAMES.members)]
            lines += [row for row in rows if row.properties["Worker"] == str(a.me)]
            await asyncio.sleep(RENEW + 1)
        died = now()
        await cluster.crash(a)
        for number in range(11):
            await asyncio.sleep((TAKE + SCAN * JITTER) / 11)
            late = RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=lines[number % 2])
            await cluster.store.execute(Transact(table=NAMES.members, rows=(late,)))
        assert now() - died <= TAKE + SCAN * JITTER + 0.1
        assert len(b.held) == 4


@scenario
@pytest.mark.rows("T51")
async def test_who_waits_for_a_handover_reads_what_it_waits_for_and_not_the_table() -> None:
    async with Cluster(64) as cluster:
        await cluster.join("a", episode=8)
        await asyncio.sleep(60)
        faults, read = Faults(cluster.store), Counter[str]()
        all_rows = faults.rows

        async def counted(*arguments: object, **named: object):  # type: ignore[no-untyped-def]
            async for row in all_rows(*arguments, **named):
                read[str(arguments[0])] += 1
                yield row

        faults.rows = counted  # type: ignore[method-assign]
        b = await cluster.join("b", store=faults)  # type: ignore[arg-type]
        began = now()
        await cluster.settle(40)
        waited = now() - began
        assert waited > 5
        assert len(b.held) == 32
        looks = waited / (SCAN / 10)
        assert read[NAMES.partitions] <= (waited / SCAN + 2) * 64 + looks * 32
        assert read[NAMES.partitions] < looks * 64 * 0.8, "less than looking at all of them each time"


@pytest.mark.rows("T17", "T20", "T21")
def test_ages_go_on_while_a_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(time, "CLOCK_BOOTTIME"):
        pytest.skip("no such clock on this system")
    after_an_hour_asleep = {time.CLOCK_BOOTTIME: 3700.0, time.CLOCK_MONOTONIC: 100.0}
    monkeypatch.setattr(time, "clock_gettime", after_an_hour_asleep.__getitem__)
    assert SYSTEM_CLOCK.monotonic() == 3700.0
