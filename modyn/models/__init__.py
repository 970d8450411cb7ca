"""Model definitions, tied to nothing, and the registry that finds them by id.

What is registered is either a *spec* (a light class with a Config and `build()`, as all of ours: checked without importing torch) or
plainly an `nn.Module` class with a `Config` that takes the config as its only argument.
"""

from __future__ import annotations

from modyn.registry import Registry

MODELS: Registry[type] = Registry(
    group="modyn.models",
    kind="model",
    builtin={
        "LogisticRegression": "modyn.models.mlp:LogisticRegression",
        "MLP": "modyn.models.mlp:MLP",
        "ResNet18": "modyn.models.resnet:ResNet18",
        "ResNet50": "modyn.models.resnet:ResNet50",
        "ResNet152": "modyn.models.resnet:ResNet152",
        "SmallCNN": "modyn.models.small_cnn:SmallCNN",
    },
)
