"""A branch chooses what is computed, and the branches join again, as in Airflow's examples of branch operators."""

from airflow.sdk import DAG, Label, task

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(dag_id="branching", schedule="@daily", params={"full": False}, tags=["example"]):

    @task.branch
    def choose(params=None) -> str:
        return "full_load" if params["full"] else "delta_load"

    def load(name: str) -> TaskHubOperator:
        return TaskHubOperator(task_id=f"{name}_load", orchestrator="load", input={"kind": name, "day": "{{ ds }}"})

    join = TaskHubOperator(
        task_id="join", orchestrator="check", input="{{ ds }}", trigger_rule="none_failed_min_one_success"
    )
    chosen = choose()
    chosen >> Label("all rows") >> load("full") >> join
    chosen >> Label("new rows") >> load("delta") >> join
