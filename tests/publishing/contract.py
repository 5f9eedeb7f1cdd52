"""What every kind of files must do. The same function runs on a disk, an object store and through Spark's JVM."""

from __future__ import annotations

import threading
from collections.abc import Callable

from airflow_provider_taskhub.publishing.stores import Files


def keeps_the_contract(files: Files, put: Callable[[str, bytes], None]) -> None:
    """Check a target that has no files yet.

    :param put: writes a file of the user.
    """
    assert files.names("_taskhub/commits") == {}
    assert files.read("_taskhub/commits/1.json") is None
    files.delete("_taskhub/commits/1.json")
    put("_taskhub/data/taskhub_commit=k-1/m=a%3Ab/part-0", b"one")
    put("_taskhub/data/taskhub_commit=k-1/_SUCCESS", b"")
    put("_taskhub/data/taskhub_commit=k-10/part-0", b"ten")
    assert files.names("_taskhub/data") == {"taskhub_commit=k-1": True, "taskhub_commit=k-10": True}
    assert files.names("_taskhub/data/taskhub_commit=k-1") == {"m=a%3Ab": True, "_SUCCESS": False}
    assert files.names("_taskhub/data/taskhub_commit=k-1/m=a%3Ab") == {"part-0": False}
    put("_taskhub/commits/0.json", b"{}")
    assert files.create("_taskhub/commits/1.json", b"first", "_taskhub/commits/.k-1")
    assert not files.create("_taskhub/commits/1.json", b"second", "_taskhub/commits/.k-2")
    assert files.read("_taskhub/commits/1.json") == b"first"
    assert files.names("_taskhub/commits") == {"0.json": False, "1.json": False}, "no unfinished file is left"
    files.delete("_taskhub/commits/1.json")
    assert files.create("_taskhub/commits/1.json", b"x" * 100_000, "_taskhub/commits/.k-3")
    assert files.read("_taskhub/commits/1.json") == b"x" * 100_000
    files.delete("_taskhub/data/taskhub_commit=k-1")
    assert files.names("_taskhub/data") == {"taskhub_commit=k-10": True}
    assert files.read("_taskhub/data/taskhub_commit=k-1/m=a%3Ab/part-0") is None
    files.delete("_taskhub/data/taskhub_commit=k-1")


def creates_once(files: Files, rounds: int) -> None:
    """Eight threads create the same file at the same time. One of them does, and the file has its content."""
    for number in range(rounds):
        path, barrier = f"_taskhub/commits/{number:020}.json", threading.Barrier(8)
        winners: list[int] = []

        def create(
            who: int, path: str = path, barrier: threading.Barrier = barrier, winners: list[int] = winners
        ) -> None:
            barrier.wait()
            if files.create(path, f"by {who}".encode(), f"_taskhub/commits/.k-{who}"):
                winners.append(who)

        threads = [threading.Thread(target=create, args=(who,)) for who in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1
        assert files.read(path) == f"by {winners[0]}".encode()
    assert len(files.names("_taskhub/commits")) == rounds
