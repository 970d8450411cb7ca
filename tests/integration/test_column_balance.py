"""Presampling balanced by a column of CSV, JSON Lines and Parquet files on real services: pipelines, deletions between triggers, and `kill -9` of the
selector between triggers and while it selects."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

import numpy as np
import pytest

from modyn.errors import ConfigError
from modyn.records import RunId, RunRegistration, SampleBatch
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.supervisor.client import RunState
from modyn.testing.stack import NUM_FEATURES, RunningStack, tiny_pipeline
from modyn.testing.waiting import PATIENCE_S
from tests.support.column_files import FORMATS, column_dataset, write_sites
from tests.support.killed_stack import KilledStack, trigger_set_keys

pytestmark = pytest.mark.timeout(300)

PARSER = f"""\
import torch

def bytes_parser_function(data: memoryview) -> torch.Tensor:
    return torch.ones({NUM_FEATURES})
"""
ONE_FILE = ["a"] * 24 + ["b"] * 16 + ["c, d"] * 6 + [None] * 4
"""Sites of 50 samples."""


def section(column: str, **options: Any) -> dict[str, Any]:
    presampling = {"strategy": "ColumnBalanced", "ratio": 50, "column": column, **options}
    return {"name": "CoresetStrategy", "maximum_keys_in_memory": 20, "presampling_config": presampling}


@pytest.fixture(scope="module")
def killed(running_stack: RunningStack) -> Iterator[KilledStack]:
    with running_stack.client() as client:
        yield KilledStack(running_stack, client)


@pytest.fixture(scope="module")
def sites(killed: KilledStack) -> Mapping[str, list[str | None]]:
    """The site of each sample, by format. Dataset `sites-FORMAT` has two files, each with ONE_FILE shuffled."""
    found = {}
    for kind in FORMATS:
        folder, name = killed.stack.folder / "data" / kind, f"sites-{kind}"
        killed.client.register_dataset(column_dataset(folder, kind, name))
        every: list[str | None] = []
        for number in range(2):
            part = ONE_FILE[:]
            Random(number).shuffle(part)
            if kind == "numbered":
                part = [site if site != "c, d" else "c" for site in part]
            write_sites(folder, kind, part, number, first=len(every))
            every += part
        killed.client.ingest(name)
        found[kind] = every
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", FORMATS)
def test_a_pipeline_is_balanced_by_a_column(killed: KilledStack, sites: Mapping[str, list[str | None]], kind: str) -> None:
    """The selection is over the whole history: 25 of 50 samples, then 50 of 100."""
    dataset, column = f"sites-{kind}", FORMATS[kind][2]
    sections = {"data": {"dataset_id": dataset, "bytes_parser_function": PARSER}}
    run = killed.stack.run(tiny_pipeline(dataset, selection_strategy=section(column), **sections))
    assert run.state is RunState.FINISHED, run.error
    for trigger_id, expected in enumerate(([4, 6, 7, 8], [8, 12, 15, 15])):
        counts = Counter(sites[kind][key] for key in trigger_set_keys(killed.client, run.run_id, trigger_id))
        assert sorted(counts.values()) == expected
    wrong = "12" if kind == "numbered" else f"{column}s"
    path = killed.stack.pipeline_file(dataset, selection_strategy=section(wrong), **sections)
    (problem,) = killed.client.check(path)
    assert problem.path == "selection_strategy.presampling_config.column"
    assert f"has no column '{wrong}' in its first and last samples, did you mean '{column}'?" in problem.message
    with pytest.raises(ConfigError, match=f"has no column '{wrong}'"):
        killed.client.run(path)


def test_the_command_line_names_the_nearest_column(killed: KilledStack, sites: Mapping[str, list[str | None]]) -> None:
    path = killed.stack.pipeline_file("sites-csv", selection_strategy=section("sight"))
    for command in ("check", "run"):
        refused = killed.stack.modyn(command, path)
        assert refused.returncode != 0
        said = " ".join((refused.stdout + refused.stderr).split())
        assert "dataset 'sites-csv' has no column 'sight' in its first and last samples, did you mean 'site'?" in said
        assert "selection_strategy.presampling_config.column" in said


def selected(killed: KilledStack, run_id: str, column: str, disturb: Callable[[int], None], kind: str = "csv") -> list[list[int]]:
    """The keys of four triggers of a run, of which the second has no new samples; `disturb` is called before each, with its number."""
    config = killed.client.config
    with SelectorClient(config.endpoint("selector"), wait_s=PATIENCE_S) as selector:
        selector.register_run(RunRegistration(RunId(run_id), f"sites-{kind}", section(column), 5))
        for trigger_id, num_samples in enumerate((30, 30, 60, 100)):
            keys = np.arange(num_samples)
            selector.inform(RunId(run_id), 0, SampleBatch(keys, keys, keys % 3))
            disturb(trigger_id)
            selector.trigger(RunId(run_id), trigger_id, num_samples)
    return [trigger_set_keys(killed.client, run_id, trigger_id) for trigger_id in range(4)]


@pytest.mark.usefixtures("sites")
def test_kills_of_the_selector_between_triggers_change_no_key(killed: KilledStack) -> None:
    expected = selected(killed, "alone", "site", lambda _: None)
    assert selected(killed, "killed", "site", lambda _: killed.kill("selector")) == expected
    assert len(expected[3]) == 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "pauses", [(0.0, 0.02), pytest.param((0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4), marks=pytest.mark.exhaustive)]
)
def test_kills_of_the_selector_while_it_selects_change_no_key(killed: KilledStack, pauses: tuple[float, ...]) -> None:
    """Reading the values of 60,000 samples takes about a second."""
    config, folder = killed.client.config, killed.stack.folder / "data" / f"many-{len(pauses)}"
    dataset, sizes = f"many-{len(pauses)}", (40_000, 60_000)
    killed.client.register_dataset(column_dataset(folder, "json", dataset))
    write_sites(folder, "json", [f"site {i % 7 * (i % 3)}" if i % 2 else i % 5 for i in range(sizes[-1])])
    killed.client.ingest(dataset)
    keys, found = np.arange(sizes[-1]), {}
    for pause in (None, *pauses):
        run_id = RunId(f"{dataset}-{pause}".replace(".", "-"))
        with SelectorClient(config.endpoint("selector"), wait_s=PATIENCE_S) as selector:
            selector.register_run(RunRegistration(run_id, dataset, {**section("meta.site"), "maximum_keys_in_memory": 10**6}, 5))
            selector.inform(run_id, 0, SampleBatch(keys, keys, keys % 3))
            checksums = []
            for trigger_id, num_samples in enumerate(sizes):
                killer = threading.Timer(pause or 0, killed.kill, ("selector",))
                if pause is not None:
                    killer.start()
                checksums.append(selector.trigger(run_id, trigger_id, num_samples).keys_checksum)
                if pause is not None:
                    killer.join()
            found[pause] = checksums
    assert list(found.values()) == [found[None]] * len(found)


@pytest.mark.slow
def test_a_deletion_between_triggers_takes_samples_out_of_their_values(
    killed: KilledStack, sites: Mapping[str, list[str | None]]
) -> None:
    deleted = [key for key, site in enumerate(sites["parquet"][:60]) if site == "a"]
    with StorageClient(killed.client.config.endpoint("storage"), wait_s=PATIENCE_S) as storage:

        def delete(trigger_id: int) -> None:
            if trigger_id == 2:
                storage.delete_samples("sites-parquet", np.array(deleted))
                killed.kill("selector")

        found = selected(killed, "deletions", "site", delete, "parquet")
        for keys, size in zip(found, (30, 30, 60, 100), strict=True):
            there = set(range(size)) - (set(deleted) if size > 30 else set())
            assert len(keys) == len(there) // 2
            assert set(keys) <= there
            by_site = Counter(sites["parquet"][key] for key in keys)
            of_all = Counter(sites["parquet"][key] for key in there)
            level = max(by_site.values())
            assert all(count >= min(of_all[site], level - 1) for site, count in by_site.items())


@pytest.mark.slow
def test_storage_that_is_killed_meanwhile_is_waited_for(killed: KilledStack, sites: Mapping[str, list[str | None]]) -> None:
    """Storage is away when the selector asks for values."""

    def kill(trigger_id: int) -> None:
        if trigger_id in (0, 2):
            threading.Thread(target=killed.kill, args=("storage",)).start()
            time.sleep(0.05)

    expected = selected(killed, "alone-json", "meta.site", lambda _: None, "json")
    assert selected(killed, "storage-killed", "meta.site", kill, "json") == expected
