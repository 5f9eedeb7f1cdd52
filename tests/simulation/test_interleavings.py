"""Races K31 to K37, each interleaving forced: a checkpoint is held at a named point until the other side has acted.

On one worker and on two; with clocks that agree and with clocks an hour off, both ways: nothing may depend on them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import Status, TaskCompleted
from tests.simulation.scenarios import app_of
from tests.simulation.test_repeated_and_late_messages import at_point
from tests.simulation.world import Effects, Machine, World, simulate

HOUR = timedelta(hours=1)
POINTS = (
    "outbound",
    "after:outbound",
    "history",
    "after:history",
    "instance",
    "after:instance",
    "delete",
    "after:delete",
)
SKEWS = pytest.mark.parametrize("skew", [timedelta(0), HOUR, -HOUR], ids=["agreeing", "ahead", "behind"])
LONGER = 6.0
"""Seconds beyond the visibility of what a worker has claimed: it comes to whoever polls."""


async def _ended(hub: World) -> tuple[str | None, list[int]]:
    """The output, and which activities' results are in the history."""
    state = await hub.wait("one", timedelta(minutes=2))
    assert state.status is Status.COMPLETED
    history = await hub.client.instance("one").history()
    await hub.ended()
    return state.output, [event.task_scheduled_id for event in history if isinstance(event, TaskCompleted)]


def _played(play: Any) -> Any:
    async def whole() -> Any:
        async with World(app_of(Effects()), partitions=1) as hub:
            return await play(hub)

    return simulate(whole)


async def _two(hub: World, skew: timedelta) -> tuple[Machine, Machine]:
    """The owner of the partition and another; a third runs the activities, and answers at once."""
    owner = await hub.join("owner", roles=("orchestrator",), skew=skew)
    await hub.clock.sleep(1.0)
    other = await hub.join("other", roles=("orchestrator",), skew=-skew)
    await hub.join("hands", roles=("activity",))
    return owner, other


@pytest.mark.rows("K31", "K33")
@SKEWS
@pytest.mark.parametrize("workers", ["one", "two"])
@pytest.mark.parametrize("point", POINTS)
def test_a_response_that_comes_while_its_checkpoint_is_at_a_point(point: str, workers: str, skew: timedelta) -> None:
    """K31: it goes to the active session, once, whatever is done of the checkpoint."""

    async def play(hub: World) -> Any:
        if workers == "one":
            owner = await hub.join("owner", skew=skew)
        else:
            owner = await hub.join("owner", roles=("orchestrator",), skew=skew)
            await hub.join("hands", roles=("activity",), skew=-skew)
        at_point(owner, point, 1, lambda: hub.clock.sleep(LONGER))
        await hub.client.start("chain", 3, instance_id="one")
        found = await _ended(hub)
        assert not hub.said("AbandoningMessage"), "it is the same worker's"
        return found

    assert _played(play) == ("3", [0, 1, 2])


@pytest.mark.rows("K32", "K33")
@SKEWS
@pytest.mark.parametrize("point", POINTS)
def test_a_response_that_comes_to_the_next_owner_while_a_checkpoint_is_at_a_point(point: str, skew: timedelta) -> None:
    """K32: if its scheduling event is not there yet it is abandoned, a warning says so, and it is processed later."""

    async def play(hub: World) -> Any:
        owner, other = await _two(hub, skew)

        async def moved() -> None:
            for tenure in owner.owner.tenures:
                owner.backend.lost(tenure, "moved on purpose, without a drain")
                other.backend.taken(tenure)
            await hub.clock.sleep(2.0)

        at_point(owner, point, 2, moved)
        await hub.client.start("chain", 3, instance_id="one")
        found = await _ended(hub)
        abandoned = [entry for entry in hub.said("AbandoningMessage") if entry["log_level"] == "warning"]
        return found, abandoned

    found, abandoned = _played(play)
    assert found == ("3", [0, 1, 2])
    assert bool(abandoned) is (point in ("after:outbound", "history"))
    for entry in abandoned:
        assert (entry["instance_id"], entry["event_type"]) == ("one", "TaskCompleted")
        assert entry["enqueued"] >= entry["checkpoint"][:19], "times of the storage service, whatever clocks say"
        assert entry["enqueued"].startswith("2026-01-01T00:00:0")


def test_a_response_of_the_next_owner_s_own_activity_is_abandoned_without_a_time_of_its_own() -> None:
    """It is offered in memory: no store has said when it came."""

    async def play(hub: World) -> Any:
        owner = await hub.join("owner", roles=("orchestrator",))
        await hub.clock.sleep(1.0)
        other = await hub.join("other")

        async def moved() -> None:
            for tenure in owner.owner.tenures:
                owner.backend.lost(tenure, "moved on purpose, without a drain")
                other.backend.taken(tenure)
            await hub.clock.sleep(2.0)

        at_point(owner, "history", 2, moved)
        await hub.client.start("chain", 3, instance_id="one")
        return await _ended(hub), [entry["enqueued"] for entry in hub.said("AbandoningMessage")]

    found, enqueued = _played(play)
    assert found == ("3", [0, 1, 2])
    assert enqueued[0] is None, "offered"
    assert all(time.startswith("2026-01-01T00:00:0") for time in enqueued[1:]), "then put, as a message like others"


@pytest.mark.rows("K34", "K58")
@SKEWS
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("end", ["stops", "dies"])
def test_a_worker_recycled_while_its_checkpoint_is_at_a_point(end: str, point: str, skew: timedelta) -> None:
    """K34: the next one finishes; what a dead one had not committed is decided again."""

    async def play(hub: World) -> Any:
        owner = await hub.join("owner", roles=("orchestrator",), skew=skew)
        await hub.join("hands", roles=("activity",))
        stopping: list[Any] = []

        async def recycled() -> None:
            if end == "dies":
                owner.die()
            else:
                stopping.append(hub.spawn(owner.stop()))
            await hub.clock.sleep(1.0)

        at_point(owner, point, 2, recycled)
        await hub.client.start("chain", 3, instance_id="one")
        await owner.died.wait()
        await hub.join("other", roles=("orchestrator",), skew=-skew)
        return await _ended(hub)

    assert _played(play) == ("3", [0, 1, 2])
