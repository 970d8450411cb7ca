"""Choices by features for policies: `craig`, `gradmatch`, `k_centers`, `submodular`. The number of candidates is not limited."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from modyn.errors import InvalidArgumentError
from modyn.trainer_server.downsampling.coresets import Coreset, FloatArray
from modyn.trainer_server.downsampling.coresets.distances import CosineDistances, EuclideanDistances
from modyn.trainer_server.downsampling.coresets.facility_location import FacilityLocation
from modyn.trainer_server.downsampling.coresets.graph_cut import GraphCut
from modyn.trainer_server.downsampling.coresets.greedy import Greedy, SetFunction, maximize
from modyn.trainer_server.downsampling.coresets.k_center import k_center
from modyn.trainer_server.downsampling.coresets.log_determinant import LogDeterminant
from modyn.trainer_server.downsampling.coresets.matching_pursuit import RIDGE, Pursuit, pursue
from modyn.trainer_server.downsampling.coresets.partitioned import BLOCK_ROWS, Positions, Weights, choose_in_blocks, deal, quotas
from modyn.trainer_server.downsampling.coresets.rows import check_features

Function = Literal["FacilityLocation", "GraphCut", "LogDeterminant"]
FUNCTIONS: Mapping[Function, Callable[[FloatArray], SetFunction]] = {
    "FacilityLocation": lambda features: FacilityLocation(CosineDistances(features)),
    "GraphCut": GraphCut,
    "LogDeterminant": LogDeterminant,
}
MOST_ATOMS: Final = 256
"""Largest number of gradients that are matched together. The time for each gradient grows with the square of this number."""


def submodular(
    features: FloatArray,
    size: int,
    generator: np.random.Generator,
    function: Function,
    greedy: Greedy = "LazyGreedy",
    among: Positions | None = None,
) -> Coreset:
    """Choose candidates greedily so that a set function of their cosines is as large as possible.

    Args: features: (n, d). size: number of candidates to choose; at most all. among: positions to choose from, ascending; None for all positions.

    Returns: weights of 1; value: value of the function; with several blocks, the sum of the blocks' values in the last step. Raises
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
    """Choose candidates so that each candidate is near to a chosen one: facility location with Euclidean distances.

    Mirzasoleiman, Bilmes and Leskovec: Coresets for Data-efficient Training of Machine Learning Models, 2020, algorithm 1.
    Args: features: (n, d), gradients. size: number to choose, at most all.
    Returns: weights: the number of candidates that each chosen candidate represents, including itself; the sum of the weights is n. value: the sum of
    the distances between candidates and their representatives; with several blocks, a bound of the sum. Raises InvalidArgumentError: a feature is not
    finite.
    """

    def choose(rows: FloatArray, share: int, weights: Weights, generator: np.random.Generator) -> Coreset:
        distances = EuclideanDistances(rows)
        function = FacilityLocation(distances, weights)
        chosen = maximize(function, share, greedy, generator)
        # The function adds up (farthest - distance). The rest is the sum of the distances.
        missing = distances.farthest * float(weights.sum(dtype=np.float64)) - function.value
        return Coreset.of(chosen, function.represented(chosen), distances.unit * missing)

    found = choose_in_blocks(features, size, choose, generator, among)
    return Coreset(found.positions, found.weights, sum(map(sum, found.values)))


def k_centers(features: FloatArray, size: int, generator: np.random.Generator, among: Positions | None = None) -> Coreset:
    """Choose by `k_center`; many candidates are divided into blocks.

    Returns: weights of 1; value: the radius; with several blocks, a bound of the radius. Raises InvalidArgumentError: a feature is not
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
    """Choose gradients, and weights ≥ 0, so that their weighted mean is near to the mean of all gradients.

    The choice is made in blocks. Each block matches the mean of all gradients by at most MOST_ATOMS gradients. If no remaining gradient improves a
    block, a new pursuit matches the mean with the remaining gradients. Each pursuit counts in proportion to its number of gradients.
    Args: features: (n, d), gradients. size: number to choose, at most all. ridge: see `pursue`.
    Returns: fewer than `size` positions if no other gradient has a component along the mean; no position if the mean is 0. weights: the mean
    of weight · gradient over the chosen gradients is near to the mean of all gradients. value: the length of the difference of the two means. Raises
    InvalidArgumentError: a feature is not finite.
    """
    check_features(features, among)
    among = np.arange(len(features)) if among is None else among
    count = len(among)
    size = min(size, count)
    # Each block has at most BLOCK_ROWS gradients, and must choose at most MOST_ATOMS gradients.
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
    # Each pursuit counts in proportion to its number of gradients, as in the weights above.
    missing = sum((len(pursuit.chosen) / len(chosen) * pursuit.residual for pursuit in pursuits), np.zeros_like(target))
    return Coreset.of(chosen, weights, float(np.linalg.norm(missing if pursuits else target)))


def _match(features: FloatArray, left: Positions, wanted: int, target: npt.NDArray[np.float64], ridge: float) -> list[Pursuit]:
    """Return pursuits of the target that together choose `wanted` of the positions `left`, or fewer if no other position is useful."""
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
