"""The ceiling: what a store carries when it is given the rows and messages of a workload and nothing else.

:func:`orchestration` is the sequence of writes of a client and a worker, without engine, sessions, leases, limits
or replay; a :class:`Hub` carries them out. The embedded one here is a small program of the form of a worker: WAL and
FULL sync, one writer thread that commits whatever has arrived together, one child process behind a socket that takes
messages in batches, results handed over in memory. Azurite's is in ``requests``.
"""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import sqlite3
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol, Self
from uuid import uuid4

from airflow_provider_taskhub.storage.sqlite.file import SCHEMA, connect
from tests.benchmarks.cpu import EXECUTORS

Row = Mapping[str, Any]
TIME = "2026-01-01T00:00:00.0000000Z"


# --- what is written: texts as long as TaskHub's own ---------------------------------------------------------------


def envelope(kind: str, instance: str, event: Row) -> str:
    """A message, as DurableTask writes it."""
    core, own = "DurableTask.Core.", {"InstanceId": instance, "ExecutionId": instance}
    typed = {"$type": f"{core}OrchestrationInstance", **own}
    history = {"$type": f"{core}History.{kind}Event", **event, "EventId": -1, "IsPlayed": False, "Timestamp": TIME}
    message = {"$type": f"{core}TaskMessage", "Event": history, "SequenceNumber": 0, "OrchestrationInstance": typed}
    return json.dumps(
        {
            "$type": "DurableTask.AzureStorage.MessageData",
            "ActivityId": instance,
            "TaskMessage": {**message, "OrchestrationExecutionContext": None},
            "CompressedBlobName": None,
            "SequenceNumber": 2,
            "Episode": 1,
            "Sender": own,
            "SerializableTraceContext": None,
        }
    )


def _event(kind: str, instance: str, **members: Any) -> Row:
    common = {"EventId": -1, "IsPlayed": False, "_Timestamp": TIME, "EventType": kind, "ExecutionId": instance}
    return {**members, **common}


_STARTED = {"Name": "single", "Version": "", "Input": "7", "Tags": "null", "ParentTraceContext": "null"}
_TASK = {"Name": "nothing", "Version": "", "Input": "[7]", "Tags": "null", "ParentTraceContext": "null"}


def _instance_row(instance: str, status: str) -> Row:
    row = {"Input": "7", "CreatedTime": TIME, "Name": "single", "Version": "", "RuntimeStatus": status}
    row |= {"LastUpdatedTime": TIME, "TaskHubName": "TaskHub", "ExecutionId": instance, "Generation": 0}
    return row | {"Tags": "null", "CustomStatus": "null", "CompletedTime": TIME, "Output": "7"}


def _sentinel(instance: str, rows: int) -> Row:
    row = {"ExecutionId": instance, "IsCheckpointComplete": True, "CheckpointCompletedTimestamp": TIME}
    return row | {"TaskHubCommit": instance, "TaskHubBasis": f"{instance}@{TIME}", "TaskHubRows": rows}


def _history(instance: str, consumed: int, scheduled: int, *, first: bool, last: bool) -> list[Row]:
    """The rows of an episode."""
    message = {"TaskHubMessageId": instance, "TaskHubActionId": instance}
    rows = [_event("OrchestratorStarted", instance)]
    if first:
        own = json.dumps({"InstanceId": instance, "ExecutionId": instance})
        rows.append(_event("ExecutionStarted", instance, OrchestrationInstance=own, **_STARTED, **message))
    else:
        rows += [_event("TaskCompleted", instance, TaskScheduledId=0, Result="7", **message)] * consumed
    rows += [_event("TaskScheduled", instance, **_TASK, TaskHubActionId=instance)] * scheduled
    if last:
        result = {"OrchestrationStatus": "Completed", "Result": "7", "FailureDetails": "null"}
        rows.append(_event("ExecutionCompleted", instance, **result))
    return [*rows, _event("OrchestratorCompleted", instance)]


# --- in which order ------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Orchestration:
    """:param state: the hub's own: ETags. :param row: held by who writes the instance row."""

    id: str
    rows: int = 0
    state: dict[str, str] = field(default_factory=dict)
    row: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What an episode makes durable. :param works: messages for activities. :param consumed: tokens of messages.

    :param row: the instance's, when a reader can see a difference.
    """

    works: Sequence[str]
    history: Sequence[Row]
    sentinel: Row
    row: Row | None
    consumed: Sequence[Any]


class Hub(Protocol):
    """Carries out writes. A token stands for a message that was put and claimed.

    :param others: process ids beside this one, by role.
    """

    others: Mapping[str, int]

    async def settled(self) -> None:
        """Return once nothing is under way any more."""

    async def start(self, of: Orchestration, row: Row, message: str) -> Any:
        """Insert the row, put the message. Its token."""

    async def checkpoint(self, of: Orchestration, value: Checkpoint) -> Sequence[Any]:
        """Return once it is durable, with the tokens of the works; the consumed may still be going."""

    async def respond(self, of: Orchestration, work: Any, text: str) -> Any:
        """Run the activity and put its response: the token of that."""


async def orchestration(hub: Hub, *, steps: int = 1, width: int = 1) -> None:
    """One orchestration: so many steps in turn, each of so many activities. Returns when its end is durable."""
    of = Orchestration(id=uuid4().hex)
    arrived: asyncio.Queue[Any] = asyncio.Queue()
    running: set[asyncio.Task[None]] = set()

    async def activity(work: Any, text: str) -> None:
        arrived.put_nowait(await hub.respond(of, work, text))

    started = envelope("ExecutionStarted", of.id, {"OrchestrationInstance": {"InstanceId": of.id}, **_STARTED})
    consumed = [await hub.start(of, _instance_row(of.id, "Pending"), started)]
    waiting = 0
    while True:
        first = of.rows == 0
        scheduled = width if waiting == 0 and steps else 0
        steps -= bool(scheduled)
        waiting += scheduled
        last = waiting == 0
        history = _history(of.id, len(consumed), scheduled, first=first, last=last)
        works = [envelope("TaskScheduled", of.id, {**_TASK, "TaskHubActionId": of.id}) for _ in range(scheduled)]
        value = Checkpoint(
            works=works,
            history=history,
            sentinel=_sentinel(of.id, of.rows + len(history)),
            row=_instance_row(of.id, "Completed" if last else "Running") if first or last else None,
            consumed=consumed,
        )
        tokens = await hub.checkpoint(of, value)
        of.rows += len(history)
        if last:
            return
        for token, text in zip(tokens, works, strict=True):
            task = asyncio.create_task(activity(token, text))
            running.add(task)
            task.add_done_callback(running.discard)
        consumed = [await arrived.get()]
        while not arrived.empty():  # responses that arrive together share an episode
            consumed.append(arrived.get_nowait())
        waiting -= len(consumed)


# --- the embedded store's ------------------------------------------------------------------------------------------

_PUT = "INSERT INTO messages (number, queue, visible, inserted, receipt, dequeues, text) VALUES (?, 1, 0, 0, 0, 1, ?)"
_DELETE = "DELETE FROM messages WHERE number = ?"
_INSERT = "INSERT INTO rows (tbl, pk, rk, etag, ts, data) VALUES (?, ?, ?, ?, 0, ?)"
_UPDATE = "UPDATE rows SET etag = ?, data = ? WHERE tbl = ? AND pk = ? AND rk = ?"
_INSTANCES, _HISTORY = 1, 2
_CHILD = """
import json, socket, sys
link, rest = socket.socket(fileno=int(sys.argv[1])), b""
while data := link.recv(1 << 20):
    *lines, rest = (rest + data).split(b"\\n")
    link.sendall("".join(json.dumps({"number": json.loads(line)["number"]}) + "\\n" for line in lines).encode())
"""
Statements = list[tuple[str, tuple[Any, ...]]]


class Embedded:
    """A :class:`Hub` over one SQLite file with the tables of the embedded store. An asynchronous context manager."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ceiling.db"
        self._jobs: queue.SimpleQueue[tuple[Statements, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._numbers = count(1)
        self._results: dict[int, asyncio.Future[None]] = {}
        self._sending: list[str] = []
        self.commits = 0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._writer = threading.Thread(target=self._write)
        self._writer.start()
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", _CHILD, str(theirs.fileno())]
        self._child = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()])
        self.others: Mapping[str, int] = {EXECUTORS: self._child.pid}
        theirs.close()
        reader, self._link = await asyncio.open_connection(sock=ours, limit=1 << 20)
        self._reading = asyncio.create_task(self._read(reader))
        return self

    async def __aexit__(self, *error: object) -> None:
        self._reading.cancel()
        self._link.close()
        self._jobs.put(None)
        self._writer.join()
        await self._child.wait()

    async def settled(self) -> None:
        """Every write is awaited here."""

    async def start(self, of: Orchestration, row: Row, message: str) -> int:
        number = next(self._numbers)
        insert = (_INSERT, (_INSTANCES, of.id, "", 1, json.dumps(row)))
        await self._commit([insert, (_PUT, (number, message))])
        return number

    async def checkpoint(self, of: Orchestration, value: Checkpoint) -> Sequence[int]:
        works = [next(self._numbers) for _ in value.works]
        statements: Statements = [(_PUT, pair) for pair in zip(works, value.works, strict=True)]
        for ordinal, row in enumerate(value.history, of.rows):
            statements.append((_INSERT, (_HISTORY, of.id, f"{ordinal:016X}", 1, json.dumps(row))))
        sentinel = json.dumps(value.sentinel)
        if of.rows:
            statements.append((_UPDATE, (of.rows, sentinel, _HISTORY, of.id, "sentinel")))
        else:
            statements.append((_INSERT, (_HISTORY, of.id, "sentinel", 1, sentinel)))
        if value.row is not None:
            statements.append((_UPDATE, (of.rows, json.dumps(value.row), _INSTANCES, of.id, "")))
        statements += [(_DELETE, (number,)) for number in value.consumed]
        await self._commit(statements)
        return works

    async def respond(self, of: Orchestration, work: Any, text: str) -> int:
        ended = self._results[work] = self._loop.create_future()
        if not self._sending:
            self._loop.call_soon(self._send)
        self._sending.append(json.dumps({"number": work, "name": "nothing", "input": "[7]"}))
        await ended
        number = next(self._numbers)
        response = envelope("TaskCompleted", of.id, {"TaskScheduledId": 0, "Result": "7", "TaskHubActionId": of.id})
        await self._commit([(_PUT, (number, response)), (_DELETE, (work,))])
        return number

    # the child

    def _send(self) -> None:
        self._link.write("".join(f"{line}\n" for line in self._sending).encode())
        self._sending.clear()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while data := await reader.read(1 << 20):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._results.pop(json.loads(line)["number"]).set_result(None)

    # the writer

    async def _commit(self, statements: Statements) -> None:
        done = self._loop.create_future()
        self._jobs.put((statements, done))
        await done

    def _write(self) -> None:
        connection = connect(self._path, 0.0)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(SCHEMA)
        while (job := self._jobs.get()) is not None:
            group = [job]
            while not self._jobs.empty() and (job := self._jobs.get()) is not None:
                group.append(job)
            self._transact(connection, [statement for statements, _ in group for statement in statements])
            self._loop.call_soon_threadsafe(_settle, [done for _, done in group])
        connection.close()

    def _transact(self, connection: sqlite3.Connection, statements: Statements) -> None:
        """One transaction, grouped by kind: of two writes that arrived together none depends on the other."""
        kinds: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for sql, values in statements:
            kinds[sql].append(values)
        connection.execute("BEGIN IMMEDIATE")
        for sql, rows in kinds.items():
            connection.executemany(sql, rows)
        connection.execute("COMMIT")
        self.commits += 1


def _settle(waiting: Sequence[asyncio.Future[None]]) -> None:
    for done in waiting:
        done.set_result(None)
