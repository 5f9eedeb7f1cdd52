"""One task for each input. While Airflow runs this DAG, also run ``taskhub worker --app first_app:app``."""

from airflow.sdk import DAG

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(dag_id="mapping", schedule=None) as dag:
    teams = TaskHubOperator.partial(task_id="teams", orchestrator="greetings", retries=2).expand(
        input=[["Ada", "Alan"], ["Grace"], ["Katherine"]]
    )
    # over what another task returns: a row for each list of greetings
    TaskHubOperator.partial(task_id="again", orchestrator="greetings").expand(input=teams.output)
