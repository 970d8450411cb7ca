"""The pass that scores a trigger set for sample-then-batch, with its choice and the files that it writes, against a plain forward pass.

Both read the same samples through the same loader, in evaluation mode and without gradients, in turn. A SmallCNN is fast: what scoring adds shows.
The ratio is that of the plain seconds to those of scoring, the median of the rounds (goal: at least 0.9 for each policy).
"""

from __future__ import annotations

import statistics
from time import perf_counter

import torch

from benchmark.machine import busy_cores, spread, write_report
from benchmark.selection.trainings import NobodyListens, Trainings, parser_of, trainings
from modyn.config.base import load_section
from modyn.dataset.batch import on_device
from modyn.dataset.config import DataConfig
from modyn.dataset.loader import BatchLoader
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.models.calls import forward
from modyn.trainer_server.downsampling.policies.policy import Draw
from modyn.trainer_server.fitting import build
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.scoring.sample_then_batch import SampleThenBatch

POLICIES = (
    {"strategy": "Loss"},
    {"strategy": "GradNorm"},
    {"strategy": "Uncertainty", "score_metric": "Margin"},
)
BATCH_SIZE = 256
GOAL = 0.9


def main() -> None:
    """Measure each policy, and print the last line `score: R`: the least of the ratios of plain to scoring seconds."""
    parser = parser_of("score", __doc__, 100_000)
    options = parser.parse_args()
    busy, ratios, lines = busy_cores(), [], []
    with trainings(options.samples) as services:
        for policy in POLICIES:
            plain, scoring = [], []
            for number in range(options.rounds + 1):
                first, second = measure(services, policy)
                if number:  # the first warms up
                    plain.append(first)
                    scoring.append(second)
            ratios.append(statistics.median(one / other for one, other in zip(plain, scoring, strict=True)))
            lines.append(f"| {policy['strategy']} | {spread(plain)} | {spread(scoring)} | {ratios[-1]:.2f} |")
    body = (
        f"{options.samples:,} images of 16×16, SmallCNN, batches of {BATCH_SIZE}, CPU; {busy:.1f} cores were busy with other work at the start.\n\n"
        "| policy | plain forward pass | pass, choice and files | ratio |\n|---|---|---|---|\n"
        + "\n".join(lines)
        + f"\n\nGoal: a ratio of at least {GOAL}, which was {'reached' if min(ratios) >= GOAL else 'missed'}."
    )
    print(body)
    if options.report:
        command = f"python -m benchmark.selection score --samples {options.samples} --rounds {options.rounds}"
        print(f"report: {write_report('selection-score', command, body)}")
    print(f"score: {min(ratios):.2f}")


def measure(services: Trainings, policy: dict[str, str]) -> tuple[float, float]:
    """Seconds of a plain pass and of a selection, of one model."""
    downsampling = {**policy, "ratio": 50, "sample_then_batch": True}
    inputs = services.inputs({"batch_size": BATCH_SIZE}, {"downsampling_config": downsampling}, "SmallCNN")
    training = build(inputs, None, 1, NobodyListens(), None)
    began = perf_counter()
    plain_pass(inputs, training.components.model)
    middle = perf_counter()
    assert inputs.downsampling is not None
    selections = SampleThenBatch(inputs, inputs.downsampling, training, lambda number: Draw(1, 0, number), NobodyListens())
    selections.chosen(0)
    selections.close()
    return middle - began, perf_counter() - middle


def plain_pass(inputs: TrainingInputs, model: torch.nn.Module) -> None:
    """The model's outputs for all samples of the trigger set."""
    data = load_section(DataConfig, inputs.request.pipeline["data"], "data")
    options = LoadOptions(batch_size=BATCH_SIZE, drop_last=False, seed=0, training=False)
    dataset = TriggerSetDataset(inputs.trigger_set, data, inputs.context.connect, options)
    model.eval()
    with torch.no_grad(), BatchLoader(dataset, inputs.config.dataloader_workers) as loader:
        for batch in on_device(iter(loader), inputs.config.device):
            forward(model, batch.data)
    model.train()


if __name__ == "__main__":
    main()
