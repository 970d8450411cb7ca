"""The benchmark of differences stores small versions in each of its ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from benchmark.differences import DEFAULT, WAYS, store_versions, table
from modyn.config.system import SystemConfig
from modyn.db.engine import open_database
from modyn.model_storage.store import ModelStore
from modyn.rpc.logs import get_logger


def test_each_way_is_measured(system_config: SystemConfig, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for number, path in enumerate(paths):
        save_file({"w": np.linspace(1, 2, 5000, dtype=np.float32) * np.float32(1 + number * 1e-5)}, path)
    database = open_database(system_config, "model_storage", "modyn.model_storage.migrations")
    store = ModelStore(database, system_config.service_dir("model_storage"), get_logger("test"))
    found = {way: store_versions(store, way, section, paths) for way, section in WAYS.items()}
    database.close()
    assert found[DEFAULT].num_bytes < 0.5 * found["whole"].num_bytes
    assert sum(line.startswith("| ") for line in table("SGD", found)) == 1 + len(WAYS)
