"""Each kind of files, and which target has which."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest

from airflow_provider_taskhub.errors import ConfigurationError, InputError
from airflow_provider_taskhub.publishing.objects import ObjectFiles
from airflow_provider_taskhub.publishing.stores import LocalFiles, files_of
from tests.publishing.contract import creates_once, keeps_the_contract
from tests.publishing.world import DiskFiles, MemoryFiles


@pytest.mark.parametrize("url", [False, True])
def test_files_on_a_disk(tmp_path: Path, url: bool) -> None:
    root = tmp_path / "a target"
    files = files_of(f"file://{root}" if url else f"{root}", None)
    assert isinstance(files, LocalFiles)
    keeps_the_contract(files, DiskFiles(root).put)


def test_eight_threads_create_one_file_on_a_disk(tmp_path: Path) -> None:
    creates_once(LocalFiles(str(tmp_path)), rounds=20)


def test_files_in_memory_for_tests_behave_like_the_others() -> None:
    files = MemoryFiles()
    keeps_the_contract(files, files.put)


def test_a_disk_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(ConfigurationError, match=r"cannot make a hard link .* publish to another disk"):
        LocalFiles(str(tmp_path)).create("a/b", b"", "a/c")
    assert list((tmp_path / "a").iterdir()) == []


@pytest.fixture
def container(azurite: str) -> tuple[str, dict[str, str]]:
    """A container of its own, and the options that open it."""
    options = {"connection_string": azurite}
    name = f"publish{uuid.uuid4().hex[:12]}"
    fsspec.filesystem("abfs", **options).mkdir(name)
    return f"abfs://{name}/tables/flights", options


def test_files_in_an_object_store(container: tuple[str, dict[str, str]]) -> None:
    target, options = container
    files = files_of(target, options)
    assert isinstance(files, ObjectFiles)
    system, root = fsspec.url_to_fs(target, **options)
    keeps_the_contract(files, lambda path, content: system.pipe_file(f"{root}/{path}", content))
    creates_once(files_of(f"{target}2", options), rounds=5)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "the target '' is no folder"),
        ("monthly", "is a relative path"),
        ("file:monthly", "is a relative path"),
        ("/lake/month[1]", r"has the sign \[, which Spark takes for a part of a pattern"),
        ("file:///a%20target", "Spark and pyarrow read in different ways"),
        ("file:///a?b", "use a folder without them in its path"),
        ("ftp://host/a", "has the scheme 'ftp'; publish\\(\\) knows file, hdfs, viewfs, ofs, s3"),
        ("dbfs:/a", "has the scheme 'dbfs'"),
    ],
)
def test_a_target_that_cannot_be_is_refused(target: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        files_of(target, None)


def test_a_password_in_the_url_is_refused_and_not_shown() -> None:
    with pytest.raises(InputError, match=r"contains a password, .*: pass it in storage_options") as caught:
        files_of("s3://key:hidden@bucket/a", None)
    assert "hidden" not in str(caught.value)


def test_options_of_an_object_store_are_for_object_stores() -> None:
    with pytest.raises(InputError, match="takes no storage_options"):
        files_of("/data/a", {"key": "secret"})


def test_hdfs_needs_a_classic_session() -> None:
    with pytest.raises(ConfigurationError, match="needs a Spark activity with a classic session"):
        files_of("hdfs://name:8020/a", None)


def test_a_missing_package_and_an_old_one_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"needs the package s3fs .*: pip install s3fs"):
        files_of("s3a://bucket/a", {"key": "k", "secret": "top-secret"})
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "2024.7.0")
    options: dict[str, Any] = {"account_name": "a"}
    with pytest.raises(ConfigurationError, match=r"needs adlfs 2024\.12 or newer, and 2024\.7\.0 is installed"):
        files_of("abfs://container/a", options)
