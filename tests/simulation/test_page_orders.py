"""An order of the page lets an instance go on after its Airflow task has ended: the sweep must not undo the order."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.plugins.actions import ACTIONS, Restart
from airflow_provider_taskhub.tags import OWNER_TAG, WATCH_TAG
from airflow_provider_taskhub.triggers.airflow_tasks import States
from airflow_provider_taskhub.triggers.sweep import EVERY, SETTLE, Sweep
from tests.simulation.test_suspend_resume_purge import WATCH, play
from tests.simulation.world import World


class Ended:
    """An Airflow whose task has failed."""

    async def states(self, dag_id: str, task_id: str, run_ids: Sequence[str]) -> States:
        return {run_id: {"t": "failed"} for run_id in run_ids}

    async def knows(self, dag_id: str) -> bool:
        return True


def test_the_sweep_does_not_end_what_the_page_restarts_right_after_the_task_has_failed() -> None:
    """The sweep looks every 5 s, so the watch row of the task is still there when the user gives the order."""

    async def drive(world: World) -> list[Status | None]:
        client = world.client
        await client.watches.add(WATCH)
        await client.start("patient", instance_id="one", tags={OWNER_TAG: "o", WATCH_TAG: "1"})
        await client.terminate("one", "from Airflow: task failed")
        assert (await world.wait("one")).status is Status.TERMINATED
        await ACTIONS["restart"].do(
            client.instance("one"), Restart(id="one"), "from Airflow: ann on TaskHub's page", "ann"
        )
        sweep = Sweep(Ended(), deployment=lambda: "here", clock=world.clock)
        seen = []
        for _ in range(int(2 * SETTLE / EVERY)):
            await sweep.turn(client)
            await world.clock.sleep(EVERY)
            state = await client.get("one")
            seen.append(state and state.status)
        return seen

    assert set(play(drive)) == {Status.RUNNING}
