"""Types with which a type checker checks calls of activities and children: the input, and the awaited result.

The result of an activity or child is decoded to the type that its function declares, so a type checker sees this type.
``testing.run`` returns the result of an orchestration as clients read it, as plain JSON. There a type checker sees the
declared type only if JSON keeps it: texts, numbers, booleans, None, and lists and dicts of these. Any other declared
result, such as a dataclass, is a dict or list there, so the type checker sees ``Any``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, TypedDict, TypeVar

from airflow_provider_taskhub.engine.retry import RetryPolicy

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class JsonList(Protocol[T_co]):
    """A list. A tuple does not match, because JSON turns it into a list.

    This is a protocol because ``list["Json"]`` would not match a ``list[int]``: the type ``list`` is invariant.
    """

    def __iter__(self) -> Iterator[T_co]: ...

    def reverse(self) -> None: ...


Json = bool | int | float | str | JsonList["Json"] | Mapping[str, "Json"] | None

A = TypeVar("A")
"""Type of the input of an activity or orchestrator."""
J = TypeVar("J", bound=Json)
"""Type of a result that is the same after it was stored as JSON."""


class CallOptions(TypedDict, total=False):
    """Options of ``OrchestrationContext.call_activity``."""

    retry: RetryPolicy | None
    retry_policy: RetryPolicy | None
    version: str
    tags: Mapping[str, str] | None


class ChildOptions(TypedDict, total=False):
    """Options of ``OrchestrationContext.call_sub_orchestrator``."""

    instance_id: str | None
    retry: RetryPolicy | None
    retry_policy: RetryPolicy | None
    version: str | None
    tags: Mapping[str, str] | None
    fire_and_forget: bool
