"""Tasks that need no worker of Airflow, and tasks that say where they start and end.

While Airflow runs this DAG, also run ``taskhub worker --app first_app:app``.
"""

from airflow.sdk import DAG, Asset

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(dag_id="zero_slot", schedule=None, params={"name": "Ada"}) as dag:
    names = ["{{ params.name | trim }}", "{{ run_id }}"]
    no_worker = TaskHubOperator(task_id="no_worker", orchestrator="greetings", input=names)
    TaskHubOperator(task_id="after_it", orchestrator="greetings", input=no_worker.output)
    TaskHubOperator.partial(task_id="rows", orchestrator="greetings").expand(input=[["Ada"], ["Alan", "{{ run_id }}"]])
    TaskHubOperator(task_id="ends_in_a_worker", orchestrator="greetings", input=["Ada"], outlets=[Asset("greetings")])
    TaskHubOperator(task_id="starts_in_a_worker", orchestrator="greetings", input=["{{ dag_run.run_type.value }}"])
    TaskHubOperator(
        task_id="only_workers", orchestrator="greetings", input=["Ada"], start_on="worker", complete_on="worker"
    )
