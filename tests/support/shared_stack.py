"""Settings and plug-ins of the session's `running_stack`, so that no module needs its own stack."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any, Final

from tests.support import counting_model, faulty_plugins, keyed_weights, struck_services
from tests.support.plugins import write_metadata

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "plugin"


def options(plug_ins: Path) -> dict[str, Any]:
    """Arguments of `stack_on`: replicas of the payload server, two trainings at once, workers that wait only 3 s for further work (tests
    look for those without work; between two checks of a run on a busy machine they must not end), and packages that tests bring.

    Args: plug_ins: an empty folder for the packages.
    """
    for module, group, name in (
        (counting_model, "modyn.models", counting_model.NAME),
        (keyed_weights, "modyn.selection", keyed_weights.NAME),
    ):
        # A copy: of the folder that holds a plug-in, services read all files at every check.
        copy = Path(shutil.copy(str(module.__file__), plug_ins))
        write_metadata(plug_ins, copy.stem, {group: {name: f"{copy.stem}:{name}"}})
    (plug_ins / "faulty.py").write_text(faulty_plugins.SOURCE)
    write_metadata(plug_ins, "faulty", faulty_plugins.ENTRY_POINTS)
    struck_services.plug_in(plug_ins)
    _add_example(plug_ins)
    idle = {"session_idle_s": 3.0}
    return {
        "plug_ins": plug_ins,
        "storage": {"replicas": 2},
        "trainer_server": {**idle, "max_workers": 2},
        "evaluator": idle,
    }


def _add_example(plug_ins: Path) -> None:
    """Add the example plug-in without pip: `tests/examples/test_plugin.py` compares the two."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    module = project["name"].replace("-", "_")
    shutil.copytree(EXAMPLE / module, plug_ins / module, ignore=shutil.ignore_patterns("__pycache__"))
    write_metadata(plug_ins, project["name"], project["entry-points"], project["version"])
