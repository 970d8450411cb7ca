"""`modyn cache`: refusals before the measurements, and the output of a plan."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from modyn.cache.plan.profile import CacheProfile, profile_path, write_profile
from modyn.cli.cache import print_profile
from modyn.cli.main import app
from modyn.dataset.cached import pipeline_cache
from modyn.testing.stack import tiny_pipeline, tiny_training
from modyn.trainer_server.cache_plan.cache_planning import forecast_notes
from modyn.trainer_server.cache_plan.profiled_pipeline import load_profiled
from tests.support.cache_profiles import PROFILE

PIPELINE = load_profiled(tiny_pipeline("photos"), "p.yaml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a pipeline. The services of the installation do not run."""
    monkeypatch.setenv("MODYN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("MODYN_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    # For the same result on any machine: shared memory has room for all that is planned here.
    monkeypatch.setattr(pipeline_cache, "machine_memory_bytes", lambda: PROFILE.memory_bytes)
    monkeypatch.setattr(pipeline_cache, "shared_memory_bytes", lambda: 2 * PROFILE.memory_bytes)
    Path("p.yaml").write_text(tiny_pipeline("photos"))
    return tmp_path


@pytest.fixture
def profile(folder: Path) -> CacheProfile:
    """Measurements for this pipeline."""
    measured = replace(PROFILE, data_digest=PIPELINE.data_digest)
    write_profile(profile_path(folder / "state", "photos", PIPELINE.data_digest), measured)
    return measured


def cache(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["cache", *arguments])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none.yaml",), "there is no pipeline file none.yaml"),
        (("p.yaml", "--size", "0GB"), "size: a cache of '0GB' holds nothing; give more"),
        (("p.yaml", "--size", "2 cows"), "size: '2 cows' is not a size; write a number and one of B KB MB GB"),
        (("p.yaml", "--size", "9GiB"), "larger than the memory of this machine"),
        (("p.yaml", "--size", "1KB"), "holds no sample: one has 100,000 bytes as stored"),
        (
            ("p.yaml", "--split", "58-42-1"),
            "58-42-1 is not a split of a cache: write whole percents from 0 on that add up to 100",
        ),
        (("p.yaml", "--split", "all"), "'all' is not a split of a cache"),
        (("p.yaml", "--picture", "no/such/p.svg"), "cannot write no/such/p.svg"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_arguments_of_a_plan_are_told(profile: CacheProfile, arguments: tuple[str, ...], words: str) -> None:
    result = cache("plan", *arguments)
    assert result.exit_code == 1
    assert words in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [("plan", "p.yaml", "--jobs", "0"), ("profile", "p.yaml", "--seconds", "0"), ("plan", "p.yaml", "--picture", "p.png")],
)
def test_wrong_use_is_told(profile: CacheProfile, arguments: tuple[str, ...]) -> None:
    result = cache(*arguments)
    assert result.exit_code == 2
    assert arguments[2] in result.stderr


def test_without_services_nothing_is_measured_and_without_a_profile_nothing_planned(folder: Path) -> None:
    assert "start them with `modyn up`" in str(cache("profile", "p.yaml").exception)
    assert "run `modyn cache profile PIPELINE.yaml` first" in str(cache("plan", "p.yaml").exception)
    Path("p.yaml").write_text(tiny_pipeline("photos", training=tiny_training(batch_size=0)))
    for command in ("profile", "plan"):
        assert "training.batch_size: 0 is wrong" in str(cache(command, "p.yaml").exception)
    assert not (folder / "state").exists()


def test_a_damaged_profile_is_to_be_measured_again(profile: CacheProfile, folder: Path) -> None:
    profile_path(folder / "state", "photos", profile.data_digest).write_text("{}")
    assert "measure it again by `modyn cache profile PIPELINE.yaml`" in str(cache("plan", "p.yaml").exception)


def test_a_plan_compares_splits_and_says_what_it_rests_on(profile: CacheProfile, folder: Path) -> None:
    result = cache("plan", "p.yaml", "--size", "8GB", "--jobs", "4", "--split", "58-42-0", "--picture", "p.svg")
    assert result.exit_code == 0, result.exception
    header, *rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert header == ["use of the cache", "split", "samples/s", "below the best"]
    assert [row[0] for row in rows] == ["best", "encoded", "decoded", "augmented", "today", "no cache"]
    assert (rows[0][3], rows[-1][1:3]) == ("0.00 %", ["–", "250"])
    assert "A cache pays: " in result.stderr
    assert "Throughput is that of all 4 trainings together" in result.stderr
    assert Path("p.svg").read_text().startswith("<svg ")


def test_a_plan_as_json(profile: CacheProfile) -> None:
    found = json.loads(cache("plan", "p.yaml", "--size", "8GB", "--json").stdout)
    assert (found["dataset"], found["size_bytes"], found["jobs"], found["store"]) == ("photos", 8 * 10**9, 1, "memory")
    assert found["split"] == found["splits"][0]["split"]
    assert found["num_ties"] >= len(found["ties"]) > 0


def test_a_plan_takes_what_is_not_given_from_the_pipeline(profile: CacheProfile, folder: Path) -> None:
    path = folder / "p.yaml"
    path.write_text(f"{path.read_text()}\ncache: {{size: 8GB, jobs: 4, split: 58-42-0, store: memory}}\n")
    found = json.loads(cache("plan", "p.yaml", "--json").stdout)
    assert (found["size_bytes"], found["jobs"], found["store"]) == (8 * 10**9, 4, "memory")
    assert "58-42-0" in {row["split"] for row in found["splits"] if row["name"] == "today"}
    given = json.loads(cache("plan", "p.yaml", "--size", "1GB", "--jobs", "2", "--split", "0-100-0", "--json").stdout)
    assert (given["size_bytes"], given["jobs"]) == (10**9, 2)
    assert "0-100-0" in {row["split"] for row in given["splits"] if row["name"] == "today"}


def test_a_plan_needs_a_store_that_was_measured(profile: CacheProfile, folder: Path) -> None:
    nothing = replace(profile, stores={}, notes=("The store 'memory' was left out: it is full.",))
    write_profile(profile_path(folder / "state", "photos", profile.data_digest), nothing)
    found = str(cache("plan", "p.yaml").exception)
    assert found.startswith(
        "no store could be measured for dataset 'photos': The store 'memory' was left out: it is full. Correct"
    )


def test_where_no_cache_pays_the_reason_is_said(profile: CacheProfile, folder: Path) -> None:
    fast = replace(profile, storage_bytes_per_s=1e12, augment_samples_per_s=500.0, decoded_bytes=1e7, augmented_bytes=1e7)
    write_profile(profile_path(folder / "state", "photos", profile.data_digest), fast)
    found = json.loads(cache("plan", "p.yaml", "--json").stdout)
    assert (found["cache"], found["split"]) == (None, None)
    assert found["reason"].startswith("No cache pays: ")
    assert "which decoding limits" in found["reason"]


def test_notes_say_in_which_way_a_pipeline_differs_from_what_was_measured() -> None:
    alike = replace(PROFILE, training=PIPELINE.trained)
    (measured,) = forecast_notes(alike, PIPELINE, 1, shares=False)
    assert measured.startswith("Measured ")
    assert "on 2 × CPU, 8 GiB, Linux; stores: memory." in measured
    assert "The accelerator was measured with ResNet18 on cpu" in forecast_notes(PROFILE, PIPELINE, 1, shares=False)[1]
    assert "`modyn cache profile --workers 3` measures" in forecast_notes(alike, PIPELINE, 3, shares=True)[-1]
    _, together = forecast_notes(alike, PIPELINE, 2, shares=True)
    assert together.endswith("prepare augmented samples for each other."), "and as many workers as were measured"
    assert "but prepare no augmented samples for each other: that takes" in forecast_notes(alike, PIPELINE, 2, shares=False)[1]


def test_parameters_have_their_units_and_their_names_in_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    print_profile(PROFILE)
    output = capsys.readouterr()
    rows = {row[0]: row[1:] for row in (line.split("\t") for line in output.out.splitlines())}
    assert rows["storage, read in random order"] == ["25,000,000", "bytes/s", "B_storage"]
    assert rows["memory, read"] == ["4,000,000,000", "bytes/s", "B_cache"]
    assert rows["decoding and augmenting"] == ["500", "samples/s", "T_D+A"]
    assert rows["samples"][0] == "123,000"
    assert rows["a sample, decoded"][0] == "150,000"
    print_profile(replace(PROFILE, decoded_bytes=None))
    assert "a sample, decoded\tnot kept\tbytes" in capsys.readouterr().out


def test_services_that_cannot_be_reached_do_not_prevent_a_plan(profile: CacheProfile, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:  # Bound, and nothing listens.
        held.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MODYN_STORAGE__ADDRESS", f"127.0.0.1:{held.getsockname()[1]}")
        result = cache("plan", "p.yaml")
    assert result.exit_code == 0, result.exception
    assert "Whether dataset photos is still the one that was measured is not known: " in result.stderr
