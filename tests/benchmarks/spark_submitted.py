"""The application of a ``SparkSubmitOperator``: one job of ``make bench-spark``."""

from __future__ import annotations

from tests.benchmarks.spark_app import job

if __name__ == "__main__":
    from pyspark.sql import SparkSession

    print(job(SparkSession.builder.getOrCreate()))
