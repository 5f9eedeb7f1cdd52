"""Long histories, as the engine itself makes them, and the time that their replay takes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence

from airflow_provider_taskhub.codec import Timestamp, dumps
from airflow_provider_taskhub.engine.episode import Outbound
from airflow_provider_taskhub.engine.events import (
    ExecutionStarted,
    HistoryEvent,
    OrchestrationInstance,
    TaskCompleted,
)
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.replay import Execution
from tests.benchmarks.app import app

NOW = Timestamp.parse("2026-11-21T08:00:00Z")
INSTANCE = OrchestrationInstance(instance_id="long", execution_id="0123456789abcdef0123456789abcdef")
REGISTRY = Registry.of([app])
BATCH = 32
"""Answers of one episode of a fan-out."""

LONG: Mapping[str, Callable[[int], int]] = {"chain": lambda events: events // 4, "fan": lambda events: events // 2}
"""Orchestrator → its input for about so many events."""


def long_history(name: str, size: Callable[[int], int], events: int) -> tuple[HistoryEvent, ...]:
    """The history of an orchestration that still waits for its last activity."""
    live = Execution(REGISTRY, (), instance=INSTANCE)
    start = ExecutionStarted(timestamp=NOW, instance=INSTANCE, name=name, input=dumps(size(events)))
    episode = live.advance([start], now=NOW)
    past, waiting = episode.history, list(episode.outbound)
    while answers := _answers(waiting, last=len(past) >= events - 4):
        episode = live.advance(answers, now=NOW)
        past, waiting = past + episode.history, [*waiting[len(answers) :], *episode.outbound]
    live.close()
    return past


def _answers(waiting: Sequence[Outbound], *, last: bool) -> list[HistoryEvent]:
    """To what waits, but for one activity at the end."""
    asked = waiting[: min(BATCH, len(waiting) - 1)] if len(waiting) > 1 or last else waiting
    return [
        TaskCompleted(
            timestamp=NOW, task_scheduled_id=one.event.event_id, result=dumps(1), taskhub_action_id=one.action_id
        )
        for one in asked
    ]


def replayed(past: Sequence[HistoryEvent]) -> float:
    """Seconds of CPU to bring an orchestrator back to where its history ends."""
    gc.collect()
    begun = time.process_time()
    execution = Execution(REGISTRY, past, instance=INSTANCE)
    execution.recall()
    spent = time.process_time() - begun
    execution.close()
    return spent
