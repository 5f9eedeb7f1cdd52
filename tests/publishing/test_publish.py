"""``activity.publish`` and its readers, as a user's function calls them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from airflow_provider_taskhub import activity
from airflow_provider_taskhub.activity import ActivityCancelled, ActivityInfo, Attempt, entered, output_path, publish
from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.errors import InputError, OrchestrationError, PublishSuperseded, TaskHubError
from airflow_provider_taskhub.publishing import published, remove_unpublished, stores
from airflow_provider_taskhub.testing import run
from tests.publishing.test_stores import container

__all__ = ["container"]


def attempt(number: int = 1, key: str = "k", *, recorded: bool = True) -> Attempt:
    info = ActivityInfo(
        name="a", instance_id="i", execution_id="e", task_id=1, attempt=number, idempotency_key=key, tags={}
    )
    return Attempt(info=info, report=lambda fraction, message: None, recorded=recorded)


def write(path: str, text: str = "x") -> None:
    os.makedirs(path)
    Path(path, "part-0").write_text(text)


def texts(target: str) -> list[str]:
    found = published(target)
    return [] if found is None else [Path(path, "part-0").read_text() for path in found.paths]


def files(target: Path) -> list[str]:
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "monthly")


def test_the_data_are_there_at_the_end_of_the_block(target: str) -> None:
    with entered(attempt()):
        before = output_path(target)
        with publish(target) as path:
            assert path == before == f"{target}/_taskhub/data/taskhub_commit=k-1"
            write(path)
            assert published(target) is None
    found = published(target)
    assert found is not None
    assert (found.version, found.base, found.paths) == (1, f"{target}/_taskhub/data", (path,))
    assert files(Path(target)) == [
        "_taskhub/commits/00000000000000000001.json",
        "_taskhub/data/taskhub_commit=k-1/part-0",
    ]


def test_a_second_attempt_finds_that_the_first_one_has_published(target: str) -> None:
    with entered(attempt(1)), publish(target, mode="append") as path:
        write(path, "first")
    with entered(attempt(2)), publish(target, mode="append") as path:
        write(path, "second")
    assert texts(target) == ["first"]
    assert not Path(path).exists()


def test_an_attempt_that_was_lost_cannot_publish_any_more(target: str) -> None:
    first, other = (f"{target}/_taskhub/data/taskhub_commit=k-{number}" for number in (1, 2))

    def lost() -> None:
        with publish(target) as path:
            write(path, "first")
            with entered(attempt(2)):
                assert output_path(target) == other
            assert not Path(path).exists()
            write(path, "what comes too late")

    with entered(attempt(1)), pytest.raises(PublishSuperseded, match="attempt 2 has begun"):
        lost()
    assert not Path(first).exists()
    write(other, "second")
    with entered(attempt(2)), publish(target):
        pass
    assert texts(target) == ["second"]


@pytest.mark.parametrize("error", [ValueError("no"), ActivityCancelled("stop")])
def test_a_block_that_fails_leaves_nothing(target: str, error: BaseException) -> None:
    def body() -> None:
        with publish(target) as path:
            write(path)
            raise error

    with entered(attempt()), pytest.raises(type(error)):
        body()
    assert files(Path(target)) == []
    with entered(attempt()), publish(target) as path:
        write(path, "the same attempt tries again")
    assert texts(target) == ["the same attempt tries again"]


def test_an_activity_that_was_asked_to_stop_does_not_publish(target: str) -> None:
    stopped = attempt()

    def body() -> None:
        with publish(target) as path:
            write(path)
            stopped.cancelled.set()

    with entered(stopped), pytest.raises(ActivityCancelled):
        body()
    assert published(target) is None
    assert files(Path(target)) == []


def test_data_that_a_cluster_wrote_to_disks_of_its_own_are_not_published_as_none(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's mark of the end is all that such a write leaves on this machine, as a write of no rows does."""

    def written(path: str) -> None:
        os.makedirs(path)
        Path(path, "_SUCCESS").touch()

    asked: list[str] = []
    monkeypatch.setattr(stores, "executors_see", lambda path: asked.append(path))
    with (
        entered(attempt()),
        pytest.raises(InputError, match="the target must be on a disk that they and this machine"),
        publish(target) as path,
    ):
        written(path)
    assert asked == [f"{path}/_SUCCESS"]
    monkeypatch.setattr(stores, "executors_see", lambda path: True)
    with entered(attempt()), publish(target) as path:
        written(path)
    found = published(target)
    assert found is not None
    assert found.paths == ()


def test_wrong_uses_are_refused(target: str) -> None:
    with entered(attempt()):
        with pytest.raises(InputError, match=r"nothing was written to .*taskhub_commit=k-1"), publish(target):
            pass
        with pytest.raises(InputError, match="the modes are"), publish(target, mode="ignore"):  # type: ignore[arg-type]
            pass
        with pytest.raises(InputError, match="keep=0\\): readers need at least 1"), publish(target, keep=0):
            pass
        with publish(target) as path:
            write(path)
        with pytest.raises(InputError, match="has published to it already"), publish(target):
            pass
        assert texts(target) == ["x"]
    with entered(attempt(recorded=False)), pytest.raises(InputError, match=r"declare it with @app\.activity\(record"):
        output_path(target)
    with pytest.raises(TaskHubError, match=r"outside of an activity"):
        output_path(target)


def test_data_that_do_not_fit_are_removed_and_the_old_ones_stay(target: str) -> None:
    with entered(attempt(key="a")), publish(target) as path:
        write(f"{path}/m=1")
    with entered(attempt(key="b")), pytest.raises(InputError, match="columns"), publish(target, mode="append") as path:
        write(path)
    assert not Path(path).exists()
    assert len(texts(target)) == 1


def test_outside_of_an_activity_each_block_is_a_commit(target: str) -> None:
    for text in ("first", "second"):
        with publish(target, mode="append") as path:
            write(path, text)
    assert texts(target) == ["first", "second"]


def test_earlier_commits_stay_as_long_as_keep_says(target: str) -> None:
    seen = []
    for number in range(6):
        with publish(target, keep=2) as path:
            write(path, str(number))
        seen.append(path)
    assert [Path(path).exists() for path in seen] == [False, False, False, True, True, True]
    assert len(list(Path(target, "_taskhub/commits").iterdir())) == 3


def test_a_repeated_attempt_leaves_the_data_of_earlier_commits_to_their_readers(target: str) -> None:
    seen = []
    for key in ("a", "b"):
        with entered(attempt(key=key)), publish(target) as path:
            write(path, key)
        seen.append(path)
    for key in ("a", "c"):
        with entered(attempt(2, key)):
            output_path(target)
    assert [Path(path).exists() for path in seen] == [True, True]


def test_what_a_call_that_was_given_up_has_left_is_removed_by_hand(target: str) -> None:
    for key, number in (("lost", 1), ("lost", 2), ("also", 1)):
        with entered(attempt(number, key)):
            write(output_path(target))
    with publish(target) as path:
        write(path, "kept")
    left = [f"_taskhub/data/taskhub_commit={name}" for name in ("also-1", "lost-2")]
    assert remove_unpublished(target) == left
    assert remove_unpublished(target) == []
    assert texts(target) == ["kept"]
    superseded = pytest.raises(PublishSuperseded, match=r"or remove_unpublished\(\) was called .* start the act")
    with entered(attempt(2, "lost")), superseded, publish(target) as path:
        write(path, "an attempt that was alive")


def test_a_plain_activity_publishes_to_an_object_store(container: tuple[str, dict[str, str]]) -> None:
    """Also while eight of them publish at the same time, and a reader polls."""
    import pandas

    target, options = container
    stop, half = threading.Event(), []

    def rows() -> dict[int, int]:
        found = published(target, storage_options=options)
        frames = [pandas.read_parquet(path, storage_options=options) for path in (found.paths if found else ())]
        numbers = [number for frame in frames for number in frame["number"]]
        return {number: numbers.count(number) for number in numbers}

    def poll() -> None:
        while not stop.is_set():
            counts = rows()
            half.extend([] if all(n == 1 for n in counts.values()) and len(counts) % 10 == 0 else [counts])

    def one(number: int) -> None:
        with entered(attempt(key=f"k{number}")), publish(target, mode="append", storage_options=options) as path:
            for part in (0, 5):
                frame = pandas.DataFrame({"number": [10 * number + part + i for i in range(5)]})
                frame.to_parquet(f"{path}/part-{part}.parquet", storage_options=options)

    reader = threading.Thread(target=poll)
    reader.start()
    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    reader.join()
    assert half == []
    assert rows() == dict.fromkeys(range(80), 1)


@pytest.mark.parametrize("record", [True, False])
def test_a_test_of_an_orchestration_sees_that_the_record_is_missing(target: str, record: bool) -> None:
    app = App("tests")

    @app.activity(record=record)
    def load() -> None:
        with publish(target) as path:
            write(path)

    @app.orchestrator
    async def main(ctx: OrchestrationContext) -> None:
        await ctx.call_activity(load)

    if record:
        run(main, app=app)
        assert texts(target) == ["x"]
    else:
        with pytest.raises(OrchestrationError, match="this activity has no record"):
            run(main, app=app)


def test_the_module_of_activities_names_what_users_import() -> None:
    assert {"publish", "output_path"} < set(activity.__all__)
