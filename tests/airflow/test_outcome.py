"""Which attempt's log a failed task shows: found in the history, whether or not the activity keeps records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import HistoryEvent, OrchestrationInstance, TaskFailed, TaskScheduled
from airflow_provider_taskhub.hub.formats.history_rows import encode_event
from airflow_provider_taskhub.hub.formats.keys import log_name
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.primitives import RowOperation, RowVerb, Transact
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.triggers.outcome import LOG_LINES, failed_log
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.airflow.fake import NOW

ID = "flights/2013"
LINES = [f"line {number}" for number in range(80)]


def scheduled(task_id: int, name: str) -> TaskScheduled:
    return TaskScheduled(timestamp=NOW, event_id=task_id, name=name)


def failed(task_id: int) -> TaskFailed:
    return TaskFailed(timestamp=NOW, task_scheduled_id=task_id, reason="no")


class Story:
    """What a started instance has done."""

    def __init__(self, client: Client, execution_id: str) -> None:
        self.client, self.store, self.names = client, client.hub.store, client.hub.names
        self.execution_id = execution_id

    async def past(self, *events: HistoryEvent, first: int = 0, execution_id: str | None = None) -> None:
        for ordinal, event in enumerate(events, first):
            entity = encode_event(
                event, instance_id=ID, execution_id=execution_id or self.execution_id, ordinal=ordinal
            )
            row = RowOperation(verb=RowVerb.INSERT, entity=entity)
            await self.store.execute(Transact(table=self.names.history, rows=(row,)))

    async def wrote(self, task_id: int, attempt: int, *lines: str) -> None:
        instance = OrchestrationInstance(instance_id=ID, execution_id=self.execution_id)
        name = log_name(instance, task_id, attempt)
        await self.store.append_blob(self.names.logs, name, "\n".join(lines).encode())

    async def log(self) -> tuple[str, list[str]] | None:
        return await failed_log(self.client, ID)


def play(scenario: Callable[[Story], Awaitable[None]]) -> None:
    async def over_a_store() -> None:
        clock = VirtualClock()
        async with SqliteStore(None, clock=clock) as store:
            client = await Client.over(store, Settings(), create=True, clock=clock)
            state = await client.start("delays", instance_id=ID)
            await scenario(Story(client, state.execution_id or ""))

    run(over_a_store())


def test_the_newest_attempt_of_the_activity_that_failed_last() -> None:
    async def scenario(story: Story) -> None:
        await story.past(scheduled(0, "load"), scheduled(1, "sum"), scheduled(12, "sum"), failed(0), failed(1))
        await story.wrote(0, 1, "another's")
        await story.wrote(1, 2, "an older attempt's")
        await story.wrote(1, 1000, *LINES)
        await story.wrote(12, 1, "a sibling's, which goes on")
        assert await story.log() == ("sum #1, attempt 1000", LINES[-LOG_LINES:])

    play(scenario)


def test_javas_stack_traces_do_not_hide_the_lines_of_the_user() -> None:
    frames = [f"\tat org.apache.spark.scheduler.Task.run(Task.scala:{number})" for number in range(120)]

    async def scenario(story: Story) -> None:
        await story.past(scheduled(0, "load"), failed(0))
        await story.wrote(0, 1, "my own line", "\tat home", "WARN TaskSetManager: Lost task 0.0", *frames, "Driver end")
        assert await story.log() == (
            "load #0, attempt 1",
            [
                "my own line",
                "\tat home",
                "WARN TaskSetManager: Lost task 0.0",
                "\t... 120 lines of Java's stack trace",
                "Driver end",
            ],
        )

    play(scenario)


def test_failures_of_an_older_generation_do_not_count() -> None:
    async def scenario(story: Story) -> None:
        await story.past(scheduled(0, "load"))
        await story.past(failed(0), first=1, execution_id="an older generation's, longer than this one")
        await story.wrote(0, 1, "of a start that goes on")
        assert await story.log() is None

    play(scenario)


def test_an_activity_that_nobody_ran_has_no_log() -> None:
    async def scenario(story: Story) -> None:
        assert await story.log() is None
        await story.past(scheduled(0, "unheard_of"), failed(0))
        assert await story.log() is None

    play(scenario)


def test_of_a_long_history_only_failures_are_read() -> None:
    async def scenario(story: Story) -> None:
        many = [scheduled(number, "load") for number in range(60)]
        await story.past(*many, failed(7))
        await story.wrote(7, 1, "oops")
        read: list[int] = []
        query = story.store.query

        async def counted(*arguments: object, **more: object) -> object:
            page = await query(*arguments, **more)  # type: ignore[arg-type]
            read.append(len(page.entities))
            return page

        story.store.query = counted  # type: ignore[method-assign, assignment]
        assert await story.log() == ("load #7, attempt 1", ["oops"])
        assert sum(read) == 2

    play(scenario)
