"""What a commit contains, and all decisions about commits, as pure functions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from airflow_provider_taskhub.errors import ConfigurationError, InputError, PublishSuperseded

PublishMode = Literal["overwrite", "overwrite_partitions", "append"]
"""What a commit does with the data that the target has already."""

FOLDER = "_taskhub"
"""Spark, Hive and pyarrow skip names that begin with an underscore. So they never read an unfinished attempt."""
COLUMN = "taskhub_commit"
"""Spark takes the folder of an attempt for a value of this partition column. So folders of several attempts, with or
without partitions of the user, have one base path and are read as one DataFrame."""
FORMAT = 1
MAX_KEYS = 1_000
"""A commit remembers this number of earlier calls, so that a repeated attempt of one of them does not commit again."""
MAX_FOLDERS = 50_000
"""Folders of one target. The file of a commit names each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The attempt that publishes.

    :param key: what all attempts of one call share and no other call has.
    :param attempt: number of the attempt. A larger number is a later attempt.
    """

    key: str
    attempt: int

    @property
    def place(self) -> str:
        """The name of this attempt's own place."""
        return f"{self.key}-{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Folder:
    """One folder with data.

    :param place: the place of the attempt that has written it.
    :param partition: the path of the partition inside the place, such as ``year=2024/month=3``; "" without partitions.
    """

    place: str
    partition: str = ""

    @property
    def path(self) -> str:
        """The path below the target."""
        return "/".join(filter(None, (data_path(self.place), self.partition)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The content of one commit file: what the target consists of from now on.

    :param version: number of the commit, from 1.
    :param folders: all folders with the target's data.
    :param committed: calls that have published, and the attempt that did it; newest last.
    :param fences: for calls that have not published: attempts below this number must not publish.
    """

    version: int = 0
    folders: tuple[Folder, ...] = ()
    committed: tuple[Writer, ...] = ()
    fences: tuple[Writer, ...] = ()

    def winner(self, key: str) -> Writer | None:
        """Return the attempt of a call that has published; None: the call has not published."""
        for one in reversed(self.committed):
            if one.key == key:
                return one
        # Data that the target still has also tells it, when the list of calls has become too short.
        places = (folder.place for folder in self.folders if folder.place.startswith(key))
        owners = (writer_of(f"{COLUMN}={place}") for place in places)
        return next((one for one in owners if one is not None and one.key == key), None)

    def fence(self, key: str) -> int:
        """Return the number of the first attempt of a call that may publish."""
        return max((one.attempt for one in self.fences if one.key == key), default=0)


NO_COMMIT = Commit()
"""What a target without any commit is like."""


def safe_key(idempotency_key: str) -> str:
    """Return a text for names of folders that stands for the key: most often the key itself."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}", idempotency_key):
        return idempotency_key
    return hashlib.sha256(idempotency_key.encode()).hexdigest()[:32]


def data_path(place: str = "") -> str:
    """Return the path, below the target, of a place; without a name, of the folder with all places."""
    return f"{FOLDER}/data" + (f"/{COLUMN}={place}" if place else "")


def commits_path(version: int = 0) -> str:
    """Return the path, below the target, of a commit; without a number, of the folder with all commits."""
    return f"{FOLDER}/commits" + (f"/{version:020}.json" if version else "")


def scratch_path(place: str) -> str:
    """Return the path, below the target, of a file that becomes a commit. One attempt has one such file."""
    return f"{FOLDER}/commits/.{COLUMN}={place}"


def versions(names: Iterable[str]) -> list[int]:
    """Return the numbers of the commits among the names of files, in order."""
    return sorted(int(name[:20]) for name in names if re.fullmatch(r"\d{20}\.json", name))


def writer_of(name: str) -> Writer | None:
    """Return the attempt that owns a folder or an unfinished file, by its name; None: the name is not one of ours."""
    found = re.fullmatch(rf"\.?{COLUMN}=(.+)-(\d+)", name)
    return Writer(key=found[1], attempt=int(found[2])) if found else None


def owned(names: Iterable[str]) -> dict[str, Writer]:
    """Return, of some names, those of folders and unfinished files of attempts, and the attempt that owns each."""
    return {name: owner for name in names if (owner := writer_of(name)) is not None}


def check_mode(mode: str) -> None:
    """Check that there is such a mode.

    :raises InputError: if there is none.
    """
    modes = get_args(PublishMode)
    if mode not in modes:
        raise InputError(f"publish(mode={mode!r}): the modes are {', '.join(map(repr, modes))}")


def may_publish(commit: Commit, writer: Writer) -> bool:
    """Return whether a call is open: True, or False if an attempt of the call has published already.

    :raises PublishSuperseded: if a later attempt has begun, or :func:`.reading.remove_unpublished` was called.
    """
    if commit.winner(writer.key) is not None:
        return False
    if commit.fence(writer.key) > writer.attempt:
        raise PublishSuperseded(
            f"attempt {writer.attempt} of this activity must not publish: either attempt {commit.fence(writer.key)} "
            "has begun because the worker had lost this one, or remove_unpublished() was called while this one wrote. "
            "A later attempt publishes the data; if there is none, start the activity again"
        )
    return True


def fenced(commit: Commit, writers: Collection[Writer]) -> Commit:
    """Return the next commit that changes no data and shuts out all attempts before those of the writers."""
    keys = {one.key for one in writers}
    others = tuple(one for one in commit.fences if one.key not in keys)
    return replace(commit, version=commit.version + 1, fences=(*others, *writers)[-MAX_KEYS:])


def published(commit: Commit, writer: Writer, partitions: Collection[str], mode: PublishMode, target: str) -> Commit:
    """Return the next commit, which has the data of this attempt.

    :param partitions: what the attempt has written: paths of partitions, or one empty text.
    :param target: for errors.
    :raises InputError: if the folders do not fit together, or there are too many.
    """
    new = tuple(Folder(place=writer.place, partition=partition) for partition in sorted(partitions))
    kept = () if mode == "overwrite" else commit.folders
    if mode == "overwrite_partitions":
        if "" in partitions:
            raise InputError(
                f"publish({target!r}, mode='overwrite_partitions'): what was written has no partitions: write it with "
                "partitionBy(…), or use mode='overwrite'"
            )
        kept = tuple(folder for folder in kept if folder.partition not in partitions)
    columns = {columns_of(folder.partition) for folder in (*kept, *new)}
    if len(columns) > 1:
        shown = " and ".join(sorted(", ".join(one) or "no partitions" for one in columns))
        raise InputError(f"publish({target!r}): its folders must have the same partition columns, and have {shown}")
    if len(kept) + len(new) > MAX_FOLDERS:
        raise InputError(
            f"publish({target!r}): it would have {len(kept) + len(new):,} folders: at most {MAX_FOLDERS:,}. "
            "Write it anew with mode='overwrite', or use a table format"
        )
    return replace(
        commit,
        version=commit.version + 1,
        folders=(*kept, *new),
        committed=(*commit.committed, writer)[-MAX_KEYS:],
        fences=tuple(one for one in commit.fences if one.key != writer.key),
    )


def columns_of(partition: str) -> tuple[str, ...]:
    """Return the names of the columns in the path of a partition."""
    return tuple(part.partition("=")[0] for part in partition.split("/")) if partition else ()


def is_dead(owner: Writer, newest: Commit) -> bool:
    """Return whether an attempt can never publish: its call has published, or a later attempt has begun.

    A call that has not published is never dead by itself, because it may be writing now.
    """
    return newest.winner(owner.key) is not None or newest.fence(owner.key) > owner.attempt


def dead_places(names: Iterable[str], newest: Commit, kept: Iterable[Commit], writer: Writer | None) -> list[str]:
    """Return the names that nobody reads and whose attempts can never publish.

    :param names: names in the folder of all places, or in the folder of all commits.
    :param kept: the commits that readers may still use, with the newest.
    :param writer: the attempt that asks. Its own place stays; None: no attempt asks.
    """
    read = {folder.place for commit in kept for folder in commit.folders}
    return sorted(
        name
        for name, owner in owned(names).items()
        if owner != writer and owner.place not in read and is_dead(owner, newest)
    )


def left_places(names: Iterable[str], newest: Commit, writer: Writer) -> list[str]:
    """Return the names that earlier attempts of the same call have left, without the attempt that has published."""
    return sorted(
        name
        for name, owner in owned(names).items()
        if owner.key == writer.key and owner.attempt < writer.attempt and owner != newest.winner(writer.key)
    )


def dead_paths(dropped: Commit, newest: Commit, kept: Iterable[Commit]) -> list[str]:
    """Return what a dropped commit has and no kept commit has: paths of folders and of whole places.

    A dropped commit that was never the newest one names a place that its writer publishes later. That place stays.
    """
    read = {folder for commit in kept for folder in commit.folders}
    places = {folder.place for folder in read}
    pending = {one.place for one in dropped.committed[-1:] if newest.winner(one.key) is None}
    gone = {folder for folder in dropped.folders if folder not in read and folder.place not in pending}
    return sorted({folder.path if folder.place in places else data_path(folder.place) for folder in gone})


def dumped(commit: Commit) -> bytes:
    """Return the text of a commit file."""
    value = {
        "format": FORMAT,
        "version": commit.version,
        "folders": [[one.place, one.partition] for one in commit.folders],
        "committed": [[one.key, one.attempt] for one in commit.committed],
        "fences": [[one.key, one.attempt] for one in commit.fences],
    }
    return json.dumps(value, separators=(",", ":")).encode()


def loaded(text: bytes, path: str) -> Commit:
    """Return the commit that a file contains.

    :param path: for the error.
    :raises ConfigurationError: if a newer version of TaskHub has written the file, or the file is damaged.
    """
    try:
        value = json.loads(text)
        if value["format"] != FORMAT:
            raise ConfigurationError(
                f"{path} has format {value['format']!r}, and this version of TaskHub reads format {FORMAT}: upgrade it"
            )
        return Commit(
            version=value["version"],
            folders=tuple(Folder(place=place, partition=partition) for place, partition in value["folders"]),
            committed=tuple(Writer(key=key, attempt=attempt) for key, attempt in value["committed"]),
            fences=tuple(Writer(key=key, attempt=attempt) for key, attempt in value["fences"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{path} is no commit of TaskHub or is damaged: {error!r}") from error
