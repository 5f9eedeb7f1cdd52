"""The task's log follows the output of running activities: when, at which cost, and what it survives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.hooks.outputs import RUNNING_OUTPUT_BYTES
from airflow_provider_taskhub.hooks.taskhub import TaskHubHook, settings_without_connection
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.triggers.output_reader import DEADLINE, EVERY, MOST_PARTS, QUIET
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.airflow.fake import FakeHub, record

TITLE = "monthly_delays #0, attempt 1"
OPTION = "AIRFLOW__TASKHUB__RUNNING_OUTPUT_BYTES"


@pytest.fixture(autouse=True)
def without_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def without(self: Any) -> Any:
        return settings_without_connection(self.taskhub_conn_id)

    monkeypatch.setattr(TaskHubHook, "asettings", without)


class Task:
    """A task that waits, and its log with the time of each line."""

    def __init__(self, instance_id: str = "i", *, owner: str | None = "me") -> None:
        self.trigger = TaskHubTrigger(instance_id=instance_id, owner=owner, orchestrator="flights_delays")
        self.trigger.clock = VirtualClock(asyncio.get_running_loop())
        self.log: list[tuple[float, str]] = []
        self.trigger._log = self  # type: ignore[assignment]
        self.run = asyncio.ensure_future(self._run())

    async def _run(self) -> list[Any]:
        return [event.payload async for event in self.trigger.run()]

    def info(self, text: str, *values: object) -> None:
        self.log.append((asyncio.get_running_loop().time(), text % values if values else text))

    warning = error = info

    @property
    def output(self) -> list[str]:
        """What activities have written, without their names."""
        return [line.split(" | ", 1)[1] for _, line in self.log if " | " in line]

    def position(self, part: str) -> int:
        (found,) = [number for number, (_, line) in enumerate(self.log) if part in line]
        return found


def play(scenario: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return run(scenario(), limit=timedelta(days=2))


def running(hub: FakeHub, *instances: str) -> None:
    for instance_id in instances or ("i",):
        hub.put(instance_id, Status.RUNNING)


def test_a_line_is_in_the_tasks_log_while_its_activity_runs(hub: FakeHub) -> None:
    async def scenario() -> None:
        running(hub)
        hub.records["i"] = (record(RecordState.RUNNING),)
        task = Task()
        await asyncio.sleep(60)
        hub.write("i", "loading May\n")
        await asyncio.sleep(EVERY + 2)
        assert task.output == ["loading May"]
        assert task.position("running on") < task.position(f"{TITLE} | loading May")
        assert not task.run.done()
        hub.write("i", "loading June\n")
        await asyncio.sleep(EVERY + 2)
        assert task.output == ["loading May", "loading June"]
        task.run.cancel()

    play(scenario)


def test_the_last_lines_come_before_the_end_of_the_instance(hub: FakeHub) -> None:
    async def scenario() -> None:
        running(hub)
        task = Task()
        await asyncio.sleep(20.5)
        hub.write("i", "begin\n")
        await asyncio.sleep(EVERY + 2)
        hub.write("i", "last words")
        hub.end("i", 1)
        await task.run
        assert task.output == ["begin", "last words"]
        assert task.position("last words") < task.position("is Completed")

    play(scenario)


@pytest.mark.parametrize("waits", [1, 50])
def test_quiet_tasks_cost_one_query_in_5_s_and_no_read(hub: FakeHub, waits: int) -> None:
    async def scenario() -> None:
        ids = [f"i{number}" for number in range(waits)]
        running(hub, *ids)
        tasks = [Task(instance_id) for instance_id in ids]
        for instance_id in ids:
            hub.write(instance_id, "one line\n")
        await asyncio.sleep(10.5)
        assert hub.requests["log_part"] == waits, "each log was read once"
        hub.requests.clear()
        await asyncio.sleep(45)
        assert hub.requests["log_hints"] == 45 / EVERY
        assert (hub.requests["log_part"], hub.requests["forget_logs"]) == (0, 0)
        for task in tasks:
            task.run.cancel()

    play(scenario)


def test_only_the_logs_that_grew_are_read(hub: FakeHub) -> None:
    async def scenario() -> None:
        ids = [f"i{number}" for number in range(50)]
        running(hub, *ids)
        tasks = [Task(instance_id) for instance_id in ids]
        for instance_id in ids:
            hub.write(instance_id, "one line\n")
        await asyncio.sleep(10.5)
        hub.requests.clear()
        hub.write("i7", "two\n")
        hub.write("i8", "three\n")
        await asyncio.sleep(10)
        assert (hub.requests["log_part"], hub.requests["log_hints"]) == (2, 10 / EVERY)
        assert [task.output[1:] for task in tasks if task.output[1:]] == [["two"], ["three"]]
        for task in tasks:
            task.run.cancel()

    play(scenario)


def test_more_logs_than_one_reading_reads_take_turns(hub: FakeHub) -> None:
    async def scenario() -> None:
        ids = [f"i{number}" for number in range(3 * MOST_PARTS)]
        running(hub, *ids)
        tasks = [Task(instance_id) for instance_id in ids]
        await asyncio.sleep(EVERY)
        for instance_id in ids:
            hub.write(instance_id, "one line\n")
        read = 0
        for _ in range(3):
            await asyncio.sleep(EVERY)
            assert hub.requests["log_part"] - read <= MOST_PARTS
            read = hub.requests["log_part"]
        await asyncio.sleep(EVERY)
        assert all(task.output == ["one line"] for task in tasks)
        for task in tasks:
            task.run.cancel()

    play(scenario)


def test_a_sensor_follows_nothing_and_costs_no_query(hub: FakeHub) -> None:
    async def scenario() -> None:
        running(hub)
        task = Task(owner=None)
        hub.write("i", "one\n")
        await asyncio.sleep(60)
        assert (task.output, hub.requests["log_hints"]) == ([], 0)
        task.run.cancel()

    play(scenario)


def test_the_option_switches_it_off(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTION, "0")

    async def scenario() -> None:
        running(hub)
        task = Task()
        hub.write("i", "one\n")
        await asyncio.sleep(60)
        assert (task.output, hub.requests["log_hints"]) == ([], 0)
        task.run.cancel()

    play(scenario)


@pytest.mark.parametrize(("option", "shown"), [(None, RUNNING_OUTPUT_BYTES), ("2000", 2_000), ("much", 16 * 1024)])
def test_the_option_bounds_what_a_task_reads(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, option: str | None, shown: int
) -> None:
    if option is not None:
        monkeypatch.setenv(OPTION, option)

    async def scenario() -> None:
        running(hub)
        task = Task()
        hub.write("i", ("x" * 499 + "\n") * 1_000)
        await asyncio.sleep(10)
        assert len(task.output) == pytest.approx(shown / 500, abs=1)
        assert "bytes left out; the whole log: taskhub instances logs i --activity monthly_delays" in str(task.log)
        task.run.cancel()

    play(scenario)


def test_secrets_are_masked(hub: FakeHub) -> None:
    async def scenario() -> None:
        running(hub)
        task = Task()
        hub.write("i", "AccountKey=c2VjcmV0c2VjcmV0;x\n")
        await asyncio.sleep(10)
        assert len(task.output) == 1
        assert "c2VjcmV0" not in str(task.log)
        task.run.cancel()

    play(scenario)


def test_a_new_attempt_begins_at_its_first_line_and_is_named(hub: FakeHub) -> None:
    async def scenario() -> None:
        running(hub)
        task = Task()
        hub.write("i", "one\ntwo\n")
        await asyncio.sleep(10)
        hub.write("i", "one\n", attempt=2)
        await asyncio.sleep(10)
        assert [line for _, line in task.log if " | " in line] == [
            f"{TITLE} | one",
            f"{TITLE} | two",
            "monthly_delays #0, attempt 2 | one",
        ]
        task.run.cancel()

    play(scenario)


def test_an_error_is_said_and_the_wait_goes_on(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(self: Any) -> Any:
        raise Unavailable("no such luck")

    async def scenario() -> None:
        from tests.airflow.fake import FakeGrowingLogs

        running(hub)
        with monkeypatch.context() as patch:
            patch.setattr(FakeGrowingLogs, "hints", refused)
            task = Task()
            hub.write("i", "one\n")
            await asyncio.sleep(60)
        assert len([line for _, line in task.log if "no such luck" in line]) == 1
        await asyncio.sleep(10)
        assert task.output == ["one"]
        hub.end("i", 1)
        (event,) = await task.run
        assert event["status"] == "Completed"

    play(scenario)


def test_a_store_that_does_not_answer_delays_an_end_by_the_deadline_only(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: Any, name: str, *, offset: int, length: int) -> Any:
        await asyncio.sleep(3_600)

    from tests.airflow.fake import FakeGrowingLogs

    monkeypatch.setattr(FakeGrowingLogs, "part", never)

    async def scenario() -> None:
        running(hub)
        task = Task()
        await asyncio.sleep(60.5)
        hub.write("i", "one\n")
        hub.end("i", 1)
        await task.run
        ended = next(at for at, line in task.log if "is Completed" in line)
        assert ended <= 60.5 + 1 + DEADLINE
        assert "4 bytes left out" in str(task.log), "what was not read is said"

    play(scenario)


def test_hints_are_deleted_when_nobody_needs_them(hub: FakeHub) -> None:
    """At the end of their instance, and after a minute without a change, whoever waits for the instance."""

    async def scenario() -> None:
        running(hub, "i", "j")
        task, other = Task("i"), Task("j")
        hub.write("i", "one\n")
        await asyncio.sleep(10)
        hub.write("j", "one\n")
        hub.write("killed long ago", "one\n")
        hub.end("i", 1)
        await task.run
        assert {hint.instance_id for hint in hub.grown.values()} == {"j", "killed long ago"}
        for _ in range(6):
            await asyncio.sleep(QUIET / 3)
            hub.write("j", "more\n")
        assert {hint.instance_id for hint in hub.grown.values()} == {"j"}, "a growing log keeps its hint"
        await asyncio.sleep(QUIET + EVERY + 1)
        assert hub.grown == {}
        hub.write("j", "again\n")
        await asyncio.sleep(EVERY + 1)
        assert other.output == ["one", *["more"] * 6, "again"], "nothing twice, although the hint was deleted"
        assert hub.requests["forget_logs"] == 3
        other.run.cancel()

    play(scenario)


def test_two_tasks_that_wait_for_the_same_instance_both_follow_it(hub: FakeHub) -> None:
    async def scenario() -> None:
        running(hub)
        tasks = [Task(), Task()]
        hub.write("i", "one\n")
        await asyncio.sleep(10)
        assert [task.output for task in tasks] == [["one"], ["one"]]
        for task in tasks:
            task.run.cancel()

    play(scenario)
