"""The order of a checkpoint, read off a recording of what the store was really told (K25), and very long ones (K28)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import Status, TaskScheduled
from airflow_provider_taskhub.hub.formats.history_rows import SENTINEL, decode_event
from airflow_provider_taskhub.hub.formats.message_envelope import decode
from airflow_provider_taskhub.hub.history.load import load
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.primitives import DeleteMessage, Operation, PutBlob, PutMessage, Transact
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.world import AFTER, Death, Effects, World, simulate

WIDE = 9_997
"""With the start, and what begins and ends an episode: 10 000 rows."""


def taped(scenario: Scenario) -> tuple[list[Operation], str, str]:
    """All that one worker did, in order, and the names of the history and instances tables."""

    async def play() -> Any:
        async with World(scenario.app_of(Effects())) as hub:
            await hub.join("only")
            await scenario.drive(hub)
            await hub.settle()
            names = hub.client.hub.names
            return [done.operation for done in hub.tape], names.history, names.instances

    found: tuple[list[Operation], str, str] = simulate(play)
    return found


def rows(operation: Transact) -> Iterator[Any]:
    """The events that a history transaction writes."""
    for row in operation.rows:
        if row.entity.row_key != SENTINEL:
            yield decode_event(row.entity)


@pytest.mark.rows("D71", "K25")
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=str)
def test_messages_go_before_the_history_that_asked_for_them_and_deletes_after_the_row(scenario: Scenario) -> None:
    tape, history, instances = taped(scenario)
    put: dict[str, int] = {}
    blobs: dict[str, int] = {}
    deleted: dict[str, int] = {}
    merged: dict[str, list[int]] = {}
    commits: list[tuple[int, Transact]] = []
    for index, operation in enumerate(tape):
        match operation:
            case PutBlob():
                blobs[operation.name] = index
            case PutMessage():
                envelope = decode(operation.text)
                put.setdefault(str(envelope.activity_id), index)
                if envelope.blob_name is not None:
                    assert blobs[envelope.blob_name] < index, "a payload before the message that names it"
            case DeleteMessage(message=Delivery() as held):
                deleted[held.identity] = deleted[held.message_id] = index
            case Transact(table=table) if table == history:
                commits.append((index, operation))
            case Transact(table=table) if table == instances:
                merged.setdefault(operation.rows[0].entity.partition_key, []).append(index)
    asked = 0
    taken: dict[str, int] = {}
    for index, commit in commits:
        for event in rows(commit):
            if (action := getattr(event, "taskhub_action_id", None)) in put and not _answer(event):
                asked += 1
                assert put[action] < index, f"{event.event_type.name}: the message before its history"
            if (message := event.taskhub_message_id) is not None and message not in taken:
                taken[message] = index  # a later generation that carries the event writes it again
                assert index < deleted[message], f"{event.event_type.name}: its history before the delete"
    for instance_id, indexes in merged.items():
        own = [(index, commit) for index, commit in commits if commit.rows[0].entity.partition_key == instance_id]
        last, _ = own[-1]
        assert last < indexes[-1], "the history before the row"
        assert all(indexes[-1] < deleted[message] for message, index in taken.items() if index == last), (
            "the row before the deletes"
        )
    assert taken, "something was taken"
    assert asked or scenario.name in ("events", "bulky", "rolling"), (
        "something was asked for (a payload's wrapper names nothing)"
    )


def _answer(event: Any) -> bool:
    return event.event_type.name.endswith(("Completed", "Failed", "Fired"))


@pytest.mark.rows("K26", "K28")
@pytest.mark.long
def test_a_checkpoint_of_10_000_events_survives_a_death_in_its_middle() -> None:
    app = App("wide")

    @app.orchestrator
    async def wide(ctx: OrchestrationContext, width: int) -> None:
        await ctx.when_all([ctx.call_activity("nothing", number) for number in range(width)])

    async def play() -> Any:
        async with World(app, partitions=1) as hub:
            first = await hub.join("first", roles=("orchestrator",), death=Death(point="history:50", side=AFTER))
            await hub.client.start("wide", WIDE, instance_id="one")
            await first.died.wait()
            cut = await load(hub.store, hub.client.hub.names, "one")
            await hub.join("second", roles=("orchestrator",))
            while not (whole := await load(hub.store, hub.client.hub.names, "one")).past:
                await hub.clock.sleep(5.0)
            await hub.client.terminate("one", "enough")
            state = await hub.wait("one", timedelta(minutes=5))
            return cut, whole, state.status

    cut, whole, status = simulate(play)
    assert (len(cut.past), cut.uncommitted_rows) == (0, 51 * 99), "not committed, and not shown"
    assert (len(whole.past), whole.uncommitted_rows) == (10_000, 0)
    assert sorted(event.event_id for event in whole.past if isinstance(event, TaskScheduled)) == list(range(WIDE))
    assert status is Status.TERMINATED
