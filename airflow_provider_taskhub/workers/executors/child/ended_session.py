"""What becomes of the Python object of a Spark session when its attempt has ended.

User code may keep the object, for example in a function with ``lru_cache``, in a module that an activity imports, or in
a thread of a pool. A later attempt must not get the session of an earlier one: it would see its views and settings.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from typing import Any

from airflow_provider_taskhub.errors import ConfigurationError


def hand_over(session: Any, current: ContextVar[Any]) -> None:
    """Make the object of an ended session stand for the session of the attempt that uses the object.

    :param session: a session of PySpark, classic or of Spark Connect. Nothing of TaskHub uses it any more.
    :param current: the session of the attempt that runs in the current context.
    """
    kind: Any = type(session)
    session.__class__ = _forwarding(kind, current)


@cache
def _forwarding(kind: Any, current: ContextVar[Any]) -> type:
    def of_attempt(ended: Any, name: str) -> Any:
        session = current.get(None)
        if session is None:
            raise ConfigurationError(
                "this Spark session belongs to an activity that has ended, and no activity runs in this thread: use "
                "the session that the activity gets as its argument"
            )
        return getattr(session, name)

    return type(f"Ended{kind.__name__}", (kind,), {"__getattribute__": of_attempt})
