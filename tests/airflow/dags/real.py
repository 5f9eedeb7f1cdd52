"""DAGs that the tests run in a real Airflow."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, task

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.sensors.taskhub import TaskHubSensor

AT_ONCE = {"retries": 0, "retry_delay": timedelta(seconds=1)}

with DAG("sums", schedule=None, default_args=AT_ONCE):

    @task
    def numbers() -> list[int]:
        return [1, 2, 3]

    @task
    def check(result: dict[str, Any]) -> int:
        assert result["sum"] == 14, result
        return result["sum"]

    check(TaskHubOperator(task_id="hub", orchestrator="sums", input=numbers()).output)

with DAG("zero", schedule=None, default_args=AT_ONCE, params={"orchestrator": "sums"}):
    TaskHubOperator(
        task_id="hub", orchestrator="{{ params.orchestrator }}", input=[1, 2, 3], tags={"run": "of {{ run_id }}"}
    )

with DAG("two_at_once", schedule=None, default_args=AT_ONCE, max_active_tasks=2):
    for _number in range(10):
        TaskHubOperator(task_id=f"hub_{_number}", orchestrator="together", input="{{ params.folder }}")

with DAG("zero_mapped", schedule=None, default_args=AT_ONCE, params={"second": "tuesday"}):
    TaskHubOperator.partial(task_id="hub", orchestrator="sums").expand_kwargs(
        [
            {"input": [1], "tags": {"run": "of {{ run_id }}", "day": "monday"}},
            {"input": [2], "tags": {"run": "of {{ run_id }}", "day": "{{ params.second }}"}},
        ]
    )

ALIKE = {
    "names": "{{ ds }} {{ ts_nodash_with_tz }} {{ logical_date }} {{ data_interval_end.strftime('%H') }} {{ run_id }}",
    "run": "{{ dag_run.run_after }} {{ dag_run.logical_date }} {{ dag_run.data_interval_start }} {{ dag_run.dag_id }}",
    "conf": "{{ dag_run.conf }} {{ dag_run.conf.x.y | upper }} {{ params }} {{ params.list[1] | tojson }}",
    "task": "{{ dag.dag_id }} {{ ti.dag_id }} {{ task_instance.run_id }}",
    "macros": "{{ macros.ds_add(ds, -1) }} {{ dag_run.run_after + macros.timedelta(hours=1) }} {{ macros.datetime }}",
    "code": "{% for x in range(3) if x is odd %}{{ loop.last }}{% set y = x %}{{ y }}{% endfor %}{# gone #}",
}

with DAG("alike", schedule=None, default_args=AT_ONCE, params={"list": [1, "ü"], "x": None}):

    @task
    def before() -> dict[str, Any]:
        return {"rows": [1, 2.5, None, "ü"], "{{ run_id }}": "{{ run_id }}"}

    given = {"orchestrator": "refuses", "wait_for_completion": False, "input": {"rendered": ALIKE, "output": before()}}
    for where in ("trigger", "worker"):
        TaskHubOperator(task_id=where, start_on=where, **given)

with DAG("zero_outlets", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="sums", input=[1, 2, 3], outlets=[Asset("sums")])

with DAG("zero_not_waiting", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="told", wait_for_completion=False, start_at="2026-01-31")

with DAG("zero_unrendered", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="sums", input="{{ params.nothing }}")

with DAG("named", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="sums", input=[1], instance_id="named-{{ run_id }}")

with DAG("mapped", schedule=None, default_args=AT_ONCE):
    TaskHubOperator.partial(task_id="hub", orchestrator="sums").expand(input=[[n] for n in range(5)])

with DAG("slow", schedule=None, default_args=AT_ONCE, params={"seconds": 60}, render_template_as_native_obj=True):
    TaskHubOperator(task_id="hub", orchestrator="slow", input="{{ params.seconds }}")

with DAG("flights_2025", schedule=None, default_args=AT_ONCE, params={"seconds": 2.0}):
    TaskHubOperator(task_id="delays", orchestrator="year", input="{{ params.seconds }}")

with DAG("told", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="told")

with DAG("open", schedule=None, max_active_runs=100, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="waits", start_on="worker")

BY_WORKERS = {"start_on": "worker", "complete_on": "worker"}

for name, more in {"wide": {}, "wide_by_workers": BY_WORKERS}.items():
    with DAG(name, schedule=None, default_args=AT_ONCE):
        TaskHubOperator.partial(task_id="hub", orchestrator="pause", **more).expand(
            input=[number % 8 for number in range(100)]
        )

with DAG("by_workers", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="told", **BY_WORKERS)

with DAG("by_workers_mapped", schedule=None, default_args=AT_ONCE):
    TaskHubOperator.partial(task_id="hub", orchestrator="pause", short_wait=0, **BY_WORKERS).expand(
        input=[number % 8 for number in range(20)]
    )

with DAG("fails", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="fails", input=80)

with DAG("fails_plainly", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="fails_plainly", input=80)

for name, more in {"flaky": {}, "flaky_restarted": {"on_retry": "restart"}}.items():
    with DAG(name, schedule=None, default_args=AT_ONCE, params={"marker": ""}):
        TaskHubOperator(task_id="hub", orchestrator="flaky", input="{{ params.marker }}", retries=2, **more)

RETRIED = {"orchestrator": "twelve", "input": "{{ params.folder }}", "retries": 2}

for name, more in {
    "rewound": {},
    "rewound_spark": {"orchestrator": "twelve_spark"},
    "restarted": {"on_retry": "restart"},
    "attached": {"on_retry": "attach", "retries": 1},
    "cleared_spark": {"orchestrator": "twelve_spark", "retries": 0},
    "other_version": {"version": "{{ '7' if ti.try_number == 1 else '' }}"},
}.items():
    with DAG(name, schedule=None, default_args=AT_ONCE, params={"folder": ""}):
        TaskHubOperator(task_id="hub", **(RETRIED | more))

with DAG("told_again", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="told", retries=1)

for name, more in {
    "crash_triggerer": {},
    "crash_resumed": {"complete_on": "worker"},
    "crash_worker": {"start_on": "worker", "short_wait": timedelta(seconds=4)},
}.items():
    with DAG(name, schedule=None, max_active_runs=100, default_args=AT_ONCE | {"retries": 1}):
        TaskHubOperator(task_id="hub", orchestrator="told", **more)

with DAG("in_worker", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="pause", input=4, deferrable=False, poll_interval=0.5)

with DAG("in_worker_late", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="waits", deferrable=False, execution_timeout=timedelta(seconds=5))

with DAG("not_waiting", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(
        task_id="hub",
        orchestrator="told",
        wait_for_completion=False,
        start_at="{{ dag_run.run_after + macros.timedelta(seconds=8) }}",
    )

with DAG("refuses", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="refuses", retries=3)

with DAG("late", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="slow", input=300, execution_timeout=timedelta(seconds=8))

with DAG("late_without_triggerer", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(
        task_id="hub", orchestrator="slow", input=300, execution_timeout=timedelta(seconds=8), start_on="worker"
    )

with DAG("nobody", schedule=None, default_args=AT_ONCE):
    TaskHubOperator(task_id="hub", orchestrator="unheard_of", no_worker_timeout=5)

with DAG("sensor", schedule=None, default_args=AT_ONCE, params={"instance": "none"}):
    TaskHubSensor(task_id="hub", instance_id="{{ params.instance }}", timeout=120)

with DAG("sensor_mapped", schedule=None, default_args=AT_ONCE, params={"instance": "none"}):
    TaskHubSensor.partial(task_id="hub", soft_fail=True, timeout=120).expand(
        instance_id=["{{ params.instance }}-a", "{{ params.instance }}-b"]
    )

with DAG("moment", schedule=None, default_args=AT_ONCE, params={"instance": "none"}):
    TaskHubSensor(task_id="hub", instance_id="{{ params.instance }}", event_name="go", timeout=120)

with DAG("taskflow_wrong", schedule=None, default_args=AT_ONCE | {"retries": 2}, params={"month": 1}):

    @task.orchestration(orchestrator="month_sales", task_id="hub")
    def month_sales(year: int, month: int) -> None: ...

    month_sales(2025, "{{ params.month }}")
