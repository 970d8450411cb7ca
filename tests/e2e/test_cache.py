"""`modyn cache` on real services: measurements are stored and used for plans."""

from __future__ import annotations

import json
import os
import sys
import urllib.request

import pytest

from modyn.cache.plan.measured_rates import rates_path, read_rates
from modyn.cache.plan.profile import read_profile
from modyn.cli.views.cache_status import newest_trainings
from modyn.supervisor.client import RunState
from modyn.testing.stack import RunningStack, tiny_training
from modyn.testing.waiting import eventually
from modyn.trainer_server.disk.rate_keeping import LEAST_SAMPLES


def settings() -> tuple[int, list[str], dict[str, str]]:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask, list(sys.path), dict(os.environ)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_profile_is_measured_and_a_plan_follows_from_it(running_stack: RunningStack, workers: int) -> None:
    name = f"profiled-{workers}"
    running_stack.tiny_dataset(name, num_samples=300)
    file = running_stack.pipeline_file(name, training=tiny_training(dataloader_workers=workers))
    refused = running_stack.modyn("cache", "plan", file)
    assert refused.returncode == 1
    assert "run `modyn cache profile PIPELINE.yaml` first" in refused.stderr
    before = settings()
    done = running_stack.modyn("cache", "profile", file, "--seconds", 1, "--json")
    assert settings() == before, (
        "it makes private files, and looks for modules in its folder: none of that stays in the test's process"
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert (measured["dataset"], measured["num_samples"], measured["num_workers"]) == (name, 300, workers)
    assert measured["encoded_bytes"] == 16 < measured["decoded_bytes"]
    assert measured["stores"].keys() == {"memory", "redis"}
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
    with running_stack.client() as client:
        forecast = client.plan_cache(file, "2KB", 2, "58-42-0")
        assert [row.samples_per_s for row in forecast.splits] == [row["samples_per_s"] for row in planned["splits"]]
        again = client.profile_cache(file, seconds=1, workers=1)
        assert read_profile(path) == again
    table = running_stack.modyn("cache", "plan", file)
    assert table.stdout.splitlines()[0].split("\t") == ["use of the cache", "split", "samples/s", "below the best"]


def test_a_dataset_that_was_registered_again_must_be_measured_again(running_stack: RunningStack) -> None:
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
    assert "was registered again since it was measured" in renewed.stderr


def test_what_a_training_took_from_the_cache_is_seen_everywhere_and_cleared(running_stack: RunningStack) -> None:
    """The first of 6 epochs of 50 samples fills the cache, which has space for all decoded samples."""
    running_stack.tiny_dataset("seen", num_samples=50)
    file = running_stack.pipeline_file(
        "seen", training=tiny_training(epochs_per_trigger=6), cache={"size": "10MB", "split": "0-100-0", "store": "memory"}
    )
    assert running_stack.modyn("cache", "clear").returncode == 0  # what other tests have kept
    assert running_stack.modyn("cache", "profile", file, "--seconds", 1).returncode == 0
    done = running_stack.modyn("run", file)
    assert done.returncode == 0, done.stderr
    found = json.loads(running_stack.modyn("cache", "status", "--json").stdout)
    (tier,) = found["stores"][0]["tiers"]
    assert (tier["name"], tier["budget_bytes"], tier["num_samples"], tier["num_namespaces"]) == ("decoded", 10_000_000, 50, 1)
    training = found["trainings"][-1]
    # A few samples of the second epoch may be read before those of the first are kept.
    run_id, decoded = training["run"], training["decoded"]
    assert 0 < decoded <= 250
    counts = [training[name] for name in ("trigger", "served", "storage", "encoded", "augmented")]
    assert counts == [0, 300, 300 - decoded, 0, 0]
    assert (training["hit_share"], training["preparations_per_sample"]) == pytest.approx((decoded / 300, 1 - decoded / 300))
    assert training["saved_s"] > 0
    (path,) = (running_stack.config.state_dir / "cache" / "profiles").glob("seen-*.json")
    rates = read_rates(rates_path(path))
    assert rates is not None
    assert rates.profile_measured_at == read_profile(path).measured_at
    assert rates.augment_s is not None, "300 samples were augmented"
    assert (rates.decode_s is None) == (300 - decoded < LEAST_SAMPLES)
    shown = running_stack.modyn("show", run_id).stdout
    assert "cached_decoded" in shown
    report = running_stack.folder / "seen.html"
    assert running_stack.modyn("report", run_id, "--output", report).returncode == 0
    assert "<h2>Cache</h2>" in report.read_text()
    url = (running_stack.config.service_dir("trainer_server") / "metrics_url").read_text().strip()
    with urllib.request.urlopen(url, timeout=20) as reply:
        metrics = dict(line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if line.startswith("modyn_cache"))
    assert float(metrics['modyn_cache_samples_total{tier="decoded"}']) >= decoded
    assert float(metrics['modyn_cache_memory_used_bytes{tier="decoded"}']) == tier["used_bytes"] > 0
    assert float(metrics['modyn_cache_memory_budget_bytes{tier="decoded"}']) == 10_000_000
    assert float(metrics['modyn_cache_memory_samples{tier="decoded"}']) == 50
    assert float(metrics['modyn_cache_memory_evicted_samples_total{tier="decoded"}']) == tier["num_evicted"] == 0
    assert float(metrics["modyn_cache_served_samples_total"]) >= 300
    assert float(metrics["modyn_cache_decoded_samples_total"]) >= 300 - decoded
    assert float(metrics["modyn_cache_saved_seconds"]) != 0
    assert metrics["modyn_cache_redis_up"] in ("0.0", "1.0"), "on a busy machine it may not answer in time"
    cleared = running_stack.modyn("cache", "clear")
    assert (cleared.returncode, cleared.stderr.splitlines()[0]) == (0, "shared memory: forgot 250.0 KiB")
    assert json.loads(running_stack.modyn("cache", "status", "--json").stdout)["stores"][0]["tiers"] == []


def test_what_a_running_training_took_from_the_cache_until_now_is_seen(running_stack: RunningStack) -> None:
    running_stack.tiny_dataset("seen-now", num_samples=50)
    training = tiny_training(epochs_per_trigger=100_000)  # ended by this test
    file = running_stack.pipeline_file(
        "seen-now", training=training, cache={"size": "10MB", "split": "0-100-0", "store": "memory"}
    )
    assert running_stack.modyn("cache", "clear").returncode == 0  # what other tests have divided
    with running_stack.client() as client:
        run_id = client.run(file).run_id
        try:

            def shown() -> dict[str, object] | None:
                status = newest_trainings(client)
                return next((training.values() for training in status if training.run_id == run_id), None)

            eventually(lambda: shown() is not None)
            first = shown()
            assert first is not None
            assert (first["trigger"], first["is_running"], first["encoded"]) == (0, True, 0)
            eventually(lambda: (now := shown()) is not None and now["decoded"] > first["decoded"])  # type: ignore[operator]
        finally:
            client.stop(run_id)
            assert client.wait(run_id).state is RunState.STOPPED
        assert shown() is None, "it has ended without a result"
