"""Tables of galaxies, a parameter, and a second DAG that the loaded table starts, as in Astronomer's example of ETL."""

from airflow.sdk import DAG, Asset, Param, task

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

table = Asset("duckdb://astronomy/galaxies")

with DAG(
    dag_id="galaxies",
    schedule="@daily",
    max_active_runs=1,
    max_active_tasks=1,
    default_args={"retries": 3},
    params={"closest": Param(500_000, type="integer", description="light years")},
    tags=["example"],
):
    create = TaskHubOperator(task_id="create", orchestrator="create_table", input=table.name, retries=2)
    extract = TaskHubOperator(task_id="extract", orchestrator="galaxies", input={"number": 20})
    transform = TaskHubOperator(
        task_id="transform",
        orchestrator="close_galaxies",
        input={"galaxies": extract.output, "closest": "{{ params.closest }}"},
        start_on="trigger",
    )
    load = TaskHubOperator(task_id="load", orchestrator="load", input=transform.output, outlets=[table])

    @task
    def show(galaxies: list[str]) -> None:
        print(galaxies)

    create >> load >> show(transform.output)

with DAG(dag_id="galaxies_loaded", schedule=[table], tags=["example"]):
    TaskHubOperator(task_id="count", orchestrator="count", input="{{ dag_run.run_after }}")
    TaskHubOperator(task_id="who", orchestrator="tell", input="{{ triggering_asset_events | list }}")
