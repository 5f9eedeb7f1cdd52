"""The filters of the list, in a real browser with a fake hub: no Airflow runs."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import FailureDetails, Status
from airflow_provider_taskhub.plugins import index
from airflow_provider_taskhub.plugins.index import InstanceIndex
from tests.airflow.conftest import hub
from tests.airflow.fake import NOW, FakeHub
from tests.airflow.test_instance_index import _only_first_page
from tests.airflow.test_page_actions import audit_log, entries
from tests.airflow.test_page_actions import page as app
from tests.browser.test_actions import Open, shown

__all__ = ["app", "audit_log", "entries", "hub", "shown"]  # the fixtures


@pytest.fixture
def many(hub: FakeHub) -> FakeHub:
    flights = {"airflow.dag_id": "flights"}
    failure = FailureDetails(error_type="E", error_message="41 rows rejected")
    later = NOW + timedelta(seconds=1)
    hub.put("f1", Status.FAILED, tags=flights, created=later, name="load", failure=failure)
    hub.put("f2", Status.FAILED, tags={"airflow.dag_id": "other"}, created=NOW, name="load")
    hub.put("c1", Status.COMPLETED, tags=flights | {"team": "x"}, created=NOW)
    hub.put("old", Status.COMPLETED, tags=flights, created=NOW + timedelta(days=-400))
    return hub


def ids(page: Page) -> Locator:
    return page.locator("tbody td.id a.mono")


def in_address(page: Page) -> dict[str, str]:
    return {name: value for name, (value,) in parse_qs(urlsplit(page.url).query).items()}


def test_filters_are_in_the_address_and_come_back_with_it(shown: Open, many: FakeHub) -> None:
    page = shown("instances?window=all")
    expect(ids(page)).to_have_count(4)
    more = page.get_by_role("button", name="More filters")
    more.press("Enter")
    expect(more).to_have_attribute("aria-expanded", "true")
    page.get_by_role("combobox", name="DAG").fill("flights")
    expect(ids(page)).to_have_count(3)
    page.get_by_role("searchbox", name="Tag", exact=True).fill("team=x")
    expect(ids(page)).to_have_text(["c1"])
    page.get_by_role("searchbox", name="Tag", exact=True).fill("")
    page.get_by_role("searchbox", name="Text in the error").fill("REJECTED")
    page.get_by_role("button", name="Failed").press("Enter")
    expect(ids(page)).to_have_text(["f1"])
    expect(more.locator("b")).to_have_text("2")
    kept = {"window": "all", "dag": "flights", "error": "REJECTED", "status": "Failed"}
    assert in_address(page) == kept
    page.reload()
    expect(ids(page)).to_have_text(["f1"])
    expect(page.get_by_role("searchbox", name="Text in the error")).to_have_value("REJECTED")
    expect(page.get_by_role("combobox", name="DAG")).to_have_value("flights")
    ids(page).click()
    page.wait_for_url("**/instance?**")
    page.go_back()
    expect(ids(page)).to_have_text(["f1"])
    assert in_address(page) == kept
    page.get_by_role("button", name="Clear").press("Enter")
    expect(ids(page)).to_have_text(["f1", "f2"])
    assert in_address(page) == {"window": "all", "status": "Failed"}


def test_children_can_be_left_out_and_are_counted(shown: Open, many: FakeHub) -> None:
    many.put("child", Status.COMPLETED, tags={"airflow.dag_id": "flights"}, created=NOW, parent="f1", root="f1")
    page = shown("instances?window=all")
    expect(ids(page)).to_have_count(5)
    page.get_by_role("button", name="More filters").click()
    page.get_by_label("Without a parent").check()
    expect(ids(page)).to_have_count(4)
    expect(page.locator(".foot")).to_contain_text("1–4 of 4. Not shown: 1 with a parent.")
    assert in_address(page) == {"window": "all", "roots": "true"}
    page.reload()
    expect(page.get_by_label("Without a parent")).to_be_checked()
    expect(page.get_by_role("button", name="More filters").locator("b")).to_have_text("1")
    page.get_by_role("button", name="Clear").click()
    expect(ids(page)).to_have_count(5)


def test_two_fields_that_are_filled_quickly_both_count(shown: Open, many: FakeHub) -> None:
    page = shown("instances?window=all")
    page.get_by_role("button", name="More filters").click()
    page.get_by_role("combobox", name="DAG").fill("flights")
    page.get_by_role("combobox", name="Orchestrator").fill("load")
    expect(ids(page)).to_have_text(["f1"])


def test_the_page_offers_dags_and_orchestrators(shown: Open, many: FakeHub) -> None:
    page = shown("instances?window=all")
    page.get_by_role("button", name="More filters").click()
    expect(page.locator("#offers-dag option")).to_have_count(2)
    for name, expected in (("dag", ["flights", "other"]), ("name", ["flights_delays", "load"])):
        found = page.locator(f"#offers-{name} option").evaluate_all("all => all.map((one) => one.value)")
        assert found == expected


def test_the_list_between_two_times(shown: Open, many: FakeHub) -> None:
    page = shown("instances")
    begin, end = page.get_by_label("Started from"), page.get_by_label("Started until")
    expect(begin).to_be_hidden()
    page.get_by_label("Started", exact=True).select_option("between…")
    begin.fill("2025-01-01T00:00")
    end.fill("2026-01-01T00:00")
    expect(ids(page)).to_have_text(["old"])
    kept = in_address(page)
    assert (kept["window"], set(kept)) == ("between", {"window", "from", "to"})
    assert Timestamp.parse(kept["from"]) < many.instances["old"].created < Timestamp.parse(kept["to"])  # type: ignore[operator]
    page.reload()
    expect(ids(page)).to_have_text(["old"])
    expect(begin).to_have_value("2025-01-01T00:00")
    page.get_by_label("Started", exact=True).select_option("all time")
    expect(ids(page)).to_have_count(4)
    assert in_address(page) == {"window": "all"}


def test_a_hub_that_is_still_read_says_so_and_shows_what_is_there(
    shown: Open, many: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = InstanceIndex._fill
    monkeypatch.setattr(InstanceIndex, "_fill", _only_first_page)
    page = shown("instances?window=all")
    expect(page.locator(".note")).to_contain_text("2 instances read so far")
    expect(ids(page)).to_have_count(2)
    page.get_by_role("searchbox").fill("old")
    expect(ids(page)).to_have_text(["old"])
    page.get_by_role("searchbox").fill("none")
    expect(page.get_by_text("The hub is still being read.")).to_be_visible()
    monkeypatch.setattr(InstanceIndex, "_fill", real)
    page.get_by_role("searchbox").fill("")
    page.clock.run_for(5_000)
    expect(ids(page)).to_have_count(4)
    expect(page.locator(".note")).to_have_count(0)


def test_a_hub_with_too_many_instances_says_so(shown: Open, many: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST", 2)
    page = shown("instances?window=all")
    expect(page.locator(".note")).to_contain_text("This hub has more than")
    expect(ids(page)).to_have_count(2)
    page.get_by_role("searchbox").fill("old")
    expect(ids(page)).to_have_text(["old"])


def test_a_column_orders_the_list_by_its_keyboard_button(shown: Open, many: FakeHub) -> None:
    page = shown("instances?window=all")
    expect(ids(page)).to_have_text(["f1", "f2", "c1", "old"])
    head = page.get_by_role("columnheader", name="Instance and its Airflow run")
    head.get_by_role("button").press("Enter")
    expect(ids(page)).to_have_text(["c1", "f1", "f2", "old"])
    expect(head).to_have_attribute("aria-sort", "ascending")
    head.get_by_role("button").press("Enter")
    expect(ids(page)).to_have_text(["old", "f2", "f1", "c1"])
    assert in_address(page)["sort"] == "-id"
    page.reload()
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(ids(page)).to_have_text(["old", "f2", "f1", "c1"])
    status = page.get_by_role("columnheader", name="Status").get_by_role("button")
    for sort, found in (("status", ["f1", "f2", "c1", "old"]), ("-status", ["c1", "old", "f1", "f2"])):
        status.press("Enter")
        expect(ids(page)).to_have_text(found)
        assert in_address(page)["sort"] == sort
    status.press("Enter")
    expect(ids(page)).to_have_text(["f1", "f2", "c1", "old"])
    assert "sort" not in in_address(page)
    page.get_by_role("columnheader", name="Started").get_by_role("button").click()
    expect(page.get_by_role("columnheader", name="Started")).to_have_attribute("aria-sort", "descending")
    expect(ids(page).first).to_have_text("f1")
    expect(ids(page).last).to_have_text("old")
