"""Two runs side by side, in a real browser with a fake hub: no Airflow runs."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from airflow_provider_taskhub.engine.events import FailureDetails, Status
from tests.airflow.conftest import hub
from tests.airflow.fake import NOW, FakeHub
from tests.airflow.test_page_actions import TAGS, audit_log, entries
from tests.airflow.test_page_actions import page as app
from tests.airflow.test_page_compare import at, called, completed, failed
from tests.browser.test_actions import Open, dialog, shown

__all__ = ["app", "audit_log", "entries", "hub", "shown"]  # the fixtures


@pytest.fixture
def runs(hub: FakeHub) -> FakeHub:
    """A run that failed, and one that completed after a retry."""
    hub.put("monday", Status.FAILED, tags=TAGS, created=NOW, completed=at(9), input='{"day":1,"year":2013}',
            failure=FailureDetails(error_type="ValueError", error_message="no data"))  # fmt: skip
    hub.put("tuesday", Status.COMPLETED, tags=TAGS, created=at(90), completed=at(120), input='{"day":2,"year":2013}',
            output='"done"')  # fmt: skip
    hub.put("other", Status.COMPLETED, tags=TAGS, created=NOW, name="load_weather")
    hub.histories["monday"] = [called(0, "check"), completed(0, 1), called(1, "load", 1), failed(1, 9)]
    hub.histories["tuesday"] = [called(0, "check", 90), completed(0, 91), called(1, "load", 91), failed(1, 99),
                                called(2, "load", 99), completed(2, 110), called(3, "report", 110),
                                completed(3, 120)]  # fmt: skip
    return hub


def test_a_run_is_compared_with_one_of_the_same_orchestrator(shown: Open, runs: FakeHub) -> None:
    page = shown("instance?id=monday")
    page.get_by_role("button", name="Compare…").press("Enter")
    field = dialog(page).get_by_label("Instance id of the other run")
    expect(field).to_be_focused()
    expect(page.locator("datalist option")).to_have_count(1)
    assert page.locator("datalist option").get_attribute("value") == "tuesday"
    field.fill("other")
    field.press("Enter")
    expect(dialog(page).locator(".refused")).to_contain_text("only runs of the same orchestrator can be compared")
    field.fill("tuesday")
    field.press("Enter")
    page.wait_for_url("**/instance?id=monday&compare=tuesday&conn=taskhub_default")
    expect(page.locator("h1")).to_have_text("Two runs of flights_delays")
    facts = page.locator("table").first
    expect(facts.get_by_role("row", name="Status")).to_contain_text("FailedCompleted")
    expect(facts.get_by_role("row", name="Duration")).to_contain_text("+21 s")
    expect(facts.get_by_role("row", name="Error")).to_contain_text("ValueError: no data")
    expect(page.get_by_role("row", name="day 1")).to_have_text("day12")
    calls = page.locator("table").last.locator("tbody tr")
    expect(calls).to_contain_text(["check", "load", "report"])
    expect(calls.nth(1)).to_contain_text("completed after 2 tries")
    expect(calls.nth(1)).to_contain_text("+11 s")
    expect(calls.nth(2)).to_contain_text("not called")
    page.get_by_label("only the 2 of 3 that differ").press("Space")
    expect(calls).to_have_count(2)
    expect(page.get_by_label("only the 2 of 3 that differ")).to_be_focused()
    page.get_by_role("button", name="Swap").press("Enter")
    expect(page.locator("thead a").first).to_have_text("tuesday")
    page.locator("thead a").last.press("Enter")
    expect(page.locator("h1")).to_have_text("monday")


def test_a_comparison_that_cannot_be_shown_says_why(shown: Open, runs: FakeHub) -> None:
    page = shown("instance?id=monday&compare=nobodys")
    expect(page.get_by_role("alert")).to_contain_text("there is no instance 'nobodys', or you may not see it")
    page = shown("instance?id=monday&compare=other")
    expect(page.get_by_role("alert")).to_contain_text("only runs of the same orchestrator can be compared")


def test_a_run_that_goes_on_is_loaded_again(shown: Open, runs: FakeHub) -> None:
    runs.put("tuesday", Status.RUNNING, tags=TAGS, created=at(90))
    page = shown("instance?id=monday&compare=tuesday")
    expect(page.locator("table").first).to_contain_text("Running")
    runs.put("tuesday", Status.COMPLETED, tags=TAGS, created=at(90), completed=at(99), output="1")
    page.clock.run_for(5_000)
    expect(page.locator("table").first).to_contain_text("Completed")
