"""Modules that the tests' fork server imports once: each process that uses the fakes would need most of a second to import them."""

from __future__ import annotations

from typing import Final

PRELOADED: Final = ("modyn.trainer_server.preload", "tests.support.training")
