"""An operator whose trigger ends its task at once: what Airflow itself takes for a task in its triggerer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, StartTriggerArgs, TaskSuccessEvent, TriggerEvent


class NothingTrigger(BaseTrigger):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Succeeds at once."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "bench_nothing.NothingTrigger", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TaskSuccessEvent()


class NothingOperator(BaseOperator):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Never runs in a worker.

    :param number: the number of the row of a mapped task; it has no effect.
    """

    def __init__(self, *, number: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.number = number

    start_from_trigger = True
    start_trigger_args = StartTriggerArgs(
        trigger_cls="bench_nothing.NothingTrigger", trigger_kwargs={}, next_method="execute"
    )
