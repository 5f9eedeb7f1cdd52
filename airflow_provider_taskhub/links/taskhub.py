"""The link on an Airflow task that opens the page of its instance.

The address is made from the ids of the task, the connection and the instance id that the DAG's author chose. If the DAG
says both, Airflow's API server makes the link from the stored DAG (:class:`TaskHubPageLink`). If a template or the
result of another task decides one of them, the task pushes the rendered link as an XCom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink, conf

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.triggers.mapped_row import row_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

__all__ = ["TaskHubInstanceLink"]

URL_PREFIX = "/taskhub"
"""Where the plugin's FastAPI application is mounted."""
ROUTE = "taskhub"
"""The page's route inside Airflow's UI: ``/plugin/taskhub``."""
_DEFAULTS = {"taskhub_conn_id": "taskhub_default", "instance_id": None}
"""The arguments of a task on which the link depends, with their defaults."""


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
        given = {name: getattr(operator, name, default) for name, default in _DEFAULTS.items()}
        return _address(given, ti_key)


class _Operators:
    """The operators of :class:`TaskHubPageLink`, imported when Airflow asks for them: plugins must import fast."""

    paths: ClassVar = {
        ("airflow_provider_taskhub.operators.taskhub", "TaskHubOperator"),
        ("airflow_provider_taskhub.sensors.taskhub", "TaskHubSensor"),
    }

    def __get__(self, link: Any, owner: type) -> list[Any]:
        from importlib import import_module

        return [getattr(import_module(module), name) for module, name in sorted(self.paths)]


class TaskHubPageLink(TaskHubInstanceLink):
    """The same link, made by Airflow's API server from the stored DAG.

    So a task that starts in the triggerer pushes no XCom for the link: each request to Airflow costs the triggerer more
    than the start of an instance. Airflow prefers the link of a plugin to the operator's link of the same name.
    """

    operators = _Operators()

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """Return the address of the instance's page; "": the task has not pushed it yet.

        :param operator: the task in the stored DAG.
        :param ti_key: the ids of the task instance.
        """
        from airflow.serialization.definitions.operatorlink import XComOperatorLink

        pushed = XComOperatorLink(name=self.name, xcom_key=TaskHubInstanceLink().xcom_key)
        return page_in_dag(operator, ti_key) or str(pushed.get_link(operator, ti_key=ti_key))


def page_in_dag(operator: Any, ti_key: TaskInstanceKey) -> str | None:
    """Return the address of the page of a task's instance, if the stored DAG says it.

    :param operator: the task in the stored DAG.
    :param ti_key: the ids of the task instance.
    :returns: None: a template or the result of another task decides the address, or Airflow does not use
        :class:`TaskHubPageLink` for this task, because its class is a subclass that a user wrote.
    """
    if (operator._task_module, operator.task_type) not in _Operators.paths:
        return None
    given = vars(operator)
    if (mapped := given.get("expand_input")) is not None:
        try:
            given = operator.partial_kwargs | row_of(mapped, _index(ti_key))
        except InputError:
            return None
    chosen = {name: given.get(name, default) for name, default in _DEFAULTS.items()}
    return None if any(map(_is_template, chosen.values())) else _address(chosen, ti_key)


def _address(given: dict[str, Any], ti_key: TaskInstanceKey) -> str:
    chosen = given["instance_id"]
    if not isinstance(chosen, str) or _is_template(chosen):  # Airflow has not rendered it yet
        chosen = None
    ids = (ti_key.dag_id, ti_key.run_id, ti_key.task_id, _index(ti_key))
    return task_page(*ids, given["taskhub_conn_id"], chosen)


def _index(ti_key: TaskInstanceKey) -> int:
    index: int | None = getattr(ti_key, "map_index", None)
    return -1 if index is None else index


def _is_template(value: Any) -> bool:
    return value is not None and not (isinstance(value, str) and "{{" not in value and "{%" not in value)
