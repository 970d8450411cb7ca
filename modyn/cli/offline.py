"""Check pipelines and list plug-ins without services, by the functions that the services use, in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from modyn.config.base import Problem
from modyn.registry import Plugin, Registry
from modyn.rpc.wire import from_struct, to_struct

Check = Callable[[Mapping[str, Any]], list[Problem]]


class _Checker:
    """Takes the place of a service client."""

    def __init__(self, check: Check) -> None:
        self._check = check

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        # Services receive numbers as doubles.
        return self._check(from_struct(to_struct(pipeline)))


def check_here(text: str, file_name: str) -> list[Problem]:
    """List every mistake that the services would find in a pipeline file. Imports torch, and the user packages that the file names."""
    from modyn.evaluator.config import check_evaluation
    from modyn.model_storage.section import validate_section
    from modyn.selector.selection import validate_selection_section
    from modyn.supervisor.clients import RunClients
    from modyn.supervisor.validation import check_pipeline
    from modyn.trainer_server.check import check as check_training

    # Services are started in the current folder, so they can import what lies there.
    if "" not in sys.path:
        sys.path.insert(0, "")
    # The trainer's check takes a connection that it does not use.
    clients = RunClients(
        storage=cast("Any", None),
        selector=cast("Any", _Checker(validate_selection_section)),
        model_storage=cast("Any", _Checker(validate_section)),
        trainer_server=cast("Any", _Checker(lambda pipeline: check_training(pipeline, cast("Any", None)))),
        evaluator=cast("Any", _Checker(check_evaluation)),
    )
    return check_pipeline(text, file_name, clients)


def plugins_here() -> list[Plugin]:
    """List every plug-in that is registered in this environment, by kind and id."""
    from modyn.evaluator.metrics import METRICS
    from modyn.model_storage.formats import MODEL_FORMATS
    from modyn.models import MODELS
    from modyn.selector.presampling import PRESAMPLING
    from modyn.selector.selection import SELECTION
    from modyn.storage.formats import REGISTRY as FILE_FORMATS
    from modyn.supervisor.evaluation import EVALUATION_STRATEGIES
    from modyn.supervisor.triggers import TRIGGERS
    from modyn.trainer_server.downsampling import DOWNSAMPLING
    from modyn.trainer_server.registries import OPTIMIZERS, SCHEDULERS

    registries: tuple[Registry[Any], ...] = (
        TRIGGERS, EVALUATION_STRATEGIES, SELECTION, PRESAMPLING, DOWNSAMPLING, MODELS, OPTIMIZERS, SCHEDULERS, METRICS, FILE_FORMATS,
        MODEL_FORMATS,
    )  # fmt: skip
    found = [plugin for registry in registries for plugin in registry.plugins.values()]
    return sorted(found, key=lambda plugin: (plugin.group, plugin.id))
