"""Open the SQLite file of a hub: create the file if it does not exist, and refuse a file of another program.

Each refusal is a ``ConfigurationError`` that names the file and says what to do. The header of the file is read without
SQLite first, because SQLite could change the journal or the WAL of another program's file.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import ConfigurationError, Unavailable
from airflow_provider_taskhub.storage.sqlite.store_clock import boot_identity, boot_ticks, shift_for
from airflow_provider_taskhub.storage.sqlite.transactions import is_busy

T = TypeVar("T")

APPLICATION = 0x54736B48  # "TskH", stored in the file's header as SQLite's application id
FORMAT = 3
"""Version of the tables below. A newer package migrates an older file. An older package refuses a newer file."""
MAGIC = b"SQLite format 3\0"
RETRY = (0.0003, 0.0015)
"""Shortest and longest time between two tries to get the file's lock, in seconds; each time is random. SQLite's busy
handler was rejected: it waits longer after each try, so one process could wait for seconds while another one writes."""
WAY_OUT = "choose another file (TASKHUB_HOME, or sqlite:///path as the connection)"

_NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "beegfs", "gpfs", "glusterfs", "ncpfs",
    "davfs", "ocfs2", "gfs2", "coda", "pvfs2",
})  # fmt: skip
_NETWORK_FUSE = frozenset({
    "sshfs", "glusterfs", "s3fs", "gcsfuse", "rclone", "davfs", "davfs2", "goofys", "blobfuse", "blobfuse2", "ceph",
    "ceph-fuse", "juicefs", "seaweedfs", "mount-s3", "smbnetfs", "curlftpfs",
})  # fmt: skip

TIMES = """
CREATE INDEX rows_created ON rows (tbl, created) WHERE created IS NOT NULL;
CREATE INDEX rows_status ON rows (tbl, status, created) WHERE status IS NOT NULL;
CREATE INDEX rows_changed ON rows (tbl, ts) WHERE created IS NOT NULL;
"""
"""The indexes of :mod:`.times`. Only rows with a time of creation are in them, so other rows cost no more to write."""
SCHEMA = f"""
CREATE TABLE anchor (sequence INTEGER NOT NULL, shift INTEGER NOT NULL, high INTEGER NOT NULL,
                     identity INTEGER NOT NULL, boot TEXT NOT NULL);
CREATE TABLE peers (address TEXT PRIMARY KEY) WITHOUT ROWID;

CREATE TABLE queues (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE);
CREATE TABLE messages (number INTEGER PRIMARY KEY, queue INTEGER NOT NULL, visible INTEGER NOT NULL,
                       inserted INTEGER NOT NULL, receipt INTEGER NOT NULL, dequeues INTEGER NOT NULL,
                       text TEXT NOT NULL, holder TEXT);
CREATE INDEX messages_visible ON messages (queue, visible, number);

CREATE TABLE tables (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE COLLATE NOCASE);
CREATE TABLE rows (number INTEGER PRIMARY KEY, tbl INTEGER NOT NULL, pk TEXT NOT NULL, rk TEXT NOT NULL,
                   etag INTEGER NOT NULL, ts INTEGER NOT NULL, data TEXT NOT NULL, created INTEGER, status TEXT);
CREATE UNIQUE INDEX rows_key ON rows (tbl, pk, rk);
{TIMES}

CREATE TABLE containers (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
                         lease TEXT, seconds INTEGER NOT NULL DEFAULT 0, until INTEGER NOT NULL DEFAULT 0);
CREATE TABLE blobs (id INTEGER PRIMARY KEY AUTOINCREMENT, container INTEGER NOT NULL, name TEXT NOT NULL,
                    etag INTEGER NOT NULL, type TEXT NOT NULL, size INTEGER NOT NULL, appends INTEGER,
                    lease TEXT, seconds INTEGER NOT NULL DEFAULT 0, until INTEGER NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX blobs_name ON blobs (container, name);
CREATE TABLE chunks (blob INTEGER NOT NULL, part INTEGER NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX chunks_part ON chunks (blob, part);
"""
MIGRATIONS = {
    1: "ALTER TABLE messages ADD COLUMN holder TEXT",
    2: f"""
ALTER TABLE rows ADD COLUMN created INTEGER;
ALTER TABLE rows ADD COLUMN status TEXT;
UPDATE rows SET created = json_extract(data, '$.CreatedTime.t'),
                status = nullif(json_extract(data, '$.RuntimeStatus'), 'Completed')
WHERE instr(data, '"CreatedTime":{{"t":');
{TIMES}
""",
}
"""For each older format the SQL statements that migrate a file to the next format."""


# --- open a connection --------------------------------------------------------------------------------------------


def connect(path: Path | None, timeout: float) -> sqlite3.Connection:
    """Open a connection in autocommit mode. Only one thread at a time may use the connection.

    The connection has no busy handler (:data:`RETRY` says why): the caller must retry if the file is locked.

    :param path: path of the SQLite file; None: a private database in memory.
    :param timeout: longest wait in seconds while another process locks the file to create or recover it.
    """
    connection = sqlite3.connect(
        ":memory:" if path is None else path,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        for pragma in ("synchronous = FULL", "journal_size_limit = 67108864", "temp_store = MEMORY"):
            retried(partial(connection.execute, f"PRAGMA {pragma}"), timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def memory(ticks: int) -> sqlite3.Connection:
    """Return a private database in memory.

    :param ticks: first value of the store's time, in ticks of 100 ns.
    """
    connection = connect(None, 0.0)
    connection.executescript(SCHEMA)
    connection.execute("INSERT INTO anchor VALUES (0, 0, ?, 0, '')", (ticks,))
    return connection


def retried(attempt: Callable[[], T], timeout: float) -> T:
    """Call a function again and again while another process's lock refuses the call. Block the calling thread.

    ``retries.retry`` cannot be used here: it needs an event loop, and this function runs in threads of the store.

    :param attempt: function to call.
    :param timeout: longest time for all calls together, in seconds.
    :returns: the function's result.
    :raises Unavailable: if the file is still locked after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() > deadline:
                raise Unavailable(f"another process has locked the file for {timeout:g} s", maybe_done=False) from error
        time.sleep(random.uniform(*RETRY))


# --- create, check and migrate the file ---------------------------------------------------------------------------


def prepare(path: Path, clock: Clock, timeout: float) -> None:
    """Create the file if it does not exist, check and migrate the file, set WAL mode, and set the store's time.

    :param clock: clock whose wall time sets the store's time if the file is new or the machine was restarted.
    :param timeout: longest wait for another process's lock, in seconds.
    :raises ConfigurationError: if the file cannot be used. The text names the file and a way out.
    :raises Unavailable: if other processes keep the file locked.
    """
    _make(path)
    check_local(path)
    _check_header(path)
    try:
        connection = connect(path, timeout)
        try:
            retried(lambda: _adopt(connection, path, clock), timeout)
            retried(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone(), timeout)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ConfigurationError(f"cannot open {path}: {error}; fix the cause or {WAY_OUT}") from error


def _make(path: Path) -> None:
    """Create the directory and an empty file that only this user can read, if they do not exist."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}; {WAY_OUT}") from error
    if not os.access(path.parent, os.W_OK):  # SQLite creates the WAL in the same directory
        raise ConfigurationError(f"cannot write to the directory of {path}; {WAY_OUT}")


def check_local(path: Path) -> None:
    """Check that the file is on a local disk.

    :raises ConfigurationError: if the file is on a network file system. SQLite's WAL loses data there.
    """
    found = path.resolve()
    above = [mount for mount in psutil.disk_partitions(all=True) if found.is_relative_to(mount.mountpoint)]
    above.reverse()  # if several file systems have one mount point, the last mount is the visible one
    kind = max(above, key=lambda mount: len(Path(mount.mountpoint).parts)).fstype if above else ""
    base, _, fuse = kind.partition(".")
    if base in _NETWORK or fuse in _NETWORK_FUSE:
        raise ConfigurationError(
            f"{path} is on a network file system ({kind}), where an SQLite file can lose data; {WAY_OUT} "
            "on a local disk, or use Azure Storage for workers on several machines"
        )


def _check_header(path: Path) -> None:
    """Check the first 100 bytes of the file; an empty file is accepted. SQLite's application id begins at byte 68.

    :raises ConfigurationError: if the file is not an SQLite file, or belongs to another program.
    """
    with path.open("rb") as file:
        header = file.read(100)
    if not header:
        return
    if not header.startswith(MAGIC):
        raise ConfigurationError(f"{path} is not an SQLite file; {WAY_OUT}")
    application = int.from_bytes(header[68:72], "big")
    if application not in (0, APPLICATION):
        raise _foreign(path, application)


def _foreign(path: Path, application: int) -> ConfigurationError:
    return ConfigurationError(f"{path} belongs to another program (application id {application:#x}); {WAY_OUT}")


def _adopt(connection: sqlite3.Connection, path: Path, clock: Clock) -> None:
    """Create the tables in an empty file, or check and migrate an existing file. Set the shift of the store's time.

    The tables are created before WAL mode is set. So the first commit writes the application id into the file's header,
    where :func:`_check_header` in another process finds the application id.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            _create(connection)
        elif application != APPLICATION:
            raise _foreign(path, application)
        elif version > FORMAT:
            raise ConfigurationError(
                f"{path} has format {version}, this package reads {FORMAT}: it was written by a newer version; "
                f"upgrade airflow-provider-taskhub, or {WAY_OUT}"
            )
        else:
            _migrate(connection, version)
        _anchor(connection, clock)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    for statement in SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute("INSERT INTO anchor VALUES (0, 0, 0, ?, '')", (random.SystemRandom().getrandbits(62),))


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    """Migrate a file to :data:`FORMAT`. Processes of an older package that have the file open can go on."""
    for older in range(version, FORMAT):
        for statement in MIGRATIONS[older].split(";"):
            connection.execute(statement)
    if version != FORMAT:
        connection.execute(f"PRAGMA user_version = {FORMAT}")


def _anchor(connection: sqlite3.Connection, clock: Clock) -> None:
    shift, high, stored = connection.execute("SELECT shift, high, boot FROM anchor").fetchone()
    identity = boot_identity()
    wanted = shift_for(
        same_boot=identity == stored, shift=shift, high=high, wall=clock.utc_now().ticks, boot=boot_ticks()
    )
    if (wanted, identity) != (shift, stored):
        connection.execute("UPDATE anchor SET shift = ?, boot = ?", (wanted, identity))
