"""Refuses a direct call of an activity in an orchestrator, where the activity's code would run again in each replay.

``@app.activity`` returns a wrapper of the user's function. Outside of orchestrator code, the wrapper only calls the
function. The worker, ``testing.run`` and the registry use the function itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction, isfunction
from typing import Any, TypeVar, cast

from airflow_provider_taskhub.engine.no_event_loop import is_orchestrator_code, noted, user_line
from airflow_provider_taskhub.errors import OrchestrationError

_F = TypeVar("_F", bound=Callable[..., Any])


def refused_in_orchestrators(function: _F, name: str) -> _F:
    """Return a wrapper that calls the function, and raises :class:`OrchestrationError` in orchestrator code.

    The wrapper has the name, the signature and the annotations of the function, and it is pickled by the same name. The
    wrapper of an ``async`` function is ``async`` too, so it refuses when it is awaited.

    An object that is not a plain function is returned unchanged, because a wrapper would hide its attributes, such as
    ``cache_clear`` of ``functools.lru_cache``.

    :param function: the function of an activity.
    :param name: declared name of the activity, for the error text.
    """
    if not isfunction(function):
        return function

    @wraps(function)
    def direct(*args: Any, **kwargs: Any) -> Any:
        if is_orchestrator_code():
            raise noted(_refusal(function, name))
        return function(*args, **kwargs)

    @wraps(function)
    async def direct_async(*args: Any, **kwargs: Any) -> Any:
        if is_orchestrator_code():
            raise noted(_refusal(function, name))
        return await function(*args, **kwargs)

    return cast(_F, direct_async if iscoroutinefunction(function) else direct)


def original(function: Any) -> Any:
    """Return the user's function of a wrapper that :func:`refused_in_orchestrators` has made; else the argument."""
    return function.__wrapped__ if getattr(function, "__code__", None) in _WRAPPERS else function


def _refusal(function: Callable[..., Any], name: str) -> OrchestrationError:
    where = user_line()
    return OrchestrationError(
        f"activity {name!r} was called like a plain function in an orchestrator, at {where or 'an unknown line'}. Its "
        f"code would run again in each replay: write `await ctx.call_activity({function.__name__}, …)`",
        retryable=False,
    )


_WRAPPERS = [
    code
    for code in refused_in_orchestrators.__code__.co_consts
    if getattr(code, "co_name", "") in ("direct", "direct_async")
]
