"""Fixtures that every part's tests may use."""

import signal

pytest_plugins = ("tests.azurite",)

# A shell that starts a job in the background lets it ignore SIGINT, and so would every process that tests start and
# then interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
