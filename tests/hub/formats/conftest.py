"""No deadlines for generated cases: a slow machine is no failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("formats")
settings.load_profile("formats")
