"""What the fork server of tests imports once: each process that reads from fakes or trains on them would need most of a second for it."""

from __future__ import annotations

from typing import Final

PRELOADED: Final = ("modyn.trainer_server.preload", "tests.support.training")
