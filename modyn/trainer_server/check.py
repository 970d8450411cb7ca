"""Checks of the sections that the trainer server uses. Runs in a worker: imports torch and the packages of users.

No code from the pipeline file is executed, except the file that defines the class of its model. The check builds the model, the optimizers, the loss
and the schedulers on the `meta` device, where tensors have no values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from modyn.config.base import Problem, Severity, check_section, section_at
from modyn.config.online import ONLINE
from modyn.config.trigger_parts import ComparedData, compared_data, compared_windows, trigger_sections
from modyn.dataset.code.user_code import missing_extras
from modyn.dataset.config import DataConfig
from modyn.errors import ConfigError
from modyn.models import check_model
from modyn.models.calls import has_embedding, has_last_layer, num_logits, offered_last_layer, offers_embedding
from modyn.models.named import model_definition
from modyn.models.names import Pretrained, definition_of
from modyn.models.weights import build_model
from modyn.trainer_server.downsampling.policies import check_downsampling, downsampling_policies
from modyn.trainer_server.downsampling.policies.policy import ScoredTraining
from modyn.trainer_server.loop.checkpoint import check_checkpoint_folder
from modyn.trainer_server.loop.components import build_optimizers, build_schedulers, freeze
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.loop.schedules import shortfalls
from modyn.trainer_server.loop.sparse_gradients import sparse_gradient_problems
from modyn.trainer_server.request.config import TrainingConfig
from modyn.trainer_server.request.irreducible_config import check_irreducible, irreducible_sections
from modyn.trainer_server.request.preprocessing_check import check_preprocessing
from modyn.trainer_server.scoring.sample_scores import check_scores
from modyn.workers import JobConnection
from modyn.workers.devices import missing_device


def check_task(argument: tuple[Mapping[str, Any], Sequence[str]], connection: JobConnection) -> list[Problem]:
    """Run `check` as the task of a worker process. Args: argument: `pipeline` and `scores` of `check`."""
    return check(argument[0], connection, argument[1])


def check(pipeline: Mapping[str, Any], _: JobConnection, scores: Sequence[str] = ()) -> list[Problem]:
    """List every error that can be found without data, with the option's path. Builds the model.

    Args: pipeline: must have the sections model, training and data. scores: names of the scores that the selection requests from trainings.
    """
    section, training, selection = (section_at(pipeline, name) for name in ("model", "training", "selection_strategy"))
    found = [Problem(name, "is required") for name in ("model", "training", "data") if name not in pipeline]
    model, wrong_model = _checked_model(section, pipeline) if "model" in pipeline else (CheckedModel(), [])
    found += wrong_model
    found += check_section(TrainingConfig, pipeline["training"], "training") if "training" in pipeline else []
    found += check_section(DataConfig, pipeline["data"], "data") if "data" in pipeline else []
    wrong = {problem.path.split(".")[0] for problem in found}
    if "data" not in wrong:
        data = DataConfig.model_validate(pipeline["data"])
        found += [
            Problem("data", message, Severity.UNAVAILABLE) for message in missing_extras(data.all_transformations)
        ] + data.warnings("data")
    if "training" not in wrong:
        config = TrainingConfig.model_validate(training)
        found += check_machine(config) + _precision_notes(config) + list(_bounds_without_batch(config, selection))
        if "model" not in wrong:
            found += check_components(model, config, selection, _embedding_place(pipeline), scores)
            found += _online_batch_norm(model, section_at(pipeline, ONLINE)) if not _has_errors(found) else []
            found += _irreducible_problems(pipeline, config, {problem.message for problem in found})
        if not any(problem.path.startswith("training.optimization_criterion") for problem in found):
            found += _online_problems(section_at(pipeline, ONLINE), config)
    return sorted({*found, *check_downsampling(selection), *check_preprocessing(pipeline)})


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A section `model` without mistakes, and what its network is built from."""

    id: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    definition: str = ""
    freeze: Sequence[str] = ()

    def build(self) -> nn.Module:
        """Build the network, without pretrained weights."""
        return build_model(self.id, self.config, self.definition)


def _checked_model(section: Mapping[str, Any], pipeline: Mapping[str, Any]) -> tuple[CheckedModel, list[Problem]]:
    """Return a section `model` and its mistakes. Args: pipeline: has the files that models are built from."""
    id_, config = str(section.get("id", "")), section.get("config") or {}
    given, pretrained = definition_of(pipeline, id_), Pretrained.of(pipeline, id_)
    if found := check_model(id_, config, given, pretrained):
        return CheckedModel(id_), found
    definition, frozen = model_definition(id_, given, download=pretrained.download), section.get("freeze")
    return CheckedModel(id_, config, definition, frozen if isinstance(frozen, list) else ()), []


def check_machine(config: TrainingConfig) -> list[Problem]:
    """List what the trainer server's machine lacks: the device, or a writable checkpoint folder."""
    found = []
    if missing := missing_device(config.device):
        found.append(Problem("training.device", missing, Severity.UNAVAILABLE))
    if config.checkpointing.activated and config.checkpointing.path is not None:
        try:
            check_checkpoint_folder(config.checkpointing.path, keep=False)
        except ConfigError as error:
            found.append(_problem(error))
    return found


def _missing_optimizers(config: TrainingConfig) -> list[Problem]:
    """List what this machine lacks for the optimizers. If anything is missing, the caller checks no optimizer, because another machine may have the
    package."""
    places = (
        [i for i, optimizer in enumerate(config.optimizers) if optimizer.source == "APEX"] if find_spec("apex") is None else ()
    )
    message = "needs NVIDIA Apex, the package apex, which is not installed here; install it, or set source to PyTorch"
    return [Problem(f"training.optimizers.{i}.algorithm", message, Severity.UNAVAILABLE) for i in places]


def check_components(
    model: CheckedModel,
    config: TrainingConfig,
    selection: Mapping[str, Any],
    embedding_path: str = "",
    scores: Sequence[str] = (),
) -> list[Problem]:
    """List the errors that PyTorch finds in the names of classes, their options, and the paths of modules.

    Args: selection: the section `selection_strategy`. embedding_path: path of the option that needs embeddings; empty if
    no option does. scores: see `check`.
    """
    found: list[Problem] = []
    try:
        with torch.device("meta"):
            network = model.build()
    except Exception as error:  # noqa: BLE001  (a model of a user, on a device that it may not expect)
        try:
            network = model.build()
        except ConfigError as wrong:
            return [_problem(wrong)]
        except Exception:  # noqa: BLE001
            return [Problem("model.config", f"'{model.id}' cannot be built with it: {type(error).__name__}: {error}")]
    try:
        freeze(network, model.freeze)
    except ConfigError as error:
        found.append(_problem(error))
    found += _embedding_notes(model.id, network, embedding_path)
    found += _downsampling_refusals(selection, config, network)
    if config.batch_size == 1 and any(isinstance(module, nn.BatchNorm1d) for module in network.modules()):
        message = f"'{model.id}' has BatchNorm1d, which has no variance over a batch of 1: use at least 2, or a model without it"
        found.append(Problem("training.batch_size", message))
    try:
        Criterion(config.optimization_criterion, 1.0 if selection.get("uses_weights") else None).check_arguments()
        check_scores(scores, network, config.optimization_criterion)
    except ConfigError as error:
        found.append(_problem(error))
    if missing := _missing_optimizers(config):
        return found + missing
    try:
        optimizers = build_optimizers(network, config.optimizers)
        build_schedulers(
            config.lr_scheduler, optimizers, num_batches=100, num_epochs=config.epochs_per_trigger, run_user_code=False
        )
        found += _optimizer_notes(config, optimizers)
        found += sparse_gradient_problems(network, config, optimizers)
        num_epochs = None if config.num_samples_to_pass else config.epochs_per_trigger
        found += [
            Problem(each.path, each.message, Severity.ERROR if each.is_error else Severity.WARNING)
            for each in shortfalls(config.lr_scheduler, num_batches=None, num_epochs=num_epochs)
        ]
    except ConfigError as error:
        found.append(_problem(error))
    return found


def _optimizer_notes(config: TrainingConfig, optimizers: Mapping[str, Optimizer]) -> Iterable[Problem]:
    """Warn of parameters that no step of the training changes."""
    path = "training.optimizers"
    groups = [
        (f"{path}.{i}.param_groups.{j}", group)
        for i, optimizer in enumerate(optimizers.values())
        for j, group in enumerate(optimizer.param_groups)
    ]
    for where, group in groups:
        if not any(parameter.requires_grad for parameter in group["params"]):
            message = "all of its parameters are frozen (requires_grad is False): no step changes them"
            yield Problem(f"{where}.module", message, Severity.WARNING)
    if config.lr_scheduler is None and all(group.get("lr") == 0 for _, group in groups):
        yield Problem(path, "the learning rate of every group is 0: no step changes the model", Severity.WARNING)


def _downsampling_refusals(selection: Mapping[str, Any], config: TrainingConfig, network: nn.Module) -> list[Problem]:
    """List the reasons why policies cannot score with this loss and this model, and the policies' warnings. Empty if `check_downsampling` finds
    errors.
    """
    if check_downsampling(selection):
        return []
    training = ScoredTraining(
        criterion=config.optimization_criterion.name,
        has_last_layer=has_last_layer(network),
        has_embedding=has_embedding(network),
        batch_size=config.batch_size,
        # With a limit on samples, the number of epochs depends on the size of the trigger set, which is not known here.
        num_epochs=None if config.num_samples_to_pass else config.epochs_per_trigger,
        num_logits=num_logits(network),
    )
    notes = [
        Problem(f"{path}.{key}", message, Severity.WARNING)
        for path, policy in downsampling_policies(selection).items()
        for key, message in policy.notes(training)
    ]
    return notes + [
        Problem(f"{path}.strategy", message)
        for path, policy in downsampling_policies(selection).items()
        for message in policy.refusals(training)
    ]


def _irreducible_problems(pipeline: Mapping[str, Any], config: TrainingConfig, known: set[str]) -> Iterable[Problem]:
    """List the errors in the irreducible-loss models of policies. Args: known: reported messages, which are not repeated."""
    model, training, selection = (section_at(pipeline, name) for name in ("model", "training", "selection_strategy"))
    for path, policy in {} if check_downsampling(selection) else downsampling_policies(selection).items():
        if not policy.needs_irreducible_losses:
            continue
        if config.validation and config.validation.ratio + policy.holdout >= 100:
            message = f"with training.validation.ratio {config.validation.ratio}, all samples are held out: lower one of the two"
            yield Problem(f"{path}.holdout_set_ratio", message)
        below, options = f"{path}.il_training_config", policy.config.il_training_config
        yield from (wrong := list(check_irreducible(training, options, below)))
        if any(problem.severity is Severity.ERROR for problem in wrong):
            continue
        own_model, own_training = irreducible_sections(model, training, options)
        checked, found = _checked_model(own_model, pipeline)
        found += check_section(TrainingConfig, own_training, "training")
        # Components are built only if both sections are valid, because building uses the model and the training section.
        found = found or check_components(checked, TrainingConfig.model_validate(own_training), {})
        for problem in found:
            if problem.severity is Severity.ERROR and problem.message not in known:
                place = problem.path.removeprefix("training.").replace("model.", "il_model_", 1)
                yield replace(problem, path=f"{below}.{place}")


def _precision_notes(config: TrainingConfig) -> list[Problem]:
    """Warn of options that PyTorch accepts, but that users rarely intend."""
    if config.amp_dtype != "float16" or config.loss_scaling is not False:
        return []
    message = "small gradients of float16 become 0 without loss scaling: enable it, or leave amp_dtype out for bfloat16"
    return [Problem("training.grad_scaler_config.enabled", message, Severity.WARNING)]


def _bounds_without_batch(config: TrainingConfig, selection: Mapping[str, Any]) -> Iterable[Problem]:
    """Find limits in `num_samples_to_pass` that leave a trigger without a batch. Downsampling within batches accepts any limit."""
    policies = [] if check_downsampling(selection) else downsampling_policies(selection).values()
    if not config.drop_last_batch or not all(policy.config.sample_then_batch for policy in policies):
        return
    for i, bound in enumerate(config.num_samples_to_pass or []):
        if bound < config.batch_size:
            lacks = f"{bound} samples are less than a batch of {config.batch_size}, which drop_last_batch leaves out"
            message = f"{lacks}: trigger {i} would train nothing"
            yield Problem(f"training.num_samples_to_pass.{i}", f"{message}; raise the bound, or set drop_last_batch: false")


def _online_problems(section: Mapping[str, Any], config: TrainingConfig) -> list[Problem]:
    """Report a loss that cannot test each new sample. Online training tests new samples before each step."""
    if not section:
        return []
    try:
        Criterion(config.optimization_criterion).check_per_sample("the prequential error of the section online")
    except ConfigError as error:
        return [_problem(error)]
    return []


def _online_batch_norm(model: CheckedModel, section: Mapping[str, Any]) -> list[Problem]:
    """Find steps or online updates of one sample, if BatchNorm in the model needs two. Requires a model that can be built, and a valid section."""
    updates, new, drawn = section.get("update_samples"), section.get("step_samples"), section.get("history_samples", 0)
    if updates is not None:
        single = [name for name, size in (("update_samples", updates), ("history_samples", drawn)) if size == 1]
    else:
        single = ["step_samples"] if (new, drawn) == (1, 0) else []
    if not single:
        return []
    network = model.build()
    if not any(isinstance(module, nn.BatchNorm1d) for module in network.modules()):
        return []
    message = f"'{model.id}' has BatchNorm1d, which has no variance over a batch of 1: use at least 2, or a model without it"
    return [Problem(f"{ONLINE}.{name}", message) for name in single]


def _has_errors(found: Iterable[Problem]) -> bool:
    return any(problem.severity is Severity.ERROR for problem in found)


def _embedding_place(pipeline: Mapping[str, Any]) -> str:
    """Return the path of the option `on` that makes `trigger` or `online.trigger` compare embeddings; empty if no option does."""
    compared = (found for path, trigger in trigger_sections(pipeline).items() for found in compared_windows(trigger, path))
    return next((f"{place}.on" for place, part in compared if compared_data(part) == ComparedData.EMBEDDINGS), "")


def _embedding_notes(id_: str, network: nn.Module, embedding_path: str) -> list[Problem]:
    """If the model does not name its last layer, warn which layer counts as the last layer. Report an error if embeddings are compared and the model
    has no embeddings.
    """
    if offered_last_layer(network) is not None:
        return []
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    if linear:
        taken = "gradients are taken at" if offers_embedding(network) else "embeddings are the input of"
        message = f"'{id_}' offers no `last_layer`: {taken} the last nn.Linear, '{linear[-1]}'; define a property `last_layer` to choose another"
        return [Problem("model.id", message, Severity.WARNING)]
    if embedding_path and not offers_embedding(network):
        message = (
            f"embeddings are compared, and '{id_}' has none: it has no nn.Linear, and offers no `embedding(data)`; write predictions, payload or "
            "labels, or add one of the two"
        )
        return [Problem(embedding_path, message)]
    return []


def _problem(error: ConfigError) -> Problem:
    """Convert the error of a component to a problem. The message of the error may begin with the path of the option."""
    path, separator, message = error.message.partition(": ")
    known = separator and path.startswith(("training.", "model.", "selection_strategy"))
    return Problem(path, message) if known else Problem("training", error.message)
