"""Task decorators for DAG files: ``@task.orchestration`` and ``@task.spark_activity``."""
