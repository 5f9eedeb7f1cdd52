"""Keeps the result of an activity that is too large for the hub in a file, so that its work is not lost."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

KEPT, MOST_BYTES = 20, 5 * 1024**3
"""How many results are kept, and how many bytes of them. Older ones are deleted; the newest one stays."""
_UNFINISHED = 3600.0
"""Seconds after which a file that nobody has finished is deleted: its executor was killed."""
_LONGEST_ID = 100
_OURS = re.compile(r".*-\d+-[0-9a-f]{8}\.(json|part)")


def keep(text: bytes, folder: Path, *, instance_id: str, task_id: int, machine: str) -> str:
    """Write a result into a file of its own that only this user can read.

    :param text: the result as JSON.
    :param folder: where results are kept. It is created if it does not exist.
    :param machine: the name of this machine, for people.
    :returns: a sentence that says where the result is, or why it could not be kept.
    """
    name = f"{quote(instance_id, safe='')[:_LONGEST_ID]}-{task_id}-{uuid4().hex[:8]}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / name
        unfinished = path.with_suffix(".part")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(text)
            unfinished.rename(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    except OSError as error:
        return f"The result could not be kept in {folder} ({error.strerror or error}): it is lost"
    with suppress(OSError):  # the result is kept all the same
        _remove_older(folder)
    return f"The result is kept as JSON in {path} on {machine}. Take it soon: only the newest {KEPT} stay, and 5 GiB"


def _remove_older(folder: Path) -> None:
    """Remove what is not kept any more. Ages are counted from the newest file, by the clock of the file system: the
    folder may be on another machine.
    """
    found = []
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name):  # others are files of somebody else
            with suppress(FileNotFoundError):  # another executor removes it
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
    found.sort(reverse=True)
    finished = [one for one in found if one[2].suffix == ".json"]
    size = 0
    for number, (_, bytes_, path) in enumerate(finished):
        size += bytes_
        if number >= KEPT or (number and size > MOST_BYTES):
            path.unlink(missing_ok=True)
    for modified, _, path in found:
        if path.suffix == ".part" and found[0][0] - modified > _UNFINISHED:
            path.unlink(missing_ok=True)
