"""Compares a decision of replayed code with the row that the history has for this decision: input, child id, receiver.

Kind and name are compared before, by :mod:`.open_actions`. Rows of a .NET worker are not compared, because .NET writes
values in other forms. Versions and tags are not compared: both may change when code is deployed. Timers are not
compared: replay follows the time in the history.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any

from airflow_provider_taskhub.codec import loads
from airflow_provider_taskhub.engine.actions import Action, default_child_id
from airflow_provider_taskhub.engine.events import (
    EventSent,
    HistoryEvent,
    OrchestrationInstance,
    SubOrchestrationInstanceCreated,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.identity import action_id

_SHOWN = 200
"""Maximum characters of a value in the text of an error."""

Changed = MutableMapping[tuple[str, ...], tuple[set[str], set[str]]]
"""The inputs of the calls whose records have other fields than the recorded ones: the recorded inputs, and those of the
code. The key has the kind and the name of the call, and the receiver of an event."""


def difference(
    event: HistoryEvent, action: Action, instance: OrchestrationInstance, rewinds: int, changed: Changed
) -> tuple[str, str] | None:
    """Return how a decision of replayed code differs from its row in the history; None if it does not differ.

    A record that only has more fields than the recorded one, or only fewer, does not differ: code that was deployed
    while the instance ran may add fields. This holds for objects at any depth. But if the input of the code is that of
    another call of the same name, and the recorded one too, the code has swapped the calls, which is a difference.

    :param event: the row of the decision, such as TaskScheduled.
    :param action: the decision of the code, with the same kind, number and name.
    :param instance: the instance, with its current execution id.
    :param rewinds: number of rewinds in the history.
    :param changed: the earlier calls whose fields differ. This call is added if its fields differ.
    :returns: what the row has, and what the code has decided, such as ``("the input 1", "the input 2")``.
    """
    if (
        not isinstance(event, TaskScheduled | SubOrchestrationInstanceCreated | EventSent)
        or not event.taskhub_action_id
    ):
        return None
    if isinstance(event, SubOrchestrationInstanceCreated):
        child = action.instance_id or default_child_id(instance, action.number)
        if child != event.instance_id:
            return f"the instance id {event.instance_id!r}", f"the instance id {child!r}"
    if isinstance(event, EventSent) and event.instance_id != action.instance_id:
        return f"the receiver {event.instance_id!r}", f"the receiver {action.instance_id!r}"
    if event.input == action.input and event.input is not None:
        return None
    if event.input is not None:
        recorded, decided = _value(event, event.input), _value(event, action.input)
        if not _is_same(recorded, decided):
            return _shown(event, event.input), _shown(event, action.input)
        receiver = event.instance_id if isinstance(event, EventSent) else ""
        names = (event.event_type.name, event.name.casefold(), receiver)
        if recorded != decided and _is_swapped(recorded, decided, changed.setdefault(names, (set(), set()))):
            other = "which the history has for an earlier call of this name: the two calls were swapped"
            return _shown(event, event.input), f"{_shown(event, action.input)}, {other}"
        return None
    # There was no input, or the row leaves out a long input. The hash of the input is a part of the identity.
    none = (None, "null")
    if _has_input(event, action, instance, rewinds, none if action.input in none else (action.input,)):
        return None
    without = _has_input(event, action, instance, rewinds, none)
    recorded = "no input" if without else "another input, which is longer than the history keeps"
    return recorded, _shown(event, action.input)


def _has_input(
    event: TaskScheduled | SubOrchestrationInstanceCreated | EventSent,
    action: Action,
    instance: OrchestrationInstance,
    rewinds: int,
    inputs: tuple[str | None, ...],
) -> bool:
    """Return whether the identity in a row was computed from one of the inputs."""
    version = "" if isinstance(event, EventSent) else event.version  # not compared: see the docstring of the module
    return any(
        event.taskhub_action_id
        == action_id(instance, action.number, action.role, event.name, version=version, input=input, rewinds=count)
        for input in inputs
        for count in range(rewinds + 1)
    )


def _value(event: HistoryEvent, text: str | None) -> Any:
    """Return an input as a value. No input is the same as the input None: a worker without the code writes None."""
    value = None if text is None else loads(text)
    if isinstance(event, TaskScheduled) and value == []:
        return [None]
    return value


def _is_same(recorded: Any, decided: Any) -> bool:
    if isinstance(recorded, dict) and isinstance(decided, dict):
        common = recorded.keys() & decided.keys()
        if len(common) < min(len(recorded), len(decided)):
            return False
        return all(_is_same(recorded[key], decided[key]) for key in common)
    if isinstance(recorded, list) and isinstance(decided, list):
        return len(recorded) == len(decided) and all(map(_is_same, recorded, decided))
    return bool(recorded == decided)


def _is_swapped(recorded: Any, decided: Any, earlier: tuple[set[str], set[str]]) -> bool:
    """Return whether earlier calls had both inputs of a call, the other way round. The inputs are added to theirs."""
    inputs = [json.dumps(value, sort_keys=True) for value in (recorded, decided)]
    for known, text in zip(earlier, inputs, strict=True):
        known.add(text)
    return inputs[1] in earlier[0] and inputs[0] in earlier[1]


def _shown(event: HistoryEvent, text: str | None) -> str:
    what = "the data" if isinstance(event, EventSent) else "the input"
    if text is None or (isinstance(event, TaskScheduled) and text == "[]"):
        return "no input"
    shown = text
    if isinstance(event, TaskScheduled):
        arguments = loads(text)
        shown = json.dumps(arguments[0], separators=(",", ":")) if len(arguments) == 1 else text
    return f"{what} {shown if len(shown) <= _SHOWN else f'{shown[:_SHOWN]}… ({len(shown):,} characters)'}"
