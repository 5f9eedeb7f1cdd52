"""What an activity may declare as its inlets and outlets."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_taskhub.activity import ActivityInfo, Attempt, entered, inlet, outlet
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.lineage import MAX_CHARACTERS, MAX_URI, DeclaredLineage, Lineage

WRONG = [
    ("monthly", "is not a URI: write for example"),
    ("", "is not a URI"),
    ("s3:", "is not a URI"),
    ("s3://bucket/a b", r"urllib.parse.quote"),
    ("s3://bucket/ü", r"urllib.parse.quote"),
    ("s3://bucket/a\nb", r"urllib.parse.quote"),
    ("http://[::1/x", "is not a URI"),
    ("airflow://x", "Airflow keeps the scheme"),
    ("s3://bucket/" + "x" * MAX_URI, f"a URI has at most {MAX_URI:,}"),
    (7, "is of type int: pass the URI as a text"),
]


@pytest.mark.parametrize(("uri", "text"), WRONG, ids=[str(uri)[:20] for uri, _ in WRONG])
def test_a_wrong_uri_is_refused_also_outside_of_an_activity(uri: str, text: str) -> None:
    for declare in (inlet, outlet, DeclaredLineage().outlet):
        with pytest.raises(InputError, match=text):
            declare(uri)


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(InputError, match="contains a password") as refused:
        outlet("postgresql://me:hush@db/sales/daily")
    assert "hush" not in str(refused.value)
    outlet("abfss://container@account.dfs.core.windows.net/daily")  # a user without a password is a part of the place


@pytest.mark.parametrize(
    "uri",
    [
        "https://account.blob.core.windows.net/container/daily?sv=2025-01-05&sig=hush%3D",
        "https://bucket.s3.amazonaws.com/daily?X-Amz-Credential=me&X-Amz-Signature=hush",
        "https://api.example.com/daily?access_token=hush",
        "postgresql://me:hush@db/sales daily",
        "postgresql://me:hush@[db/sales",
        "https://api.example.com/daily#access_token=hush",
        "daily#sig=hush",
        "airflow://daily#sig=hush",
    ],
)
def test_a_secret_in_a_uri_is_refused_and_not_repeated(uri: str) -> None:
    """Airflow and OpenLineage would store it, and their pages would show it."""
    with pytest.raises(InputError) as refused:
        outlet(uri)
    assert "hush" not in str(refused.value)


def test_a_folder_with_the_name_of_a_secret_is_no_secret() -> None:
    outlet("s3://bucket/password=old/secret=none/daily?versionId=7")


def test_each_uri_counts_once_and_keeps_its_place() -> None:
    declared = DeclaredLineage()
    for uri in ("s3://b/2", "s3://b/1", "s3://b/2"):
        declared.outlet(uri)
        declared.inlet(uri.replace("s3", "gs"))
    assert declared.declared() == Lineage(inlets=("gs://b/2", "gs://b/1"), outlets=("s3://b/2", "s3://b/1"))


def test_there_is_a_limit_to_all_uris_of_an_attempt() -> None:
    declared = DeclaredLineage()
    size = 100
    for number in range(MAX_CHARACTERS // size):
        declared.outlet(f"s3://b/{number:0{size - 7}}")
    with pytest.raises(InputError, match="at most 20,000 characters together, and it has declared 200 already"):
        declared.outlet("s3://b/one/more")
    declared.outlet(f"s3://b/{0:0{size - 7}}")  # known already
    declared.inlet("s3://b/one/more")
    assert len(declared.declared().outlets) == 200


def test_any_thread_of_the_attempt_may_declare() -> None:
    attempt = Attempt(
        info=ActivityInfo(
            name="a", instance_id="i", execution_id=None, task_id=0, attempt=1, idempotency_key="k", tags={}
        ),
        report=lambda fraction, message: None,
    )

    def declare(number: int) -> None:
        with entered(attempt):
            for each in range(50):
                outlet(f"s3://b/{number}/{each}")

    threads = [threading.Thread(target=declare, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(attempt.lineage.declared().outlets) == 200
