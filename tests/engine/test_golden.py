"""The same orchestrators, fed with the recorded incoming messages, make the recorded events and messages.

Differences that are meant, and not compared: times (ours never go back, and timers never fire early: K59); ids made of
random numbers there and of values here; members of our own; the input of scheduled activities and children in the
history (there only on demand); FailureDetails of completions (there only in one of its two modes), and so the Output of
failed instances; the order in which the messages of one episode are put (there in parallel).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.episode import Episode, Outbound
from airflow_provider_taskhub.engine.events import (
    EventType,
    ExecutionStarted,
    HistoryEvent,
    OrchestrationInstance,
    OrchestratorStarted,
    Status,
    TimerCreated,
    TimerFired,
)
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.replay import Execution, run
from airflow_provider_taskhub.hub.formats.message_envelope import Envelope
from tests.engine.golden_app import app
from tests.engine.recorded import Checkpoint, checkpoints, parsed, shape
from tests.golden import load

REGISTRY = Registry.of([app])
FOLDERS = (
    *("base64", "big", "catches", "chain", "counter", "eventcounter", "events", "extended", "failuredetails", "fails"),
    *("fanout", "fanout150", "fireforget", "hello", "killed", "nothing", "parent", "purge", "queues", "retry"),
    *("retrygivesup", "scheduled", "sender", "shrink", "suspend", "tags", "terminate", "throws", "timers", "typed"),
    *("typedfails", "version"),
)
OPEN = (EventType.TaskScheduled, EventType.SubOrchestrationInstanceCreated)


def now_of(checkpoint: Checkpoint) -> Timestamp:
    return next(row.timestamp for row in checkpoint.rows if isinstance(row, OrchestratorStarted))


def shapes(events: Sequence[HistoryEvent], like: Sequence[HistoryEvent]) -> list[dict[str, object]]:
    """Shapes, with the inputs that their counterparts lack left out."""
    found = [shape(event) for event in events]
    for mine, theirs in zip(found, like, strict=False):
        if theirs.event_type in OPEN and getattr(theirs, "input", None) is None:
            mine["input"] = None
    return found


def stretches(events: Sequence[HistoryEvent]) -> list[timedelta]:
    """How far ahead of the orchestrator's time timers fire."""
    time, found = Timestamp(0), []
    for event in events:
        if isinstance(event, OrchestratorStarted):
            time = event.timestamp
        elif isinstance(event, TimerCreated):
            found.append(event.fire_at - time)
    return found


def order(event: HistoryEvent, name: str) -> tuple[int, str]:
    if isinstance(event, ExecutionStarted):
        return (event.parent.task_schedule_id if event.parent else -1), name
    if isinstance(event, TimerFired):
        return event.timer_id, name
    return event.event_id, name


def message_of(outbound: Outbound, episode: Episode) -> dict[str, object]:
    found = shape(outbound.event)
    found |= {
        "to": outbound.target.instance_id,
        "generation of": None if isinstance(outbound.event, ExecutionStarted) else outbound.target.execution_id,
        "tags of sender": None if outbound.context_tags is None else dict(outbound.context_tags),
        "episode": episode.number,
        "from": (episode.loaded.instance_id, episode.loaded.execution_id),
    }
    return found


def recorded_message(envelope: Envelope) -> dict[str, object]:
    assert envelope.message is not None
    assert envelope.sender is not None
    message = envelope.message
    found = shape(message.event)
    found |= {
        "to": message.instance.instance_id,
        "generation of": None if isinstance(message.event, ExecutionStarted) else message.instance.execution_id,
        "tags of sender": None if message.context_tags is None else dict(message.context_tags),
        "episode": envelope.episode,
        "from": (envelope.sender.instance_id, envelope.sender.execution_id),
    }
    return found


def check(episode: Episode, checkpoint: Checkpoint) -> None:
    assert shapes(episode.history, checkpoint.rows) == [shape(row) for row in checkpoint.rows]
    assert episode.first_ordinal == checkpoint.first_ordinal
    assert episode.switched == checkpoint.switched
    assert episode.current == OrchestrationInstance(
        instance_id=checkpoint.instance_id, execution_id=checkpoint.execution_id
    )
    assert stretches(episode.history) == stretches(checkpoint.rows)
    mine = sorted(episode.outbound, key=lambda o: order(o.event, o.target.instance_id))
    assert [message_of(outbound, episode) for outbound in mine] == [
        recorded_message(envelope)
        for envelope in sorted(
            checkpoint.sent,
            key=lambda e: order(e.message.event, e.message.instance.instance_id) if e.message else (0, ""),
        )
    ]
    assert parsed(episode.custom_status) == parsed(checkpoint.custom_status)
    if episode.status is not Status.FAILED:
        assert parsed(episode.output) == parsed(checkpoint.output)
    assert episode.stale == ()


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.rows("K41", "K47", "K48", "K49", "K50", "K53", "K60")
def test_a_live_orchestrator_makes_what_was_recorded(folder: str) -> None:
    executions: dict[str, Execution] = {}
    all_checkpoints = checkpoints(load(folder))
    assert all_checkpoints
    for checkpoint in all_checkpoints:
        instance = OrchestrationInstance(instance_id=checkpoint.instance_id)
        execution = executions.setdefault(checkpoint.instance_id, Execution(REGISTRY, (), instance=instance))
        episode = execution.advance(
            checkpoint.incoming,
            now=now_of(checkpoint),
            new_execution_id=lambda _, checkpoint=checkpoint: checkpoint.execution_id,
        )
        check(episode, checkpoint)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.rows("K53", "K55")
def test_a_recorded_history_is_continued(folder: str) -> None:
    """Every checkpoint again, from the history that .NET wrote before it."""
    past: dict[str, tuple[HistoryEvent, ...]] = {}
    generation: dict[str, str] = {}
    for checkpoint in checkpoints(load(folder)):
        name = checkpoint.instance_id
        episode = run(
            REGISTRY,
            past.get(name, ()),
            checkpoint.incoming,
            instance=OrchestrationInstance(instance_id=name, execution_id=generation.get(name)),
            now=now_of(checkpoint),
            new_execution_id=lambda _, checkpoint=checkpoint: checkpoint.execution_id,
        )
        check(episode, checkpoint)
        past[name] = checkpoint.rows if checkpoint.switched else past.get(name, ()) + checkpoint.rows
        generation[name] = checkpoint.execution_id


@pytest.mark.rows("K46")
def test_a_rewound_history_schedules_the_failed_activity_again() -> None:
    """The rows as .NET's rewind left them: the failed action is decided again under its number."""
    from airflow_provider_taskhub.hub.formats.history_rows import decode_event
    from tests.hub.formats.rows import from_state

    recording = load("rewind")
    rows = [r for r in recording.rows("3_done", "History") if r["RowKey"]["value"] != "sentinel"]
    history = [decode_event(from_state(row)) for row in rows]
    starts = [at for at, event in enumerate(history) if isinstance(event, OrchestratorStarted)]
    instance = OrchestrationInstance(instance_id="rewind-1", execution_id=rows[0]["ExecutionId"]["value"])
    for begin, end in zip(starts[-2:], (*starts[-1:], len(history)), strict=True):
        incoming = [event for event in history[begin:end] if event.is_played]
        episode = run(REGISTRY, history[:begin], incoming, instance=instance, now=history[begin].timestamp)
        assert shapes(episode.history, history[begin:end]) == [shape(event) for event in history[begin:end]]
        assert episode.number == starts.index(begin) + 1
    assert episode.status is Status.COMPLETED
