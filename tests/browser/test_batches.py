"""Orders to all instances that match the filter, in a real browser with a fake hub: no Airflow runs."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route, expect

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.plugins import batches
from tests.airflow.conftest import hub
from tests.airflow.fake import NOW, FakeHub
from tests.airflow.test_page_actions import TAGS, audit_log, entries
from tests.airflow.test_page_actions import page as app
from tests.browser.test_actions import PLACE, Open, dialog, shown

__all__ = ["app", "audit_log", "entries", "hub", "shown"]  # the fixtures

LIST = "instances?window=all"


def asked(page: Page, order: str) -> None:
    """Open the dialog and choose an order, with the keyboard only."""
    page.get_by_role("button", name="Change what matches…").press("Enter")
    page.get_by_label("Order", exact=True).select_option(order)
    expect(dialog(page)).not_to_contain_text("Looking for")


@pytest.fixture
def many(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """Seven instances that run, in batches of three, and one that has ended."""
    monkeypatch.setattr(batches, "MOST_ORDERS", 3)
    monkeypatch.setattr(batches, "MOST_TARGETS", 2)
    for number in range(7):
        hub.put(f"i{number}", Status.RUNNING, tags=TAGS, created=NOW)
    hub.put("over", Status.COMPLETED, tags=TAGS, created=NOW)
    return hub


def test_an_order_to_all_that_match_says_how_many_and_reports(shown: Open, many: FakeHub) -> None:
    page = shown(LIST)
    asked(page, "terminate")
    expect(dialog(page)).to_contain_text("7 instances of 8 that match the filter. The other 1 stay as they are")
    expect(dialog(page).get_by_role("listitem")).to_have_text([f"i{number} (Running)" for number in range(7)])
    many.put("i3", Status.COMPLETED, tags=TAGS, created=NOW)
    many.put("i4", Status.RUNNING, tags=TAGS, created=NOW, execution_id="another")
    page.get_by_label("Reason").fill("wrong year")
    page.get_by_label("Reason").press("Enter")
    expect(page.locator("#batch")).to_contain_text("Terminate: 7 of 7 instances handled, 5 terminated, 2 refused")
    assert sorted(order[1] for order in many.ordered if order[1] != "i3") == ["i0", "i1", "i2", "i5", "i6"]
    assert many.ordered.count(("terminate", "i0", "from Airflow: op on TaskHub's page: wrong year", True)) == 1
    expect(page.get_by_role("button", name="close")).to_be_focused()
    page.locator("#batch summary").press("Enter")
    expect(page.locator("#batch li")).to_contain_text(
        [
            "i3: instance 'i3' is Completed: there is nothing to terminate",
            "i4: instance 'i4' was started again meanwhile",
        ]
    )
    page.get_by_role("button", name="close").press("Enter")
    expect(page.locator("#batch")).to_have_count(0)
    expect(page.get_by_role("button", name="Change what matches…")).to_be_focused()


def test_nothing_happens_before_the_user_confirms(shown: Open, many: FakeHub) -> None:
    page = shown(f"{LIST}&text=over")
    asked(page, "suspend")
    expect(dialog(page)).to_contain_text("0 instances of 1 that match the filter")
    expect(dialog(page).get_by_role("button", name="Suspend")).to_be_disabled()
    page.get_by_label("Order", exact=True).select_option("purge")
    expect(dialog(page).get_by_role("button", name="Purge 1 instance")).to_be_enabled()
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    assert many.ordered == []


def test_what_was_interrupted_goes_on_after_a_reload(shown: Open, many: FakeHub) -> None:
    page = shown(LIST)
    sent: list[Route] = []

    def cut(route: Route) -> None:
        """The second batch and all later ones find no server."""
        sent.append(route)
        if len(sent) == 1:
            route.fallback()
        else:
            route.abort()

    page.route(f"{PLACE}/taskhub/api/instances/suspend", cut)
    asked(page, "suspend")
    dialog(page).get_by_role("button", name="Suspend 7 instances").press("Enter")
    expect(page.locator("#batch")).to_contain_text("3 of 7 instances handled, 3 suspended, 0 refused. It stopped")
    page.unroute(f"{PLACE}/taskhub/api/instances/suspend")
    page.reload()
    expect(page.locator("#batch")).to_contain_text("3 of 7 instances handled")
    page.get_by_role("button", name="Go on with 4 instances").press("Enter")
    expect(page.locator("#batch")).to_contain_text("7 of 7 instances handled, 7 suspended, 0 refused")
    assert sorted(order[1] for order in many.ordered) == [f"i{number}" for number in range(7)]
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(8)
    expect(page.locator("#batch")).to_have_count(0)


def test_the_stop_button_ends_after_the_batch_that_is_under_way(shown: Open, many: FakeHub) -> None:
    page = shown(LIST)
    asked(page, "suspend")
    page.evaluate(
        """() => { const real = window.fetch; window.fetch = async (...args) => {
            if (String(args[0]).includes("/instances/suspend")) document.querySelector("[data-key=stop]").click();
            return real(...args); }; }"""
    )
    dialog(page).get_by_role("button", name="Suspend 7 instances").press("Enter")
    expect(page.locator("#batch")).to_contain_text("3 of 7 instances handled, 3 suspended, 0 refused. It stopped.")
    assert len(many.ordered) == 3
    page.get_by_role("button", name="Forget the rest").press("Enter")
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(8)
    expect(page.locator("#batch")).to_have_count(0)


def test_each_refusal_is_listed(shown: Open, many: FakeHub) -> None:
    page = shown(f"{LIST}&text=i1")
    asked(page, "resume")
    expect(dialog(page)).to_contain_text("0 instances of 1")
    page.get_by_label("Order", exact=True).select_option("suspend")
    many.refuses = Unavailable("no answer", maybe_done=True)
    dialog(page).get_by_role("button", name="Suspend 1 instance").press("Enter")
    expect(page.locator("#batch")).to_contain_text("1 of 1 instance handled, 0 suspended, 1 refused")
    page.locator("#batch summary").click()
    expect(page.locator("#batch li")).to_contain_text(["perhaps the order was carried out"])


def test_a_viewer_has_no_button_for_orders(shown: Open, many: FakeHub) -> None:
    page = shown(LIST, "viewer")
    expect(page.locator("tbody tr")).to_have_count(8)
    expect(page.get_by_role("button", name="Change what")).to_have_count(0)
