"""Who is in space, and a row for each person, as in the first DAG of a new project of Astronomer."""

from datetime import timedelta

from airflow.sdk import DAG, Asset, chain, task

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(
    dag_id="astronauts",
    schedule="@daily",
    default_args={"owner": "space", "retries": 3, "retry_delay": timedelta(seconds=5)},
    tags=["example"],
):

    @task(outlets=[Asset("astronauts")])
    def people(ti=None) -> list[dict[str, str]]:
        found = [{"name": "Ada", "craft": "ISS"}, {"name": "Grace", "craft": "Tiangong"}]
        ti.xcom_push(key="number", value=len(found))
        return found

    @task.activity
    def greet(greeting: str, person: dict[str, str]) -> str: ...

    in_space = people()
    number = TaskHubOperator(task_id="number", orchestrator="tell", input=in_space["number"])
    chain(greet.partial(greeting="Hello!").expand(person=in_space), number)
