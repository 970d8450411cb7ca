"""Fixtures of readers."""

from __future__ import annotations

import pytest

from modyn.storage.read.record_readers import RecordReaders


@pytest.fixture
def sources() -> RecordReaders:
    return RecordReaders(1)
