"""Finds instances that wait for each other in a circle, so that none of them can ever go on.

The start of a child waits while another run uses its instance id. If that run waits for the sender of the start, also
over other instances, this is a circle. The checkpoint of each instance stores which children its code cannot do without
(``Awaits.needed``), so the circle can be found by reading sentinels, the last rows of the histories.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import ExecutionStarted
from airflow_provider_taskhub.engine.identity import run_name, same_start
from airflow_provider_taskhub.hub.formats.history_rows import Sentinel
from airflow_provider_taskhub.hub.formats.waits_column import decode_awaits

MAX_READ = 100
"""How many sentinels one search reads at most. A circle behind more instances is not found."""
PARALLEL = 16
"""How many sentinels are read at the same time."""

Read = Callable[[str], Awaitable[Sentinel | None]]
"""Reads the sentinel of an instance; None: it has none, or it cannot be read."""


async def waiting_circle(start: ExecutionStarted, execution_id: str | None, read: Read) -> tuple[str, ...]:
    """Return the instances that wait for each other if the start of a child waits for the end of a run.

    Only what is stored counts. If the checkpoint of the sender, which sends the start before it writes its history, is
    still under way, the circle is found when the start comes again.

    :param start: the start, which waits.
    :param execution_id: the live run of the same instance id.
    :param read: reads a sentinel.
    :returns: the ids, in the order in which each instance waits for the next one: first the instance with the live run,
        last the sender. Empty if there is no circle.
    """
    instance_id, run = start.instance.instance_id, run_name(start.instance.execution_id or "")
    assert start.parent is not None  # the caller has checked it
    caller = start.parent.instance
    sender = await read(caller.instance_id)
    if sender is None or not same_start(sender.execution_id, caller.execution_id):
        return ()
    if (instance_id, run) not in _needed(sender):
        return ()
    first = await read(instance_id)
    if first is None or not same_start(first.execution_id, execution_id):
        return ()
    came_from: dict[str, str] = {instance_id: ""}
    level, count = [(instance_id, first)], 2
    while level:
        found: list[tuple[str, str]] = []
        for waiting, sentinel in level:
            for child, name in _needed(sentinel):
                if child == caller.instance_id and name not in sender.ended:
                    return (*_path(waiting, came_from), caller.instance_id)
                if child not in came_from and child != caller.instance_id:
                    came_from[child] = waiting
                    found.append((child, name))
        found = found[: MAX_READ - count]
        count += len(found)
        read_now = await gather_bounded(lambda one: read(one[0]), found, limit=PARALLEL)
        # A run in the list of the ended ones has answered: its answer is on its way. Every other run is the present run
        # of its id, or waits for the end of that run.
        level = [
            (child, sentinel)
            for (child, name), sentinel in zip(found, read_now, strict=True)
            if sentinel is not None and name not in sentinel.ended
        ]
    return ()


def _needed(sentinel: Sentinel) -> Sequence[tuple[str, str]]:
    return decode_awaits(sentinel.awaits).needed


def _path(last: str, came_from: dict[str, str]) -> list[str]:
    path = [last]
    while before := came_from[path[-1]]:
        path.append(before)
    return path[::-1]
