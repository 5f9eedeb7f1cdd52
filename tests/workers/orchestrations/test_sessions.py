"""Batches and sessions: one per instance, never two episodes at once, nothing forgotten."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskhub.engine.events import EventRaised, ExecutionResumed, ExecutionSuspended, TaskCompleted
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.reader import ControlReader
from airflow_provider_taskhub.workers.dispatch import Dispatcher
from airflow_provider_taskhub.workers.orchestrations.sessions import (
    LONGEST_WAIT,
    MAX_BATCH,
    PASSED_OVER,
    Session,
    Sessions,
    next_batch,
)
from tests.hub.by_hand import GEN0, NOW, held, raised, start


class Buffer:
    """The part of a reader that sessions use."""

    def __init__(self) -> None:
        self.out: list[Delivery] = []
        self.released: list[Delivery] = []

    def taken(self, messages: Any) -> None:
        self.out.extend(messages)

    def untaken(self, messages: Any) -> None:
        for message in messages:
            self.out.remove(message)

    def release(self, messages: Any) -> None:
        self.released.extend(messages)


def reader() -> ControlReader:
    return Buffer()  # type: ignore[return-value]


def answer(number: int = 0) -> TaskCompleted:
    return TaskCompleted(timestamp=NOW, task_scheduled_id=number)


@pytest.mark.rows("K16")
def test_a_batch_is_in_the_order_of_the_queue() -> None:
    late, early, middle = held(raised(), at=3), held(raised(), at=1), held(answer(), at=2)
    assert next_batch([late, early, middle]) == ([early, middle, late], [])


def sent(process: str | None, number: int, *, place: int, at: float = 0.0, event: type = EventRaised) -> Delivery:
    """An event of a process, or of a client that names none, at a place of the queue."""
    named = {"name": "go"} if event is EventRaised else {}
    message = held(event(timestamp=NOW, taskhub_process=process, **named), at=at)
    message.envelope = replace(message.envelope, sequence_number=number)
    message.place = place
    return message


@pytest.mark.rows("K16", "K46")
def test_numbers_of_two_processes_are_not_compared() -> None:
    """Each was sent after the answer to the one before, in one second; the second process has just begun to count."""
    queue = [
        sent("one", 108, place=1),
        sent("two", 1, place=2, event=ExecutionSuspended),
        sent("one", 109, place=3, event=ExecutionResumed),
        sent("two", 2, place=4),
    ]
    for arrived in permutations(queue):
        assert next_batch(arrived) == (queue, [])


@pytest.mark.rows("K16")
def test_what_one_process_has_sent_is_in_its_order_whatever_its_places_are() -> None:
    """A checkpoint puts its messages in parallel, so the later one can be in the queue first, a second earlier even."""
    third, other, first = sent("one", 3, place=1), sent("two", 9, place=2), sent("one", 1, place=4, at=1.0)
    second, nobodys = sent("one", 2, place=3), sent(None, 0, place=9, at=1.0)
    assert next_batch([third, other, second, first, nobodys])[0] == [first, other, second, third, nobodys]


@pytest.mark.rows("D07", "K16")
def test_what_names_no_process_is_in_the_order_of_the_queue() -> None:
    """Two .NET clients count apart too, and their messages do not say which of them sent one."""
    queue = [sent(None, number, place=place) for place, number in enumerate((7, 1, 8, 2), 1)]
    assert next_batch(reversed(queue)) == (queue, [])


@pytest.mark.rows("K16")
@given(st.data())
def test_the_order_does_not_depend_on_what_arrived_first(data: st.DataObject) -> None:
    senders = data.draw(st.lists(st.sampled_from(["one", "two", "three", None]), max_size=12))
    numbers = data.draw(st.permutations(range(len(senders))))
    queue = [
        sent(sender, number, place=place, at=place // 4)
        for place, (sender, number) in enumerate(zip(senders, numbers, strict=True), 1)
    ]
    batch, _ = next_batch(queue)
    assert next_batch(data.draw(st.permutations(queue)))[0] == batch
    assert [message.process for message in batch] == [message.process for message in queue], "each keeps its places"
    for sender in set(senders) - {None}:
        own = [message.envelope.sequence_number for message in batch if message.process == sender]
        assert own == sorted(own)
    assert [m for m in batch if not m.process] == [m for m in queue if not m.process]


@pytest.mark.rows("K16")
def test_a_second_start_opens_a_batch_of_its_own() -> None:
    one, first = held(start(), execution_id=GEN0, at=1), held(raised(), at=2)
    two, second = held(start("b" * 32), at=3), held(raised(), at=4)
    assert next_batch([second, two, first, one]) == ([one, first], [two, second])


@pytest.mark.rows("K57")
@pytest.mark.parametrize("execution_id", [None, GEN0])
def test_what_overtook_its_start_joins_it(execution_id: str | None) -> None:
    event, begun = held(raised(), execution_id=execution_id, at=1), held(start(), execution_id=GEN0, at=2)
    assert next_batch([event, begun]) == ([begun, event], [])


@pytest.mark.rows("K16")
def test_what_is_of_the_generation_before_a_start_goes_before_it() -> None:
    old, begun = held(answer(), execution_id="c" * 32, at=1), held(start(), execution_id=GEN0, at=2)
    assert next_batch([begun, old]) == ([old], [begun])


@pytest.mark.rows("K37")
def test_what_is_gone_is_in_no_batch() -> None:
    gone, there = held(raised()), held(raised())
    gone.gone = True
    assert next_batch([gone, there]) == ([there], [])


@pytest.mark.rows("K14")
@pytest.mark.parametrize("begin", [[], [held(start(), execution_id=GEN0, at=-1)]], ids=["events", "start first"])
def test_a_batch_is_bounded_and_loses_nothing(begin: list[Delivery]) -> None:
    messages = begin + [held(raised(), at=number) for number in range(MAX_BATCH + 7)]
    batch, rest = next_batch(messages)
    assert batch + rest == messages
    assert len(batch) == MAX_BATCH


@pytest.mark.rows("D19", "K19", "K24")
async def test_messages_for_an_instance_in_memory_wait_for_its_episode() -> None:
    sessions: Sessions[str] = Sessions()
    mine = reader()
    first, second = held(raised()), held(raised())
    sessions.deliver(mine, first, now=0.0)
    session, batch = await sessions.next()
    assert batch == [first]
    sessions.deliver(mine, second, now=0.0)
    other = asyncio.ensure_future(sessions.next())
    await asyncio.sleep(0)
    assert not other.done(), "one episode at a time"
    sessions.keep(session, "live", 10)
    sessions.done(session, now=1.0)
    again, batch = await other
    assert (again, batch, again.state) == (session, [second], "live")


@pytest.mark.rows("K24")
async def test_an_episode_of_a_former_tenure_is_waited_for() -> None:
    sessions: Sessions[str] = Sessions()
    before, after = reader(), reader()
    sessions.deliver(before, held(raised()), now=0.0)
    old, _ = await sessions.next()
    assert sessions.close(before) == []
    message = held(raised())
    sessions.deliver(after, message, now=0.0)
    new = asyncio.ensure_future(sessions.next())
    await asyncio.sleep(0)
    assert not new.done(), "the instance's episode of the former tenure is still under way"
    settled = asyncio.ensure_future(sessions.settled(before))
    await asyncio.sleep(0)
    assert not settled.done()
    sessions.done(old, now=1.0)
    session, batch = await new
    await settled
    assert (session.reader, batch) == (after, [message])


@pytest.mark.rows("D21")
async def test_all_that_waits_for_one_instance_is_handled_before_the_next_one() -> None:
    sessions: Sessions[str] = Sessions()
    mine = reader()
    for number in range(3):
        for name in ("first", "second"):
            sessions.deliver(mine, held(raised(str(number)), instance_id=name), now=0.0)
    turns = []
    for _ in range(2):
        session, batch = await sessions.next()
        turns.append((session.instance_id, [message.message.event.name for message in batch]))  # type: ignore[attr-defined]
        sessions.done(session, now=0.0)
    assert turns == [("first", ["0", "1", "2"]), ("second", ["0", "1", "2"])]


@pytest.mark.rows("D22")
async def test_an_instance_with_endless_events_lets_others_have_their_turn_after_each_batch() -> None:
    sessions: Sessions[str] = Sessions()
    mine = reader()

    def flood() -> None:
        for _ in range(2 * MAX_BATCH):
            sessions.deliver(mine, held(raised(), instance_id="endless"), now=0.0)

    flood()
    for name in ("a", "b"):
        sessions.deliver(mine, held(raised(), instance_id=name), now=0.0)
    turns = []
    for _ in range(6):
        session, batch = await sessions.next()
        turns.append((session.instance_id, len(batch)))
        flood()
        sessions.done(session, now=0.0)
    assert turns == [("endless", MAX_BATCH), ("a", 1), ("b", 1), *[("endless", MAX_BATCH)] * 3]


class Stage:
    """Processes the episodes of sessions, each in three steps of the event loop. :ivar most: so many at once."""

    def __init__(self, sessions: Sessions[str]) -> None:
        self._sessions = sessions
        self.running = self.most = 0
        self.ended: list[str] = []

    async def next(self) -> tuple[Session[str], list[Delivery]]:
        return await self._sessions.next()

    async def process(self, item: tuple[Session[str], list[Delivery]]) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        self.ended.append(item[0].instance_id)
        self._sessions.done(item[0], now=0.0)


@pytest.mark.rows("D17", "D18", "D25")
@pytest.mark.parametrize("limit", [1, 4])
async def test_a_fixed_number_of_episodes_at_once_handles_any_number_of_instances_whatever_their_ids(
    limit: int,
) -> None:
    """All ids have the same remainder: no place in the worker is bound to some of them, so none is idle."""
    sessions: Sessions[str] = Sessions()
    names = [str(number) for number in range(0, 400, 4)]
    stage = Stage(sessions)
    running, partition = asyncio.create_task(Dispatcher("episodes", stage, limit).run()), reader()
    for name in names:
        sessions.deliver(partition, held(raised(), instance_id=name), now=0.0)
    for _ in range(20 * len(names)):
        await asyncio.sleep(0)
    running.cancel()
    assert sorted(stage.ended) == sorted(names)
    assert stage.most == limit


@pytest.mark.rows("D22")
async def test_who_has_begun_goes_on_before_others_begin_but_not_for_ever() -> None:
    """Live sessions that are always ready let a new one pass after three of them, and each kind keeps its order."""
    sessions: Sessions[str] = Sessions()
    partition = reader()
    for name in ("live-1", "live-2"):
        sessions.deliver(partition, held(answer(), instance_id=name), now=0.0)
        session, _ = await sessions.next()
        sessions.keep(session, "alive")
        sessions.done(session, now=0.0)
    for number in range(3):
        sessions.deliver(partition, held(start(), instance_id=f"new-{number}"), now=0.0)
    for name in ("live-1", "live-2"):
        sessions.deliver(partition, held(answer(), instance_id=name), now=0.0)
    order = []
    for _ in range(10):
        session, _ = await sessions.next()
        order.append(session.instance_id)
        sessions.done(session, now=1.0)
        if session.state is not None:
            sessions.deliver(partition, held(answer(), instance_id=session.instance_id), now=0.0)
    alive = ["live-1", "live-2"] * 4
    assert order == [*alive[:3], "new-0", *alive[3:6], "new-1", *alive[6:8]]
    assert PASSED_OVER == 3


@pytest.mark.rows("K15")
async def test_closing_returns_what_no_episode_has_taken_and_empties_the_buffer() -> None:
    sessions: Sessions[str] = Sessions()
    mine = reader()
    taken, waiting, elsewhere = held(raised()), held(raised()), held(raised(), instance_id="j")
    sessions.deliver(mine, taken, now=0.0)
    session, _ = await sessions.next()
    sessions.deliver(mine, waiting, now=0.0)
    sessions.deliver(mine, elsewhere, now=0.0)
    left = sessions.close(mine)
    assert {message.message_id for message in left} == {waiting.message_id, elsewhere.message_id}
    assert len(mine.out) == 3  # type: ignore[attr-defined]
    sessions.done(session, now=0.0)
    assert len(sessions) == 0


async def _idle(sessions: Sessions[str], mine: ControlReader, name: str, size: int, now: float) -> Session[str]:
    sessions.deliver(mine, held(raised(), instance_id=name), now=0.0)
    session, _ = await sessions.next()
    sessions.keep(session, f"{name}{now:g}", size)
    sessions.done(session, now=now)
    return session


@pytest.mark.rows("K22")
async def test_idle_sessions_are_evicted_by_size_oldest_first() -> None:
    dropped: list[str] = []
    sessions: Sessions[str] = Sessions(limit_bytes=100, dropped=dropped.append)
    mine = reader()
    for number, name in enumerate("abc"):
        await _idle(sessions, mine, name, 40, float(number))
    assert dropped == ["a0"]
    await _idle(sessions, mine, "b", 40, 3.0)  # used again: c is the oldest now
    await _idle(sessions, mine, "d", 40, 4.0)
    assert dropped == ["a0", "b1", "c2"], "what b had was replaced when it was used again"
    assert len(sessions) == 2


@pytest.mark.rows("K22", "K23")
async def test_what_idled_is_ended_once_and_is_the_first_to_go_when_memory_is_short() -> None:
    rested: list[str] = []
    dropped: list[str] = []
    sessions: Sessions[str] = Sessions(limit_bytes=100, rested=rested.append, dropped=dropped.append)
    mine = reader()
    for number, name in enumerate("ab"):
        await _idle(sessions, mine, name, 40, float(number))
    assert sessions.evict_idle(before=1.0) == 1
    assert sessions.evict_idle(before=1.0) == 0
    assert (rested, dropped, len(sessions)) == (["a0"], [], 2)
    await _idle(sessions, mine, "a", 40, 2.0)  # live again
    assert sessions.evict_idle(before=2.0) == 1
    assert rested == ["a0", "b1"]
    await _idle(sessions, mine, "c", 40, 3.0)
    assert dropped == ["a0", "b1"]
    assert sessions.close(mine) == []
    assert dropped == ["a0", "b1", "a2", "c3"]
    assert len(sessions) == 0


@pytest.mark.rows("K22")
async def test_eviction_at_the_limit_looks_at_no_more_sessions_than_it_drops() -> None:
    """At the limit every episode evicts: a look at all sessions would make each step cost as much as there are."""
    dropped: list[str] = []
    sessions: Sessions[str] = Sessions(limit_bytes=1000, dropped=dropped.append)
    mine = reader()
    waiting = [held(raised(), instance_id=f"waiting-{number}") for number in range(500)]
    for message in waiting:
        sessions.deliver(mine, message, now=0.0)
    looked = 0

    class Counted(Session[str]):
        __slots__ = ()

        def __getattribute__(self, name: str) -> object:
            nonlocal looked
            looked += 1
            return super().__getattribute__(name)

    for _ in waiting:
        session, _ = await sessions.next()
        sessions.keep(session, session.instance_id, 10)
        sessions.done(session, now=0.0)
    assert (len(sessions), len(dropped)) == (100, 400)
    for session in sessions._sessions.values():
        session.__class__ = Counted
    sessions.deliver(mine, held(raised(), instance_id="next"), now=0.0)
    session, _ = await sessions.next()
    sessions.keep(session, "next", 10)
    sessions.done(session, now=1.0)
    assert (len(sessions), dropped[400:]) == (100, ["waiting-400"])
    assert looked < 50


@pytest.mark.rows("K22")
async def test_what_was_evicted_for_its_size_was_used_least_recently() -> None:
    dropped: list[str] = []
    sessions: Sessions[str] = Sessions(limit_bytes=100, dropped=dropped.append)
    mine = reader()
    await _idle(sessions, mine, "a", 40, 0.0)
    await _idle(sessions, mine, "b", 40, 1.0)
    sessions.deliver(mine, held(raised(), instance_id="a"), now=0.0)
    busy, _ = await sessions.next()  # has a message: it does not rest, however long ago it did
    await _idle(sessions, mine, "c", 40, 2.0)
    assert dropped == ["b1"]
    sessions.keep(busy, "a3", 40)
    sessions.done(busy, now=3.0)
    await _idle(sessions, mine, "d", 40, 4.0)
    assert dropped == ["b1", "a0", "c2"]


@pytest.mark.rows("K22")
async def test_an_active_session_is_never_evicted() -> None:
    sessions: Sessions[str] = Sessions(limit_bytes=10)
    sessions.deliver(reader(), held(raised()), now=0.0)
    session, _ = await sessions.next()
    sessions.keep(session, "live", 1000)
    assert sessions.evict_idle(before=1e9) == 0
    assert sessions.get("i") is session


@pytest.mark.rows("K37")
async def test_messages_that_have_all_gone_leave_a_live_session_alone() -> None:
    sessions: Sessions[str] = Sessions()
    mine = reader()
    session = await _idle(sessions, mine, "i", 1, 0.0)
    gone = held(raised())
    gone.gone = True
    sessions.deliver(mine, gone, now=0.0)
    waiting = asyncio.ensure_future(sessions.next())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sessions.get("i") is session
    assert session.state == "i0"
    assert gone in mine.released  # type: ignore[attr-defined]
    waiting.cancel()


async def _ends(sessions: Sessions[str], *waits: Delivery, now: float = 0.0) -> list[Delivery]:
    """Run the next episode, at whose end some messages go on waiting for another one. Return its batch."""
    session, batch = await sessions.next()
    assert sessions.hold(session, waits, batch, now=now) == ()
    sessions.done(session, now=now)
    return batch


@pytest.mark.rows("K16")
async def test_what_waits_for_another_message_is_judged_with_it_and_leaves_room_for_it() -> None:
    sessions: Sessions[str] = Sessions()
    mine = reader()
    second, first = held(raised(), at=1), held(raised())
    sessions.deliver(mine, second, now=0.0)
    assert await _ends(sessions, second) == [second]
    assert mine.out == [second], "it does not count in the buffer"  # type: ignore[attr-defined]
    idle, until_held = asyncio.ensure_future(sessions.next()), asyncio.ensure_future(sessions.until_held())
    await asyncio.sleep(0)
    assert not idle.done(), "nothing new has come"
    assert until_held.done()
    sessions.deliver(mine, first, now=0.0)
    _, batch = await idle
    assert batch == [first, second]
    watch = asyncio.ensure_future(sessions.until_held())
    await asyncio.sleep(0)
    assert not watch.done(), "nothing waits any more"
    watch.cancel()
    assert len(mine.out) == 2  # type: ignore[attr-defined]


@pytest.mark.rows("K16")
async def test_what_has_waited_too_long_is_judged_once_more() -> None:
    sessions: Sessions[str] = Sessions()
    mine = reader()
    early, late = held(raised()), held(raised(), at=1)
    for now, message in ((1.0, early), (2.0, late)):
        sessions.deliver(mine, message, now=now)
        await _ends(sessions, *([early] if message is early else [early, late]), now=now)
    sessions.end_waits(now=LONGEST_WAIT + 0.5)
    assert not early.waited
    sessions.end_waits(now=LONGEST_WAIT + 1.5)
    assert (early.waited, late.waited) == (True, False)
    assert await _ends(sessions, late) == [early, late]
    assert sessions.close(mine) == [late]
    assert len(sessions) == 0


@pytest.mark.rows("K14", "K16")
async def test_more_than_a_batch_that_waits_is_judged_once_each_time() -> None:
    sessions: Sessions[str] = Sessions()
    mine = reader()
    waits = [held(raised(), at=1 + number) for number in range(MAX_BATCH + 7)]
    for message in waits:
        sessions.deliver(mine, message, now=0.0)
    assert await _ends(sessions, *waits[:MAX_BATCH]) == waits[:MAX_BATCH]
    again = [*waits[: MAX_BATCH // 2], *waits[MAX_BATCH:]]
    assert await _ends(sessions, *again) == again
    idle = asyncio.ensure_future(sessions.next())
    await asyncio.sleep(0)
    assert not idle.done(), "all are judged, and nothing new has come"
    first = held(raised())
    sessions.deliver(mine, first, now=0.0)
    session, batch = await idle
    assert batch == [first, *waits[: MAX_BATCH // 2]]
    assert sessions.hold(session, [], batch, now=0.0) == ()
    sessions.done(session, now=0.0)
    assert await _ends(sessions) == waits[MAX_BATCH // 2 :], "what has waited is judged after an episode with others"


@pytest.mark.rows("K15", "K16")
async def test_a_closed_session_keeps_nothing_waiting() -> None:
    sessions: Sessions[str] = Sessions()
    mine = reader()
    message = held(raised())
    sessions.deliver(mine, message, now=0.0)
    session, batch = await sessions.next()
    assert sessions.close(mine) == []
    assert list(sessions.hold(session, [message], batch, now=0.0)) == [message]
    sessions.done(session, now=0.0)
    assert len(sessions) == 0
