"""How templates are rendered: what stays a text with native rendering, and which Python text is recognised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.decorators.orchestration import orchestration_task
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.notifications.taskhub import TaskHubRaiseEventNotifier
from airflow_provider_taskhub.operators.control import TaskHubRaiseEventOperator, TaskHubTerminateOperator
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.sensors.taskhub import TaskHubSensor
from tests.airflow.conftest import Task, Ti
from tests.airflow.fake import FakeHub

app = App("flights")
DAY, CONFIG = "{{ ds_nodash }}", {"a": 1, "b": [None, True], "when": None}


@dataclass
class Job:
    day: str
    number: int
    more: Mapping[str, str | None]


class Row(TypedDict):
    day: str


@app.orchestrator
async def load(ctx: OrchestrationContext, job: Job) -> None: ...


@app.orchestrator
async def by_day(ctx: OrchestrationContext, day: str | None) -> None: ...


@app.activity(standalone=True)
def by_activity(day: str) -> None: ...


@app.spark_activity(standalone=True)
def by_spark(spark: Any, job: Job) -> None: ...


def stub(day: str, days: list[str], number: int, rows: list[Row], any_: Any, either: str | int) -> None: ...


def dag(*, native: bool = True) -> DAG:
    return DAG("d", schedule=None, render_template_as_native_obj=native)


def rendered(one: Any) -> Any:
    """The operator after Airflow has rendered it."""
    params = {"config": CONFIG, "text": "{'a': 1}", "statuses": ["Running"], "names": ["Ada"]}
    params |= {"tags": {"team": "sales"}, "dated": {"on": datetime(2026, 1, 1, tzinfo=UTC)}}
    context = {"ds_nodash": "20260101", "params": params, "run_id": "2026", "dag": one.dag, "ti": Ti()}
    one.render_template_fields(context)
    return one


def test_native_rendering_changes_no_id_tag_or_version() -> None:
    with dag():
        one = TaskHubOperator(
            task_id="t",
            orchestrator=DAY,
            instance_id=DAY,
            version="3",
            taskhub_conn_id="{{ 5 }}",
            tags={"day": DAY, "plain": "7"},
            input={"day": DAY, "config": "{{ params.config }}", "plain": "7"},
        )
        tags = TaskHubOperator(task_id="tags", orchestrator="o", tags="{{ params.tags }}")
        sensor = TaskHubSensor(task_id="s", instance_id=DAY, event_name="{{ 5 }}", statuses="{{ params.statuses }}")
        event = TaskHubRaiseEventOperator(task_id="e", instance_id=DAY, event_name=DAY, data={"day": DAY})
    rendered(one)
    assert (one.orchestrator, one.instance_id, one.version, one.taskhub_conn_id) == ("20260101", "20260101", "3", "5")
    assert one.tags == {"day": "20260101", "plain": "7"}
    assert one.input == {"day": 20260101, "config": CONFIG, "plain": 7}, "nothing declares a str"
    assert one._python_text is None
    assert rendered(tags).tags == {"team": "sales"}
    assert (rendered(sensor).instance_id, sensor.event_name, sensor.statuses) == ("20260101", "5", ["Running"])
    assert (rendered(event).instance_id, event.event_name, event.data) == ("20260101", "20260101", {"day": 20260101})


def test_native_rendering_of_the_operator_alone_and_of_a_notifier() -> None:
    with dag(native=False) as other:
        one = TaskHubOperator(task_id="t", orchestrator="o", instance_id=DAY, input=DAY)
        one.render_template_as_native_obj = True
    assert (rendered(one).instance_id, one.input) == ("20260101", 20260101)
    other.render_template_as_native_obj = True
    notifier = TaskHubRaiseEventNotifier(instance_id=DAY, event_name="{{ 5 }}", data={"day": DAY})
    notifier.render_template_fields({"ds_nodash": "20260101", "dag": other})
    assert (notifier.instance_id, notifier.event_name, notifier.data) == ("20260101", "5", {"day": 20260101})


def test_native_rendering_changes_no_input_that_is_declared_as_a_str() -> None:
    with dag():
        of_dataclass = TaskHubOperator(
            task_id="a", orchestrator=load, input={"day": DAY, "number": "{{ 7 }}", "more": {"x": DAY, "y": "{{ '' }}"}}
        )
        alone = TaskHubOperator(task_id="b", orchestrator=by_day, input=DAY)
        activity = TaskHubOperator(task_id="c", activity=by_activity, input=DAY)
        spark = TaskHubOperator(task_id="d", activity=by_spark, input={"day": DAY, "number": "{{ 7 }}", "more": {}})
        names = orchestration_task(stub, orchestrator="o")(
            DAY, [DAY, "b"], "{{ 7 }}", [{"day": DAY}], {"day": DAY}, "{{ 7 }}"
        )
        mapped = orchestration_task(by, orchestrator="o").partial(day=DAY).expand(number=["{{ 7 }}"])
    assert rendered(of_dataclass).input == {"day": "20260101", "number": 7, "more": {"x": "20260101", "y": ""}}
    assert rendered(alone).input == rendered(activity).input == "20260101"
    assert rendered(spark).input == {"day": "20260101", "number": 7, "more": {}}
    assert rendered(names.operator).input == {
        "day": "20260101",
        "days": ["20260101", "b"],
        "number": 7,
        "rows": [{"day": "20260101"}],
        "any_": {"day": 20260101},
        "either": 7,
    }
    row = mapped.operator.unmap({"op_kwargs": {"number": 7}})
    row.dag = mapped.operator.dag
    assert rendered(row).input == {"day": "20260101", "number": 7}


def by(day: str, number: int) -> None: ...


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{{ params.config }}", "input is '{{ params.config }}', which makes Python text of a dict or list"),
        ({"x": [" {{ params.config }} "]}, "input.x[0] is '{{ params.config }}', which makes Python text"),
        (
            {"x": "{{ params.names }}"},
            "write {{ params.names | tojson }} for a text of JSON, or set render_",
        ),
        ("{{ params.dated }}", "Give the output of a task itself (an XComArg)"),
    ],
)
def test_python_text_of_a_dict_is_refused_before_anything_starts(hub: FakeHub, given: Any, says: str) -> None:
    with dag(native=False):
        one = rendered(TaskHubOperator(task_id="t", orchestrator="o", input=given))
    with pytest.raises(AirflowFailException) as error:
        Task(one).run(Ti())
    assert says in str(error.value)
    assert hub.starts == []


def test_python_text_of_a_dict_is_refused_in_an_event_too(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING)
    with dag(native=False) as other:
        one = TaskHubRaiseEventOperator(task_id="e", instance_id="i", event_name="go", data="{{ params.config }}")
    with pytest.raises(AirflowFailException, match=r"data is '\{\{ params.config \}\}', which makes Python text"):
        Task(rendered(one)).run(Ti())
    notifier = TaskHubRaiseEventNotifier(instance_id="i", event_name="go", data={"x": "{{ params.config }}"})
    notifier.render_template_fields({"params": {"config": CONFIG}, "dag": other})
    with pytest.raises(InputError, match=r"data.x is .*, which makes Python text"):
        notifier.notify({})
    assert not hub.requests["raise_event"]


@pytest.mark.parametrize("value", [[1, 2], [], {}, ("a",), {"b"}, ["a"], [datetime(2026, 1, 1, tzinfo=UTC)]])
@pytest.mark.parametrize("template", ["{{ params.it }}", " {% if true %}{{ params.it }}{% endif %}"])
def test_a_template_of_a_container_is_refused_whatever_is_in_it(hub: FakeHub, template: str, value: Any) -> None:
    with dag(native=False) as other:
        one = TaskHubOperator(task_id="t", orchestrator="o", input=["a", template])
    one.render_template_fields({"params": {"it": value}, "dag": other})
    with pytest.raises(AirflowFailException, match=r"input\[1\] is .*, which makes Python text of a dict or list"):
        Task(one).run(Ti())
    assert hub.starts == []


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ params.it | tojson }}", "[1, 2]"),
        ("{{ params.text }}", "[1, 2]"),
        ("{'a': 1}", "{'a': 1}"),
        (["[1, 2]", "of {{ params.it }}"], ["[1, 2]", "of [1, 2]"]),
        ("found: {{ params.it }}", "found: [1, 2]"),
        ("{{ params.it }} {{ params.it }}", "[1, 2] [1, 2]"),
        ("{{ params.it | length }}", "2"),
        (
            ["of {{ params.it }}", "{{ params.it }}{{ '' }}!", "{{ params.it | tojson }}"],
            ["of [1, 2]", "[1, 2]!", "[1, 2]"],
        ),
        ("{{ '' }}", ""),
    ],
)
def test_other_texts_are_inputs(hub: FakeHub, template: Any, text: Any) -> None:
    with dag(native=False) as other:
        one = TaskHubOperator(task_id="t", orchestrator="o", input=["a", template])
    one.render_template_fields({"params": {"it": [1, 2], "text": "[1, 2]"}, "dag": other})
    Task(one).start(Ti())
    assert (one._python_text, one.input) == (None, ["a", text])
    assert len(hub.starts) == 1


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda **given: TaskHubTerminateOperator(missing_ok=True, **given),
        TaskHubSensor,
        lambda **given: TaskHubOperator(orchestrator="o", **given),
    ],
)
def test_the_ids_of_several_instances_are_no_id(hub: FakeHub, make: Any, native: bool) -> None:
    with dag(native=native) as other:
        one = make(task_id="t", instance_id="{{ params.ids }}")
    one.render_template_fields({"params": {"ids": ["a", "b"]}, "dag": other})
    with pytest.raises(AirflowFailException, match=r"instance_id is '\{\{ params.ids \}\}', .* give one id"):
        Task(one).run(Ti())
    assert hub.starts == []


def test_what_the_user_makes_of_each_value_stays(hub: FakeHub) -> None:
    kwargs = {"finalize": lambda value: "" if value is None else value}
    with DAG("d", schedule=None, jinja_environment_kwargs=kwargs) as other:
        one = TaskHubOperator(task_id="t", orchestrator="o", input=["{{ none }}", "{{ params.it }}"])
    one.render_template_fields({"params": {"it": [1]}, "dag": other})
    assert one.input == ["", "[1]"]
    assert "input[1] is" in str(one._python_text)
