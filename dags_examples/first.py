"""The smallest DAG with a task hub. While Airflow runs it, also run ``taskhub worker --app first_app:app``."""

from airflow.sdk import DAG

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(dag_id="first", schedule=None):
    TaskHubOperator(task_id="greetings", orchestrator="greetings", input=["Ada", "Grace", "Katherine"])
