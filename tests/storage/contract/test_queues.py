"""Queues: visibility, receipts, dequeue counts, the arrival hint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import Conflict, InputError, NotFound, PayloadTooLarge
from airflow_provider_taskhub.storage.primitives import (
    DeleteMessage,
    Message,
    PutMessage,
    Receipt,
    Step,
    Store,
    Unit,
    UpdateMessage,
)
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from tests.storage.contract.conftest import a_few_requests
from tests.waiting import PATIENCE, until_async

Elapse = Callable[[float], Awaitable[None]]
LONG = timedelta(minutes=5)
SECOND = timedelta(seconds=1)
HOUR = 3600.0


async def put(store: Store, queue: str, text: str = "hello", visibility: timedelta = timedelta(0)) -> Receipt:
    receipt = await store.execute(PutMessage(queue=queue, text=text, visibility=visibility))
    assert isinstance(receipt, Receipt)
    return receipt


async def update(store: Store, queue: str, receipt: Receipt, visibility: timedelta, text: str | None = None) -> Receipt:
    renewed = await store.execute(UpdateMessage(queue=queue, message=receipt, visibility=visibility, text=text))
    assert isinstance(renewed, Receipt)
    return renewed


async def delete(store: Store, queue: str, receipt: Receipt, *, quiet: bool = False) -> bool:
    deleted = await store.execute(DeleteMessage(queue=queue, message=receipt, quiet=quiet))
    assert deleted in (receipt.message_id, None)
    return deleted is not None


async def receive_one(store: Store, queue: str, visibility: timedelta = LONG) -> Message:
    (message,) = await store.receive(queue, limit=32, visibility=visibility)
    return message


async def soon_received(store: Store, queue: str, elapse: Elapse) -> Message:
    """Receive again and again, from now on and while more than a second passes, until there is a message."""
    look = partial(store.receive, queue, limit=1, visibility=LONG)
    receiving = asyncio.ensure_future(until_async("a message is visible", look))
    await elapse(1.3)
    (message,) = await receiving
    return message


def received_at(message: Message) -> Timestamp:
    """The time of a receive with the visibility :data:`LONG`, by the clock of the storage service."""
    return message.receipt.next_visible + -LONG


async def test_queues_are_created_listed_by_prefix_and_deleted(store: Store, fresh: str) -> None:
    assert await store.create_queue(f"{fresh}-b") is True
    assert await store.create_queue(f"{fresh}-a") is True
    assert await store.create_queue(f"{fresh}-a") is False
    assert await store.list_queues(fresh) == [f"{fresh}-a", f"{fresh}-b"]
    await store.delete_queue(f"{fresh}-a")
    await store.delete_queue(f"{fresh}-a")  # an absent one is no error
    assert await store.list_queues(fresh) == [f"{fresh}-b"]


async def test_deleting_a_queue_deletes_its_messages(store: Store, queue: str) -> None:
    await put(store, queue)
    await store.delete_queue(queue)
    await store.create_queue(queue)
    assert await store.count(queue) == 0
    assert await store.peek(queue) == []


async def test_a_message_is_received_as_it_was_put_with_a_new_receipt(store: Store, queue: str) -> None:
    receipt = await put(store, queue, "one")
    message = await receive_one(store, queue)
    after = await put(store, queue, "two")
    assert message.text == "one"
    assert message.dequeue_count == 1
    assert message.receipt.message_id == receipt.message_id
    assert UUID(message.receipt.message_id)
    assert message.receipt.pop_receipt != receipt.pop_receipt
    assert message.inserted <= received_at(message) <= after.next_visible


@pytest.mark.parametrize(
    "text",
    ["", " spaces around ", "<a>&amp;\"'</a>", "\t tab\nline", "naïve 😀 日本", "]]>", "\x7f\x85\ufffd", '{"a":"x"}'],
)
async def test_text_comes_back_as_it_went(store: Store, queue: str, text: str) -> None:
    await put(store, queue, text)
    assert [message.text for message in await store.peek(queue)] == [text]
    assert (await receive_one(store, queue)).text == text


async def test_received_messages_are_invisible_to_others(store: Store, queue: str) -> None:
    for number in range(5):
        await put(store, queue, str(number))
    first = await store.receive(queue, limit=2, visibility=LONG)
    second = await store.receive(queue, limit=32, visibility=LONG)
    assert [message.text for message in (*first, *second)] == ["0", "1", "2", "3", "4"]
    assert await store.receive(queue, limit=32, visibility=LONG) == []
    assert await store.count(queue) == 5
    assert await store.peek(queue) == []


async def test_at_most_32_at_once(store: Store, queue: str) -> None:
    await asyncio.gather(*(put(store, queue, str(number)) for number in range(40)))
    first = await store.receive(queue, limit=32, visibility=LONG)
    second = await store.receive(queue, limit=32, visibility=LONG)
    assert (len(first), len(second)) == (32, 8)
    assert {message.text for message in (*first, *second)} == {str(number) for number in range(40)}


async def test_a_message_comes_back_after_its_visibility(store: Store, queue: str, elapse: Elapse) -> None:
    await put(store, queue)
    first = await receive_one(store, queue, SECOND)
    second = await soon_received(store, queue, elapse)
    assert received_at(second) >= first.receipt.next_visible
    assert (second.dequeue_count, second.text) == (2, "hello")
    assert second.inserted == first.inserted
    assert second.receipt.message_id == first.receipt.message_id
    with pytest.raises(Conflict):
        await delete(store, queue, first.receipt)
    await delete(store, queue, second.receipt)
    assert await store.count(queue) == 0


async def test_an_expired_receipt_is_good_until_somebody_else_receives(
    store: Store, queue: str, elapse: Elapse
) -> None:
    await put(store, queue)
    message = await receive_one(store, queue, SECOND)
    await elapse(1.3)
    await delete(store, queue, message.receipt)
    assert await store.count(queue) == 0


async def test_a_delayed_put_is_seen_later(store: Store, queue: str, elapse: Elapse) -> None:
    receipt = await put(store, queue, visibility=SECOND)
    assert await store.count(queue) == 1
    message = await soon_received(store, queue, elapse)
    assert received_at(message) >= receipt.next_visible > message.inserted
    assert message.dequeue_count == 1


async def test_an_invisible_put_is_a_claim(store: Store, queue: str) -> None:
    receipt = await put(store, queue, "claimed", LONG)
    assert await store.peek(queue) == []
    renewed = await update(store, queue, receipt, LONG, "changed")
    with pytest.raises(Conflict):
        await delete(store, queue, receipt)
    await delete(store, queue, renewed)
    assert await store.count(queue) == 0


async def test_update_renews_receipt_and_visibility(store: Store, queue: str) -> None:
    await put(store, queue, "before")
    message = await receive_one(store, queue)
    renewed = await update(store, queue, message.receipt, LONG)
    assert renewed.message_id == message.receipt.message_id
    assert renewed.pop_receipt != message.receipt.pop_receipt
    with pytest.raises(Conflict):
        await update(store, queue, message.receipt, LONG)
    back = await update(store, queue, renewed, timedelta(0), "after")
    again = await receive_one(store, queue)
    assert (again.text, again.dequeue_count) == ("after", 2)
    with pytest.raises(Conflict):
        await update(store, queue, back, LONG)


async def test_update_without_text_keeps_it(store: Store, queue: str) -> None:
    await put(store, queue, "kept")
    message = await receive_one(store, queue)
    await update(store, queue, message.receipt, timedelta(0))
    assert (await receive_one(store, queue)).text == "kept"


async def test_delete_of_a_missing_message(store: Store, queue: str) -> None:
    receipt = await put(store, queue)
    assert await delete(store, queue, receipt) is True
    with pytest.raises(NotFound):
        await delete(store, queue, receipt)
    with pytest.raises(NotFound):
        await update(store, queue, receipt, LONG)
    assert await delete(store, queue, receipt, quiet=True) is False


async def test_a_quiet_delete_with_a_stale_receipt_leaves_the_message(store: Store, queue: str) -> None:
    receipt = await put(store, queue)
    message = await receive_one(store, queue)
    assert await delete(store, queue, receipt, quiet=True) is False
    assert await store.count(queue) == 1
    assert await delete(store, queue, message.receipt, quiet=True) is True


@dataclass
class Holder:
    """As a worker holds a message."""

    receipt: Receipt
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    answers: list[bool] = field(default_factory=list)

    def deletion_answered(self, *, deleted: bool) -> None:
        assert self.changing.locked()
        self.answers.append(deleted)


@pytest.mark.parametrize("alone", [True, False], ids=["operation", "unit"])
async def test_a_deletion_waits_for_the_update_under_way_and_uses_its_receipt(
    store: Store, queue: str, alone: bool
) -> None:
    holder = Holder(await put(store, queue, visibility=LONG))
    deletion = DeleteMessage(queue=queue, message=holder, quiet=True)

    async def renew() -> None:
        async with holder.changing:
            renewed = await update(store, queue, holder.receipt, LONG)
            await asyncio.sleep(0)  # the answer is there, and its receipt is not stored yet
            holder.receipt = renewed

    async def delete() -> None:
        await asyncio.sleep(0)
        if alone:
            await store.execute(deletion)
        else:
            await store.commit(Unit(steps=(Step(name="delete", operations=(deletion,)),)))

    await asyncio.gather(renew(), delete())
    assert (holder.answers, await store.count(queue)) == ([True], 0)


async def test_a_holder_learns_that_its_deletion_was_refused(store: Store, queue: str) -> None:
    stale = await put(store, queue, visibility=LONG)
    newer = await update(store, queue, stale, LONG)
    holder = Holder(stale)
    deletion = DeleteMessage(queue=queue, message=holder, quiet=True)
    assert await store.execute(deletion) is None
    holder.receipt = newer
    assert await store.execute(deletion) == newer.message_id
    assert holder.answers == [False, True]


async def test_a_holder_is_asked_when_the_operation_is_carried_out(store: Store, queue: str) -> None:
    holder = Holder(await put(store, queue, visibility=LONG))
    operation = DeleteMessage(queue=queue, message=holder)
    holder.receipt = await update(store, queue, holder.receipt, LONG)
    await store.execute(operation)
    assert await store.count(queue) == 0


async def test_a_peek_shows_a_message_and_does_not_claim_it(store: Store, queue: str) -> None:
    receipt = await put(store, queue, "seen")
    for _ in range(2):
        (message,) = await store.peek(queue)
        assert (message.text, message.dequeue_count, message.receipt.pop_receipt) == ("seen", 0, "")
        assert message.receipt.message_id == receipt.message_id
    assert (await receive_one(store, queue)).dequeue_count == 1


async def test_peek_has_a_limit(store: Store, queue: str) -> None:
    for number in range(4):
        await put(store, queue, str(number))
    assert len(await store.peek(queue, limit=3)) == 3


async def test_an_absent_queue_is_not_found(store: Store, fresh: str) -> None:
    with pytest.raises(NotFound):
        await put(store, fresh)
    with pytest.raises(NotFound):
        await store.receive(fresh, limit=1, visibility=SECOND)
    with pytest.raises(NotFound):
        await store.peek(fresh)
    with pytest.raises(NotFound):
        await store.count(fresh)


async def test_concurrent_receivers_share_without_overlap(store: Store, queue: str) -> None:
    for number in range(30):
        await put(store, queue, str(number))
    parts = await asyncio.gather(*(store.receive(queue, limit=5, visibility=LONG) for _ in range(10)))
    texts = [message.text for part in parts for message in part]
    assert sorted(texts, key=int) == [str(number) for number in range(30)]


# --- sizes and values that Azure refuses, Azurite or not


async def test_64_kib_of_text_fit_and_no_byte_more(store: Store, queue: str) -> None:
    await put(store, queue, "x" * 65_536)
    assert len((await receive_one(store, queue)).text) == 65_536
    with pytest.raises(PayloadTooLarge, match="65537 bytes"):
        await put(store, queue, "x" * 65_537)
    with pytest.raises(PayloadTooLarge, match="65538 bytes"):  # UTF-8 counts
        await put(store, queue, "é" * 32_769)


@pytest.mark.parametrize("character", ["\x00", "\x0b", "\x1f", "\r", "\ufffe", "\ud800"])
async def test_characters_that_do_not_survive_xml_are_refused(store: Store, queue: str, character: str) -> None:
    with pytest.raises(InputError, match="XML cannot transport"):
        await put(store, queue, f"a{character}b")


@pytest.mark.parametrize("visibility", [timedelta(seconds=-1), timedelta(days=7, seconds=1)])
async def test_a_visibility_below_zero_or_above_seven_days_is_refused(
    store: Store, queue: str, visibility: timedelta
) -> None:
    with pytest.raises(InputError, match="0 to 7 days"):
        await put(store, queue, visibility=visibility)
    with pytest.raises(InputError, match="7 days"):
        await store.receive(queue, limit=1, visibility=visibility)


async def test_seven_days_are_allowed(store: Store, queue: str) -> None:
    receipt = await put(store, queue, visibility=timedelta(days=7))
    assert await store.peek(queue) == []
    await delete(store, queue, receipt)


async def test_receive_needs_a_visibility_and_a_limit_of_1_to_32(store: Store, queue: str) -> None:
    with pytest.raises(InputError, match="visibility"):
        await store.receive(queue, limit=1, visibility=timedelta(0))
    for limit in (0, 33):
        with pytest.raises(InputError, match="limit"):
            await store.receive(queue, limit=limit, visibility=SECOND)
        with pytest.raises(InputError, match="limit"):
            await store.peek(queue, limit=limit)


# --- arrival


async def test_arrival_times_out_on_an_empty_queue(store: Store, queue: str, elapse: Elapse) -> None:
    waiting = asyncio.ensure_future(store.arrival([queue], 0.2))
    await elapse(0.3)
    assert await waiting == []


async def test_arrival_wakes_on_a_put(store: Store, queue: str, fresh: str) -> None:
    await store.create_queue(f"{fresh}-other")
    waiting = asyncio.ensure_future(store.arrival([f"{fresh}-other", queue], HOUR))
    await a_few_requests(store)
    assert not waiting.done()
    await put(store, queue)
    assert await asyncio.wait_for(waiting, PATIENCE) == [queue]


async def test_arrival_sees_a_put_made_before_it(store: Store, queue: str) -> None:
    await store.receive(queue, limit=1, visibility=SECOND)
    await put(store, queue)
    assert await asyncio.wait_for(store.arrival([queue], HOUR), PATIENCE) == [queue]


async def test_arrival_wakes_when_a_message_is_given_back(store: Store, queue: str) -> None:
    await put(store, queue)
    message = await receive_one(store, queue)
    await store.receive(queue, limit=1, visibility=SECOND)  # what was heard of the put is consumed
    waiting = asyncio.ensure_future(store.arrival([queue], HOUR))
    await a_few_requests(store)
    assert not waiting.done()
    await update(store, queue, message.receipt, timedelta(0))
    assert await asyncio.wait_for(waiting, PATIENCE) == [queue]


async def test_arrival_wakes_when_a_delayed_message_is_due(
    store: Store, queue: str, fresh: str, elapse: Elapse
) -> None:
    await store.create_queue(f"{fresh}-other")
    await store.receive(queue, limit=1, visibility=LONG)
    delayed = await put(store, queue, visibility=SECOND)

    async def woken() -> Timestamp:
        assert await store.arrival([queue], HOUR) == [queue]
        return (await put(store, f"{fresh}-other")).next_visible

    waiting = asyncio.ensure_future(woken())
    await elapse(1.3)
    assert await asyncio.wait_for(waiting, PATIENCE) >= delayed.next_visible, "by the clock of the storage service"
    await soon_received(store, queue, elapse)


async def test_each_queue_request_is_counted_by_its_kind(store: Store, queue: str) -> None:
    store.requests.clear()
    await put(store, queue)
    message = await receive_one(store, queue)
    renewed = await update(store, queue, message.receipt, LONG)
    await store.peek(queue)
    await delete(store, queue, renewed)
    await store.receive(queue, limit=1, visibility=SECOND)
    assert dict(store.requests) == {
        "queue.put": 1,
        "queue.receive": 2,
        "queue.update": 1,
        "queue.peek": 1,
        "queue.delete": 1,
    }


# --- claims of the dead


def kept(store: Store) -> Store:
    """The same place, for a worker whose claims bear its name."""
    return store.held_by("dead@host/1") if isinstance(store, SqliteStore) else store


async def test_claims_of_the_dead_are_released_and_no_others(store: Store, queue: str) -> None:
    """What it received, renewed and put for itself; not what it delayed, gave back for later, or what others hold."""
    dead = kept(store)
    for text in ("received", "renewed", "back later"):
        await put(store, queue, text)
        message = await receive_one(dead, queue)
        if text == "renewed":
            await dead.execute(UpdateMessage(queue=queue, message=message.receipt, visibility=LONG, claimed=True))
        elif text == "back later":
            await update(dead, queue, message.receipt, LONG)
    await dead.execute(PutMessage(queue=queue, text="own", visibility=LONG, claimed=True))
    await put(dead, queue, "timer", LONG)
    await put(store, queue, "of the living")
    living = await receive_one(store, queue)
    assert await store.release_claims(["another@host/2"]) == 0
    assert await store.receive(queue, limit=32, visibility=LONG) == []
    released = await store.release_claims(["another@host/2", "dead@host/1"])
    if not store.local:
        assert released == 0, "Azure Storage does not know who holds a message"
        return
    assert released == 3
    messages = await store.receive(queue, limit=32, visibility=LONG)
    assert [message.text for message in messages] == ["received", "renewed", "own"], "in their old places"
    assert [message.dequeue_count for message in messages] == [2, 2, 1]
    await delete(store, queue, living.receipt)
    assert await store.release_claims(["dead@host/1"]) == 0, "a second look finds nothing"


async def test_a_receipt_of_the_dead_is_stale_once_its_claims_are_released(store: Store, queue: str) -> None:
    await put(store, queue)
    message = await receive_one(kept(store), queue)
    if not await store.release_claims(["dead@host/1"]):
        assert not store.local
        return
    with pytest.raises(Conflict, match="stale"):
        await delete(store, queue, message.receipt)


async def test_a_release_tells_who_waits_for_the_queue(store: Store, queue: str) -> None:
    if not store.local:
        assert await store.release_claims(["dead@host/1"]) == 0
        return
    await put(store, queue)
    await receive_one(kept(store), queue)
    waiting = asyncio.create_task(store.arrival([queue], HOUR))
    await asyncio.sleep(0)
    assert await store.release_claims(["dead@host/1"]) == 1
    async with asyncio.timeout(PATIENCE):
        assert await waiting
