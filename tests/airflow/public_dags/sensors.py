"""Sensors with each way to wait and to give up, as in Airflow's examples of sensors."""

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.sensors.taskhub import TaskHubSensor

with DAG(dag_id="sensors", schedule=None, tags=["example"]):
    load_id = "load-{{ ds }}"

    def sensor(name: str, instance_id: str = load_id, **options) -> TaskHubSensor:
        return TaskHubSensor(task_id=name, instance_id=instance_id, **options)

    @task.sensor(poke_interval=60, timeout=3600, mode="reschedule")
    def file_is_there() -> bool:
        return True

    waits = [
        sensor("end"),
        sensor("gives_up", timeout=3, soft_fail=True),
        sensor("gives_up_in_a_worker", timeout=timedelta(hours=1), soft_fail=True, deferrable=False),
        sensor("rescheduled", mode="reschedule", deferrable=False, poke_interval=60),
        sensor("half", custom_status="custom_status.rows > 1000", retries=1),
        sensor("asked", event_name="approval", execution_timeout=timedelta(days=1)),
        sensor("of_yesterday", "load-{{ prev_start_date_success | ds }}", statuses=["Completed"]),
    ]
    done = TaskHubOperator(task_id="done", orchestrator="report", input=load_id, trigger_rule="none_failed")
    file_is_there() >> waits >> done
