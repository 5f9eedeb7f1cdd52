"""What probes are told of loops that fail, and how a worker ends that cannot go on."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from airflow_provider_taskhub import jumping
from airflow_provider_taskhub.cli.output import Exit, run
from airflow_provider_taskhub.hub.partitions.owner import OwnerThread
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.workers.health import Health, respond
from airflow_provider_taskhub.workers.host import Host, Options


def test_loops_that_cannot_be_kept_running_are_named_by_live_and_ready() -> None:
    clock = jumping.JumpingClock()

    async def broken() -> None:
        raise RuntimeError("odd")

    async def main() -> None:
        mine, partitions = Supervisor(clock), Supervisor(clock)
        backend = SimpleNamespace(supervisor=mine, draining=False)
        owner = SimpleNamespace(supervisor=partitions)
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
        assert f'taskhub_loop_restarts_total{{loop="orchestrations"}} {restarts}' in health._restarts()
        await mine.close()
        await partitions.close()
        assert await respond(health, "GET /ready HTTP/1.1") == ("200 OK", "ready\n")

    jumping.run(main())


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
    assert "the thread that holds its partitions ended" in said.err
    assert (str(error) in said.err) == (error is not None)
