"""A switch that lets one attempt stand still for a while, and go on later."""

from __future__ import annotations

from collections.abc import Callable


class Pause:
    """Tells the runner of one attempt to let the attempt stand still, and to let it go on.

    The code of the attempt runs no step while the pause is on. The code is not told.

    :ivar on: True while the attempt must stand still.
    """

    __slots__ = ("_listener", "on")

    def __init__(self) -> None:
        self.on = False
        self._listener: Callable[[bool], None] | None = None

    def follow(self, listener: Callable[[bool], None] | None) -> None:
        """Set the function that carries the pause out. It is called with each new value of ``on``, and now if it is on.

        :param listener: None: the attempt has ended, and no function is called any more.
        """
        self._listener = listener
        if self.on and listener is not None:
            listener(True)

    def set(self, on: bool) -> None:
        """Begin the pause, or end it. Setting the same value again has no effect."""
        if on != self.on:
            self.on = on
            if self._listener is not None:
                self._listener(on)
