"""Build optimizers, schedulers, loss and loss scaling from the section `training`. Imports torch: for workers only."""

from __future__ import annotations

import ast
import inspect
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau

from modyn.config.base import load_section
from modyn.errors import ConfigError, ModynError
from modyn.registry import load_object, nearest
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.request.config import (
    OPTIMIZERS,
    SCHEDULERS,
    OptimizerConfig,
    SchedulerConfig,
    SchedulerPart,
    TrainingConfig,
)
from modyn.trainer_server.request.training_plan import TrainingPlan

_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True, slots=True)
class TrainingComponents:
    """A model with its optimizers, schedulers, loss and loss scaling."""

    model: nn.Module
    optimizers: Mapping[str, Optimizer]
    schedulers: Sequence[Any]
    step_every: Literal["epoch", "batch"]
    """When schedulers step: after each "batch" with a step of the optimizers, or after each "epoch"."""
    scaler: torch.amp.GradScaler
    criterion: Criterion
    device: torch.device
    amp_dtype: torch.dtype | None = None
    """Data type of autocast, or None if training does not use mixed precision."""
    clip_norm: float | None = None
    compiled: nn.Module | None = None
    """The compiled model, which is called instead of the model and shares its parameters."""


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Exclude parameters from training. Args: patterns: names of parameters or modules, or shell patterns of such names.

    Raises: ConfigError: a pattern matches no parameter, or no parameter is left to train.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        matching = [name for name in parameters if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")]
        if not matching:
            names = [name for name, _ in model.named_modules() if name] + list(parameters)
            raise ConfigError(f"model.freeze: no parameter of the model matches '{pattern}'{nearest(pattern, names) or ''}")
        for name in matching:
            parameters[name].requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError("model.freeze: no parameter is left to train; name fewer")


def build_components(
    model: nn.Module,
    config: TrainingConfig,
    plan: TrainingPlan,
    criterion: Criterion,
) -> TrainingComponents:
    """Build optimizers, schedulers and loss scaling for `model` and `criterion`. Args: plan: gives the schedulers the total numbers of steps and
    epochs."""
    optimizers = build_optimizers(model, config.optimizers)
    return TrainingComponents(
        model=model,
        optimizers=optimizers,
        schedulers=build_schedulers(config.lr_scheduler, optimizers, num_batches=plan.num_steps, num_epochs=plan.num_epochs),
        step_every=config.lr_scheduler.step_every if config.lr_scheduler else "epoch",
        scaler=build_scaler(config),
        criterion=criterion,
        device=torch.device(config.device),
        amp_dtype=mixed_precision(config),
        clip_norm=config.gradient_clip_norm,
        compiled=torch.compile(model) if config.compile else None,  # type: ignore[arg-type]
    )


def build_optimizers(model: nn.Module, configs: Sequence[OptimizerConfig]) -> dict[str, Optimizer]:
    """Build the optimizers over parameters of `model`, by name, in the order of `configs`.

    Raises: ConfigError with the path: a class, module or option does not exist, or two groups share parameters.
    """
    owner: dict[int, str] = {}
    found: dict[str, Optimizer] = {}
    for i, config in enumerate(configs):
        path = f"training.optimizers.{i}"
        groups: list[dict[str, Any]] = []
        for j, group in enumerate(config.param_groups):
            where = f"{path}.param_groups.{j}.module"
            parameters = list(_parameters(model, group.module, where))
            for parameter in parameters:
                # The first group that names a parameter owns it. Two optimizers that change the same parameter would disturb each other.
                other = owner.setdefault(id(parameter), where)
                if other != where:
                    raise ConfigError(f"{where}: '{group.module}' holds parameters that {other} has already; groups are disjoint")
            groups.append({"params": parameters, **group.config})
        options: dict[str, Any] = {}
        if all(group.get("fused") is True for group in groups):
            # The constructor must get the option `fused`. If only the groups had this option, the optimizer would not skip infinite gradients.
            groups = [{name: value for name, value in group.items() if name != "fused"} for group in groups]
            options["fused"] = True
        found[config.name] = _constructed(_optimizer_class(config, path), path, "param_groups", groups, **options)
    groups = [group for optimizer in found.values() for group in optimizer.param_groups]
    if not any(parameter.requires_grad for group in groups for parameter in group["params"]):
        raise ConfigError(
            "training.optimizers: every parameter in their param_groups is frozen (requires_grad is False), so no step would change the model: "
            "name a module that is not, or let the model freeze less"
        )
    return found


def build_schedulers(
    config: SchedulerConfig | None,
    optimizers: Mapping[str, Optimizer],
    *,
    num_batches: int,
    num_epochs: int,
    run_user_code: bool = True,
) -> list[Any]:
    """Build a scheduler for each optimizer that the configuration names. `num_batches` is the number of the optimizers' steps in this training.

    Without `run_user_code`, functions in the pipeline are only parsed, and schedulers that call such functions are left out.
    Raises: ConfigError with the path: the class or an option does not exist, or arithmetic in `config` is wrong.
    """
    if config is None:
        return []
    # The classes reject totals of 0. A total is 0 if the trigger set is smaller than a batch; no scheduler then makes a step.
    numbers = {"MODYN_NUM_BATCHES": max(1, num_batches), "MODYN_NUM_EPOCHS": max(1, num_epochs)}
    part, path = SchedulerPart(**config.model_dump(include={"name", "source", "config"})), "training.lr_scheduler"
    chosen = [optimizers[name] for name in config.optimizers or optimizers]
    built = [_scheduler(part, path, optimizer, numbers, run_user_code) for optimizer in chosen]
    return [scheduler for scheduler in built if scheduler is not None]


def _scheduler(part: SchedulerPart, path: str, optimizer: Optimizer, numbers: Mapping[str, int], run_user_code: bool) -> Any:
    """Build one scheduler and its parts. Return None if the scheduler calls functions of the user and `run_user_code` is False."""
    kind = _scheduler_class(part, path)
    given = {name: value for name, value in part.config.items() if name != "schedulers"}
    options = {name: resolve(value, numbers, f"{path}.config.{name}") for name, value in given.items()}
    if isinstance(options.get("milestones"), list):
        # PyTorch compares milestones with whole step numbers, but a division may return a fraction.
        options["milestones"] = [int(step) if isinstance(step, float) else step for step in options["milestones"]]
    if "schedulers" in part.config:
        parts = [
            (
                _scheduler(load_section(SchedulerPart, entry, where), where, optimizer, numbers, run_user_code),
                entry["name"],
                where,
            )
            for entry, where in _parts(part.config["schedulers"], f"{path}.config.schedulers")
        ]
        for built, name, where in parts:
            if isinstance(built, ReduceLROnPlateau):
                raise ConfigError(
                    f"{where}.name: {name} looks at a loss when it steps, so it cannot be a part of another scheduler"
                )
        if any(built is None for built, _, _ in parts):
            return None
        options["schedulers"] = [built for built, _, _ in parts]
    if "lr_lambda" in options:
        options["lr_lambda"] = _lambdas(options["lr_lambda"], numbers, f"{path}.config.lr_lambda", run_user_code)
        if not run_user_code:
            return None
    # All other schedulers take the optimizer as their first argument.
    if kind is ChainedScheduler:
        return _constructed(kind, path, "config", optimizer=optimizer, **options)
    return _constructed(kind, path, "config", optimizer, **options)


def _scheduler_class(part: SchedulerPart, path: str) -> Any:
    if part.source == "Custom":
        return SCHEDULERS.get(part.name)
    kind = getattr(torch.optim.lr_scheduler, part.name, None)
    if not (inspect.isclass(kind) and issubclass(kind, LRScheduler) and kind is not LRScheduler):
        names = [name for name in dir(torch.optim.lr_scheduler) if name.endswith(("LR", "Restarts", "Plateau", "Scheduler"))]
        names.remove("LRScheduler")
        raise ConfigError(f"{path}.name: torch.optim.lr_scheduler has no '{part.name}'{nearest(part.name, names)}")
    return kind


def _parts(entries: Any, path: str) -> list[tuple[Any, str]]:
    """Return the entries of a list of schedulers, with their paths."""
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise ConfigError(f"{path}: {entries!r} is not a list of schedulers; write {{name: …, config: …}} for each")
    return [(entry, f"{path}.{i}") for i, entry in enumerate(entries)]


def mixed_precision(config: TrainingConfig) -> torch.dtype | None:
    """Return the data type of mixed precision on this machine, or None if training does not use mixed precision.

    Without `amp_dtype`, the type is bfloat16 on a CPU or with loss scaling off, and float16 with loss scaling on. With neither option, the GPU
    decides the type: float16 on GPUs older than Ampere, which emulate bfloat16 slowly by float32, and bfloat16 on newer GPUs.
    """
    if not config.amp:
        return None
    if config.amp_dtype is not None:
        return torch.float16 if config.amp_dtype == "float16" else torch.bfloat16
    if not config.on_gpu or config.loss_scaling is False:
        return torch.bfloat16
    if config.loss_scaling or not torch.cuda.is_available():
        return torch.float16
    with torch.cuda.device(config.device):  # GPUs of a machine may differ, and PyTorch checks the current one
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def build_scaler(config: TrainingConfig) -> torch.amp.GradScaler:
    """Build the loss scaling. The loss scaling is disabled, and has no effect, unless training uses float16."""
    options = config.grad_scaler_config.model_dump() if config.grad_scaler_config else {}
    enabled = options.pop("enabled", True) and mixed_precision(config) is torch.float16
    return torch.amp.GradScaler("cuda" if config.on_gpu else "cpu", **options, enabled=enabled)


def resolve(value: Any, numbers: Mapping[str, int], path: str) -> Any:
    """Return `value` with all arithmetic on the names in `numbers` computed, at any depth. Text without these names stays unchanged.

    Args: path: path of the value, for messages. Raises: ConfigError: the arithmetic is wrong.

    >>> resolve({"T_max": "MODYN_NUM_BATCHES * 2", "mode": "min"}, {"MODYN_NUM_BATCHES": 50}, "config")
    {'T_max': 100, 'mode': 'min'}
    """
    match value:
        case str() if "MODYN_" in value and "lambda" not in value:
            try:
                return _calculate(ast.parse(value.strip(), mode="eval").body, numbers)
            except (SyntaxError, ValueError, ZeroDivisionError) as error:
                raise ConfigError(
                    f"{path}: cannot compute {value!r}: {error}; write numbers, + - * / // % and {', '.join(numbers)}"
                ) from error
        case Mapping():
            return {key: resolve(item, numbers, f"{path}.{key}") for key, item in value.items()}
        case list():
            return [resolve(item, numbers, f"{path}.{i}") for i, item in enumerate(value)]
    return value


def _calculate(node: ast.expr, numbers: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name) if name in numbers:
            return numbers[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_calculate(operand, numbers)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_calculate(left, numbers), _calculate(right, numbers))
        case ast.Name(id=name):
            raise ValueError(f"there is no number '{name}'{nearest(name, list(numbers))}")
    raise ValueError(f"'{ast.unparse(node)}' is not arithmetic")


def _lambdas(value: Any, numbers: Mapping[str, int], path: str, run: bool) -> Any:
    """Return the user's functions for LambdaLR and MultiplicativeLR: Python expressions or importable names. The value is one function or a list."""
    if isinstance(value, list):
        return [_lambdas(item, numbers, path, run) for item in value]
    text = str(value)
    if not text.lstrip().startswith("lambda"):
        return load_object(text) if run else None
    try:
        code = compile(text.strip(), f"<{path}>", "eval")
    except SyntaxError as error:
        raise ConfigError(f"{path}: {text!r} is not a Python expression: {error.msg}") from error
    return eval(code, {**numbers, "math": math}) if run else None  # the user's code, in the user's worker


def _parameters(model: nn.Module, module: str, path: str) -> Iterator[nn.Parameter]:
    name = module.removeprefix("model").removeprefix(".")
    try:
        found = list(model.get_submodule(name).parameters())
    except AttributeError:
        try:
            found = [model.get_parameter(name)]
        except AttributeError:
            names = ["model", *(f"model.{child}" for child, _ in model.named_modules() if child)]
            raise ConfigError(
                f"{path}: {type(model).__name__} has no module '{module}'{nearest(module, names)} It has: {', '.join(names[:40])}"
            ) from None
    if not found:
        raise ConfigError(f"{path}: '{module}' has no parameters to optimize; remove the group or name another module")
    yield from found


def _optimizer_class(config: OptimizerConfig, path: str) -> Any:
    if config.source == "Custom":
        return OPTIMIZERS.get(config.algorithm)
    if config.source == "APEX":
        try:
            return load_object(f"apex.optimizers:{config.algorithm}")
        except ConfigError as error:
            raise ConfigError(f"{path}.algorithm: {error.message} (NVIDIA Apex), or set source to PyTorch") from error
    kind = getattr(torch.optim, config.algorithm, None)
    names = [name for name, value in vars(torch.optim).items() if inspect.isclass(value) and issubclass(value, Optimizer)]
    if config.algorithm not in names or kind is Optimizer:
        raise ConfigError(
            f"{path}.algorithm: torch.optim has no optimizer '{config.algorithm}'{nearest(config.algorithm, names)}"
        )
    if config.algorithm == "LBFGS":
        raise ConfigError(
            f"{path}.algorithm: LBFGS evaluates the model several times a step, which the training loop does not do"
        )
    return kind


def _constructed(kind: Any, path: str, options_at: str, *arguments: Any, **options: Any) -> Any:
    """Call `kind(*arguments, **options)`. Raises ConfigError with the path of the options."""
    try:
        if arguments and isinstance(arguments[0], list):
            _check_group_options(kind, arguments[0], f"{path}.{options_at}")
        return kind(*arguments, **options)
    except ModynError:
        raise
    except Exception as error:
        allowed = ", ".join(list(inspect.signature(kind).parameters)[1 if arguments else 0 :])
        raise ConfigError(f"{path}.{options_at}: {kind.__name__} refuses its options: {error}. It takes: {allowed}") from error


def _check_group_options(kind: Any, groups: list[dict[str, Any]], path: str) -> None:
    """Check the options of each group by calling the constructor with these options, because an optimizer accepts any key in a group."""
    parameters = inspect.signature(kind).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    # The first parameter of an optimizer is `params`, which is not an option.
    allowed = ", ".join(list(parameters)[1:])
    for i, group in enumerate(groups):
        where = f"{path}.{i}.config"
        options = {name: value for name, value in group.items() if name != "params"}
        for name in options:
            if name not in parameters and not takes_all:
                raise ConfigError(
                    f"{where}.{name}: there is no option '{name}'{nearest(name, list(parameters))} Allowed: {allowed}"
                )
        error = _refusal(kind, group["params"], options)
        if error is None:
            continue
        for name, value in options.items():
            # If an option alone causes the same error, this option is the mistake.
            alone = _refusal(kind, group["params"], {name: value})
            if alone is not None and str(alone) == str(error):
                raise ConfigError(f"{where}.{name}: {_describe_value(kind, value, parameters.get(name), alone)}") from alone
        raise ConfigError(f"{where}: {kind.__name__} refuses its options: {error}. It takes: {allowed}") from error


def _refusal(kind: Any, parameters: Any, options: Mapping[str, Any]) -> Exception | None:
    try:
        kind(parameters, **options)
    except Exception as error:  # noqa: BLE001  (a class of a user may raise anything)
        return error
    return None


def _describe_value(kind: Any, value: Any, parameter: inspect.Parameter | None, error: Exception) -> str:
    """Describe the error in the value of one option, and the expected value."""
    default = None if parameter is None or parameter.default is parameter.empty else parameter.default
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            expected = "a number" if isinstance(default, int | float) else "another value"
        else:
            return f"'{value}' is a text in YAML, a number is expected: write {number!r} (1e-3 needs a point, 1.0e-3)"
    else:
        expected = "another value"
    example = "" if default is None else f", for example {default!r}"
    # Python's message about text instead of a number does not help.
    reason = "" if isinstance(value, str) and isinstance(error, TypeError) else f"{kind.__name__} refuses its options: {error}; "
    return f"{value!r} is wrong: {reason}{expected} is expected{example}"


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether any module computes statistics over a batch in training."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())
