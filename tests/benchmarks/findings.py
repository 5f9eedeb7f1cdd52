"""What the measurement of growth finds: the lines of its table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A line of the table. :param goal: None: shown, but nothing is asked of it. :param most: it is an upper bound."""

    part: str
    what: str
    value: float
    unit: str
    goal: float | None = None
    most: bool = True

    @property
    def met(self) -> bool:
        return self.goal is None or (self.value <= self.goal if self.most else self.value >= self.goal)


Findings = AsyncIterator[Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is measured. :param scale: 0.1: a tenth of every size. :param rounds: turns of what takes turns."""

    scale: float = 1.0
    rounds: int = 5

    def of(self, size: int, *, least: int = 10) -> int:
        return max(least, round(size * self.scale))
