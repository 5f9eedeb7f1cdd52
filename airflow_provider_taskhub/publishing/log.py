"""The commits of one target: read the newest one, and add the next one if nobody else has added it."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_taskhub.errors import TaskHubError
from airflow_provider_taskhub.publishing import layout
from airflow_provider_taskhub.publishing.layout import NO_COMMIT, Commit
from airflow_provider_taskhub.publishing.stores import Files

_TRIES = 100
"""Each try that fails means that another attempt has committed, so this number of others may be faster than we are."""
_FAILURES = 3
"""Errors of the file system until an activity gets the error. After each of them the newest commit is read again."""


class CommitLog:
    """The commits of one target.

    :param files: the files of the target.
    :param target: for errors.
    """

    def __init__(self, files: Files, target: str) -> None:
        self.files = files
        self.target = target

    def versions(self) -> list[int]:
        """Return the numbers of the commits that are there, in order."""
        return layout.versions(self.files.names(layout.commits_path()))

    def read(self, version: int) -> Commit | None:
        """Return one commit; None: it is not there (any more)."""
        path = layout.commits_path(version)
        text = self.files.read(path)
        return None if text is None else layout.loaded(text, f"{self.target}/{path}")

    def newest(self) -> Commit:
        """Return the newest commit, or ``NO_COMMIT``.

        :raises TaskHubError: if others replace the newest commit faster than it can be read.
        """
        for _ in range(_TRIES):
            versions = self.versions()
            if not versions:
                return NO_COMMIT
            found = self.read(versions[-1])
            if found is not None:
                return found
        raise TaskHubError(f"{self.target}: commits were deleted {_TRIES} times before they could be read")

    def add(self, place: str, decide: Callable[[Commit], Commit | None]) -> Commit:
        """Add the commit that ``decide`` makes of the newest one; return the newest commit, which has the decision.

        :param place: the place of the attempt that asks. It gives an unfinished file its name.
        :param decide: gets the newest commit; returns the next one, or None if the newest one has the decision already.
            It is called again if another attempt was faster, or if it is not known whether the file was created.
        :raises TaskHubError: if others were faster too often. Errors of the file system are raised as they are.
        """
        failures = 0
        for _ in range(_TRIES):
            newest = self.newest()
            wanted = decide(newest)
            if wanted is None:
                return newest
            try:
                created = self.files.create(
                    layout.commits_path(wanted.version), layout.dumped(wanted), layout.scratch_path(place)
                )
            except Exception:  # each file system has errors of its own; the answer may be lost, and the file created
                failures += 1
                if failures == _FAILURES:
                    raise
                continue
            # The file of a number is created a second time if others have deleted it after many commits. Such a commit
            # counts for nobody. So the newest commit decides, and not that a file was created.
            if created and self.versions()[-1:] == [wanted.version]:
                return wanted
        raise TaskHubError(
            f"publish({self.target!r}): others were faster {_TRIES} times: publish from fewer activities"
        )
