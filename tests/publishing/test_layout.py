"""The decisions about commits, on plain values."""

from __future__ import annotations

import pytest

from airflow_provider_taskhub.errors import ConfigurationError, InputError, PublishSuperseded
from airflow_provider_taskhub.publishing import layout
from airflow_provider_taskhub.publishing.layout import NO_COMMIT, Commit, Folder, Writer

FIRST = Writer(key="a", attempt=1)


def test_the_text_of_a_commit_gives_the_commit_back() -> None:
    commit = layout.fenced(
        layout.published(NO_COMMIT, FIRST, ["m=1", "m=2"], "append", "/t"), [Writer(key="b", attempt=2)]
    )
    assert commit.version == 2
    assert layout.loaded(layout.dumped(commit), "x") == commit


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"format":1}', b'{"format":1,"version":1,"folders":[1]}'])
def test_a_file_that_is_no_commit_is_named(text: bytes) -> None:
    with pytest.raises(ConfigurationError, match=r"/t/7\.json is no commit of TaskHub or is damaged"):
        layout.loaded(text, "/t/7.json")


def test_a_commit_of_a_newer_format_asks_for_an_upgrade() -> None:
    with pytest.raises(ConfigurationError, match="has format 2, and this version of TaskHub reads format 1: upgrade"):
        layout.loaded(b'{"format":2}', "/t/7.json")


@pytest.mark.parametrize(
    ("key", "safe"),
    [
        ("3f9d6e0a-2b0c-5d1e-8f00-0123456789ab", "3f9d6e0a-2b0c-5d1e-8f00-0123456789ab"),
        ("a/b c", "e1f13d8fa37c79d2eea2ae67b2d2ee3d"),
    ],
)
def test_a_key_becomes_a_name_of_a_folder(key: str, safe: str) -> None:
    found = layout.safe_key(key)
    assert len(found) == len(safe)
    assert "/" not in found
    assert (found == key) == (safe == key)
    writer = Writer(key=found, attempt=12)
    assert layout.writer_of(f"taskhub_commit={writer.place}") == writer
    assert layout.writer_of(layout.scratch_path(writer.place).rpartition("/")[2]) == writer


def test_modes_add_and_replace_folders() -> None:
    first = layout.published(NO_COMMIT, FIRST, ["m=1", "m=2"], "overwrite", "/t")
    second = Writer(key="b", attempt=1)
    added = layout.published(first, second, ["m=2"], "append", "/t")
    assert [(one.place, one.partition) for one in added.folders] == [("a-1", "m=1"), ("a-1", "m=2"), ("b-1", "m=2")]
    replaced = layout.published(first, second, ["m=2"], "overwrite_partitions", "/t")
    assert [(one.place, one.partition) for one in replaced.folders] == [("a-1", "m=1"), ("b-1", "m=2")]
    whole = layout.published(first, second, ["m=2"], "overwrite", "/t")
    assert [(one.place, one.partition) for one in whole.folders] == [("b-1", "m=2")]
    assert layout.published(first, second, [], "overwrite", "/t").folders == ()


def test_partitions_that_do_not_fit_together_are_refused() -> None:
    first = layout.published(NO_COMMIT, FIRST, ["m=1"], "overwrite", "/t")
    second = Writer(key="b", attempt=1)
    with pytest.raises(InputError, match="must have the same partition columns, and have m and m, day"):
        layout.published(first, second, ["m=2/day=1"], "append", "/t")
    with pytest.raises(InputError, match="what was written has no partitions"):
        layout.published(first, second, [""], "overwrite_partitions", "/t")
    assert layout.published(first, second, ["m=2/day=1"], "overwrite", "/t").version == 2
    with pytest.raises(
        InputError, match="publish\\(mode='error'\\): the modes are 'overwrite', 'overwrite_partitions'"
    ):
        layout.check_mode("error")


def test_a_target_has_a_largest_number_of_folders() -> None:
    many = Commit(version=1, folders=tuple(Folder(place="a-1", partition=f"m={n}") for n in range(layout.MAX_FOLDERS)))
    with pytest.raises(InputError, match="it would have 50,001 folders: at most 50,000"):
        layout.published(many, Writer(key="b", attempt=1), ["m=x"], "append", "/t")


def test_a_call_publishes_once_and_only_by_its_newest_attempt() -> None:
    fenced = layout.fenced(NO_COMMIT, [Writer(key="a", attempt=2)])
    with pytest.raises(PublishSuperseded, match="attempt 1 of this activity must not publish: either attempt 2"):
        layout.may_publish(fenced, FIRST)
    assert layout.may_publish(fenced, Writer(key="a", attempt=2))
    done = layout.published(fenced, Writer(key="a", attempt=2), ["m=1"], "append", "/t")
    assert done.fences == ()
    assert not layout.may_publish(done, FIRST)
    assert not layout.may_publish(done, Writer(key="a", attempt=3))


def test_the_memory_of_calls_is_bounded_and_data_that_stay_are_remembered_longer() -> None:
    commit = layout.published(NO_COMMIT, FIRST, ["m=1"], "append", "/t")
    for number in range(layout.MAX_KEYS):
        commit = layout.published(commit, Writer(key=f"k{number}", attempt=1), [], "append", "/t")
    assert len(commit.committed) == layout.MAX_KEYS
    assert FIRST not in commit.committed
    assert commit.winner("a") == FIRST
    assert commit.winner("k") is None
    for number in range(layout.MAX_KEYS + 1):
        commit = layout.fenced(commit, [Writer(key=f"f{number}", attempt=2)])
    assert len(commit.fences) == layout.MAX_KEYS


def test_a_place_of_another_call_that_has_not_published_stays() -> None:
    newest = layout.published(NO_COMMIT, FIRST, [""], "overwrite", "/t")
    names = ["taskhub_commit=a-1", "taskhub_commit=a-2", "taskhub_commit=b-1", ".taskhub_commit=a-2", "another"]
    assert layout.dead_places(names, newest, [newest], None) == [".taskhub_commit=a-2", "taskhub_commit=a-2"]
