"""A short part of ``make hour``, and that its counting sees what it must."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.e2e.hour import Ends, Run, counted, hour, most_at_once, most_within, runs_of
from tests.e2e.house import House
from tests.waiting import until


@pytest.mark.rows("D88")
async def test_limits_hold_while_one_of_two_workers_is_killed(embedded: House) -> None:
    done = await hour(embedded, seconds=8.0, every=3.0, kills=2, slots=8)
    assert done.damage == []
    assert len(done.kills) >= 2
    assert {name for name, _ in done.waits} == {"load", "read", "write", "bill", "mail", "large", "small", "plain"}
    at_once = {one.what: one.most for one in counted(done.runs, done.kills)}
    assert at_once["load at once"] == 2, "something waits for the limit, or the test shows nothing"


def run(name: str, begun: float, ended: float, *, call: str = "i/1", worker: str = "one 1", tenant: str = "a") -> Run:
    return Run(name=name, call=call, tenant=tenant, worker=worker, pid=1, begun=begun, ended=ended)


def test_what_ran_at_once_is_counted() -> None:
    three = [run("load", 0, 10), run("load", 9, 12), run("load", 10, 11)]
    assert most_at_once(three) == 2, "one ends when another one begins"
    assert most_at_once([*three, run("load", 9.5, 10.5)]) == 3
    assert most_at_once([run("large", 0, 2), run("small", 1, 3)], {"large": 3, "small": 1}) == 4


def test_what_began_within_a_time_is_counted() -> None:
    begins = [run("mail", at, at) for at in (0.0, 30.0, 59.9, 60.0, 120.0)]
    assert most_within(begins, 60.0) == 3


def test_each_limit_that_is_exceeded_is_found() -> None:
    runs = [run(name, 0, 1, call=f"i/{number}") for number, name in enumerate(["load"] * 3 + ["read", "write", "read"])]
    runs += [run("bill", 0, 1, call="i/6"), run("bill", 0, 1, call="i/7"), run("bill", 0, 1, call="i/8", tenant="b")]
    runs += [run("mail", at, at, call=f"m/{at}") for at in range(16)]
    runs += [
        run("large", 0, 1, call="i/9"),
        run("large", 0, 1, call="i/10"),
        run("large", 0, 1, call="i/11", worker="two 2"),
    ]
    runs += [run("plain", 0, 1, call="twice/1"), run("plain", 2, 3, call="twice/1")]
    assert [(one.most, one.allowed) for one in counted(runs, {})] == [(3, 2), (3, 2), (2, 1), (16, 15), (6, 4), (2, 1)]
    assert counted(runs, {"one 1": 1.5})[-1].most == 1, "its worker was perhaps killed before it stored the end"
    assert counted(runs, {"one 1": 2.5})[-1].most == 2, "the second attempt had begun before"
    assert counted(runs, {"two 2": -1.0})[-1].most == 1, "who sent it was perhaps killed before it stored the call"
    assert counted(runs, {"two 2": -3.0})[-1].most == 2, "too long before"


def test_an_attempt_without_an_end_is_one_that_was_cut_off() -> None:
    line = {"run": "r", "name": "load", "call": "i/1", "tenant": "a", "worker": "one 1", "pid": 7}
    runs = runs_of([json.dumps(line | {"begun": 1.0}), json.dumps(line | {"run": "s", "begun": 2.0})])
    assert runs["r"].ended == float("inf")
    runs = runs_of([json.dumps(line | {"begun": 1.0}), json.dumps(line | {"ended": 3.0})])
    assert (runs["r"].begun, runs["r"].ended) == (1.0, 3.0)


@pytest.mark.process
def test_the_end_of_a_process_is_noted() -> None:
    ends = Ends()
    with subprocess.Popen(["sleep", "600"]) as first, subprocess.Popen(["sleep", "600"]) as second:
        ends.watch([first.pid, second.pid])
        try:
            first.kill()
            until("the end is noted", lambda: ends.live() == [second.pid])
            ended = ends.after(0.0, first.pid)
            assert ends.after(ended, first.pid) == ended
            assert ends.after(0.0, second.pid) == float("inf") == ends.after(ended + 1.0, first.pid)
        finally:
            second.kill()
