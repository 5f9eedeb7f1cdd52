"""The Airflow plugin: the page in Airflow's UI, the links to it, and the sweep.

Every Airflow process imports this module. It must import fast, so the web application is built at its first request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_taskhub.links.taskhub import ROUTE, URL_PREFIX, TaskHubPageLink, base_path
from airflow_provider_taskhub.plugins.preload import preload
from airflow_provider_taskhub.plugins.sweep import SweepingMiddleware

_TASK_QUERY = "dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"


class LazyApplication:
    """An ASGI application that imports FastAPI and builds the page's application at the first request."""

    def __init__(self) -> None:
        self._app: Callable[..., Awaitable[None]] | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if self._app is None:
            from airflow_provider_taskhub.plugins.web import make_app

            self._app = make_app()
        await self._app(scope, receive, send)


def _views() -> list[dict[str, str]]:
    """Return the views that the plugin adds to Airflow's UI, which opens their addresses without a change.

    So the addresses begin with the path of Airflow's ``[api] base_url``.
    """
    page = f"{base_path()}{URL_PREFIX}/page"
    icon = f"{page}/assets/icon.svg"
    return [
        {
            "name": "TaskHub",
            "href": f"{page}/instances",
            "destination": "nav",
            "category": "browse",
            "url_route": ROUTE,
            "icon": icon,
        },
        {
            "name": "TaskHub",
            "href": f"{page}/instance?{_TASK_QUERY}",
            "destination": "task_instance",
            "url_route": f"{ROUTE}-instance",
            "icon": icon,
        },
    ]


class TaskHubPlugin(AirflowPlugin):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Adds to Airflow a page with the hub's instances, a tab on each task with its instance, and the sweep.

    The sweep terminates instances that no Airflow task waits for any more.
    """

    name = "taskhub"
    fastapi_apps = [{"app": LazyApplication(), "url_prefix": URL_PREFIX, "name": "TaskHub"}]  # noqa: RUF012
    fastapi_root_middlewares = [  # noqa: RUF012
        {"middleware": SweepingMiddleware, "args": [], "kwargs": {}, "name": "TaskHub: end instances without a task"}
    ]
    external_views = _views()
    operator_extra_links = [TaskHubPageLink()]  # noqa: RUF012

    @classmethod
    def on_load(cls, *_args: Any, **_kwargs: Any) -> None:
        """Import in the scheduler what its tasks need. Airflow calls this when it has imported the plugin."""
        preload()
