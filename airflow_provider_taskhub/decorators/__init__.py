"""Task decorators for DAG files: ``@task.orchestration``."""
