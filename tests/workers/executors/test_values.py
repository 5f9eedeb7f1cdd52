"""Frames, fairness, arguments and failures as values: no process is started here."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import FailureDetails, OrchestrationInstance
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState
from airflow_provider_taskhub.spark_conf import application_conf, session_conf
from airflow_provider_taskhub.workers.executors.attempt_values import (
    MAX_CRASHES,
    MAX_SHARED,
    ActivityOutcome,
    ActivityProgress,
    Crashes,
)
from airflow_provider_taskhub.workers.executors.child import invocation
from airflow_provider_taskhub.workers.executors.child.capture import AttemptLog
from airflow_provider_taskhub.workers.executors.protocol import (
    Decoder,
    Done,
    ExecutorMessage,
    Failed,
    Log,
    Ping,
    Run,
    encode,
)
from airflow_provider_taskhub.workers.executors.scheduling import (
    IDLE,
    PLAIN,
    SPARK,
    TURN,
    ExecutorKind,
    FairQueue,
    Need,
    choose,
    place_for_another,
)
from airflow_provider_taskhub.workers.executors.spawn import describe
from tests.workers.apps import Job, app

MESSAGES: list[ExecutorMessage] = [
    Ping(),
    Log(number=3, body=b"\x00\xff\n"),
    Done(number=1, body=b'"' + b"x" * 70_000 + b'"'),
    Failed(
        number=2,
        failure=FailureDetails(
            error_type="A", error_message="ä", inner_failure=FailureDetails(error_type="B", error_message="b")
        ),
    ),
    Run(
        number=9,
        name="greet",
        instance_id="i",
        execution_id=None,
        task_id=4,
        action_id="a",
        attempt=2,
        tags={"k": "v"},
        job_group="g",
        has_input=True,
        body=b'["World"]',
    ),
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=6), st.data())
def test_messages_survive_any_cut_of_the_stream(messages: list[ExecutorMessage], data: st.DataObject) -> None:
    stream = b"".join(piece for message in messages for piece in encode(message))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = Decoder()
    read: list[ExecutorMessage] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        read += decoder.feed(stream[start:end])
    assert read == messages


@pytest.mark.parametrize(
    "garbage",
    [
        b"Traceback (most recent call last)",
        b"\0\0\0\x04\0\0\0\0null",
        b'\0\0\0\x0b\0\0\0\0["Evil", {}]'[:19],
        b'\0\0\0\x0a\0\0\0\0["Done",{}]'[:19],
    ],
)
def test_garbage_on_the_stream_is_an_error(garbage: bytes) -> None:
    with pytest.raises(InputError):
        Decoder().feed(garbage)


LARGE = Need(ExecutorKind.SPARK, (("spark.driver.memory", "4g"),))


def test_an_instance_with_many_activities_does_not_hold_up_another() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        queue.put(PLAIN, "wide", f"wide {number}")
    queue.put(PLAIN, "small", "small 0")
    taken = [queue.take(lambda need: True) for _ in range(5)]
    assert taken == ["wide 0", "small 0", "wide 1", "wide 2", None]


def test_a_need_that_cannot_be_met_is_passed_over() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.put(SPARK, "a", "spark")
    queue.put(PLAIN, "a", "plain")
    assert queue.take(lambda need: need == PLAIN) == "plain"
    assert queue.take(lambda need: need == PLAIN) is None
    assert queue.needs == (SPARK,)
    assert queue.take(lambda need: True) == "spark"


@given(st.lists(st.tuples(st.sampled_from([PLAIN, SPARK, LARGE]), st.sampled_from("abc")), max_size=30), st.data())
def test_the_queue_loses_and_doubles_nothing(places: list[tuple[Need, str]], data: st.DataObject) -> None:
    queue: FairQueue[int] = FairQueue()
    for number, (need, key) in enumerate(places):
        queue.put(need, key, number)
    gone = data.draw(st.sets(st.sampled_from(range(len(places))))) if places else set()
    for number in gone:
        queue.discard(*places[number], number)
    assert len(queue) == len(places) - len(gone)
    drained = set(queue.drain(SPARK))
    taken = {queue.take(lambda need: True) for _ in range(len(queue))}
    assert drained | taken == set(range(len(places))) - gone
    assert len(queue) == 0


@given(st.lists(st.booleans(), min_size=MAX_CRASHES + MAX_SHARED, max_size=20))
def test_only_crashes_without_company_fail_an_activity(company: list[bool]) -> None:
    """A suspect has no company, so the number of its tries is limited."""
    crashes = Crashes().after(ActivityOutcome())
    for tries, shared in enumerate(company, 1):
        shared = shared and not crashes.suspect
        crashes = crashes.after(ActivityOutcome(crashed=True, shared=shared))
        assert crashes.own + crashes.shared == tries
        if crashes.too_many:
            break
    assert (crashes.own, crashes.shared <= MAX_SHARED) == (MAX_CRASHES, True)


@dataclasses.dataclass(frozen=True)
class Place:
    load: int = 0
    open: bool = True
    alone: bool = False


BUSY, EMPTY, CLOSED, SUSPECT = Place(load=3), Place(), Place(open=False), Place(load=1, alone=True)


@pytest.mark.parametrize(
    ("places", "suspects", "for_others", "for_suspects"),
    [
        ([BUSY, Place(load=2)], False, 1, None),
        ([BUSY, Place(load=2)], True, 0, None),  # the emptier one is being emptied
        ([EMPTY], True, None, 0),
        ([BUSY], True, None, None),
        ([SUSPECT], True, None, None),
        ([SUSPECT, EMPTY], True, 1, None),  # half of the places, so that the other work goes on
        ([SUSPECT, EMPTY, BUSY], True, 1, None),
        ([SUSPECT, EMPTY, BUSY, BUSY], True, 2, 1),
        ([SUSPECT, EMPTY, SUSPECT, BUSY], True, 1, None),
        ([CLOSED, BUSY], True, 1, None),  # the one that is about to be open is kept
        ([CLOSED, BUSY], False, 1, None),
        ([], True, None, None),
    ],
)
def test_suspects_get_empty_places_and_not_all_of_them(
    places: list[Place], suspects: bool, for_others: int | None, for_suspects: int | None
) -> None:
    def chosen(*, alone: bool) -> int | None:
        place = choose(places, alone=alone, suspects=suspects)
        return None if place is None else next(number for number, other in enumerate(places) if other is place)

    assert (chosen(alone=False), chosen(alone=True)) == (for_others, for_suspects)


@dataclasses.dataclass(frozen=True)
class Application:
    need: Need | None
    load: int = 0
    ready: bool = True
    starting: bool = False
    since: float = 0.0
    used: float = 0.0


OWN, OTHER = Application(SPARK), Application(Need(ExecutorKind.SPARK, (("spark.jars", "a.jar"),)))


@pytest.mark.parametrize(
    ("places", "also_waiting", "chosen"),
    [
        ([OWN, Application(None, ready=False)], (), 1),
        ([OTHER, dataclasses.replace(OWN, ready=False)], (), 1),
        ([OWN, OTHER], (), 1),  # the worker's own is the one that most activities use
        ([dataclasses.replace(OTHER, used=9), dataclasses.replace(OTHER, used=5)], (), 1),
        ([OWN, dataclasses.replace(OTHER, load=1)], (), 0),
        ([dataclasses.replace(OWN, since=9.0, used=TURN - IDLE + 1)], (), None),  # its attempts may come again
        ([dataclasses.replace(OTHER, used=TURN - 1)], (), 0),
        ([dataclasses.replace(OWN, ready=False, starting=True)], (), None),
        ([dataclasses.replace(OWN, load=1, starting=True)], (SPARK,), 0),  # it is there, and is being replaced
        ([OWN], (SPARK,), 0),  # it has had its turn
        ([dataclasses.replace(OWN, since=1.0)], (SPARK,), None),
        ([dataclasses.replace(OWN, load=1, since=1.0), dataclasses.replace(OTHER, load=3)], (), 1),
        ([dataclasses.replace(OWN, load=2), dataclasses.replace(OTHER, load=1)], (), 1),
    ],
)
def test_the_place_for_another_application_is_an_idle_one_or_one_that_has_had_its_turn(
    places: list[Application], also_waiting: tuple[Need, ...], chosen: int | None
) -> None:
    place = place_for_another(places, (*also_waiting, LARGE), TURN)
    assert place is (None if chosen is None else places[chosen])


def test_settings_of_an_application_and_of_a_session_are_told_apart() -> None:
    of_application = {"spark.driver.memory": "4g", "spark.jars": "a.jar", "spark.sql.extensions": "A"}
    of_session = {"spark.sql.shuffle.partitions": "8", "spark.scheduler.pool": "night"}
    of_a_listener = {"spark.openlineage.namespace": "flights"}
    conf = {**of_application, **of_session, **of_a_listener}
    assert application_conf(conf) == {**of_application, **of_a_listener}
    assert session_conf(conf) == {**of_session, **of_a_listener}
    assert application_conf({**of_session, **of_a_listener}) == {}


def test_inputs_are_decoded_by_annotation() -> None:
    activities = app.activities
    (job,) = invocation.arguments(activities["typed"], '[{"year": "2013", "start": "2013-01-01"}]')
    assert isinstance(job, Job)
    assert job.year == 2013
    assert invocation.arguments(activities["greet"], '["World"]') == ("World",)
    assert invocation.arguments(activities["greet"], '"World"') == ("World",)
    assert invocation.arguments(activities["nothing"], None) == ()
    assert invocation.arguments(activities["nothing"], "[null]") == ()
    assert invocation.arguments(activities["optional"], "[]") == ()
    assert invocation.arguments(activities["optional"], '["me"]') == ("me",)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("typed", '[{"year": 2013}]', "start: Field required"),
        ("greet", '["a", "b"]', "2 arguments"),
        ("greet", "[}", "not JSON"),
        ("greet", None, "input of activity 'greet'"),
        ("nothing", "[5]", "no parameter"),
    ],
)
def test_inputs_that_do_not_fit_name_the_activity(name: str, text: str | None, told: str) -> None:
    with pytest.raises(InputError, match=told) as raised:
        invocation.arguments(app.activities[name], text)
    assert f"activity {name!r}" in str(raised.value)


def test_a_result_above_the_limit_names_activity_and_size() -> None:
    with pytest.raises(InputError, match=r"'large' is 102 bytes of JSON: at most 100"):
        invocation.result_text(app.activities["large"], "x" * 100, 100)
    assert json.loads(invocation.result_text(app.activities["large"], "x" * 98, 100)) == "x" * 98


def nested(depth: int, leaf: object = None) -> object:
    for number in range(depth):
        leaf = {"a]}": leaf, "b": 'c"]]'} if number % 2 else [1, leaf, "\\"]
    return leaf


@pytest.mark.parametrize("value", [nested(500), [nested(499)] * 3, "[" * 600, [[]] * 600, nested(400, '"[{' * 600)])
def test_what_every_reader_can_follow_is_written(value: object) -> None:
    assert json.loads(invocation.result_text(app.activities["large"], value, 100_000)) == value


@pytest.mark.parametrize("value", [nested(501), [nested(500)] * 3, nested(500, ["]" * 600]), nested(3000)])
def test_what_a_reader_could_not_follow_is_not_written(value: object) -> None:
    says = r"result of activity 'large' .*(nested more than 500 levels deep|depth exceeded)"
    with pytest.raises(InputError, match=says):
        invocation.result_text(app.activities["large"], value, 100_000)


def test_a_log_is_handed_on_by_lines_and_cut_at_its_limit() -> None:
    sent: list[bytes] = []
    log = AttemptLog(sent.append, 20)
    log.write("stdout", b"one\ntw")
    log.write("stderr", b"error\n")
    assert sent == [b"one\n", b"error\n"]
    log.write("stdout", b"o\n")
    assert sent[-1] == b"two\n"
    log.write("stdout", b"123456789\n")
    log.write("stdout", b"dropped\n")
    assert b"".join(sent) == b"one\nerror\ntwo\n123456\n[taskhub] log truncated after 20 bytes\n"
    log.close()
    assert not log.write("stdout", b"too late\n")


def test_a_line_without_end_is_not_held_back_for_ever() -> None:
    sent: list[bytes] = []
    log = AttemptLog(sent.append, 1_000_000)
    log.write("stdout", b"\r 10 %" * 2000)
    assert b"".join(sent) == b"\r 10 %" * 2000
    log.write("stdout", b"rest")
    log.close()
    assert sent[-1] == b"rest\n"


def test_exit_statuses_in_words() -> None:
    assert describe(3) == "exited with code 3"
    assert describe(-9) == "was killed by signal 9 (SIGKILL); likely out of memory"
    assert describe(-11) == "was killed by signal 11 (SIGSEGV)"


@pytest.mark.parametrize(
    ("news", "progress", "message"),
    [
        ({"message": "after"}, 0.5, "after"),
        ({"fraction": 0.75}, 0.75, "before"),
        ({"fraction": 0.0, "message": "again"}, 0.0, "again"),
        ({}, 0.5, "before"),
        ({"observed": True}, 0.5, "before"),
    ],
)
def test_progress_changes_only_what_it_knows(news: dict[str, Any], progress: float, message: str) -> None:
    record = ActivityRecord(
        instance=OrchestrationInstance(instance_id="i"),
        task_id=1,
        action_id="a",
        attempt=1,
        name="n",
        state=RecordState.RUNNING,
        worker="w",
        executor="",
        claimed=Timestamp(0),
        progress=0.5,
        message="before",
    )
    changed = ActivityProgress(executor="plain-1.1", **news).onto(record)
    assert changed == dataclasses.replace(record, executor="plain-1.1", progress=progress, message=message)
