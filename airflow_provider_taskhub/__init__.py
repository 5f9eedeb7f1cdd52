"""TaskHub: durable orchestration of Spark pipelines, written as Airflow DAGs."""

__version__ = "0.1.0"

__all__ = ["__version__"]
