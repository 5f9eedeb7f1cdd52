"""What the first try after a clear does with the instance of its task, for each value of ``on_clear``."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.hooks.identity import MAX_TRIES_TAG
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable
from airflow_provider_taskhub.hub.model import StartPolicy
from airflow_provider_taskhub.triggers.reactions import OnRetry
from tests.airflow.conftest import Store, Task, Ti
from tests.airflow.fake import FakeClient, FakeHub

ID = "flights:delays:scheduled__2013-12-01T00:00:00+00:00:g{}"
FIRST, SECOND = ID.format(1), ID.format(2)


def ended(hub: FakeHub, status: Status, reason: str = "no rows") -> None:
    if status is Status.FAILED:
        hub.fail(FIRST, reason)
    else:
        hub.end(FIRST, reason, status=status)


@pytest.mark.parametrize("stored", [True, False], ids=["counter stored", "counter not stored"])
@pytest.mark.parametrize("on_retry", OnRetry)
@pytest.mark.parametrize("on_clear", ["rewind", "restart"])
@pytest.mark.parametrize(
    ("status", "reason", "goes_on"),
    [
        (Status.FAILED, "no rows", True),
        (Status.TERMINATED, "from Airflow: task marked failed", True),
        (Status.TERMINATED, "from Airflow: execution timeout", True),
        (Status.TERMINATED, "from Airflow: the task is failed", True),
        (Status.TERMINATED, "from Airflow: task cleared", False),
        (Status.TERMINATED, "from Airflow: the task was cleared and runs again", False),
        (Status.TERMINATED, "by ann@node7", False),
        (Status.TERMINATED, "from Airflow: ann on TaskHub's page", False),
        (Status.TERMINATED, "from Airflow: wrong year (flights.stop, run r)", False),
        (Status.TERMINATED, "from Airflow: no worker came in time", True),
        (Status.CANCELED, "from Airflow: task marked failed", False),
        (Status.COMPLETED, "7", False),
    ],
)
def test_what_a_clear_does(
    make_task: Any, hub: FakeHub, status: Status, reason: str, goes_on: bool, on_clear: str, on_retry: str, stored: bool
) -> None:
    task, ti = make_task(on_clear=on_clear, on_retry=str(on_retry)), Ti()
    task.start(ti)
    ended(hub, status, reason)
    if stored:
        task.store.set("taskhub", {"generation": 1, "max_tries": ti.max_tries})
    cleared = ti.cleared()
    deferred = task.start(cleared)
    goes_on = goes_on and on_clear == "rewind"
    assert deferred.trigger.instance_id == (FIRST if goes_on else SECOND)
    assert hub.rewound == ([(FIRST, "from Airflow: try 2 of the task")] if goes_on else [])
    assert [instance for instance, _ in hub.starts] == ([FIRST] if goes_on else [FIRST, SECOND])
    assert deferred.trigger.owner == str(ti.id if goes_on else cleared.id), "the tag that the instance has"
    assert hub.watched[deferred.trigger.instance_id].waiter == str(cleared.id)
    hub.end(deferred.trigger.instance_id, [7])
    assert task.finish(cleared) == [7]


def continued(make_task: Any, hub: FakeHub, **arguments: Any) -> tuple[Task, Ti]:
    """A task that was cleared after its failure, and its try."""
    task, ti = make_task(**arguments), Ti()
    task.start(ti)
    hub.fail(arguments.get("instance_id", FIRST), "no rows")
    cleared = ti.cleared()
    task.start(cleared)
    return task, cleared


@pytest.mark.parametrize("on_retry", OnRetry)
def test_a_retry_after_the_clear_is_one_of_the_same_generation(make_task: Any, hub: FakeHub, on_retry: str) -> None:
    """It does what ``on_retry`` says, and does not take the clear for a second one."""
    task, cleared = continued(make_task, hub, on_retry=str(on_retry))
    hub.end(FIRST, "killed", status=Status.TERMINATED)
    retried = cleared.next_try()
    if on_retry is OnRetry.ATTACH:
        with pytest.raises(Exception, match="terminated: killed"):
            task.run(retried)
    else:
        assert task.start(retried).trigger.instance_id == FIRST
        assert hub.starts[-1] == (FIRST, StartPolicy.REPLACE_FINISHED)
    assert len(hub.rewound) == 1


def test_a_worker_of_airflow_that_dies_after_the_clear_is_followed_by_one_that_attaches(
    make_task: Any, hub: FakeHub
) -> None:
    task, cleared = continued(make_task, hub)
    assert task.start(replace(cleared, xcoms={})).trigger.instance_id == FIRST
    assert len(hub.rewound) == 1
    assert hub.starts[1:] == [(FIRST, StartPolicy.ATTACH)], "the start of a Pending instance may have been lost"


def test_a_second_clear_goes_on_again(make_task: Any, hub: FakeHub) -> None:
    task, cleared = continued(make_task, hub)
    hub.fail(FIRST, "no rows either")
    assert task.start(cleared.cleared()).trigger.instance_id == FIRST
    assert len(hub.rewound) == 2


def test_a_clear_while_the_instance_goes_on_computes_anew(make_task: Any, hub: FakeHub) -> None:
    task, cleared = continued(make_task, hub)
    hub.put(FIRST, Status.RUNNING)
    assert task.start(cleared.cleared()).trigger.instance_id == SECOND
    assert hub.terminated == [(FIRST, "from Airflow: the task was cleared and runs again")]


def test_an_instance_that_somebody_has_rewound_meanwhile_is_waited_for(make_task: Any, hub: FakeHub) -> None:
    """The page rewinds it, and then the task is cleared so that the DAG run goes on."""
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.fail(FIRST, "no rows")
    state = hub.instances[FIRST]
    hub.instances[FIRST] = replace(state, status=Status.PENDING, completed=Timestamp(0), released=True)
    hub.watched.clear()
    cleared = ti.cleared()
    assert task.start(cleared).trigger.instance_id == FIRST
    assert hub.starts[1:] == [(FIRST, StartPolicy.ATTACH)]
    assert hub.terminated == []
    assert task.start(cleared.cleared()).trigger.instance_id == SECOND, "the next clear computes anew"


@pytest.mark.parametrize("on_clear", ["rewind", "restart"])
def test_the_result_of_an_instance_that_somebody_has_rewound_is_taken_once(
    make_task: Any, hub: FakeHub, on_clear: str
) -> None:
    task, ti = make_task(on_clear=on_clear), Ti()
    task.start(ti)
    rewound(hub)
    hub.end(FIRST, 7)
    cleared = ti.cleared()
    assert task.run(cleared) == 7
    assert task.start(cleared.cleared()).trigger.instance_id == SECOND, "a clear of a success computes anew"


@pytest.mark.parametrize("ended", [True, False])
def test_a_retry_that_takes_the_result_of_a_rewound_instance_leaves_none_for_a_clear(
    make_task: Any, hub: FakeHub, ended: bool
) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    rewound(hub)
    retry = ti.next_try()
    if ended:
        hub.end(FIRST, 7)
        assert task.run(retry) == 7
    else:
        assert task.start(retry).trigger.instance_id == FIRST
        hub.end(FIRST, 7)
    assert task.start(retry.cleared()).trigger.instance_id == SECOND


def test_the_result_for_another_input_is_not_taken(make_task: Any, hub: FakeHub, capsys: Any) -> None:
    task, ti = make_task(input={"year": 2013}), Ti()
    task.start(ti)
    rewound(hub)
    hub.end(FIRST, 7)
    task.operator.input = {"year": 2014}
    assert task.start(ti.cleared()).trigger.instance_id == SECOND
    assert "does not go on: the task now has another input" in capsys.readouterr().out


def test_an_instance_that_fails_again_after_somebody_has_rewound_it_goes_on(make_task: Any, hub: FakeHub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    rewound(hub)
    hub.fail(FIRST, "still no rows")
    assert task.start(ti.cleared()).trigger.instance_id == FIRST
    assert [reason for _, reason in hub.rewound] == ["by hand", "from Airflow: try 2 of the task"]


def rewound(hub: FakeHub) -> None:
    """The task of the first instance has failed with it. Then somebody rewinds the instance."""
    hub.fail(FIRST, "no rows")
    hub.watched.clear()
    asyncio.run(FakeClient(hub).rewind(FIRST, "by hand"))


def test_a_clear_while_a_rewound_instance_is_waited_for_computes_anew(make_task: Any, hub: FakeHub) -> None:
    """The row of a rewound instance reads Pending until its end."""
    task, cleared = continued(make_task, hub)
    hub.instances[FIRST] = replace(hub.instances[FIRST], status=Status.PENDING, completed=Timestamp(0))
    assert task.start(cleared.cleared()).trigger.instance_id == SECOND
    assert [instance for instance, _ in hub.terminated] == [FIRST]


@pytest.mark.parametrize("on_retry", OnRetry)
def test_a_rewind_that_fails_after_a_clear_is_made_by_the_next_try(
    make_task: Any, hub: FakeHub, on_retry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, ti = make_task(on_retry=str(on_retry)), Ti()
    task.start(ti)
    ended(hub, Status.TERMINATED, "from Airflow: task marked failed")
    cleared = ti.cleared()
    with monkeypatch.context() as patched:
        patched.setattr(FakeClient, "rewind", refuse)
        with pytest.raises(Unavailable):
            task.run(cleared)
    assert task.start(cleared.next_try()).trigger.instance_id == FIRST
    assert [instance for instance, _ in hub.rewound] == [FIRST]
    assert task.store.values["taskhub"] == {"generation": 1, "max_tries": cleared.max_tries}


async def refuse(*_: Any, **__: Any) -> None:
    raise Unavailable("no answer", maybe_done=False)


def test_an_id_that_the_user_chose_goes_on_too(make_task: Any, hub: FakeHub) -> None:
    task, cleared = continued(make_task, hub, instance_id="mine")
    assert task.deferred.trigger.instance_id == "mine"
    assert [instance for instance, _ in hub.rewound] == ["mine"]
    hub.end("mine", 7)
    assert task.finish(cleared) == 7


def test_another_input_starts_a_new_instance_and_the_log_says_why(make_task: Any, hub: FakeHub, capsys: Any) -> None:
    task, ti = make_task(input={"year": 2013}), Ti()
    task.start(ti)
    hub.fail(FIRST, "no rows")
    task.operator.input = {"year": 2014}
    assert task.start(ti.cleared()).trigger.instance_id == SECOND
    assert hub.rewound == []
    assert f"{FIRST} does not go on: the task now has another input. A new one starts" in capsys.readouterr().out


def test_a_history_that_cannot_be_rewound_begins_again(make_task: Any, hub: FakeHub, capsys: Any) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.fail(FIRST, "no rows")
    hub.damaged[FIRST] = HistoryUnreadable("history row 3 is missing")
    assert task.start(ti.cleared()).trigger.instance_id == FIRST
    assert hub.starts[-1] == (FIRST, StartPolicy.REPLACE_FINISHED)
    assert "is not rewound: history row 3 is missing. It starts from its beginning" in capsys.readouterr().out


def test_a_run_that_was_deleted_and_made_again_computes_anew(make_task: Any, hub: FakeHub) -> None:
    """Its first try finds the instance of the deleted run, under the same ids."""
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.fail(FIRST, "no rows")
    again = Task(task.operator, store=Store())
    assert again.start(Ti()).trigger.instance_id == SECOND
    assert hub.rewound == []


def test_the_tag_with_the_tries_is_that_of_the_start(make_task: Any, hub: FakeHub) -> None:
    task, cleared = continued(make_task, hub)
    assert hub.instances[FIRST].tags[MAX_TRIES_TAG] != str(cleared.max_tries)
    assert task.store.values["taskhub"] == {"generation": 1, "max_tries": cleared.max_tries}
