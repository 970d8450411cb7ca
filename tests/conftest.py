"""Fixtures and settings for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

pytest_plugins = ["modyn.testing.fixtures"]

# How long an example takes says nothing on a machine that others use as well.
settings.register_profile(
    "modyn", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("modyn")
