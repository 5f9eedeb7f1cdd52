"""The page without a mouse, in a real browser with a fake hub: its tasks, the focus, and what stays open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from airflow_provider_taskhub.engine.events import FailureDetails, Status
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.lineage import Lineage
from tests.airflow.conftest import hub
from tests.airflow.fake import NOW, FakeHub, record
from tests.airflow.test_page_actions import TAGS, audit_log, entries
from tests.airflow.test_page_actions import page as app
from tests.airflow.test_page_compare import at, called, completed
from tests.airflow.test_page_parts import started
from tests.airflow.test_page_tabs import full
from tests.browser.test_actions import Open, dialog, shown

__all__ = ["app", "audit_log", "entries", "full", "hub", "shown"]  # the fixtures

FOCUS = """() => {
    const one = document.activeElement, style = getComputedStyle(one);
    const name = one.getAttribute("aria-label") ?? one.textContent.trim();
    return [one === document.body ? "" : name, style.outlineStyle !== "none" && style.outlineWidth !== "0px"];
}"""
"""The name of the focused element, "" if there is none; and whether a person can see that it has the focus."""


def focused(page: Page) -> str:
    name, visible = page.evaluate(FOCUS)
    assert visible or not name, f"{name!r} has the focus, and nothing shows it"
    return str(name)


def tab_to(page: Page, name: str) -> list[str]:
    """Press Tab until the focus is at an element whose name begins so; the names on the way."""
    passed = []
    for _ in range(60):
        page.keyboard.press("Tab")
        passed.append(focused(page))
        if passed[-1].startswith(name):
            return passed
    raise AssertionError(f"Tab does not reach {name!r}: {passed}")


def load_again(page: Page) -> None:
    """Let the page load its data twice: when it asks for the second time, it has shown the first answer."""
    for _ in range(2):
        with page.expect_response(lambda answer: "/api/instance?" in answer.url):
            page.clock.run_for(3_000)


@pytest.fixture
def worked(hub: FakeHub) -> FakeHub:
    """A running instance with a lost and a running attempt of one activity, and a failed one."""
    hub.put("mine", Status.RUNNING, tags=TAGS, created=NOW, input='{"month": 5}')
    hub.histories["mine"] = [started(), called(0, "load"), called(1, "other"), completed(1, 2)]
    data = Lineage(inlets=("s3://lake/flights",), outlets=("s3://lake/delays",))
    hub.records["mine"] = (
        record(RecordState.LOST, name="load", ended=at(3)),
        record(RecordState.RUNNING, name="load", attempt=2, claimed=at(4), log="a log", message="loading"),
        record(RecordState.COMPLETED, name="other", task_id=1, ended=at(2), result="7", lineage=data),
    )
    hub.logs["a log"] = "\n".join(f"line {number}" for number in range(200))
    hub.put("failed", Status.FAILED, tags=TAGS, created=NOW, failure=FailureDetails(
        error_type="ValueError", error_message="no flights", stack_trace="\n".join(f"frame {n}" for n in range(200))
    ))  # fmt: skip
    return hub


def test_the_list_is_filtered_and_an_instance_opened(shown: Open, worked: FakeHub) -> None:
    page = shown("instances?window=all")
    rows = page.locator("tbody tr:not(.ghost)")
    expect(rows).to_have_count(2)
    tab_to(page, "Failed")
    page.keyboard.press("Space")
    expect(rows).to_have_count(1)
    expect(page.get_by_role("button", name="Failed")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    assert focused(page).startswith("All")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(2)
    tab_to(page, "Filter by id")
    page.keyboard.type("mine")
    page.clock.run_for(1_000)
    expect(rows).to_have_count(1)
    expect(page.get_by_role("searchbox")).to_be_focused()
    tab_to(page, "mine")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("mine")


def test_the_tabs_are_switched(shown: Open, full: FakeHub) -> None:
    page = shown("instances")
    expect(page.locator("main")).not_to_contain_text("Loading")
    for name in ("Partitions", "Workers", "Quarantine", "Instances"):
        tab_to(page, name)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()


def test_the_focus_goes_through_an_instance_from_top_to_bottom(shown: Open, worked: FakeHub) -> None:
    page = shown("instance?id=mine")
    expect(page.locator("svg .pick")).to_have_count(3)
    passed = tab_to(page, "tags")
    assert passed[:10] == [
        "Instances", "Partitions", "Workers", "Limits", "Quarantine",
        "Instances", "Compare…", "Raise event…", "Suspend…", "Terminate…",
    ]  # fmt: skip
    bars = [name.split(":")[0] for name in passed if ": " in name]
    assert bars == ["load(1), attempt 1", "load(1), attempt 2", "other(1), attempt 1"]
    assert passed.index("History") > passed.index("Terminate…")


def test_a_bar_opens_its_details_and_their_close_leads_back(shown: Open, worked: FakeHub) -> None:
    page = shown("instance?id=mine")
    expect(page.locator("svg .pick")).to_have_count(3)
    tab_to(page, "load(1), attempt 2")
    page.keyboard.press("Enter")
    detail = page.locator("#detail")
    expect(detail).to_contain_text("line 199")
    assert focused(page).startswith("load(1), attempt 2")
    tab_to(page, "close")
    load_again(page)
    assert focused(page) == "close"
    tab_to(page, "lost on")
    page.keyboard.press("Space")
    expect(detail.locator("h2")).to_contain_text("attempt 1")
    tab_to(page, "close")
    page.keyboard.press("Enter")
    expect(detail.locator("h2")).to_have_text("Input and output")
    assert focused(page).startswith("load(1), attempt 1")


def test_the_data_stands_on_the_page_and_in_the_details(shown: Open, worked: FakeHub) -> None:
    page = shown("instance?id=mine")
    expect(page.locator("#data")).to_have_text("Datareads3://lake/flightswrittens3://lake/delays")
    tab_to(page, "other")
    page.keyboard.press("Enter")
    expect(page.locator("#detail")).to_contain_text("writtens3://lake/delays")
    page = shown("instance?id=failed")
    expect(page.locator(".note.bad").first).to_contain_text("no flights")
    expect(page.locator("#data")).to_be_empty()


def test_an_order_is_given_and_escape_gives_none(shown: Open, worked: FakeHub) -> None:
    page = shown("instance?id=mine")
    expect(page.locator("svg .pick")).to_have_count(3)
    tab_to(page, "Terminate…")
    page.keyboard.press("Enter")
    expect(dialog(page).get_by_label("Reason")).to_be_focused()
    load_again(page)  # the button behind the dialog is another one now
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    assert (focused(page), worked.ordered) == ("Terminate…", [])
    page.keyboard.press("Space")
    page.keyboard.type("wrong year")
    assert [tab_to(page, "Cancel"), tab_to(page, "Terminate")] == [["Cancel"], ["Terminate"]]
    page.keyboard.press("Enter")
    expect(page.locator("#told")).to_contain_text("The hub has the order.")
    assert worked.ordered == [("terminate", "mine", "from Airflow: op on TaskHub's page: wrong year", True)]


def scrolls(page: Page, element: str) -> Callable[[], int]:
    """Scroll an element down; a function that returns where it is."""
    where = page.locator(element)
    where.evaluate("one => { one.scrollTop = 100; }")
    return lambda: int(where.evaluate("one => one.scrollTop"))


def test_what_is_open_scrolled_or_marked_stays_while_the_page_is_loaded_again(shown: Open, worked: FakeHub) -> None:
    """A stack trace closed after two seconds, and a log jumped to its top."""
    page = shown("instance?id=failed")
    tab_to(page, "stack trace")
    page.keyboard.press("Enter")
    expect(page.locator(".note pre")).to_be_visible()
    at_trace = scrolls(page, ".note pre")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('.note b'))")
    load_again(page)
    expect(page.locator(".note pre")).to_be_visible()
    assert (focused(page), at_trace()) == ("stack trace", 100)
    assert page.evaluate("getSelection().toString()") == "ValueError: no flights"
    page = shown("instance?id=mine")
    page.locator("svg .pick").nth(1).press("Enter")
    expect(page.locator("#detail")).to_contain_text("line 199")
    at_log = scrolls(page, "#detail pre >> nth=-1")
    tab_to(page, "tags")
    page.keyboard.press("Space")
    first, second, third = worked.records["mine"]
    worked.records["mine"] = (first, replace(second, message="writing"), third)
    load_again(page)
    expect(page.locator("#detail")).to_contain_text("running · writing")
    assert (focused(page)[:4], at_log()) == ("tags", 100)
    expect(page.locator("#more dl")).to_be_visible()
