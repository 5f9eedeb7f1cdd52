"""An app whose only Spark activity has settings of its own."""

from __future__ import annotations

from typing import Any

from airflow_provider_taskhub.app import App

app = App("own")


@app.activity
def plain() -> None:
    """Needs no Spark."""


@app.spark_activity(conf={"spark.jars": "a.jar"})
def own(spark: Any) -> None:
    """Needs a Spark application of its own."""
