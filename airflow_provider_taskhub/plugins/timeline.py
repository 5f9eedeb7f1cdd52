"""Makes the timeline of an instance from its history and its activity records: lanes with bars. No I/O.

Times are milliseconds since 1970, as JavaScript uses them. A generation is the part of a run between two calls of
``continue_as_new``; the timeline shows one generation.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import events, grace
from airflow_provider_taskhub.engine.events import HistoryEvent
from airflow_provider_taskhub.engine.failures import is_cancel, is_terminated
from airflow_provider_taskhub.engine.wait_changes import Waits
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState

MOST_LANES = 400
"""The largest number of lanes in the timeline. If there are more, the page shows the first ones and the number of the
others."""
_LONGEST_LABEL = 31
"""The largest number of characters of a lane's label, for which there is room beside the bars."""


@dataclass(slots=True)
class TimelineLane:
    """One horizontal line of the timeline: an activity, a timer, a child, or a wait for an external event.

    :param label: the text beside the bars.
    :param kind: ``activity``, ``timer``, ``child`` or ``event``.
    :param task_id: the task id of the action; -1 for the kind ``event``.
    :param begun: when the action was scheduled or the wait began; lanes are ordered by this time.
    :param bars: the bars, one for each attempt, as JSON objects.
    """

    label: str
    kind: str
    task_id: int
    begun: Timestamp
    bars: list[dict[str, Any]] = field(default_factory=list)


def timeline(
    history: Sequence[HistoryEvent], records: Sequence[ActivityRecord], show: Callable[[str | None], str]
) -> dict[str, Any]:
    """Return the lanes, episodes and marks of one generation of an instance.

    :param history: the events of the generation.
    :param records: the activity records of the same generation. Other generations use the same task ids again.
    :param show: masks or hides an input or a message.
    """
    lanes = {lane.task_id: lane for lane in _scheduled(history, show)}
    for record in records:
        lane = lanes.setdefault(
            record.task_id,
            TimelineLane(label=record.name, kind="activity", task_id=record.task_id, begun=record.claimed),
        )
        lane.bars.append(_attempt(record, show))
    _answer(history, lanes)
    ended = any(isinstance(event, events.ExecutionCompleted) for event in history)
    for lane in lanes.values():
        lane.bars[:] = _with_waits(lane.bars, ended=ended)
    _join_retries(history, lanes)
    ordered = sorted([*lanes.values(), *_waits(history)], key=lambda lane: (lane.begun.ticks, lane.task_id))
    return {
        "lanes": [
            {"label": lane.label, "kind": lane.kind, "task": lane.task_id, "bars": lane.bars}
            for lane in ordered[:MOST_LANES]
        ],
        "more": max(0, len(ordered) - MOST_LANES),
        "episodes": _episodes(history),
        "marks": [*_events(history), *_losses(records)],
    }


def milliseconds(time: Timestamp | None) -> float | None:
    """Return a time as milliseconds since 1970; None for None."""
    return None if time is None else time.ticks / 10_000


def _scheduled(history: Sequence[HistoryEvent], show: Callable[[str | None], str]) -> Iterator[TimelineLane]:
    labels = _labels(history, show)
    for event in history:
        match event:
            case events.TaskScheduled():
                label = labels[event.event_id]
                yield TimelineLane(label=label, kind="activity", task_id=event.event_id, begun=event.timestamp)
            case events.SubOrchestrationInstanceCreated():
                label = labels[event.event_id]
                yield TimelineLane(label=label, kind="child", task_id=event.event_id, begun=event.timestamp)
            case events.TimerCreated():
                lane = TimelineLane(label="timer", kind="timer", task_id=event.event_id, begun=event.timestamp)
                lane.bars.append(
                    {
                        "start": milliseconds(event.timestamp),
                        "end": None,
                        "state": "waiting",
                        "until": milliseconds(event.fire_at),
                    }
                )
                yield lane


def _answer(history: Sequence[HistoryEvent], lanes: dict[int, TimelineLane]) -> None:
    """Set the ends of timers, and add a bar from start to end to each lane that has no activity record.

    A timer ends when it fires or is cancelled. The message of a cancelled timer may still arrive, and is ignored. A
    timer that neither fired nor was cancelled ends with the instance.
    """
    ends: dict[int, tuple[Timestamp, str]] = {}
    cancelled: dict[int, Timestamp] = {}
    for event in history:
        match event:
            case events.EventSent() if event.taskhub_cancels is not None:
                cancelled[event.taskhub_cancels] = event.timestamp
            case events.TaskFailed() if is_cancel(event.failure):
                ends[event.task_scheduled_id] = event.timestamp, "cancelled"
            case events.SubOrchestrationInstanceFailed() if _is_end_of_cancelled(event, cancelled):
                ends[event.task_scheduled_id] = event.timestamp, "cancelled"
            case events.TaskCompleted() | events.SubOrchestrationInstanceCompleted():
                ends[event.task_scheduled_id] = event.timestamp, "completed"
            case events.TaskFailed() | events.SubOrchestrationInstanceFailed():
                ends[event.task_scheduled_id] = event.timestamp, "failed"
            case events.TimerFired() if event.timer_id not in ends:
                ends[event.timer_id] = event.fired_at, "fired"
            case events.OrchestratorCompleted():
                for number in Waits.parse(event.taskhub_waits).timers:
                    ends.setdefault(number, (event.timestamp, "cancelled"))
    over = next((e.timestamp for e in history if isinstance(e, events.ExecutionCompleted)), None)
    for lane in lanes.values():
        if lane.kind == "child" and lane.task_id in cancelled:  # no answer has come yet
            ends.setdefault(lane.task_id, (cancelled[lane.task_id], "cancelled"))
        time, state = ends.get(lane.task_id, (over, "cancelled" if over else "scheduled"))
        if lane.kind == "timer":
            lane.bars[0] |= {"end": milliseconds(time), "state": state if time else "waiting"}
        elif not lane.bars:
            bar = {"start": milliseconds(lane.begun), "end": milliseconds(time), "state": state, "worker": None}
            lane.bars.append(bar)


def _is_end_of_cancelled(event: events.SubOrchestrationInstanceFailed, cancelled: Collection[int]) -> bool:
    """Return whether a child has ended because the orchestrator has cancelled it."""
    return is_terminated(event) and event.task_scheduled_id in cancelled


def _join_retries(history: Sequence[HistoryEvent], lanes: dict[int, TimelineLane]) -> None:
    """Move the bars of a retry into the lane of the first try.

    A retry is a new action with a new task id. It is recognized by the same name and input as an action that failed
    before. Each moved bar has the new task id and the number of the try.
    """
    asked: dict[int, tuple[str, str | None]] = {}
    lane_of: dict[int, int] = {}
    tries: dict[int, int] = {}
    failed: dict[tuple[str, str | None], list[int]] = {}
    cancelled: set[int | None] = set()  # what was cancelled is not tried again
    for event in history:
        if isinstance(event, events.EventSent):
            cancelled.add(event.taskhub_cancels)
        elif isinstance(event, events.TaskScheduled | events.SubOrchestrationInstanceCreated):
            number = event.event_id
            key = asked[number] = event.name, event.input
            lane = lane_of[number] = failed[key].pop(0) if failed.get(key) else number
            tries[lane] = tries.get(lane, 0) + 1
            again = lanes.pop(number).bars if lane != number and number in lanes else []
            if again:
                lanes[lane].bars.extend(bar | {"task": number, "try": tries[lane]} for bar in again)
        elif isinstance(event, events.TaskFailed | events.SubOrchestrationInstanceFailed):
            number = event.task_scheduled_id
            if number in asked and number not in cancelled:
                failed.setdefault(asked[number], []).append(lane_of[number])


def _waits(history: Sequence[HistoryEvent]) -> Iterator[TimelineLane]:
    """Yield a lane for each wait for an external event.

    Its bar begins with the episode (one run of the orchestrator) that began the wait, and ends with the episode that
    ended the wait. If no episode ended it, the bar ends with the instance, or is open while the instance runs.
    """
    lanes: list[TimelineLane] = []
    waiting: dict[tuple[str, int], list[TimelineLane]] = {}
    time = over = None
    for event in history:
        if isinstance(event, events.OrchestratorStarted):
            time = event.timestamp
        elif isinstance(event, events.ExecutionCompleted):
            over = event.timestamp
        elif isinstance(event, events.OrchestratorCompleted):
            waits, at = Waits.parse(event.taskhub_waits), time or event.timestamp
            for name in waits.begun:
                lane = TimelineLane(label=f"wait for {name}", kind="event", task_id=-1, begun=at)
                lane.bars.append({"start": milliseconds(at), "end": None, "state": "waiting", "worker": None})
                lanes.append(lane)
                waiting.setdefault((name, at.ticks), []).append(lane)
            for wait in waits.ended:
                if found := waiting.get((wait.name, wait.since.ticks)):
                    found.pop(0).bars[0] |= {"end": milliseconds(event.timestamp), "state": "ended"}
    for lane in lanes:
        if over is not None and lane.bars[0]["end"] is None:
            lane.bars[0] |= {"end": milliseconds(over), "state": "cancelled"}
        yield lane


def _attempt(record: ActivityRecord, show: Callable[[str | None], str]) -> dict[str, Any]:
    return {
        "start": milliseconds(record.claimed),
        "end": milliseconds(record.ended),
        "state": str(record.state),
        "worker": record.worker,
        "attempt": record.attempt,
        "progress": record.progress,
        "message": show(record.message),
    }


def _with_waits(bars: Sequence[dict[str, Any]], *, ended: bool) -> Iterator[dict[str, Any]]:
    """Yield the bars of an activity, and after each attempt that was lost with its worker the wait for the next one.

    :param ended: whether the instance has ended, so that no further attempt begins.
    """
    for bar, after in zip(bars, [*bars[1:], None], strict=True):
        yield bar
        if bar["state"] != RecordState.LOST or bar["end"] is None:
            continue
        if not ended if after is None else after["start"] > bar["end"]:
            end = None if after is None else after["start"]
            yield {"start": bar["end"], "end": end, "state": "slot", "worker": None}


def _episodes(history: Sequence[HistoryEvent]) -> list[list[float | None]]:
    found: list[list[float | None]] = []
    for event in history:
        if isinstance(event, events.OrchestratorStarted):
            found.append([milliseconds(event.timestamp), None])
        elif isinstance(event, events.OrchestratorCompleted) and found:
            found[-1][1] = milliseconds(event.timestamp)
    return found


def _events(history: Sequence[HistoryEvent]) -> Iterator[dict[str, Any]]:
    for event in history:
        if isinstance(event, events.EventRaised):
            asked = grace.request_of(event) is not None
            text = "asked to end" if asked else f"event {event.name}"
            yield {"time": milliseconds(event.timestamp), "kind": "event", "text": text}
        elif isinstance(event, events.ExecutionTerminated):
            yield {"time": milliseconds(event.timestamp), "kind": "lost", "text": "terminated"}


def _losses(records: Sequence[ActivityRecord]) -> Iterator[dict[str, Any]]:
    """Yield one mark for each worker that lost attempts (it died or was cut off), at the time of its first loss."""
    lost: dict[str, Timestamp] = {}
    for record in records:
        if record.state is RecordState.LOST and record.ended is not None:
            known = lost.get(record.worker)
            lost[record.worker] = record.ended if known is None else min(known, record.ended)
    for worker, time in lost.items():
        yield {"time": milliseconds(time), "kind": "lost", "text": f"{worker} lost"}


def only(text: str | None) -> str | None:
    """Return an activity's input as JSON. DurableTask stores it as a list of one element; remove the list's brackets.

    None and a text without brackets are returned unchanged.
    """
    return text[1:-1] if text and text.startswith("[") and text.endswith("]") else text


def _labels(history: Sequence[HistoryEvent], show: Callable[[str | None], str]) -> dict[int, str]:
    """Return the labels of the calls of activities and children, by the ids of their events."""
    given = {
        event.event_id: (
            event.name,
            show(only(event.input) if isinstance(event, events.TaskScheduled) else event.input),
        )
        for event in history
        if isinstance(event, events.TaskScheduled | events.SubOrchestrationInstanceCreated)
    }
    parts = {event_id: _parts(text) for event_id, (_, text) in given.items()}
    of_name: dict[str, Counter[str]] = defaultdict(Counter)
    for event_id, (name, _) in given.items():
        of_name[name].update(parts[event_id])
    return {event_id: _label(name, parts[event_id], of_name[name]) for event_id, (name, _) in given.items()}


def _parts(given: str) -> list[str]:
    """Return the entries of an input that is a JSON object, each as ``key=value``; else the input itself, if any.

    :param given: the input as JSON, already masked; "" for no input.
    """
    try:
        value = json.loads(given) if given.startswith("{") else None
    except ValueError:  # the input was cut off or masked, so it is not JSON any more
        value = None
    if isinstance(value, dict):
        return [f"{key}={item if isinstance(item, str) else json.dumps(item)}" for key, item in value.items()]
    return [given] if given and given != "null" else []


def _label(name: str, parts: Sequence[str], often: Counter[str]) -> str:
    """Return a lane's label with a short form of the input, for example ``monthly(months=[5], …)``.

    The entries that differ between the calls of the same name come first, and of these the shortest ones.

    :param parts: the entries of the input.
    :param often: how often each entry stands in a call of this name.
    """
    left = sorted(parts, key=lambda part: (often[part], len(part)))
    while left:
        label = f"{name}({', '.join(left)}{', …' if len(left) < len(parts) else ''})"
        if len(label) <= _LONGEST_LABEL:
            return label
        if len(left) == 1:
            return f"{label[: _LONGEST_LABEL - 2]}…)" if len(name) < _LONGEST_LABEL - 4 else name
        left.pop()
    return name
