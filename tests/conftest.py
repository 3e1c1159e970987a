"""Fixtures and settings that all tests share."""

from __future__ import annotations

from hypothesis import settings

# A slow machine is not a failing property; the examples' number bounds the time instead.
settings.register_profile("tidemark", deadline=None)
settings.load_profile("tidemark")
