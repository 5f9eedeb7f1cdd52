"""Prefetch, receipts, renewal, giving back, quarantine: over a store in memory under a jumping clock."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import structlog

from airflow_provider_taskhub import virtual_time
from airflow_provider_taskhub.codec import compress
from airflow_provider_taskhub.engine.events import EventRaised, EventType
from airflow_provider_taskhub.errors import NotFound, Throttled, Unavailable
from airflow_provider_taskhub.hub.formats.message_envelope import encode, spill
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.hub.partitions.administration import create_hub
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues import reader as control
from airflow_provider_taskhub.hub.queues.delivery import (
    GIVE_BACK_PARALLEL,
    Delivery,
    VisibilityRenewer,
    renew,
)
from airflow_provider_taskhub.hub.queues.pacing import Load, PollingBackoff, admit
from airflow_provider_taskhub.hub.queues.reader import CONTROL_EVENTS, WORK_EVENTS, ControlReader, Reader, ReaderContext
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore, at, late, lost, refused, throttled
from airflow_provider_taskhub.storage.primitives import (
    DeleteBlob,
    DeleteMessage,
    Message,
    PutMessage,
    Store,
    UpdateMessage,
)
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import VirtualClock
from tests.hub.by_hand import NAMES, Stay, held, raised

QUEUE = NAMES.control(0)
VISIBILITY = timedelta(seconds=4)


# --- pure ---------------------------------------------------------------------------------------------------------


@pytest.mark.rows("K14")
@pytest.mark.parametrize(
    ("buffered", "size", "expected"),
    [(0, 0, 64), (48, 0, 16), (49, 0, 0), (64, 0, 0), (70, 0, 0), (0, 999, 64), (0, 1000, 0)],
)
def test_no_more_is_asked_for_than_the_buffer_takes(buffered: int, size: int, expected: int) -> None:
    assert admit(buffered=buffered, buffered_bytes=size, limit=64, limit_bytes=1000) == expected


@pytest.mark.rows("K38")
def test_polling_backs_off_as_the_original_and_a_message_resets_it() -> None:
    backoff, draw = PollingBackoff(ceiling=30.0), random.Random(1)
    waits = [backoff.next(draw) for _ in range(14)]
    nominal = [0.05, 0.1, 0.15, 0.25, 0.45, 0.85, 1.65, 3.25, 6.45, 12.85, 25.65, 30.0, 30.0, 30.0]
    assert waits == pytest.approx(nominal, rel=0.21)
    assert max(waits) <= 30.0
    backoff.received()
    assert backoff.next(draw) == 0.05


@pytest.mark.rows("T76")
def test_the_load_is_messages_a_second_over_about_a_minute() -> None:
    load = Load(began=0.0)
    rates = []
    for second in range(1, 301):
        load.count += 4
        rates.append(load(float(second)))
    steady = rates[-1]
    assert rates[:59] == [None] * 59, "not known within the first minute"
    assert None not in rates[59:]
    assert steady == pytest.approx(4.0, rel=0.02)
    assert load(300.0) == steady, "asked twice at one moment"
    load.count += 40
    burst, late = load(301.0), load(900.0)
    assert burst is not None
    assert burst < 5.0, "a burst of a second is no load"
    assert late is not None
    assert late < 0.01


# --- over a store -------------------------------------------------------------------------------------------------


def context(store: Store, clock: VirtualClock) -> ReaderContext:
    return ReaderContext(
        store=store, names=NAMES, clock=clock, visibility=VISIBILITY, max_polling=timedelta(seconds=30)
    )


class Desk:
    """A reader of one partition and what it delivers."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.store, self.clock, self.tenure = store, VirtualClock(), Stay(QUEUE)
        self.got: list[Delivery] = []
        given: dict[str, Any] = {"limit": 64, "limit_bytes": 1 << 20} | options
        self.reader = ControlReader(
            context(store, self.clock),
            tenure=self.tenure,
            deliver=lambda _, message: self.got.append(message),
            **given,
        )
        self.task = asyncio.ensure_future(self.reader.run())

    async def put(self, message: Delivery | str) -> None:
        text = message if isinstance(message, str) else encode(message.envelope)
        await self.store.execute(PutMessage(queue=QUEUE, text=text))

    async def end(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


def play(work: Callable[[Desk], Awaitable[Any]], plan: Any = lambda call: None, **options: Any) -> Any:
    return _played(work, plan, **options)[0]


def said(work: Callable[[Desk], Awaitable[Any]], plan: Any = lambda call: None) -> list[Any]:
    """Play, and return what was logged."""
    return list(_played(work, plan)[1])


def _played(work: Callable[[Desk], Awaitable[Any]], plan: Any, **options: Any) -> tuple[Any, list[Any]]:
    async def main() -> Any:
        with structlog.testing.capture_logs() as logs:
            async with SqliteStore(None, clock=VirtualClock()) as inner:
                await create_hub(inner, NAMES, 1, clock=VirtualClock())
                desk = Desk(FaultyStore(inner, plan, clock=VirtualClock()), **options)
                try:
                    return await work(desk), logs
                finally:
                    await desk.end()

    played: tuple[Any, list[Any]] = virtual_time.run(main(), limit=timedelta(hours=3))
    return played


@pytest.mark.rows("K14", "K58")
def test_a_queue_is_starved_when_it_waits_for_room_and_for_nothing_else() -> None:
    async def work(desk: Desk) -> None:
        await asyncio.sleep(100.0)  # the queue is empty: the reader naps for half a minute now
        desk.reader.buffered = 5
        await asyncio.sleep(1.0)
        assert not desk.reader.starved
        desk.reader.buffered = 0
        for _ in range(12):
            await desk.put(held(raised()))
        await asyncio.sleep(0.1)
        assert desk.reader.buffered >= 4
        assert not desk.reader.starved
        await asyncio.sleep(3.0)
        assert desk.reader.starved
        desk.reader.taken(desk.got[:3])
        await asyncio.sleep(0.1)
        assert desk.reader.buffered >= 4
        assert not desk.reader.starved

    play(work, limit=5)


@pytest.mark.rows("D107", "D14", "D92", "K14", "K15")
def test_the_buffer_is_bounded_and_room_comes_with_what_is_taken() -> None:
    async def work(desk: Desk) -> None:
        for _ in range(12):
            await desk.put(held(raised()))
        await asyncio.sleep(3.0)
        assert (len(desk.got), desk.reader.buffered) == (5, 5)
        assert desk.reader.buffered_bytes == sum(message.size for message in desk.got)
        desk.reader.taken(desk.got[:3])
        await asyncio.sleep(1.0)
        assert len(desk.got) == 8
        desk.reader.taken(desk.got[3:])
        assert (desk.reader.buffered, desk.reader.buffered_bytes) == (0, 0)

    play(work, limit=5)


def test_a_stop_does_not_wait_for_a_reader_that_was_ended_before_its_first_receive() -> None:
    async def work(desk: Desk) -> None:
        await asyncio.sleep(1.0)  # it asks what is in quarantine, and is not answered
        desk.task.cancel()
        async with asyncio.timeout(60.0):
            await desk.reader.stop()

    play(work, plan=lambda call: Fault(delay=3600.0) if call.kind == "table.query" else None)


def test_a_reader_waits_as_long_as_the_store_asks_and_a_stop_does_not() -> None:
    asked: list[float] = []

    def plan(call: Call) -> Fault | None:
        if call.kind != "queue.receive":
            return None
        asked.append(asyncio.get_running_loop().time())
        return throttled(20.0)

    async def work(desk: Desk) -> None:
        await asyncio.sleep(50.0)
        began = desk.clock.monotonic()
        await desk.reader.stop()
        assert desk.clock.monotonic() - began < 1.0

    play(work, plan=plan)
    assert [after - before for before, after in pairwise(asked)] == pytest.approx([20.0, 20.0], abs=0.1)


def test_a_message_that_meets_a_defect_stops_no_other_and_is_quarantined_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoding = control.decode_message

    async def odd(store: Store, names: HubNames, queue: str, message: Message, claimed: float) -> Delivery:
        if '"odd"' in message.text:
            raise RuntimeError("a defect")
        return await decoding(store, names, queue, message, claimed)

    monkeypatch.setattr(control, "decode_message", odd)

    async def work(desk: Desk) -> None:
        await desk.put(held(raised(name="odd")))
        for _ in range(3):
            await desk.put(held(raised()))
        await asyncio.sleep(2.0)
        assert len(desk.got) == 3
        await asyncio.sleep(3600.0)
        assert len(await quarantine.listing(desk.store, NAMES)) == 1
        await desk.put(held(raised()))
        await asyncio.sleep(40.0)
        assert len(desk.got) == 4

    play(work)


def test_a_message_that_cannot_be_handed_on_comes_again() -> None:
    async def work(desk: Desk) -> None:
        refused = []

        def deliver(_: ControlReader, message: Delivery) -> None:
            if not refused:
                refused.append(message)
                raise RuntimeError("a defect")
            desk.got.append(message)

        desk.reader._forward = deliver
        await desk.put(held(raised()))
        await desk.put(held(raised()))
        await asyncio.sleep(60.0)
        assert len(desk.got) == 2

    play(work)


def test_a_defect_in_one_renewal_ends_no_other() -> None:
    async def work(desk: Desk) -> None:
        for _ in range(2):
            await desk.put(held(raised()))
        await asyncio.sleep(60.0)
        assert len(desk.got) == 2
        assert not [message for message in desk.got if message.dequeue_count > 1], "both stayed invisible"

    renewals = 0

    def plan(call: Call) -> Fault | None:
        nonlocal renewals
        renewals += call.kind == "queue.update"
        return Fault(before=RuntimeError("a defect")) if call.kind == "queue.update" and renewals == 1 else None

    play(work, plan=plan)
    assert renewals > 20


@pytest.mark.rows("K12", "E70")
def test_progress_is_a_poll_or_room_that_is_made() -> None:
    async def work(desk: Desk) -> None:
        def age() -> float:
            return desk.clock.monotonic() - desk.reader.progressed

        await asyncio.sleep(100.0)
        assert age() <= 37.0, "an empty queue is polled within the longest interval"
        for _ in range(3):
            await desk.put(held(raised()))
        await asyncio.sleep(200.0)
        assert age() > 150.0, "a buffer that is full and stays full"
        desk.reader.taken(desk.got[:1])
        assert age() == 0.0

    play(work, limit=2)


@pytest.mark.rows("K12", "E70")
@pytest.mark.parametrize(
    ("fault", "progress"),
    [
        (refused(), False),
        (lost(), False),
        (Fault(delay=30.0, before=Unavailable("no answer (fault)")), False),
        (throttled(), False),
        (Fault(before=NotFound("no such queue (fault)")), True),
    ],
    ids=["refused", "answer lost", "hangs", "throttled", "no queue"],
)
def test_a_poll_is_progress_when_it_is_answered(fault: Fault, progress: bool) -> None:
    """That the store has no such queue is an answer: another worker would hear the same.

    If the store is busy, this worker may be the only one that it refuses. The owner of the partition finds it out.
    """

    async def work(desk: Desk) -> tuple[float, bool]:
        await asyncio.sleep(200.0)
        return desk.clock.monotonic() - desk.reader.progressed, desk.reader.refused

    age, is_refused = play(work, plan=lambda call: fault if call.kind == "queue.receive" else None)
    assert age <= 2.0 if progress else age == 200.0
    assert is_refused == isinstance(fault.before, Throttled)


@pytest.mark.rows("K39")
def test_what_is_held_is_renewed_and_nobody_else_gets_it() -> None:
    async def work(desk: Desk) -> None:
        await desk.put(held(raised()))
        await asyncio.sleep(60.0)
        assert len(desk.got) == 1
        assert desk.got[0].dequeue_count == 1
        assert await desk.store.receive(QUEUE, limit=1, visibility=VISIBILITY) == []

    play(work)


@pytest.mark.rows("K39")
@pytest.mark.parametrize("fault", [refused, throttled], ids=["refused", "throttled"])
def test_a_renewal_that_fails_once_is_tried_again_before_anybody_can_receive_the_message(fault: Any) -> None:
    renewals, deaf = at(2, fault(), kind="queue.update"), False

    async def work(desk: Desk) -> None:
        nonlocal deaf
        await desk.put(held(raised()))
        await asyncio.sleep(0.5)
        (message,), deaf = desk.got, True  # what becomes visible stays so
        for _ in range(60):
            await asyncio.sleep(0.5)
            assert await desk.store.peek(QUEUE) == []
        await desk.store.execute(DeleteMessage(queue=QUEUE, message=message))
        assert await desk.store.count(QUEUE) == 0

    play(work, lambda call: refused() if deaf and call.kind == "queue.receive" else renewals(call))


@pytest.mark.rows("K39")
@pytest.mark.parametrize("fault", [late(20.0), Fault(pause=2.5)], ids=["not done", "not answered"])
def test_a_slow_renewal_is_asked_for_again_and_holds_up_no_other(fault: Fault) -> None:
    slow, deaf = at(3, fault, kind="queue.update"), False

    async def work(desk: Desk) -> None:
        nonlocal deaf
        for _ in range(24):
            await desk.put(held(raised()))
        await asyncio.sleep(0.5)
        deaf = True  # what becomes visible stays so
        for _ in range(60):
            await asyncio.sleep(0.5)
            assert await desk.store.peek(QUEUE) == []
        for message in desk.got:
            await desk.store.execute(DeleteMessage(queue=QUEUE, message=message))
        assert (len(desk.got), await desk.store.count(QUEUE)) == (24, 0)

    play(work, lambda call: refused() if deaf and call.kind == "queue.receive" else slow(call))


@pytest.mark.rows("K37", "K39")
def test_a_renewal_whose_answer_is_lost_is_made_good_by_the_redelivery() -> None:
    """Its receipt is nobody's; the message becomes visible, and is known when it is received again."""

    async def work(desk: Desk) -> None:
        await desk.put(held(raised()))
        await asyncio.sleep(30.0)
        (message,) = desk.got
        await desk.store.execute(DeleteMessage(queue=QUEUE, message=message))
        assert await desk.store.count(QUEUE) == 0

    play(work, at(2, lost(), kind="queue.update"))


@pytest.mark.rows("K37", "K39")
def test_a_renewal_that_is_answered_behind_the_redelivery_does_not_replace_its_newer_receipt() -> None:
    async def work(desk: Desk) -> None:
        await desk.put(held(raised()))
        await asyncio.sleep(0.5)
        (message,) = desk.got
        newest = message.receipt.next_visible
        for _ in range(300):
            await asyncio.sleep(0.1)
            assert message.receipt.next_visible >= newest
            newest = message.receipt.next_visible
        assert (len(desk.got), message.gone) == (1, False)
        await desk.store.execute(DeleteMessage(queue=QUEUE, message=message))
        assert await desk.store.count(QUEUE) == 0

    play(work, at(1, Fault(pause=VISIBILITY.total_seconds() + 2.0), kind="queue.update"))


@pytest.mark.rows("K37", "K39")
@pytest.mark.parametrize("pause", [Fault(pause=0.6), late(0.6)], ids=["answer on the way", "request on the way"])
def test_what_is_deleted_during_its_renewal_does_not_come_again(pause: Fault) -> None:
    begun: list[Call] = []

    def slow(call: Call) -> Fault | None:
        if call.kind != "queue.update" or begun:
            return None
        begun.append(call)
        return pause

    async def work(desk: Desk) -> None:
        await desk.put(held(raised()))
        while not begun:  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        sent = desk.store.requests["queue.update"]
        await desk.store.execute(desk.got[0].deletion())
        desk.reader.release(desk.got)
        assert await desk.store.count(QUEUE) == 0
        await asyncio.sleep(60.0)
        assert desk.store.requests["queue.update"] - sent <= 1, "what is deleted is not renewed again"

    assert not [one for one in said(work, slow) if one["event"] == "deletion_refused"]


@pytest.mark.rows("K37", "K39")
@pytest.mark.parametrize("comes_again", ["before the deletion", "after the deletion"])
def test_a_message_whose_work_is_done_is_deleted_when_it_comes_again(comes_again: str) -> None:
    """The answer of its renewal was lost, and with it the valid receipt."""

    async def work(desk: Desk) -> None:
        await desk.put(held(raised()))
        await asyncio.sleep(0.5)
        (message,) = desk.got
        await desk.store.execute(
            UpdateMessage(queue=QUEUE, message=message.receipt, visibility=timedelta(seconds=2), claimed=True)
        )
        if comes_again == "before the deletion":
            await desk.reader.stop()  # it is received, and the reader has not heard of it
            await asyncio.sleep(2.5)
            (again,) = await desk.store.receive(QUEUE, limit=1, visibility=VISIBILITY)
            await desk.store.execute(message.deletion())
            message.receipt = again.receipt
            desk.reader.release([message])
            await asyncio.sleep(0.5)
        else:
            await desk.store.execute(message.deletion())
            desk.reader.release([message])
            await asyncio.sleep(60.0)
        assert (len(desk.got), await desk.store.count(QUEUE)) == (1, 0)

    refused = [one for one in said(work) if one["event"] == "deletion_refused"]
    assert len(refused) == (comes_again == "after the deletion")


def test_the_deletions_that_were_refused_are_not_remembered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_LEFT", 2)

    async def work(desk: Desk) -> None:
        for _ in range(3):
            await desk.put(held(raised()))
        await asyncio.sleep(0.5)
        for message in desk.got:
            await desk.store.execute(
                UpdateMessage(queue=QUEUE, message=message.receipt, visibility=timedelta(seconds=2), claimed=True)
            )
            await desk.store.execute(message.deletion())
        desk.reader.release(desk.got)
        await asyncio.sleep(60.0)
        assert len(desk.got) == 4, "the first one was forgotten, and is delivered again"

    play(work)


@pytest.mark.rows("K58", "K39")
def test_a_reader_that_ends_hears_the_answers_of_its_renewals() -> None:
    """Without the receipt of a renewal the message could not be given back."""
    begun: list[Call] = []

    def slow(call: Call) -> Fault | None:
        if call.kind != "queue.update" or begun:
            return None
        begun.append(call)
        return Fault(pause=0.6)

    async def work(desk: Desk) -> None:
        await desk.put(held(raised()))
        while not begun:  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        desk.task.cancel()
        await desk.reader.give_back(desk.got)
        assert await _all(desk.store) == [0]

    play(work, slow)


@pytest.mark.rows("K37")
def test_a_redelivery_of_what_is_held_replaces_the_receipt() -> None:
    async def work(desk: Desk) -> None:
        await desk.put(held(raised()))
        await asyncio.sleep(0.5)
        message, before = desk.got[0], desk.got[0].receipt
        # a renewal was lost: the message is visible again although it is held
        await desk.store.execute(_visible(message))
        await asyncio.sleep(2.0)
        assert len(desk.got) == 1, "delivered once"
        assert message.receipt.pop_receipt != before.pop_receipt
        assert not message.gone
        await desk.store.execute(DeleteMessage(queue=QUEUE, message=message))

    play(work)


def _visible(message: Delivery) -> Any:
    return UpdateMessage(queue=QUEUE, message=message.receipt, visibility=timedelta(0))


@pytest.mark.rows("K39")
def test_a_message_that_somebody_deleted_is_gone() -> None:
    async def work(desk: Desk) -> None:
        await desk.put(held(raised()))
        await asyncio.sleep(0.5)
        message = desk.got[0]
        await desk.store.execute(DeleteMessage(queue=QUEUE, message=message.receipt))
        assert await renew(desk.store, message, VISIBILITY, desk.clock) is False
        assert message.gone
        renewer = VisibilityRenewer(desk.store, desk.clock, VISIBILITY)
        renewer.add(message)
        sent = desk.store.requests["queue.update"]
        await desk.reader.give_back([message])
        assert desk.store.requests["queue.update"] == sent, "there is nothing to give back"

    play(work)


@pytest.mark.rows("K58", "K35")
def test_what_is_given_back_is_there_at_once_or_after_its_delay() -> None:
    async def work(desk: Desk) -> None:
        for _ in range(40):
            await desk.put(held(raised()))
        await asyncio.sleep(2.0)
        await desk.reader.stop()
        assert len(desk.reader.held()) == 40
        await desk.reader.give_back(desk.got[:20])
        await desk.reader.give_back(desk.got[20:], delay=timedelta(seconds=10), failed=True)
        assert desk.reader.held() == ()
        now = await _all(desk.store)
        assert sorted(now) == [0] * 20
        await asyncio.sleep(9.0)
        assert await _all(desk.store) == []
        await asyncio.sleep(1.5)
        assert await _all(desk.store) == [1] * 20, "one failed processing more, counted in the message"

    play(work)


@pytest.mark.rows("D11", "K16", "K58")
def test_what_is_given_back_keeps_its_place() -> None:
    """It comes again behind others, or to another worker, and the queue's times have whole seconds."""

    async def work(desk: Desk) -> None:
        for number in range(4):
            await desk.put(held(raised(str(number))))
        await asyncio.sleep(1.0)
        before = {message.message_id: message.place for message in desk.got}
        first, *others = desk.got
        await desk.reader.give_back([first], delay=timedelta(seconds=5))
        await desk.put(held(raised("new")))
        await asyncio.sleep(1.0)
        await desk.reader.stop()
        await desk.reader.give_back(others)
        await desk.end()
        again = Desk(desk.store)
        await asyncio.sleep(10.0)
        await again.end()
        places = {message.message_id: message.place for message in again.got}
        assert {name: place for name, place in places.items() if name in before} == before
        assert [names_of(message) for message in sorted(again.got, key=lambda held: held.place)] == [*"0123", "new"]

    play(work)


def names_of(message: Delivery) -> str:
    event = message.message.event
    assert isinstance(event, EventRaised)
    return event.name


@pytest.mark.rows("K58", "K39")
def test_what_is_given_back_during_its_renewal_is_there_at_once() -> None:
    """The renewal is done and its answer on the way: it has replaced the receipt."""

    begun: list[Call] = []

    def slow(call: Call) -> Fault | None:
        if call.kind != "queue.update" or begun:
            return None
        begun.append(call)
        return Fault(pause=0.6)

    async def work(desk: Desk) -> None:
        await desk.put(held(raised()))
        while not begun:  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        await desk.reader.stop()
        await desk.reader.give_back(desk.got)
        assert await _all(desk.store) == [0]

    play(work, slow)


@pytest.mark.rows("K58", "K39")
def test_what_is_given_back_does_not_wait_for_slow_renewals_of_others() -> None:
    slow = GIVE_BACK_PARALLEL
    begun: list[Call] = []

    def plan(call: Call) -> Fault | None:
        if call.kind != "queue.update" or len(begun) == slow:
            return None
        begun.append(call)
        return Fault(pause=0.9)

    async def work(desk: Desk) -> None:
        for _ in range(slow + 8):
            await desk.put(held(raised()))
        while len(begun) < slow:  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(0.1)
        await desk.reader.stop()
        going = asyncio.ensure_future(desk.reader.give_back(desk.got))
        await asyncio.sleep(0.1)
        assert len(await desk.store.peek(QUEUE)) == 8
        await going
        assert len(await desk.store.peek(QUEUE)) == slow + 8

    play(work, plan)


async def _all(store: Store) -> list[int]:
    """Failures counted in everything that can be received now."""
    from airflow_provider_taskhub.hub.formats.message_envelope import decode

    found: list[int] = []
    while messages := await store.receive(QUEUE, limit=32, visibility=timedelta(hours=1)):
        found.extend(decode(message.text).failures for message in messages)
    return found


@pytest.mark.rows("K42")
def test_an_undecodable_message_goes_to_quarantine_and_the_others_are_delivered() -> None:
    async def work(desk: Desk) -> None:
        await desk.put("nonsense")
        await desk.put(held(raised("good")))
        await asyncio.sleep(1.0)
        assert len(desk.got) == 1
        (kept,) = await quarantine.listing(desk.store, NAMES)
        assert (kept.queue, kept.text, kept.dequeue_count) == (QUEUE, "nonsense", 1)
        assert "neither JSON nor Base64" in kept.cause
        assert await desk.store.count(QUEUE) == 1

    play(work)


CONTROL = {
    "ExecutionStarted",
    "ExecutionTerminated",
    "ExecutionSuspended",
    "ExecutionResumed",
    "ExecutionRewound",
    "EventRaised",
    "GenericEvent",
    "TaskCompleted",
    "TaskFailed",
    "SubOrchestrationInstanceCompleted",
    "SubOrchestrationInstanceFailed",
    "TimerFired",
}
"""Events that DurableTask puts into control queues. The work-item queue has TaskScheduled; the rest is in histories."""


def message_with(event_type: EventType) -> str:
    """A message with an event of a type, and every member that some type requires."""
    instance = {"InstanceId": "i", "ExecutionId": "e"}
    event = {
        "EventType": int(event_type),
        "EventId": 1,
        "Timestamp": "2026-03-01T12:00:00Z",
        "FireAt": "2026-03-01T12:00:00Z",
        "Name": "n",
        "InstanceId": "i",
        "OrchestrationInstance": instance,
        "OrchestrationStatus": 1,
        "TaskScheduledId": 1,
        "TimerId": 1,
    }
    return json.dumps({"TaskMessage": {"Event": event, "OrchestrationInstance": instance}})


@pytest.mark.rows("K42")
@pytest.mark.parametrize("carries", [CONTROL_EVENTS, WORK_EVENTS], ids=["control queue", "work items"])
@pytest.mark.parametrize("event_type", EventType, ids=lambda event_type: event_type.name)
def test_what_a_queue_never_carries_goes_to_quarantine(event_type: EventType, carries: Collection[EventType]) -> None:
    async def work(desk: Desk) -> None:
        await desk.end()
        reader = Reader(
            context(desk.store, desk.clock),
            queue=QUEUE,
            carries=carries,
            room=lambda: 10,
            deliver=desk.got.append,
        )
        desk.task = asyncio.ensure_future(reader.run())
        text = message_with(event_type)
        await desk.put(text)
        await asyncio.sleep(1.0)
        kept = [(item.text, event_type.name in item.cause) for item in await quarantine.listing(desk.store, NAMES)]
        got = [held.message.event.event_type for held in desk.got]
        expected = event_type.name in (CONTROL if carries is CONTROL_EVENTS else {"TaskScheduled"})
        assert (got, kept) == (([event_type], []) if expected else ([], [(text, True)]))

    play(work)


@pytest.mark.rows("K42", "K30")
def test_a_spilled_message_is_fetched_and_one_without_its_blob_is_kept() -> None:
    async def work(desk: Desk) -> None:
        big = held(raised("x" * 60_000))
        text, blob = spill(big.envelope, NAMES.large_messages)
        assert blob is not None
        await desk.store.execute(blob)
        await desk.put(text)
        await asyncio.sleep(1.0)
        assert desk.got[0].message.event == big.message.event
        assert desk.got[0].envelope.blob_name == blob.name, "given back, it is the wrapper again"
        await desk.store.execute(DeleteBlob(container=NAMES.large_messages, name=blob.name))
        await desk.put(text)
        await asyncio.sleep(1.0)
        (kept,) = await quarantine.listing(desk.store, NAMES)
        assert "does not exist" in kept.cause

    play(work)


@pytest.mark.rows("K42")
def test_a_broken_payload_is_kept_and_one_that_cannot_be_read_now_is_read_later() -> None:
    async def work(desk: Desk) -> None:
        text, blob = spill(held(raised("x" * 60_000)).envelope, NAMES.large_messages)
        assert blob is not None
        await desk.store.execute(blob)
        await desk.put(text)
        await asyncio.sleep(1.0)
        assert desk.got == []
        assert await quarantine.listing(desk.store, NAMES) == []
        await asyncio.sleep(8.0)
        assert len(desk.got) == 1

    play(work, at(1, refused(), kind="blob.get"))


@pytest.mark.rows("K42")
def test_bytes_too_large_for_a_row_are_kept_in_a_blob() -> None:
    text = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=150_000))
    assert len(compress(text)) > quarantine.INLINE_BYTES

    async def work(desk: Desk) -> None:
        item = quarantine.Quarantined(
            queue=QUEUE, message_id="m", cause="c", text=text, dequeue_count=3, inserted=held(raised()).inserted
        )
        await quarantine.keep(desk.store, NAMES, item, held(raised()).deletion())
        (kept,) = await quarantine.listing(desk.store, NAMES)
        assert replace(kept, since=None, etag="", blobs=item.blobs) == item

    play(work)


@pytest.mark.rows("K35")
@pytest.mark.parametrize(("failures", "kept"), [(quarantine.MAX_FAILURES, 0), (quarantine.MAX_FAILURES + 1, 1)])
def test_a_message_with_too_many_failures_goes_to_quarantine(failures: int, kept: int) -> None:
    from dataclasses import replace

    async def work(desk: Desk) -> None:
        message = held(raised())
        await desk.put(encode(replace(message.envelope, failures=failures)))
        await asyncio.sleep(1.0)
        listed = await quarantine.listing(desk.store, NAMES)
        assert (len(desk.got), len(listed)) == (1 - kept, kept)
        assert all(item.instance_id == message.message.instance.instance_id for item in listed)

    play(work)


@pytest.mark.rows("K35", "K43")
def test_a_message_that_is_put_back_begins_its_wait_for_a_function_again() -> None:
    from dataclasses import replace

    async def work(desk: Desk) -> None:
        message = held(raised())
        spent = replace(message.envelope, failures=quarantine.MAX_FAILURES + 1, waiting_since=message.inserted)
        await desk.put(encode(spent))
        await asyncio.sleep(1.0)
        (kept,) = await quarantine.listing(desk.store, NAMES)
        assert "TaskHubWaitingSince" in kept.text
        found = await quarantine.find(desk.store, NAMES, kept.message_id)
        assert found is not None
        await quarantine.put_back(desk.store, NAMES, found)
        await asyncio.sleep(1.0)
        (again,) = desk.got
        assert (again.envelope.failures, again.envelope.waiting_since) == (0, None)

    play(work)


@pytest.mark.parametrize(("begun", "kept"), [(True, 1), (False, 0)])
def test_deliveries_are_limited_but_for_those_that_began_nothing(begun: bool, kept: int) -> None:
    """What kills its process each time comes to an end; what only waits for somebody does not."""

    async def work(desk: Desk) -> None:
        await desk.put(held(raised()))
        for _ in range(quarantine.MAX_DELIVERIES):
            await asyncio.sleep(1.0)
            message = desk.got.pop()
            desk.reader.taken([message])
            await desk.reader.give_back([message], begun=begun)
        await asyncio.sleep(1.0)
        assert (len(desk.got), len(await quarantine.listing(desk.store, NAMES))) == (1 - kept, kept)

    play(work)


@pytest.mark.rows("K15")
def test_a_reader_outlives_a_store_that_does_not_answer() -> None:
    async def work(desk: Desk) -> None:
        await asyncio.sleep(1.0)
        await desk.put(held(raised()))
        await asyncio.sleep(5.0)
        assert len(desk.got) == 1
        assert not desk.task.done()

    play(work, at(2, refused(), kind="queue.receive"))
