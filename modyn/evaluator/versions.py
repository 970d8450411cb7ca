"""What scores and kept outputs were made of: one registration of a dataset, and the versions of the code that decoded and measured. Imports
no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from modyn.dataset.code_versions import code_version
from modyn.evaluator.config import load_dataset
from modyn.evaluator.metrics import METRICS
from modyn.json_codec import json_digest
from modyn.models import MODELS

_NOT_DECODING: Final = ("metrics", "batch_size", "dataloader_workers")
"""Keys of a dataset's section that do not change what the model sees of a sample."""


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The samples of one registration of a dataset, as one version of the code decodes them."""

    identity: str
    """As in `DatasetInfo`; empty: any."""
    decoding: str
    """By `decoding_digest`."""
    num_deleted: int = 0
    """Samples of the dataset that are deleted so far. Scores with another number may be of other samples; each sample stays what it is."""

    @property
    def digest(self) -> str:
        """Equal where models see equal samples, of which some may be deleted."""
        return json_digest([self.identity, self.decoding])


def decoding_digest(section: Mapping[str, Any]) -> str:
    """Equal for sections of datasets that decode samples equally, with equal code, so that models see equal inputs and answer alike.

    Args: section: an entry of `evaluation.datasets`.
    """
    decoding = {name: value for name, value in section.items() if name not in _NOT_DECODING}
    return json_digest([decoding, code_version(decoding, MODELS)])


def metric_digests(section: Mapping[str, Any]) -> dict[str, str]:
    """Return by label, for each metric of a dataset's section, a digest that is equal for metrics that give equal values."""
    dataset = load_dataset(section)
    options = [{name: value for name, value in metric.items() if name != "label"} for metric in dataset.metrics]
    digests = [json_digest([metric, code_version(metric, METRICS)]) for metric in options]
    return dict(zip(dataset.metric_labels(), digests, strict=True))
