"""A file in the older format of the published system runs unchanged, with the same meaning."""

from __future__ import annotations

from modyn.supervisor.client import RunState
from modyn.testing.stack import TINY_PARSER, RunningStack, tiny_training
from tests.support.comparison import outcome

NUM_SAMPLES = 120


def test_a_file_in_the_older_format_runs(running_stack: RunningStack) -> None:
    running_stack.tiny_dataset("older", NUM_SAMPLES)
    strategy = {
        "name": "CoresetStrategy",
        "maximum_keys_in_memory": 30,
        "config": {
            "storage_backend": "database",
            "limit": -1,
            "reset_after_trigger": False,
            "presampling_config": {"strategy": "RandomPresamplingStrategy", "ratio": 50},
        },
    }
    evaluated = {
        "dataset_id": "older",
        "bytes_parser_function": TINY_PARSER,
        "batch_size": 64,
        "dataloader_workers": 1,
        "metrics": [{"name": "F1-score", "config": {"num_classes": 3, "average": "macro"}}],
    }
    path = running_stack.pipeline_file(
        "older",
        trigger={"id": "DataAmountTrigger", "trigger_config": {"data_points_for_trigger": 50}},
        selection_strategy=None,
        training=tiny_training(initial_pass={"activated": False}, selection_strategy=strategy),
        evaluation={"datasets": [evaluated], "result_writers": ["json"]},
    )
    run = running_stack.run(path)
    assert run.state is RunState.FINISHED, run.message
    with running_stack.client() as client:
        found = outcome(client, run.run_id)
    assert [trigger.num_keys for trigger in found.triggers] == [25, 50]  # half of all samples until then
    assert [(each.trigger_id, each.num_samples) for each in found.evaluations] == [(0, NUM_SAMPLES), (1, NUM_SAMPLES)]
