"""Wake-ups between processes: two stores with a wakeups each stand for two processes, and one process is real."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_taskhub.storage.azure import process_wakeups
from airflow_provider_taskhub.storage.azure.local_wakeups import Listener, LocalWakeups, Waiter
from airflow_provider_taskhub.storage.azure.process_wakeups import ProcessWakeups
from tests.waiting import PATIENCE

ACCOUNT = "https://account"


class House:
    """A store's wake-ups, inside the process and between processes."""

    def __init__(self, folder: Path, account: str = ACCOUNT) -> None:
        self.wakeups = LocalWakeups()
        self.listener = Listener(self.wakeups)
        self.process_wakeups = ProcessWakeups(account, self.wakeups, folder=folder)

    def hears(self, *queues: str) -> None:
        for queue in queues:
            self.listener.receiving(queue)
        self.process_wakeups.listen(queues)

    async def is_woken(self, queue: str, *, within: float) -> bool:
        return bool(await self.listener.arrival([queue], within))


def children(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def open_to_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("n") / "own"


@pytest.fixture(autouse=True)
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_wakeups, "LIST_EVERY", 0.0)


@pytest.mark.rows("D24")
@pytest.mark.process
async def test_who_waits_is_woken_by_another_process(folder: Path) -> None:
    house = House(folder)
    house.hears("a")
    made = "import sys; from tests.storage.azure.test_process_wakeups import *"
    code = f"{made}; ProcessWakeups(ACCOUNT, LocalWakeups(), folder=Path(sys.argv[1]))"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", f"{code}.notify('a')", str(folder)], check=True)
    assert await house.is_woken("a", within=PATIENCE)
    house.process_wakeups.close()


async def test_who_waits_for_a_name_is_woken_by_another_process(folder: Path) -> None:
    house, other = House(folder), House(folder)
    house.process_wakeups.listen(())
    one, two = Waiter(), Waiter()
    house.wakeups.enter(("=one",), one)
    house.wakeups.enter(("=two",), two)
    waiting = asyncio.ensure_future(one.wait(3600.0))
    other.process_wakeups.notify("=two")
    await asyncio.wait_for(two.wait(3600.0), PATIENCE)
    assert not waiting.done()
    other.process_wakeups.notify("=one")
    await asyncio.wait_for(waiting, PATIENCE)
    for end in (house, other):
        end.process_wakeups.close()


async def test_only_the_queues_and_the_account_that_one_waits_for(folder: Path) -> None:
    house, other = House(folder), House(folder, "https://another")
    house.hears("a")
    other.hears("a")
    House(folder).process_wakeups.notify("b")
    House(folder).process_wakeups.notify("a")
    assert await house.is_woken("a", within=PATIENCE)
    assert house.wakeups.count("b", now=0.0) == 0
    assert other.wakeups.count("a", now=0.0) == 0
    house.process_wakeups.close()
    other.process_wakeups.close()


async def test_a_process_sends_no_wakeup_to_itself(folder: Path) -> None:
    house = House(folder)
    house.hears("a")
    house.process_wakeups.notify("a")
    House(folder).process_wakeups.notify("a")
    assert await house.is_woken("a", within=PATIENCE)
    assert house.wakeups.count("a", now=0.0) == 1
    house.process_wakeups.close()


async def test_what_the_killed_and_the_closed_leave_is_cleared(folder: Path) -> None:
    house, gone = House(folder), House(folder)
    house.hears("a")
    gone.hears("a")
    gone.process_wakeups.close()
    (place,) = children(folder)
    assert len(children(place)) == 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as killed:
        killed.bind(str(place / "0-killed"))
    assert len(children(place)) == 2
    House(folder).process_wakeups.notify("a")
    assert await house.is_woken("a", within=PATIENCE)
    assert len(children(place)) == 1
    house.process_wakeups.close()
    assert not children(place)


async def test_a_folder_that_others_can_reach_is_not_used(folder: Path) -> None:
    open_to_all(folder)
    house = House(folder)
    house.hears("a")
    House(folder).process_wakeups.notify("a")
    assert not await house.is_woken("a", within=0)
    assert not children(folder)


async def test_a_deaf_neighbour_holds_nobody_up(folder: Path) -> None:
    house, teller = House(folder), House(folder)
    house.hears("a")
    for _ in range(5_000):  # far more than a socket takes
        teller.process_wakeups.notify("a")
    assert await house.is_woken("a", within=PATIENCE)
    house.process_wakeups.close()
