"""The profile of the images of the figures on this machine."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.cache.reading import BATCH_SIZE, Images
from modyn.cache.plan.profile import CacheProfile
from modyn.cache.tiers.tier import StoreName
from modyn.config.base import Section
from modyn.config.pipeline import ModelReference
from modyn.models import MODELS
from modyn.registry import Plugin
from modyn.trainer_server.cache_plan.cache_profile import measure_profile
from modyn.trainer_server.cache_plan.profiled_pipeline import ProfiledPipeline
from modyn.trainer_server.request.config import TrainingConfig


class MeanColour(nn.Module):
    """A model for the decoded images. A profile needs a model; the figures train nothing."""

    class Config(Section):
        """The model has no options."""

    def __init__(self, _: Config) -> None:
        super().__init__()
        self.last = nn.Linear(3, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(images.float().mean((2, 3)))  # type: ignore[no-any-return]


def profiled(found: Images, store: StoreName, seconds: float, workers: int) -> CacheProfile:
    """Measure this machine with the used store, like `modyn cache profile`. Clears the cache."""
    MODELS.plugins["MeanColour"] = Plugin(
        MODELS.group, "MeanColour", f"{MeanColour.__module__}:{MeanColour.__qualname__}", "benchmark"
    )
    optimizer = {"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": 0.1}}]}
    training = {
        "batch_size": BATCH_SIZE,
        "use_previous_model": False,
        "optimizers": [optimizer],
        "optimization_criterion": {"name": "CrossEntropyLoss"},
    }
    pipeline = ProfiledPipeline(ModelReference(id="MeanColour"), found.data, TrainingConfig.model_validate(training))
    found.clear()
    stores: dict[StoreName, str] = {store: str(found.folder) if store == "memory" else found.redis_url}
    info = found.services.client.dataset(found.data.dataset_id)
    return measure_profile(found.source(None), pipeline, info, seconds=seconds, num_workers=workers, stores=stores)
