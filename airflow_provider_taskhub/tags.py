"""Tags with a meaning for TaskHub or DurableTask. The front and the hub must know the same names."""

OWN = "taskhub."
"""The beginning of the names of TaskHub's own tags."""
OWNER_TAG = "taskhub.owner"
"""The id of the Airflow task instance that started the instance, new for every try. A trigger or operator terminates
an instance only if this tag has the value that it knows. An instance with this tag has a watch row."""
WATCH_TAG = "taskhub.watch"
"""Tag of an instance that an Airflow task waits for. Its end adds a completion hint to the table
``{Hub}Completions``."""
LIMIT_TAG = "taskhub.limit"
"""Tag of an instance that was started with a limit: how many instances may run at once, and the name of the limit."""
PRIORITY_TAG = "taskhub.priority"
"""The priority of an instance among those that wait for a limit. Below 0 it counts for its activities, too. None: 0."""
GRACE_TAG = "taskhub.terminate_grace"
"""Tag of an instance that an Airflow task started: the seconds for its clean-up when Airflow ends it. Its children do
not inherit it."""
DAG_TAG = "airflow.dag_id"
"""Tag of an instance that an Airflow task started: the id of its DAG."""
FIRE_AND_FORGET = "FireAndForget"
"""DurableTask's tag of a child orchestration whose parent does not wait for the child."""
SPARK_PARENT_TAGS = ("spark.openlineage.parent", "spark.openlineage.rootParent")
"""Beginnings of the tags that name the Airflow task to OpenLineage in Spark. The Spark sessions of the instance's
activities get them as configuration."""


def is_own(name: str) -> bool:
    """Return True if a tag of this name is TaskHub's own, in capital or small letters."""
    return name.lower().startswith(OWN)
