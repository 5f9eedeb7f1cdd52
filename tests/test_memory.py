"""Amounts of memory as text, and what this machine or its container gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_taskhub.machine import cores_of_machine, memory_of_machine
from airflow_provider_taskhub.memory import MOST, memory_of, memory_text

G = 1024**3


@pytest.mark.parametrize(
    ("text", "amount"),
    {
        "4g": 4 * G,
        "4G": 4 * G,
        "4gb": 4 * G,
        " 4 GB ": 4 * G,
        "512m": G // 2,
        "1t": 1024 * G,
        "1.5g": 3 * G // 2,
        "8k": 8192,
        MOST: 1024 * 1024 * G,
    }.items(),
)
def test_a_text_is_an_amount(text: str, amount: int) -> None:
    assert memory_of(text) == amount


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "g", "4", "-4g", "0g", "0.00001k", "4x", "4gib", "4 g b", "four", "1025t", "9" * 400 + "g"),
        *("inf", "nang", 4, 4.0, True, None, b"4g", "٤g", "4g,8g"),
    ],
)
def test_any_other_value_is_refused_with_the_way_out(wrong: object) -> None:
    with pytest.raises(
        ValueError, match=r"give a number with k, m, g or t, such as '4g' or '512m', above 0 and at most"
    ):
        memory_of(wrong)


@pytest.mark.parametrize("text", ["4g", "64g", "1536m", "4095m", "1t", "9999k"])
def test_an_amount_is_shown_as_it_was_given(text: str) -> None:
    assert memory_text(memory_of(text)) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [(1024 * G, "1t"), (16_533_123_072, "15.39g"), (0, "0k"), (100, "0.09k"), (16 * G - 1, "15.99g")],
)
def test_an_odd_amount_is_rounded_down(amount: int, text: str) -> None:
    assert memory_text(amount) == text


def _machine(root: Path, groups: str, **limits: str) -> Path:
    """The root of a machine with these control groups. :param limits: by file, with ``__`` for ``/``."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for file, limit in limits.items():
        path = root / "sys/fs/cgroup" / file.replace("__", "/").replace("-", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(limit + "\n")
    return root


PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
V2, V1 = "memory-max", "memory-limit_in_bytes"
FEW, FEWER = str(64 * 1024**2), str(32 * 1024**2)


@pytest.mark.parametrize(
    ("groups", "limits", "found"),
    [
        ("", {}, PHYSICAL),
        ("0::/\n", {V2: FEW}, int(FEW)),
        ("0::/\n", {V2: "max"}, PHYSICAL),
        ("0::/\n", {V2: str(PHYSICAL * 8)}, PHYSICAL),
        ("0::/a/b\n", {f"a__b__{V2}": FEW}, int(FEW)),
        ("0::/a/b\n", {f"a__b__{V2}": "max", f"a__{V2}": FEW}, int(FEW)),
        ("0::/a/b\n", {f"a__b__{V2}": FEW, f"a__{V2}": FEWER}, int(FEWER)),
        ("0::/a\n", {f"other__{V2}": FEW}, PHYSICAL),
        ("5:cpu,memory:/c\n0::/\n", {f"memory__c__{V1}": FEW}, int(FEW)),
        ("5:memory:/docker/123\n", {f"memory__{V1}": FEW}, int(FEW)),
        ("5:memory:/c\n", {f"memory__c__{V1}": "9223372036854771712"}, PHYSICAL),
        ("5:cpu:/c\n", {f"memory__c__{V1}": FEW}, PHYSICAL),
        ("nonsense\n", {V2: "nonsense"}, PHYSICAL),
        ("0::/\n", {V2: "0"}, PHYSICAL),
    ],
)
def test_a_worker_has_what_its_container_allows(
    tmp_path: Path, groups: str, limits: dict[str, str], found: int
) -> None:
    assert memory_of_machine(_machine(tmp_path, groups, **limits)) == found


CORES = len(os.sched_getaffinity(0))
CPU_V2, QUOTA, PERIOD = "cpu-max", "cpu-cfs_quota_us", "cpu-cfs_period_us"


@pytest.mark.parametrize(
    ("groups", "limits", "found"),
    [
        ("", {}, CORES),
        ("0::/\n", {CPU_V2: "max 100000"}, CORES),
        ("0::/\n", {CPU_V2: "50000 100000"}, 1),
        ("0::/a/b\n", {f"a__b__{CPU_V2}": "max 100000", f"a__{CPU_V2}": "100000 100000"}, 1),
        ("0::/\n", {CPU_V2: "9900000 100000"}, CORES),
        ("0::/\n", {CPU_V2: "50000"}, CORES),
        ("4:cpu,cpuacct:/c\n", {f"cpu__c__{QUOTA}": "100000", f"cpu__c__{PERIOD}": "100000"}, 1),
        ("4:cpu,cpuacct:/c\n", {f"cpu__c__{QUOTA}": "-1", f"cpu__c__{PERIOD}": "100000"}, CORES),
        ("nonsense\n", {CPU_V2: "nonsense"}, CORES),
    ],
)
def test_a_container_may_have_fewer_cores_than_its_machine(
    tmp_path: Path, groups: str, limits: dict[str, str], found: int
) -> None:
    assert cores_of_machine(_machine(tmp_path, groups, **limits)) == found
