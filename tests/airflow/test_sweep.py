"""The sweep under a jumping clock: what it ends, what it leaves alone, what it survives."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import AccessDenied, Unavailable
from airflow_provider_taskhub.hooks.deployment import deployment, swept_connections
from airflow_provider_taskhub.hooks.taskhub import TaskHubHook, settings_without_connection
from airflow_provider_taskhub.hub.watches import Watch
from airflow_provider_taskhub.triggers.airflow_tasks import requests_of
from airflow_provider_taskhub.triggers.sweep import AT_ONCE, EVERY, QUESTIONS, RUNS, SETTLE, TASKS, Sweep
from airflow_provider_taskhub.triggers.watcher import MOST_FAILURES, Watcher
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.airflow.fake import FakeClient, FakeHub

WATCH = Watch(
    instance_id="i", deployment="here", dag_id="d", run_id="r", task_id="t", map_index=-1, owner="me", generation=1
)
OWNER = {"taskhub.owner": "me"}


class FakeAirflow:
    """States by (DAG id, run id, name); what is not in them does not exist.

    :param down: raised by every question while set.
    """

    def __init__(self, **states: str | None) -> None:
        self.states_of: dict[tuple[str, str, str], str | None] = {
            ("d", "r", name): state for name, state in states.items()
        }
        self.dags = {"d"}
        self.down: Exception | None = None
        self.questions: Counter[str] = Counter()

    async def states(
        self, dag_id: str, task_ids: Sequence[str], run_ids: Sequence[str]
    ) -> dict[str, dict[str, str | None]]:
        self.questions["states"] += 1
        if self.down:
            raise self.down
        found: dict[str, dict[str, str | None]] = {}
        for (dag, run_id, name), state in self.states_of.items():
            if dag == dag_id and run_id in run_ids and name.split("_")[0] in task_ids:
                found.setdefault(run_id, {})[name] = state
        return found

    async def knows(self, dag_id: str) -> bool:
        self.questions["knows"] += 1
        return dag_id in self.dags


def sweep(
    hub: FakeHub, airflow: FakeAirflow, scenario: Callable[[], Awaitable[Any]] | None = None, *, seconds: float = 60
) -> None:
    """Let the sweep run for some seconds, or for as long as the scenario takes."""

    async def play() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        sweeping = asyncio.ensure_future(
            Sweep(airflow, deployment=lambda: "here", clock=clock).run(FakeClient(hub))  # type: ignore[arg-type]  # has what is used
        )
        await (scenario() if scenario else asyncio.sleep(seconds))
        sweeping.cancel()
        await asyncio.wait([sweeping])

    run(play(), limit=timedelta(days=1))


def watched(hub: FakeHub, watch: Watch = WATCH, status: Status = Status.RUNNING, **more: Any) -> None:
    hub.watched[watch.instance_id] = watch
    hub.put(watch.instance_id, status, **({"tags": {"taskhub.owner": watch.owner}} | more))


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("failed", "the task is failed"),
        ("success", "the task is success"),
        ("skipped", "the task is skipped"),
        ("upstream_failed", "the task is upstream_failed"),
        ("removed", "the task is removed"),
        (None, "task cleared"),
    ],
)
@pytest.mark.parametrize("map_index", [-1, 7])
def test_what_nobody_waits_for_is_terminated_within_a_minute_and_then_forgotten(
    hub: FakeHub, state: str | None, why: str, map_index: int
) -> None:
    watched(hub, replace(WATCH, map_index=map_index))

    async def scenario() -> None:
        await asyncio.sleep(SETTLE - 0.1)
        assert hub.terminated == [], "not before the state has settled"
        await asyncio.sleep(3 * EVERY)
        assert hub.terminated == [("i", f"from Airflow: {why}")]
        await asyncio.sleep(2 * EVERY)
        assert hub.watched == {}

    sweep(hub, FakeAirflow(**{"t" if map_index < 0 else f"t_{map_index}": state}), scenario)


@pytest.mark.parametrize(
    "state",
    ["deferred", "scheduled", "queued", "running", "restarting", "up_for_retry", "up_for_reschedule", "a new one"],
)
def test_an_instance_that_a_try_waits_for_or_may_wait_for_is_left_alone(hub: FakeHub, state: str) -> None:
    watched(hub)
    sweep(hub, FakeAirflow(t=state), seconds=3600)
    assert (hub.terminated, set(hub.watched)) == ([], {"i"})


def test_a_clear_ends_nothing_if_the_cleared_task_waits_for_the_same_instance_again(hub: FakeHub) -> None:
    watched(hub, replace(WATCH, cleared_continues=True))
    sweep(hub, FakeAirflow(t=None), seconds=3600)
    assert (hub.terminated, set(hub.watched)) == ([], {"i"})
    sweep(hub, FakeAirflow(t="failed"))
    assert hub.terminated == [("i", "from Airflow: the task is failed")]


def test_the_run_was_deleted(hub: FakeHub) -> None:
    watched(hub)
    sweep(hub, FakeAirflow())
    assert hub.terminated == [("i", "from Airflow: its run was deleted")]


def test_what_another_deployment_started_is_left_alone(hub: FakeHub) -> None:
    """By its name; and by its DAG, if the names are the same by mistake."""
    watched(hub, replace(WATCH, deployment="there"))
    watched(hub, replace(WATCH, instance_id="j", dag_id="not ours"))
    sweep(hub, FakeAirflow(), seconds=3600)
    assert (hub.terminated, set(hub.watched)) == ([], {"i", "j"})


def test_a_task_that_was_seen_once_is_gone_also_when_its_dag_is(hub: FakeHub) -> None:
    airflow = FakeAirflow(t="deferred")
    watched(hub)

    async def scenario() -> None:
        await asyncio.sleep(EVERY)
        airflow.states_of.clear()
        airflow.dags.clear()
        await asyncio.sleep(60)
        assert hub.terminated == [("i", "from Airflow: its run was deleted")]

    sweep(hub, airflow, scenario)


@pytest.mark.parametrize("error", [ConnectionError("refused"), TimeoutError(), RuntimeError("500")])
def test_an_airflow_that_does_not_answer_proves_nothing(hub: FakeHub, error: Exception) -> None:
    airflow = FakeAirflow(t="failed")
    watched(hub)

    async def scenario() -> None:
        await asyncio.sleep(SETTLE - 1)
        airflow.down = error
        await asyncio.sleep(3600)
        airflow.down = None
        await asyncio.sleep(SETTLE - 1)
        assert hub.terminated == [], "the time begins anew"
        await asyncio.sleep(3 * EVERY)
        assert hub.terminated == [("i", "from Airflow: the task is failed")]

    sweep(hub, airflow, scenario)


def test_a_state_that_does_not_last_ends_nothing(hub: FakeHub) -> None:
    airflow = FakeAirflow(t=None)
    watched(hub)

    async def scenario() -> None:
        for _ in range(10):
            await asyncio.sleep(SETTLE / 2)
            airflow.states_of["d", "r", "t"] = "queued"
            await asyncio.sleep(2 * EVERY)
            airflow.states_of["d", "r", "t"] = None
        assert hub.terminated == []

    sweep(hub, airflow, scenario)


def test_a_newer_start_under_the_same_id_is_left_alone(hub: FakeHub) -> None:
    watched(hub, tags={"taskhub.owner": "a newer start"})
    sweep(hub, FakeAirflow(t="failed"))
    assert (hub.terminated, hub.watched) == ([], {})


def test_a_start_that_replaces_the_row_in_time_is_left_alone(hub: FakeHub) -> None:
    airflow = FakeAirflow(t="failed")
    watched(hub)

    async def scenario() -> None:
        await asyncio.sleep(SETTLE - 1)
        watched(hub, replace(WATCH, owner="the next try", etag="new"))
        await asyncio.sleep(SETTLE - EVERY)
        airflow.states_of["d", "r", "t"] = "deferred"
        await asyncio.sleep(600)
        assert (hub.terminated, hub.watched["i"].owner) == ([], "the next try")

    sweep(hub, airflow, scenario)


def test_an_older_generation_that_still_runs_is_terminated(hub: FakeHub) -> None:
    watched(hub)
    watched(hub, replace(WATCH, instance_id="i2", owner="you", generation=2))
    sweep(hub, FakeAirflow(t="deferred"))
    assert hub.terminated == [("i", "from Airflow: task cleared")]
    assert set(hub.watched) == {"i2"}


def test_rows_of_what_has_ended_or_never_began_are_deleted(hub: FakeHub) -> None:
    watched(hub, status=Status.COMPLETED)
    hub.watched["never"] = replace(WATCH, instance_id="never")
    sweep(hub, FakeAirflow(t="success"))
    assert (hub.terminated, hub.watched) == ([], {})


def test_without_rows_airflow_is_not_asked(hub: FakeHub) -> None:
    airflow = FakeAirflow()
    sweep(hub, airflow, seconds=600)
    assert airflow.questions.total() == 0
    assert hub.requests == {"watches": 600 / EVERY}


def test_a_mapped_task_costs_one_question_and_many_runs_few(hub: FakeHub) -> None:
    airflow = FakeAirflow()
    for number in range(1000):
        watched(hub, replace(WATCH, instance_id=f"m{number}", map_index=number))
        airflow.states_of["d", "r", f"t_{number}"] = "deferred"
    for number in range(100):
        watched(hub, replace(WATCH, instance_id=f"u{number}", run_id=f"r{number}", task_id="u"))
        airflow.states_of["d", f"r{number}", "u"] = "deferred"
    sweep(hub, airflow, seconds=EVERY / 2)
    assert airflow.questions == {"states": 1 + 100 / RUNS}


def test_a_dag_with_many_tasks_costs_few_questions(hub: FakeHub) -> None:
    """Each question costs a triggerer as much as a start, every few seconds, for as long as the tasks wait."""
    airflow = FakeAirflow()
    for number in range(3 * TASKS):
        watched(hub, replace(WATCH, instance_id=f"i{number}", task_id=f"t{number}"))
        airflow.states_of["d", "r", f"t{number}"] = "failed" if number % 2 else "deferred"

    async def scenario() -> None:
        await asyncio.sleep(EVERY / 2)
        assert airflow.questions == {"states": 3}
        await asyncio.sleep(60)
        assert {instance_id for instance_id, _ in hub.terminated} == {f"i{n}" for n in range(1, 3 * TASKS, 2)}

    sweep(hub, airflow, scenario)


@pytest.mark.parametrize(("row", "task", "ended"), [("deferred", "failed", "task"), ("failed", "deferred", "row")])
def test_a_row_of_a_mapped_task_is_not_taken_for_a_task_of_the_same_name(
    hub: FakeHub, row: str, task: str, ended: str
) -> None:
    """Airflow's answer has the key ``load_1`` for row 1 of ``load`` and for the task ``load_1``."""

    class Airflow(FakeAirflow):
        async def states(
            self, dag_id: str, task_ids: Sequence[str], run_ids: Sequence[str]
        ) -> dict[str, dict[str, str | None]]:
            answers = {"load": ("load_1", row), "load_1": ("load_1", task)}
            return {"r": dict(answers[task_id] for task_id in task_ids)}

    watched(hub, replace(WATCH, instance_id="row", task_id="load", map_index=1))
    watched(hub, replace(WATCH, instance_id="task", task_id="load_1"))
    sweep(hub, Airflow())
    assert {instance_id for instance_id, _ in hub.terminated} == {ended}


@pytest.mark.parametrize(
    ("task_ids", "size", "requests"),
    [
        (("b", "a", "c"), 2, [["a", "b"], ["c"]]),
        (("a", "a_1", "a_1_2", "a_x", "b_1"), 9, [["a", "a_1_2", "a_x", "b_1"], ["a_1"]]),
        (("a_1", "a_2"), 9, [["a_1", "a_2"]]),
    ],
)
def test_tasks_whose_rows_could_have_the_same_key_are_in_different_requests(
    task_ids: tuple[str, ...], size: int, requests: list[list[str]]
) -> None:
    assert requests_of(task_ids, size) == requests


def test_a_turn_is_bounded_and_all_have_their_turn(hub: FakeHub) -> None:
    airflow = FakeAirflow()
    for number in range(3 * QUESTIONS):
        airflow.dags.add(f"d{number}")
        watched(hub, replace(WATCH, instance_id=f"i{number}", dag_id=f"d{number}"))
        airflow.states_of[f"d{number}", "r", "t"] = "failed"

    async def scenario() -> None:
        await asyncio.sleep(1)
        assert airflow.questions["states"] == QUESTIONS
        assert hub.requests["get"] <= AT_ONCE
        await asyncio.sleep(55)
        assert len(hub.terminated) == 3 * QUESTIONS

    sweep(hub, airflow, scenario)


def test_no_hint_of_a_terminated_instance_stays_and_a_sensor_of_it_is_told_by_the_hint(hub: FakeHub) -> None:
    """Triggerer and API server sweep at the same time. A sweep must not delete the hint as soon as it sees the end,
    which the other one caused: a watcher reads hints every 3 s, and needs 150 s for 200 instances in turn."""
    airflow = FakeAirflow(t="failed")
    for name in ("i", "without a sensor"):
        watched(hub, replace(WATCH, instance_id=name))
    others = [f"i{number}" for number in range(200)]
    for name in others:
        hub.put(name, Status.RUNNING)

    async def play() -> None:
        loop = asyncio.get_running_loop()
        clock = VirtualClock(loop)
        watcher = Watcher(lambda: hub.open(None), interval=timedelta(seconds=3), clock=clock)  # type: ignore[arg-type,return-value]  # has what is used
        with ExitStack() as stack:
            *_, wait = [stack.enter_context(watcher.waiting(name)) for name in (*others, "i")]
            sweeps = []
            for begins in (1.5, 2.0):
                await asyncio.sleep(begins - loop.time())
                one = Sweep(airflow, deployment=lambda: "here", clock=clock)
                sweeps.append(asyncio.ensure_future(one.run(FakeClient(hub))))  # type: ignore[arg-type]  # has what is used
            await asyncio.sleep(SETTLE - 0.25)
            assert len(hub.terminated) == 2, "by the first of the two sweeps"
            await asyncio.sleep(3.5)
            assert wait.state is not None
            assert wait.state.status is Status.TERMINATED
            await asyncio.sleep(60)
            for sweeping in sweeps:
                sweeping.cancel()
            await asyncio.wait(sweeps)

    run(play(), limit=timedelta(days=1))
    assert (hub.hints, hub.watched) == (set(), {})


def test_trouble_with_the_hub_is_survived(hub: FakeHub) -> None:
    watched(hub)

    async def scenario() -> None:
        hub.down = Unavailable("gone")
        await asyncio.sleep(600)
        hub.down = None
        await asyncio.sleep(60)
        assert len(hub.terminated) == 1

    sweep(hub, FakeAirflow(t="failed"), scenario)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"TASKHUB__DEPLOYMENT": "production"}, "production"),
        ({"API__BASE_URL": "https://airflow.example.com/team/"}, "airflow.example.com/team"),
        ({"CORE__EXECUTION_API_SERVER_URL": "http://apiserver:8080/execution/"}, "apiserver:8080"),
        ({"API__BASE_URL": "http://localhost:8080"}, "thishost/localhost:8080"),
        ({}, "thishost/localhost:8080"),
    ],
)
def test_the_name_of_the_deployment(monkeypatch: pytest.MonkeyPatch, options: dict[str, str], name: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "thishost")
    for option, value in options.items():
        monkeypatch.setenv(f"AIRFLOW__{option}", value)
    assert deployment() == name


# -- in the API server --


def test_the_api_server_sweeps_for_as_long_as_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_taskhub.plugins import sweep as sweeping
    from airflow_provider_taskhub.plugins.taskhub import TaskHubPlugin

    said: list[str] = []

    @asynccontextmanager
    async def fake(server: Any) -> Any:
        said.append(f"sweeps beside {server}")
        yield
        said.append("ends")

    async def application(scope: Any, _receive: Any, _send: Any) -> None:
        said.append(scope["type"])

    monkeypatch.setattr(sweeping, "sweeping", fake)
    (entry,) = TaskHubPlugin.fastapi_root_middlewares
    middleware = entry["middleware"](application, *entry["args"], **entry["kwargs"])
    for kind in ("lifespan", "http", "websocket"):
        asyncio.run(middleware({"type": kind, "app": "the server"}, None, None))
    assert said == ["sweeps beside the server", "lifespan", "ends", "http", "websocket"]


def test_the_api_server_asks_its_own_task_execution_api() -> None:
    from airflow.api_fastapi.execution_api.app import _jwt_validator
    from fastapi import FastAPI, HTTPException, Query, Request

    from airflow_provider_taskhub.plugins.sweep import ServerTasks

    execution, server = FastAPI(), FastAPI()
    server.mount("/execution", execution)

    @execution.middleware("http")
    async def check(request: Request, follow: Any) -> Any:
        claims = await _jwt_validator().avalidated_claims(request.headers["authorization"].removeprefix("Bearer "), {})
        assert claims["scope"] == "execution"
        return await follow(request)

    @execution.get("/task-instances/states")
    async def states(dag_id: str, task_ids: list[str] = Query(), run_ids: list[str] = Query()) -> Any:  # noqa: B008
        if dag_id == "broken":
            raise HTTPException(500)
        return {"task_states": {run_id: {task_ids[0]: None} for run_id in run_ids}}

    @execution.get("/dags/{dag_id}")
    async def dag(dag_id: str) -> Any:
        raise HTTPException(404 if dag_id == "no dag" else 500 if dag_id == "broken" else 200)

    async def ask() -> None:
        tasks = ServerTasks(server)
        assert await tasks.states("d", ["t"], ["r", "s"]) == {"r": {"t": None}, "s": {"t": None}}
        assert [await tasks.knows(dag_id) for dag_id in ("d", "no dag")] == [True, False]
        for question in (tasks.states("broken", ["t"], ["r"]), tasks.knows("broken")):
            with pytest.raises(httpx.HTTPStatusError):
                await question
        await tasks.close()

    asyncio.run(ask())


def test_an_api_server_that_finds_no_hub_goes_on(monkeypatch: pytest.MonkeyPatch, hub: FakeHub) -> None:
    from airflow_provider_taskhub.plugins import sweep as sweeping

    async def play() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        monkeypatch.setattr(sweeping, "SYSTEM_CLOCK", clock)
        monkeypatch.setattr(sweeping, "ServerTasks", lambda _server: Quiet())
        hub.down = Unavailable("no storage")
        async with sweeping.sweeping():
            await asyncio.sleep(600)
            hub.down = None
            await asyncio.sleep(60)
            assert hub.requests["watches"] > 60 / EVERY - 4
        assert hub.open_now == 0

    class Quiet(FakeAirflow):
        async def close(self) -> None:
            pass

    run(play(), limit=timedelta(days=1))


def test_an_api_server_reads_the_connection_again_when_the_account_refuses_its_key(
    monkeypatch: pytest.MonkeyPatch, hub: FakeHub
) -> None:
    """The sweep went on with the old key for ever after a rotation."""
    from airflow_provider_taskhub.plugins import sweep as sweeping

    read = 0

    async def settings(self: TaskHubHook) -> Any:
        nonlocal read
        read += 1
        return settings_without_connection(self.taskhub_conn_id)

    async def play() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        monkeypatch.setattr(sweeping, "SYSTEM_CLOCK", clock)
        monkeypatch.setattr(sweeping, "ServerTasks", lambda _server: Quiet())
        monkeypatch.setattr(TaskHubHook, "asettings", settings)
        async with sweeping.sweeping():
            await asyncio.sleep(600)
            before = read
            hub.down = Unavailable("no storage")
            await asyncio.sleep(100)
            assert read == before, "an outage says nothing about the key"
            hub.down = AccessDenied("403")
            await asyncio.sleep(100)
            assert read > before + 5
            hub.down = None
            await asyncio.sleep(60)
            requests = hub.requests["watches"]
            await asyncio.sleep(60)
            assert hub.requests["watches"] > requests + 60 / EVERY - 4

    class Quiet(FakeAirflow):
        async def close(self) -> None:
            pass

    run(play(), limit=timedelta(days=1))


def test_an_api_server_also_sweeps_the_hubs_of_connections_in_its_environment(monkeypatch) -> None:
    """A task that was killed in a hub that no page shows left its instance behind until another task waited there."""
    monkeypatch.setenv("AIRFLOW__TASKHUB__PAGE_CONNECTIONS", "taskhub_default, shown")
    monkeypatch.setenv("AIRFLOW_CONN_SHOWN", "taskhub://")
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", "taskhub:///")
    monkeypatch.setenv("AIRFLOW_CONN_THIRD", '{"conn_type": "taskhub", "extra": {}}')
    monkeypatch.setenv("AIRFLOW_CONN_DATABASE", "postgresql://host")
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", "{")
    monkeypatch.setenv("AIRFLOW_CONN_LIST", "[]")
    assert swept_connections() == ["taskhub_default", "shown", "other", "third"]


# -- in a triggerer --


def test_a_triggerer_sweeps_a_hub_after_its_last_wait_until_no_row_is_left(hub: FakeHub) -> None:
    airflow = FakeAirflow(t="deferred")

    async def play() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        sweep = Sweep(airflow, deployment=lambda: "here", clock=clock)
        watcher = Watcher(lambda: hub.open(None), interval=timedelta(seconds=1), clock=clock, sweep=sweep)  # type: ignore[arg-type,return-value]  # has what is used
        watched(hub)
        with watcher.waiting("another"):
            await asyncio.sleep(10)
        with watcher.waiting("a third"):
            pass  # left before the watcher has seen it
        await asyncio.sleep(600)
        read = hub.requests["completions"]
        await asyncio.sleep(60)
        assert hub.requests["completions"] == read, "without a wait the sweep alone asks"
        airflow.states_of.clear()  # the run is deleted
        await asyncio.sleep(60)
        assert hub.terminated == [("i", "from Airflow: its run was deleted")]
        hub.end("i", status=Status.TERMINATED, tags=OWNER)
        await asyncio.sleep(60)
        assert hub.watched == {}
        assert hub.open_now == 0, "no row is left: the client is closed"

    run(play(), limit=timedelta(days=1))


def test_a_triggerer_gives_up_a_hub_without_waits_that_is_gone(hub: FakeHub) -> None:
    async def play() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        sweep = Sweep(FakeAirflow(), deployment=lambda: "here", clock=clock)
        watcher = Watcher(lambda: hub.open(None), interval=timedelta(seconds=1), clock=clock, sweep=sweep)  # type: ignore[arg-type,return-value]  # has what is used
        hub.down = Unavailable("gone")
        with watcher.waiting("i"):
            await asyncio.sleep(10)
        await asyncio.sleep(2 * 3600)
        assert hub.opened == MOST_FAILURES

    run(play(), limit=timedelta(days=1))
