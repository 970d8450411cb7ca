"""The registry of components of preprocessing."""

from __future__ import annotations

from typing import Final

from modyn.preprocessing.base import Component
from modyn.registry import Registry

_HERE: Final = "modyn.preprocessing.components"

COMPONENTS: Final[Registry[type[Component]]] = Registry(
    group="modyn.preprocessing",
    kind="preprocessing component",
    builtin={
        "Bucketizer": f"{_HERE}.bucketizer:Bucketizer",
        "CrossFeatures": f"{_HERE}.cross_features:CrossFeatures",
        "FeatureHasher": f"{_HERE}.feature_hasher:FeatureHasher",
        "HashedEncoder": f"{_HERE}.hashed_encoder:HashedEncoder",
        "Imputer": f"{_HERE}.imputer:Imputer",
        "InputGuard": f"{_HERE}.input_guard:InputGuard",
        "LabelIndexer": f"{_HERE}.label_indexer:LabelIndexer",
        "MinMaxScaler": f"{_HERE}.min_max_scaler:MinMaxScaler",
        "OneHotEncoder": f"{_HERE}.one_hot_encoder:OneHotEncoder",
        "PolynomialFeatures": f"{_HERE}.polynomial_features:PolynomialFeatures",
        "StandardScaler": f"{_HERE}.standard_scaler:StandardScaler",
        "TokenCounts": f"{_HERE}.token_counts:TokenCounts",
    },
)
