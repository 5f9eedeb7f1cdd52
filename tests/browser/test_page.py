"""What a person sees of the hub inside Airflow, and what a person may not see."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import FrameLocator, Page, Response, expect

from tests.airflow.real import ROOT, Process, RealAirflow
from tests.waiting import until

Login = Callable[..., Page]
SECRET = "secret:hub:r:g1"
"""An instance of the DAG that only the team ops may read."""


@dataclass(frozen=True)
class Runs:
    """What was run before the first test. :param survivor: an instance whose first worker was killed."""

    sums: str
    mapped: str
    fails: str
    by_hand: str
    survivor: str


@pytest.fixture(scope="session")
def runs(real: RealAirflow) -> Runs:
    started = {dag: real.trigger(dag) for dag in ("sums", "mapped", "fails")}
    start = ("instances", "start", "sums", "--input", "[7]", "--wait")
    real.taskhub(*start, "--id", "without-airflow")
    tags = ("airflow.dag_id=secret", "airflow.run_id=r", "airflow.task_id=hub", "airflow.map_index=-1")
    real.taskhub(*start, "--id", SECRET, *(part for tag in tags for part in ("--tag", tag)))
    for dag, state in (("sums", "success"), ("fails", "failed")):
        real.reaches(dag, started[dag], state)
    for index in range(5):
        real.reaches("mapped", started["mapped"], "success", index=index)
    command = [*real.processes["worker"].command, "--activities", "2"]
    command[command.index("first")] = "doomed"
    real.processes["worker"].stop()  # so that the other one gets the activity
    doomed = Process("doomed", command, real.env | {"PYTHONPATH": str(ROOT)}, real.home)
    try:
        run = real.trigger("flights_2025")
        survivor = f"flights_2025:delays:{run}:g1"
        until("doomed has done some months", lambda: _states(real, survivor).count("completed") >= 3)
        until("doomed works", lambda: "running" in _states(real, survivor))
    finally:
        doomed.signal(signal.SIGKILL)
        real.processes["worker"].start()
    real.reaches("flights_2025", run, "success", task_id="delays")
    return Runs(**started, by_hand="without-airflow", survivor=survivor)


def _states(real: RealAirflow, instance_id: str) -> list[str]:
    answer = real.request("GET", "/taskhub/api/instance", params={"id": instance_id})
    return [one["state"] for one in answer.json()["activities"]] if answer.status_code == 200 else []


def _working(real: RealAirflow, instance_id: str, worker: str) -> set[str]:
    answer = real.request("GET", "/taskhub/api/instance", params={"id": instance_id})
    if answer.status_code != 200:
        return set()
    return {one["name"] for one in answer.json()["activities"] if one["worker"].startswith(worker)}


def frame(page: Page) -> FrameLocator:
    return page.frame_locator("iframe")


def listed(page: Page) -> FrameLocator:
    """The list, in Airflow's frame, with its rows there."""
    inner = frame(page)
    expect(inner.locator("tbody tr:not(.ghost)").first).to_be_visible()
    return inner


def sums_id(run: str) -> str:
    return f"sums:hub:{run}:g1"


def test_the_list_in_airflows_navigation(login: Login, runs: Runs) -> None:
    page = login("admin", "/plugin/taskhub")
    inner = listed(page)
    row = inner.locator("tr", has_text=sums_id(runs.sums))
    expect(row).to_contain_text("Completed")
    expect(row).to_contain_text("3 done")
    failed = inner.locator("tr", has_text=f"fails:hub:{runs.fails}:g1")
    expect(failed).to_contain_text("41 of 8,760 rows rejected")
    first = inner.locator("tbody tr").first
    expect(first).to_contain_text("Failed")
    expect(inner.locator("#bar .hub")).to_contain_text("hub TaskHub · embedded · updated")
    expect(inner.locator("main")).to_contain_text("without-airflow")


def test_counts_filter_and_search_narrows(login: Login, runs: Runs) -> None:
    inner = listed(login("admin", "/plugin/taskhub"))
    chip = inner.get_by_role("button", name="Failed")
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "true")
    expect(inner.locator("tbody tr", has_text="Completed")).to_have_count(0)
    count = int(chip.locator("b").inner_text())
    expect(inner.locator("tbody tr")).to_have_count(count)
    inner.get_by_role("button", name="All").click()
    inner.get_by_role("searchbox").fill(f"run_id={runs.mapped}")
    expect(inner.locator("tbody tr")).to_have_count(5)
    inner.get_by_role("searchbox").fill("no such thing")
    expect(inner.get_by_text("No instance matches.")).to_be_visible()


def test_filters_are_in_airflows_address_and_come_back_with_it(login: Login, runs: Runs) -> None:
    page = login("admin", "/plugin/taskhub")
    inner, wanted = listed(page), sums_id(runs.sums)

    def reaches(**filter: str) -> None:
        page.wait_for_url(lambda url: parse_qs(urlsplit(url).query) == {key: [value] for key, value in filter.items()})

    inner.get_by_role("searchbox").fill(wanted)
    reaches(text=wanted)
    expect(inner.get_by_role("searchbox")).to_be_focused()  # the frame was not loaded again
    inner.get_by_role("button", name="More filters").click()
    inner.get_by_role("combobox", name="DAG").fill("sums")
    reaches(text=wanted, dag="sums")
    expect(inner.locator("tbody tr")).to_have_count(1)
    page.reload()
    inner = listed(page)
    expect(inner.get_by_role("combobox", name="DAG")).to_have_value("sums")
    expect(inner.locator("tbody tr")).to_have_count(1)
    inner.get_by_role("link", name=wanted).click()
    expect(inner.locator("h1")).to_have_text(wanted)
    page.go_back()
    expect(inner.get_by_role("searchbox", name="Filter by id")).to_have_value(wanted)
    expect(inner.locator("tbody tr")).to_have_count(1)


def test_pages_of_the_list(login: Login, real: RealAirflow, runs: Runs) -> None:
    first = real.get("/taskhub/api/instances", window="all", limit=3)
    second = real.get("/taskhub/api/instances", window="all", limit=3, offset=3)
    ids = [row["id"] for row in first["rows"] + second["rows"]]
    assert len(set(ids)) == 6
    assert first["total"] == sum(first["counts"].values()) >= 9


def test_an_instance_its_timeline_and_log(login: Login, runs: Runs) -> None:
    page = login("admin", "/plugin/taskhub")
    listed(page).get_by_role("link", name=sums_id(runs.sums)).click()
    inner = frame(page)
    expect(inner.locator("h1")).to_have_text(sums_id(runs.sums))
    expect(inner.locator(".facts")).to_contain_text("3 done")
    bars = inner.locator("svg .pick")
    expect(bars).to_have_count(3)
    expect(inner.locator("svg")).to_contain_text("square(2)")
    bars.nth(1).click()
    expect(inner.locator("#detail .pairs")).to_contain_text("square of")
    expect(inner.locator("#detail .pairs")).to_contain_text("first")
    expect(inner.locator(".events")).to_contain_text("ExecutionStarted")
    expect(inner.locator(".events")).to_contain_text("square #")
    page.wait_for_url(f"**/plugin/taskhub/taskhub/page/instance?id={quote(sums_id(runs.sums), safe='')}*")
    page.reload()  # a deep link
    expect(frame(page).locator("h1")).to_have_text(sums_id(runs.sums))


def test_from_the_instance_back_to_the_task(login: Login, runs: Runs) -> None:
    page = login("admin", f"/plugin/taskhub/taskhub/page/instance?id={quote(sums_id(runs.sums), safe='')}")
    frame(page).locator(".facts a").click()
    page.wait_for_url(f"**/dags/sums/runs/{quote(runs.sums, safe='')}/tasks/hub**")
    expect(page.get_by_text("hub").first).to_be_visible()


def test_from_the_task_to_its_instance_by_tab_and_by_link(login: Login, runs: Runs) -> None:
    task = f"/dags/sums/runs/{quote(runs.sums, safe='')}/tasks/hub"
    tab = login("admin", f"{task}/plugin/taskhub-instance")
    expect(frame(tab).locator("h1")).to_have_text(sums_id(runs.sums))
    page = login("admin", f"{task}/details")
    page.get_by_role("link", name="TaskHub instance").click()
    page.wait_for_url("**/plugin/taskhub/**")
    expect(frame(page).locator("h1")).to_have_text(sums_id(runs.sums))


def test_the_tab_of_a_mapped_task(login: Login, runs: Runs) -> None:
    task = f"/dags/mapped/runs/{quote(runs.mapped, safe='')}/tasks/hub/mapped/2"
    page = login("admin", f"{task}/plugin/taskhub-instance")
    expect(frame(page).locator("h1")).to_have_text(f"mapped:hub[2]:{runs.mapped}:g1")


def test_the_tab_of_a_cleared_task_lists_its_instances_by_what_they_are(login: Login, real: RealAirflow) -> None:
    run = real.trigger("sums")
    real.reaches("sums", run, "success")
    real.clear("sums", run)
    until("the task ran again", lambda: real.task("sums", run)["try_number"] == 2)
    real.reaches("sums", run, "success")
    page = login("admin", f"/dags/sums/runs/{quote(run, safe='')}/tasks/hub/plugin/taskhub-instance")
    inner = frame(page)
    expect(inner.locator("h1")).to_have_text(f"sums:hub:{run}:g2")
    choices = ["sums · generation 2 · try 2 · Completed", "sums · generation 1 · try 1 · Completed"]
    expect(inner.locator("select option")).to_have_text(choices)
    inner.locator("select").select_option(index=1)
    expect(inner.locator("h1")).to_have_text(f"sums:hub:{run}:g1")
    expect(inner.locator("select")).to_have_value(f"sums:hub:{run}:g1")


def test_the_tab_of_a_task_whose_author_chose_the_instances_id(login: Login, real: RealAirflow) -> None:
    run = real.trigger("named")
    real.reaches("named", run, "success")
    page = login("admin", f"/dags/named/runs/{quote(run, safe='')}/tasks/hub/plugin/taskhub-instance")
    # the page asks Airflow for the task's XCom first
    expect(frame(page).locator("h1")).to_have_text(f"named-{run}")
    page = login("admin", f"/dags/named/runs/{quote(run, safe='')}/tasks/hub/details")
    page.get_by_role("link", name="TaskHub instance").click()
    expect(frame(page).locator("h1")).to_have_text(f"named-{run}")


def test_the_log_of_a_running_attempt_grows_on_the_page(login: Login, real: RealAirflow, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    real.taskhub("instances", "start", "reads_once", "--id", "grows", "--input", json.dumps(str(pipe)))
    try:
        page = login("admin", "/taskhub/page/instance?id=grows")
        page.locator("svg .pick").click()
        expect(page.locator("#detail .pairs")).to_contain_text("before the pipe")
        expect(page.locator("#detail .pairs")).not_to_contain_text("after the pipe")
    finally:
        pipe.write_text("text")
    expect(page.locator("#detail .pairs")).to_contain_text("after the pipe")


def test_attempts_of_an_earlier_try_stand_apart_with_their_own_logs(
    login: Login, real: RealAirflow, tmp_path: Path
) -> None:
    run = real.trigger("flaky_restarted", marker=str(tmp_path / "marker"))
    real.reaches("flaky_restarted", run, "success")
    page = login("admin", f"/taskhub/page/instance?id={quote(f'flaky_restarted:hub:{run}:g1', safe='')}")
    expect(page.locator("svg .pick")).to_have_count(1)
    expect(page.locator(".facts")).to_contain_text("1 done")
    page.get_by_text("attempts of earlier executions (1)").click()
    page.get_by_role("button", name="show").click()
    expect(page.locator("#detail h2")).to_contain_text("second_time · attempt 1 · earlier execution")
    expect(page.locator("#detail .pairs")).to_contain_text("not the first time")
    expect(page.locator("#detail .pairs")).to_contain_text("this is the first time")
    page.locator("svg .pick").click()
    expect(page.locator("#detail .pairs")).to_contain_text("this is another time")
    expect(page.locator("#detail .pairs")).not_to_contain_text("first time")
    log = "\n".join(real.log("flaky_restarted", run, attempt=attempt) for attempt in (1, 2))
    assert log.count("second_time #0, attempt 1, failed") == 1, "the second try repeats nothing of the first"


def test_without_a_triggerer_the_page_says_that_tasks_stay_deferred(login: Login, real: RealAirflow) -> None:
    run = real.trigger("told")
    real.waits("told", run)
    path = f"/taskhub/page/instance?id={quote(f'told:hub:{run}:g1', safe='')}"
    page = login("admin", path)
    expect(page.locator(".note")).to_contain_text("event 'go' since")
    expect(page.locator("main")).not_to_contain_text("triggerer")
    dead = json.dumps({"triggerer": {"status": "unhealthy", "latest_triggerer_heartbeat": None}})
    page.context.route("**/api/v2/monitor/health", lambda route: route.fulfill(body=dead))
    for shown in (path, "/taskhub/page/instances"):
        page.goto(real.url + shown)
        expect(page.locator(".note").first).to_contain_text("No triggerer of Airflow is alive")
    real.tell(f"told:hub:{run}:g1", 1)
    real.reaches("told", run, "success")


def test_a_wait_for_an_event_has_a_bar_and_stands_in_now(login: Login, real: RealAirflow) -> None:
    assert real.taskhub("instances", "start", "told", "--id", "waits-for-an-event", "--version", "3")
    page = login("admin", "/taskhub/page/instance?id=waits-for-an-event")
    expect(page.locator(".facts")).to_contain_text("told version 3")
    expect(page.locator("svg")).to_contain_text("wait for go")
    expect(page.locator("svg title", has_text="wait for go: waiting")).to_have_count(1)
    expect(page.locator(".note")).to_contain_text("event 'go' since")
    real.tell("waits-for-an-event", 1)
    expect(page.locator("svg title", has_text="wait for go: ended")).to_have_count(1)
    real.taskhub("instances", "terminate", "waits-for-an-event", "--wait")


def test_a_failed_instance_shows_its_error_and_the_failed_log(login: Login, runs: Runs) -> None:
    page = login("admin", f"/taskhub/page/instance?id={quote(f'fails:hub:{runs.fails}:g1', safe='')}")
    expect(page.locator(".note.bad")).to_contain_text("41 of 8,760 rows rejected")
    expect(page.locator(".note.bad")).to_contain_text(re.compile(r"failed at \S*hub_app\.py:\d+, in broken"))
    page.locator("svg .pick").first.click()
    expect(page.locator("#detail .pairs")).to_contain_text("broken line 79")
    expect(page.locator("#detail .pairs")).to_contain_text("ValueError: 41 of 8,760 rows rejected")


def test_cancelled_activities_are_no_failures(login: Login, real: RealAirflow, runs: Runs) -> None:
    assert real.taskhub("instances", "start", "slow", "--input", "300", "--id", "cancelled-by-hand")
    until("rest runs", lambda: "rest" in _working(real, "cancelled-by-hand", "first"))
    real.taskhub("instances", "terminate", "cancelled-by-hand", "--wait")
    page = login("admin", "/taskhub/page/instances?text=cancelled-by-hand")
    row = page.locator("tr", has_text="cancelled-by-hand")
    expect(row).to_contain_text("1 cancelled")
    expect(row).not_to_contain_text("failed")
    expect(row.locator(".bar .bad")).to_have_count(0)
    page = login("admin", "/taskhub/page/instance?id=cancelled-by-hand")
    assert page.locator("svg .pick").get_attribute("fill") == "var(--off)"
    expect(page.locator(".legend")).to_contain_text("cancelled attempt")
    expect(page.locator(".legend")).not_to_contain_text("failed")


def test_an_owner_that_does_not_renew_is_called_silent_until_it_does(login: Login, real: RealAirflow) -> None:
    assert real.taskhub("instances", "start", "slow", "--input", "300", "--id", "owner-falls-silent")
    until("rest runs", lambda: "rest" in _working(real, "owner-falls-silent", "first"))
    served = login("admin", "/taskhub/page/instance?id=owner-falls-silent").locator(".facts")
    expect(served).to_contain_text("first@")
    real.processes["worker"].signal(signal.SIGSTOP)
    try:
        expect(served.locator(".bad")).to_have_text(" · silent")
        expect(served).to_contain_text("first@")
    finally:
        real.processes["worker"].signal(signal.SIGCONT)
    expect(served.locator(".bad")).to_have_count(0)
    real.taskhub("instances", "terminate", "owner-falls-silent", "--wait")


@pytest.mark.parametrize("seconds", [0.9, 100, 7000, 36_000, 200_000])
def test_every_tick_of_the_timelines_axis_is_inside_the_picture(login: Login, runs: Runs, seconds: float) -> None:
    page = login("admin", f"/taskhub/page/instance?id={quote(sums_id(runs.sums), safe='')}", width=760)
    expect(page.locator("svg")).to_be_visible()
    overhang = page.evaluate(
        """async (ms) => {
            const { draw } = await import("/taskhub/page/assets/timeline.js");
            const whole = { from: 0, to: ms, now: ms, live: false, width: 700, chosen: null, pick: () => {} };
            const picture = draw({ lanes: [], episodes: [], marks: [] }, whole);
            document.querySelector("svg").replaceWith(picture);
            const ends = [...picture.querySelectorAll("text.t")].map((one) => one.getBBox().x + one.getBBox().width);
            return Math.max(...ends) - 700;
        }""",
        seconds * 1000,
    )
    assert overhang <= 0


@pytest.mark.parametrize("width", [1440, 1280, 1110, 1000])
def test_names_of_events_stay_on_one_line_and_the_history_fits(login: Login, runs: Runs, width: int) -> None:
    page = login("admin", f"/taskhub/page/instance?id={quote(sums_id(runs.sums), safe='')}", width=width)
    expect(page.locator(".events tbody tr").first).to_be_visible()
    lines, overhang = page.evaluate(
        """() => {
            const table = document.querySelector(".events"), [, , name, what] = table.querySelector("tbody tr").cells;
            name.textContent = "SubOrchestrationInstanceCompleted";
            what.textContent = "flights:hub:scheduled__2026-01-01T00:00:00+00:00:g1:00000012".repeat(3);
            const range = document.createRange();
            range.selectNodeContents(name);
            const lines = new Set([...range.getClientRects()].map((one) => one.top));
            return [lines.size, table.scrollWidth - table.clientWidth];
        }"""
    )
    assert (lines, overhang) == (1, 0)


def test_a_killed_worker_and_who_took_over(login: Login, runs: Runs) -> None:
    page = login("admin", f"/taskhub/page/instance?id={quote(runs.survivor, safe='')}", dark=True)
    expect(page.locator("svg")).to_contain_text("lost")
    lost = page.locator("svg .pick[aria-label*='attempt 1: lost']")
    assert lost.count() in (1, 2)
    assert page.locator("svg .pick").count() == 12 + lost.count()
    expect(page.locator(".legend")).to_contain_text("doomed@")
    expect(page.locator(".legend")).to_contain_text("first@")
    lost.first.click()
    expect(page.locator("#detail .pairs")).to_contain_text("lost")
    page.locator("#detail .pairs").get_by_role("button", name="completed on first").click()
    expect(page.locator("#detail .pairs")).to_contain_text("resting for")


def test_the_theme_follows_airflow(login: Login, runs: Runs) -> None:
    """The frame has the background of Airflow's window, so that it has no visible edge."""
    grounds = []
    for dark in (True, False):
        page = login("admin", "/plugin/taskhub", dark=dark)
        listed(page)
        assert page.locator("html").get_attribute("class") == ("dark" if dark else "light")
        grounds.append(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        expect(frame(page).locator("body")).to_have_css("background-color", grounds[-1])
        expect(frame(page).locator("html")).to_have_class("dark" if dark else "")
    assert grounds[0] != grounds[1] == "rgb(255, 255, 255)"


def _asked_for(text: str, response: Response) -> bool:
    return parse_qs(urlsplit(response.url).query).get("text") == [text]


def test_nobody_sees_more_than_their_dags(login: Login, runs: Runs) -> None:
    seen = {}
    for user in ("vera", "olga", "admin"):
        page = login(user, "/plugin/taskhub")
        inner = listed(page)
        found = []
        for wanted in (sums_id(runs.sums), SECRET, runs.by_hand):
            with page.expect_response(partial(_asked_for, wanted)):
                inner.get_by_role("searchbox").fill(wanted)
            row, none = inner.locator("tbody tr", has_text=wanted), inner.get_by_text("No instance matches.")
            expect(row.or_(none)).to_have_count(1)
            expect(inner.locator("tbody tr")).to_have_count(row.count())
            found.append(row.count() == 1)
        seen[user] = tuple(found)
    assert seen == {"vera": (True, False, False), "olga": (True, True, False), "admin": (True, True, True)}
    for hidden in (SECRET, runs.by_hand):
        page = login("vera", f"/taskhub/page/instance?id={quote(hidden, safe='')}")
        expect(page.get_by_role("alert")).to_contain_text("or you may not see it")


def test_data_needs_a_login_and_rights(real: RealAirflow, runs: Runs) -> None:
    import httpx

    for path in ("instances", "instance?id=without-airflow", "hubs", "task?dag_id=sums&run_id=r&task_id=t"):
        assert httpx.get(f"{real.url}/taskhub/api/{path}").status_code == 401, path
    for path in ("docs", "redoc", "openapi.json"):
        assert httpx.get(f"{real.url}/taskhub/{path}").status_code == 404, path
    log = {"id": SECRET, "task": 0, "attempt": 1}
    assert real.request("GET", "/taskhub/api/instance", user="vera", params={"id": SECRET}).status_code == 404
    assert real.request("GET", "/taskhub/api/log", user="vera", params=log).status_code == 404
    of_task = {"dag_id": "secret", "run_id": "r", "task_id": "hub"}
    assert real.request("GET", "/taskhub/api/task", user="vera", params=of_task).status_code == 403
    assert real.get("/taskhub/api/task", user="olga", **of_task)["instances"][0]["id"] == SECRET


def test_what_cannot_be_shown_is_said(login: Login, runs: Runs) -> None:
    page = login("admin", "/taskhub/page/instances?conn=gone")
    expect(page.get_by_role("alert")).to_contain_text("this page does not show connection 'gone'")
    page = login("admin", "/taskhub/page/instance?id=nothing")
    expect(page.get_by_role("alert")).to_contain_text("there is no instance 'nothing'")


def test_without_a_login_the_page_says_so(real: RealAirflow, login: Login) -> None:
    page = login("admin", "/taskhub/page/assets/icon.svg")
    page.context.clear_cookies()
    page.goto(f"{real.url}/taskhub/page/instances")
    expect(page.get_by_role("alert")).to_contain_text("You are not logged in")


def test_a_narrow_window_needs_no_sideways_scrolling_of_the_page(login: Login, runs: Runs) -> None:
    page = login("admin", "/taskhub/page/instances", width=700)
    expect(page.locator("tbody tr:not(.ghost)").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


STATIC = ROOT / "docs" / "_static"
STRUCTURE = """() => [...document.querySelectorAll('h2, h3, th, nav a, .facts dt, #detail dt, .legend, svg text')]
    .map(one => one.tagName.toLowerCase() + (one.className && one.className.baseVal === undefined
        ? '.' + one.className : '')).filter((one, index, all) => all.indexOf(one) === index).sort()
    .concat([...document.querySelectorAll('h2, h3, th')]
        .map(one => one.textContent.trim().replace(/\\(.*\\)/, "(…)")))"""
"""What a picture shows, without what changes from run to run: kinds of elements, and the texts of headings."""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_pictures_of_the_documentation_show_this_page(login: Login, runs: Runs, theme: str) -> None:
    """``make pictures`` takes them: WRITE_PICTURES is set then."""
    address = f"/plugin/taskhub/taskhub/page/instance?id={quote(runs.survivor, safe='')}"
    page = login("admin", address, dark=theme == "dark", width=1200)
    inner = frame(page)
    inner.locator("svg .pick[aria-label*='attempt 2']").first.click()
    expect(inner.locator("#detail .pairs")).to_contain_text("completed")
    picture, text = STATIC / f"page-{theme}.png", STATIC / "page.json"
    structure = inner.locator("body").evaluate(STRUCTURE)
    if os.environ.get("WRITE_PICTURES"):
        page.screenshot(path=picture)
        text.write_text(json.dumps(structure, indent=1) + "\n", encoding="utf-8")
    again = "run `make pictures` and commit docs/_static"
    assert json.loads(text.read_text(encoding="utf-8")) == structure, f"the page has changed: {again}"
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", again
    assert struct.unpack(">II", data[16:24]) == (1200, 1000), again
