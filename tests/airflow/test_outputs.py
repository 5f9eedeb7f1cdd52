"""What a task returns: a large output stays in the hub, and the task returns a reference to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InstanceNotFound
from airflow_provider_taskhub.hooks.taskhub import TaskHubHook
from airflow_provider_taskhub.operators.control import TaskHubRaiseEventOperator
from airflow_provider_taskhub.operators.repair import TaskHubRewindOperator
from tests.airflow.conftest import Task, Ti
from tests.airflow.fake import FakeHub

BOUND = 100
ID = "flights:delays:scheduled__2013-12-01T00:00:00+00:00:g1"
FITS, LARGE = "x" * (BOUND - 2), "x" * (BOUND - 1)  # as JSON they have two quotes more


@pytest.fixture(autouse=True)
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TASKHUB__MAX_OUTPUT_BYTES", str(BOUND))


def reference(**changes: Any) -> dict[str, Any]:
    fields = {"taskhub_conn_id": "taskhub_default", "instance_id": ID, "execution_id": "e", "size": BOUND + 1}
    return {"taskhub_output": fields | changes}


def result(make_task: Callable[..., Task], hub: FakeHub, output: Any, **arguments: Any) -> Any:
    task, ti = make_task(**arguments), Ti()
    task.start(ti)
    hub.end(ID, f'"{output}"' if isinstance(output, str) else output)
    return task.finish(ti, status="Completed")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (FITS, FITS),
        (LARGE, reference()),
        ("ü" * (BOUND // 2 - 1), "ü" * (BOUND // 2 - 1)),
        ("ü" * (BOUND // 2), reference(size=BOUND + 2)),
    ],
    ids=["fits", "one byte too many", "fits in bytes", "too many bytes"],
)
def test_a_task_returns_an_output_up_to_the_bound_and_a_reference_to_a_larger_one(
    make_task, hub, output: str, expected: Any
) -> None:
    assert result(make_task, hub, output) == expected


def test_the_hook_opens_references_wherever_they_are_and_leaves_the_rest(make_task, hub) -> None:
    returned = result(make_task, hub, LARGE)
    assert TaskHubHook.output(returned) == LARGE
    nested = {"of one": returned, "of many": [returned, 7, None, FITS]}
    assert TaskHubHook.output(nested) == {"of one": LARGE, "of many": [LARGE, 7, None, FITS]}


@pytest.mark.parametrize(
    "value",
    [None, 0, "text", [], {}, {"taskhub_output": 1}, {"taskhub_output": {"size": 1}}, {**reference(), "more": 1}],
    ids=str,
)
def test_what_is_no_reference_is_returned_unchanged(hub: FakeHub, value: Any) -> None:
    assert TaskHubHook.output(value) == value
    assert hub.opened == 0


def test_the_hook_opens_the_outputs_of_mapped_tasks_as_airflow_gives_them(make_task, hub) -> None:
    class Lazy(Sequence[Any]):
        """As Airflow's ``LazyXComSequence``: a slice is one request, and each item is one."""

        def __len__(self) -> int:
            return 2

        def __getitem__(self, at: Any) -> Any:
            assert at == slice(None)
            return [returned, 7]

    returned = result(make_task, hub, LARGE)
    assert TaskHubHook.output(Lazy()) == [LARGE, 7]


def test_an_output_that_is_gone_is_an_error_that_says_what_to_do(make_task, hub) -> None:
    returned = result(make_task, hub, LARGE)
    hub.put(ID, Status.COMPLETED, execution_id="another", output='"other"')
    with pytest.raises(InstanceNotFound, match=r"the instance was started again\. Clear the task"):
        TaskHubHook.output(returned)
    del hub.instances[ID]
    with pytest.raises(InstanceNotFound, match="the instance was purged"):
        TaskHubHook.output(returned)


def test_an_output_that_airflow_itself_takes_apart_stays_whole(make_task, hub) -> None:
    assert result(make_task, hub, LARGE, multiple_outputs=True) == LARGE


def test_an_output_over_which_another_task_is_mapped_stays_whole(make_task, hub) -> None:
    from airflow.sdk import DAG, task

    with DAG("mapped", schedule=None) as dag:
        made = make_task(dag=dag)

        @task
        def one(item: str) -> str:
            return item

        one.expand(item=made.operator.output)
    ti = Ti()
    made.start(ti)
    hub.end(ID, f'"{LARGE}"')
    assert made.finish(ti, status="Completed") == LARGE


def test_an_operator_opens_a_reference_in_its_input(make_task, hub) -> None:
    returned = result(make_task, hub, LARGE)
    task, ti = make_task(input={"of the first": returned}, instance_id="second"), Ti(task_id="second")
    task.start(ti)
    assert hub.instances["second"].input == f'{{"of the first":"{LARGE}"}}'


def test_an_operator_whose_input_is_gone_fails_without_retries_and_starts_nothing(make_task, hub) -> None:
    returned = result(make_task, hub, LARGE)
    del hub.instances[ID]
    with pytest.raises(AirflowFailException, match="the instance was purged"):
        make_task(input=returned, instance_id="second").run(Ti(task_id="second"))
    assert "second" not in hub.instances


def test_an_event_has_the_output_and_not_the_reference(make_task, hub) -> None:
    returned = result(make_task, hub, LARGE)
    hub.put("i", Status.RUNNING)
    operator = TaskHubRaiseEventOperator(task_id="tell", instance_id="i", event_name="go", data={"rows": returned})
    Task(operator).run(Ti(task_id="tell"))
    assert hub.events == [("i", "go", {"rows": LARGE})]


def test_a_rewind_returns_a_reference_too(hub: FakeHub) -> None:
    hub.end(ID, f'"{LARGE}"')
    assert Task(TaskHubRewindOperator(task_id="again", instance_id=ID)).run(Ti(task_id="again")) == reference()


def test_a_sensor_returns_a_reference_too(hub: FakeHub) -> None:
    from airflow_provider_taskhub.sensors.taskhub import TaskHubSensor

    hub.end(ID, f'"{LARGE}"')
    task = Task(TaskHubSensor(task_id="seen", instance_id=ID))
    assert task.run(Ti(task_id="seen")) == reference()
