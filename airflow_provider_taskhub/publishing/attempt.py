"""What one attempt does with one target: begin, commit, give up; and what is removed on these occasions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.publishing import layout
from airflow_provider_taskhub.publishing.layout import Commit, PublishMode, Writer
from airflow_provider_taskhub.publishing.log import CommitLog
from airflow_provider_taskhub.publishing.stores import Files, LocalFiles, files_of

_log = logging.getLogger(__name__)


class Publication:
    """The output of one attempt for one target.

    :param target: the target, as the user has written it.
    :param files: the files of the target.
    :param writer: the attempt.
    :ivar path: the attempt's own place, as Spark or another library takes it.
    """

    def __init__(self, target: str, files: Files, writer: Writer) -> None:
        self._target = target.rstrip("/")
        self._files = files
        self._log = CommitLog(files, self._target)
        self._writer = writer
        self.path = f"{self._target}/{layout.data_path(writer.place)}"

    @classmethod
    def opened(cls, target: str, writer: Writer, storage_options: Mapping[str, Any] | None) -> Publication:
        """Return the output of an attempt. Errors are those of :func:`.stores.files_of`."""
        return cls(target, files_of(target, storage_options), writer)

    def begin(self) -> None:
        """Shut out the earlier attempts of this call, and remove what they have left.

        The fence comes first. An earlier attempt may still run although its worker has lost it; without the fence it
        could publish a place of which this attempt has removed a part.

        :raises PublishSuperseded: if a later attempt has begun.
        :raises InputError: if this attempt has published to this target already.
        """
        if self._writer.attempt == 1:
            newest = self._log.newest()
        else:
            newest = self._log.add(self._writer.place, self._fence)
            _remove(self._files, lambda names: layout.left_places(names, newest, self._writer))
        if newest.winner(self._writer.key) == self._writer:
            raise InputError(
                f"publish({self._target!r}): this activity has published to it already: write all data in one block"
            )

    def commit(self, mode: PublishMode, keep: int) -> bool:
        """Make what was written visible, unless an attempt of this call has done it already.

        :param keep: number of earlier commits whose data stay readable.
        :returns: True: the data of this attempt count; False: those of another attempt of this call do.
        :raises PublishSuperseded: if a later attempt has begun.
        :raises InputError: if nothing was written, or the folders do not fit together.
        """
        # Before the newest commit is read: if a later attempt has removed data, the newest commit has its fence.
        partitions = _partitions(self._files, layout.data_path(self._writer.place))

        def decide(newest: Commit) -> Commit | None:
            if not layout.may_publish(newest, self._writer):
                return None
            if partitions is None or (not partitions and not self._is_shared()):
                raise InputError(
                    f"publish({self._target!r}): nothing was written to {self.path}, the path that the block has got. "
                    "Write to this path. If Spark writes on other machines, the target must be on a disk that they and "
                    "this machine share, or in HDFS or an object store"
                )
            return layout.published(newest, self._writer, partitions, mode, self._target)

        newest = self._log.add(self._writer.place, decide)
        won = newest.winner(self._writer.key) == self._writer
        try:
            if not won:
                self.discard()
            self._clean(newest, keep)
        except Exception as error:  # the data are published; the next publication removes what is left
            _log.warning("%s: what is not needed any more was not removed: %r", self._target, error)
        return won

    def _is_shared(self) -> bool:
        """Return whether a place without data is that of a DataFrame without rows.

        If the executors of a cluster write to disks of their own, this machine gets only the mark of Spark's end.
        """
        files, place = self._files, layout.data_path(self._writer.place)
        if not isinstance(files, LocalFiles):
            return True
        return all(files.is_shared(f"{place}/{name}") for name in files.names(place))

    def discard(self) -> None:
        """Remove what this attempt has written."""
        self._files.delete(layout.data_path(self._writer.place))

    def _fence(self, newest: Commit) -> Commit | None:
        if not layout.may_publish(newest, self._writer) or newest.fence(self._writer.key) == self._writer.attempt:
            return None
        return layout.fenced(newest, [self._writer])

    def _clean(self, newest: Commit, keep: int) -> None:
        """Remove earlier commits beyond ``keep``, the data of which they are the last ones, and dead places.

        The file of a commit goes last. So a clean-up that was cut off is repeated by the next publication.
        """
        versions = self._log.versions()
        if versions[-1:] != [newest.version]:
            return  # there is a newer commit: its writer cleans up
        kept = [newest]
        for version in versions[:-1]:
            if version >= newest.version - keep:
                found = self._log.read(version)
                if found is None:
                    return  # another clean-up is ahead of this one
                kept.append(found)
        for version in versions:
            dropped = self._log.read(version) if version < newest.version - keep else None
            if dropped is not None:
                for path in layout.dead_paths(dropped, newest, kept):
                    self._files.delete(path)
                self._files.delete(layout.commits_path(version))
        remove_dead(self._files, newest, kept, self._writer)


def remove_dead(files: Files, newest: Commit, kept: list[Commit], writer: Writer | None) -> list[str]:
    """Remove places and unfinished files that nobody reads and whose attempts can never publish; return their paths.

    Parameters are those of :func:`.layout.dead_places`.
    """
    return _remove(files, lambda names: layout.dead_places(names, newest, kept, writer))


def _remove(files: Files, choose: Callable[[Iterable[str]], list[str]]) -> list[str]:
    removed = []
    for folder in (layout.data_path(), layout.commits_path()):
        for name in choose(files.names(folder)):
            files.delete(f"{folder}/{name}")
            removed.append(f"{folder}/{name}")
    return removed


def _partitions(files: Files, place: str) -> list[str] | None:
    """Return the paths of the partitions in a place; one empty text if what was written has no partitions.

    A partitioned DataFrame without rows has none: Spark writes a file without rows only where there are no partitions.
    None: nothing was written.
    """
    found: list[str] = []
    waiting = [""]
    while waiting:
        partition = waiting.pop()
        names = files.names("/".join(filter(None, (place, partition))))
        if not partition and not names:
            return None
        seen = [name for name in names if not name.startswith(("_", ".")) or "=" in name]
        inner = [name for name in seen if names[name] and "=" in name]
        waiting += ["/".join(filter(None, (partition, name))) for name in inner]
        if len(seen) > len(inner):
            found.append(partition)
    return found
