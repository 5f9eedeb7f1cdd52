"""The sockets by which processes wake each other."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from airflow_provider_taskhub.storage import wakeups
from airflow_provider_taskhub.storage.wakeups import WakeupReceiver, WakeupSender
from tests.waiting import PATIENCE


class Heard:
    """What an ear has heard, in order."""

    def __init__(self) -> None:
        self.news: list[Sequence[str] | None] = []

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.news) < count:  # noqa: ASYNC110  # the socket's reader has no event
                await asyncio.sleep(0)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def ear(tmp_path: Path, heard: Heard) -> AsyncIterator[WakeupReceiver]:
    opened = WakeupReceiver([str(tmp_path / "ear")], heard.news.append)
    yield opened
    opened.close()


async def test_all_names_of_a_wake_up_arrive_together(ear: WakeupReceiver, heard: Heard) -> None:
    voice = WakeupSender()
    assert voice.send(("one", "two"), (ear.address,)) == []
    await heard.until(1)
    assert heard.news == [["one", "two"]]
    voice.close()


async def test_more_names_than_a_wake_up_holds_wake_everybody(ear: WakeupReceiver, heard: Heard) -> None:
    voice = WakeupSender()
    assert voice.send([f"queue-{number}" for number in range(1_000)], (ear.address,)) == []
    await heard.until(1)
    assert heard.news == [None]
    voice.close()


async def test_the_socket_of_a_killed_process_is_removed_and_named(
    ear: WakeupReceiver, heard: Heard, tmp_path: Path
) -> None:
    killed, gone = str(tmp_path / "killed"), str(tmp_path / "gone")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left:
        left.bind(killed)
    voice = WakeupSender()
    assert voice.send(("one",), (killed, gone, ear.address)) == [killed, gone]
    assert os.listdir(tmp_path) == ["ear"]
    await heard.until(1)
    voice.close()


async def test_who_reads_nothing_holds_nobody_up(
    ear: WakeupReceiver, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This loop does not read meanwhile: the buffer of its socket fills up."""
    monkeypatch.setattr(wakeups, "AT_ONCE", 3)
    voice = WakeupSender()
    for _ in range(5_000):
        assert voice.send(("one",), (ear.address,)) == []
    await heard.until(1)
    assert len(heard.news) == 3, "other tasks have their turn before the next ones are read"
    voice.close()


async def test_the_first_address_with_a_place_for_a_socket_is_taken(tmp_path: Path, heard: Heard) -> None:
    opened = WakeupReceiver([str(tmp_path / "absent" / "ear"), str(tmp_path / "second")], heard.news.append)
    assert opened.address == str(tmp_path / "second")
    assert os.stat(opened.address).st_mode & 0o777 == 0o600
    opened.close()
    assert os.listdir(tmp_path) == []
