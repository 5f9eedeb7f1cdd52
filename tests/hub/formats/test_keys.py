"""Partition hash, key escaping, blob folders."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.hub.formats.keys import (
    QUARANTINE_FOLDER,
    blob_prefixes,
    escape,
    history_folder,
    log_folder,
    log_name,
    log_prefix,
    message_folder,
    owner_of,
    owns,
    parts_of_log,
    unescape,
)
from airflow_provider_taskhub.hub.partitions.hashing import fnv1a32, partition_of
from airflow_provider_taskhub.storage.rules import check_blob_name

ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
awkward = st.text("ab^0123/\\#?.\n\x7fÊ", min_size=1, max_size=6)


@pytest.mark.rows("K02")
@pytest.mark.parametrize(
    ("text", "value", "of_4", "of_8", "of_12", "of_16"),
    [
        ("", 0x811C9DC5, 1, 5, 1, 5),
        ("a", 0xE40C292C, 0, 4, 4, 12),
        ("foobar", 0xBF9CF968, 0, 0, 4, 8),
        ("instance1", 0xC8489B99, 1, 1, 1, 9),
        ("Instance1", 0xECD5F139, 1, 1, 9, 9),
        ("f71ac761454f41468d9923ac39e9bdbc", 0x6198F775, 1, 5, 1, 5),
        ("@counter@xyz", 0x94566736, 2, 6, 10, 6),
        ("manual__2024-01-01T00:00:00+00:00", 0xB81A4006, 2, 6, 10, 6),
        ("日本語-η", 0x944E4765, 1, 5, 5, 5),
        ("𝒳", 0x2857200D, 1, 5, 1, 13),
    ],
)
def test_hashes_and_partitions_match_published_values(
    text: str, value: int, of_4: int, of_8: int, of_12: int, of_16: int
) -> None:
    assert fnv1a32(text) == value
    assert [partition_of(text, count) for count in (4, 8, 12, 16)] == [of_4, of_8, of_12, of_16]


@pytest.mark.rows("K02")
@pytest.mark.parametrize(
    ("text", "value"),
    [  # from the algorithm's own test suite, by its authors
        ("b", 0xE70C2DE5),
        ("foo", 0xA9F37ED7),
        ("MyFunctionApp", 0xDDA8B646),  # the app lease's id
    ],
)
def test_hashes_match_further_known_values(text: str, value: int) -> None:
    assert fnv1a32(text) == value


@pytest.mark.rows("K02")
@given(ids, st.integers(1, 1024))
def test_every_id_has_one_partition(instance_id: str, partitions: int) -> None:
    assert 0 <= partition_of(instance_id, partitions) < partitions
    assert partition_of(instance_id, 1) == 0


@pytest.mark.rows("D25")
@pytest.mark.parametrize("step", [1, 4, 16])
@pytest.mark.parametrize("partitions", [4, 16])
def test_ids_that_count_in_steps_are_spread_over_all_partitions(partitions: int, step: int) -> None:
    found = Counter(partition_of(f"run-{number}", partitions) for number in range(0, 1000 * step, step))
    share = 1000 / partitions
    assert all(0.5 * share < found[partition] < 1.5 * share for partition in range(partitions)), found


@pytest.mark.rows("K52", "K53")
@pytest.mark.parametrize(
    ("instance_id", "key"),
    [
        ("a/b", "a^0b"),
        ("a#b?c", "a^2b^3c"),
        ("a\\b", "a^1b"),
        ("a^b", "a^^b"),
        ("a\nb", "a^Êb"),
        ("\x00", "^À"),
        ("\x1f", "^ß"),
        ("\x7f", "^Ŀ"),
        ("\x9f", "^ş"),
        ("100%", "100%"),
        ("manual__2024-01-01T00:00:00+00:00", "manual__2024-01-01T00:00:00+00:00"),
        ("日本語 𝒳", "日本語 𝒳"),
    ],
)
def test_characters_that_a_key_may_not_have_are_escaped_and_restored(instance_id: str, key: str) -> None:
    assert escape(instance_id) == key
    assert unescape(key) == instance_id


def test_an_unknown_escape_yields_its_character() -> None:
    assert unescape("a^xb^") == "axb^"


@pytest.mark.rows("K53")
@given(ids | awkward)
def test_escaping_is_undone_and_leaves_a_legal_key(instance_id: str) -> None:
    key = escape(instance_id)
    assert unescape(key) == instance_id
    assert not any(char in "/\\#?" or ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F for char in key)


@given(ids | awkward, ids | awkward)
def test_escaping_keeps_prefixes_and_no_more(one: str, other: str) -> None:
    assert escape(one + other).startswith(escape(one))
    assert escape(other).startswith(escape(one)) == other.startswith(one)


@pytest.mark.rows("K30")
@pytest.mark.parametrize(
    ("instance_id", "messages", "history"),
    [
        ("big-1", "big-1", "big-1"),
        ("a/b", "a/b", "a^0b"),
        ("a#b?c", "a#b?c", "a^2b^3c"),
        ("parent:0", "parent:0", "parent:0"),
        # no blob can be named so, or another instance's folder would be: escaped, as the history's are
        ("a\\b", "a^1b", "a^1b"),
        ("a\tb", "a^Éb", "a^Éb"),
        ("a^b", "a^^b", "a^^b"),
        ("/a", "^0a", "^0a"),
        ("a//b", "a^0^0b", "a^0^0b"),
        ("a/../b", "a^0..^0b", "a^0..^0b"),
        ("..", "..^", "..^"),
        (".", ".^", ".^"),
        ("Acme Inc.", "Acme Inc.^", "Acme Inc.^"),
        ("a./b", "a.^0b", "a.^0b"),
        ("a/b.", "a^0b.^", "a^0b.^"),
    ],
)
def test_an_id_gives_the_folders_of_its_messages_and_its_history(instance_id: str, messages: str, history: str) -> None:
    assert message_folder(instance_id) == messages
    assert history_folder(instance_id) == history
    assert blob_prefixes(instance_id) == tuple(dict.fromkeys((f"{messages}/", f"{history}/")))


@pytest.mark.parametrize(
    ("instance_id", "execution_id", "task_id", "attempt", "name"),
    [
        ("big-1", "x", 1, 2, "big-1/x/000001-002.log"),
        ("a/b.", "x", 1_234_567, 1000, "a^0b.^/x/1234567-1000.log"),
        ("big-1", None, 0, 1, "big-1//000000-001.log"),
    ],
)
def test_the_name_of_a_log_tells_its_attempt(
    instance_id: str, execution_id: str | None, task_id: int, attempt: int, name: str
) -> None:
    instance = OrchestrationInstance(instance_id=instance_id, execution_id=execution_id)
    assert log_name(instance, task_id, attempt) == name
    assert name.startswith(log_prefix(instance, task_id))
    assert log_prefix(instance, task_id).startswith(log_folder(instance))
    assert parts_of_log(name) == (execution_id or "", task_id, attempt)


@pytest.mark.rows("K30")
@given(ids | awkward)
def test_every_id_makes_legal_blob_names(instance_id: str) -> None:
    for folder in (message_folder(instance_id), history_folder(instance_id)):
        check_blob_name(f"{folder}/message-56495726e33241b4a00560544723ab6f-EventRaised.json.gz")


@pytest.mark.rows("K30")
@given(ids | awkward, ids | awkward)
def test_no_instance_owns_anothers_blobs(one: str, other: str) -> None:
    for folder in (message_folder(other), history_folder(other)):
        blob = f"{folder}/message-56495726e33241b4a00560544723ab6f-EventRaised.json.gz"
        assert owns(other, blob)
        assert owner_of(blob) == other
        assert owns(one, blob) == (one == other)


@pytest.mark.rows("K30", "K42")
@given(ids | awkward)
def test_no_instance_owns_what_is_in_quarantine(instance_id: str) -> None:
    for prefix in blob_prefixes(instance_id):
        assert not prefix.startswith(f"{QUARANTINE_FOLDER}/")
    assert owner_of(f"{QUARANTINE_FOLDER}/hub-control-00/m-text.json.gz") is None


@pytest.mark.rows("K30")
def test_job1_owns_nothing_of_job10_or_job1_part() -> None:
    """The original's prefix purge deleted both."""
    for blob in ("job10/message-0-EventRaised.json.gz", "job1/part/message-0-EventRaised.json.gz", "job1"):
        assert not owns("job1", blob)
    assert owns("job1", "job1/history-0000000000000001-TaskCompleted-00000001-Result.json.gz")
