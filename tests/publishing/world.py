"""A target whose files ask a plan before and after each operation, and a reader that looks between all operations."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_taskhub.publishing import layout
from airflow_provider_taskhub.publishing.attempt import Publication
from airflow_provider_taskhub.publishing.layout import PublishMode, Writer
from airflow_provider_taskhub.publishing.log import CommitLog
from airflow_provider_taskhub.publishing.stores import Files, LocalFiles

Rows = dict[str, list[int]]
"""What a target or an attempt has: the numbers in each partition."""


class Died(BaseException):
    """The process ended here."""


@dataclass
class Watched:
    """Files of one attempt. Each operation is a step, and so is each file that the user's code writes."""

    inner: Files
    before: Callable[[int, str], None] = lambda number, what: None
    after: Callable[[int, str], None] = lambda number, what: None
    steps: list[str] = field(default_factory=list)

    def step(self, what: str, operation: Callable[[], object]) -> object:
        number = len(self.steps)
        self.steps.append(what)
        self.before(number, what)
        result = operation()
        self.after(number, what)
        return result

    def names(self, path: str) -> dict[str, bool]:
        return self.step(f"names {path}", lambda: self.inner.names(path))  # type: ignore[return-value]

    def read(self, path: str) -> bytes | None:
        return self.step(f"read {path}", lambda: self.inner.read(path))  # type: ignore[return-value]

    def create(self, path: str, content: bytes, scratch: str) -> bool:
        return self.step(f"create {path}", lambda: self.inner.create(path, content, scratch))  # type: ignore[return-value]

    def delete(self, path: str) -> None:
        self.step(f"delete {path}", lambda: self.inner.delete(path))


class MemoryFiles:
    """Files in memory, with the rules of an object store: folders are only parts of names."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def names(self, path: str) -> dict[str, bool]:
        inside = [name[len(path) + 1 :] for name in self.content if name.startswith(f"{path}/")]
        return {name.partition("/")[0]: "/" in name for name in inside}

    def read(self, path: str) -> bytes | None:
        return self.content.get(path)

    def create(self, path: str, content: bytes, scratch: str) -> bool:
        return self.content.setdefault(path, content) is content

    def put(self, path: str, content: bytes) -> None:
        """Write a file as the user's code does."""
        self.content[path] = content

    def delete(self, path: str) -> None:
        for name in [name for name in self.content if name == path or name.startswith(f"{path}/")]:
            del self.content[name]

    def delete_one(self, path: str) -> None:
        """Delete only the first file of a folder."""
        for name in sorted(name for name in self.content if name.startswith(f"{path}/"))[:1]:
            del self.content[name]


class DiskFiles(LocalFiles):
    """Files on this disk."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self._folder = root

    def put(self, path: str, content: bytes) -> None:
        """Write a file as the user's code does."""
        os.makedirs((self._folder / path).parent, exist_ok=True)
        (self._folder / path).write_bytes(content)

    def delete_one(self, path: str) -> None:
        """Delete only the first file of a folder."""
        for file in sorted(found for found in (self._folder / path).rglob("*") if found.is_file())[:1]:
            file.unlink()


@dataclass(kw_only=True)
class Target:
    """A target, and what attempts and readers do with it."""

    files: MemoryFiles | DiskFiles
    keep: int = 2

    def publish(self, key: str, attempt: int, rows: Rows, mode: PublishMode, files: Files | None = None) -> bool:
        """What one attempt does: two files in each partition, then the commit."""
        watched = files or self.files
        publication = Publication("/target", watched, Writer(key=key, attempt=attempt))
        publication.begin()
        place = layout.data_path(f"{key}-{attempt}")
        for partition, numbers in rows.items():
            for part in (0, 1):
                name = "/".join(filter(None, (place, partition, f"part-{part}")))
                text = json.dumps(numbers[part::2]).encode()
                if isinstance(watched, Watched):
                    watched.step(f"write {name}", lambda name=name, text=text: self.files.put(name, text))
                else:
                    self.files.put(name, text)
        self.files.put(f"{place}/_SUCCESS", b"")
        return publication.commit(mode, self.keep)

    def read(self) -> Rows:
        """What a reader sees. Each of the folders must be there, whole."""
        found: Rows = {}
        for folder in CommitLog(self.files, "/target").newest().folders:
            names = sorted(name for name in self.files.names(folder.path) if name.startswith("part-"))
            assert names == ["part-0", "part-1"], f"a reader found {names} in {folder}"
            for name in names:
                text = self.files.read(f"{folder.path}/{name}")
                assert text is not None
                found.setdefault(folder.partition, []).extend(json.loads(text))
        return {partition: sorted(numbers) for partition, numbers in found.items()}

    def orphans(self) -> list[str]:
        """Places and files that no kept commit knows."""
        log = CommitLog(self.files, "/target")
        versions = log.versions()
        commits = [commit for version in versions if (commit := log.read(version)) is not None]
        read = {folder for commit in commits for folder in commit.folders}
        places = self.files.names(layout.data_path())
        found = [f"place {name}" for name in places if name.partition("=")[2] not in {one.place for one in read}]
        for folder in self.files.names(layout.data_path()):
            inside = self.files.names(f"{layout.data_path()}/{folder}")
            known = {one.partition for one in read if folder.endswith(f"={one.place}")}
            found += [f"partition {folder}/{name}" for name in inside if "=" in name and name not in known]
        known_files = {f"{version:020}.json" for version in versions}
        found += [f"file {name}" for name in set(self.files.names(layout.commits_path())) - known_files]
        if len(versions) > self.keep + 1:
            found.append(f"{len(versions)} commits")
        return found
