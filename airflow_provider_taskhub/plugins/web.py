"""The page's web application: HTML, scripts and JSON, protected by Airflow's login and permissions.

The HTML page, its scripts and its styles are public, because they contain no data. For data a user needs a login and
the right to see plugins. Lists contain only instances of DAGs that the user may read. For payloads and logs a user also
needs the right to read the task instances and the task logs of the DAG. Instances that no DAG has started are visible
only to administrators. An administrator is a user who may edit connections, because a connection contains the hub's key
and thus gives access to everything in the hub.

No ``from __future__ import annotations`` here: FastAPI could not resolve the annotations of routes that are defined
inside a function.
"""

import asyncio
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Annotated, Any

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import ConfigurationError, StorageError
from airflow_provider_taskhub.hooks import identity
from airflow_provider_taskhub.hooks.deployment import page_connections
from airflow_provider_taskhub.hooks.masking import masked
from airflow_provider_taskhub.hub.model import InstanceState, Member
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.hub.waiting.reasons import Why
from airflow_provider_taskhub.links.taskhub import base_path
from airflow_provider_taskhub.plugins import (
    actions,
    administration,
    batches,
    comparing,
    instance_parts,
    json_views,
    task_instances,
)
from airflow_provider_taskhub.plugins.access import may_edit, require, rights_of
from airflow_provider_taskhub.plugins.client_cache import ClientCache
from airflow_provider_taskhub.plugins.filters import Order, Wanted, order_of, wanted
from airflow_provider_taskhub.plugins.index import MOST, Row
from airflow_provider_taskhub.plugins.instance_parts import parent_of
from airflow_provider_taskhub.plugins.listing import Listing, listing, offered, seen_by
from airflow_provider_taskhub.plugins.shown_hubs import described, open_hub
from airflow_provider_taskhub.plugins.shown_instances import error_rights, readable, rows_of, shows
from airflow_provider_taskhub.plugins.timeline import timeline
from airflow_provider_taskhub.triggers.task_log import execution, of_execution

LOG_LINES = 2_000
"""The largest number of lines of a log that the page shows, from the end of the log."""
MOST_DRAWN = 2_000
"""The largest number of events of a history that are read for the page of an instance, and that its timeline shows."""
MOST_EARLIER = 200
"""The largest number of attempts of earlier generations that an instance's page lists: the newest ones."""
_SCRIPTS = ("page", "instances", "instance", "timeline", "dialog", "actions", "partitions", "workers", "limits",
            "quarantine", "history", "relations", "batch", "compare")  # fmt: skip
_ASSETS = {"page.css": "text/css", "icon.svg": "image/svg+xml"} | {f"{name}.js": "text/javascript" for name in _SCRIPTS}
_PAGES = ("instances", "instance", "partitions", "workers", "limits", "quarantine")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self'; connect-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_PARALLEL = 16
_TURNS = 3


def make_app() -> Any:
    """Create the FastAPI application, which Airflow mounts.

    The application has no pages with its API documentation, because everybody could read them without a login.
    """
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse

    app = FastAPI(title="TaskHub", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(_pages())
    app.include_router(_data())
    app.include_router(instance_parts.routes())
    app.include_router(comparing.routes())
    app.include_router(actions.routes())
    app.include_router(batches.routes())
    app.include_router(administration.routes())

    @app.exception_handler(ConfigurationError)
    @app.exception_handler(StorageError)
    async def unusable(request: Request, error: Exception) -> JSONResponse:
        """Answer with the error's text, and not with status 500, if the hub cannot be used or does not answer."""
        del request
        status = 503 if isinstance(error, StorageError) else 409
        return JSONResponse({"detail": masked(str(error))}, status_code=status)

    return app


def _pages() -> Any:
    """Create the routes of the HTML page, its scripts and its styles. They contain no data and need no login."""
    from fastapi import APIRouter, HTTPException
    from fastapi.responses import HTMLResponse, Response

    router = APIRouter(prefix="/page")

    @router.get("/assets/{name}")
    async def asset(name: str) -> Response:
        if name not in _ASSETS:
            raise HTTPException(404, f"no asset {name!r}")
        headers = _HEADERS | {"Cache-Control": "no-cache"}
        return Response(_file(name), media_type=_ASSETS[name], headers=headers)

    @router.get("/{name}")
    async def page(name: str) -> HTMLResponse:
        if name not in _PAGES:
            raise HTTPException(404, f"no page {name!r}")
        text = _file("page.html").decode().replace("{{base}}", base_path()).replace("{{page}}", name)
        return HTMLResponse(text, headers=_HEADERS)

    return router


def _data() -> Any:
    """Create the routes that return the page's data as JSON."""
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
    from fastapi import APIRouter, Depends, HTTPException, Query

    router = APIRouter(prefix="/api", dependencies=[Depends(requires_access_view(AccessView.PLUGINS))])
    Conn = Annotated[str, Query(max_length=250)]
    Id = Annotated[str, Query(min_length=1, max_length=300)]

    @router.get("/hubs")
    async def hubs() -> list[dict[str, str]]:
        """Return the hubs that the page shows."""
        return [await described(conn) for conn in page_connections()]

    @router.get("/instances")
    async def instances(
        user: GetUserDep,
        filter: Annotated[Wanted, Depends(wanted())],
        conn: Conn = "",
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=200)] = 25,
        sort: Annotated[str, Query(max_length=30)] = "",
    ) -> dict[str, Any]:
        order = order_of(sort)
        cache, head = await open_hub(conn)
        index = await cache.instances()
        reading = index.reading
        listed, rows = await _listed(cache, user, filter, order, offset=offset, limit=limit)
        members: tuple[Member, ...] = await cache.once("members", lambda client: client.admin.workers())
        tallies, waits = await asyncio.gather(_tallies(cache, rows), _waits(cache, rows, members))
        shown = await shows(rows, user)
        return head | {
            "counts": listed.counts,
            "children": listed.children,
            "elsewhen": listed.elsewhen,
            "total": listed.total,
            "capped": index.capped,
            "most": MOST,
            "reading": reading,
            "offset": offset,
            "rows": [
                json_views.row(state, done, waits.get(state.instance_id, ()), show)
                for state, done, show in zip(rows, tallies, shown, strict=True)
            ],
        }

    @router.get("/filters")
    async def filters(user: GetUserDep, conn: Conn = "") -> dict[str, Any]:
        """Return DAGs and orchestrators of the instances that the user may see, to choose a filter."""
        cache, head = await open_hub(conn)
        found = offered(seen_by((await cache.instances()).rows(), *await rights_of(user)))
        return head | {"dags": found.dags, "names": found.names}

    @router.get("/instance")
    async def instance(user: GetUserDep, id: Id, conn: Conn = "") -> dict[str, Any]:
        cache, head = await open_hub(conn)
        state, damaged = await readable(cache, id, user)
        (show,) = await shows((state,), user)
        page, attempts, members, partitions = await asyncio.gather(
            cache.once(("history", id), lambda client: client.instance(id).history_page(limit=MOST_DRAWN)),
            cache.once(("activities", id), lambda client: client.instance(id).shown_activities()),
            cache.once("members", lambda client: client.admin.workers()),
            cache.once("partitions", lambda client: client.admin.partitions()),
        )
        waits = (await _waits(cache, (state,), members)).get(id, ())
        partition = partition_of(id, (await cache.client()).admin.info.partitions)
        records = of_execution(state, attempts)
        runs = any(record.runs for record in records)
        earlier = [record for record in attempts if execution(record) != (state.execution_id or "")]
        return head | {
            "instance": json_views.instance(state, waits, show),
            "actions": actions.actions_of(state, runs=runs) if await may_edit(user, state) else (),
            "served": json_views.served(next((p for p in partitions if p.partition == partition), None), partition),
            "parent": await parent_of(cache, page.start, user),
            "unreadable": [show(line) for line in (*damaged, *page.unreadable)],
            "activities": [json_views.activity(record, show) for record in records],
            "earlier": [json_views.activity(record, show) for record in earlier[-MOST_EARLIER:]],
            "inputs": json_views.inputs(page.events, show),
            "lineage": json_views.lineage(attempts, show),
            "tally": json_views.tally(records),
            "timeline": timeline(page.events, records, show) | {"first": page.first},
            "history": json_views.history(page, show),
        }

    @router.get("/task")
    async def task(
        user: GetUserDep,
        dag_id: str,
        run_id: str,
        task_id: str,
        map_index: str = "-1",
        conn: Conn = "",
    ) -> dict[str, Any]:
        """Return the instances of an Airflow task, the newest first.

        For a task that is not mapped, Airflow does not replace the placeholder ``{MAP_INDEX}`` in the address of the
        task's tab. So a ``map_index`` that is not a number means: not mapped.
        """
        index = int(map_index) if map_index.lstrip("-").isdigit() else identity.UNMAPPED
        ids = identity.TaskIds(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=index)
        dags, administrator = await rights_of(user)
        if not administrator and dag_id not in dags:
            raise HTTPException(403, f"you may not read DAG {dag_id!r}")
        trouble: Exception | None = None
        for name in [conn] if conn else page_connections():
            try:
                cache, head = await open_hub(name)
                found = await cache.once(("task", ids), lambda client: task_instances.of_task(client, ids))
            except (ConfigurationError, StorageError) as error:
                trouble = trouble or error  # go on with the next hub: it may have the task's instances
                continue
            if found:
                return head | {"instances": [json_views.of_task(state) for state in found]}
        if trouble is not None:
            raise trouble
        return {"instances": []}

    @router.get("/log")
    async def log(
        user: GetUserDep,
        id: Id,
        task: int,
        attempt: int,
        execution_id: Annotated[str | None, Query(alias="execution", max_length=300)] = None,
        conn: Conn = "",
    ) -> dict[str, Any]:
        """Return the last lines of an attempt's log.

        The execution id names the generation of the instance to which the attempt belongs. None: the current one.
        """
        cache, _ = await open_hub(conn)
        state, _ = await readable(cache, id, user)
        await asyncio.to_thread(require, user, (state.tags or {}).get(identity.DAG_TAG), "TASK_LOGS")
        records = await cache.once(("activities", id), lambda client: client.instance(id).shown_activities())
        wanted = (state.execution_id or "") if execution_id is None else execution_id, task, attempt
        name = next((r.log for r in records if (execution(r), r.task_id, r.attempt) == wanted), None)
        if name is None:
            raise HTTPException(404, "this attempt has no log")
        text = await cache.once(("log", name), lambda client: client.instance(id).log(name, last=LOG_LINES))
        return {"text": masked(text), "lines": LOG_LINES}

    return router


async def _listed(
    cache: ClientCache, user: Any, filter: Wanted, order: Order | None, *, offset: int, limit: int
) -> tuple[Listing, list[InstanceState]]:
    """Return one page of the list, and its instances as they were just read by their ids.

    The index finds the instances. If it did not know their newest states, the page is made again, because perhaps an
    instance does not match any more. The last of :data:`_TURNS` pages is shown as it is.
    """
    rights = await rights_of(user)
    states: dict[str, InstanceState | None] = {}

    async def read(row: Row) -> None:
        states[row.instance_id] = await cache.row(row.instance_id)

    for _ in range(_TURNS):
        own = seen_by(await rows_of(cache, filter.text), *rights)
        reads = await error_rights(user, own, filter.error)
        now = SYSTEM_CLOCK.utc_now()
        listed = listing(own, filter, offset=offset, limit=limit, now=now, order=order, reads=reads)
        await gather_bounded(read, [row for row in listed.rows if row.instance_id not in states], limit=_PARALLEL)
        if all(cache.index.get(row.instance_id) == row for row in listed.rows):
            break
    found = (states[row.instance_id] for row in listed.rows)
    return listed, [state for state in found if state is not None]


async def _tallies(cache: ClientCache, rows: Sequence[InstanceState]) -> Sequence[Mapping[str, int] | None]:
    """Return the numbers of activities by state for each row on a page; None for a Pending instance."""

    async def one(state: InstanceState) -> Mapping[str, int] | None:
        return None if state.status is Status.PENDING else await cache.tally(state)

    return await gather_bounded(one, rows, limit=_PARALLEL)


async def _waits(
    cache: ClientCache, rows: Sequence[InstanceState], members: Sequence[Member]
) -> Mapping[str, tuple[Why, ...]]:
    """Return why the instances make no progress, by instance id. Instances that have ended are left out."""
    live = [state for state in rows if not state.status.is_final]
    if not live:
        return {}
    key = "waits", *((state.instance_id, state.etag) for state in live)
    return await cache.once(key, lambda client: client.admin.waiting_of(live, members=members))


def _file(name: str) -> bytes:
    return (resources.files("airflow_provider_taskhub.plugins") / "page" / name).read_bytes()
