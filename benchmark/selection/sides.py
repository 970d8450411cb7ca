"""One repetition of one side of the figures `greedy` and `k_center`, as a process: prints its positions, CPU seconds and memory as JSON.

The side of a library runs where that is installed, which need not be Modyn: nothing of it is imported there.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ROOT: Final = Path(__file__).parents[2]
PEERS: Final = ROOT / ".venv-peers" / "bin" / "python"
ONE_THREAD: Final = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}

Features = npt.NDArray[np.float32]
Side = Callable[[Features, int], list[int]]
"""(features, size) → positions."""


def normal(samples: int, dimensions: int) -> Features:
    """Return the features that both sides choose from."""
    return np.random.default_rng(0).standard_normal((samples, dimensions), dtype=np.float32)


def repetition(python: str, kind: str, side: str, samples: int, dimensions: int) -> dict[str, Any]:
    """Returns: positions, cpu and wall in seconds, base and peak in GB: resident memory before the choice, and at most."""
    command = [python, "-W", "ignore", "-m", "benchmark.selection.sides", kind, side, str(samples), str(dimensions)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **ONE_THREAD}, check=False)
    if done.returncode:
        raise SystemExit(f"{side} ended with status {done.returncode}; what it said stands above")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def result_rows(found: Mapping[str, Sequence[Mapping[str, Any]]], what: str, extra: Mapping[str, str]) -> list[str]:
    """A table of medians and ranges. Args: extra: of each side, what stands in the last column `what`."""
    from benchmark.machine import spread

    head = [f"| side | repetitions | CPU | wall | peak memory | {what} |", "|---|---|---|---|---|---|"]
    return head + [
        f"| {side} | {len(runs)} | {spread([run['cpu'] for run in runs])} | {spread([run['wall'] for run in runs])} | "
        f"{spread([run['peak'] for run in runs], 'GB')} | {extra[side]} |"
        for side, runs in found.items()
    ]


def main() -> None:
    kind, side = sys.argv[1:3]
    samples, dimensions = map(int, sys.argv[3:])
    choose = SIDES[kind][side]()
    choose(normal(200, dimensions), 10)
    x = normal(samples, dimensions)
    base, cpu, wall = _peak(), time.process_time(), time.perf_counter()
    positions = choose(x, samples // 10)
    times = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    print()  # ends a line that a library has printed
    print(json.dumps({"positions": sorted(positions), **times, "base": base, "peak": _peak()}))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def craig() -> Side:
    from modyn.trainer_server.downsampling.coresets.choices import craig as choose

    return lambda x, size: choose(x, size, np.random.default_rng(0)).positions.tolist()


def apricot() -> Side:
    from apricot import FacilityLocationSelection

    def choose(x: Features, size: int) -> list[int]:
        # "l2": d_max - d. Its "euclidean" squares the distances.
        fitted = FacilityLocationSelection(size, metric="l2", optimizer="two-stage").fit(x)
        return [int(position) for position in fitted.ranking]

    return choose


def submodlib() -> Side:
    from sklearn.metrics import pairwise_distances
    from submodlib import FacilityLocationFunction

    def choose(x: Features, size: int) -> list[int]:
        distances = pairwise_distances(x)
        similarities = distances.max() - distances
        function = FacilityLocationFunction(n=len(x), mode="dense", sijs=similarities, separate_rep=False)
        chosen = function.maximize(budget=size, optimizer="LazyGreedy", show_progress=False)
        return [int(position) for position, _ in chosen]

    return choose


def k_centers() -> Side:
    from modyn.trainer_server.downsampling.coresets.choices import k_centers as choose

    return lambda x, size: choose(x, size, np.random.default_rng(0)).positions.tolist()


def deepcore_like() -> Side:
    """The steps of DeepCore's `k_center_greedy`, see benchmark/selection/k_center.py."""
    import torch

    torch.set_num_threads(1)

    def distances(center: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        found = center.pow(2).sum(1, keepdim=True) + rows.pow(2).sum(1)
        return found.addmm(center, rows.T, alpha=-2).clamp(min=1e-12).sqrt()

    @torch.no_grad()
    def choose(x: Features, size: int) -> list[int]:
        rows = torch.from_numpy(x)
        left = torch.ones(len(rows), dtype=torch.bool)
        held = torch.full((size, len(rows)), -1.0)
        center = int(np.random.default_rng(0).integers(len(rows)))
        nearest = None
        for step in range(size):
            left[center] = False
            if step == size - 1:
                break
            held[step, left] = distances(rows[center : center + 1], rows[left])[0]
            nearest = held[step] if nearest is None else torch.minimum(nearest, held[step])
            center = int(nearest.argmax())
        return (~left).nonzero()[:, 0].tolist()

    return choose


SIDES: Final[Mapping[str, Mapping[str, Callable[[], Side]]]] = {
    "facility": {"ours": craig, "apricot": apricot, "submodlib": submodlib},
    "centers": {"ours": k_centers, "deepcore_like": deepcore_like},
}

if __name__ == "__main__":
    main()
