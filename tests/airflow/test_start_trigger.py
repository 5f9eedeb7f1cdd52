"""The trigger that starts the instance of a task, as Airflow builds it: serialized, stored, read and rendered."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, TaskDeferred
from airflow.triggers.base import TaskFailedEvent, TaskSuccessEvent, TriggerEvent

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InstanceExists, IntakeFull, StorageError
from airflow_provider_taskhub.hooks.taskhub import TaskHubHook
from airflow_provider_taskhub.hub.model import StartPolicy
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.triggers.start import TaskHubStartTrigger
from airflow_provider_taskhub.triggers.start_or_attach import launch
from airflow_provider_taskhub.triggers.task_end import LARGEST_OUTPUT
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger
from airflow_provider_taskhub.triggers.watcher import IN_TURN
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.airflow.conftest import Store, Task, Ti
from tests.airflow.fake import FakeClient, FakeHub, FakeWatches

NOW = datetime(2013, 12, 1, tzinfo=UTC)


class Airflow:
    """What Airflow knows of the task: its state and its XComs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from airflow.sdk.execution_time.xcom import XCom

        self.state: str | None = "deferred"
        self.xcoms: dict[str, Any] = {}
        self.rows: dict[str, dict[str, Any]] = {"t": self.xcoms}
        self.requests: Counter[str] = Counter()
        self.ids: list[UUID] = []
        self.refuses = False
        self.dag_file = __file__
        self.stored: Any = None
        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(self.states))
        monkeypatch.setattr(XCom, "aget_one", self.get)
        monkeypatch.setattr(XCom, "aset", self.set)
        read = TaskHubHook.asettings

        async def counted(hook: TaskHubHook) -> Any:
            self.requests["connection"] += 1
            return await read(hook)

        monkeypatch.setattr(TaskHubHook, "asettings", counted)

    def states(self, *, task_ids: list[str], **place: Any) -> dict[str, dict[str, str | None]]:
        index = place.pop("map_index")
        assert place == {"dag_id": "d", "run_ids": ["r"]}
        self.requests["states"] += 1
        return {"r": {task_id if index < 0 else f"{task_id}_{index}": self.state for task_id in task_ids}}

    async def get(self, *, key: str, task_id: str, **place: Any) -> Any:
        self.requests["get"] += 1
        self.requests[f"get {task_id}"] += 1
        return self.rows[self.row(task_id, **place)].get(key)

    def row(self, task_id: str, **place: Any) -> str:
        index = place.pop("map_index")
        assert place == {"dag_id": "d", "run_id": "r"}
        return task_id if index < 0 else f"{task_id}[{index}]"

    async def set(self, *, key: str, value: Any, task_id: str, **place: Any) -> None:
        self.requests["set"] += 1
        if self.refuses:
            raise ConnectionError("no answer")
        self.rows.setdefault(self.row(task_id, **place), {})[key] = value

    def trigger(
        self,
        *,
        try_number: int = 1,
        ti_id: UUID | None = None,
        task_id: str = "t",
        index: int = -1,
        expand: dict[str, Any] | list[dict[str, Any]] | None = None,
        kind: Any = TaskHubOperator,
        of_first: Callable[[Any], dict[str, Any]] | None = None,
        **arguments: Any,
    ) -> Any:
        """Build the trigger of a task as Airflow does, from the serialized DAG.

        :param index: the map index. :param expand: what ``expand()`` or ``expand_kwargs()`` gets; None: not mapped.
        :param kind: the class of the operator or sensor.
        :param of_first: makes more of these parameters from a task that comes before this one in the DAG.
        """
        from airflow.executors.workloads.task import TaskInstanceDTO
        from airflow.jobs.triggerer_job_runner import TriggerRunner
        from airflow.models.trigger import Trigger
        from airflow.sdk._shared.module_loading import import_string
        from airflow.serialization.decoders import smart_decode_trigger_kwargs
        from airflow.serialization.serialized_objects import DagSerialization

        params = {"seconds": 60, "empty": "", "long": "x" * 40_000, "begin": "2027-01-01T01:00:00+01:00"}
        with DAG("d", schedule=None, params=params) as dag:
            if of_first is not None:
                arguments |= of_first(TaskHubOperator(task_id="first", orchestrator="o"))
            index, expand = arguments.pop("index", index), arguments.pop("expand", expand)
            named = {"orchestrator": "flights_delays"} if kind is TaskHubOperator else {}
            given = {"task_id": task_id, "retries": 2} | named | arguments
            if expand is None:
                kind(**given)
            elif isinstance(expand, dict):
                kind.partial(**given).expand(**expand)
            else:
                kind.partial(**given).expand_kwargs(expand, strict=False)
        dag.fileloc = self.dag_file
        encoded = DagSerialization.to_dict(dag)
        start = DagSerialization.from_dict(encoded).get_task(task_id).start_trigger_args
        self.stored = start.trigger_kwargs
        stored = Trigger(classpath=start.trigger_cls, kwargs=start.trigger_kwargs).encrypted_kwargs
        kwargs = {name: smart_decode_trigger_kwargs(value) for name, value in Trigger._decrypt_kwargs(stored).items()}
        self.ids.append(ti_id or uuid4())
        dto = TaskInstanceDTO(
            id=self.ids[-1], task_id=task_id, dag_id="d", run_id="r", try_number=try_number, map_index=index,
            pool_slots=1, priority_weight=1, dag_version_id=uuid4(), queue="default",
        )  # fmt: skip
        dates = dict.fromkeys(
            ("logical_date", "data_interval_start", "data_interval_end", "run_after", "start_date"), NOW
        )
        dag_run: dict[str, Any] = {
            "dag_id": "d",
            "run_id": "r",
            "run_type": "manual",
            "state": "running",
            "conf": {"k": "v"},
        }
        dag_run |= {"consumed_asset_events": [], "end_date": None, "partition_key": None} | dates
        ti = TriggerRunner.create_runtime_ti(dto, encoded, dag_run)
        trigger = import_string(start.trigger_cls)(**kwargs)
        trigger.clock = VirtualClock(asyncio.get_running_loop())
        trigger.task_instance, trigger.trigger_id = ti, 1
        limits = [limit for limit in (start.timeout, arguments.get("execution_timeout")) if limit is not None]
        trigger.timeout_after = trigger.clock.utc_now().datetime() + min(limits) if limits else None
        trigger.render_template_fields(context=ti.get_template_context())
        return trigger


@pytest.fixture
def airflow(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return Airflow(monkeypatch)


def play(scenario: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return run(scenario(), limit=timedelta(days=2))


async def event_of(trigger: TaskHubStartTrigger) -> Any:
    (event,) = [event async for event in trigger.run()]
    return event


def after(seconds: float, do: Callable[[], Any]) -> None:
    asyncio.get_running_loop().call_later(seconds, do)


ID, FIRST_ROW, ROW = "d:t:r:g1", "d:t[0]:r:g1", "d:t[1]:r:g1"


def test_serialises_to_plain_values_and_back() -> None:
    given: dict[str, Any] = {
        "orchestrator": "o",
        "input": [1],
        "taskhub_conn_id": "c",
        "instance_id": "i",
        "version": "3",
        "tags": {"a": "b"},
        "no_worker_timeout": 5.0,
        "wait_for_completion": False,
        "start_at": "2027-01-01",
        "input_types": {"": "int"},
        "limit": ["warehouse", 2],
        "priority": 4,
        "terminate_grace": 60.0,
        "end_from_trigger": False,
        "fail_from_trigger": False,
        "push_output": False,
        "outputs": [{"at": ["input", 0], "task_id": "first", "key": "rows"}],
    }
    path, kwargs = TaskHubStartTrigger(**given, gone="since 0.1").serialize()
    assert path == "airflow_provider_taskhub.triggers.start.TaskHubStartTrigger"
    assert kwargs == given


@pytest.mark.parametrize("given", [{}, {"input": None}])
def test_no_input_is_another_thing_than_none_in_what_airflow_stores(given: dict[str, Any]) -> None:
    _, stored = TaskHubStartTrigger(orchestrator="o", **given).serialize()
    again = TaskHubStartTrigger(**json.loads(json.dumps(stored)))
    assert again.input is given.get("input", NO_INPUT)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({}, None),
        ({"input": None}, "null"),
        ({"expand": {"input": [None, 1]}, "index": 0}, "null"),
        ({"expand": [{"input": 1}, {"version": "3"}], "index": 1}, None),
    ],
)
def test_an_explicit_none_is_the_input_of_the_instance(
    hub: FakeHub, airflow: Airflow, given: dict[str, Any], stored: str | None
) -> None:
    async def scenario() -> None:
        after(3, lambda: [hub.end(one, 1) for one in [*hub.instances]])
        assert type(await event_of(airflow.trigger(**given))) is TaskSuccessEvent
        assert [state.input for state in hub.instances.values()] == [stored]

    play(scenario)


ROWS = {"rows": [1, None, {"x": 2.5}]}
KEPT = {"taskhub_output": {"taskhub_conn_id": "c", "instance_id": "i", "execution_id": "e", "size": 300_000}}
NESTED = [{"a": ROWS, "b": "r"}, ROWS]
OUTPUTS = {"return_value": ROWS, "id": "chosen", "kept": {"a": [KEPT]}, "long": "x" * LARGEST_OUTPUT, "odd": object()}


@pytest.mark.parametrize(
    ("of_first", "started", "reads"),
    [
        (lambda first: {"input": first.output}, (ID, ROWS, None), 1),
        (lambda first: {"input": [{"a": first.output, "b": "{{ run_id }}"}, first.output]}, (ID, NESTED, None), 1),
        (lambda first: {"input": 1, "instance_id": first.output["id"]}, ("chosen", 1, None), 1),
        (lambda first: {"tags": {"x": first.output["id"]}, "input": first.output}, (ID, ROWS, "chosen"), 2),
        (lambda first: {"expand": {"version": ["", "1"]}, "index": 1, "input": first.output}, (ROW, ROWS, None), 1),
        (lambda first: {"expand": [{"input": 7}, {}], "index": 0, "input": first.output}, (FIRST_ROW, 7, None), 0),
        (lambda first: {"expand": [{"input": 7}, {}], "index": 1, "input": first.output}, (ROW, ROWS, None), 1),
    ],
)
def test_it_reads_the_outputs_of_other_tasks(
    hub: FakeHub, airflow: Airflow, of_first: Any, started: tuple[str, Any, str | None], reads: int
) -> None:
    airflow.rows["first"] = dict(OUTPUTS)
    seen: list[int] = []

    async def scenario() -> None:
        after(3, lambda: [hub.end(one, 1) for one in [*hub.instances]])
        after(2, lambda: seen.append(airflow.requests["get first"]))
        assert type(await event_of(airflow.trigger(of_first=of_first))) is TaskSuccessEvent

    play(scenario)
    (state,) = hub.instances.values()
    assert (state.instance_id, json.loads(state.input or ""), (state.tags or {}).get("x")) == started
    assert seen == [reads], "one request for each output"


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("none", "output 'none' of task 'first' is None or missing, and only a worker can tell which"),
        ("kept", "output 'kept' of task 'first' has a part that is in a task hub, and only a worker reads it"),
        ("long", "output 'long' of task 'first' is longer than 262,144 characters"),
        ("odd", "output 'odd' of task 'first' of type object cannot be written as JSON"),
        ("return_value", "the triggerer cannot read the outputs of other tasks: KeyError"),
    ],
)
def test_a_worker_starts_the_task_if_an_output_needs_it(hub: FakeHub, airflow: Airflow, key: str, why: str) -> None:
    if key != "return_value":
        airflow.rows["first"] = dict(OUTPUTS)

    async def scenario() -> None:
        event = await event_of(airflow.trigger(of_first=lambda first: {"input": {"a": first.output[key]}}))
        assert (event.payload["reason"], hub.starts) == ("start", [])
        assert event.payload["message"].startswith(why)

    play(scenario)


OF_ROWS = {"rows": ["list", ["|", "int", "None", ["dict", "str", "float"]]], "day": "int"}


@pytest.mark.parametrize(
    ("given", "types", "why"),
    [
        ({"rows": ["{{ params.seconds }}", None, {"x": 1}], "day": "7"}, OF_ROWS, None),
        ({"rows": [], "day": "{{ run_id }}"}, OF_ROWS, "argument 'day' does not fit int: value: 'r' is not an int"),
        ({"rows": ["{{ ds }}"], "day": 1}, OF_ROWS, "argument 'rows' does not fit"),
        ({"rows": []}, OF_ROWS, "argument 'day' is missing"),
        ("{{ params.seconds }}", {"": "int"}, None),
        ("{{ params.seconds }}", {"": "bool"}, "the input does not fit bool"),
        ([1], OF_ROWS, "argument 'rows' is missing"),
    ],
)
def test_an_input_that_does_not_fit_the_stub_is_left_to_the_worker_that_refuses_it(
    hub: FakeHub, airflow: Airflow, given: Any, types: dict[str, Any], why: str | None
) -> None:
    class OfStub(TaskHubOperator):
        input_types = types

    async def scenario() -> None:
        after(3, lambda: [hub.end(one, 1) for one in [*hub.instances]])
        event = await event_of(airflow.trigger(input=given, kind=OfStub, orchestrator="o"))
        assert (type(event) is TaskSuccessEvent) is (why is None)
        if why is not None:
            assert (event.payload["reason"], hub.starts) == ("start", [])
            assert event.payload["message"].startswith(why)

    play(scenario)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_an_edit_of_the_dag_file_changes_no_argument_of_the_trigger(airflow: Airflow, tmp_path: Path) -> None:
    """Airflow makes a new version of a DAG if anything in it has changed, also the arguments of a trigger."""
    stored: list[Any] = []

    async def scenario() -> None:
        for place, text in (("a", "# a comment"), ("b", "# another comment")):
            airflow.dag_file = str(write(tmp_path / place, text))
            airflow.trigger(input=["{{ run_id }}"])
            stored.append(airflow.stored)

    play(scenario)
    assert stored[0] == stored[1]


def test_it_starts_what_a_worker_would_start_and_ends_the_task(hub: FakeHub, airflow: Airflow) -> None:
    async def scenario() -> None:
        after(3, lambda: hub.end(ID, {"sum": 1}))
        given = {"a": [1, "{{ params.seconds }}"], "b": {"c": "{{ dag_run.conf['k'] }}"}}
        event = await event_of(airflow.trigger(input=given, tags={"run": "{{ run_id }}"}))
        assert type(event) is TaskSuccessEvent
        assert asyncio.get_running_loop().time() < 10, "no worker is left behind that it would have to wait for"

    play(scenario)
    (owner,) = map(str, airflow.ids)
    assert hub.instances[ID].input == '{"a":[1,"60"],"b":{"c":"v"}}'
    tags = hub.instances[ID].tags or {}
    assert (tags["run"], tags["airflow.logical_date"], tags["taskhub.owner"]) == ("r", NOW.isoformat(), owner)
    assert (tags["airflow.try_number"], tags["airflow.max_tries"], tags["taskhub.generation"]) == ("1", "2", "1")
    assert (hub.watched[ID].owner, hub.watched[ID].generation, hub.watched[ID].map_index) == (owner, 1, -1)
    assert (hub.watched[ID].waiter, hub.watched[ID].cleared_continues) == (owner, False)
    assert airflow.xcoms == {"instance_id": ID, "return_value": {"sum": 1}}


def test_a_worker_that_continues_finds_the_generation_of_the_trigger(
    hub: FakeHub, airflow: Airflow, make_task: Any
) -> None:
    """A clear after a success, and a retry after a failure, both in a worker without a stored counter."""

    async def scenario() -> None:
        after(3, lambda: hub.end(ID, 1))
        await event_of(airflow.trigger())

    play(scenario)
    ti = Ti(dag_id="d", task_id="t", run_id="r", id=airflow.ids[0])
    task = Task(TaskHubOperator(task_id="t", orchestrator="flights_delays"), Store())
    task.start(ti.cleared())
    assert hub.starts[-1][0] == "d:t:r:g2"
    hub.fail("d:t:r:g2", "no")
    hub.instances.pop("d:t:r:g2")
    hub.fail(ID, "no")
    Task(TaskHubOperator(task_id="t", orchestrator="flights_delays", on_retry="restart"), Store()).start(ti.next_try())
    assert hub.starts[-1][0] == ID


@pytest.mark.parametrize(
    ("arguments", "final", "event_type"),
    [({}, False, TaskFailedEvent), ({}, True, TriggerEvent), ({"retries": 0}, True, TaskFailedEvent)],
    ids=["retries left", "the error forbids retries", "no retries"],
)
def test_a_failure_ends_in_the_triggerer_unless_airflow_would_retry_it_against_its_will(
    hub: FakeHub, airflow: Airflow, arguments: dict[str, Any], final: bool, event_type: type,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    async def scenario() -> None:
        after(3, lambda: hub.fail(ID, "41 rows rejected", final=final))
        event = await event_of(airflow.trigger(**arguments))
        assert type(event) is event_type
        if event_type is TriggerEvent:
            assert event.payload["reason"] == "reached"
        else:
            assert "41 rows rejected" in capsys.readouterr().out

    play(scenario)


@pytest.mark.parametrize("xcom", ["taskhub_owner", "instance_id"])
@pytest.mark.parametrize(("failed", "chosen"), [(True, False), (True, True), (False, True)])
def test_an_end_ends_no_task_that_waits_for_another_instance(
    hub: FakeHub, airflow: Airflow, failed: bool, chosen: bool, xcom: str
) -> None:
    """Airflow on SQLite gives the id of a deleted trigger to a new trigger."""
    instance_id = "x" if chosen else ID

    async def scenario() -> None:
        def end() -> None:
            airflow.xcoms[xcom] = "of another try"
            hub.fail(instance_id, "41 rows rejected") if failed else hub.end(instance_id, 1)

        after(3, end)
        event = await event_of(airflow.trigger(**({"instance_id": "x"} if chosen else {})))
        assert (type(event), event.payload["reason"]) == (TriggerEvent, "reached")
        assert "return_value" not in airflow.xcoms

    play(scenario)


@pytest.mark.parametrize("xcom", [ID, "d:t:r:g2"])
def test_an_end_ends_no_task_that_was_cleared_and_waits_again(hub: FakeHub, airflow: Airflow, xcom: str) -> None:
    """The hub has an instance of the next generation. So Airflow is asked for which instance the task waits."""

    async def scenario() -> None:
        def end() -> None:
            hub.put("d:t:r:g2", Status.RUNNING)
            airflow.xcoms["instance_id"] = xcom
            hub.end(ID, 1)

        after(3, end)
        event = await event_of(airflow.trigger())
        assert type(event) is (TaskSuccessEvent if xcom == ID else TriggerEvent)
        assert airflow.requests["get"] == 1

    play(scenario)


def test_a_task_whose_hub_does_not_answer_at_the_end_asks_airflow(
    hub: FakeHub, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = FakeClient.get

    async def refused(client: FakeClient, instance_id: str, **more: Any) -> Any:
        if instance_id.endswith("g2"):
            raise StorageError("no answer")
        return await get(client, instance_id, **more)

    monkeypatch.setattr(FakeClient, "get", refused)

    async def scenario() -> None:
        after(3, lambda: hub.end(ID, 1))
        assert type(await event_of(airflow.trigger())) is TaskSuccessEvent
        assert airflow.requests["get"] == 1

    play(scenario)


def test_what_a_worker_has_rendered_is_not_rendered_again() -> None:
    trigger = TaskHubTrigger(instance_id="{{ run_id }}")
    trigger.template_fields = ("instance_id",)
    trigger.render_template_fields({"run_id": "r"})
    assert trigger.instance_id == "{{ run_id }}"


@pytest.mark.parametrize("failed", [False, True])
def test_another_triggerer_takes_the_instance_of_this_try_over(hub: FakeHub, airflow: Airflow, failed: bool) -> None:
    """Also if it has failed meanwhile: one try runs it once."""

    async def scenario() -> None:
        first = airflow.trigger()
        await first._launch()
        if failed:
            hub.fail(ID, "no")
        else:
            after(3, lambda: hub.end(ID, 1))
        event = await event_of(airflow.trigger(ti_id=airflow.ids[0]))
        assert type(event) is (TaskFailedEvent if failed else TaskSuccessEvent)

    play(scenario)
    assert [instance_id for instance_id, policy in hub.starts][:1] == [ID]
    assert set(hub.instances) == {ID}
    assert hub.instances[ID].status is (Status.FAILED if failed else Status.COMPLETED)


def test_a_run_that_was_deleted_and_created_again_gets_a_new_generation(hub: FakeHub, airflow: Airflow) -> None:
    async def scenario() -> None:
        await airflow.trigger()._launch()
        assert (await airflow.trigger()._launch()).instance_id == "d:t:r:g2"

    play(scenario)
    assert hub.instances[ID].status is Status.TERMINATED, "the older one ran still"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"try_number": 2}, "this is try 2, and only a worker can tell a retry from a clear"),
        ({"input": "{{ params.nothing }}"}, "the triggerer cannot render the templates: "),
        ({"orchestrator": "{{ params.empty }}"}, "orchestrator is ''"),
        ({"version": "{{ params.long }}"}, "version of orchestrator 'flights_delays' is"),
        ({"start_at": "{{ params.seconds }}"}, "start_at is '60': give a datetime"),
        ({"input": {"c": "{{ dag_run.conf }}"}}, "input.c is '{{ dag_run.conf }}', which makes Python text of a dict"),
        (
            {"expand": {"input": ["{{ dag_run.conf }}"]}, "index": 0},
            "input is '{{ dag_run.conf }}', which makes Python text of a dict",
        ),
        ({"instance_id": "taken"}, "Taken: instance id 'taken' belongs to another run"),
    ],
)
def test_a_worker_starts_what_the_trigger_cannot(
    hub: FakeHub, airflow: Airflow, arguments: dict[str, Any], why: str
) -> None:
    hub.put("taken", Status.RUNNING)

    async def scenario() -> Any:
        return await event_of(airflow.trigger(**arguments))

    event = play(scenario)
    assert type(event) is TriggerEvent
    assert event.payload["reason"] == "start"
    assert event.payload["message"].startswith(why)
    assert (hub.starts, hub.watched, airflow.xcoms) == ([], {}, {})


def test_a_hub_that_does_not_answer_is_asked_again_and_then_left_to_a_worker(hub: FakeHub, airflow: Airflow) -> None:
    async def scenario() -> None:
        hub.down = StorageError("busy")
        assert (await event_of(airflow.trigger())).payload["reason"] == "start"
        assert hub.opened == 4

        def up() -> None:
            hub.down = None

        after(2, up)
        after(8, lambda: hub.end(ID, 1))
        assert type(await event_of(airflow.trigger())) is TaskSuccessEvent

    play(scenario)


def test_rows_that_start_at_once_share_one_client_with_the_waits(hub: FakeHub, airflow: Airflow) -> None:
    """On Azure each client makes its own TLS connections, which block the triggerer."""
    rows = 100

    async def scenario() -> None:
        triggers = [airflow.trigger(instance_id=f"x{row}") for row in range(rows)]
        events = asyncio.gather(*map(event_of, triggers))
        await asyncio.sleep(5)
        assert (hub.opened, hub.open_now) == (1, 1)
        assert {name: hub.requests[name] for name in ("start", "watch")} == {"start": rows, "watch": rows}
        in_turn = 6 * IN_TURN
        assert hub.requests["get"] <= 2 * rows + in_turn, "one before the start, and the first look of the wait"
        for row in range(rows):
            hub.end(f"x{row}", row)
        await events
        assert hub.opened == 1

    play(scenario)


def test_rows_that_start_and_end_at_once_share_what_they_ask_airflow(hub: FakeHub, airflow: Airflow) -> None:
    """Each request of a trigger makes Airflow's triggerer read its database twice, with eight statements each time."""
    rows = 100

    async def scenario() -> None:
        triggers = [airflow.trigger(task_id=f"t{row}") for row in range(rows)]
        events = asyncio.gather(*map(event_of, triggers))
        await asyncio.sleep(5)
        assert airflow.requests == {"connection": 1, "set": rows}, "each row's instance id"
        for row in range(rows):
            hub.end(f"d:t{row}:r:g1", row)
        assert {type(event) for event in await events} == {TaskSuccessEvent}

    play(scenario)
    assert [airflow.rows[f"t{row}"]["return_value"] for row in range(rows)] == [*range(rows)]
    assert airflow.requests.pop("states") <= 5
    assert airflow.requests == {"connection": 1, "set": 2 * rows}, "and its output"


def test_a_connection_is_read_again_after_a_second(hub: FakeHub, airflow: Airflow) -> None:
    async def scenario() -> None:
        await airflow.trigger()._launch()
        await asyncio.sleep(0.9)
        await airflow.trigger()._launch()
        assert airflow.requests["connection"] == 1
        await asyncio.sleep(0.2)
        await airflow.trigger()._launch()
        assert airflow.requests["connection"] == 2

    play(scenario)


def test_without_xcoms_a_worker_ends_the_task(hub: FakeHub, airflow: Airflow) -> None:
    async def scenario() -> None:
        airflow.refuses = True
        after(3, lambda: hub.end(ID, 1))
        event = await event_of(airflow.trigger())
        assert (type(event), event.payload["reason"]) == (TriggerEvent, "reached")
        assert asyncio.get_running_loop().time() < 10

    play(scenario)


@pytest.mark.parametrize("moment", ["in the start", "in the wait"])
@pytest.mark.parametrize("state", [None, "deferred"])
def test_a_kill_terminates_what_was_started_and_a_move_does_not(
    hub: FakeHub, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, moment: str, state: str | None
) -> None:
    from airflow_provider_taskhub.triggers import start as module

    async def scenario() -> None:
        trigger = airflow.trigger()
        if moment == "in the start":
            launch = module.launch

            async def slow(*arguments: Any, **more: Any) -> Any:
                await asyncio.sleep(5)
                return await launch(*arguments, **more)

            monkeypatch.setattr(module, "launch", slow)
        running = asyncio.ensure_future(event_of(trigger))
        await asyncio.sleep(2)
        airflow.state = state
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await trigger.on_kill()
        assert hub.instances[ID].status is (Status.TERMINATED if state is None else Status.PENDING)

    play(scenario)


def test_the_time_limit_terminates_and_a_worker_ends_the_task(hub: FakeHub, airflow: Airflow) -> None:
    async def scenario() -> None:
        trigger = airflow.trigger()
        trigger.timeout_after = trigger.clock.utc_now().datetime() + timedelta(seconds=20)
        event = await event_of(trigger)
        assert event.payload["reason"] == "timeout"
        assert hub.terminated[0][0] == ID

    play(scenario)


def test_a_later_try_that_a_worker_starts_deletes_the_result_of_the_earlier_one(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a new output of None would leave the old output to the tasks that come after."""
    from airflow.sdk.execution_time.xcom import XCom

    forgotten: list[dict[str, Any]] = []
    monkeypatch.setattr(XCom, "delete", lambda **place: forgotten.append(place))
    task, ti = Task(TaskHubOperator(task_id="t", orchestrator="flights_delays"), Store()), Ti(task_id="t")
    event = {"reason": "start", "instance_id": None, "owner": "", "status": None, "message": "why"}
    for each, expected in ((ti, 0), (ti.next_try(), 1)):
        with pytest.raises(TaskDeferred):
            task.operator.execute_started(task.context(each), event)
        assert len(forgotten) == expected
    assert (forgotten[0]["key"], forgotten[0]["task_id"], forgotten[0]["map_index"]) == ("return_value", "t", -1)


def test_the_operator_continues_where_the_trigger_stopped(
    hub: FakeHub, airflow: Airflow, capsys: pytest.CaptureFixture[str]
) -> None:
    """It starts the instance if the trigger has not, or if the event belongs to another try, and ends it otherwise.

    The worker's log says why, because the trigger of the wait overwrites the log of the trigger before it.
    """
    task = Task(TaskHubOperator(task_id="t", orchestrator="flights_delays"), Store())
    ti = Ti(dag_id="d", task_id="t", run_id="r")

    def resumed(**event: Any) -> Any:
        payload = {"reason": "reached", "instance_id": ID, "owner": str(ti.id), "status": None, "message": ""} | event
        return task.operator.resume_execution("execute_started", {"event": payload}, task.context(ti))

    with pytest.raises(TaskDeferred) as deferred:
        resumed(reason="start", instance_id=None, message="the DAG file has changed")
    assert deferred.value.trigger.instance_id == ID
    assert "a worker starts this task: the DAG file has changed [" in capsys.readouterr().out
    hub.end("other", {"sum": 2})
    with pytest.raises(TaskDeferred) as deferred:
        resumed(instance_id="other", owner="another try")
    assert deferred.value.trigger.instance_id == ID
    assert "a worker starts this task: the trigger's event belongs to another try [" in capsys.readouterr().out
    hub.end(ID, {"sum": 1})
    assert resumed() == {"sum": 1}


@pytest.mark.parametrize(
    ("arguments", "ti", "line"),
    [
        ({"start_on": "worker"}, {}, "a worker starts this task: start_on='worker'"),
        (
            {"input": "{{ var.value.x }}"},
            {},
            "a worker starts this task: the triggerer cannot render the template '{{ var.value.x }}': "
            "it does not have var.value",
        ),
        ({"multiple_outputs": True}, {}, "a worker ends this task: multiple_outputs"),
    ],
)
def test_the_log_says_why_a_worker_starts_and_ends_the_task(
    hub: FakeHub, arguments: Any, ti: Any, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with DAG("d", schedule=None):
        task = Task(TaskHubOperator(**({"task_id": "t", "orchestrator": "o"} | arguments)))
    task.operator.render_template_fields({"var": {"value": {"x": "u"}}})
    task.start(Ti(**ti))
    assert f"{line} [" in capsys.readouterr().out


def test_a_task_that_does_not_wait_ends_with_the_id_of_its_instance(hub: FakeHub, airflow: Airflow) -> None:
    async def scenario() -> None:
        trigger = airflow.trigger(wait_for_completion=False, tags={"run": "{{ run_id }}"})
        assert type(await event_of(trigger)) is TaskSuccessEvent
        await trigger.on_kill()

    play(scenario)
    assert airflow.xcoms["return_value"] == ID
    assert hub.instances[ID].status is Status.PENDING
    assert hub.terminated == []
    assert hub.watched == {}, "or the sweep would terminate it, because its task has ended"
    assert "taskhub.watch" not in (hub.instances[ID].tags or {}), "or its end would leave a hint that nobody reads"


def test_a_task_that_does_not_wait_may_push_nothing(hub: FakeHub, airflow: Airflow) -> None:
    async def scenario() -> None:
        event = await event_of(airflow.trigger(wait_for_completion=False, do_xcom_push=False))
        assert type(event) is TaskSuccessEvent

    play(scenario)
    assert set(airflow.xcoms) == {"instance_id"}


@pytest.mark.parametrize("why", ["outlets", "no XComs", "another trigger's task"])
def test_a_worker_ends_a_task_that_does_not_wait_and_starts_nothing_again(
    hub: FakeHub, airflow: Airflow, why: str
) -> None:
    airflow.refuses = why == "no XComs"
    airflow.state = "running" if why == "another trigger's task" else "deferred"
    needs = {"complete_on": "worker"} if why == "outlets" else {}

    async def scenario() -> Any:
        return await event_of(airflow.trigger(wait_for_completion=False, **needs))

    event = play(scenario)
    assert type(event) is TriggerEvent
    assert (event.payload["reason"], event.payload["instance_id"]) == ("started", ID)
    assert "return_value" not in airflow.xcoms
    task = Task(TaskHubOperator(task_id="t", orchestrator="flights_delays", wait_for_completion=False), Store())
    ti = Ti(dag_id="d", task_id="t", run_id="r", id=airflow.ids[0])
    resumed = task.operator.resume_execution("execute_started", {"event": event.payload}, task.context(ti))
    assert resumed == ID
    assert len(hub.starts) == 1


def test_a_kill_in_the_start_of_a_task_that_does_not_wait_terminates(
    hub: FakeHub, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_taskhub.triggers import start as module

    launch = module.launch

    async def slow(*arguments: Any, **more: Any) -> Any:
        await asyncio.sleep(5)
        return await launch(*arguments, **more)

    monkeypatch.setattr(module, "launch", slow)

    async def scenario() -> None:
        trigger = airflow.trigger(wait_for_completion=False)
        running = asyncio.ensure_future(event_of(trigger))
        await asyncio.sleep(2)
        airflow.state = None
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await trigger.on_kill()

    play(scenario)
    assert hub.instances[ID].status is Status.TERMINATED


@pytest.mark.parametrize("start_at", [datetime(2027, 1, 1, tzinfo=UTC), "{{ params.begin }}", "2027-01-01"])
def test_an_instance_begins_at_its_time(hub: FakeHub, airflow: Airflow, start_at: Any) -> None:
    begins: list[Any] = []

    async def scenario() -> None:
        after(2, lambda: begins.append(hub.instances[ID].scheduled_start))
        after(3, lambda: hub.end(ID, 1))
        assert type(await event_of(airflow.trigger(start_at=start_at))) is TaskSuccessEvent

    play(scenario)
    assert [begin.datetime() for begin in begins] == [datetime(2027, 1, 1, tzinfo=UTC)]


def test_without_a_task_a_worker_starts_the_instance() -> None:
    async def scenario() -> Any:
        return await event_of(TaskHubStartTrigger(orchestrator="o"))

    event = play(scenario)
    assert (event.payload["reason"], event.payload["owner"]) == ("start", "")


OTHERS = {"taskhub.owner": "another"}
"""Tags of an instance that another task has started."""


def continued(airflow: Airflow, event: TriggerEvent, **arguments: Any) -> Any:
    """What a worker makes of the event."""
    task = Task(TaskHubOperator(**({"task_id": "t", "orchestrator": "flights_delays"} | arguments)), Store())
    ti = Ti(dag_id="d", task_id="t", run_id="r", id=airflow.ids[-1])
    return task.operator.resume_execution("execute_started", {"event": event.payload}, task.context(ti))


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("method", ["watches", "start"])
def test_two_tasks_that_start_one_id_at_the_same_moment_do_not_share_it(
    hub: FakeHub, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, method: str, ended: bool
) -> None:
    """Both read the same. Then the other is faster, before this trigger writes its watch row or after."""
    if ended:
        hub.put("x", Status.COMPLETED, tags={"taskhub.owner": "an older run"})
    where: type = FakeWatches if method == "watches" else FakeClient
    name = "add" if method == "watches" else "start"
    whole = getattr(where, name)

    async def scenario() -> None:
        trigger = airflow.trigger(instance_id="x")
        mine = trigger._request()
        other, faster = replace(mine, task=replace(mine.task, run_id="other", owner="another")), [True]

        async def second(self: Any, *arguments: Any, **named: Any) -> Any:
            if faster:
                faster.clear()
                await launch(FakeClient(hub), other, counter=None, remember=lambda _: None)  # type: ignore[arg-type]
            return await whole(self, *arguments, **named)

        monkeypatch.setattr(where, name, second)
        event = await event_of(trigger)
        assert event.payload["reason"] == "start"
        assert "Taken: instance id 'x' belongs to another run" in event.payload["message"]

    play(scenario)
    assert (hub.instances["x"].tags or {})["airflow.run_id"] == "other"
    assert (hub.watched["x"].run_id, hub.watched["x"].owner) == ("other", "another"), "the other's row stays"
    assert airflow.xcoms == {}


@pytest.mark.parametrize("error", [InstanceExists("exists already (Pending)"), StorageError("the answer is lost")])
def test_a_start_whose_answer_was_lost_is_found_by_the_same_try(
    hub: FakeHub, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    whole, once = FakeClient.start, [error]

    async def lost(self: FakeClient, *arguments: Any, **named: Any) -> Any:
        state = await whole(self, *arguments, **named)
        if once:
            raise once.pop()
        return state

    monkeypatch.setattr(FakeClient, "start", lost)

    async def scenario() -> None:
        after(8, lambda: hub.end("x", 1))
        assert type(await event_of(airflow.trigger(instance_id="x"))) is TaskSuccessEvent

    play(scenario)
    assert hub.starts == [("x", StartPolicy.REFUSE), ("x", StartPolicy.ATTACH)], "its start message is put again"
    assert (hub.watched["x"].owner, hub.watched["x"].waiter) == (str(airflow.ids[0]), str(airflow.ids[0]))


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
def test_the_end_of_another_run_is_not_the_end_of_the_task(hub: FakeHub, airflow: Airflow, status: Status) -> None:
    """Another run starts the same id again, and ends, before the triggerer has seen the first end."""

    async def scenario() -> Any:
        after(3, lambda: hub.put("x", status, output='"the other\'s"', tags=OTHERS))
        return await event_of(airflow.trigger(instance_id="x"))

    event = play(scenario)
    assert (type(event), event.payload["reason"]) == (TriggerEvent, "reached")
    assert "return_value" not in airflow.xcoms
    with pytest.raises(AirflowException, match=r"instance x\) was started again by another task or program"):
        continued(airflow, event, instance_id="x")


@pytest.mark.parametrize("live", [True, False])
def test_another_triggerer_starts_nothing_again_that_another_run_has_replaced(
    hub: FakeHub, airflow: Airflow, live: bool
) -> None:
    async def scenario() -> Any:
        first = airflow.trigger(instance_id="x")
        await first._tell(await first._launch())
        hub.put("x", Status.RUNNING if live else Status.COMPLETED, output="1", tags=OTHERS)
        after(3, lambda: hub.end("x", 1) if live else None)
        return await event_of(airflow.trigger(instance_id="x", ti_id=airflow.ids[0]))

    event = play(scenario)
    assert (type(event), event.payload["reason"]) == (TriggerEvent, "reached")
    assert (hub.starts, hub.terminated) == ([("x", StartPolicy.REFUSE)], [])
    with pytest.raises(AirflowException, match="was started again by another task or program"):
        continued(airflow, event, instance_id="x")


@pytest.mark.parametrize("end", ["the time limit", "a mark"])
@pytest.mark.parametrize("waits", ["this try", "another try"])
def test_what_another_try_waits_for_is_not_terminated(hub: FakeHub, airflow: Airflow, end: str, waits: str) -> None:
    """A triggerer that was paused goes on late. A rewound instance has the owner of its first try."""

    async def scenario() -> None:
        trigger = airflow.trigger()
        if end == "the time limit":
            trigger.timeout_after = trigger.clock.utc_now().datetime() + timedelta(seconds=20)
        running = asyncio.ensure_future(event_of(trigger))
        await asyncio.sleep(2)
        if waits == "another try":
            hub.watched[ID] = replace(hub.watched[ID], waiter=waits)
        if end == "the time limit":
            assert (await running).payload["reason"] == "timeout"
        else:
            airflow.state = "failed"
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await trigger.on_kill()
        assert bool(hub.terminated) is (waits == "this try")

    play(scenario)


@pytest.mark.parametrize("arguments", [{}, {"instance_id": "x"}])
def test_what_a_person_has_rewound_before_a_worker_ends_the_task_is_watched_again(
    hub: FakeHub, airflow: Airflow, arguments: dict[str, Any]
) -> None:
    """The page releases the watch row of an instance that it rewinds, because its task may have ended."""
    instance_id = arguments.get("instance_id", ID)

    async def scenario() -> Any:
        after(3, lambda: hub.fail(instance_id, "no"))
        return await event_of(airflow.trigger(complete_on="worker", **arguments))

    event = play(scenario)
    assert event.payload["reason"] == "reached"
    before = hub.watched.pop(instance_id)
    hub.put(instance_id, Status.PENDING)
    with pytest.raises(TaskDeferred) as again:
        continued(airflow, event, **arguments)
    assert (again.value.trigger.owner, again.value.trigger.deferred_by_worker) == (str(airflow.ids[0]), True)
    assert replace(hub.watched[instance_id], etag="") == replace(before, etag="")


FULL = IntakeFull("hub 'TaskHub' takes no new start now", waits=True)


def test_a_start_waits_for_room_in_the_triggerer(hub: FakeHub, airflow: Airflow) -> None:
    """Not in the client: a kill must end the wait, and other starts of this triggerer must not wait for it."""
    hub.full = FULL

    async def scenario() -> None:
        def room() -> None:
            assert (hub.instances, hub.watched) == ({}, {}), "a start that was not taken leaves nothing"
            hub.full = None

        after(600, room)
        after(700, lambda: hub.end(ID, 1))
        assert type(await event_of(airflow.trigger())) is TaskSuccessEvent

    play(scenario)
    assert set(hub.waits) == {timedelta(0)}
    assert 20 <= len(hub.waits) <= 60, "its pauses become longer"


@pytest.mark.parametrize("waits", [True, False])
def test_a_worker_fails_the_task_that_the_hub_does_not_take_and_waits_only_if_the_trigger_has_not(
    hub: FakeHub, airflow: Airflow, waits: bool
) -> None:
    hub.full = IntakeFull("hub 'TaskHub' takes no new start now", waits=waits)
    took: list[float] = []

    async def scenario() -> Any:
        before = asyncio.get_running_loop().time()
        event = await event_of(airflow.trigger())
        took.append(asyncio.get_running_loop().time() - before)
        return event

    event = play(scenario)
    assert took == [pytest.approx(3600.0 if waits else 0.0, abs=1.0)]
    assert (event.payload["reason"], event.payload["message"]) == ("start", "hub 'TaskHub' takes no new start now")
    task = Task(TaskHubOperator(task_id="t", orchestrator="flights_delays"), Store())
    ti = Ti(dag_id="d", task_id="t", run_id="r", id=airflow.ids[0])
    with pytest.raises(AirflowException, match="hub 'TaskHub' takes no new start now"):
        task.operator.resume_execution("execute_started", {"event": event.payload}, task.context(ti))
    assert hub.waits[-1] == (timedelta(0) if waits else None)
    assert (hub.instances, hub.watched) == ({}, {})


def test_a_kill_ends_the_wait_for_room(hub: FakeHub, airflow: Airflow) -> None:
    hub.full = FULL

    async def scenario() -> None:
        trigger = airflow.trigger()
        running = asyncio.ensure_future(event_of(trigger))
        await asyncio.sleep(100)
        airflow.state = None
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await trigger.on_kill()
        hub.full = None
        await asyncio.sleep(600)

    play(scenario)
    assert (hub.instances, hub.terminated) == ({}, [])
