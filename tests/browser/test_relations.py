"""Parent, children, earlier events and awaited events on the page of an instance, in a real browser with a fake hub."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from airflow_provider_taskhub.engine import events
from airflow_provider_taskhub.engine.events import OrchestrationInstance, Status
from airflow_provider_taskhub.engine.pending_waits import AwaitedEvent, Awaits
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState
from airflow_provider_taskhub.plugins import instance_parts, json_views
from tests.airflow.conftest import hub
from tests.airflow.fake import NOW, FakeHub
from tests.airflow.test_page_actions import TAGS, audit_log, entries
from tests.airflow.test_page_actions import page as app
from tests.airflow.test_page_compare import at, called, completed
from tests.airflow.test_page_parts import born, started
from tests.browser.test_actions import PLACE, Open, dialog, shown

__all__ = ["app", "audit_log", "entries", "hub", "shown"]  # the fixtures


def rows(page: Page, part: str) -> list[str]:
    return page.locator(f"#{part} tbody tr td:nth-child({1 if part == 'history' else 2})").all_text_contents()


def test_a_child_leads_to_its_parent_and_a_parent_to_its_children(
    shown: Open, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_parts, "MOST_CHILDREN", 2)
    hub.put("mine", Status.RUNNING, tags=TAGS, created=NOW)
    hub.histories["mine"] = [started(), *(born(number) for number in range(5))]
    for number in (0, 1, 2, 4):
        hub.put(f"mine:{number}", Status.RUNNING, tags=TAGS, name="month", created=NOW)
        hub.histories[f"mine:{number}"] = [started(f"mine:{number}", parent="mine")]
    page = shown("instance?id=mine")
    expect(page.locator("#children tbody tr")).to_have_count(2)
    assert rows(page, "children") == ["mine:0", "mine:1"]
    page.locator("#children").get_by_role("button", name="Next").press("Enter")
    expect(page.locator("#children")).to_contain_text("mine:2")
    assert rows(page, "children") == ["mine:2", "mine:3"]
    expect(page.locator("#children")).to_contain_text("not there")
    page.locator("#children").get_by_role("button", name="Previous").click()
    page.locator("#children a", has_text="mine:1").press("Enter")
    expect(page.locator("h1")).to_have_text("mine:1")
    page.locator(".head").get_by_role("link", name="mine", exact=True).press("Enter")
    expect(page.locator("h1")).to_have_text("mine")


def test_an_instance_without_children_has_no_table_of_them(shown: Open, hub: FakeHub) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS, created=NOW)
    hub.histories["mine"] = [started()]
    page = shown("instance?id=mine")
    expect(page.locator("#history tbody tr")).to_have_count(1)
    expect(page.locator("#children")).to_be_empty()
    assert hub.requests["children"] == 0, "the store is not asked without a reason"


def test_earlier_events_are_shown_on_demand_and_stay_while_new_ones_come(
    shown: Open, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_views, "MOST_EVENTS", 3)
    hub.put("mine", Status.RUNNING, tags=TAGS, created=NOW)
    hub.histories["mine"] = [
        started(), *(events.EventRaised(timestamp=NOW, name=f"e{n}", input="1") for n in range(1, 9))
    ]  # fmt: skip
    page = shown("instance?id=mine")
    older = page.get_by_role("button", name="Show earlier events")
    expect(page.locator("#history .foot")).to_contain_text("3 of 9 events")
    older.press("Enter")
    expect(page.locator("#history tbody tr")).to_have_count(6)
    expect(older).to_be_focused()
    hub.histories["mine"] = [
        *hub.histories["mine"], *(events.EventRaised(timestamp=NOW, name=f"e{n}", input="1") for n in range(9, 11))
    ]  # fmt: skip
    page.clock.run_for(5_000)
    expect(page.locator("#history tbody tr")).to_have_count(8)
    assert rows(page, "history") == [str(n) for n in range(10, 2, -1)]
    older.press("Enter")
    expect(page.locator("#history tbody tr")).to_have_count(11)
    expect(older).to_have_count(0)
    page.get_by_role("button", name="payload of event 1", exact=True).press("Enter")
    expect(page.locator("#history tr.payload")).to_have_count(1)
    expect(page.get_by_role("button", name="payload of event 1", exact=True)).to_be_focused()


def test_an_awaited_event_can_be_raised_where_it_stands(shown: Open, hub: FakeHub) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS, created=NOW)
    hub.awaits["mine"] = Awaits(events=(AwaitedEvent(name="approve", since=NOW),))
    page = shown("instance?id=mine")
    page.get_by_role("button", name="Raise approve…").press("Enter")
    expect(dialog(page).get_by_label("Name of the event")).to_have_value("approve")
    dialog(page).get_by_label("Data").fill('"yes"')
    dialog(page).get_by_role("button", name="Send the event").press("Enter")
    expect(page.locator("#told")).to_contain_text("The event is sent.")
    assert hub.ordered == [("raise_event", "mine", "approve", "yes")]


def test_a_viewer_sees_what_it_waits_for_without_the_button(shown: Open, hub: FakeHub) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS, created=NOW)
    hub.awaits["mine"] = Awaits(events=(AwaitedEvent(name="approve", since=NOW),))
    page = shown("instance?id=mine", "viewer")
    expect(page.locator(".note")).to_contain_text("event 'approve' since 2026-11-21 10:00:00 UTC")
    expect(page.get_by_role("button", name="Raise")).to_have_count(0)


def test_a_fault_leads_to_the_tab_that_shows_more(shown: Open, hub: FakeHub) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS, created=NOW, name="unknown")
    page = shown("instance?id=mine")
    expect(page.locator(".note.bad")).to_contain_text("no live worker knows orchestrator 'unknown'")
    page.locator(".note.bad").get_by_role("link", name="Workers").press("Enter")
    expect(page.get_by_role("heading", name="Workers")).to_be_visible()


def test_the_page_of_an_instance_belongs_to_the_tab_of_instances(shown: Open, hub: FakeHub) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS, created=NOW)
    page = shown("instance?id=mine")
    expect(page.get_by_role("navigation").get_by_role("link", name="Instances")).to_have_attribute(
        "aria-current", "true"
    )


def test_texts_of_events_in_the_timeline_do_not_cover_each_other(shown: Open, hub: FakeHub) -> None:
    hub.put("mine", Status.COMPLETED, tags=TAGS, created=NOW, completed=at(100))
    ticks = [events.EventRaised(timestamp=at(0.01 * n), name=f"tick{n}", input="1") for n in range(50)]
    hub.histories["mine"] = [started(), called(0, "load"), *ticks, completed(0, 100)]
    hub.histories["mine"].append(events.EventRaised(timestamp=at(60), name="approve", input="1"))
    page = shown("instance?id=mine")
    expect(page.locator("svg text", has_text="event ")).to_have_text(["event tick0", "event approve"])
    expect(page.locator("svg line title")).to_have_count(51)


def test_a_lost_attempt_waits_for_a_slot_and_the_wait_of_a_failed_activity_is_not_red(
    shown: Open, hub: FakeHub
) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS, created=NOW)
    failed = events.TaskFailed(timestamp=at(46), task_scheduled_id=1, reason="broken")
    hub.histories["mine"] = [started(), called(0, "nap"), called(1, "tariff"), failed]
    lost = ActivityRecord(
        instance=OrchestrationInstance(instance_id="mine", execution_id="e"),
        task_id=0,
        action_id="a",
        attempt=1,
        name="nap",
        state=RecordState.LOST,
        worker="a@host/1",
        executor="1",
        claimed=at(1),
        ended=at(20),
    )
    hub.records["mine"] = (lost,)
    page = shown("instance?id=mine")
    expect(page.locator("svg text", has_text="waits for a free slot")).to_have_count(1)
    bars = page.locator("svg rect.pick")
    expect(bars).to_have_count(2)
    expect(bars.nth(0)).to_have_attribute("fill", "url(#lost)")
    expect(bars.nth(1)).to_have_attribute("fill", "var(--idle)")
    expect(page.locator('svg rect[fill="var(--bad)"]')).to_have_count(1)


@pytest.mark.parametrize(("theme", "ground"), [("dark", "rgb(1, 2, 3)"), ("light", "rgb(250, 250, 251)")])
def test_the_frame_has_the_background_of_airflows_window(shown: Open, hub: FakeHub, theme: str, ground: str) -> None:
    page = shown("workers")
    outer = f'<html class="{theme}" style="background: {ground}"><iframe src="/taskhub/page/workers"></iframe></html>'
    page.route(f"{PLACE}/outer", lambda route: route.fulfill(body=outer, content_type="text/html"))
    page.goto(f"{PLACE}/outer")
    expect(page.frame_locator("iframe").locator("body")).to_have_css("background-color", ground)
