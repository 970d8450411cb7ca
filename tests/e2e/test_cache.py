"""`modyn cache` on real services: what is measured is kept, and planned with."""

from __future__ import annotations

import json

import pytest

from modyn.cache.profile import read_profile
from modyn.testing.stack import RunningStack, tiny_training


@pytest.mark.parametrize("workers", [1, 2])
def test_a_profile_is_measured_and_a_plan_follows_from_it(running_stack: RunningStack, workers: int) -> None:
    name = f"profiled-{workers}"
    running_stack.tiny_dataset(name, num_samples=300)
    file = running_stack.pipeline_file(name, training=tiny_training(dataloader_workers=workers))
    refused = running_stack.modyn("cache", "plan", file)
    assert refused.returncode == 1
    assert "run `modyn cache profile PIPELINE.yaml` first" in refused.stderr
    done = running_stack.modyn("cache", "profile", file, "--seconds", 1, "--json")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert (measured["dataset"], measured["num_samples"], measured["num_workers"]) == (name, 300, workers)
    assert (measured["encoded_bytes"], measured["decoded_bytes"]) == (16, 16)
    for part in ("storage", "sizes", "decoding", "augmenting", "stores", "training"):
        assert f"  {part}: " in done.stderr
    (path,) = (running_stack.config.state_dir / "cache" / "profiles").glob(f"{name}-*.json")
    assert read_profile(path).storage_bytes_per_s == measured["storage_bytes_per_s"] > 0
    picture = running_stack.folder / f"{name}.svg"
    options = ("--size", "2KB", "--jobs", 2, "--split", "58-42-0", "--picture", picture)
    plan = running_stack.modyn("cache", "plan", file, *options, "--json")
    assert plan.returncode == 0, plan.stderr
    planned = json.loads(plan.stdout)
    assert [row["name"] for row in planned["splits"]] == ["best", "encoded", "decoded", "augmented", "today", "no cache"]
    assert planned["reason"] in plan.stderr
    assert picture.read_text().startswith("<svg ")
    table = running_stack.modyn("cache", "plan", file)
    assert table.stdout.splitlines()[0].split("\t") == ["use of the cache", "split", "samples/s", "below the best"]


def test_a_dataset_that_was_registered_anew_is_to_be_measured_anew(running_stack: RunningStack) -> None:
    running_stack.tiny_dataset("renewed", num_samples=60)
    file = running_stack.pipeline_file("renewed")
    done = running_stack.modyn("cache", "profile", file, "--seconds", 1)
    assert done.returncode == 0, done.stderr
    assert "storage, read in random order" in done.stdout
    with running_stack.client() as client:
        client.delete_dataset("renewed")
    gone = running_stack.modyn("cache", "plan", file)
    assert gone.returncode == 1
    assert "'renewed'" in gone.stderr
    assert running_stack.modyn("cache", "profile", file).returncode == 1
    running_stack.tiny_dataset("renewed", num_samples=60)
    renewed = running_stack.modyn("cache", "plan", file)
    assert renewed.returncode == 1
    assert "was registered anew since it was measured" in renewed.stderr
