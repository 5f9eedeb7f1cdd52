"""Task decorators for DAG files: ``@task.orchestration`` and ``@task.activity``."""
