"""Projections of samples to fewer values before drift is measured, registered by the `id` of `projection` in a drift trigger.

The module imports torch only to project, because options are checked on machines without torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import Field

from modyn.config.base import Section
from modyn.errors import ConfigError
from modyn.registry import Registry

if TYPE_CHECKING:
    import torch

BLOCK: Final = 4096
"""Number of rows that are converted at once, and the largest width for which the covariance of all columns is computed."""


class ProjectionConfig(Section):
    """Options of projections."""

    num_components: int = Field(ge=1, le=BLOCK, description="number of values of a sample after the projection")


class Projection(ABC):
    """A linear map of samples, built from its `Config`. The same samples and `seed` give the same map."""

    Config: ClassVar[type[Section]]
    """Options of the projection: the keys of its section except `id`."""

    is_fitted: ClassVar[bool] = True
    """Whether the map depends on the reference. If not, each sample is projected when it is decoded, and only the projected values are kept."""

    def __init__(self, config: Any, seed: int = 0) -> None:
        self.config: Any = config
        self.seed = seed

    @property
    def min_samples(self) -> int:
        """Return the smallest number of reference samples. With fewer samples, no projection is learned and no drift is measured."""
        return 1

    @abstractmethod
    def fit(self, reference: torch.Tensor) -> None:
        """Learn the map. This method is called once, before `apply`. Args: reference: (n, d) float32, at least `min_samples` rows.

        Raises ConfigError: samples have fewer values than the number of components.
        """

    @abstractmethod
    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """Map (n, d) float32 to (n, num_components) float32, on the same device."""

    def check_width(self, width: int, what: str = "samples have {} values") -> None:
        """Raise ConfigError if more components are requested than `width`."""
        if self.config.num_components > width:
            number = self.config.num_components
            raise ConfigError(
                f"{type(self).__name__}: num_components is {number}, but {what.format(width)}; lower it, or leave the projection out"
            )


class RandomProjection(Projection):
    """Multiply rows by a fixed matrix of independent normal numbers with variance 1 / num_components. The map preserves squared distances on average.

    >>> import torch
    >>> projection = RandomProjection(ProjectionConfig(num_components=2), seed=1)
    >>> projection.fit(torch.eye(5))
    >>> projection.apply(torch.eye(5)).shape
    torch.Size([5, 2])
    """

    Config: ClassVar[type[Section]] = ProjectionConfig
    is_fitted = False

    def fit(self, reference: torch.Tensor) -> None:
        """Draw the matrix for rows of this width. The values of the rows do not matter."""
        import torch

        width, number = reference.shape[1], self.config.num_components
        self.check_width(width)
        generator = torch.Generator().manual_seed(self.seed)
        self._matrix = torch.randn(width, number, generator=generator).div_(number**0.5).to(reference.device)

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Projection.apply`."""
        return rows @ self._matrix


class PCAProjection(Projection):
    """The principal components of the reference: coordinates around the reference's mean, along the directions with the largest variance.

    If samples have more than 4,096 values, at most 4,096 evenly spaced rows of the reference are used. The components are computed in float64.

    >>> import torch
    >>> projection = PCAProjection(ProjectionConfig(num_components=1))
    >>> projection.fit(torch.tensor([[0.0, 0.0], [2.0, 2.0]]))
    >>> projection.apply(torch.tensor([[2.0, 2.0]])).round(decimals=3)
    tensor([[1.4140]])
    """

    Config: ClassVar[type[Section]] = ProjectionConfig

    @property
    def min_samples(self) -> int:
        """Return the number of components. `fit` needs at least this number of samples."""
        return int(self.config.num_components)

    def fit(self, reference: torch.Tensor) -> None:
        """See `Projection.fit`."""
        import torch

        width = reference.shape[1]
        self.check_width(width)
        if width > BLOCK and len(reference) > BLOCK:
            reference = reference[torch.linspace(0, len(reference) - 1, BLOCK, device=reference.device).long()]
        self.check_width(len(reference), "the reference has {} samples")
        self._mean = reference.mean(0, dtype=torch.float64)
        directions = self._of_covariance(reference) if width <= BLOCK else self._of_products(reference)
        # The sign of a direction is arbitrary. The largest value of each direction is made positive.
        largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
        self._directions = directions * torch.where(largest < 0, -1.0, 1.0)

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Projection.apply`."""
        import torch

        projected = torch.empty(len(rows), self.config.num_components, dtype=torch.float32, device=rows.device)
        for first in range(0, len(rows), BLOCK):
            block = rows[first : first + BLOCK].double() - self._mean
            projected[first : first + BLOCK] = (block @ self._directions).float()
        return projected

    def _largest(self, products: torch.Tensor) -> torch.Tensor:
        """Return the eigenvectors of the largest eigenvalues as columns, largest first."""
        import torch

        found: torch.Tensor = torch.linalg.eigh(products).eigenvectors[:, -self.config.num_components :].flip(1)
        return found

    def _of_covariance(self, reference: torch.Tensor) -> torch.Tensor:
        import torch

        width = reference.shape[1]
        # float64, because sums of many products would lose digits in float32. Only one block is copied to float64 at a time.
        products = torch.zeros(width, width, dtype=torch.float64, device=reference.device)
        for first in range(0, len(reference), BLOCK):
            block = reference[first : first + BLOCK].double() - self._mean
            products.addmm_(block.T, block)
        return self._largest(products)

    def _of_products(self, reference: torch.Tensor) -> torch.Tensor:
        """Compute the directions from the products of all pairs of rows, because there are fewer rows than columns. If XXᵀu = λu, then Xᵀu is a
        direction."""
        import torch

        products = torch.zeros(len(reference), len(reference), dtype=torch.float64, device=reference.device)
        for first in range(0, reference.shape[1], BLOCK):
            block = reference[:, first : first + BLOCK].double() - self._mean[first : first + BLOCK]
            products.addmm_(block, block.T)
        vectors = self._largest(products)
        columns = [
            (reference[:, first : first + BLOCK].double() - self._mean[first : first + BLOCK]).T @ vectors
            for first in range(0, reference.shape[1], BLOCK)
        ]
        return torch.nn.functional.normalize(torch.cat(columns), dim=0)


PROJECTIONS: Final[Registry[type[Projection]]] = Registry(
    group="modyn.drift_projections",
    kind="projection",
    builtin={
        "PCAProjection": "modyn.evaluator.drift.projections:PCAProjection",
        "RandomProjection": "modyn.evaluator.drift.projections:RandomProjection",
    },
)
