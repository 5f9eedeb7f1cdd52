"""Worker processes of one hub whose apps differ."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from airflow_provider_taskhub.cli.output import Exit
from airflow_provider_taskhub.engine.events import Status
from tests.e2e.house import House
from tests.waiting import PATIENCE, until

LEFT, RIGHT = "halves_app:left", "halves_app:right"
WARM = "--no-warm"


@pytest.mark.rows("K43")
async def test_whatever_a_live_worker_has_is_run_and_the_difference_is_told(embedded: House) -> None:
    """Newcomer's case: half of the instances stayed Pending for as long as the second worker lived."""
    one, two = embedded.worker("one", WARM, app=LEFT).ready(), embedded.worker("two", WARM, app=RIGHT).ready()
    async with embedded.client() as client:
        ids = [f"{name}-{number}" for number in range(6) for name in ("left", "right")]
        for instance_id in ids:
            await client.start(instance_id.partition("-")[0], 0, instance_id=instance_id)
        ends = await asyncio.gather(*(client.wait(found, timeout=timedelta(seconds=PATIENCE)) for found in ids))
        assert {(end.status, end.output) for end in ends} == {(Status.COMPLETED, "2")}
        assert not await client.admin.quarantined()
    until("a warning of the first worker", lambda: "apps_differ" in one.text())
    until("a warning of the second worker", lambda: "apps_differ" in two.text())
    warning = next(line for line in one.text().splitlines() if "apps_differ" in line)
    assert "two@" in warning
    assert "orchestrator 'left'" in warning
    assert "activity 'right_kept'" in warning
    assert (one.end(), two.end()) == (0, 0)


@pytest.mark.rows("K43")
def test_a_strict_worker_does_not_start_beside_other_apps(embedded: House) -> None:
    one = embedded.worker("one", WARM, app=LEFT).ready()
    refused = embedded.worker("two", WARM, "--strict", app=RIGHT)
    assert refused.process.wait(PATIENCE) == Exit.USAGE
    text = " ".join(refused.text().split())
    assert "the apps of this worker differ from those of live workers of the hub: worker one@" in text
    assert "it lacks orchestrator 'right', activity 'right_kept', activity 'right_plain'" in text
    assert "without --strict" in text
    assert "Traceback" not in text
    other = embedded.worker("three", WARM, "--strict", app=LEFT, LEFT_VERSION="2")
    assert other.process.wait(PATIENCE) == Exit.USAGE
    assert "app 'left' has version '1' there and '2' here" in " ".join(other.text().split())
    same = embedded.worker("four", WARM, "--strict", app=LEFT).ready()
    assert (one.end(), same.end()) == (0, 0)


@pytest.mark.rows("K43")
def test_a_strict_worker_starts_where_a_worker_with_other_apps_was_killed(embedded: House) -> None:
    one = embedded.worker("one", WARM, app=LEFT).ready()
    one.kill()
    two = embedded.worker("two", WARM, "--strict", app=RIGHT).ready()
    assert two.end() == 0
