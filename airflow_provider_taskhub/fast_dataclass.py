"""A faster dataclass decorator, because each message needs many values. Only the type checker enforces ``frozen``.

A real frozen dataclass sets each field by a call of ``object.__setattr__``. That costs three times as much as an
assignment, and the values of one orchestration have hundreds of fields. mypy sees the standard library's decorator
here, so mypy reports an assignment to a field as an error. Rejected: ``dataclass_transform`` on a decorator of our own,
because mypy does not accept objects of such classes as arguments of ``dataclasses.replace``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses

    def dataclass(**options: bool):
        """Make a dataclass. With ``frozen=True`` its fields give its hash, but Python does not refuse assignments."""
        if options.pop("frozen", False):
            options["unsafe_hash"] = options.get("eq", True)
        return dataclasses.dataclass(**options)


__all__ = ["dataclass"]
