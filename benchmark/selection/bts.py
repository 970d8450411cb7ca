"""Batch-then-sample at 50 %: the time of a training in which half of the candidates of each batch are trained on, against one on all of them.

Both load the same samples. A ResNet18 is trained, whose backward pass dominates: twice the forward pass, and more with its statistics of batches.
"""

from __future__ import annotations

import statistics

from benchmark.machine import busy_cores, spread, write_report
from benchmark.selection.trainings import parser_of, seconds, trainings

POLICIES = ({"strategy": "Loss"}, {"strategy": "GradNorm"}, {"strategy": "Uncertainty", "score_metric": "Margin"})
BATCH_SIZE = 64


def main() -> None:
    """Measure each policy, and print the last line `bts: R`: the largest of the ratios of seconds."""
    options = parser_of("bts", __doc__, 4096).parse_args()
    busy, lines, ratios = busy_cores(), [], []
    training = {"batch_size": BATCH_SIZE}
    with trainings(options.samples) as services:
        services.train(training, {"limit": 2 * BATCH_SIZE}, "ResNet18")  # warms up
        whole: list[float] = []
        halves: dict[str, list[float]] = {policy["strategy"]: [] for policy in POLICIES}
        for _ in range(options.rounds):
            whole.append(seconds(services.train(training, {}, "ResNet18")))
            for policy in POLICIES:
                result = services.train(training, {"downsampling_config": {**policy, "ratio": 50}}, "ResNet18")
                halves[policy["strategy"]].append(seconds(result))
        for name, half in halves.items():
            ratios.append(statistics.median(one / other for one, other in zip(half, whole, strict=True)))
            lines.append(f"| {name} | {spread(half)} | {ratios[-1]:.2f} |")
    body = (
        f"{options.samples:,} images of 16×16, ResNet18, batches of {BATCH_SIZE}, one epoch, CPU; {busy:.1f} cores were busy with other work at "
        f"the start. All samples: {spread(whole)}.\n\n| policy at 50 % | seconds | to all samples |\n|---|---|---|\n"
        + "\n".join(lines)
    )
    print(body)
    if options.report:
        command = f"python -m benchmark.selection bts --samples {options.samples} --rounds {options.rounds}"
        print(f"report: {write_report('selection-bts', command, body)}")
    print(f"bts: {max(ratios):.2f}")


if __name__ == "__main__":
    main()
