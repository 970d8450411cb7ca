"""Objects that are sent to another process so that it can read samples."""

from __future__ import annotations

import pickle
from pathlib import Path

from modyn.config.system import SystemConfig
from modyn.dataset.connections import DatasetSource


def test_a_worker_process_gets_no_password(tmp_path: Path) -> None:
    urls = {"database_url": "postgresql://modyn:pa55word@host/modyn", "redis_url": "redis://:pa55word@host:6379/0"}
    source = DatasetSource(SystemConfig.model_validate({"state_dir": tmp_path} | urls), "digits", 3)
    sent = pickle.dumps(source)
    assert b"pa55word" not in sent
    arrived = pickle.loads(sent)
    assert (arrived.dataset, arrived.streams) == ("digits", 3)
    assert arrived.config == source.config.model_copy(update={"database_url": None, "redis_url": None})
