"""Compares two runs of one orchestrator: their facts, their inputs and outputs, and their calls. No I/O.

A call is an activity or a child that an orchestrator started, with its retries. The n-th call of a name in one run is
matched with the n-th call of this name in the other run. Task ids cannot be used, because a version of the code with
one more timer gives other numbers to all later calls. Inputs cannot be used, because they differ between runs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import events
from airflow_provider_taskhub.engine.events import HistoryEvent
from airflow_provider_taskhub.engine.failures import headline, is_cancel
from airflow_provider_taskhub.plugins.json_views import Show
from airflow_provider_taskhub.plugins.shown_instances import HIDDEN
from airflow_provider_taskhub.plugins.timeline import milliseconds, only

MOST_DIFFERENCES = 100
"""The largest number of differences between two JSON texts that are listed."""
_LONGEST = 2_000
_ABSENT = object()


@dataclass(slots=True, kw_only=True)
class Call:
    """An activity or a child that an orchestrator started.

    :param kind: ``activity`` or ``child``.
    :param name: the name of the activity, or of the child's orchestrator.
    :param input: JSON text.
    :param begun: when the first try was scheduled.
    :param ended: when the last try ended; None: it has not ended.
    :param outcome: ``completed``, ``failed`` or ``open``.
    :param tries: the number of tries. A retry is a call with the same name and input as a call that failed before.
    :param result: JSON text; if the call failed, the text of the error.
    """

    kind: str
    name: str
    input: str | None
    begun: Timestamp
    ended: Timestamp | None = None
    outcome: str = "open"
    tries: int = 1
    result: str | None = None


def calls_of(history: Iterable[HistoryEvent]) -> list[Call]:
    """Return the calls of one generation in the order in which they were started. :param history: its events."""
    found: list[Call] = []
    by_task: dict[int, Call] = {}
    failed: dict[tuple[str, str | None], list[Call]] = defaultdict(list)
    for event in history:
        match event:
            case events.TaskScheduled() | events.SubOrchestrationInstanceCreated():
                again = failed[event.name, event.input]
                if again:
                    call = by_task[event.event_id] = again.pop(0)
                    call.tries, call.ended, call.outcome, call.result = call.tries + 1, None, "open", None
                    continue
                activity = isinstance(event, events.TaskScheduled)
                call = by_task[event.event_id] = Call(
                    kind="activity" if activity else "child",
                    name=event.name,
                    input=only(event.input) if activity else event.input,
                    begun=event.timestamp,
                )
                found.append(call)
            case events.TaskCompleted() | events.SubOrchestrationInstanceCompleted():
                if ended := by_task.get(event.task_scheduled_id):
                    ended.ended, ended.outcome, ended.result = event.timestamp, "completed", event.result
            case events.TaskFailed() | events.SubOrchestrationInstanceFailed():
                if ended := by_task.get(event.task_scheduled_id):
                    text = headline(event.failure) if event.failure else event.reason
                    outcome = "cancelled" if is_cancel(event.failure) else "failed"
                    ended.ended, ended.outcome, ended.result = event.timestamp, outcome, text
                    given = f"[{ended.input}]" if ended.kind == "activity" and ended.input is not None else ended.input
                    if not is_cancel(event.failure):  # what was cancelled is not tried again
                        failed[ended.name, given].append(ended)
    return found


def matched(one: Sequence[Call], other: Sequence[Call]) -> list[tuple[Call | None, Call | None]]:
    """Match the calls of two runs by their names and their order.

    :returns: pairs in the order of the first run. A call that only the other run has stands behind the call that is
        before it in the other run. None: this run has no such call.
    """
    left, right = _numbered(one), _numbered(other)
    behind: dict[tuple[str, str, int] | None, list[tuple[str, str, int]]] = defaultdict(list)
    before = None
    for key in right:
        if key in left:
            before = key
        else:
            behind[before].append(key)
    order = [*behind[None], *(key for own in left for key in (own, *behind[own]))]
    return [(left.get(key), right.get(key)) for key in order]


def _numbered(calls: Iterable[Call]) -> dict[tuple[str, str, int], Call]:
    """Return the calls by kind, name, and how many calls of this name were before."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    found = {}
    for call in calls:
        found[call.kind, call.name, counts[call.kind, call.name]] = call
        counts[call.kind, call.name] += 1
    return found


def pairs(one: Sequence[Call], other: Sequence[Call], shows: tuple[Show, Show]) -> list[dict[str, Any]]:
    """Return the matched calls as JSON.

    :param one: the calls of the first run.
    :param other: the calls of the other run.
    :param shows: for each run a function that masks or hides a payload.
    """
    return [_pair(left, right, shows) for left, right in matched(one, other)]


def _pair(left: Call | None, right: Call | None, shows: tuple[Show, Show]) -> dict[str, Any]:
    there = [call for call in (left, right) if call is not None]
    return {
        "name": there[0].name,
        "kind": there[0].kind,
        "one": _call(left, shows[0]),
        "other": _call(right, shows[1]),
        "same_input": _same([show(call.input) for show, call in zip(shows, there, strict=False)]),
        "same_result": _same([show(call.result) for show, call in zip(shows, there, strict=False)]),
    }


def _call(call: Call | None, show: Show) -> dict[str, Any] | None:
    if call is None:
        return None
    return {
        "begun": milliseconds(call.begun),
        "ended": milliseconds(call.ended),
        "outcome": call.outcome,
        "tries": call.tries,
        "input": show(call.input)[:_LONGEST],
        "result": show(call.result)[:_LONGEST],
    }


def _same(texts: Sequence[str]) -> bool | None:
    """Return whether two shown texts are equal; None: there is only one, or the user may not read one of them."""
    return None if len(texts) < 2 or HIDDEN in texts else texts[0] == texts[1]


def differences(one: str, other: str) -> list[dict[str, str | None]] | None:
    """Return where two JSON texts differ, each place with both values; an empty list: they are equal.

    :param one: a text as the user may see it; "" for no text.
    :param other: the other text.
    :returns: None if the user may not read one of them. At most :data:`MOST_DIFFERENCES` places are returned.
    """
    if HIDDEN in (one, other):
        return None
    found = []
    for path, left, right in _differ("", _value(one), _value(other)):
        found.append({"path": path, "one": _text(left), "other": _text(right)})
        if len(found) == MOST_DIFFERENCES:
            break
    return found


def _value(text: str) -> Any:
    """Return the value of a JSON text; the text itself if it is none, for example the text of an error."""
    if not text:
        return _ABSENT
    try:
        return json.loads(text)
    except ValueError:
        return text


def _differ(path: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            inner = f"{path}.{name}" if path else name
            yield from _differ(inner, one.get(name, _ABSENT), other.get(name, _ABSENT))
    elif isinstance(one, list) and isinstance(other, list):
        for at in range(max(len(one), len(other))):
            items = (items[at] if at < len(items) else _ABSENT for items in (one, other))
            yield from _differ(f"{path}[{at}]", *items)
    elif type(one) is not type(other) or one != other:
        yield path, one, other


def _text(value: Any) -> str | None:
    return None if value is _ABSENT else json.dumps(value, ensure_ascii=False)[:_LONGEST]
