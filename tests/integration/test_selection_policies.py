"""Every selection, presampling and downsampling policy on real services, in each of its modes: a run whose training workers are killed with
`kill -9` in the middle of passes and trainings trains on the same keys, with the same weights, as one that is left alone. So does one whose
selector is killed while it selects, and its supervisor between a selection and its training, where the selector has something to choose."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modyn.config.dataset import DatasetConfig
from modyn.selector.presampling import PRESAMPLING
from modyn.selector.selection import SELECTION
from modyn.supervisor.client import RunState
from modyn.testing.stack import RECORD, TINY_PARSER, RunningStack, tiny_pipeline, tiny_training
from modyn.trainer_server.downsampling.policies import DOWNSAMPLING
from tests.support.comparison import differences, outcome
from tests.support.killed_stack import KilledStack, trigger_set_keys
from tests.support.struck_services import Blow, Blows, blows_of

pytestmark = pytest.mark.timeout(600)

NUM_SAMPLES, NUM_TRIGGERS, EPOCHS = 200, 2, 3
STRIKES = ((0, 35), (0, 70), (0, 20), (1, 10), (1, 20))
"""Kills of workers, one after the other: the half of the samples, and the number of its samples that the worker reads before. The first three are all
workers of the first training, which fails the run; the others find the second training, which reads both halves."""

BLOWS = (
    Blow(
        "open", r"/triggers/000000[.]"
    ),  # the first file of trigger 0 is about to be written: of the policy's state, or the trigger set
    Blow("os.rename", r"/triggers/000000[.]set$"),  # the trigger set is written, but not there
    Blow("os.rename", r"/feedback/000000[.]feedback$"),  # the scores of the training have come, but are not there
    Blow("os.rename", r"/triggers/000001[.]"),
    Blow("open", r"/triggers$", with_file="000001.set"),  # all files are there, but no row names them
)
"""Kills of the selector."""
SELECTED_AND_NOT_TRAINED = Blow("open", r"/training-1[.]log$")
"""The trainer server begins what was asked of it: the supervisor is killed."""

DEADLY_PARSER = (
    TINY_PARSER
    + """
import json, os, signal, sys
from pathlib import Path

read = vars(sys).setdefault("tests_samples_read", [0, 0])  # for the process: each selection loads this code again
plain, folder = bytes_parser_function, Path({folder!r})
late = (folder / "late.bin").read_bytes()

def bytes_parser_function(data: memoryview) -> torch.Tensor:
    half = int(bytes(data) in late)
    read[half] += 1
    strikes = json.loads((folder / "strikes.json").read_text())
    if strikes and strikes[0][0] == half and read[half] > strikes[0][1]:
        (folder / "strikes.json").write_text(json.dumps(strikes[1:]))
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(data)
"""
)
"""Kills its own process when its turn comes."""

UNCERTAINTIES, FUNCTIONS = ("LeastConfidence", "Entropy", "Margin"), ("FacilityLocation", "GraphCut", "LogDeterminant")
GREEDY = ("LazyGreedy", "StochasticGreedy", "ApproximateLazyGreedy")
BY_WEIGHTS = {"full_grad_approximation": "LastLayerWithEmbedding"}
DOWNSAMPLED: dict[str, list[dict[str, Any]]] = {
    "Craig": [{}, {**BY_WEIGHTS, "greedy": "StochasticGreedy"}],
    "EL2N": [{}],
    "Forgetting": [{}],
    "GraNd": [{}, {"parameters": "LastLayer"}],
    "GradMatch": [{"full_grad_approximation": "LastLayer"}, BY_WEIGHTS],
    "GradNorm": [{}],
    "KcenterGreedy": [{}],
    "Loss": [{}, {"period": 0}, {"period": 2}],
    "No": [{"ratio": 100}],
    "RHOLoss": [{}, {"holdout_set_strategy": "Twin"}],
    "RS2": [{}, {"with_replacement": True}],
    "Submodular": [
        *({"submodular_function": function} for function in FUNCTIONS),
        *({"submodular_function": "FacilityLocation", "submodular_optimizer": greedy} for greedy in GREEDY),
    ],
    "Uncertainty": [{"score_metric": metric} for metric in UNCERTAINTIES],
}
"""Options of each downsampling policy, without those that `downsampling_cases` adds."""

PRESAMPLED: dict[str, list[dict[str, Any]]] = {
    "CLiB": [{"buffer_size": 60}],
    "ClassBalancedReservoir": [{"buffer_size": 60}],
    "ColumnBalanced": [{"ratio": 60, "column": "site"}],
    "GDumb": [{"buffer_size": 150}],  # a smaller one is full of the first half
    "GSS": [{"buffer_size": 60}, {"buffer_size": 60, "variant": "iqp", "recent_size": 5}],
    "LabelBalanced": [{"ratio": 60}, {"ratio": 60, "force_column_balancing": True}],
    "No": [{"ratio": 100}],
    "Random": [{"ratio": 60}],
    "RandomNoReplacement": [{"ratio": 60}],
    "Reservoir": [{"buffer_size": 60}],
    "Stratified": [{"ratio": 60}, {"ratio": 60, "column": "site"}],
    "TimeWeighted": [{"ratio": 60, "half_life": "1d"}],
    "TriggerBalanced": [{"ratio": 60}],
}
SELECTED: dict[str, list[dict[str, Any]]] = {
    "CoresetStrategy": [{"warmup_triggers": 1, "presampling_config": {"strategy": "Random", "ratio": 60}}],
    "FreshnessSamplingStrategy": [{"unused_data_ratio": 50}],
    "NewDataStrategy": [{"tail_triggers": 0}, {"limit": 60, "storage_backend": "local"}],
}


def downsampling_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Sections of `selection_strategy`: every policy in both modes, balanced or not, as far as it has them."""
    for name, variants in DOWNSAMPLED.items():
        fields = DOWNSAMPLING.get(name).Config.model_fields
        for variant in variants:
            for whole in (False, True):
                if not whole and ("period" in variant or (name == "RS2" and not variant)):
                    continue  # only sample-then-batch has periods and walks through all samples
                for balance in (False, True) if "balance" in fields else (False,):
                    config = {"strategy": name, "ratio": 50, "sample_then_batch": whole, **variant}
                    config |= {"balance": balance} if "balance" in fields else {}
                    label = [
                        "sample_then_batch" if whole else "batch_then_sample",
                        *map(str, variant.values()),
                        *["balance"] * balance,
                    ]
                    yield ", ".join([name, *label]), {"name": "CoresetStrategy", "downsampling_config": config}


CASES: dict[str, dict[str, Any]] = dict(downsampling_cases())
CASES |= {
    f"presampled by {name} {number}": {"name": "CoresetStrategy", "presampling_config": {"strategy": name, **options}}
    for name, variants in PRESAMPLED.items()
    for number, options in enumerate(variants)
}
CASES |= {
    f"{name} {number}": {"name": name, **options} for name, every in SELECTED.items() for number, options in enumerate(every)
}
LOSS = {"strategy": "Loss", "ratio": 50, "sample_then_batch": True}
CASES |= {
    "both": {
        "name": "CoresetStrategy",
        "presampling_config": {"strategy": "LabelBalanced", "ratio": 80},
        "downsampling_config": LOSS,
    },
    "turns": {
        "name": "CoresetStrategy",
        "downsampling_config": {
            "downsampling_list": [LOSS, {"strategy": "RS2", "ratio": 30, "sample_then_batch": True}],
            "downsampling_thresholds": [1],
        },
    },
}
SELECTING = {name for name, section in CASES.items() if "presampling_config" in section or section["name"] != "CoresetStrategy"}
"""Cases in which the selector chooses."""
SLOW = (
    *(
        "Loss, sample_then_batch",
        "RHOLoss, sample_then_batch",
        "RS2, sample_then_batch",
        "Craig, batch_then_sample",
        "Forgetting, sample_then_batch",
        "turns",
    ),
    *("presampled by CLiB 0", "presampled by ColumnBalanced 0"),
    *("FreshnessSamplingStrategy 0", "NewDataStrategy 0"),
)
"""Together they have every file that a kill may meet: choices, scores, features, irreducible losses, feedback, columns, and the state of a policy."""
MARKS = {name: pytest.mark.slow if name in SLOW else () if name == "both" else pytest.mark.exhaustive for name in CASES}
"""The gate runs one case, `make slow` some cases, and `make test-all` each policy in all its modes and options."""


def test_every_policy_is_tried_here() -> None:
    assert set(DOWNSAMPLED) == set(DOWNSAMPLING.builtin)
    assert set(PRESAMPLED) == set(PRESAMPLING.builtin)
    assert set(SELECTED) == set(SELECTION.builtin)


@dataclass
class DeadlyStack(KilledStack):
    """A stack whose training workers are killed by what they read, and whose services by what they write."""

    blows: Blows
    folder: Path
    """What the training workers read."""

    def run(self, selection: dict[str, Any], strikes: Sequence[tuple[int, int]], *, struck: bool = False, **training: Any) -> str:
        """Run a pipeline of two trainings until it is finished, resuming it where it fails.

        Args: strikes: kills of workers. struck: kill the selector and the supervisor, too. selection, training: options of its sections.
        """
        (self.folder / "strikes.json").write_text(json.dumps(strikes))
        self.blows.set([*BLOWS, replace(SELECTED_AND_NOT_TRAINED, pid=self.pids()["supervisor"])] if struck else [])
        options: dict[str, Any] = {
            "epochs_per_trigger": EPOCHS,
            "seed": 5,
            "shuffle": True,
            "drop_last_batch": False,
            "num_prefetched_partitions": 1,
        }
        options |= {"checkpointing": {"activated": True, "interval": 2}, **training}
        dataset = "deadly-sites" if "column" in selection.get("presampling_config", {}) else "deadly"
        run = self.stack.run(
            tiny_pipeline(
                dataset,
                data={"dataset_id": dataset, "bytes_parser_function": DEADLY_PARSER.format(folder=str(self.folder))},
                trigger={"id": "DataAmountTrigger", "num_samples": NUM_SAMPLES // NUM_TRIGGERS},
                selection_strategy={"maximum_keys_in_memory": 20, "keep_scores": True, **selection},
                training=tiny_training(**options),
            )
        )
        if strikes:
            assert run.state is RunState.FAILED, run.error
            assert "trigger 0" in run.error
            assert "the last of 3 workers" in run.error
            self.client.resume(run.run_id)
            run = self.client.wait(run.run_id)
        if struck:
            assert run.state is RunState.INTERRUPTED, [run.error, self.blows.left()]
            self.client.resume(run.run_id)
            run = self.client.wait(run.run_id)
        assert run.state is RunState.FINISHED, run.error
        assert json.loads((self.folder / "strikes.json").read_text()) == []
        assert self.blows.left() == []
        return run.run_id


@pytest.fixture(scope="module")
def deadly(running_stack: RunningStack) -> Iterator[DeadlyStack]:
    """Made again, with the same files, where a worker comes back to this module (`--dist worksteal`)."""
    folder, stack = running_stack.folder / "deadly", running_stack
    folder.mkdir(exist_ok=True)
    files = sorted(stack.tiny_dataset("deadly", NUM_SAMPLES, 2).iterdir())
    (folder / "late.bin").write_bytes(np.fromfile(files[1], RECORD)["features"].tobytes())
    assert stack.plug_ins is not None
    with stack.client() as client:
        client.register_dataset(with_sites(files, folder / "sites"))
        client.ingest("deadly-sites")
        yield DeadlyStack(stack, client, blows_of(stack.plug_ins), folder)


def with_sites(files: Sequence[Path], folder: Path) -> DatasetConfig:
    """Write the records of binary files as Parquet, with a column `site` of three values and none; return the dataset."""
    folder.mkdir(exist_ok=True)
    for file in files:
        records, path = np.fromfile(file, RECORD), folder / f"{file.stem}.parquet"
        sites = np.random.default_rng(1).choice(["a", "a", "a", "b", "c", None], len(records))  # type: ignore[arg-type]
        payloads = [record.tobytes() for record in records["features"]]
        pq.write_table(pa.table({"label": records["label"], "x": pa.array(payloads), "site": pa.array(sites.tolist())}), path)
        shutil.copystat(file, path)
    options = {"payload_columns": ["x"], "label_column": "label"}
    return DatasetConfig(
        name="deadly-sites", base_path=folder, file_wrapper="ParquetFileWrapper", file_wrapper_config=options, watch=False
    )


def check_same(deadly: DeadlyStack, selection: dict[str, Any], *, struck: bool = False, **training: Any) -> None:
    """Check that a run whose workers are killed has the outcome of an undisturbed one. Args: struck: its services are killed, too."""
    client = deadly.client
    runs = [deadly.run(selection, (), **training), deadly.run(selection, STRIKES, struck=struck, **training)]
    assert differences(*(outcome(client, run_id) for run_id in runs)) == []
    for trigger_id in range(NUM_TRIGGERS):
        expected, found = (client.feedback(run_id, trigger_id) for run_id in runs)
        pd.testing.assert_frame_equal(expected, found)
        assert found["epoch"].nunique() == EPOCHS
        assert not found.duplicated(["epoch", "key"]).any()
        keys = [trigger_set_keys(client, run_id, trigger_id) for run_id in runs]
        assert keys[0] == keys[1]
        assert set(found["key"]) <= set(keys[0])


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in CASES])
def test_kills_change_no_key_that_is_trained_on(deadly: DeadlyStack, name: str) -> None:
    check_same(deadly, CASES[name], struck=name in SELECTING)
