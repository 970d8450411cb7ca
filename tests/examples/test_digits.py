"""The demo's example: its pipeline is valid, its data are always the same, and a run over them shows the shift."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from examples.digits.make_data import SHIFTED_YEARS, YEARS, assign_years, make_digits
from modyn.config.dataset import DatasetConfig
from modyn.config.pipeline import load_pipeline
from modyn.testing.stack import RunningStack

PIPELINE = Path(__file__).parents[2] / "examples" / "digits" / "pipeline.yaml"
OPTIONS = {"file_extension": ".png", "label_file_extension": ".label"}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    assert make_digits(folder) == 1797
    return folder


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*.*"))
    }


def test_the_pipeline_is_valid() -> None:
    pipeline = load_pipeline(PIPELINE.read_text(), str(PIPELINE))
    assert pipeline.dataset_id == "digits-train"


@pytest.mark.slow
def test_the_same_files_are_made_again(images: Path, tmp_path: Path) -> None:
    make_digits(tmp_path)
    first = fingerprint(images)
    assert fingerprint(tmp_path) == first
    assert len(first) == 2 * 1797
    make_digits(tmp_path)
    assert fingerprint(tmp_path) == first
    make_digits(tmp_path, seed=8)
    assert fingerprint(tmp_path) != first


def test_a_sample_lies_in_the_year_of_its_folder(images: Path) -> None:
    for split in ("train", "test"):
        for year in YEARS:
            files = list((images / split / str(year)).glob("*.png"))
            assert len(files) > 40
            for file in files:
                assert np.datetime64(int(file.stat().st_mtime), "s").astype("datetime64[Y]").astype(int) + 1970 == year
                assert file.with_suffix(".label").stat().st_mtime == file.stat().st_mtime


def test_the_mix_of_classes_drifts() -> None:
    labels = np.repeat(np.arange(10), 180)
    years = assign_years(labels, np.random.default_rng(7))
    assert np.bincount(years).tolist() == [180] * 10
    means = [labels[years == year].mean() for year in range(10)]
    assert means[9] - means[0] > 3
    assert means == sorted(means)


@pytest.mark.slow
def test_a_run_shows_the_shift(running_stack: RunningStack, images: Path) -> None:
    """The demo's pipeline with fewer epochs: models from before the shift fail in it, models trained in it do not, and these forget."""
    stack = running_stack
    folder = stack.folder / "data" / "digits"
    shutil.copytree(images, folder, copy_function=shutil.copy2)
    with stack.client() as client:
        for split in ("train", "test"):
            client.register_dataset(
                DatasetConfig(
                    name=f"digits-{split}", base_path=folder / split, file_wrapper="SingleSampleFileWrapper",
                    file_wrapper_config=OPTIONS, watch=False,
                )
            )  # fmt: skip
            info = client.ingest(f"digits-{split}")
            assert info.num_problems == 0
    pipeline = yaml.safe_load(PIPELINE.read_text())
    pipeline["training"]["epochs_per_trigger"] = 8
    pipeline["evaluation"]["datasets"][0]["metrics"] = [{"name": "Accuracy", "topn": 1}]
    file = stack.folder / "digits.yaml"
    file.write_text(yaml.safe_dump(pipeline))
    done = stack.modyn("run", file)
    assert done.returncode == 0, done.stderr
    shown = json.loads(stack.modyn("show", done.stderr.split()[1], "--json").stdout)
    assert len(shown["triggers"]) == len(YEARS)
    accuracy = {(YEARS[e["trigger_id"]], YEARS[index % len(YEARS)]): e["value"] for index, e in enumerate(shown["evaluations"])}

    def mean(models: range, intervals: range) -> float:
        return float(np.mean([accuracy[model, year] for model in models for year in intervals]))

    # The model of a year has seen that year to its end.
    before, late = range(2011, SHIFTED_YEARS[0]), range(SHIFTED_YEARS[0] + 1, SHIFTED_YEARS[-1] + 1)
    assert mean(before, before) > 0.7
    assert mean(before, SHIFTED_YEARS) < 0.3
    assert mean(late, SHIFTED_YEARS) > mean(before, SHIFTED_YEARS) + 0.3
    assert mean(late, SHIFTED_YEARS) > mean(late, before) + 0.2
