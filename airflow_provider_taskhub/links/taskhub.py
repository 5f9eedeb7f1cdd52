"""The link on an Airflow task that opens the page of its instance.

The address is made from the ids of the task alone, so the link works before the task has started an instance.
"""

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
    """Return the path part of Airflow's ``[api] base_url`` without a slash at the end, for example "" or ``/base``."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


def task_page(
    dag_id: str, run_id: str, task_id: str, map_index: int, conn_id: str, instance_id: str | None = None
) -> str:
    """Return the address of the page of a task's instance, inside Airflow's UI.

    Airflow shows the page in a frame. The path inside the frame follows the route of the view in the address.

    :param dag_id: the task's DAG.
    :param run_id: the DAG run.
    :param task_id: the task.
    :param map_index: -1 for a task that is not mapped.
    :param conn_id: the Airflow connection that names the hub.
    :param instance_id: the instance id that the DAG's author chose; None: the page derives the id from the other ids.
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
        """Return the address of the instance's page.

        :param operator: the task's operator.
        :param ti_key: the ids of the task instance.
        """
        index: Any = getattr(ti_key, "map_index", None)
        conn_id = getattr(operator, "taskhub_conn_id", "taskhub_default")
        chosen = getattr(operator, "instance_id", None)
        if not isinstance(chosen, str) or "{{" in chosen:  # a template that Airflow has not rendered yet
            chosen = None
        index = -1 if index is None else index
        return task_page(ti_key.dag_id, ti_key.run_id, ti_key.task_id, index, conn_id, chosen)
