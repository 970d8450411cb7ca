"""What the session's `running_stack` has, so that no module needs a stack of its own for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import counting_model, example_plugin, faulty_plugins, keyed_weights, struck_services


def options(plug_ins: Path) -> dict[str, Any]:
    """Arguments of `stack_on`: replicas of the payload server, two trainings at once, workers that wait only 3 s for further work (tests
    look for those without work; between two checks of a run on a busy machine they must not end), and packages that tests bring.

    Args: plug_ins: an empty folder for the packages.
    """
    for package in (counting_model, example_plugin, faulty_plugins, keyed_weights, struck_services):
        package.plug_in(plug_ins)
    idle = {"session_idle_s": 3.0}
    return {
        "plug_ins": plug_ins,
        "storage": {"replicas": 2},
        "trainer_server": {**idle, "max_workers": 2},
        "evaluator": idle,
    }
