"""The versions from which scores and kept outputs were computed: the registration of a dataset, and the code that decoded and measured. The
module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from modyn.dataset.code.code_versions import code_version
from modyn.evaluator.config import load_dataset
from modyn.evaluator.metrics.metrics import METRICS
from modyn.json_codec import json_digest
from modyn.models import MODELS

_NOT_DECODING: Final = ("metrics", "batch_size", "dataloader_workers")
"""Keys of a dataset's section that do not change the model's input."""


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The samples of one registration of a dataset, decoded by one version of the code."""

    identity: str
    """Identity of the registered dataset, as in `DatasetInfo`; empty accepts any identity."""
    decoding: str
    """Digest of the decoding, from `decoding_digest`."""
    num_deleted: int = 0
    """Number of deleted samples of the dataset. Scores with another number may come from other samples; a sample itself never changes."""

    @property
    def digest(self) -> str:
        """Return a digest of this version. If models get equal samples, the digests are equal. Deleted samples do not change the digest."""
        return json_digest([self.identity, self.decoding])


def decoding_digest(section: Mapping[str, Any]) -> str:
    """Return a digest of the decoding. Sections of datasets with equal digests decode samples to equal inputs with equal code.

    Args: section: an entry of `evaluation.datasets`.
    """
    decoding = {name: value for name, value in section.items() if name not in _NOT_DECODING}
    return json_digest([decoding, code_version(decoding, MODELS)])


def metric_digests(section: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each metric of a dataset, by label. Metrics with equal digests compute equal values."""
    dataset = load_dataset(section)
    options = [{name: value for name, value in metric.items() if name != "label"} for metric in dataset.metrics]
    digests = [json_digest([metric, code_version(metric, METRICS)]) for metric in options]
    return dict(zip(dataset.metric_labels(), digests, strict=True))
