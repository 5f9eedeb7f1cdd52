"""A retry goes on from before the failure: activities that have completed do not run again.

While Airflow runs this DAG, also run ``taskhub worker --app first_app:app``.
"""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(dag_id="on_retry", schedule=None, default_args={"retries": 2, "retry_delay": timedelta(minutes=1)}) as dag:
    names = ["Ada", "Grace", "Katherine"]
    TaskHubOperator(task_id="go_on", orchestrator="greetings", input=names)
    TaskHubOperator(task_id="compute_anew", orchestrator="greetings", input=names, on_retry="restart")
    TaskHubOperator(task_id="repaired_by_hand", orchestrator="greetings", input=names, on_retry="attach")
