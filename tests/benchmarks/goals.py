"""What the figures are to be, on 2 cores. A goal holds for a workload's full size only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RISING = frozenset({"per s"})
"""Units of which more is better; of all others less is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """:param value: at most, or at least for a rate. :param share: of the ceiling, at least."""

    value: float
    unit: str
    size: int
    share: float | None = None

    def __str__(self) -> str:
        sign = "≥" if self.unit in RISING else "≤"
        return f"{sign} {self.value:g}" + (f", {self.share:.0%}" if self.share is not None else "")

    def met(self, value: float, reached: float | None) -> bool:
        """:param reached: share of the ceiling, if that was measured."""
        if self.share is not None and reached is not None and reached < self.share:
            return False
        return value >= self.value if self.unit in RISING else value <= self.value


def share(value: float, ceiling: float, unit: str) -> float | None:
    """How much of the ceiling a figure reaches: 1 is as fast as the bare store, whatever the unit; None of nothing."""
    part, whole = (value, ceiling) if unit in RISING else (ceiling, value)
    return part / whole if whole else None


GOALS: Mapping[tuple[str, str, str], Goal] = {
    ("embedded", "a0", "p50"): Goal(value=3, unit="ms", size=100),
    ("embedded", "a", "finished"): Goal(value=1500, unit="per s", size=1000),
    ("embedded", "b", "whole"): Goal(value=0.4, unit="s", size=1000),
    ("embedded", "c", "step"): Goal(value=1.2, unit="ms", size=100),
    ("embedded", "d", "last / first"): Goal(value=1.1, unit="", size=1000),
    ("embedded", "i", "CPU of worker and executors"): Goal(value=1, unit="% of a core", size=60),
    ("azurite", "a0", "p50"): Goal(value=20, unit="ms", size=100),
    ("azurite", "a", "finished"): Goal(value=170, unit="per s", size=1000, share=0.9),
    ("azurite", "b", "whole"): Goal(value=4.5, unit="s", size=1000),
    ("azurite", "c", "step"): Goal(value=12, unit="ms", size=100),
    ("azurite", "d", "last / first"): Goal(value=1.1, unit="", size=1000),
    ("azurite", "i", "CPU of worker and executors"): Goal(value=1, unit="% of a core", size=60),
}
"""By store, workload and figure."""
