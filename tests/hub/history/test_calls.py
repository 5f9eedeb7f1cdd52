"""The calls of a history, as a worker reads them before it begins an activity: only what counts."""

from __future__ import annotations

import pytest

from airflow_provider_taskhub.engine.events import OrchestratorStarted, TaskCompleted, TaskScheduled
from airflow_provider_taskhub.hub.history.calls import Calls, calls_of
from tests.hub.by_hand import GEN0, NAMES, NOW, start
from tests.hub.history.test_load import Bench, play

EVENTS = [
    OrchestratorStarted(timestamp=NOW),
    start(),
    TaskScheduled(timestamp=NOW, event_id=0, name="a"),
    TaskScheduled(timestamp=NOW, event_id=1, name="a"),
    TaskCompleted(timestamp=NOW, task_scheduled_id=0, result="1"),
]


@pytest.mark.rows("K26")
@pytest.mark.parametrize("complete", [True, False], ids=["complete", "under way"])
def test_a_checkpoint_that_is_not_complete_says_nothing(complete: bool) -> None:
    """Its later calls are not written yet, and an answer in it does not count: another worker may write it again."""

    async def work(bench: Bench) -> Calls | None:
        await bench.write(EVENTS, complete=complete)
        return await calls_of(bench.store, NAMES, "i")

    found = play(work)
    if not complete:
        assert found is None
        return
    assert (found.execution_id, set(found.actions), found.answered) == (GEN0, {0, 1}, frozenset({0}))
