"""How long a task waits for a worker that can run its instance."""

from __future__ import annotations

import pytest

from airflow_provider_taskhub.hub.model import Member
from airflow_provider_taskhub.hub.waiting.reasons import Reason, Why
from airflow_provider_taskhub.triggers.unusable_time import AGREED, UnusableTime
from airflow_provider_taskhub.triggers.watcher import WatchedInstance
from airflow_provider_taskhub.virtual_time import START, VirtualClock, run

WORKER = Member(
    worker="plain@host/1",
    started=START,
    roles=("orchestrator", "activity"),
    apps={"models": "1"},
    orchestrators=("training",),
    activities=("train",),
    pool_of={"train": "large"},
)


@pytest.mark.parametrize(
    ("reason", "after"), [(Reason.NO_ACTIVITY, AGREED), (Reason.NO_POOL, 600.0), (Reason.NO_MEMORY, 600.0)]
)
def test_a_pool_without_a_worker_is_waited_for_and_a_name_that_nobody_has_is_not(reason: Reason, after: float) -> None:
    async def main() -> float:
        clock = VirtualClock()
        seen = WatchedInstance("i", members=(WORKER,), whys=(Why(reason=reason, text="nobody can run 'train'"),))
        unusable = UnusableTime("training", 600.0, clock, patient=False)
        while unusable.error(seen) is None:
            await clock.sleep(1)
        assert "nobody can run 'train'" in (unusable.error(seen) or "")
        return clock.monotonic()

    assert run(main()) == after
