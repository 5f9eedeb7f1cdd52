"""A stage for one instance: every episode is made live, by replay, and from a history in memory, and must come out the
same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.codec import Timestamp, dumps
from airflow_provider_taskhub.engine.episode import Episode, Outbound
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionStarted,
    FailureDetails,
    HistoryEvent,
    OrchestrationInstance,
    ParentInstance,
    SubOrchestrationInstanceCompleted,
    TaskCompleted,
    TaskFailed,
    TimerFired,
)
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.replay import Execution, run
from airflow_provider_taskhub.no_input import NO_INPUT

START = Timestamp.parse("2026-11-21T08:00:00Z")
INSTANCE = OrchestrationInstance(instance_id="play-1", execution_id="0123456789abcdef0123456789abcdef")


class Play:
    """:param app: whose orchestrators are played. :param now: the worker's clock, moved by the test."""

    def __init__(self, app: App, *, instance: OrchestrationInstance = INSTANCE) -> None:
        self.registry = Registry.of([app])
        self.now = START
        self.live = Execution(self.registry, (), instance=instance)
        self.resting = Execution(self.registry, (), instance=instance)
        self.past: tuple[HistoryEvent, ...] = ()
        self.status: str | None = None
        self.instance = instance
        self.episodes: list[Episode] = []

    @property
    def last(self) -> Episode:
        return self.episodes[-1]

    @property
    def outbound(self) -> list[Outbound]:
        """Everything sent so far."""
        return [outbound for episode in self.episodes for outbound in episode.outbound]

    def start(
        self,
        name: str,
        input: Any = NO_INPUT,
        *,
        tags: dict[str, str] | None = None,
        parent: ParentInstance | None = None,
        with_events: Sequence[HistoryEvent] = (),
    ) -> Episode:
        text = None if input is NO_INPUT else dumps(input)
        started = ExecutionStarted(
            timestamp=self.now, instance=self.instance, name=name, input=text, tags=tags, parent=parent
        )
        return self.take(started, *with_events)

    def take(self, *events: HistoryEvent) -> Episode:
        """One episode, made live, made by replay, and made by what rested since the one before."""
        again = run(self.registry, self.past, events, instance=self.instance, now=self.now, custom_status=self.status)
        episode = self.live.advance(events, now=self.now)
        different = differences(episode, again)
        assert not different, f"live and replayed differ: {different}"
        different = differences(episode, self.resting.advance(events, now=self.now))
        assert not different, f"live and rested differ: {different}"
        self.resting.close()
        self.past = episode.history if episode.switched else self.past + episode.history
        assert self.live.history == self.past
        self.instance, self.status = episode.current, episode.custom_status
        self.episodes.append(episode)
        return episode

    def replay(self, app: App, *events: HistoryEvent) -> Episode:
        """The next episode as other code would make it."""
        return run(Registry.of([app]), self.past, events, instance=self.instance, now=self.now)

    def wait(self, **duration: float) -> None:
        self.now = self.now + timedelta(**duration)

    def raised(self, name: str, data: Any = None) -> EventRaised:
        return EventRaised(timestamp=self.now, name=name, input=dumps(data))

    def done(self, outbound: Outbound, result: Any = None) -> HistoryEvent:
        return answer(outbound, result, at=self.now)

    def failed(self, outbound: Outbound, message: str = "broken", **details: Any) -> TaskFailed:
        failure = FailureDetails(**{"error_type": "ValueError", "error_message": message, **details})
        return TaskFailed(
            timestamp=self.now,
            task_scheduled_id=outbound.event.event_id,
            reason=message,
            failure=failure,
            taskhub_action_id=outbound.action_id,
        )

    def answer(self, result: Any = None) -> Episode:
        """Answer the newest message."""
        return self.take(self.done(self.outbound[-1], result))

    def names(self) -> list[str]:
        return [event.event_type.name for event in self.last.history]


def played(function: Callable[..., Any]) -> tuple[Play, list[str]]:
    """:returns: the stage, and the warnings so far. Only the live run logs, so each is there once."""
    app = App("played")
    app.orchestrator(name="work")(function)
    play, said = Play(app), []
    play.live = Execution(Registry.of([app]), (), instance=INSTANCE, log=lambda line: said.append(line.message))
    play.start("work")
    return play, said


def differences(one: Episode, other: Episode) -> dict[str, tuple[Any, Any]]:
    """The members in which two episodes differ."""
    pairs = {field.name: (getattr(one, field.name), getattr(other, field.name)) for field in fields(one)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def answer(outbound: Outbound, result: Any, *, at: Timestamp) -> HistoryEvent:
    """The good answer to a message."""
    event = outbound.event
    if isinstance(event, TimerFired):
        return event
    if isinstance(event, ExecutionStarted):
        assert event.parent is not None
        return SubOrchestrationInstanceCompleted(
            timestamp=at,
            task_scheduled_id=event.parent.task_schedule_id,
            result=dumps(result),
            taskhub_action_id=event.instance.execution_id,
        )
    return TaskCompleted(
        timestamp=at, task_scheduled_id=event.event_id, result=dumps(result), taskhub_action_id=outbound.action_id
    )


def plain(event: HistoryEvent) -> HistoryEvent:
    """The event without what .NET does not have."""
    own = {name: None for name in ("taskhub_action_id", "taskhub_message_id") if hasattr(event, name)}
    return replace(event, **own)
