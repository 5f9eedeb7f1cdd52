"""Wake-ups within a process: none lost between a receive and a wait, across threads, and bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.storage.azure.local_wakeups import MAX_PENDING, Listener, LocalWakeups, wakeups_of
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.storage.primitives import Receipt, UpdateMessage


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_ring_ends_the_wait() -> None:
    wakeups, waiting = LocalWakeups(), asyncio.Event()
    listener = Listener(wakeups)

    async def wait() -> Sequence[str]:
        waiting.set()
        return await listener.arrival(["a", "b"], 60)

    task = asyncio.create_task(wait())
    await waiting.wait()
    wakeups.notify("b", now=now())
    assert await task == ["b"]


async def test_a_ring_between_receive_and_wait_is_not_lost() -> None:
    wakeups = LocalWakeups()
    listener = Listener(wakeups)
    listener.receiving("a")
    wakeups.notify("a", now=now())
    assert await listener.arrival(["a"], 60)


async def test_what_rang_before_the_receive_was_found_by_it() -> None:
    wakeups = LocalWakeups()
    listener = Listener(wakeups)
    wakeups.notify("a", now=now())
    listener.receiving("a")
    assert not await listener.arrival(["a"], 0)


async def test_one_ring_wakes_once() -> None:
    wakeups = LocalWakeups()
    listener = Listener(wakeups)
    wakeups.notify("a", now=now())
    assert await listener.arrival(["a"], 60)
    assert not await listener.arrival(["a"], 0)


async def test_other_queues_wake_nobody() -> None:
    wakeups = LocalWakeups()
    wakeups.notify("b", now=now())
    assert not await Listener(wakeups).arrival(["a"], 0.01)


async def test_a_delayed_put_wakes_when_its_delay_is_over() -> None:
    wakeups = LocalWakeups()
    listener = Listener(wakeups)
    start = now()
    wakeups.notify("a", now=start, delay=0.05)
    assert not await listener.arrival(["a"], 0)
    assert await listener.arrival(["a"], 60)
    assert now() >= start + 0.05


async def test_who_waits_learns_of_a_delay_that_ends_sooner() -> None:
    wakeups = LocalWakeups()
    wakeups.notify("a", now=now(), delay=600)
    task = asyncio.create_task(Listener(wakeups).arrival(["a"], 60))
    await asyncio.sleep(0)
    wakeups.notify("a", now=now(), delay=0.01)
    assert await task


async def test_a_ring_in_another_thread_wakes() -> None:
    wakeups = LocalWakeups()
    task = asyncio.create_task(Listener(wakeups).arrival(["a"], 60))
    await asyncio.sleep(0)
    thread = threading.Thread(target=wakeups.notify, args=("a",), kwargs={"now": now()})
    thread.start()
    assert await task
    thread.join()


async def test_memory_is_bounded_and_waiters_are_forgotten() -> None:
    wakeups = LocalWakeups()
    for _ in range(MAX_PENDING * 2):
        wakeups.notify("a", now=now(), delay=600)
    await Listener(wakeups).arrival(["a", "b"], 0)
    assert len(wakeups._pending["a"]) == MAX_PENDING
    assert wakeups._waiting == {}


def test_an_account_has_one_bell() -> None:
    assert wakeups_of("http://x") is wakeups_of("http://x")
    assert wakeups_of("http://x") is not wakeups_of("http://y")


@pytest.mark.parametrize("signal", [True, False])
async def test_who_gives_a_message_to_others_is_not_woken_for_it(signal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store = AzureStore(f"AccountName=wakeups{int(signal)};AccountKey=c2VjcmV0", timeout=timedelta(seconds=1))
    receipt = Receipt(message_id="1", pop_receipt="1", next_visible=Timestamp(0))

    async def update(operation: UpdateMessage) -> Receipt:
        return receipt

    monkeypatch.setattr(store._messages, "update", update)
    await store.execute(UpdateMessage(queue="work", message=receipt, visibility=timedelta(seconds=1), signal=signal))
    assert (store._wakeups.due(["work"]) is not None) == signal
