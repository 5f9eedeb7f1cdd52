"""The button on a task that opens its instance. Computed from ids alone, so it is there before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

__all__ = ["TaskHubInstanceLink"]

URL_PREFIX = "/taskhub"
"""Where the plugin's FastAPI application is mounted."""
ROUTE = "taskhub"
"""The page's route inside Airflow's UI: ``/plugin/taskhub``."""


def base_path() -> str:
    """Path under which Airflow is served, without a slash at its end: empty, or ``/base`` (``[api] base_url``)."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


def task_page(
    dag_id: str, run_id: str, task_id: str, map_index: int, conn_id: str, instance_id: str | None = None
) -> str:
    """Address of the page of a task's instance, within Airflow's own frame.

    :param instance_id: of the DAG author's choice; None: the page derives it from the ids of the task.
    Airflow mirrors the path inside its frame behind the route of a view, so a deep link is route + inner path.
    """
    ids = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": map_index, "conn": conn_id}
    if instance_id:
        ids["id"] = instance_id
    base = base_path()
    return f"{base}/plugin/{ROUTE}{base}{URL_PREFIX}/page/instance?{urlencode(ids)}"


class TaskHubInstanceLink(BaseOperatorLink):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Opens the instance that the task runs in the hub."""

    name = "TaskHub instance"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address, from the ids of the task instance."""
        index: Any = getattr(ti_key, "map_index", None)
        conn_id = getattr(operator, "taskhub_conn_id", "taskhub_default")
        chosen = getattr(operator, "instance_id", None)
        if not isinstance(chosen, str) or "{{" in chosen:  # not rendered yet
            chosen = None
        index = -1 if index is None else index
        return task_page(ti_key.dag_id, ti_key.run_id, ti_key.task_id, index, conn_id, chosen)
