"""Large results through real workers: 40 MB pass, and above the set maximum an activity fails at once (K30)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_taskhub.engine.events import Status
from tests.e2e.house import House
from tests.e2e.house_app import bulk

MB = 1_000_000


@pytest.mark.rows("K30")
async def test_a_result_of_forty_megabytes_passes_and_goes_with_its_instance(house: House) -> None:
    house.worker("one").ready()
    async with house.client() as client:
        await client.start("carrying", 40 * MB, instance_id="one")
        ended = await client.wait("one", timeout=timedelta(seconds=120))
        assert ended.status is Status.COMPLETED, ended.output
        assert ended.output == f'"{bulk(40 * MB)}"'
        blobs = [blob.name for blob in await client.hub.store.list_blobs(client.hub.names.large_messages)]
        # the result in the history, and as the output; in a message too, had it taken long to find
        assert len([name for name in blobs if name.startswith("one/history-")]) == 2
        assert len(blobs) <= 3
        assert await client.purge("one")
        assert await client.hub.store.list_blobs(client.hub.names.large_messages) == []


@pytest.mark.rows("K30")
async def test_above_the_maximum_an_activity_fails_at_once_naming_itself_and_the_size(embedded: House) -> None:
    embedded.worker("one", TASKHUB_MAX_RESULT=str(2 * MB)).ready()
    async with embedded.client() as client:
        await client.start("carrying", 2 * MB - 2, instance_id="fits")  # and two quotes
        await client.start("carrying", 2 * MB, instance_id="one")
        assert (await client.wait("fits", timeout=timedelta(seconds=60))).status is Status.COMPLETED
        ended = await client.wait("one", timeout=timedelta(seconds=60))
    assert ended.status is Status.FAILED
    assert ended.output is not None
    assert "activity 'large'" in ended.output
    assert "2,000,002 bytes of JSON: at most 2,000,000" in ended.output
    assert embedded.effects().count(f"large {2 * MB}") == 1, "it is not tried again"
