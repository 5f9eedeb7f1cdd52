"""Values that are made for every message: dataclasses that only type checkers see as frozen.

A frozen dataclass sets each field by a call of ``object.__setattr__``, three times the cost of an assignment, and the
values of one orchestration have hundreds of fields. mypy refuses to assign to them all the same: it sees the standard
library's own decorator here. Rejected: ``dataclass_transform`` on a decorator of ours, whose classes mypy does not let
``dataclasses.replace`` take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses

    def dataclass(**options: bool):
        """As the standard library's; with ``frozen`` hashable by its fields as ever, but not guarded at run time."""
        if options.pop("frozen", False):
            options["unsafe_hash"] = options.get("eq", True)
        return dataclasses.dataclass(**options)


__all__ = ["dataclass"]
