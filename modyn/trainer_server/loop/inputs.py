"""The inputs of one training: the request, its configuration and trigger set, and the services that the training calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from modyn.cache.served_counts import ServedCounts
from modyn.config.online import ONLINE, OnlineConfig
from modyn.config.pipeline import ModelReference
from modyn.config.preprocessing import PREPROCESSING
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetClients
from modyn.dataset.order.held_out import Share
from modyn.dataset.preparation_clock import PreparationTimes
from modyn.json_codec import to_json
from modyn.model_storage.client import ModelHeader, StoredModel
from modyn.models.classes import LabelClasses, label_classes
from modyn.models.named import model_definition
from modyn.models.names import SOURCES, Pretrained, definition_of
from modyn.records import FeedbackHeader, FeedbackRows, KeysAndWeights, ModelVersion, RunId, TriggerSetInfo
from modyn.trainer_server.disk.files import checkpoint_path
from modyn.trainer_server.downsampling.policies import downsampling_of_trigger
from modyn.trainer_server.downsampling.policies.policy import DownsamplingPolicy
from modyn.trainer_server.loop.components import mixed_precision
from modyn.trainer_server.request.config import TrainingConfig
from modyn.trainer_server.request.records import TrainingRequest
from modyn.trainer_server.request.step_config import section_of_steps
from modyn.trainer_server.request.training_plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class TrainingContext:
    """The resources of a training outside of its process: the selector, model storage, the dataset's clients, the training's folder."""

    trigger_set: Callable[[RunId, int], TriggerSetInfo]
    get_model: Callable[[int, Path], StoredModel]
    get_optimizers: Callable[[int, Path], None]
    put_model: Callable[[ModelHeader, Path, Path | None], ModelVersion]
    """Stores the model: takes the header, the weights, and the state of the optimizers if this state is kept."""
    connect: Callable[[], DatasetClients]
    folder: Path
    cache: CacheSource | None = None
    """The cache that `connect` opens, and whose sampler may decide the order of samples; None if the training has no cache."""
    put_feedback: Callable[[FeedbackHeader, Callable[[], Iterable[FeedbackRows]]], object] | None = None
    """Stores the scores of samples with the run; None if the scores are dropped."""
    keep_times: Callable[[str, PreparationTimes], object] | None = None
    """Stores the preparation times of samples for a registration of the dataset; None if the times are dropped."""
    seconds_saved: Callable[[str, ServedCounts], float | None] | None = None
    """Estimates the seconds that the cache saved, for a registration of the dataset. Returns None without measurements."""
    put_limit_s: float = 300.0
    """Seconds that a finished training waits for a model storage that does not respond."""
    report_interval_s: float = 0.3
    """Seconds between two progress messages."""


@dataclass(frozen=True)
class TrainingInputs:
    """One requested training, with its trigger set."""

    request: TrainingRequest
    model: ModelReference
    config: TrainingConfig
    data: DataConfig
    """The options for decoding samples."""
    context: TrainingContext
    trigger_set: TriggerSetInfo

    @property
    def seed(self) -> int | None:
        """The seed of the request, or otherwise the seed of the pipeline; None if neither has a seed."""
        return self.request.seed if self.request.seed is not None else self.config.seed

    @cached_property
    def classes(self) -> LabelClasses | None:
        """The classes of the labels, or None if the classes are not known."""
        return label_classes(self.request.pipeline)

    @cached_property
    def definition(self) -> str:
        """The text that the model is built from, see `model_definition`. Raises ConfigError: the text is not on this machine."""
        id_, pipeline = self.model.id, self.request.pipeline
        return model_definition(id_, definition_of(pipeline, id_), download=self.pretrained.download)

    @property
    def pretrained(self) -> Pretrained:
        """Where the model may take pretrained weights from."""
        return Pretrained.of(self.request.pipeline, self.model.id)

    @cached_property
    def held_out(self) -> Share | None:
        """The validation set that the section `validation` defines; None if it is empty, for example because the trigger set is too small."""
        validation = self.config.validation
        if validation is None:
            return None
        # Without a seed, the split uses seed 0 and not a random seed, because the parent's training must hold out the same samples.
        share = Share(self.trigger_set, validation.ratio, held_out=True, seed=self.seed or 0)
        return share if share.num_keys else None

    @cached_property
    def trained(self) -> Share | None:
        """The share of samples that can be trained on, or None for all samples."""
        percent = Fraction(self.config.validation.ratio if self.config.validation else 0)
        percent += self.downsampling.holdout if self.downsampling else 0
        share = Share(self.trigger_set, percent, held_out=False, seed=self.seed or 0)
        return share if share.num_keys < self.trigger_set.num_keys else None

    @property
    def checkpoint(self) -> Path:
        """Path of the checkpoint of this training."""
        return checkpoint_path(self.context.folder, self.request)

    @property
    def selection(self) -> Mapping[str, Any]:
        """The pipeline's section `selection_strategy`."""
        return self.request.pipeline.get("selection_strategy") or {}

    @property
    def uses_weights(self) -> bool:
        """Whether the training uses the weights of the trigger set."""
        return bool(self.selection.get("uses_weights")) and not self.request.online

    @cached_property
    def online(self) -> OnlineConfig | None:
        """The options of an online training; None for a retraining. Raises ConfigError."""
        return section_of_steps(self.request) if self.request.online else None

    @cached_property
    def keys_of_steps(self) -> HeldKeys | None:
        """The trigger set of an online training; None for a retraining. Raises: ConflictError: the selector has a different trigger set."""
        return HeldKeys.read(self.trigger_set, self.context.connect) if self.request.online else None

    @property
    def connect(self) -> Callable[[], DatasetClients]:
        """The function that connects a dataset to the trigger set. An online training reads its keys from memory."""
        held = self.keys_of_steps
        return self.context.connect if held is None else HeldSource(held, self.context.connect)

    @property
    def keeps_optimizers(self) -> bool:
        """Whether the states of the optimizers are stored, so that a later training can continue from them."""
        return self.config.keep_optimizer_state or self.request.pipeline.get(ONLINE) is not None

    @property
    def ends_durably(self) -> bool:
        """Whether the training waits until its files are durable. An online training does not wait: it repeats steps that a power failure loses."""
        return not self.request.online

    @cached_property
    def downsampling(self) -> DownsamplingPolicy | None:
        """The downsampling policy, which chooses among the candidates; None if the training uses all candidates. Raises ConfigError."""
        if self.request.online:
            return None
        return downsampling_of_trigger(self.selection, self.request.trigger_id, self.request.downsampling_turn)

    @property
    def num_candidates(self) -> int:
        """Number of candidates: all samples except those that `validation` or the downsampling policy holds out."""
        return (self.trained or self.trigger_set).num_keys

    @cached_property
    def plan(self) -> TrainingPlan:
        """The numbers of batches, steps and epochs of this training. The request's limit on samples overrides the limit of the pipeline."""
        num_keys, num_chosen = self.num_candidates, None
        if self.downsampling is not None:
            options = self.downsampling.config
            num_chosen = options.num_chosen(num_keys)
            if options.sample_then_batch:
                num_keys, num_chosen = num_chosen, None
        return TrainingPlan(
            num_keys=num_keys,
            batch_size=self.config.batch_size,
            num_chosen=num_chosen,
            drop_last=self.config.drop_last_batch,
            epochs=self.config.epochs_per_trigger,
            max_samples=None if self.request.online else self._max_samples,
            accumulation=self.config.gradient_accumulation_steps,
        )

    @property
    def _max_samples(self) -> int | None:
        return self.request.num_samples_to_pass or self.config.samples_to_pass(self.request.trigger_id)

    def no_batch(self) -> str:
        """Explain why a training has no batch, and what to change."""
        num_samples, config, plan = self.num_candidates, self.config, self.plan
        if plan.batches_per_epoch:
            return (
                f"the training is bounded to {plan.max_samples} samples by num_samples_to_pass, which do not fill a batch of training.batch_size "
                f"{config.batch_size}, and drop_last_batch leaves others out; raise the bound, or set drop_last_batch: false"
            )
        chosen = advice = ""
        if self.downsampling is not None:
            options, leaves = self.downsampling.config, plan.num_keys
            chosen = f", of which selection_strategy.downsampling_config.ratio, {options.ratio} of {options.ratio_max}, leaves {leaves}"
            advice = "; raise the ratio, or set drop_last_batch: false or sample_then_batch: false"
        return (
            f"the trigger set has {num_samples} samples to train on{chosen}, which do not fill a batch of training.batch_size "
            f"{config.batch_size}, and drop_last_batch leaves others out{advice}"
        )

    def identity(self) -> dict[str, Any]:
        """Return the identity of the training. The identity is equal for all attempts at one training, and different for two trainings."""
        request = self.request
        sections = request.identifying_sections
        if request.online:
            sections["online"] = request.pipeline.get("online")
        for name in (PREPROCESSING, SOURCES):
            if request.pipeline.get(name) is not None:
                sections[name] = request.pipeline[name]
        # The machine may choose the data type of mixed precision. With a checkpoint of another type, the training would end in a different model.
        precision = str(mixed_precision(self.config))
        asked = [sections, request.parent_model_id, request.num_samples_to_pass, request.seed, precision]
        if request.downsampling_turn is not None:
            asked.append(request.downsampling_turn)
        if request.tests_only:
            asked.append("tests only")
        return {
            "run_id": str(request.run_id),
            "trigger_id": request.trigger_id,
            "request_sha256": hashlib.sha256(to_json(asked, sort_keys=True).encode()).hexdigest(),
            "keys_checksum": self.trigger_set.keys_checksum,
        }


@dataclass(frozen=True, slots=True, eq=False)
class HeldKeys:
    """Returns keys and weights of a trigger set from memory, in place of the selector."""

    info: TriggerSetInfo
    held: KeysAndWeights
    """Keys and weights of the whole set, in the order of the set."""

    @classmethod
    def read(cls, info: TriggerSetInfo, connect: Callable[[], DatasetClients]) -> HeldKeys:
        """Read the whole set. Raises: ConflictError: the selector has a different trigger set."""
        with closing(connect()) as clients:
            keys = clients.selector.keys
            parts = [
                keys(info.run_id, info.trigger_id, partition, keys_checksum=info.keys_checksum)
                for partition in range(info.num_partitions)
            ]
        return cls(info, KeysAndWeights.concatenate(parts))

    def keys(self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "") -> KeysAndWeights:
        """See `SelectorClient.keys`."""
        assert keys_checksum in ("", self.info.keys_checksum)
        rows = slice(partition * self.info.partition_size, (partition + 1) * self.info.partition_size)
        return KeysAndWeights(self.held.keys[rows], self.held.weights[rows])

    def close(self) -> None:
        """Do nothing, because the keys are in memory."""


@dataclass(frozen=True, slots=True)
class HeldSource:
    """Connects a dataset to the payloads of `connect`, and to keys in memory. Picklable if `connect` is picklable."""

    keys: HeldKeys
    connect: Callable[[], DatasetClients]

    def __call__(self) -> DatasetClients:
        """Connect in the process that reads the samples."""
        return self.connect().with_keys(self.keys)
