"""The package in a notebook before any service runs."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import modyn
from modyn.cache.plan.measuring import StoreRates
from modyn.cache.plan.profile import profile_path, write_profile
from modyn.config.system import SystemConfig
from modyn.errors import InvalidArgumentError, NotFoundError
from modyn.testing.stack import tiny_pipeline
from modyn.trainer_server.cache_plan.profiled_pipeline import load_profiled
from tests.support.cache_profiles import PROFILE


def test_names_complete() -> None:
    assert {"Client", "dataset", "errors"} <= set(dir(modyn))
    assert {"Batch", "OnlineDataset", "load_keys"} <= set(dir(modyn.dataset))
    assert {name for name in dir(modyn) if not name.startswith("__")} == {"Client", "dataset", "errors"}
    assert modyn.errors.NotFoundError.reason == "NOT_FOUND"


def test_the_package_imports_neither_torch_nor_pandas() -> None:
    code = "import modyn, sys; dir(modyn); print({'torch', 'pandas'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_the_state_folder_is_an_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODYN_STATE_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    with modyn.Client(state_dir="here") as client:
        assert client.config.state_dir == tmp_path / "here"
        assert client.status().state == "stopped"
    with modyn.Client(state_dir="") as client:
        assert client.config.state_dir == tmp_path / "elsewhere", "not the current folder"


def test_wrong_arguments_are_errors_of_modyn(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("pipeline: {name: p}")
    with modyn.Client(SystemConfig(state_dir=tmp_path)) as client:
        with pytest.raises(InvalidArgumentError, match="mode 'live' is not known; allowed are experiment, production"):
            client.run(tmp_path / "p.yaml", "live")
        with pytest.raises(InvalidArgumentError, match="'soon' is not a timestamp"):
            client.run(tmp_path / "p.yaml", from_timestamp="soon", to_timestamp=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
        for wrong, message in (
            ({"settings": 5}, "settings is 5; a list of texts is expected"),
            ({"settings": "training.batch_size=64"}, r"settings is 'training\.batch_size=64'; a list of texts is expected"),
            ({"tags": (5,)}, r"tags is \(5,\); a list of texts is expected"),
            ({"max_triggers": "a"}, "max_triggers is 'a'; a whole number of at least 1 is expected"),
            ({"max_triggers": True}, "max_triggers is True; a whole number of at least 1 is expected"),
            ({"max_triggers": 0}, "max_triggers is 0; a whole number of at least 1 is expected"),
            ({"max_triggers": 2**63}, "max_triggers is 9223372036854775808; a whole number of at least 1 is expected"),
            ({"final_trigger": "no"}, "final_trigger is 'no'; True or False is expected"),
            ({"from_timestamp": [1]}, r"from_timestamp is wrong: \[1\]"),
            ({"to_timestamp": "soon"}, "to_timestamp is wrong: 'soon' is not a timestamp"),
        ):
            with pytest.raises(InvalidArgumentError, match=f"^{message}"):
                client.run(tmp_path / "p.yaml", **wrong)
        with pytest.raises(InvalidArgumentError, match="metrics is 'Accuracy'; a list of texts is expected"):
            client.evaluate("p-0001", metrics="Accuracy")
        with pytest.raises(InvalidArgumentError, match="handlers is 5; a list of names, or of one path, is expected"):
            client.evaluate("p-0001", 5)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="a pipeline is made of dictionaries"):
            client.run({"pipeline": {"name": object()}})
        with pytest.raises(InvalidArgumentError, match="5 is not a pipeline file: give its path"):
            client.run(5)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="'x' is not a model id"):
            client.load_model("x")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="keys are whole numbers"):
            next(modyn.dataset.load_keys(-1, {"dataset_id": "d", "record_layout": {"dtype": "int64"}}, 1))  # type: ignore[arg-type]
        for keys in (["a"], [0.5], [[1], [2]]):
            with pytest.raises(InvalidArgumentError, match="keys are whole numbers"):
                client.delete_samples("d", keys)  # type: ignore[arg-type]


def test_a_cache_is_planned_without_services(tmp_path: Path) -> None:
    text = tiny_pipeline("photos")
    loaded = load_profiled(text, "p.yaml")
    (tmp_path / "p.yaml").write_text(text)
    with modyn.Client(SystemConfig(state_dir=tmp_path)) as client:
        with pytest.raises(NotFoundError, match="run `modyn cache profile PIPELINE.yaml` first"):
            client.plan_cache(tmp_path / "p.yaml")
        stores = {"memory": StoreRates(2e9, 4e9), "redis": StoreRates(2e9, 5e9)}
        measured = replace(PROFILE, data_digest=loaded.data_digest, stores=stores)
        write_profile(profile_path(tmp_path, "photos", loaded.data_digest), measured)
        found = client.plan_cache(tmp_path / "p.yaml", 8 * 10**9, 4, "58-42-0")
        assert (found.profile, found.size_bytes, found.jobs) == (measured, 8 * 10**9, 4)
        assert found.plan.cache == found.store
        assert [row.name for row in found.splits] == ["best", "encoded", "decoded", "augmented", "today", "no cache"]
        assert client.plan_cache(yaml.safe_load(text), "8GB").splits[0].samples_per_s > 250
        for wrong, message in (
            ({"size": "2 cows"}, "size: '2 cows' is not a size"),
            ({"jobs": 0}, "0 trainings cannot share a cache"),
            ({"split": "all"}, "'all' is not a split of a cache"),
        ):
            with pytest.raises(InvalidArgumentError, match=f"^{message}"):
                client.plan_cache(tmp_path / "p.yaml", **wrong)
        with pytest.raises(InvalidArgumentError, match="^seconds is 0; a number greater than 0 is expected"):
            client.profile_cache(tmp_path / "p.yaml", seconds=0)
        with pytest.raises(InvalidArgumentError, match="^workers is 0; a whole number of at least 1 is expected"):
            client.profile_cache(tmp_path / "p.yaml", workers=0)
