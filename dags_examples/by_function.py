"""The orchestrator is given as a function. Airflow must be able to import the module of the app.

While Airflow runs this DAG, also run ``taskhub worker --app first_app:app``.
"""

from airflow.sdk import DAG
from first_app import greetings

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(dag_id="by_function", schedule=None) as dag:
    TaskHubOperator(task_id="greetings", orchestrator=greetings, input=["Ada", "Grace", "Katherine"])
