"""One side of the figure `drift`, a process: takes the name of a case a line, and answers with its results as JSON.

The side of alibi-detect runs where that is installed, which need not be modyn: modyn is not imported there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

Result = tuple[float, float | None]
"""Distance and p-value."""


def main() -> None:
    side, samples, dimensions, threads, permutations = sys.argv[1], *map(int, sys.argv[2:])
    torch.set_num_threads(threads)
    x, y = sets(samples, dimensions)
    cases = {"ours": ours, "alibi": alibi}[side](x, y, permutations)
    print(json.dumps(sorted(cases)), flush=True)
    for line in sys.stdin:
        started, cpu = time.perf_counter(), time.process_time()
        distance, p_value = cases[line.strip()]()
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - started
        print(json.dumps({"distance": distance, "p_value": p_value, "cpu": cpu, "seconds": seconds}), flush=True)


def sets(samples: int, dimensions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sets (samples, dimensions) of normal values; the mean of the second is shifted by 0.05 in each dimension."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((samples, dimensions), dtype=np.float32) for _ in range(2))
    return torch.from_numpy(x), torch.from_numpy(y + np.float32(0.05))


def ours(x: torch.Tensor, y: torch.Tensor, permutations: int) -> Mapping[str, Callable[[], Result]]:
    from modyn.evaluator.drift import compare
    from modyn.evaluator.drift.mmd import MMDConfig, MMDDriftMetric

    def measure(bandwidth: float | None, num_permutations: int | None = None) -> Result:
        found = compare(MMDDriftMetric(MMDConfig(bandwidth=bandwidth, num_permutations=num_permutations)), x, y)
        return found.distance, found.p_value

    sigma = x.shape[1] ** 0.5
    return {
        "function": lambda: measure(sigma),
        "given": lambda: measure(sigma),
        "median": lambda: measure(None),
        "permutations": lambda: measure(sigma, permutations),
    }


def alibi(x: torch.Tensor, y: torch.Tensor, permutations: int) -> Mapping[str, Callable[[], Result]]:
    from alibi_detect.cd.pytorch.mmd import MMDDriftTorch
    from alibi_detect.utils.pytorch.distance import mmd2, mmd2_from_kernel_matrix
    from alibi_detect.utils.pytorch.kernels import GaussianRBF

    sigma = np.array([x.shape[1] ** 0.5], dtype=np.float32)

    def without_permutations(bandwidth: np.ndarray | None) -> Result:
        detector = MMDDriftTorch(x.numpy(), sigma=bandwidth, configure_kernel_from_x_ref=bandwidth is None, device="cpu")
        return float(mmd2_from_kernel_matrix(detector.kernel_matrix(x, y), len(y))), None

    def permuted() -> Result:
        detector = MMDDriftTorch(
            x.numpy(), sigma=sigma, configure_kernel_from_x_ref=False, n_permutations=permutations, device="cpu"
        )
        found = detector.predict(y.numpy())["data"]
        return float(found["distance"]), float(found["p_val"])

    return {
        "function": lambda: (float(mmd2(x, y, GaussianRBF(torch.from_numpy(sigma)))), None),
        "given": lambda: without_permutations(sigma),
        "median": lambda: without_permutations(None),
        "permutations": permuted,
    }


if __name__ == "__main__":
    main()
