"""What one training is given: the request, its configuration and trigger set, and what it reaches outside of its process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from modyn.cache.served_counts import ServedCounts
from modyn.config.base import load_section
from modyn.config.online import ONLINE, OnlineConfig
from modyn.config.preprocessing import PREPROCESSING
from modyn.dataset.cache_source import CacheSource
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetClients
from modyn.dataset.order.held_out import Share
from modyn.dataset.preparation_clock import PreparationTimes
from modyn.json_codec import to_json
from modyn.model_storage.client import ModelHeader, StoredModel
from modyn.models.classes import LabelClasses, label_classes
from modyn.records import FeedbackHeader, FeedbackRows, ModelVersion, RunId, TriggerSetInfo
from modyn.trainer_server.client import TrainingRequest
from modyn.trainer_server.components import mixed_precision
from modyn.trainer_server.config import TrainingConfig
from modyn.trainer_server.downsampling import downsampling_of_trigger
from modyn.trainer_server.downsampling.policy import DownsamplingPolicy
from modyn.trainer_server.files import checkpoint_path
from modyn.trainer_server.held_keys import HeldKeys, HeldSource
from modyn.trainer_server.online_steps import section_of_steps
from modyn.trainer_server.training_plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class TrainingContext:
    """What a training reaches outside of its process: calls of the selector and of model storage, the dataset's clients, its folder."""

    trigger_set: Callable[[RunId, int], TriggerSetInfo]
    get_model: Callable[[int, Path], StoredModel]
    get_optimizers: Callable[[int, Path], None]
    put_model: Callable[[ModelHeader, Path, Path | None], ModelVersion]
    """Called with the header, the weights, and the state of the optimizers if it is kept."""
    connect: Callable[[], DatasetClients]
    folder: Path
    cache: CacheSource | None = None
    """What `connect` opens of it; a sampler of it may decide the order of samples. None: there is none."""
    put_feedback: Callable[[FeedbackHeader, Callable[[], Iterable[FeedbackRows]]], object] | None = None
    """Keeps the scores of samples with the run; None: they go nowhere."""
    keep_times: Callable[[str, PreparationTimes], object] | None = None
    """Called with the registration of the dataset and what preparing its samples took; None: that is not kept."""
    seconds_saved: Callable[[str, ServedCounts], float | None] | None = None
    """Called with the registration of the dataset; estimates what the cache has saved, None where nothing was measured."""
    put_limit_s: float = 300.0
    """Seconds that a finished training waits for a model storage that does not answer."""
    report_interval_s: float = 0.3
    """Seconds between two progress messages."""


@dataclass(frozen=True)
class TrainingInputs:
    """One training as it was asked for, with the trigger set that it trains on."""

    request: TrainingRequest
    config: TrainingConfig
    context: TrainingContext
    trigger_set: TriggerSetInfo

    @property
    def seed(self) -> int | None:
        """The seed that was asked for. The request's goes before that of the pipeline."""
        return self.request.seed if self.request.seed is not None else self.config.seed

    @cached_property
    def data(self) -> DataConfig:
        """How samples are decoded. Raises ConfigError."""
        return load_section(DataConfig, self.request.pipeline["data"], "data")

    @cached_property
    def classes(self) -> LabelClasses | None:
        """That labels are; None: it is not known."""
        return label_classes(self.request.pipeline)

    @cached_property
    def held_out(self) -> Share | None:
        """The samples that `validation` holds out; None: there are none, as in a trigger set that is too small for it."""
        validation = self.config.validation
        if validation is None:
            return None
        # Without a seed the split is that of seed 0, not one drawn for this training: the parent's training held out the same samples.
        share = Share(self.trigger_set, validation.ratio, held_out=True, seed=self.seed or 0)
        return share if share.num_keys else None

    @cached_property
    def trained(self) -> Share | None:
        """The samples that can be trained on; None: all."""
        percent = Fraction(self.config.validation.ratio if self.config.validation else 0)
        percent += self.downsampling.holdout if self.downsampling else 0
        share = Share(self.trigger_set, percent, held_out=False, seed=self.seed or 0)
        return share if share.num_keys < self.trigger_set.num_keys else None

    @property
    def checkpoint(self) -> Path:
        """Where the checkpoints of this training are."""
        return checkpoint_path(self.context.folder, self.request)

    @property
    def selection(self) -> Mapping[str, Any]:
        """The pipeline's section `selection_strategy`."""
        return self.request.pipeline.get("selection_strategy") or {}

    @property
    def uses_weights(self) -> bool:
        """Whether the weights of the trigger set count."""
        return bool(self.selection.get("uses_weights")) and not self.request.online

    @cached_property
    def online(self) -> OnlineConfig | None:
        """How the steps of this training are made; None: it takes none. Raises ConfigError."""
        return section_of_steps(self.request) if self.request.online else None

    @cached_property
    def keys_of_steps(self) -> HeldKeys | None:
        """The trigger set of a training of steps; None: it takes none. Raises: ConflictError: the selector has another one by now."""
        return HeldKeys.read(self.trigger_set, self.context.connect) if self.request.online else None

    @property
    def connect(self) -> Callable[[], DatasetClients]:
        """What a dataset over the trigger set connects by: it reads keys once."""
        held = self.keys_of_steps
        return self.context.connect if held is None else HeldSource(held, self.context.connect)

    @property
    def keeps_optimizers(self) -> bool:
        """Whether a training that comes may go on from the state of its optimizers."""
        return self.config.keep_optimizer_state or self.request.pipeline.get(ONLINE) is not None

    @property
    def ends_durably(self) -> bool:
        """Whether the end of the training waits for the disk before it is put: a stretch of steps that a loss of power takes is made again."""
        return not self.request.online

    @cached_property
    def downsampling(self) -> DownsamplingPolicy | None:
        """What chooses among the samples that could be trained on; None: all are. Raises ConfigError."""
        if self.request.online:
            return None
        return downsampling_of_trigger(self.selection, self.request.trigger_id, self.request.downsampling_turn)

    @property
    def num_candidates(self) -> int:
        """Samples that could be trained on: all but those that are held out."""
        return (self.trained or self.trigger_set).num_keys

    @cached_property
    def plan(self) -> TrainingPlan:
        """Numbers of batches, steps and epochs, of what is really trained on. The request's bound on samples goes before that of the pipeline."""
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
        """Why a training without a batch has none, and what to change."""
        num_samples, config, plan = self.num_candidates, self.config, self.plan
        if plan.batches_per_epoch:
            return (
                f"the training is bounded to {plan.max_samples} samples by num_samples_to_pass, which is no whole batch of training.batch_size "
                f"{config.batch_size}, and drop_last_batch leaves others out; raise the bound, or set drop_last_batch: false"
            )
        chosen = advice = ""
        if self.downsampling is not None:
            options, leaves = self.downsampling.config, plan.num_keys
            chosen = f", of which selection_strategy.downsampling_config.ratio, {options.ratio} of {options.ratio_max}, leaves {leaves}"
            advice = "; raise the ratio, or set drop_last_batch: false or sample_then_batch: false"
        return (
            f"the trigger set has {num_samples} samples to train on{chosen}, which is no whole batch of training.batch_size "
            f"{config.batch_size}, and drop_last_batch leaves others out{advice}"
        )

    def identity(self) -> dict[str, Any]:
        """Equal for two attempts at one training, different for two trainings."""
        request = self.request
        sections = {name: request.pipeline.get(name) for name in ("model", "training", "data", "selection_strategy")}
        if request.online:
            sections["online"] = request.pipeline.get("online")
        if request.pipeline.get(PREPROCESSING) is not None:
            sections[PREPROCESSING] = request.pipeline[PREPROCESSING]
        # The type of mixed precision may be the machine's choice: a checkpoint of another one would not end in the same model.
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
