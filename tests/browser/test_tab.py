"""The tab of a task, with answers of Airflow and of the page's application made here: no Airflow runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.conftest import PATIENCE

PLACE = "http://airflow.test"
TAB = f"{PLACE}/taskhub/page/instance?dag_id=d&run_id=r&task_id=t&map_index=-1"
LINK = "/plugin/taskhub/taskhub/page/instance?dag_id=d&run_id=r&task_id=t&map_index=-1&conn=other"
Answers = Mapping[str, tuple[int, object]]
Open = Callable[[Answers], Page]


@pytest.fixture
def tab(browser: Browser) -> Iterator[Open]:
    """Open the tab of a task. Answers are by the last part of the path; what has none is 404."""
    context = browser.new_context(locale="en-GB")

    def open_tab(answers: Answers) -> Page:
        def answer(route: Route) -> None:
            parts = urlsplit(route.request.url)
            name = parts.path.rsplit("/", 1)[-1]
            if parts.path == "/taskhub/page/instance":
                text = _file("page.html").decode().replace("{{base}}", "").replace("{{page}}", "instance")
                route.fulfill(body=text, content_type="text/html")
            elif "/assets/" in parts.path:
                route.fulfill(body=_file(name), content_type={"css": "text/css"}.get(name[-3:], "text/javascript"))
            elif name == "instance" and parse_qs(parts.query).get("conn") == ["other"]:
                route.fulfill(status=404, json={"detail": "this page does not show connection 'other': add it"})
            else:
                status, body = answers.get(name, (404, {"detail": f"nothing for {name}"}))
                route.fulfill(status=status, body=json.dumps(body), content_type="application/json")

        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.route("**", answer)
        page.goto(TAB)
        return page

    yield open_tab
    context.close()


def _file(name: str) -> bytes:
    return (resources.files("airflow_provider_taskhub.plugins") / "page" / name).read_bytes()


@pytest.mark.parametrize("code", [200, 409, 503])
def test_the_tab_of_a_task_in_a_hub_that_is_not_shown_says_so(tab: Open, code: int) -> None:
    """It said that there was no such instance, since it asked the first hub of the page."""
    found = {"instances": []} if code == 200 else {"detail": "connection 'ghost' does not exist"}
    answers = {"task": (code, found), "instance_id": (200, {"value": "d:t:r:g1"})}
    page = tab(answers | {"links": (200, {"extra_links": {"TaskHub instance": LINK}})})
    expect(page.locator("#main")).to_contain_text("this page does not show connection 'other'")


@pytest.mark.parametrize("code", [409, 503])
def test_a_broken_connection_does_not_break_the_tab_of_a_task_without_an_instance(tab: Open, code: int) -> None:
    page = tab({"task": (code, {"detail": "connection 'ghost' does not exist"})})
    main = page.locator("#main")
    expect(main).to_contain_text("No instance yet.")
    expect(main).to_contain_text("A hub of this page cannot be asked: connection 'ghost' does not exist")


def test_a_user_without_the_right_to_the_dag_is_told_so(tab: Open) -> None:
    page = tab({"task": (403, {"detail": "you may not read DAG 'd'"})})
    expect(page.locator("#main")).to_contain_text("you may not read DAG 'd'")
