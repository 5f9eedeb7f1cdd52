"""The value of a parameter ``input`` that the caller has not given.

None cannot say this, because None is an input of its own: the JSON text ``null``. Only a function that gets no input
runs with the default of its parameter.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final


class NoInput(Enum):
    """The type of :data:`NO_INPUT`. An enum stays the same object when it is copied or pickled, as Airflow does it."""

    NO_INPUT = "(none)"

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__


NO_INPUT: Final = NoInput.NO_INPUT
"""The default of parameters named ``input``: the call gives no input, which is another thing than the input None."""

_STORED = {"taskhub_no_input": True}


def storable(given: Any) -> Any:
    """Return an input as Airflow can store it with a trigger: an object of JSON stands for :data:`NO_INPUT`."""
    return dict(_STORED) if given is NO_INPUT else given


def restored(stored: Any) -> Any:
    """Return the input of which :func:`storable` has made ``stored``."""
    return NO_INPUT if stored == _STORED else stored
