"""What a retry does with the instance of its task, for each value of ``on_retry``."""

from __future__ import annotations

import re
import runpy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import Conflict, InputError
from airflow_provider_taskhub.hooks.identity import TaskIdentity
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable
from airflow_provider_taskhub.hub.model import InstanceState, StartPolicy
from airflow_provider_taskhub.triggers.reactions import (
    REACTION_TEXTS,
    REACTIONS,
    FoundInstance,
    OnRetry,
    StartDecision,
    difference,
    found,
)
from tests.airflow.conftest import Ti
from tests.airflow.fake import FakeClient

ID = "flights:delays:scheduled__2013-12-01T00:00:00+00:00:g{}"
EXAMPLE = Path(__file__).parents[2] / "dags_examples" / "on_retry.py"
ENDED_WITHOUT_RESULT = (Status.FAILED, Status.TERMINATED, Status.CANCELED)
BEGUN_AGAIN = [(ID.format(1), StartPolicy.REFUSE), (ID.format(1), StartPolicy.REPLACE_FINISHED)]

WHOLE_TABLE = """
                                                     rewind                  restart                 attach
nothing                                              start                   start                   start
mine, live                                           attach                  attach                  attach
mine, completed                                      return                  return                  return
mine, failed                                         rewind                  replace                 return
mine, failed, and a rewind would not do what the task asks for now  replace  replace                 return
mine, terminated or cancelled                        replace                 replace                 return
mine, terminated by Airflow before the task was cleared  rewind although terminated  rewind although terminated  rewind although terminated
an older generation, live                            terminate and replace   terminate and replace   terminate and replace
an older generation, ended                           replace                 replace                 replace
another's, live                                      refuse                  refuse                  refuse
another's, ended                                     replace                 replace                 replace
"""  # noqa: E501  # a table


def test_the_whole_table_of_reactions() -> None:
    lines = [re.split(r" {2,}", line.strip()) for line in WHOLE_TABLE.strip("\n").splitlines()]
    head = [OnRetry(name) for name in lines[0]]
    wanted = {
        (FoundInstance(line[0]), column): StartDecision(cell)
        for line in lines[1:]
        for column, cell in zip(head, line[1:], strict=True)
    }
    assert set(wanted) == set(product(FoundInstance, OnRetry))
    assert {(row, column): cell for row, cells in REACTIONS.items() for column, cell in cells.items()} == wanted
    assert set(REACTION_TEXTS) == set(StartDecision) - {StartDecision.REFUSE}


@pytest.mark.parametrize("otherwise", [False, True])
@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("run_id", ["this", "another"])
@pytest.mark.parametrize("status", Status)
def test_what_an_instance_is_to_a_task(status: Status, run_id: str, generation: int, otherwise: bool) -> None:
    task = TaskIdentity.of(Ti(run_id="this"))
    tags = TaskIdentity.of(Ti(run_id=run_id)).tags(generation)
    state = InstanceState(instance_id="i", execution_id="e", name="o", status=status, tags=tags)
    if run_id == "another":
        wanted = FoundInstance.FOREIGN_ENDED if status.is_final else FoundInstance.FOREIGN_LIVE
    elif generation == 1:
        wanted = FoundInstance.OLDER_ENDED if status.is_final else FoundInstance.OLDER_LIVE
    elif status is Status.FAILED:
        wanted = FoundInstance.FAILED_OTHERWISE if otherwise else FoundInstance.FAILED
    elif status is Status.COMPLETED:
        wanted = FoundInstance.COMPLETED
    else:
        wanted = FoundInstance.TERMINATED if status.is_final else FoundInstance.LIVE
    assert found(state, task, 2, otherwise=otherwise) is wanted
    assert found(None, task, 2, otherwise=otherwise) is FoundInstance.NOTHING


def test_a_retry_rewinds_a_failed_instance_and_waits_for_the_first_trys_start(make_task, hub, capsys) -> None:
    task, ti = make_task(input={"year": 2013}), Ti()
    task.start(ti)
    hub.fail(ID.format(1), "no rows")
    second = ti.next_try()
    deferred = task.start(second)
    assert hub.rewound == [(ID.format(1), "from Airflow: try 2 of the task")]
    assert hub.starts == BEGUN_AGAIN[:1], "nothing is started: the rewind itself wakes the instance"
    assert deferred.trigger.owner == str(ti.id), "the tags of a rewound instance are the first try's"
    assert hub.watched[ID.format(1)].owner == str(ti.id), "the sweep compares with the tag of the instance"
    assert second.xcoms["taskhub_owner"] == str(ti.id), "the triggerer compares with the tag before it ends the task"
    assert "goes on from before its failure" in capsys.readouterr().out
    hub.end(ID.format(1), [7])
    assert task.finish(second) == [7]


def test_a_try_after_a_rewound_one_waits_for_the_same_rewind(make_task, hub) -> None:
    """Its row reads Pending until it ends. The worker of Airflow that had rewound it was killed."""
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.fail(ID.format(1), "no rows")
    second = ti.next_try()
    task.start(second)
    assert task.start(second.next_try()).trigger.owner == str(ti.id)
    assert len(hub.rewound) == 1
    assert hub.instances[ID.format(1)].status is Status.PENDING


def test_a_rewind_that_was_interrupted_is_completed_by_the_next_try(make_task, hub) -> None:
    """A start message would be discarded, because the history has its start: nothing would ever wake the instance."""
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.half_rewound.add(ID.format(1))
    task.start(ti.next_try())
    assert [instance for instance, _ in hub.rewound] == [ID.format(1)]
    assert hub.starts == BEGUN_AGAIN[:1]


@pytest.mark.parametrize("on_retry", OnRetry)
@pytest.mark.parametrize("status", ENDED_WITHOUT_RESULT)
def test_each_way_to_retry_an_instance_without_a_result(make_task, hub, status, on_retry) -> None:
    task, ti = make_task(on_retry=str(on_retry)), Ti()
    task.start(ti)
    hub.end(ID.format(1), "no", status=status)
    second = ti.next_try()
    if on_retry is OnRetry.ATTACH:
        with pytest.raises(AirflowException, match=f"{status.lower()}: no"):
            task.run(second)
        assert hub.starts == BEGUN_AGAIN[:1]
        assert hub.rewound == []
        return
    rewinds = status is Status.FAILED and on_retry is OnRetry.REWIND
    deferred = task.start(second)
    assert hub.starts == BEGUN_AGAIN[: 1 if rewinds else 2]
    assert len(hub.rewound) == rewinds
    assert deferred.trigger.owner == str(ti.id if rewinds else second.id)
    assert hub.watched[ID.format(1)].owner == deferred.trigger.owner
    assert hub.instances[ID.format(1)].tags["airflow.try_number"] == ("1" if rewinds else "2")


def test_an_attached_retry_takes_the_result_of_an_instance_that_somebody_has_rewound(make_task, hub) -> None:
    task, ti = make_task(on_retry="attach"), Ti()
    task.start(ti)
    hub.fail(ID.format(1), "no rows")
    hub.end(ID.format(1), [7])
    assert task.run(ti.next_try()) == [7]


@pytest.mark.parametrize(
    ("argument", "new", "says"),
    [
        ("version", "4", "it was started with version '3', and the task now asks for '4'"),
        ("version", "", "it was started with version '3', and the task now asks for ''"),
        ("orchestrator", "trains", "it was started with orchestrator 'flights_delays', and the task now asks for 'tr"),
        ("input", {"year": 2014}, "the task now has another input"),
    ],
)
def test_what_the_task_asks_for_now_is_started_from_its_beginning(make_task, hub, capsys, argument, new, says) -> None:
    task, ti = make_task(input={"year": 2013}, version="3"), Ti()
    task.start(ti)
    hub.fail(ID.format(1), "no rows")
    setattr(task.operator, argument, new)
    second = ti.next_try()
    assert task.start(second).trigger.owner == str(second.id)
    assert hub.rewound == []
    assert hub.starts == BEGUN_AGAIN
    said = capsys.readouterr().out
    assert f"is not rewound: {says}" in said
    assert "It starts from its beginning" in said


@pytest.mark.parametrize(
    ("stored", "given"), [('{"a":1,"b":[2]}', {"b": [2], "a": 1}), (None, None), ('"x"', "x"), ("null", None)]
)
def test_the_same_input_is_no_difference(stored: Any, given: Any) -> None:
    state = InstanceState(instance_id="i", execution_id="e", name="o", status=Status.FAILED, input=stored, version="1")
    assert difference(state, orchestrator="o", version="1", given=given) is None
    assert difference(state, orchestrator="o", version="1", given=[given]) == "the task now has another input"


def test_an_instance_that_cannot_be_rewound_is_started_from_its_beginning(make_task, hub, capsys) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.fail(ID.format(1), "no rows")
    hub.damaged[ID.format(1)] = HistoryUnreadable("history row 3 is missing")
    task.start(ti.next_try())
    assert hub.starts == BEGUN_AGAIN
    assert "is not rewound: history row 3 is missing. It starts from its beginning" in capsys.readouterr().out


def test_an_input_that_cannot_be_read_is_no_reason_to_rewind(make_task, hub, capsys) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.fail(ID.format(1), "no rows")
    hub.damaged_payloads[ID.format(1)] = "blob x is missing"
    task.start(ti.next_try())
    assert hub.starts == BEGUN_AGAIN
    assert "its input cannot be read (blob x is missing)" in capsys.readouterr().out


@pytest.mark.parametrize("race", ["rewound", "started again", "purged", "conflict"])
def test_another_client_that_is_faster(make_task, hub, monkeypatch, race) -> None:
    """The retry reads again and decides again."""
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.fail(ID.format(1), "no rows")
    rewind, races = FakeClient.rewind, [race]

    async def raced(self: FakeClient, instance_id: str, reason: str = "", **more: Any) -> InstanceState:
        if races:
            races.clear()
            if race == "conflict":
                raise Conflict("changed meanwhile")
            if race == "purged":
                del hub.instances[instance_id]
            elif race == "rewound":
                await rewind(self, instance_id, "by hand")
            else:
                hub.put(instance_id, Status.RUNNING)
        return await rewind(self, instance_id, reason, **more)

    monkeypatch.setattr(FakeClient, "rewind", raced)
    second = ti.next_try()
    owner = task.start(second).trigger.owner
    assert owner == str(second.id if race == "purged" else ti.id)
    reasons = [reason for _, reason in hub.rewound]
    ours = "from Airflow: try 2 of the task"
    assert reasons == {"rewound": ["by hand"], "conflict": [ours]}.get(race, [])
    assert StartPolicy.REPLACE_FINISHED not in [policy for _, policy in hub.starts], "no work is repeated"


def test_an_unknown_way_to_retry_is_refused_at_parse(make_task, hub) -> None:
    with pytest.raises(InputError, match="'delays': on_retry is 'again': choose from rewind, restart, attach"):
        make_task(on_retry="again")


def test_the_example_dag_shows_every_way() -> None:
    tasks = runpy.run_path(str(EXAMPLE))
    assert [task.on_retry for task in tasks["dag"].tasks] == list(OnRetry)
    assert {task.retries for task in tasks["dag"].tasks} == {2}
