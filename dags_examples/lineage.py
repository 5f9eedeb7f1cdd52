"""The data that activities declare becomes asset events, which start another DAG.

While Airflow runs these DAGs, also run ``taskhub worker --app lineage_app:app``.
"""

from airflow.sdk import DAG, AssetAlias, task

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

counted = AssetAlias("counted words")

with DAG(dag_id="word_count", schedule=None, params={"folder": "/tmp/texts"}) as counting:
    TaskHubOperator(task_id="count", orchestrator="word_count", input="{{ params.folder }}", outlets=[counted])

with DAG(dag_id="words_counted", schedule=[counted]) as reading:

    @task
    def tell(triggering_asset_events=None) -> list[str]:
        return sorted({event.asset.uri for events in triggering_asset_events.values() for event in events})

    tell()
