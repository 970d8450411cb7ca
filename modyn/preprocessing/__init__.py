"""Online statistics for preprocessing: components that learn from a stream and turn its samples into features of fixed width."""

from __future__ import annotations

from modyn.preprocessing.base import Component, ComponentConfig
from modyn.preprocessing.column_parser import ColumnParser, ColumnSchema
from modyn.preprocessing.components import COMPONENTS
from modyn.preprocessing.feature_matrix import FeatureRange, Features
from modyn.preprocessing.pipeline import Preprocessing, PreprocessingConfig, StatisticsSnapshot, check_preprocessing_section

__all__ = [
    "COMPONENTS",
    "ColumnParser",
    "ColumnSchema",
    "Component",
    "ComponentConfig",
    "FeatureRange",
    "Features",
    "Preprocessing",
    "PreprocessingConfig",
    "StatisticsSnapshot",
    "check_preprocessing_section",
]
