"""Nested and mapped groups between a setup and a teardown, as in Airflow's examples of both."""

from airflow.sdk import DAG, task, task_group

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(dag_id="groups", schedule=None, tags=["example"]):
    cluster = TaskHubOperator(task_id="cluster", orchestrator="create_cluster", input="{{ run_id }}").as_setup()
    drop = TaskHubOperator(task_id="drop", orchestrator="drop_cluster", input=cluster.output)

    @task.activity
    def work(cluster: str, part: str) -> str: ...

    @task_group
    def section(part: str):
        first = work(cluster.output, part)

        @task_group
        def inner():
            TaskHubOperator(task_id="check", orchestrator="check", input=first)

        inner()

    @task_group
    def month(number: int):
        loaded = TaskHubOperator(task_id="load", orchestrator="load", input={"month": number})
        TaskHubOperator(task_id="add_up", orchestrator="add_up", input=loaded.output)

    with drop.as_teardown(setups=cluster):
        section("north") >> section("south") >> month.expand(number=[1, 2])
