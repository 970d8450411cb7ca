"""Cost of RS2: the time of a training on a new random half in each epoch, compared with a half that presampling has drawn once.

Both train as many epochs on as many samples. A SmallCNN is fast: what the selections add shows.
"""

from __future__ import annotations

import statistics

from benchmark.machine import busy_cores, spread, write_report
from benchmark.selection.trainings import parser_of, seconds, trainings

SIDES = {
    "presampling Random, 50 %": {"presampling_config": {"strategy": "Random", "ratio": 50}},
    "RS2 without replacement": {"downsampling_config": {"strategy": "RS2", "ratio": 50, "sample_then_batch": True}},
    "RS2 with replacement": {
        "downsampling_config": {"strategy": "RS2", "ratio": 50, "sample_then_batch": True, "with_replacement": True}
    },
}


def main() -> None:
    """Measure all, and print the last line `rs2: R`: the larger of the ratios of RS2's seconds to those of Random."""
    options = parser_of("rs2", __doc__, 100_000).parse_args()
    busy, training = busy_cores(), {"batch_size": 128, "epochs_per_trigger": 4}
    found: dict[str, list[float]] = {name: [] for name in SIDES}
    with trainings(options.samples) as services:
        services.train({**training, "epochs_per_trigger": 1}, {}, "SmallCNN")  # warms up
        for number in range(options.rounds):
            for name in list(SIDES)[:: 1 if number % 2 else -1]:
                found[name].append(seconds(services.train(training, SIDES[name], "SmallCNN")))
    random = found["presampling Random, 50 %"]
    ratios = {
        name: statistics.median(one / other for one, other in zip(values, random, strict=True)) for name, values in found.items()
    }
    rows = "\n".join(f"| {name} | {spread(values)} | {ratios[name]:.2f} |" for name, values in found.items())
    body = (
        f"{options.samples:,} images of 16×16, SmallCNN, 4 epochs, CPU; {busy:.1f} cores were busy with other work at the start.\n\n"
        f"| | seconds | to Random |\n|---|---|---|\n{rows}"
    )
    print(body)
    if options.report:
        command = f"python -m benchmark.selection rs2 --samples {options.samples} --rounds {options.rounds}"
        print(f"report: {write_report('selection-rs2', command, body)}")
    print(f"rs2: {max(ratio for name, ratio in ratios.items() if name.startswith('RS2')):.2f}")


if __name__ == "__main__":
    main()
