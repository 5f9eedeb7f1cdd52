"""Spark functions as rows of a DAG. While Airflow runs it, also run ``taskhub worker --app spark_rows_app:app``.

Each row is one Spark job in the hub's workers. This file imports neither Spark nor the app.
"""

from airflow.sdk import DAG, task

with DAG(dag_id="spark_rows", schedule=None) as dag:

    @task.activity(activity="count_primes", retries=1)
    def primes(first: int, end: int) -> int: ...

    @task
    def total(counts: list[int]) -> int:
        return sum(counts)

    total(primes.expand_kwargs([{"first": 0, "end": 100}, {"first": 100, "end": 200}]))
