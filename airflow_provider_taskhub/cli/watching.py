"""Waits for an instance, and meanwhile prints which activities run and what the instance waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from airflow_provider_taskhub.cli.output import errors
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InstanceNotFound, StorageError
from airflow_provider_taskhub.hub.model import ActivityRecord, InstanceState, RecordState
from airflow_provider_taskhub.hub.partitions.capabilities import listed
from airflow_provider_taskhub.hub.waiting.reasons import Reason, Why, unstopped
from airflow_provider_taskhub.masking import masked
from airflow_provider_taskhub.supervision import owned

LOOK = 2.0
"""Seconds from one reading of what an instance waits for to the next."""
PROGRESS_LOOKS = 5
"""The factor by which the pause between two readings is longer while an activity with an activity record runs. Its
progress differs at each reading, so that each reading prints a line."""
_NO_CODE = frozenset({Reason.NO_ORCHESTRATOR, Reason.VERSION, Reason.NOT_OWNER})
"""Reasons for which the clean-up of an instance cannot begin."""
MAX_MESSAGE = 200
"""The largest number of characters of a progress message that a line shows."""


async def waited(client: Client, instance_id: str, *, timeout: timedelta | None, quiet: bool) -> InstanceState:
    """Wait until an instance has ended, and meanwhile print what the instance waits for.

    :param timeout: the longest time to wait; None: no limit.
    :param quiet: True: print a line for each change, also on a terminal. False: a terminal shows one line that changes.
    :raises TimeoutError: if the instance has not ended within ``timeout``.
    """
    return await _shown(_Wait(client, instance_id), client.wait(instance_id, timeout=timeout), quiet=quiet)


async def terminated(
    client: Client,
    instance_id: str,
    reason: str,
    *,
    recurse: bool,
    grace: timedelta | None,
    timeout: timedelta | None,
    quiet: bool,
) -> InstanceState:
    """Terminate an instance, wait until nothing of it runs any more, and print what the termination waits for.

    Parameters and errors: :meth:`.Client.terminate` and :func:`waited`.
    """
    wait = _Termination(client, instance_id, grace)
    ending = client.terminate(
        instance_id, reason, wait=True, recurse=recurse, grace=grace, timeout=timeout, progress=wait.turn_to_child
    )
    return await _shown(wait, ending, quiet=quiet)


async def _shown(wait: _Wait, work: Coroutine[Any, Any, InstanceState], *, quiet: bool) -> InstanceState:
    async with owned() as start:
        return await (_spun if errors.is_terminal and not quiet else _lines)(wait, start(work))


async def _lines(wait: _Wait, work: asyncio.Task[InstanceState]) -> InstanceState:
    """Print on standard error what an instance waits for, whenever that changes."""
    said = ""
    await asyncio.wait((work,), timeout=LOOK)
    while not work.done():
        text, running = await wait.standing()
        if text != said:
            said = text
            errors.print(text or "the instance goes on", soft_wrap=True)
        # The progress of a running activity differs at each reading. A longer pause prints fewer lines.
        await asyncio.wait((work,), timeout=LOOK * (PROGRESS_LOOKS if running else 1))
    return await work


async def _spun(wait: _Wait, work: asyncio.Task[InstanceState]) -> InstanceState:
    folded = Column(overflow="fold")  # by default a long line is cut, and its end says what the user can do
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=folded),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, transient=True) as progress:
        line = progress.add_task("waiting")
        while not work.done():
            state = await wait.client.get(wait.instance_id, payloads=False)
            status = "not found" if state is None else str(state.status)
            text, _ = await wait.standing()
            progress.update(line, description=", ".join(part for part in (status, text) if part))
            await asyncio.wait((work,), timeout=1.0)
    return await work


class _Wait:
    """What a command prints while it waits for the end of an instance."""

    def __init__(self, client: Client, instance_id: str) -> None:
        self.client, self.instance_id = client, instance_id

    async def standing(self) -> tuple[str, bool]:
        """Return a text about what the instance does and waits for, and whether an activity with a record runs.

        The text is "" while the instance cannot be read. The wait itself reports the error.
        """
        try:
            running = await self._running()
            reasons = await self._reasons(running)
        except (StorageError, InstanceNotFound):
            return "", False
        shown = listed(map(_attempt, running))
        why = told(reasons)
        parts = (f"running {len(running)}: {shown}" if running else "", f"waits: {why}" if why else "")
        return "; ".join(part for part in parts if part), bool(running)

    async def _running(self) -> tuple[ActivityRecord, ...]:
        found = await self.client.instance(self.instance_id).shown_activities()
        return tuple(record for record in found if record.runs)

    async def _reasons(self, running: Sequence[ActivityRecord]) -> tuple[Why, ...]:
        return await self.client.instance(self.instance_id).waiting()


class _Termination(_Wait):
    """What a command prints while it waits for a terminated instance, and then for one child after the other.

    :param grace: time for the clean-up of the instance; None: there is no clean-up.
    """

    def __init__(self, client: Client, instance_id: str, grace: timedelta | None) -> None:
        super().__init__(client, instance_id)
        self._child, self._grace = False, grace

    def turn_to_child(self, instance_id: str) -> None:
        self.instance_id, self._child = instance_id, True

    async def standing(self) -> tuple[str, bool]:
        text, running = await super().standing()
        return f"child {self.instance_id!r}: {text}" if self._child and text else text, running

    async def _reasons(self, running: Sequence[ActivityRecord]) -> tuple[Why, ...]:
        """Return why the termination does not go on, which is not why the instance makes no progress.

        A termination waits neither for what the orchestrator awaits, such as an event, nor for the end of a suspension.
        """
        state = await self.client.get(self.instance_id, payloads=False)
        if state is None:
            return ()
        if state.status.is_final:
            return unstopped(await self.client.admin.workers()) if running else ()
        bare = replace(state, status=Status.RUNNING, tags=None)
        found = (await self.client.admin.waiting_of([bare], sentinels=0)).get(self.instance_id, ())
        return found if self._grace is None else tuple(_with_end(why, self._grace) for why in found)


def _with_end(why: Why, grace: timedelta) -> Why:
    """Return the reason. If no worker has the code for the clean-up, its text also says when the wait ends."""
    if why.reason not in _NO_CODE:
        return why
    end = f"without its code, the instance ends {grace.total_seconds():g} s after a worker has got the request"
    return replace(why, text=f"{why.text}; {end}")


def told(reasons: Sequence[Why]) -> str:
    """Return all reasons in one line."""
    return "; ".join(map(str, reasons))


def _attempt(record: ActivityRecord) -> str:
    stopping = "(cancelling)" if record.state is RecordState.CANCELLING else ""
    return " ".join(part for part in (record.name, stopping, progress_of(record)) if part)


def progress_of(record: ActivityRecord) -> str:
    """Return the progress that the attempt reported last, for example ``50 %  loads May``; "" if there is none."""
    share = None if record.progress is None else f"{record.progress * 100:.0f} %"
    return "  ".join(part for part in (share, _line(record.message)) if part)


def _line(text: str | None) -> str:
    """Return the first :data:`MAX_MESSAGE` characters of a text of user code as one line, with its secrets masked.

    The text is masked before it is cut, because no pattern finds a secret whose end is cut off.

    :param text: None: the result is empty.
    """
    return masked(" ".join((text or "").split()))[:MAX_MESSAGE]
