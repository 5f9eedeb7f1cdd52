"""Wake-ups within a process: none lost between a receive and a wait, across threads, and bounded."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.storage.azure.local_wakeups import MAX_PENDING, Listener, LocalWakeups, bell_of
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.storage.primitives import Receipt, UpdateMessage


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_ring_ends_the_wait() -> None:
    bell, waiting = LocalWakeups(), asyncio.Event()
    listener = Listener(bell)

    async def wait() -> bool:
        waiting.set()
        return await listener.arrival(["a", "b"], 60)

    task = asyncio.create_task(wait())
    await waiting.wait()
    bell.ring("b", now=now())
    assert await task


async def test_a_ring_between_receive_and_wait_is_not_lost() -> None:
    bell = LocalWakeups()
    listener = Listener(bell)
    listener.receiving("a")
    bell.ring("a", now=now())
    assert await listener.arrival(["a"], 60)


async def test_what_rang_before_the_receive_was_found_by_it() -> None:
    bell = LocalWakeups()
    listener = Listener(bell)
    bell.ring("a", now=now())
    listener.receiving("a")
    assert not await listener.arrival(["a"], 0)


async def test_one_ring_wakes_once() -> None:
    bell = LocalWakeups()
    listener = Listener(bell)
    bell.ring("a", now=now())
    assert await listener.arrival(["a"], 60)
    assert not await listener.arrival(["a"], 0)


async def test_other_queues_wake_nobody() -> None:
    bell = LocalWakeups()
    bell.ring("b", now=now())
    assert not await Listener(bell).arrival(["a"], 0.01)


async def test_a_delayed_put_wakes_when_its_delay_is_over() -> None:
    bell = LocalWakeups()
    listener = Listener(bell)
    start = now()
    bell.ring("a", now=start, delay=0.05)
    assert not await listener.arrival(["a"], 0)
    assert await listener.arrival(["a"], 60)
    assert now() >= start + 0.05


async def test_who_waits_learns_of_a_delay_that_ends_sooner() -> None:
    bell = LocalWakeups()
    bell.ring("a", now=now(), delay=600)
    task = asyncio.create_task(Listener(bell).arrival(["a"], 60))
    await asyncio.sleep(0)
    bell.ring("a", now=now(), delay=0.01)
    assert await task


async def test_a_ring_in_another_thread_wakes() -> None:
    bell = LocalWakeups()
    task = asyncio.create_task(Listener(bell).arrival(["a"], 60))
    await asyncio.sleep(0)
    thread = threading.Thread(target=bell.ring, args=("a",), kwargs={"now": now()})
    thread.start()
    assert await task
    thread.join()


async def test_memory_is_bounded_and_waiters_are_forgotten() -> None:
    bell = LocalWakeups()
    for _ in range(MAX_PENDING * 2):
        bell.ring("a", now=now(), delay=600)
    await Listener(bell).arrival(["a", "b"], 0)
    assert len(bell._pending["a"]) == MAX_PENDING
    assert bell._waiting == {}


def test_an_account_has_one_bell() -> None:
    assert bell_of("http://x") is bell_of("http://x")
    assert bell_of("http://x") is not bell_of("http://y")


@pytest.mark.parametrize("signal", [True, False])
async def test_who_gives_a_message_to_others_is_not_woken_for_it(signal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store = AzureStore(f"AccountName=bell{int(signal)};AccountKey=c2VjcmV0", timeout=timedelta(seconds=1))
    receipt = Receipt(message_id="1", pop_receipt="1", next_visible=Timestamp(0))

    async def update(operation: UpdateMessage) -> Receipt:
        return receipt

    monkeypatch.setattr(store._messages, "update", update)
    await store.execute(UpdateMessage(queue="work", message=receipt, visibility=timedelta(seconds=1), signal=signal))
    assert (store._bell.due(["work"]) is not None) == signal
