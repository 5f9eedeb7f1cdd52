"""An Airflow as companies run it: what the tests of the front demand of a small Airflow holds there too."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.airflow import test_real_retry
from tests.airflow.deployment import Deployment, killed
from tests.airflow.test_real import (
    test_clearing_a_waiting_task_ends_the_old_and_starts_a_new_generation,
    test_marking_a_waiting_task_terminates,
)
from tests.airflow.test_real_page import (
    test_a_repair_lets_the_task_and_its_run_go_on,
    test_a_user_terminates_what_a_viewer_may_not_and_airflow_knows_who_it_was,
    test_an_administrator_steers_partitions_and_workers,
)
from tests.airflow.test_real_retry import test_a_clear_after_the_last_try_runs_only_what_has_failed
from tests.airflow.test_real_zero_slot import test_a_task_succeeds_without_any_worker
from tests.browser.conftest import PATIENCE, browser
from tests.waiting import until

pytestmark = pytest.mark.process
__all__ = [
    "browser",
    "test_a_clear_after_the_last_try_runs_only_what_has_failed",
    "test_a_repair_lets_the_task_and_its_run_go_on",
    "test_a_task_succeeds_without_any_worker",
    "test_a_user_terminates_what_a_viewer_may_not_and_airflow_knows_who_it_was",
    "test_an_administrator_steers_partitions_and_workers",
    "test_clearing_a_waiting_task_ends_the_old_and_starts_a_new_generation",
    "test_marking_a_waiting_task_terminates",
]
"""The tests of other files that run here too, with the fixture ``real`` of this file."""
BY_HAND = "without-a-dag"


@pytest.fixture(scope="module")
def real() -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="taskhub-real-", ignore_cleanup_errors=True) as home:
        deployment = Deployment(Path(home))
        try:
            deployment.start()
            yield deployment
        finally:
            deployment.stop()


@pytest.fixture(scope="module")
def instances(real: Deployment) -> Iterator[dict[str, str]]:
    """An instance that has completed, one that its task waits for, and one that no DAG has started, by name."""
    sums, told = real.trigger("sums"), real.trigger("told")
    real.taskhub("instances", "start", "waits", "--id", BY_HAND)
    real.waits("told", told)
    real.reaches("sums", sums, "success")
    yield {"sums": f"sums:hub:{sums}:g1", "told": f"told:hub:{told}:g1", BY_HAND: BY_HAND}
    real.tell(f"told:hub:{told}:g1", 1)
    real.tell(BY_HAND, 1)
    real.reaches("told", told, "success")


def test_a_retry_of_twelve_activities_repeats_one(real: Deployment, tmp_path: Path) -> None:
    test_real_retry.test_twelve_activities_of_which_one_fails_once(real, tmp_path, "rewound", 13, True)


NOTHING: frozenset[str] = frozenset()
REFUSED = (403, 403, 403)


@pytest.mark.parametrize(
    ("user", "sees", "orders", "hub"),
    [
        ("vic", NOTHING, REFUSED, 403),
        ("ulla", NOTHING, REFUSED, 403),
        ("vera", {"sums", "told"}, (403, 403, 404), 403),
        ("sam", {"sums"}, (409, 404, 404), 403),
        ("uma", {"sums", "told"}, (409, 200, 404), 403),
        ("otto", {"sums", "told", BY_HAND}, (409, 200, 200), 200),
        ("admin", {"sums", "told", BY_HAND}, (409, 200, 200), 200),
    ],
    ids=["Viewer", "User", "Viewer who sees plugins", "one DAG", "User who sees plugins", "Op", "Admin"],
)
def test_a_role_of_fab_sees_and_changes_what_it_may(
    real: Deployment, instances: dict[str, str], user: str, sees: set[str], orders: tuple[int, int, int], hub: int
) -> None:
    """The order for an instance is an event that nothing awaits; an instance that has ended refuses it."""
    with closing(real.browser(user)) as browser, httpx.Client(base_url=real.url, timeout=90) as program:
        program.headers["Authorization"] = f"Bearer {real.token(user)}"
        for client in (browser, program):
            listed = client.get("/taskhub/api/instances", params={"window": "hour", "limit": 200})
            offered = client.get("/api/v2/plugins").status_code
            assert (listed.status_code, offered) == ((200, 200) if sees else (403, 403))
            rows = {row["id"] for row in listed.json().get("rows", ())}
            assert {name for name, instance_id in instances.items() if instance_id in rows} == sees
            for name, instance_id in instances.items():
                shown = client.get("/taskhub/api/instance", params={"id": instance_id})
                assert shown.status_code == (200 if name in sees else 404 if sees else 403)
            bodies = [{"id": instance_id, "name": "noise"} for instance_id in instances.values()]
            answers = [client.post("/taskhub/api/instance/raise-event", json=body) for body in bodies]
            assert tuple(answer.status_code for answer in answers) == orders
            kicked = client.post("/taskhub/api/partition/kick", json={"partition": 0, "epoch": 10**6})
            assert kicked.status_code == (409 if hub == 200 else hub), "nobody has seen such an epoch"
            assert client.get("/taskhub/api/quarantine").status_code == hub


def test_the_page_in_a_browser(real: Deployment, instances: dict[str, str], browser: Browser) -> None:
    told = instances["told"]
    run = told.split(":", 2)[2].removesuffix(":g1")
    context = browser.new_context(locale="en-GB")
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        task = f"{real.url}/dags/told/runs/{quote(run, safe='')}/tasks/hub"
        page.goto(f"{task}/plugin/taskhub-instance")
        page.fill("#username", "uma")  # Airflow has sent the browser to the login of FAB, and sends it back
        page.fill("#password", "uma")
        page.locator("input[type=submit], button[type=submit]").click()
        inner = page.frame_locator("iframe")
        expect(inner.locator("h1")).to_have_text(told)
        page.goto(f"{task}/details")
        page.get_by_role("link", name="TaskHub instance").click()
        expect(inner.locator("h1")).to_have_text(told)
        inner.get_by_role("link", name="Instances").first.click()
        expect(inner.locator("tr", has_text=told)).to_be_visible()
        inner.get_by_role("link", name=told).click()
        expect(inner.locator("h1")).to_have_text(told)
        inner.get_by_role("link", name="Workers").click()
        expect(inner.locator("tbody")).to_contain_text("first")
        inner.get_by_role("link", name="Instances").first.click()
        inner.get_by_role("link", name=told).click()
        inner.get_by_role("link", name=run).click()  # a page of Airflow
        page.wait_for_url(f"{real.url}/dags/told/runs/**")
    finally:
        context.close()


def test_another_triggerer_takes_over_after_a_kill(real: Deployment) -> None:
    run = real.trigger("told")
    real.waits("told", run)
    with killed(real.triggerer_of(run)):
        until("the other one waits", lambda: real.log("told", run).count("waiting for told:") == 2)
        assert real.status(f"told:hub:{run}:g1") == "Running"
        real.tell(f"told:hub:{run}:g1", 60)
        real.reaches("told", run, "success")
    assert real.xcom("told", run) == 60
    assert not real.exists(f"told:hub:{run}:g2")


def test_twenty_mapped_tasks_that_workers_start_and_end_survive_a_kill_of_their_scheduler(real: Deployment) -> None:
    run = real.trigger("by_workers_mapped")

    def rows() -> list[Any]:
        found = real.get(f"/api/v2/dags/by_workers_mapped/dagRuns/{quote(run)}/taskInstances", limit=50)
        return list(found["task_instances"])

    until("the first row waits", lambda: any(row["state"] == "deferred" for row in rows()))
    with killed(real.scheduler_of(run)):
        until("all rows have ended", lambda: all(row["state"] in ("success", "failed") for row in rows()), seconds=240)
    assert [(row["state"], row["try_number"]) for row in rows()] == [("success", 1)] * 20
    assert all(row["pid"] for row in rows())
    started = real.get("/taskhub/api/instances", window="hour", text=f"run_id={run}")
    assert (started["total"], started["counts"]) == (20, {"Completed": 20})
