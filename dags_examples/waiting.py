"""Where a task waits for its orchestration, and when the orchestration begins.

While Airflow runs this DAG, also run ``taskhub worker --app first_app:app``.
"""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(dag_id="waiting", schedule=None, params={"delay": 30}) as dag:
    names = ["Ada", "Grace", "Katherine"]
    TaskHubOperator(task_id="in_the_triggerer", orchestrator="greetings", input=names)
    # a worker starts the task, waits up to 10 s for the end, and only then hands the wait to the triggerer
    TaskHubOperator(task_id="a_moment", orchestrator="greetings", input=names, start_on="worker", short_wait=10)
    TaskHubOperator(
        task_id="in_the_worker",
        orchestrator="greetings",
        input=names,
        deferrable=False,
        poll_interval=timedelta(seconds=5),
    )
    TaskHubOperator(task_id="not_at_all", orchestrator="greetings", input=names, wait_for_completion=False)
    TaskHubOperator(
        task_id="begins_later",
        orchestrator="greetings",
        input=names,
        start_at="{{ dag_run.run_after + macros.timedelta(seconds=params.delay) }}",
    )
