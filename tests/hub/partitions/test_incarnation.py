"""Lock files of incarnations, with real processes that are really killed."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.hub.partitions import incarnation
from airflow_provider_taskhub.hub.partitions.incarnation import KEEP, Incarnation
from tests.waiting import PATIENCE

HOLDER = Path(__file__).parent / "holder.py"
ROOT = HOLDER.parents[3]


class Processes:
    """Workers that a test started; all ended with it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.started: list[subprocess.Popen[str]] = []

    def start(self, name: str, *options: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, str(HOLDER), str(self.home), name, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    group = Processes(tmp_path)
    yield group
    for process in group.started:
        process.kill()
        process.wait(PATIENCE)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


@pytest.mark.rows("K11")
def test_every_incarnation_has_an_identity_of_its_own(tmp_path: Path) -> None:
    one, two = Incarnation.claim("same", tmp_path), Incarnation.claim("same", tmp_path)
    assert one.identity.name == two.identity.name == "same"
    assert one.identity.incarnation != two.identity.incarnation
    assert one.identity.incarnation.startswith(f"{os.getpid()}-")
    assert Incarnation.claim(home=tmp_path).identity.name, "the host's name by default"
    assert os.get_inheritable(one.lock_fd)


@pytest.mark.parametrize("name", ["a/b", "a@b", "-a", "é", "x" * 64, "a b", "."])
def test_a_name_that_cannot_be_shown_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="worker name"):
        Incarnation.claim(name, tmp_path)


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "incarnations").write_text("a file")
    with pytest.raises(ConfigurationError, match="Set TASKHUB_HOME"):
        Incarnation.claim("w", tmp_path)


@pytest.mark.rows("E24", "E51", "K06")
@pytest.mark.process
def test_a_killed_worker_is_proven_dead_at_once(tmp_path: Path, processes: Processes) -> None:
    victim, name = processes.start("victim")
    me = Incarnation.claim("me", tmp_path)
    assert me.predecessors() == ()
    victim.kill()
    victim.wait(PATIENCE)
    assert me.predecessors() == (name,)
    assert me.predecessors() == (name,), "it stays proven"
    assert Incarnation.claim("another", tmp_path).predecessors() == (name,), "for others too"


@pytest.mark.rows("K11", "T86")
@pytest.mark.process
def test_a_copy_of_a_live_workers_lock_file_proves_nothing(tmp_path: Path, processes: Processes) -> None:
    """A home that was copied, to begin a second one with: nobody holds the copies, and their workers live."""
    victim, name = processes.start("victim")
    shutil.copytree(tmp_path / "incarnations", tmp_path / "copied" / "incarnations")
    me, other = Incarnation.claim("me", tmp_path), Incarnation.claim("me", tmp_path / "copied")
    assert (me.predecessors(), other.predecessors()) == ((), ())
    victim.kill()
    victim.wait(PATIENCE)
    assert (me.predecessors(), other.predecessors()) == ((name,), ())
    (copy,) = (path for path in (tmp_path / "copied" / "incarnations").iterdir() if path.stem in name)
    old = copy.stat().st_mtime - KEEP.total_seconds() - 60
    os.utime(copy, (old, old))
    other.predecessors()
    assert not copy.exists()


@pytest.mark.process
def test_a_stopped_process_is_not_dead(tmp_path: Path, processes: Processes) -> None:
    victim, name = processes.start("victim")
    me = Incarnation.claim("me", tmp_path)
    victim.send_signal(signal.SIGSTOP)
    assert me.predecessors() == ()
    victim.send_signal(signal.SIGCONT)
    victim.kill()
    victim.wait(PATIENCE)
    assert me.predecessors() == (name,)


@pytest.mark.process
def test_a_worker_is_dead_only_when_its_executors_are(tmp_path: Path, processes: Processes) -> None:
    victim, name = processes.start("victim", "executor")
    assert victim.stdout is not None
    assert victim.stdin is not None
    executor = int(victim.stdout.readline())
    me = Incarnation.claim("me", tmp_path)
    os.kill(victim.pid, signal.SIGSTOP)  # so that its pipe to the executor stays open
    assert me.predecessors() == ()
    holder = os.pidfd_open(executor)
    try:
        os.kill(executor, signal.SIGSTOP)
        victim.kill()
        victim.wait(PATIENCE)
        assert me.predecessors() == (), "its executor still holds the lock"
        os.kill(executor, signal.SIGKILL)
        assert select.select([holder], [], [], PATIENCE)[0], "the executor has not ended"
        assert me.predecessors() == (name,)
    finally:
        os.close(holder)


def test_a_graceful_end_leaves_nothing(tmp_path: Path) -> None:
    me, other = Incarnation.claim("me", tmp_path), Incarnation.claim("other", tmp_path)
    other.release()
    assert me.predecessors() == ()
    assert [path.name for path in (tmp_path / "incarnations").iterdir()] == [f"{me.identity.incarnation}.lock"]


def test_files_of_the_long_dead_and_damaged_ones_prove_nothing(tmp_path: Path) -> None:
    me, folder = Incarnation.claim("me", tmp_path), tmp_path / "incarnations"
    (folder / "1-a.lock").write_text("{")
    (folder / "2-b.lock").write_text(json.dumps({"name": "w"}))
    elsewhere = {"name": "w", "host": "another-machine", "incarnation": "3-c", "boot": "another-boot"}
    (folder / "3-c.lock").write_text(json.dumps(elsewhere))
    (folder / "notes.txt").write_text("mine")
    assert me.predecessors() == (), "a file without a lock of this machine's kernel proves nothing"
    host = me.identity.host
    (folder / "4-d.dead").write_text(json.dumps({"name": "w", "host": host, "incarnation": "4-d"}))
    assert me.predecessors() == (f"w@{host}/4-d",)
    old = (folder / "4-d.dead").stat().st_mtime - KEEP.total_seconds() - 60
    os.utime(folder / "4-d.dead", (old, old))
    assert me.predecessors() == ()
    assert not (folder / "4-d.dead").exists()


def test_an_unchanged_folder_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle worker asks ten times a second."""
    monkeypatch.setattr(incarnation, "RELISTED", 3600.0)
    monkeypatch.setattr(incarnation, "SETTLED", timedelta(seconds=40))
    me, folder, listed = Incarnation.claim("me", tmp_path), tmp_path / "incarnations", list[str]()
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or listdir(path))  # type: ignore[func-returns-value]

    def aged(seconds: int) -> None:
        at = time.time() - seconds
        os.utime(folder, (at, at))

    assert not me.is_alone(), "nothing is known yet"
    aged(60)
    assert [me.predecessors() for _ in range(3)] == [()] * 3
    assert len(listed) == 1
    assert me.is_alone()
    (folder / "4-d.dead").write_text(json.dumps({"name": "w", "host": me.identity.host, "incarnation": "4-d"}))
    assert me.predecessors() == (f"w@{me.identity.host}/4-d",)
    assert not me.is_alone(), "somebody may have come in the same tick"
    me.predecessors()
    assert len(listed) == 3, "a change within the same tick of the file system's clock is seen too"
    aged(50)
    me.predecessors()
    assert me.is_alone(), "a dead one is no neighbour"
    monkeypatch.setattr(incarnation, "RELISTED", 0.0)
    me.predecessors()
    assert len(listed) == 5
    Incarnation.claim("other", tmp_path)
    aged(45)
    me.predecessors()
    assert not me.is_alone()


def test_where_locks_do_nothing_nobody_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    me = Incarnation.claim("me", tmp_path)
    Incarnation.claim("other", tmp_path)
    assert me.predecessors() == ()
