"""PolynomialFeatures: products of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, combinations_with_replacement
from math import comb
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from modyn.config.base import PlacedError
from modyn.preprocessing.base import ColumnName, ComponentConfig, StatelessComponent
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType


class PolynomialFeaturesConfig(ComponentConfig):
    """Options of PolynomialFeatures."""

    degree: int = Field(2, ge=2, le=5, description="largest number of factors of a product")
    interaction_only: bool = Field(False, description="omit products in which a column occurs twice, such as squares")
    output: ColumnName = Field("products", description="name of the output column")

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.columns and self.interaction_only and len(self.columns) < 2:
            raise PlacedError("interaction_only", "true needs two columns or more; name more columns or remove the key")
        return self


class PolynomialFeatures(StatelessComponent):
    """Add a dense column with all products of 2 to `degree` numbers, in the order of scikit-learn's `PolynomialFeatures`. The input columns are kept.

    Products are computed in float64, from left to right. A missing factor makes the product missing.

    >>> import pyarrow as pa
    >>> from modyn.preprocessing import Preprocessing
    >>> section = {"columns": {"a": "number", "b": "number"}, "components": [{"id": "PolynomialFeatures"}]}
    >>> Preprocessing(section).update_and_transform({"a": pa.array([2.0]), "b": pa.array([3.0])}).to_dense().tolist()
    [[2.0, 3.0, 4.0, 6.0, 9.0]]
    """

    Config = PolynomialFeaturesConfig
    takes = frozenset({ColumnKind.NUMBER})

    def __init__(self, config: PolynomialFeaturesConfig, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self.config: PolynomialFeaturesConfig = config
        chosen = combinations if config.interaction_only else combinations_with_replacement
        self._products = [names for degree in range(2, config.degree + 1) for names in chosen(inputs, degree)]

    @classmethod
    def num_combinations(cls, config: PolynomialFeaturesConfig, num_columns: int) -> int:
        """Count the products."""
        repeated = 0 if config.interaction_only else 1
        return sum(comb(num_columns + repeated * (degree - 1), degree) for degree in range(2, config.degree + 1))

    @property
    def keeps_inputs(self) -> bool:
        """Keep the factors."""
        return True

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Output one dense column."""
        return {self.config.output: ColumnType(ColumnKind.DENSE, len(self._products))}

    def transform(self, columns: Columns) -> dict[str, Any]:
        """Multiply. A product that overflows float64 is infinite, and `assemble` refuses such a product."""
        products = np.empty((len(columns[next(iter(self.inputs))]), len(self._products)))
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for at, names in enumerate(self._products):
                product = columns[names[0]]
                for name in names[1:]:
                    product = product * columns[name]
                products[:, at] = product
        return {self.config.output: products}
