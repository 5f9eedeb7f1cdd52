"""What executors get of their worker's environment, and where a worker's health is served."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack

import pytest

from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.workers.executors.environment import child_environment
from airflow_provider_taskhub.workers.health import listen
from tests.workers.conftest import PoolMaker, request

KEY = "c2VjcmV0L2tleSs9PQ=="
AZURE = f"DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={KEY};EndpointSuffix=core.windows.net"
SIGNED = "BlobEndpoint=https://shop.blob.core.windows.net;SharedAccessSignature=sv=2024-01-01&sp=rwd&sig=a%2Fb%3D"
OWN = {"PATH": "/bin", "JAVA_HOME": "/java", "SPARK_HOME": "/spark", "SHOP_PASSWORD": "theirs", "AZURE_TENANT_ID": "t"}


@pytest.mark.parametrize(
    ("connection", "variables"),
    [
        (None, {"TASKHUB_CONNECTION": "sqlite:///x", "TASKHUB_HUB": "Shop", "taskhub_weight": "2"}),
        (AZURE, {"TASKHUB_CONNECTION": AZURE, "AZURE_STORAGE_CONNECTION_STRING": AZURE, "AZURE_STORAGE_KEY": KEY}),
        (AZURE, {"AIRFLOW_CONN_TASKHUB_DEFAULT": "taskhub://shop:c2VjcmV0L2tleSs9PQ%3D%3D@"}),
        (AZURE, {"AIRFLOW_CONN_TASKHUB_DEFAULT": "taskhub://shop:c2VjcmV0L2tleSs9PQ%3D%3D@", "OTHER": f"x{KEY}y"}),
        (SIGNED, {"SAS": "?sp=rwd&sig=a%2Fb%3D"}),
        ("https://shop.blob.core.windows.net", {"AZURE_CLIENT_SECRET": "s3cret", "TASKHUB_CONNECTION": "https://shop"}),
    ],
)
def test_what_opens_the_hub_stays_with_the_worker(connection: str | None, variables: dict[str, str]) -> None:
    given = {**OWN, "TASKHUB_HOME": "/home/hub", **variables}
    assert child_environment(given, connection=connection, withheld=()) == {**OWN, "TASKHUB_HOME": "/home/hub"}


def test_a_setting_names_more_that_stays_with_the_worker() -> None:
    settings = Settings(withheld="SHOP_*, AZURE_TENANT_ID,")
    kept = child_environment(OWN, connection=None, withheld=settings.withheld_names)
    assert kept == {name: OWN[name] for name in ("PATH", "JAVA_HOME", "SPARK_HOME")}
    assert child_environment(OWN, connection=None, withheld=Settings().withheld_names) == OWN


async def test_an_activity_sees_the_environment_that_its_pool_was_given(
    make_pool: PoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKHUB_CONNECTION", AZURE)
    pool = await make_pool(environment={"PATH": "/bin", "SHOP": "1"})
    seen = (await pool.run(request("environment", input=None))).result or ""
    assert '"SHOP":"1"' in seen
    assert "TASKHUB" not in seen
    assert KEY not in seen


def _connects(family: socket.AddressFamily, address: str, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(5)
        return client.connect_ex((address, port)) == 0


def _elsewhere() -> str:
    """An address of this machine that is not loopback's own; Linux gives all of 127.0.0.0/8 to loopback."""
    return "127.0.0.2"


@pytest.mark.parametrize(("host", "elsewhere"), [("", False), ("0.0.0.0", True)])
async def test_health_is_served_to_this_machine_unless_told_otherwise(host: str, elsewhere: bool) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with AsyncExitStack() as stack:
        await listen(stack, port, host)
        assert _connects(socket.AF_INET, "127.0.0.1", port)
        assert _connects(socket.AF_INET, _elsewhere(), port) is elsewhere
        if socket.has_ipv6 and not host:
            assert _connects(socket.AF_INET6, "::1", port)


async def test_an_address_that_is_not_here_is_refused_by_name() -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigurationError, match=r"--health-port 0 --health-host 203\.0\.113\.1 cannot be opened"):
            await listen(stack, 0, "203.0.113.1")
