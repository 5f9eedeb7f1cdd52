"""A switch that lets one attempt stand still for a while, and go on later."""

from __future__ import annotations

import math
from collections.abc import Callable


class Pause:
    """Tells the runner of one attempt to let the attempt stand still, and to let it go on.

    The code of the attempt runs no step while the pause is on. The code is not told.

    :param kill_after: for an attempt that cannot stand still: seconds after ``due`` at which its executor is killed.
        None: it can stand still.
    :ivar on: True while the attempt must stand still.
    :ivar due: time of ``SYSTEM_CLOCK.monotonic``, in seconds, from which the attempt must stand still even if its
        worker cannot say so, because its process is stopped or its event loop is blocked.
    """

    __slots__ = ("_listener", "due", "kill_after", "on")

    def __init__(self, *, kill_after: float | None = None) -> None:
        self.on, self.due, self.kill_after = False, math.inf, kill_after
        self._listener: Callable[[], None] | None = None

    def follow(self, listener: Callable[[], None] | None) -> None:
        """Set the function that carries the pause out. It is called now, and after each change of ``on`` or ``due``.

        :param listener: None: the attempt has ended, and no function is called any more.
        """
        self._listener = listener
        self._changed()

    def set(self, on: bool) -> None:
        """Begin the pause, or end it. Setting the same value again has no effect."""
        if on != self.on:
            self.on = on
            self._changed()

    def put_off(self, due: float) -> None:
        """Set the time from which the attempt must stand still. :param due: as the attribute."""
        self.due = due
        self._changed()

    def _changed(self) -> None:
        if self._listener is not None:
            self._listener()
