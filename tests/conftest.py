"""Fixtures that every part's tests may use."""

pytest_plugins = ("tests.azurite",)
