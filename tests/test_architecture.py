"""The rules of the house: who may import whom, what stays light, and how large a module may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "modyn"

FLOORS = {
    "errors": 0, "records": 0, "proto": 0, "_core": 0, "_core.pyi": 0, "sanitize": 0,
    "registry": 1, "json_codec": 1, "atomic_write": 1, "columnar": 1, "cache": 1, "log_files": 1,
    "config": 2, "state_version": 2,
    "rpc": 3, "db": 3, "local": 3, "models": 3,
    "storage": 4, "selector": 4, "model_storage": 4,
    "dataset": 5, "workers": 5,
    "trainer_server": 6, "evaluator": 6,
    "supervisor": 7,
    "analysis": 8,
    "reference": 8, "client": 9, "cli": 9, "dashboard": 9, "testing": 9, "__init__": 9,
}  # fmt: skip
SERVICES = ("storage", "selector", "model_storage", "trainer_server", "evaluator", "supervisor")

# What of a service other rooms may see besides its client: the configuration that it publishes, which the schema of the pipeline is made of.
PUBLIC = {"client"}
# The schema is composed from the owners of its parts, and plug-in authors test against the bases of policies.
COMPOSERS = {"reference", "cli", "testing"}


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "proto" not in path.relative_to(PACKAGE).parts]


def imports(path: Path) -> list[str]:
    """Full names of what a module imports of `modyn`, at any depth of the file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "modyn":
            found += [f"{node.module}.{alias.name}" if node.module == "modyn" else node.module for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] == "modyn"]
    return found


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_room_has_a_floor() -> None:
    assert {room(path) for path in modules()} <= FLOORS.keys()


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_what_is_below_it(path: Path) -> None:
    here = room(path)
    for name in imports(path):
        there = name.split(".")[1] if "." in name else "__init__"
        there = there if there in FLOORS else "__init__"
        if there == here:
            continue
        assert FLOORS[there] <= FLOORS[here], f"{here} (floor {FLOORS[here]}) imports {name} (floor {FLOORS[there]})"
        assert FLOORS[there] < FLOORS[here] or FLOORS[here] in (0, 1, 3, 5, 9), f"{here} imports {name}, a room of its own floor"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_services_meet_only_through_clients(path: Path) -> None:
    here = room(path)
    for name in imports(path):
        parts = name.split(".")
        if len(parts) < 2 or parts[1] not in SERVICES or parts[1] == here or here in COMPOSERS:
            continue
        face = ".".join(parts[2:])
        allowed = PUBLIC | ({"payloads", "model.samples"} if parts[1] == "storage" else set())
        assert face in allowed, f"{path.relative_to(ROOT)} imports {name}: use modyn.{parts[1]}.client"


@pytest.mark.parametrize("service", SERVICES)
def test_services_start_without_what_only_workers_and_faces_need(service: str) -> None:
    program = (
        f"import sys, modyn.{service}.__main__, modyn.{service}.service; "
        "print([m for m in ('torch', 'pandas', 'plotly', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys, modyn.cli.main; "
        "print([m for m in ('torch', 'pandas', 'grpc', 'sqlalchemy', 'pyarrow', 'numpy', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_module_outgrows_a_few_screens() -> None:
    long = {str(path.relative_to(ROOT)): lines for path in modules() if (lines := len(path.read_text().splitlines())) > 450}
    assert long == {}


def test_no_room_whose_name_says_nothing() -> None:
    vague = {"utils", "common", "helpers", "internal", "misc"}
    assert [
        str(path) for path in modules() if vague & {part.removesuffix(".py") for part in path.relative_to(PACKAGE).parts}
    ] == []
