"""The loop that holds this worker's partitions: renew, scan, take, hand over, give up.

:class:`PartitionOwner` runs on whatever event loop it is given, the simulation's too; ``owner.OwnerThread`` gives it a
thread of its own. Decisions are those of ``balance`` and ``leases``; this module only reads, asks them, and carries out
the answer. No error ends the loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import Conflict, HubError, NotFound, StorageError, Throttled, Unavailable
from airflow_provider_taskhub.hub.contract import HubNames, Member, Service, Tenure, TenureListener, WorkerIdentity
from airflow_provider_taskhub.hub.partitions.admin import read_hub
from airflow_provider_taskhub.hub.partitions.applease import RENEW, SECONDS, AppLease
from airflow_provider_taskhub.hub.partitions.balance import Seat, plan
from airflow_provider_taskhub.hub.partitions.controls import Controls, Orders, orders
from airflow_provider_taskhub.hub.partitions.figures import Figures
from airflow_provider_taskhub.hub.partitions.leases import NO_SERVICE, NOBODY, Lease, Sightings, standing
from airflow_provider_taskhub.hub.partitions.members import Members, Roster
from airflow_provider_taskhub.hub.partitions.stores import Leases, TableLeases, leases_of
from airflow_provider_taskhub.hub.partitions.tenure import LeaseTenure
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.storage.primitives import Store

log = structlog.get_logger("taskhub.partitions")

DRAIN = timedelta(seconds=30)
"""Longest a handover may take; then the partition is given up with whatever still runs, whose commits are refused."""
_WRITES = 3
"""Tries of one renewal or release against changes by others."""
_STARTS = 5
"""Tries of a start against a store that is throttling or does not answer."""
_SLOWEST = 8.0
"""Scans under throttling are at most so many times rarer."""


@dataclass(slots=True, eq=False)
class _Held:
    """A tenure and what the loop needs to write its row: one writer at a time."""

    tenure: LeaseTenure
    over: asyncio.Event
    """Drained, or ended in any other way."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    drain: asyncio.Task[None] | None = None


class PartitionOwner:
    """Owns partitions for one worker. Methods belong to the event loop that runs it, except :meth:`expire`.

    :param me: this incarnation; its text is the owner in lease rows.
    :param times: of leases, on this worker's monotonic ``clock``.
    :param listener: told of every tenure: taken, asked (drain!), lost; each at most once, lost exactly once.
    :param app_name: AppName of the app lease. :param predecessors: full names of workers proven dead (their lock file
        could be taken), or a function that lists them, asked at each scan.
    :param member: this worker's line in the members table, asked at each renewal. Without the role ``orchestrator`` it
        is listed but takes no partitions. :param services: what the host says of the partitions that it serves, asked
        at each renewal and published with it. :param stuck: a partition that has not been polled for so long is given
        up, to be served anew (K12). :param rng: for jitter. :param watchdog: whether :meth:`run` calls :meth:`expire`
        itself (else another thread does).
    """

    def __init__(
        self,
        *,
        store: Store,
        names: HubNames,
        me: WorkerIdentity,
        times: LeaseTimes,
        clock: Clock,
        listener: TenureListener,
        app_name: str,
        predecessors: Sequence[str] | Callable[[], Collection[str]] = (),
        member: Callable[[], Member] | None = None,
        services: Callable[[], Mapping[int, Service]] = dict,
        stuck: timedelta = timedelta.max,
        rng: random.Random | None = None,
        watchdog: bool = True,
    ) -> None:
        self._store = store
        self._names = names
        self._me = str(me)
        self._times = times
        self._renew_every = times.renew.total_seconds()
        self._give_up = times.give_up.total_seconds()
        self._scan_every = times.scan.total_seconds()
        # an attempt may take half of what lies between a due renewal and give-up, so that there is time for another
        self._deadline = (self._give_up - self._renew_every) / 2
        self._clock = clock
        self._listener = listener
        self._predecessors = predecessors
        plain = Member(
            worker=self._me, started=clock.utc_now(), roles=("orchestrator",), apps={}, orchestrators=(), activities=()
        )
        self._describe = member or (lambda: plain)
        self._member = plain
        self._ask_services = services
        self._services: Mapping[int, Service] = {}
        self._stuck = stuck.total_seconds()
        self._rng = rng or random.Random()
        self._watchdog = watchdog
        self._leases: Leases = TableLeases(store, names)
        self._members = Members(store, names, times=times, clock=clock)
        self._controls = Controls(store, names)
        self._app = AppLease(store, names, app_name)
        self._app_sent: float | None = None
        self._sightings = Sightings()
        self.figures = Figures()
        self._held: dict[int, _Held] = {}
        self._snapshot: tuple[_Held, ...] = ()
        self._waiting_since: float | None = None
        self._waiting_for: set[str] = set()
        self._runs_out = float("inf")
        """Seconds after the last scan at which somebody's silence would make a lease free."""
        self._slowness = 1.0
        self._partitions = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._stop_limit = DRAIN

    @property
    def tenures(self) -> tuple[Tenure, ...]:
        """What is held now; from any thread."""
        return tuple(held.tenure for held in self._snapshot if not held.tenure.ended)

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Everything that must hold before the first take: hub, app lease, this worker's line in the members table.

        :raises HubError: the hub is not ready or newer, or another app holds it. :raises StorageError: no answer.
        """
        self._loop = asyncio.get_running_loop()
        for left in range(_STARTS - 1, -1, -1):
            try:
                await self._prepare()
                break
            except (Throttled, Unavailable) as error:
                if not left:
                    raise
                log.warning("partitions_not_started", error=str(error), tries_left=left)
                await self._clock.sleep(error.retry_after if isinstance(error, Throttled) else 1.0)

    async def _prepare(self) -> None:
        info = await read_hub(self._store, self._names)
        self._partitions = info.partitions
        self._leases = leases_of(self._store, self._names, info, self._times.take)
        sent = self._clock.monotonic()
        await self._app.acquire()
        self._app_sent = sent
        self._ask_host()
        await self._members.announce(self._member)

    async def run(self) -> None:
        """Own partitions until :meth:`stop`. Cancelled, it leaves everything as a crash would, and reports the losses.

        :raises HubError, StorageError: as :meth:`start`, which it calls unless that was done.
        """
        try:
            if self._loop is None:
                await self.start()
            await self._own()
        finally:
            self._ended.set()

    async def _own(self) -> None:
        scanning = asyncio.create_task(self._scanning())
        tasks = [scanning, asyncio.create_task(self._renewing()), asyncio.create_task(self._holding_app())]
        if self._watchdog:
            tasks.append(asyncio.create_task(self._watching()))
        try:
            await self._stopping.wait()
            await scanning  # it ends by itself, after the claims that are under way
            await self._leave()
        finally:
            for held in self._snapshot:
                self._lose(held, "the worker ended")
            for task in (*tasks, *self._tasks):
                task.cancel()
            await asyncio.gather(*tasks, *self._tasks, return_exceptions=True)

    async def stop(self, timeout: timedelta) -> None:
        """Hand everything over, within ``timeout`` plus a few storage calls; returns when :meth:`run` has ended."""
        if self._loop is None:
            return
        self._stop_limit = timeout
        self._stopping.set()
        await self._ended.wait()

    async def _leave(self) -> None:
        """Graceful stop: drain all, release, so that others take within one scan (T50, K58)."""
        await self._quietly(self._members.renew(self._member, leaving=True))
        for held in self._snapshot:
            self._begin_drain(held, "the worker stops", self._stop_limit)
        drains = [held.drain for held in self._snapshot if held.drain is not None]
        if drains:
            await asyncio.wait(drains)
        await self._quietly(self._release_app())
        await self._quietly(self._members.withdraw(self._me))

    async def _release_app(self) -> None:
        """The lease is common to all workers of the app: only the last one lets it go."""
        roster = await self._members.watch()
        if all(member.worker == self._me for member in roster.live):
            await self._app.release()

    async def _quietly(self, call: Awaitable[None]) -> None:
        """A last courtesy: bounded, and its failure costs others some waiting only."""
        with suppress(StorageError, TimeoutError):
            async with asyncio.timeout(max(1.0, self._deadline)):
                await call

    # --- the age of leases ----------------------------------------------------------------------------------------

    def expire(self) -> float:
        """End every tenure past its give-up age (T20). From any thread; does no I/O.

        :returns: seconds after which it must be called again.
        """
        soonest = self._give_up
        for held in self._snapshot:
            left = held.tenure.left()
            if left <= 0:
                self._lose(held, f"no renewal was confirmed for {self._give_up:g} s")
            elif not held.tenure.ended:
                soonest = min(soonest, left)
        return max(0.01, soonest)

    async def _watching(self) -> None:
        while True:
            await self._clock.sleep(self.expire())

    # --- renewals: first, in parallel, under a deadline, at their own pace ------------------------------------------

    async def _renewing(self) -> None:
        retry = min(self._renew_every, self._deadline / 2)
        while True:
            began = self._clock.monotonic()
            self._ask_host()
            self._look_for_stuck()
            leaving = self._stopping.is_set()
            done = await asyncio.gather(
                *(self._attempt("partition_not_renewed", partial(self._renew, held), held) for held in self._snapshot),
                self._attempt("member_not_renewed", partial(self._members.renew, self._member, leaving=leaving)),
            )
            pause = self._renew_every * self._rng.uniform(0.85, 1.0) if all(done) else retry
            await self._clock.sleep(began + pause - self._clock.monotonic())

    async def _attempt(self, event: str, call: Callable[[], Awaitable[None]], held: _Held | None = None) -> bool:
        """One bounded try. Whatever fails keeps its lease until give-up, and is tried again soon (T18)."""
        try:
            async with asyncio.timeout(self._deadline):
                await call()
        except (StorageError, TimeoutError) as error:
            where = {} if held is None else {"partition": held.tenure.partition, "left": round(held.tenure.left(), 1)}
            log.warning(event, error=str(error) or type(error).__name__, **where)
            return False
        except Exception:
            log.exception(event)
            return False
        return True

    async def _renew(self, held: _Held) -> None:
        async with held.lock:
            for _ in range(_WRITES):
                if held.tenure.ended:
                    return
                lease, sent = self._renewed(held.tenure), self._clock.monotonic()
                try:
                    held.tenure.renewed(await self._leases.write(lease), sent)
                    self.figures.renewed(self._clock.monotonic() - sent)
                except Conflict:
                    await self._reread(held)
                except NotFound:
                    self._lose(held, "its row was deleted")
                else:
                    return
            raise Conflict(f"the lease of partition {held.tenure.partition} keeps being changed by others")

    def _renewed(self, tenure: LeaseTenure) -> Lease:
        service = self._services.get(tenure.partition, NO_SERVICE)
        return tenure.lease.renewed(self._clock.utc_now(), self._times.take, draining=tenure.draining, service=service)

    def _look_for_stuck(self) -> None:
        """What is renewed and not served is worse than lost: nobody else may take it (K12, E70)."""
        for held in self._snapshot:
            unpolled = self._services.get(held.tenure.partition, NO_SERVICE).unpolled
            if unpolled > self._stuck and not held.tenure.draining:
                log.error("partition_not_polled", partition=held.tenure.partition, seconds=round(unpolled, 1))
                self.figures.stuck += 1
                self._begin_drain(held, f"its queue was not polled for {unpolled:.0f} s", DRAIN)

    async def _reread(self, held: _Held) -> None:
        """Somebody changed the row: an ask, an own write whose answer was lost, or the end (T13).

        The age stays that of the last confirmed renewal; what was read only tells whose the row is.
        """
        tenure = held.tenure
        current = await self._leases.read(tenure.queue)
        if current is None:
            self._lose(held, "its row was deleted")
        elif not current.same_tenure(tenure.lease):
            self._lose(held, f"it was taken by {current.owner}" if current.owner else "it was taken away")
        else:
            tenure.lease = current
            self._heed(held, current)

    # --- handover ---------------------------------------------------------------------------------------------------

    def _heed(self, held: _Held, lease: Lease) -> None:
        if lease.next_owner == NOBODY:
            self._begin_drain(held, f"kicked {lease.kicked_by or ''}".rstrip(), DRAIN)
        elif lease.next_owner not in (None, self._me):
            self._begin_drain(held, f"handed over to {lease.next_owner}", DRAIN)

    def _begin_drain(self, held: _Held, reason: str, limit: timedelta) -> None:
        if held.tenure.ask():
            log.info("partition_asked", partition=held.tenure.partition, reason=reason)
            self._tell(self._listener.asked, held.tenure)
            held.drain = self._spawn(self._drain(held, reason, limit.total_seconds()))

    async def _drain(self, held: _Held, reason: str, limit: float) -> None:
        """Asked → draining → given up, bounded. The tenure ends before its row is released: never two readers."""
        await self._attempt("partition_not_marked", partial(self._renew, held), held)
        if not await self._within(held.over, limit):
            log.warning("partition_not_drained", partition=held.tenure.partition, seconds=limit)
        self._lose(held, reason)
        await self._release(held, reason)  # also after a loss by age: if the row is still ours, others need not wait
        self._forget(held)

    async def _release(self, held: _Held, reason: str) -> None:
        """Give the row up. A failure makes others wait for the take time, nothing else (T44)."""
        tenure = held.tenure
        for _ in range(_WRITES):
            if await self._attempt("partition_not_released", partial(self._write_release, held, reason), held):
                return
            with suppress(StorageError, TimeoutError):
                async with asyncio.timeout(self._deadline):
                    current = await self._leases.read(tenure.queue)
                if current is None or not current.same_tenure(tenure.lease):
                    return
                tenure.lease = current

    async def _write_release(self, held: _Held, reason: str) -> None:
        async with held.lock:
            await self._leases.write(held.tenure.lease.given_up(reason))

    # --- scans ------------------------------------------------------------------------------------------------------

    async def _scanning(self) -> None:
        while not self._stopping.is_set():
            began, least = self._clock.monotonic(), 0.0
            try:
                async with asyncio.timeout(max(self._deadline, self._renew_every)):
                    await self._scan()
                self._slowness = 1.0
                pause = self._pace()
            except Throttled as error:  # scans slow down, renewals do not (T81)
                least, self._slowness = 1.0, min(_SLOWEST, self._slowness * 2)
                pause = max(self._scan_every * self._slowness, error.retry_after)
                log.warning("scan_throttled", next_in=round(pause, 1))
            except (StorageError, TimeoutError) as error:
                least, pause = 1.0, self._scan_every  # E14
                log.warning("scan_failed", error=str(error) or type(error).__name__)
            except Exception:
                least, pause = 1.0, self._scan_every
                log.exception("scan_failed")
            pause *= self._rng.uniform(0.9, 1.1)
            await self._collect(began + pause)
            await self._within(self._stopping, max(least, began + pause - self._clock.monotonic()))

    def _pace(self) -> float:
        """The next scan: sooner when a lease runs out before it. Else an orphan would wait for up to two (T87)."""
        return min(self._scan_every, self._runs_out + self._scan_every / 20)

    async def _collect(self, until: float) -> None:
        """While partitions are on their way here, look at these alone, ten times as often as a scan.

        Else each would be served by nobody for up to a scan. Only for a while: whoever should hand over may be stuck.
        """
        step = max(0.1, self._scan_every / 10)
        take = self._times.take.total_seconds()
        while self._waiting_since is not None and not self._stopping.is_set():
            now = self._clock.monotonic()
            if until - now <= step or now - self._waiting_since > take:
                return
            await self._within(self._stopping, step * self._rng.uniform(0.9, 1.1))
            try:
                async with asyncio.timeout(self._deadline):
                    await self._take_released()
            except (StorageError, TimeoutError) as error:
                log.debug("handover_not_seen", error=str(error) or type(error).__name__)
                return
            except Exception:
                log.exception("handover_not_seen")
                return

    async def _take_released(self) -> None:
        leases = await self._leases.asked(self._me, self._waiting_for)
        if not leases:
            self._waiting_since = None
        released = [lease for lease in leases if lease.owner is None and lease.partition not in self._held]
        if released and not self._stopping.is_set() and await self._app_held():
            await asyncio.gather(*(self._take(lease, 0.0) for lease in released))

    async def _scan(self) -> None:
        leases = [lease for lease in await self._leases.scan() if lease.partition < self._partitions]
        roster = await self._members.watch()
        controls = await self._controls.read()
        now = self._clock.monotonic()
        dead = self._dead()
        self._check_held(leases)
        self._sightings.keep([lease.queue for lease in leases])
        silence = {lease.partition: self._sightings.note(lease.queue, lease.life, now) for lease in leases}
        left = (self._times.take.total_seconds() - silence[lease.partition] for lease in leases if lease.owner)
        self._runs_out = min((seconds for seconds in left if seconds > 0), default=float("inf"))
        self._waiting_for = {
            lease.queue for lease in leases if lease.next_owner == self._me and lease.owner not in (None, self._me)
        }
        self._waiting_since = (self._waiting_since or now) if self._waiting_for else None
        await self._bury(roster, dead)
        if "orchestrator" in self._member.roles and await self._app_held():
            workers = {member.worker: member for member in roster.live}
            wanted = orders(controls, {*workers, self._me, *(lease.owner for lease in leases if lease.owner)})
            await self._act(leases, silence, roster, dead, wanted)

    async def _act(
        self,
        leases: Sequence[Lease],
        silence: Mapping[int, float],
        roster: Roster,
        dead: Collection[str],
        ordered: Orders,
    ) -> None:
        rows = [
            standing(
                lease,
                me=self._me,
                held=lease.partition in self._held,
                unchanged=silence[lease.partition],
                take=self._times.take.total_seconds(),
                patience=2.5 * self._scan_every,
                dead=dead,
            )
            for lease in leases
        ]
        members = _participants(leases, roster, {row.partition for row in rows if row.free}, dead) | {self._me}
        weights = {member.worker: member.weight for member in (*roster.live, self._member)}
        seats = {
            worker: Seat(
                weight=weights.get(worker, 1),
                cap=ordered.caps.get(worker),
                newcomer=worker in roster.newcomers and worker != self._me,
            )
            for worker in members - ordered.drained
        }
        decided = plan(rows, seats, self._me, ordered.rules)
        wanted = (row for row in rows if row.free and row.partition not in ordered.rules.offline)
        self.figures.seen(max((silence[row.partition] for row in wanted), default=0.0))
        by_number = {lease.partition: lease for lease in leases}
        if self._stopping.is_set():
            return
        for number in decided.shed:
            if number in self._held:
                self._begin_drain(self._held[number], self._why(number, ordered), DRAIN)
        await asyncio.gather(
            *(self._take(by_number[number], silence[number]) for number in decided.take),
            *(self._ask(by_number[number]) for number in decided.ask),
        )

    def _why(self, partition: int, ordered: Orders) -> str:
        """Why a partition is given up although nobody has asked for it."""
        if partition in ordered.rules.offline:
            return "it was taken offline"
        if self._me in ordered.drained:
            return "this worker is drained"
        return "above the cap" if ordered.rules.allow(partition, self._me) else "prohibited to this worker"

    def _check_held(self, leases: Iterable[Lease]) -> None:
        """What the scan says of own partitions: asked for, taken, or gone from the table (T40, T47)."""
        found = {lease.partition: lease for lease in leases}
        for held in self._snapshot:
            lease = found.get(held.tenure.partition)
            if held.tenure.ended:
                continue
            if lease is None:
                self._lose(held, "its row was deleted")
            elif lease.owner not in (None, self._me):
                self._lose(held, f"it was taken by {lease.owner}")
            elif lease.same_tenure(held.tenure.lease):
                self._heed(held, lease)

    async def _take(self, lease: Lease, unchanged: float) -> None:
        sent = self._clock.monotonic()
        claim = lease.claimed(self._me, self._clock.utc_now(), self._times.take)
        try:
            claimed = await self._leases.write(claim)
        except (Conflict, NotFound):
            log.debug("partition_taken_by_another", partition=lease.partition)  # normal, not an error (E76)
            return
        except StorageError as error:  # never taken as ownership (E57); if it was written, the next scan says so
            log.warning("partition_not_taken", partition=lease.partition, error=str(error))
            return
        over = asyncio.Event()
        tenure = LeaseTenure(
            lease=claimed, sent=sent, give_up=self._give_up, clock=self._clock, on_drained=lambda: self._post(over.set)
        )
        if tenure.left() <= 0:
            return  # the answer came too late to act on
        change = self._change(lease)
        self.figures.taken(change)
        log.info(
            "partition_owner_changed",
            partition=lease.partition,
            previous=claimed.previous,
            owner=self._me,
            change=change,
            reason=lease.released,
            silent=round(unchanged, 1),
            epoch=tenure.epoch,
        )
        self._tell(self._listener.taken, tenure)
        self._held[lease.partition] = _Held(tenure, over)
        self._snapshot = tuple(self._held.values())

    def _change(self, lease: Lease) -> str:
        """In a word, why the partition was free to take (E77)."""
        if lease.owner is None:
            return "new" if lease.previous is None else "handed over" if lease.next_owner == self._me else "released"
        if lease.owner == self._me:
            return "resumed"
        return "taken over" if lease.owner in self._dead() else "expired"

    async def _ask(self, lease: Lease) -> None:
        try:
            await self._leases.write(lease.asked(self._me))
        except StorageError as error:
            log.debug("partition_not_asked_for", partition=lease.partition, error=str(error))
            return
        self._waiting_for.add(lease.queue)
        self._waiting_since = self._waiting_since or self._clock.monotonic()

    def _dead(self) -> Collection[str]:
        listed = self._predecessors
        dead = listed() if callable(listed) else listed
        return frozenset(dead) - {self._me}

    async def _bury(self, roster: Roster, dead: Collection[str]) -> None:
        """Workers proven dead leave the list at once."""
        for member in (*roster.live, *roster.silent):
            if member.worker in dead:
                await self._members.withdraw(member.worker)

    # --- the app lease ----------------------------------------------------------------------------------------------

    async def _holding_app(self) -> None:
        while True:
            await self._clock.sleep(RENEW)
            await self._attempt("app_lease_not_renewed", self._renew_app)

    async def _renew_app(self) -> None:
        sent = self._clock.monotonic()
        try:
            await self._app.renew()
        except HubError as error:
            self._app_sent = None
            log.error("app_lease_lost", error=str(error))
            for held in self._snapshot:
                self._begin_drain(held, "another app holds the hub", DRAIN)
        else:
            self._app_sent = sent

    async def _app_held(self) -> bool:
        """Whether partitions may be taken; after an outage longer than the app lease it is asked for first."""
        if self._app_sent is not None and self._clock.monotonic() - self._app_sent > SECONDS:
            await self._renew_app()
        return self._app_sent is not None

    # --- the listener -------------------------------------------------------------------------------------------------

    def _lose(self, held: _Held, reason: str) -> bool:
        """End a tenure and report it, once; from any thread. Whether this call did."""
        if not held.tenure.end(reason):
            return False
        self.figures.lost += 1
        log.info("partition_lost", partition=held.tenure.partition, reason=reason, epoch=held.tenure.epoch)
        self._tell(self._listener.lost, held.tenure, reason)
        self._post(held.over.set)
        if held.drain is None:  # a drain forgets it once the row is released
            self._post(lambda: self._forget(held))
        return True

    def _forget(self, held: _Held) -> None:
        if self._held.get(held.tenure.partition) is held:
            del self._held[held.tenure.partition]
            self._snapshot = tuple(self._held.values())

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        """A listener's error is its own: it is reported and ends nothing (T23, T49)."""
        try:
            callback(*arguments)
        except Exception:
            log.exception("listener_failed", callback=callback.__name__)

    def _ask_host(self) -> None:
        """What the host says of itself and of its partitions' loads; the last good answer is true enough (T23)."""
        try:
            self._member = self._describe()
            self._services = self._ask_services()
        except Exception:
            log.exception("member_unknown")

    # --- tasks ----------------------------------------------------------------------------------------------------

    def _post(self, callback: Callable[[], object]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended, and everything with it
            self._loop.call_soon_threadsafe(callback)

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _within(self, event: asyncio.Event, seconds: float) -> bool:
        """Whether the event came within ``seconds`` by this worker's clock."""
        waits = {asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._clock.sleep(seconds))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return event.is_set()


def _participants(
    leases: Iterable[Lease], roster: Roster, free: Collection[int], dead: Collection[str]
) -> frozenset[str]:
    """Who counts for fair shares: listed members, and whoever renews a lease (.NET, or a row that was removed).

    Not: who leaves, who is proven dead, whose leases have all fallen silent.
    """
    owners = {lease.owner for lease in leases if lease.owner and lease.partition not in free}
    gone = {lease.owner for lease in leases if lease.owner and lease.partition in free} - owners
    listed = {member.worker for member in roster.live if "orchestrator" in member.roles}
    leaving = {lease.owner for lease in leases if lease.owner and lease.draining and not lease.next_owner}
    return frozenset((listed | owners) - gone - leaving - roster.leaving - set(dead))
