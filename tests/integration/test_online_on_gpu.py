"""A pipeline of steps over columns on real services and a GPU, and predictions of its newest version while another run trains."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from modyn.supervisor.client import RunState
from modyn.testing.stack import stack_on, tiny_training
from tests.integration.test_preprocessing import BATCH, LEARNING_RATE, add_records, asked, finished, given_to, pipeline
from tests.support.column_samples import SPARSE, columns_of, tensors
from tests.support.serving_process import Serving, connect

pytestmark = [pytest.mark.timeout(300), pytest.mark.gpu]


def test_a_pipeline_and_its_predictions(tmp_path: Path) -> None:
    optimizer = {"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": LEARNING_RATE}}]}
    options = {"optimizers": [optimizer], "use_previous_model": False, "batch_size": BATCH, "epochs_per_trigger": 2}
    with stack_on(tmp_path, serving={"device": "cuda:0"}) as stack, stack.client() as client:
        add_records(client, "clicks")
        on_gpu = pipeline("clicks", SPARSE, training=tiny_training(**options, device="cuda:0"))
        (_, on_cpu), (run, triggers) = finished(stack, pipeline("clicks", SPARSE)), finished(stack, on_gpu)
        assert [trigger.num_trained for trigger in triggers] == [trigger.num_trained for trigger in on_cpu]
        for one, other in zip(triggers, on_cpu, strict=True):
            weights = [client.load_model(trigger.model_id or 0).state_dict() for trigger in (one, other)]
            for name, tensor in weights[1].items():
                torch.testing.assert_close(weights[0][name].cpu(), tensor, rtol=1e-2, atol=1e-4)
        newest = triggers[-1].model_id or 0
        model, statistics = client.load_model(newest), client.preprocessing(newest)
        assert statistics is not None
        keys = list(range(200, 230))
        expected = given_to(model, statistics.transform(columns_of(keys)).to_torch()).detach().numpy().reshape(-1)
        with (
            Serving(stack, run.run_id, "--name", "clicks", "--http-port", "0", "--grpc-port", "0") as served,
            closing(connect(served.address)) as connection,
        ):
            training = client.run(yaml.safe_load(on_gpu))
            for _ in range(200):
                answer = asked(connection, "POST", "/v2/models/clicks/infer", {"inputs": tensors(keys)})
                np.testing.assert_allclose(answer["outputs"][0]["data"], expected, rtol=1e-3, atol=1e-4)
            ended = client.wait(training.run_id)
            assert ended.state is RunState.FINISHED, ended.error
