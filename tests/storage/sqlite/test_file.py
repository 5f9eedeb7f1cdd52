"""The file itself: what is made, what is refused, and how its time goes on."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from airflow_provider_taskhub.clock import SystemClock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import ConfigurationError, StoreReplaced, Unavailable
from airflow_provider_taskhub.storage.primitives import Compare, Entity, PutMessage, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.storage.sqlite import file, process_wakeups, store_clock, writer_thread
from airflow_provider_taskhub.storage.sqlite.shared_file import SharedFile
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.storage.sqlite.transactions import Change
from airflow_provider_taskhub.storage.wakeups import WakeupReceiver
from tests.waiting import PATIENCE, until_async


class SkewedClock(SystemClock):
    """A wall clock that is off."""

    def __init__(self, skew: timedelta) -> None:
        self._skew = skew

    def utc_now(self) -> Timestamp:
        return super().utc_now() + self._skew


async def refusal(path: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        async with SqliteStore(path):
            pass
    assert str(path) in str(caught.value)
    return str(caught.value)


# --- made


async def test_a_new_file_is_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "hub.db"
    async with SqliteStore(path) as store:
        assert store.describe() == str(path)
        await store.create_queue("abc")
        for name in os.listdir(path.parent):
            assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600, name
    assert os.listdir(path.parent) == ["hub.db"]


async def test_every_commit_is_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "hub.db") as store:

        def settings(change: Change) -> list[object]:
            asked = ("synchronous", "journal_mode")
            return [change.connection.execute(f"PRAGMA {name}").fetchone()[0] for name in asked]

        assert await store._access.write(settings) == [2, "wal"], "FULL, of the very connection that writes"


async def test_a_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    for made in (True, False):
        async with SqliteStore(path) as store:
            assert await store.create_queue("abc") is made


async def test_two_stores_of_a_process_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    async with SqliteStore(path) as one:
        async with SqliteStore(path) as two:
            await two.create_queue("abc")
            await one.execute(PutMessage(queue="abc", text="x"))
            assert await two.count("abc") == 1
        await one.execute(PutMessage(queue="abc", text="y"))
        assert await one.count("abc") == 2
    with pytest.raises(Unavailable, match="not open"):
        await one.count("abc")


async def test_memory_keeps_its_content_until_it_is_gone() -> None:
    store = SqliteStore(None)
    async with store:
        await store.create_queue("abc")
    async with store:
        assert await store.list_queues("") == ["abc"]
    assert store.describe() == "memory"


# --- refused


async def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA application_id = 1234")
    connection.execute("CREATE TABLE theirs (a)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    text = await refusal(path)
    assert "another program" in text
    assert "TASKHUB_HOME" in text
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["theirs.db"]


async def test_a_database_without_an_application_id_is_refused_if_it_holds_anything(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (a)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    assert "another program" in await refusal(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database", b"x" * 8192, b"SQLite format 3"])
async def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    assert "not an SQLite file" in await refusal(path)
    assert path.read_bytes() == content


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    async with SqliteStore(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {file.FORMAT + 1}")
    connection.close()
    text = await refusal(path)
    assert "newer version" in text
    assert "upgrade" in text


def older(path: Path) -> None:
    """Make of a file one of format 1, as earlier versions have written it."""
    connection = sqlite3.connect(path)
    for index in ("created", "status", "changed"):
        connection.execute(f"DROP INDEX rows_{index}")
    connection.execute("ALTER TABLE rows DROP COLUMN created")
    connection.execute("ALTER TABLE rows DROP COLUMN status")
    connection.execute("ALTER TABLE messages DROP COLUMN holder")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()


async def test_a_file_of_format_1_keeps_its_messages_and_gets_the_new_column(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    async with SqliteStore(path) as store:
        await store.create_queue("abc")
        await store.execute(PutMessage(queue="abc", text="old"))
    older(path)
    for _ in range(2):
        async with SqliteStore(path, holder="dead@host/1") as store:
            (message,) = await store.receive("abc", limit=1, visibility=timedelta(minutes=5))
            assert message.text == "old"
            assert await store.release_claims(["dead@host/1"]) == 1
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone()[0] == file.FORMAT == 3
    connection.close()


async def test_rows_of_an_older_file_are_found_by_the_new_indexes(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    async with SqliteStore(path) as store:
        await store.create_table("abc")
        for number, status in enumerate(("Failed", "Completed", "Failed")):
            properties = {"CreatedTime": Timestamp(number + 1), "RuntimeStatus": status}
            entity = Entity(partition_key=str(number), row_key="", properties=properties)
            await store.execute(Transact(table="abc", rows=(RowOperation(verb=RowVerb.INSERT, entity=entity),)))
    older(path)
    async with SqliteStore(path) as store:
        page = await store.query("abc", newest="CreatedTime")
        assert [row.partition_key for row in page.entities] == ["2", "1", "0"]
        page = await store.query("abc", Compare("RuntimeStatus", "eq", "Failed"), newest="CreatedTime")
        assert [row.partition_key for row in page.entities] == ["2", "0"]


async def test_a_claim_by_an_older_version_is_not_taken_for_the_one_before_it(tmp_path: Path) -> None:
    """A worker that has the file open while a newer one migrates it leaves the column as it is."""
    path = tmp_path / "hub.db"
    async with SqliteStore(path, holder="dead@host/1") as store:
        await store.create_queue("abc")
        await store.execute(PutMessage(queue="abc", text="x"))
        await store.receive("abc", limit=1, visibility=timedelta(minutes=5))

        def receive_again(change: Change) -> None:
            change.connection.execute("UPDATE messages SET receipt = ?", (change.next(),))

        await store._access.write(receive_again)
        assert await store.release_claims(["dead@host/1"]) == 0


async def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "directory" in (await refusal(tmp_path)).lower()


async def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    assert "cannot write" in await refusal(tmp_path / "taken" / "hub.db")


async def test_a_directory_that_is_read_only_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the answer of the system is what is tested."""

    def access(path: object, mode: int) -> bool:
        return False

    monkeypatch.setattr(os, "access", access)
    assert "cannot write to the directory" in await refusal(tmp_path / "hub.db")


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that these file systems are mounted, beside / and /tmp: folder and type."""

    def mounted(*more: tuple[str, str]) -> None:
        every = [("/", "ext4"), ("/tmp", "tmpfs"), *more]
        found = [SimpleNamespace(mountpoint=folder, fstype=kind) for folder, kind in every]
        monkeypatch.setattr(psutil, "disk_partitions", lambda all: found if all else [])

    return mounted


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.s3fs", "ceph", "afs"])
def test_a_network_file_system_is_refused(kind: str, mount: Callable[..., None]) -> None:
    mount(("/mnt/share", kind), ("/mnt/share/local", "ext4"))
    path = Path("/mnt/share/team/hub.db")
    with pytest.raises(ConfigurationError, match="network file system") as caught:
        file.check_local(path)
    assert kind in str(caught.value)
    assert str(path) in str(caught.value)
    assert "Azure Storage" in str(caught.value)


@pytest.mark.parametrize("path", ["/home/me/hub.db", "/tmp/hub.db", "/mnt/share/local/hub.db", "/mnt/shared/hub.db"])
def test_a_local_file_system_is_taken(path: str, mount: Callable[..., None]) -> None:
    mount(("/mnt/share", "nfs"), ("/mnt/share/local", "ext4"))
    file.check_local(Path(path))


def test_the_topmost_of_two_mounts_counts(mount: Callable[..., None]) -> None:
    mount(("/data", "ext4"), ("/data", "nfs"))
    with pytest.raises(ConfigurationError):
        file.check_local(Path("/data/hub.db"))
    mount(("/data", "nfs"), ("/data", "ext4"))
    file.check_local(Path("/data/hub.db"))


def test_this_machines_file_systems_are_known(tmp_path: Path) -> None:
    """A mount at / at least: without one every file would be taken for a local one."""
    assert any(mount.mountpoint == "/" and mount.fstype for mount in psutil.disk_partitions(all=True))
    file.check_local(tmp_path / "hub.db")


async def test_a_file_replaced_while_open_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    async with SqliteStore(path) as store:
        await store.create_queue("abc")
        shutil.move(path, tmp_path / "moved.db")
        with pytest.raises(Unavailable, match="does not exist any more"):
            await store.execute(PutMessage(queue="abc", text="x"))
        path.write_bytes(b"")
        with pytest.raises(StoreReplaced, match="was replaced while it was open"):
            await store.execute(PutMessage(queue="abc", text="x"))
        path.unlink()
        shutil.move(tmp_path / "moved.db", path)
        await store.execute(PutMessage(queue="abc", text="the same file is back"))


async def test_a_store_that_is_opened_after_the_replacement_uses_the_new_file(tmp_path: Path) -> None:
    """Also while the same process still has the old file open. Before, both used one writer for the old file."""
    path = tmp_path / "hub.db"
    async with SqliteStore(path) as old:
        await old.create_queue("abc")
        os.replace(path, tmp_path / "old.db")
        for name in ("hub.db-wal", "hub.db-shm"):
            os.replace(tmp_path / name, tmp_path / name.replace("hub", "old"))
        path.touch()
        with pytest.raises(StoreReplaced):
            await old.execute(PutMessage(queue="abc", text="x"))
        async with SqliteStore(path) as new, SqliteStore(path) as third:
            await new.create_queue("def")
            assert await third.list_queues("") == ["def"]
            with pytest.raises(StoreReplaced):
                await old.execute(PutMessage(queue="abc", text="x"))
        async with SqliteStore(path) as again:
            assert await again.list_queues("") == ["def"]


async def test_a_file_that_stays_away_counts_as_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hub.db"
    async with SqliteStore(path) as store:
        await store.create_queue("abc")
        shutil.move(path, tmp_path / "moved.db")
        monkeypatch.setattr(writer_thread, "LONGEST_MISSING", -1.0)
        with pytest.raises(StoreReplaced, match="does not exist any more"):
            await store.execute(PutMessage(queue="abc", text="x"))
        shutil.move(tmp_path / "moved.db", path)


@pytest.mark.parametrize("other", ["its own backup", "another hub", "another program's database"])
async def test_a_file_whose_content_was_restored_while_open_takes_no_more_writes(tmp_path: Path, other: str) -> None:
    """SQLite's backup writes into the same file, so the file's number in the file system stays."""
    path, source = tmp_path / "hub.db", tmp_path / "source.db"
    async with SqliteStore(path) as store:
        await store.create_queue("abc")
        if other == "another hub":
            async with SqliteStore(source) as another:
                for number in range(10):
                    await another.create_queue(f"more-{number}")
                    await another.execute(PutMessage(queue=f"more-{number}", text="x"))
        elif other == "its own backup":
            with closing(sqlite3.connect(path)) as opened, closing(sqlite3.connect(source)) as backup:
                opened.backup(backup)
        else:
            with closing(sqlite3.connect(source)) as backup:
                backup.execute("CREATE TABLE theirs (number INTEGER)")
        await store.execute(PutMessage(queue="abc", text="after the backup"))
        with closing(sqlite3.connect(source)) as backup, closing(sqlite3.connect(path)) as opened:
            backup.backup(opened)
        for _ in range(2):
            with pytest.raises(StoreReplaced, match="was overwritten or restored while it was open"):
                await store.execute(PutMessage(queue="abc", text="x"))
    if other == "its own backup":
        async with SqliteStore(path) as store:
            assert "abc" in await store.list_queues("")


async def test_without_a_socket_directory_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_wakeups, "MAX_ADDRESS", 3)
    assert process_wakeups.addresses_of(Path("/somewhere/hub.db")) == []
    with pytest.raises(OSError, match="no folder has a path"):
        WakeupReceiver([], print)


async def test_without_sockets_a_waiter_looks_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_wakeups, "MAX_ADDRESS", 3)
    monkeypatch.setattr(process_wakeups, "FALLBACK", 0.02)
    async with SqliteStore(tmp_path / "hub.db") as store:
        await store.create_queue("abc")
        waiting = asyncio.ensure_future(store.arrival(["abc"], 3600.0))
        for _ in range(5):
            assert await store.count("abc") == 0
        assert not waiting.done()
        await store.execute(PutMessage(queue="abc", text="x"))
        assert await asyncio.wait_for(waiting, PATIENCE) == ["abc"]


async def test_all_waiters_share_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle worker waits for a message in each of twenty queues and more."""
    monkeypatch.setattr(process_wakeups, "FALLBACK", 0.02)
    names, thrice = [f"queue-{number}" for number in range(20)], asyncio.Event()
    looks: list[list[str]] = []
    reads: list[object] = []
    look, read = SharedFile._soon_visible, SharedFile.glance

    def looking(self: SharedFile, asked: Sequence[str]) -> list[str] | None:
        looks.append(sorted(asked))
        if looks.count(sorted(names)) == 3:
            thrice.set()
        return look(self, asked)

    def reading(self: SharedFile, wanted: Callable[[sqlite3.Connection], Any]) -> Any:
        reads.append(wanted)
        return read(self, wanted)

    monkeypatch.setattr(SharedFile, "_soon_visible", looking)
    async with SqliteStore(tmp_path / "hub.db") as store:
        for name in names:
            await store.create_queue(name)
        await store.execute(PutMessage(queue=names[3], text="x", visibility=timedelta(hours=1)))
        monkeypatch.setattr(SharedFile, "glance", reading)
        waiting = [asyncio.ensure_future(store.arrival([name], 3600.0)) for name in names]
        await asyncio.wait_for(thrice.wait(), PATIENCE)
        assert len(reads) == len(names) + len(looks)
        await store.execute(PutMessage(queue=names[7], text="x"))
        assert await asyncio.wait_for(waiting[7], PATIENCE) == [names[7]]
        assert [task.done() for task in waiting].count(True) == 1
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        access = store._access
        assert access.waiters._alarm is None, "nobody waits, so nobody looks"
        async with store.subscribe("topic"):
            assert access.waiters._alarm is None, "a look finds nothing out about topics"


async def test_a_waiter_meets_the_error_of_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_wakeups, "FALLBACK", 0.02)
    async with SqliteStore(tmp_path / "hub.db") as store:
        await store.create_queue("abc")
        waiting, access = asyncio.ensure_future(store.arrival(["abc"], 3600.0)), store._access
        await until_async("the task waits", lambda: access.waiters._waiting)

        def broken(self: SharedFile, wanted: object) -> None:
            raise Unavailable("the disk is gone", maybe_done=False)

        monkeypatch.setattr(SharedFile, "glance", broken)
        with pytest.raises(Unavailable, match="the disk is gone"):
            await asyncio.wait_for(waiting, PATIENCE)


# --- time


async def service_time(path: Path, skew: timedelta = timedelta(0)) -> Timestamp:
    """What a write into the file is dated by a process whose wall clock is off."""
    async with SqliteStore(path, clock=SkewedClock(skew)) as store:
        await store.create_table("Time")
        entity = Entity(partition_key="p", row_key="1")
        await store.execute(Transact(table="Time", rows=(RowOperation(verb=RowVerb.UPSERT_MERGE, entity=entity),)))
        found = await store.get("Time", "p", "1")
    assert found is not None
    assert found.timestamp is not None
    return found.timestamp


async def test_a_clock_set_back_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    async with SqliteStore(path) as store:
        await store.create_queue("abc")
        await store.execute(PutMessage(queue="abc", text="x"))
    async with SqliteStore(path, clock=SkewedClock(timedelta(days=-400))) as store:
        messages = await store.receive("abc", limit=1, visibility=timedelta(seconds=1))
        assert [message.text for message in messages] == ["x"]


async def test_time_goes_on_through_every_change_of_the_wall_clock(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    times = [await service_time(path, timedelta(hours=hours)) for hours in (0, -5, 7, 0)]
    assert times == sorted(times)
    assert times[-1] - times[0] < timedelta(hours=1)


@pytest.fixture
def reboot(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The machine is started anew: another boot id, and a boot clock that begins at nothing."""

    def restart() -> None:
        origin = store_clock.boot_ticks()
        monkeypatch.setattr(file, "boot_identity", lambda: "another boot")
        for module in ("file", "writer_thread", "shared_file", "process_wakeups"):
            name = f"airflow_provider_taskhub.storage.sqlite.{module}.boot_ticks"
            monkeypatch.setattr(name, lambda: store_clock.boot_ticks() - origin)

    return restart


async def test_time_goes_on_after_a_reboot(tmp_path: Path, reboot: Callable[[], None]) -> None:
    path = tmp_path / "hub.db"
    before = await service_time(path)
    reboot()
    after = await service_time(path, timedelta(days=-30))  # its battery-backed clock lost a month
    assert timedelta(0) < after - before < timedelta(seconds=30)


async def test_time_catches_up_with_the_wall_clock_after_a_reboot(tmp_path: Path, reboot: Callable[[], None]) -> None:
    path = tmp_path / "hub.db"
    before = await service_time(path)
    reboot()
    after = await service_time(path, timedelta(days=2))  # it was off for two days
    assert timedelta(days=2) <= after - before < timedelta(days=2, seconds=30)


@pytest.mark.parametrize(
    ("same_boot", "shift", "high", "wall", "boot", "expected"),
    [
        (True, 1000, 1050, 1060, 60, 1000),  # goes on, whatever the wall clock says
        (True, 1000, 1050, 10, 60, 1000),
        (True, 1000, 2000, 10, 60, 1941),  # a boot clock behind the file (a restored machine)
        (False, 1000, 1050, 5000, 3, 4997),
        (False, 1000, 1050, 10, 3, 1048),  # never before a time that was given out
    ],
)
def test_the_shift_of_the_clock_never_takes_the_time_of_the_store_back(
    same_boot: bool, shift: int, high: int, wall: int, boot: int, expected: int
) -> None:
    found = store_clock.shift_for(same_boot=same_boot, shift=shift, high=high, wall=wall, boot=boot)
    assert found == expected
    assert boot + found >= min(high, boot + shift)
