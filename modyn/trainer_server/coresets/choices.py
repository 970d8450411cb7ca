"""The choices that policies make by features: `craig`, `gradmatch`, `k_centers`, `submodular`; of any number of candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from modyn.errors import InvalidArgumentError
from modyn.trainer_server.coresets import Coreset, FloatArray
from modyn.trainer_server.coresets.distances import CosineDistances, EuclideanDistances
from modyn.trainer_server.coresets.facility_location import FacilityLocation
from modyn.trainer_server.coresets.graph_cut import GraphCut
from modyn.trainer_server.coresets.greedy import Greedy, SetFunction, maximize
from modyn.trainer_server.coresets.k_center import k_center
from modyn.trainer_server.coresets.log_determinant import LogDeterminant
from modyn.trainer_server.coresets.matching_pursuit import RIDGE, Pursuit, pursue
from modyn.trainer_server.coresets.partitioned import BLOCK_ROWS, Positions, Weights, choose_in_blocks, deal, quotas
from modyn.trainer_server.coresets.rows import check_features

Function = Literal["FacilityLocation", "GraphCut", "LogDeterminant"]
FUNCTIONS: Mapping[Function, Callable[[FloatArray], SetFunction]] = {
    "FacilityLocation": lambda features: FacilityLocation(CosineDistances(features)),
    "GraphCut": GraphCut,
    "LogDeterminant": LogDeterminant,
}
MOST_ATOMS: Final = 256
"""Gradients that are matched together: the time for each grows with the square of their number."""


def submodular(
    features: FloatArray,
    size: int,
    generator: np.random.Generator,
    function: Function,
    greedy: Greedy = "LazyGreedy",
    among: Positions | None = None,
) -> Coreset:
    """Choose the candidates that maximize a set function of their cosines, greedily.

    Args: features: (n, d). size: how many; all if there are no more. among: positions to choose from, ascending; none: all.
    Returns: weights of 1; the value is that of the function, where there are several blocks the sum of theirs in the last step. Raises
    InvalidArgumentError: a feature is not finite.
    """
    if function not in FUNCTIONS:
        raise InvalidArgumentError(f"there is no set function {function!r}; there are {', '.join(FUNCTIONS)}")

    def choose(rows: FloatArray, share: int, weights: Weights, generator: np.random.Generator) -> Coreset:
        of_rows = (
            FacilityLocation(CosineDistances(rows), weights) if function == "FacilityLocation" else FUNCTIONS[function](rows)
        )
        chosen = maximize(of_rows, share, greedy, generator)
        stand_for = of_rows.represented(chosen) if isinstance(of_rows, FacilityLocation) else None
        return Coreset.of(chosen, stand_for, of_rows.value)

    found = choose_in_blocks(features, size, choose, generator, among)
    return Coreset.of(found.positions, None, sum(found.values[-1]))


def craig(
    features: FloatArray,
    size: int,
    generator: np.random.Generator,
    greedy: Greedy = "LazyGreedy",
    among: Positions | None = None,
) -> Coreset:
    """Choose the candidates to which all others are near: facility location with Euclidean distances.

    Mirzasoleiman, Bilmes and Leskovec: Coresets for Data-efficient Training of Machine Learning Models, 2020, algorithm 1.
    Args: features: (n, d), gradients. size: how many; all if there are no more.
    Returns: weights: how many candidates each represents, itself included; their sum is n. value: the sum of the distances from all candidates
    to those that represent them, where there are several blocks a bound of it. Raises InvalidArgumentError: a feature is not finite.
    """

    def choose(rows: FloatArray, share: int, weights: Weights, generator: np.random.Generator) -> Coreset:
        distances = EuclideanDistances(rows)
        function = FacilityLocation(distances, weights)
        chosen = maximize(function, share, greedy, generator)
        missing = distances.farthest * float(weights.sum(dtype=np.float64)) - function.value
        return Coreset.of(chosen, function.represented(chosen), distances.unit * missing)

    found = choose_in_blocks(features, size, choose, generator, among)
    return Coreset(found.positions, found.weights, sum(map(sum, found.values)))


def k_centers(features: FloatArray, size: int, generator: np.random.Generator, among: Positions | None = None) -> Coreset:
    """Choose by `k_center`, in blocks where there are many candidates.

    Returns: weights of 1; the value is the radius, where there are several blocks a bound of it. Raises InvalidArgumentError: a feature is not
    finite.
    """
    found = choose_in_blocks(features, size, lambda rows, share, *_: k_center(rows, share), generator, among)
    return Coreset.of(found.positions, None, sum(map(max, found.values)))


def gradmatch(
    features: FloatArray,
    size: int,
    generator: np.random.Generator,
    ridge: float = RIDGE,
    among: Positions | None = None,
) -> Coreset:
    """Choose gradients, and weights ≥ 0, whose weighted mean is near to the mean of all.

    In blocks, of which each matches the mean of all by at most MOST_ATOMS gradients. Where a pursuit ends before that, because nothing left brings
    it nearer, another one matches the mean with those that are left. Each pursuit counts as many times as it has gradients.
    Args: features: (n, d), gradients. size: how many; all if there are no more. ridge: as in `pursue`.
    Returns: fewer positions than `size` where no other gradient points to where the mean does, none if that is 0. weights: the mean
    over the chosen of weight · gradient is near to the mean of all. value: the length of the difference. Raises InvalidArgumentError: a feature
    is not finite.
    """
    check_features(features, among)
    among = np.arange(len(features)) if among is None else among
    count = len(among)
    size = min(size, count)
    num_blocks = max(1, -(-count // BLOCK_ROWS), -(-size // MOST_ATOMS))
    blocks = [among[block] for block in deal(count, num_blocks, generator)]
    shares = quotas(np.array([len(block) for block in blocks]), size)
    target = np.zeros(features.shape[1])
    for block in blocks:
        target += features[block].sum(0, dtype=np.float64) / max(1, count)
    found = [_match(features, *part, target, ridge) for part in zip(blocks, shares.tolist(), strict=True)]
    pursuits = [pursuit for of_block in found for pursuit in of_block]
    chosen = np.concatenate([np.empty(0, np.int64), *(pursuit.chosen for pursuit in pursuits)])
    weights = np.concatenate([np.empty(0), *(len(pursuit.chosen) * pursuit.coefficients for pursuit in pursuits)])
    missing = sum((len(pursuit.chosen) / len(chosen) * pursuit.residual for pursuit in pursuits), np.zeros_like(target))
    return Coreset.of(chosen, weights, float(np.linalg.norm(missing if pursuits else target)))


def _match(features: FloatArray, left: Positions, wanted: int, target: npt.NDArray[np.float64], ridge: float) -> list[Pursuit]:
    """Pursuits of the target that together choose as many of the positions `left` as are wanted, or as are of use."""
    found = []
    while wanted:
        atoms: Any = np.asarray(features[left])
        pursuit = pursue(atoms if atoms.dtype == np.float64 else atoms.astype(np.float32), target, wanted, ridge)
        if not len(pursuit.chosen):
            break
        found.append(pursuit._replace(chosen=left[pursuit.chosen]))
        left = np.delete(left, pursuit.chosen)
        wanted -= len(pursuit.chosen)
    return found
