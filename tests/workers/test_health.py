"""What probes are told of loops that fail, and how a worker ends that cannot go on."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
from collections.abc import MutableMapping, Sequence
from contextlib import AsyncExitStack, closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from typer.testing import CliRunner

from airflow_provider_taskhub import virtual_time
from airflow_provider_taskhub.cli.main import app
from airflow_provider_taskhub.cli.output import Exit, run
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.errors import ConfigurationError, WorkerFailed
from airflow_provider_taskhub.hub.partitions.metrics import LeaseMetrics
from airflow_provider_taskhub.hub.partitions.owner_thread import OwnerThread
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.workers.health import Health, listen, respond
from airflow_provider_taskhub.workers.host import Host, Options
from tests.waiting import PATIENCE, until_async


def test_loops_that_cannot_be_kept_running_are_named_by_live_and_ready() -> None:
    clock = virtual_time.VirtualClock()

    async def broken() -> None:
        raise RuntimeError("odd")

    async def main() -> None:
        mine, partitions = Supervisor(clock), Supervisor(clock)
        backend = SimpleNamespace(supervisor=mine, draining=False)
        owner = SimpleNamespace(supervisor=partitions, outage="")
        health = Health(backend=cast(Any, backend), owner=cast(Any, owner), started=0.0)
        assert await respond(health, "GET /live HTTP/1.1") == ("200 OK", "live\n")
        mine.keep("orchestrations", broken)
        partitions.keep("partitions: renew", broken)
        await clock.sleep(0.05)
        assert (await respond(health, "GET /live HTTP/1.1"))[0] == "200 OK", "once is no reason to kill the worker"
        await clock.sleep(20.0)
        for path in ("/live", "/ready"):
            status, body = await respond(health, f"GET {path} HTTP/1.1")
            assert status == "503 Service Unavailable"
            assert "orchestrations, partitions: renew" in body
        restarts = mine.restarts["orchestrations"]
        counted = {sample.labels["loop"]: sample.value for sample in health._restarts().samples}
        assert counted["orchestrations"] == restarts
        await mine.close()
        await partitions.close()
        assert await respond(health, "GET /ready HTTP/1.1") == ("200 OK", "ready\n")

    virtual_time.run(main())


class Owner:
    """A partitions thread that ends by itself. :param error: what ended it."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def wait(self) -> None:
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("error", [None, RuntimeError("odd")])
def test_a_worker_whose_partitions_thread_ends_by_itself_ends_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception | None
) -> None:
    async def start(self: Host, stack: AsyncExitStack, *_: object) -> None:
        self._watch(stack, cast(OwnerThread, Owner(error)))

    monkeypatch.setattr(Host, "_start", start)
    with pytest.raises(typer.Exit) as ended:
        run(Host(Settings(), Options(apps=())).run())
    assert ended.value.exit_code == Exit.FAILED == 1
    said = capsys.readouterr()
    assert "the thread that owns the partitions of this worker ended" in said.err
    assert (str(error) in said.err) == (error is not None)


async def _get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_a_worker_that_starts_lives_and_is_not_ready() -> None:
    async with AsyncExitStack() as stack:
        port = await listen(stack, 0)
        assert "200 OK" in await _get(port.port, "/live")
        for path in ("/ready", "/metrics"):
            answer = await _get(port.port, path)
            assert "503 Service Unavailable" in answer
            assert answer.endswith("starting\n")
        backend = SimpleNamespace(supervisor=Supervisor(), draining=False)
        owner = SimpleNamespace(supervisor=Supervisor(), outage="")
        port.serve(Health(backend=cast(Any, backend), owner=cast(Any, owner), started=0.0))
        assert "200 OK" in await _get(port.port, "/ready")
        port.close()
        with pytest.raises(OSError, match=r"Connect call failed|refused"):
            await _get(port.port, "/live")


def figures() -> Health:
    """A worker's figures, each of them another number."""
    counted = LeaseMetrics()
    counted.takes.update({"new": 4, "handed over": 2})
    counted.lost, counted.not_polled = 5, 6
    for seconds in (0.5, 0.25):
        counted.renewed(seconds)
    counted.seen(1.5)
    backend = SimpleNamespace(
        supervisor=SimpleNamespace(restarts={'odd "loop"\n': 1}),
        running=7,
        slots={"plain": (17, 18), "spark": (19, 20)},
        memory=16,
        memory_used=15,
        orchestrations=SimpleNamespace(running=8),
        sessions=[None] * 9,
        quarantined=11,
        queues=SimpleNamespace(buffered=10, oldest_poll=12.5),
        hub=SimpleNamespace(
            clock=SimpleNamespace(monotonic=lambda: 100.0), store=SimpleNamespace(requests={"queue.put": 13})
        ),
    )
    owner = SimpleNamespace(
        supervisor=None, metrics=counted, tenures=[SimpleNamespace(age=3.25)], requests={"table.get": 14}
    )
    return Health(backend=cast(Any, backend), owner=cast(Any, owner), started=58.0)


async def test_metrics_keep_their_names_units_and_labels() -> None:
    status, text = await respond(figures(), "GET /metrics HTTP/1.1")
    assert status == "200 OK"
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation for family in families)
    assert {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples} == {
        ("taskhub_partitions_owned",): 1,
        ("taskhub_lease_age_seconds_max",): 3.25,
        ("taskhub_partitions_taken_total", ("change", "new")): 4,
        ("taskhub_partitions_taken_total", ("change", "handed over")): 2,
        ("taskhub_partitions_lost_total",): 5,
        ("taskhub_partitions_not_polled_total",): 6,
        ("taskhub_lease_renewals_total",): 2,
        ("taskhub_lease_renewal_seconds_total",): 0.75,
        ("taskhub_lease_renewal_seconds_max",): 0.5,
        ("taskhub_partition_free_seconds_max",): 1.5,
        ("taskhub_activities_running",): 7,
        ("taskhub_activity_slots", ("kind", "plain")): 18,
        ("taskhub_activity_slots", ("kind", "spark")): 20,
        ("taskhub_activity_slots_taken", ("kind", "plain")): 17,
        ("taskhub_activity_slots_taken", ("kind", "spark")): 19,
        ("taskhub_memory_bytes",): 16,
        ("taskhub_memory_needed_bytes",): 15,
        ("taskhub_episodes_running",): 8,
        ("taskhub_sessions",): 9,
        ("taskhub_messages_buffered",): 10,
        ("taskhub_messages_quarantined_total",): 11,
        ("taskhub_oldest_poll_seconds",): 12.5,
        ("taskhub_uptime_seconds",): 42,
        ("taskhub_loop_restarts_total", ("loop", 'odd "loop"\n')): 1,
        ("taskhub_storage_requests_total", ("kind", "queue.put"), ("part", "work")): 13,
        ("taskhub_storage_requests_total", ("kind", "table.get"), ("part", "partitions")): 14,
    }
    counters = {family.name for family in families if family.type == "counter"}
    assert {family.name for family in families if family.name + "_total" in text} == counters


async def test_a_port_in_use_ends_a_worker_before_it_takes_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TASKHUB_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        host = Host(Settings(), Options(apps=("tests.e2e.house_app:app",), health_port=port))
        with pytest.raises(ConfigurationError, match=rf"--health-port {port} cannot be opened: .*Give another port"):
            await asyncio.wait_for(host.run(), PATIENCE)
    assert os.listdir(tmp_path) == [], "no hub, no incarnation"


@pytest.mark.parametrize("how", ["replaced", "restored"])
async def test_a_worker_whose_hub_was_replaced_ends_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    """What it knows of the hub is void, and a restart helps. It does not wait for what still runs."""
    monkeypatch.setenv("TASKHUB_HOME", str(tmp_path))
    settings, path = Settings(drain_timeout=timedelta(hours=1)), tmp_path / "hub.db"
    async with Client.open(settings, create=True):
        pass
    with closing(sqlite3.connect(path)) as opened, closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        opened.backup(copy)
    host = Host(settings, Options(apps=("tests.e2e.house_app:app",), roles=("orchestrator",), name="one"))
    with capture_logs() as logs:
        running = asyncio.create_task(host.run())
        await until_async("it serves all partitions", lambda: _taken(logs) == settings.partitions)
        if how == "replaced":
            os.replace(tmp_path / "copy.db", path)
        else:
            with closing(sqlite3.connect(tmp_path / "copy.db")) as copy, closing(sqlite3.connect(path)) as opened:
                copy.backup(opened)
        with pytest.raises(WorkerFailed, match=r"hub\.db was (replaced|overwritten or restored) while it was open"):
            await asyncio.wait_for(running, PATIENCE)
    (failed,) = [entry for entry in logs if entry["event"] == "worker_failed"]
    assert "start this process again" in failed["reason"]


def _taken(logs: Sequence[MutableMapping[str, Any]]) -> int:
    return sum(entry["event"] == "partition_owner_changed" for entry in logs)


def test_an_address_without_a_port_is_refused() -> None:
    result = CliRunner().invoke(app, ["worker", "--app", "tests.e2e.house_app:app", "--health-host", "0.0.0.0"])
    assert result.exit_code == 2
    assert "--health-port 8080" in result.output
