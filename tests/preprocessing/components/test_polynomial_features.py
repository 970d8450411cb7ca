"""Products are scikit-learn's, in its order."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.preprocessing import PolynomialFeatures

from modyn.errors import ConfigError, DataError
from modyn.preprocessing.components.polynomial_features import PolynomialFeatures as Products
from modyn.preprocessing.components.polynomial_features import PolynomialFeaturesConfig
from tests.preprocessing.streams import batch, numbers, pipeline


@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.parametrize("interaction_only", [False, True])
def test_products_as_scikit_learn_orders_them(degree: int, interaction_only: bool) -> None:
    section = {"id": "PolynomialFeatures", "degree": degree, "interaction_only": interaction_only}
    products = pipeline(section, columns="n0 n1 n2")
    values = np.random.default_rng(0).normal(0, 10, (20, 3))
    oracle = PolynomialFeatures(degree, interaction_only=interaction_only, include_bias=False)
    expected = oracle.fit_transform(values).astype(np.float32)
    found = products.update_and_transform({f"n{at}": numbers(values[:, at]) for at in range(3)})
    np.testing.assert_allclose(found.dense, expected, rtol=1e-6)
    config = PolynomialFeaturesConfig(degree=degree, interaction_only=interaction_only)
    assert Products.num_combinations(config, 3) == found.dense.shape[1] - 3


def test_what_is_too_large_or_missing_is_refused_by_row_and_column() -> None:
    products = pipeline({"id": "PolynomialFeatures", "degree": 3})
    with pytest.raises(DataError, match="row 1 has a value in column 'products' that is too large for float32"):
        products.transform(batch(n=[1.0, 1e30]))
    with pytest.raises(DataError, match="row 0 has no value in column 'n'; add an Imputer"):
        products.transform(batch(n=[None]))


def test_products_of_one_column_with_itself_only() -> None:
    with pytest.raises(ConfigError, match="interaction_only: true needs two columns or more"):
        pipeline({"id": "PolynomialFeatures", "columns": ["n"], "interaction_only": True})
