"""The recordings themselves: complete, and in the clone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import golden
from tests.golden import NAMES, load

FOLDER = Path(golden.__file__).parent


def test_all_recordings_are_here() -> None:
    assert len(NAMES) == 36
    assert sum(len(load(name).states) for name in NAMES) == 79
    assert sum(len(load(name).trace) for name in NAMES) == 4168
    assert load("purge").texts["purged.txt"].split() == ["instances", "1", "rows", "13", "requests", "10"]


@pytest.mark.process
def test_a_clone_needs_nothing_beside_it() -> None:
    """Every recording is a plain small file of this folder that git does not ignore; no link leads away."""
    files = sorted(FOLDER.glob("*.json.xz"))
    assert all(path.is_file() and not path.is_symlink() for path in files)
    assert 100_000 < sum(path.stat().st_size for path in files) < 400_000
    ignored = subprocess.run(
        ["git", "check-ignore", *map(str, files)], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert ignored.stdout == ""


def test_an_unknown_recording_is_named() -> None:
    with pytest.raises(KeyError, match="no recording 'helo'"):
        load("helo")


def test_a_recording_reads_as_calls_messages_rows() -> None:
    hello = load("hello")
    assert hello.marks[:2] == ("create", "start worker")
    assert [put.queue for put in hello.messages] == ["rechello-control-01", "rechello-workitems", "rechello-control-01"]
    assert [len(batch) for batch in hello.history] == [5, 5]
    assert [write.verb for write in hello.writes("Instances")] == ["POST", "PATCH", "PATCH"]
    assert hello.rows("2_done", "Instances")[0]["RuntimeStatus"] == {"type": "String", "value": "Completed"}
    assert load("timers").messages[1].visibility == 0
