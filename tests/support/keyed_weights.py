"""A selection strategy whose weights follow from the keys, as a plug-in: the selector finds it in a folder on its PYTHONPATH."""

from __future__ import annotations

import numpy as np

from modyn.records import Float32Array, Int64Array, KeysAndWeights
from modyn.selector.selection import SelectionConfig, SelectionPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow

NAME = "KeyedWeightsStrategy"


def weights_of(keys: Int64Array) -> Float32Array:
    """float32 (n,), exact, and others for neighbours."""
    return ((keys % 1009 + 1) / 8).astype(np.float32)


class KeyedWeightsStrategy(SelectionPolicy):
    """Selects the whole window; the weight of a sample says which key it has."""

    Config = SelectionConfig

    def select(self, window: SelectionWindow, context: SelectionContext) -> Selection:
        return Selection(len(window), (KeysAndWeights(keys, weights_of(keys)) for keys in window.all_keys()))
