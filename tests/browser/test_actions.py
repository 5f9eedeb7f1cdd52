"""The page's buttons and tabs in a real browser, over the page's own application with a fake hub: no Airflow runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InvalidStateError, Unavailable
from tests.airflow.conftest import hub
from tests.airflow.fake import NOW, FakeHub
from tests.airflow.test_page_actions import TAGS, audit_log, entries
from tests.airflow.test_page_actions import page as app
from tests.airflow.test_page_tabs import full
from tests.browser.conftest import PATIENCE, PICTURES

__all__ = ["app", "audit_log", "entries", "full", "hub"]  # the fixtures

PLACE = "http://airflow.test"
Open = Callable[..., Page]


@pytest.fixture
def shown(browser: Browser, app: Any, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Open a page as a user of some role. Everything but the application of the page answers 404."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB")
    complaints: list[str] = []

    def open_page(path: str, role: str = "op") -> Page:
        client = app.as_(role)

        def answer(route: Route) -> None:
            parts, sent = urlsplit(route.request.url), route.request
            if not parts.path.startswith("/taskhub/"):
                route.fulfill(status=404, json={"detail": "not here"})
                return
            address = parts.path.removeprefix("/taskhub") + (f"?{parts.query}" if parts.query else "")
            headers = {name: value for name, value in sent.headers.items() if name in ("content-type", "accept")}
            got = client.request(sent.method, address, content=sent.post_data_buffer, headers=headers)
            route.fulfill(status=got.status_code, body=got.content, headers=dict(got.headers))

        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.clock.install()
        page.route("**", answer)
        page.goto(f"{PLACE}/taskhub/page/{path}")
        return page

    yield open_page
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        context.pages[-1].screenshot(path=f"{PICTURES}/{request.node.name}.png")
    context.close()
    assert complaints == [], "errors of scripts"


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


@pytest.fixture
def running(shown: Open, hub: FakeHub) -> Page:
    """The page of a running instance that an Airflow task has started."""
    hub.put("mine", Status.RUNNING, tags=TAGS, created=NOW)
    return shown("instance?id=mine")


def test_a_termination_says_what_will_happen_and_asks(running: Page, hub: FakeHub) -> None:
    page = running
    expect(page.locator(".head .actions button")).to_have_text(["Raise event…", "Suspend…", "Terminate…"])
    page.get_by_role("button", name="Terminate…").click()
    expect(dialog(page)).to_contain_text("The instance and its children end now")
    expect(dialog(page)).to_contain_text("mark the task failed in Airflow")
    page.get_by_role("button", name="Cancel").click()
    expect(dialog(page)).to_have_count(0)
    assert hub.ordered == []
    page.get_by_role("button", name="Terminate…").click()
    page.get_by_label("Reason").fill("wrong year")
    dialog(page).get_by_role("button", name="Terminate").click()
    expect(page.locator("#told")).to_contain_text("The hub has the order.")
    expect(dialog(page)).to_have_count(0)
    assert hub.ordered == [("terminate", "mine", "from Airflow: op on TaskHub's page: wrong year", True)]


def test_an_instance_without_an_airflow_task_is_not_said_to_have_one(shown: Open, hub: FakeHub) -> None:
    hub.put("mine", Status.RUNNING, tags=None, created=NOW)
    page = shown("instance?id=mine")
    page.get_by_role("button", name="Terminate…").click()
    expect(dialog(page)).to_contain_text("The instance and its children end now")
    expect(dialog(page)).not_to_contain_text("Airflow")


def test_a_refusal_stays_in_the_dialog(running: Page, hub: FakeHub) -> None:
    page = running
    hub.refuses = InvalidStateError("instance 'mine' has ended (Completed): it cannot be suspended")
    page.get_by_role("button", name="Suspend…").click()
    dialog(page).get_by_role("button", name="Suspend").click()
    expect(dialog(page).get_by_role("alert")).to_contain_text("it cannot be suspended. Load the page again")
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    expect(page.locator("#told")).to_be_empty()


def test_an_event_with_data(running: Page, hub: FakeHub) -> None:
    page = running
    page.get_by_role("button", name="Raise event…").click()
    page.get_by_label("Name of the event").fill("approve")
    page.get_by_label("Data").fill("yes")
    dialog(page).get_by_role("button", name="Send the event").click()
    expect(dialog(page).get_by_role("alert")).to_contain_text("this is no JSON value. A text needs quotation marks.")
    page.get_by_label("Data").fill('{"by": "ann"}')
    dialog(page).get_by_role("button", name="Send the event").click()
    expect(page.locator("#told")).to_contain_text("The event is sent.")
    assert hub.ordered == [("raise_event", "mine", "approve", {"by": "ann"})]


def test_after_a_purge_and_a_restart_the_page_goes_where_something_is(shown: Open, hub: FakeHub) -> None:
    hub.put("mine", Status.FAILED, tags=TAGS, created=NOW)
    page = shown("instance?id=mine")
    expect(page.locator(".head .actions button")).to_have_text(["Repair…", "Rewind…", "Restart…", "Purge…"])
    page.get_by_role("button", name="Repair…").click()
    expect(dialog(page)).to_contain_text("Airflow clears the task, and what has failed after it, in your name.")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Restart…").click()
    expect(dialog(page)).to_contain_text("clear the task in Airflow, or choose Repair")
    page.get_by_label("with a new id").check()
    dialog(page).get_by_role("button", name="Restart").click()
    expect(page.locator("h1")).to_have_text("new")
    page.goto(f"{PLACE}/taskhub/page/instance?id=mine")
    page.get_by_role("button", name="Purge…").click()
    expect(dialog(page)).to_contain_text("This cannot be undone.")
    dialog(page).get_by_role("button", name="Delete").click()
    expect(page.locator("h1")).to_have_text("Instances")


def test_a_viewer_has_no_buttons(shown: Open, full: FakeHub) -> None:
    full.put("mine", Status.RUNNING, tags=TAGS, created=NOW)
    page = shown("instance?id=mine", "viewer")
    expect(page.locator(".facts")).to_contain_text("Running")
    expect(page.locator(".head .actions button")).to_have_count(0)
    page.get_by_role("link", name="Partitions").click()
    expect(page.locator("tbody tr:not(.ghost)")).to_have_count(2)
    expect(page.locator("tbody button")).to_have_count(0)
    page.get_by_role("link", name="Quarantine").click()
    expect(page.get_by_role("alert")).to_contain_text("this needs the right to edit connections")


def test_the_keyboard_keeps_its_place_while_the_page_refreshes(shown: Open, hub: FakeHub) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS, created=NOW)
    page = shown("instance?id=mine")
    page.get_by_role("button", name="Suspend…").focus()
    hub.put("mine", Status.SUSPENDED, created=NOW, suspended_by="ann")
    for _ in range(3):  # an answer is kept for 1.5 s, the page asks each 2 s
        page.clock.run_for(2100)
    page.get_by_role("button", name="Terminate…").focus()
    hub.put("mine", Status.SUSPENDED, created=NOW, suspended_by="ben")
    page.clock.run_for(2100)
    expect(page.get_by_role("button", name="Terminate…")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog(page)).to_be_visible()


def test_partitions_and_their_orders(shown: Open, full: FakeHub) -> None:
    page = shown("partitions")
    rows = page.locator("tbody tr:not(.ghost)")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("a@host/1")
    expect(rows.first).to_contain_text("from b@host/2, which was proven dead, 0.4 s after its last renewal")
    expect(rows.last).to_contain_text("new, ordered offline")
    expect(page.locator("main")).to_contain_text("a@host is drained by ann")
    expect(page.get_by_role("link", name="Partitions")).to_have_attribute("aria-current", "page")
    rows.first.get_by_role("button", name="Kick…").click()
    expect(dialog(page)).to_contain_text("hands partition 0 over")
    page.get_by_label("Reason").fill("slow disk")
    dialog(page).get_by_role("button", name="Hand over").click()
    expect(page.locator("#told")).to_contain_text("is asked to hand partition 0 over")
    rows.last.get_by_role("button", name="Online…").click()
    dialog(page).get_by_role("button", name="Take online").click()
    expect(page.locator("#told")).to_contain_text("Partition 1 is online again")
    assert full.ordered == [("kick", "op (Airflow)", 0, "slow disk"), ("online", "op (Airflow)", [1])]


def test_the_partitions_of_one_worker_have_an_address(shown: Open, full: FakeHub) -> None:
    page = shown("workers")
    page.get_by_role("row", name="a@host/1").get_by_role("link", name="0").click()
    expect(page.locator("tbody tr:not(.ghost)")).to_have_count(1)
    page.reload()
    expect(page.locator("tbody tr:not(.ghost)")).to_have_count(1)
    page.get_by_role("button", name="All").click()
    expect(page.locator("tbody tr:not(.ghost)")).to_have_count(2)
    assert "worker=" not in page.url


def test_workers_and_their_drain(shown: Open, full: FakeHub) -> None:
    page = shown("workers")
    alive, dead = page.locator("tbody tr:not(.ghost)").first, page.locator("tbody tr:not(.ghost)").last
    expect(alive).to_contain_text("flights 3")
    expect(alive).to_contain_text("drained by ann")
    expect(dead).to_contain_text("silent")
    alive.get_by_text("1 orchestrator", exact=True).click()
    expect(alive).to_contain_text("orchestrators: flights_delays")
    dead.get_by_role("button", name="Drain…").click()
    expect(dialog(page)).to_contain_text("Every worker with the name b@other hands over its partitions")
    dialog(page).get_by_role("button", name="Drain").click()
    expect(page.locator("#told")).to_contain_text("b@other hands over its partitions")
    assert full.ordered == [("drain", "op (Airflow)", "b@other", "")]


def test_quarantine_put_back_and_drop(shown: Open, full: FakeHub) -> None:
    page = shown("quarantine")
    rows = page.locator("tbody tr:not(.ghost)")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("ValueError: password=***")
    expect(rows.last).to_contain_text("the whole instance")
    rows.first.get_by_role("button", name="Put back…").click()
    expect(dialog(page)).to_contain_text("Fix the cause first")
    dialog(page).get_by_role("button", name="Put back").click()
    expect(page.locator("#told")).to_contain_text("The message is in its queue again.")
    rows.last.get_by_role("button", name="Drop…").click()
    expect(dialog(page)).to_contain_text("This cannot be undone.")
    dialog(page).get_by_role("button", name="Delete").click()
    expect(page.locator("#told")).to_contain_text("The message is deleted.")
    assert full.ordered == [("put_back", "m0"), ("drop", "m1")]
    page.get_by_role("searchbox").fill("mine")
    expect(rows).to_have_count(1)
    page.reload()
    expect(rows).to_have_count(1)


def test_a_limit_is_changed_and_the_order_is_lifted(shown: Open, full: FakeHub) -> None:
    page = shown("limits")
    rows = page.locator("tbody tr:not(.ghost)")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("and 2 more")
    expect(rows.last).to_contain_text("ordered by ann; declared: 12")
    rows.first.get_by_role("button", name="Change…").click()
    dialog(page).get_by_label("How many may run at once").fill("many")
    dialog(page).get_by_role("button", name="Change").click()
    expect(dialog(page)).to_contain_text("give a whole number from 1 on")
    dialog(page).get_by_label("How many may run at once").fill("4")
    dialog(page).get_by_role("button", name="Change").click()
    expect(page.locator("#told")).to_contain_text("At most 4 run at once")
    rows.last.get_by_role("button", name="Lift…").click()
    dialog(page).get_by_role("button", name="Lift the order").click()
    expect(page.locator("#told")).to_contain_text("At most 12 run at once")
    assert [done[2:] for done in full.ordered] == [("load", "activity", 4), ("nightly", "instances", None)]


def test_an_empty_hub_says_so(shown: Open, hub: FakeHub) -> None:
    expect(shown("limits").get_by_text("The hub has no limit.")).to_be_visible()
    hub.workers = ()
    expect(shown("quarantine").get_by_text("Nothing is in quarantine.")).to_be_visible()
    expect(shown("workers").get_by_text("No worker is listed.")).to_be_visible()


@pytest.mark.parametrize("tab", ["partitions", "workers", "limits", "quarantine"])
def test_a_hub_that_does_not_answer_is_said_in_place_of_the_first_table_and_beside_a_later_one(
    shown: Open, full: FakeHub, tab: str
) -> None:
    page = shown(tab)
    expect(page.locator("tbody tr:not(.ghost)").first).to_be_visible()
    full.down = Unavailable("the store does not answer")
    page.clock.fast_forward(60_000)
    expect(page.locator("header")).to_contain_text("no answer for")
    expect(page.locator("tbody tr:not(.ghost)").first).to_be_visible()
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("The hub does not answer")
    expect(page.locator("table")).to_have_count(0)
