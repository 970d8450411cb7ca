"""Online statistics for preprocessing: components that learn from a stream as it passes, and make features of fixed width of its samples."""

from __future__ import annotations

from modyn.preprocessing.base import Component, ComponentConfig
from modyn.preprocessing.column_parser import ColumnParser, ColumnSchema
from modyn.preprocessing.components import COMPONENTS
from modyn.preprocessing.features import FeatureRange, Features
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
