"""Types that let a type checker see through a call by function: what goes in, and what comes out when it is awaited.

A result comes back as plain JSON. A checker therefore sees the type that a function declares only if JSON keeps it:
texts, numbers, booleans, None, and lists and dicts of these. Any other declared result, such as a dataclass, comes back
as a dict or list, so the checker sees ``Any``. The simpler way, to show the declared type always, would be wrong at run
time.

A variable that is annotated with another type than the call gives (``text: str = await ctx.call_activity(number)``) is
accepted: mypy then takes the overload for results that it does not know. A variable without an annotation is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, TypedDict, TypeVar

from airflow_provider_taskhub.engine.retry import RetryPolicy

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class JsonList(Protocol[T_co]):
    """A list, but no tuple, which JSON gives back as a list. ``list["Json"]`` would not take a ``list[int]``."""

    def __iter__(self) -> Iterator[T_co]: ...

    def reverse(self) -> None: ...


Json = bool | int | float | str | JsonList["Json"] | Mapping[str, "Json"] | None

A = TypeVar("A")
"""The input of an activity or orchestrator."""
J = TypeVar("J", bound=Json)
"""A result that JSON keeps as it is."""


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
