"""Runs the sweep in Airflow's API server.

The sweep terminates instances that no Airflow task waits for any more. In the API server it works even if no triggerer
runs.

The sweep is started by a middleware, although :class:`SweepingMiddleware` does not change any request. Airflow gives
plugins no other way to run code for as long as the API server runs: a middleware of the root application gets the
"lifespan" event of the server.

The states of tasks come from Airflow's task execution API, which workers and triggers use too. The API server itself
serves this API, so the sweep calls it inside the process, without the network. It does not read the metadata database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import UUID

import structlog

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.supervision import Supervisor, owned

if TYPE_CHECKING:
    import httpx

    from airflow_provider_taskhub.triggers.airflow_tasks import States

Application = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]

PAUSE = 10.0
"""Seconds to wait after an error before the sweep opens the hub again."""

log = structlog.get_logger(__name__)


class ServerTasks:
    """Sends requests to the task execution API of this API server.

    If the API server does not serve this API, the class creates an application with this API inside the process.

    :param server: the root application of the API server; None: there is no root application.
    """

    def __init__(self, server: Any = None) -> None:
        self._server = server
        self._client: httpx.AsyncClient | None = None
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()

    async def states(self, dag_id: str, task_ids: Sequence[str], run_ids: Sequence[str]) -> States:
        parameters = {"dag_id": dag_id, "task_ids": [*task_ids], "run_ids": [*run_ids]}
        answer = await self._get("/task-instances/states", parameters)
        answer.raise_for_status()
        states: States = answer.json()["task_states"]
        return states

    async def knows(self, dag_id: str) -> bool:
        answer = await self._get(f"/dags/{quote(dag_id, safe='')}", {})
        if answer.status_code == 404:
            return False
        answer.raise_for_status()
        return True

    async def close(self) -> None:
        """Close the HTTP client, and stop the application if one was created."""
        self._client = None
        await self._stack.aclose()

    async def _get(self, path: str, parameters: dict[str, Any]) -> httpx.Response:
        from airflow_provider_taskhub.triggers.airflow_tasks import DEADLINE

        async with self._opening:
            if self._client is None:
                self._client = await self._open()
        async with asyncio.timeout(DEADLINE):
            return await self._client.get(path, params=parameters, headers={"Authorization": f"Bearer {_token()}"})

    async def _open(self) -> httpx.AsyncClient:
        import httpx

        application: Any = next((x.app for x in getattr(self._server, "routes", ()) if x.path == "/execution"), None)
        if application is None:
            application = await asyncio.to_thread(_application)
            await self._stack.enter_async_context(application.router.lifespan_context(application))
        transport = httpx.ASGITransport(app=application)
        return await self._stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://in-process.invalid")
        )


def _application() -> Any:
    """Create the task execution API in the same way as Airflow's triggerer. This takes several seconds."""
    from airflow.api_fastapi.execution_api.app import InProcessExecutionAPI

    return InProcessExecutionAPI().app


def _token() -> str:
    """Return a token for the task execution API. It is like the tokens of Airflow's executors, but names no task."""
    from airflow.api_fastapi.auth.tokens import JWTGenerator, get_signing_args
    from airflow.configuration import conf

    generator = JWTGenerator(
        valid_for=60,
        audience=conf.get_mandatory_list_value("execution_api", "jwt_audience")[0],
        issuer=conf.get("api_auth", "jwt_issuer", fallback=None),
        **get_signing_args(make_secret_key_if_needed=False),
    )
    return str(generator.generate({"sub": str(UUID(int=0)), "scope": "execution"}))


class SweepingMiddleware:
    """Runs the sweep while the API server runs, and passes every request on unchanged."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        async with sweeping(scope.get("app")):
            await self._app(scope, receive, send)


@asynccontextmanager
async def sweeping(server: Any = None) -> AsyncIterator[None]:
    """Sweep the hubs of :func:`.swept_connections` while the ``async with`` block runs.

    :param server: the root application of the API server; None: there is no root application.
    """
    supervisor = Supervisor()
    supervisor.keep("sweep", lambda: _sweep_all(server))
    try:
        yield
    finally:
        await supervisor.close()


async def _sweep_all(server: Any) -> None:
    from airflow_provider_taskhub.hooks.deployment import swept_connections

    tasks = ServerTasks(server)
    try:
        async with owned() as start:
            await asyncio.gather(*(start(_sweep(name, tasks)) for name in swept_connections()))
    finally:
        await tasks.close()


async def _sweep(connection: str, tasks: ServerTasks) -> None:
    """Sweep one hub until the task is cancelled. After an error, start again. Log the error if it is not the last one.

    :param connection: the Airflow connection that names the hub.
    """
    from airflow_provider_taskhub.hooks.deployment import deployment
    from airflow_provider_taskhub.hooks.taskhub import TaskHubHook
    from airflow_provider_taskhub.triggers.sweep import Sweep

    logged = ""
    while True:
        try:
            async with TaskHubHook(connection).client() as client:
                await Sweep(tasks, deployment=deployment, clock=SYSTEM_CLOCK).run(client, reopened=True)
        except Exception as error:  # a missing hub, connection or storage must not stop the API server
            text = f"{type(error).__name__}: {error}"
            if text != logged:
                log.warning("sweep_waits", connection=connection, reason=text)
            logged = text
        await SYSTEM_CLOCK.sleep(PAUSE)
