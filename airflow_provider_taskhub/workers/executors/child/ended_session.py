"""What becomes of the Python object of a Spark session when its attempt has ended.

User code may keep the object, for example in a function with ``lru_cache``, in a module that an activity imports, or in
a thread of a pool. A later attempt must not get the session of an earlier one: it would see its views and settings.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from typing import Any


def hand_over(session: Any, current: ContextVar[Any]) -> None:
    """Make the object of an ended session stand for the session of the attempt that uses the object.

    In a thread without an attempt, or whose attempt has ended, the object stays what it is.

    :param session: a session of PySpark, classic or of Spark Connect. Nothing of TaskHub uses it any more.
    :param current: the session of the attempt that runs in the current context.
    """
    kind: Any = type(session)
    session.__class__ = _forwarding(kind, current)


@cache
def _forwarding(kind: Any, current: ContextVar[Any]) -> type:
    def of_attempt(ended: Any, name: str) -> Any:
        session = current.get(None)
        if session is None or type(session) is type(ended) or name.startswith("__"):
            return kind.__getattribute__(ended, name)
        return getattr(session, name)

    def close(ended: Any) -> None:
        """PySpark closes the client of a session that is deleted: of this one, and not that of the attempt."""
        object.__setattr__(ended, "__class__", kind)
        with suppress(Exception):  # TaskHub has closed it
            getattr(kind, "__del__", lambda _: None)(ended)

    return type(f"Ended{kind.__name__}", (kind,), {"__getattribute__": of_attempt, "__del__": close})
