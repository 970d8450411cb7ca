"""Rules of the package: which room imports which, what stays light, how many files a folder has, and what tests may patch."""

from __future__ import annotations

import ast
import os
import pkgutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import modyn.proto
from modyn.rpc.access import NEEDED

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "modyn"

FLOORS = {
    "errors": 0, "records": 0, "proto": 0, "_core": 0,
    "registry": 1, "json_codec": 1, "atomic_write": 1, "columnar": 1, "full_disk": 1, "latencies": 1, "log_files": 1, "keep_limits": 1,
    "periodic_task": 1, "run_ids": 1, "tolerance": 1, "zstd": 1,
    "config": 2, "state_folders": 2,
    "rpc": 3, "db": 3, "local": 3, "workers": 3, "models": 3, "preprocessing": 3,
    "storage": 4, "model_storage": 4, "cache": 4,
    "selector": 5,
    "dataset": 6,
    "trainer_server": 7, "evaluator": 7,
    "supervisor": 8, "serving": 8,
    "analysis": 9, "connections": 9,
    "reference": 10, "result_tables": 10, "model_access": 11, "client": 12, "cli": 13, "testing": 13, "__init__": 13,
}  # fmt: skip
STORAGE_ROOMS = ("model", "files", "formats", "index", "read", "catalogue", "ingest", "records", "flight")
"""Bottom up; modules outside the rooms are above all of them."""
SERVICES = ("storage", "selector", "model_storage", "trainer_server", "evaluator", "supervisor")

# What other rooms may import of a service.
FACES = {
    "storage": {"client", "payloads", "model.samples"},
    "supervisor": {"client", "simulation.run_simulation"},
    "trainer_server": {"client", "cache_plan.cache_planning"},
}
# The schema is composed from the owners of its parts, and plug-in authors test against the bases of policies.
COMPOSERS = {"reference", "cli", "testing"}


@cache
def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "proto" not in path.relative_to(PACKAGE).parts]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def all_imports() -> Iterator[tuple[Path, str]]:
    """Every module with the full name of each thing that it imports of `modyn`."""
    yield from ((path, name) for path in modules() for name in imports(path))


@cache
def imports(path: Path) -> list[str]:
    """Full names of what a module imports of `modyn`, at any depth of the file."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "modyn":
            found += [f"{node.module}.{alias.name}" if node.module == "modyn" else node.module for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] == "modyn"]
    return found


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_room_has_a_floor() -> None:
    generated = {"proto", "_core"}
    assert {room(path) for path in modules()} | generated == FLOORS.keys()


def test_a_room_imports_only_what_is_below_it() -> None:
    wrong = []
    for path, name in all_imports():
        here, there = room(path), name.split(".")[1] if "." in name else "__init__"
        there = there if there in FLOORS else "__init__"
        own_floor = FLOORS[there] == FLOORS[here] and FLOORS[here] in (0, 1, 3, 13)
        if there != here and FLOORS[there] >= FLOORS[here] and not own_floor:
            wrong.append(f"{path.relative_to(ROOT)} (floor {FLOORS[here]}) imports {name} (floor {FLOORS[there]})")
    assert wrong == []


def test_rooms_inside_storage_import_only_what_is_below_them() -> None:
    def floor(parts: Sequence[str]) -> int:
        return STORAGE_ROOMS.index(parts[0]) if parts and parts[0] in STORAGE_ROOMS else len(STORAGE_ROOMS)

    upward = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((PACKAGE / "storage").rglob("*.py"))
        for name in imports(path)
        if name.startswith("modyn.storage.")
        and floor(name.split(".")[2:]) > floor(path.relative_to(PACKAGE / "storage").parts)
        and "migrations" not in path.parts
    ]
    assert upward == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports at module level, those for type checks included. Imports inside functions break a circle on purpose."""
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in modules()}
    known = set(names.values())
    graph = {name: {found for found in _imports_at_module_level(path) if found in known} for path, name in names.items()}
    assert _in_circles(graph) == []


def test_no_folders_import_each_other_in_a_circle() -> None:
    """Folders that lie side by side, each with all that is below it. A folder may use the modules of the folder around it."""
    folders = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.parent.relative_to(PACKAGE).parts for path in modules()
    }
    folders = {name.removesuffix(".__init__"): parts for name, parts in folders.items()}
    graphs: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for path in modules():
        here = path.parent.relative_to(PACKAGE).parts
        for there in (folders[name] for name in _imports_at_module_level(path) if name in folders):
            shared = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), 0)
            if shared:
                graph = graphs.setdefault(here[:shared], {})
                graph.setdefault(here[shared], set()).add(there[shared])
                graph.setdefault(there[shared], set())
    assert {around: circle for around, graph in graphs.items() if (circle := _in_circles(graph))} == {}


def _in_circles(graph: dict[str, set[str]]) -> list[str]:
    """What is left of the graph without its leaves and its roots: circles, and what lies between them."""
    while free := [name for name, below in graph.items() if not below & graph.keys()]:
        for name in free:
            del graph[name]
    while free := [name for name in graph if not any(name in below for below in graph.values())]:
        for name in free:
            del graph[name]
    return sorted(graph)


def _imports_at_module_level(path: Path) -> Iterator[str]:
    waiting: list[ast.stmt] = list(parsed(path).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            if node.module != "modyn":
                yield node.module
        elif isinstance(node, ast.If | ast.Try):
            waiting += [*node.body, *node.orelse]


def test_a_name_of_a_public_class_means_one_thing() -> None:
    found: dict[str, list[str]] = {}
    for path in modules():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_services_meet_only_through_clients() -> None:
    wrong = []
    for path, name in all_imports():
        here, parts = room(path), name.split(".")
        if len(parts) < 2 or parts[1] not in SERVICES or parts[1] == here or here in COMPOSERS:
            continue
        if ".".join(parts[2:]) not in FACES.get(parts[1], {"client"}):
            wrong.append(f"{path.relative_to(ROOT)} imports {name}: use modyn.{parts[1]}.client")
    assert wrong == []


def test_services_start_without_what_only_workers_and_faces_need() -> None:
    program = (
        "import importlib, sys, modyn.rpc.__main__\n"
        f"for service in {SERVICES}:\n"
        "    importlib.import_module(f'modyn.{service}.service')\n"
        "    print(service, [m for m in ('torch', 'pandas', 'plotly', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{service} []" for service in SERVICES]


def test_what_a_service_process_imports_to_serve(tmp_path: Path) -> None:
    """Not rich, which structlog imports where it can, nor what only migrations need."""
    (tmp_path / "file").touch()
    environment = {**os.environ, "MODYN_STATE_DIR": str(tmp_path / "file" / "state"), "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "modyn.rpc", "model_storage"], capture_output=True, text=True, check=False, env=environment
    )
    assert "make it writable or change state_dir" in done.stderr
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"structlog", "grpc", "sqlalchemy"} <= imported
    assert not imported & {"rich.console", "pygments", "alembic", "torch", "pandas"}


def test_the_process_that_looks_after_the_stack_is_light() -> None:
    program = "import sys, modyn.local.stack; print([m for m in ('grpc', 'numpy', 'sqlalchemy', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys, modyn.cli.main; "
        "print([m for m in ('torch', 'pandas', 'grpc', 'sqlalchemy', 'pyarrow', 'numpy', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


WITH_TORCH = ("modyn.trainer_server.preload", "modyn.evaluator.preload")
HEAVY = {"alembic", "grpc", "pandas", "plotly", "psycopg2", "pyarrow", "scipy", "sklearn", "sqlalchemy", "torch"}
"""Packages that cost a process memory and time to start."""


@pytest.mark.parametrize(
    ("module", "loads"),
    [
        ("storage.read.payload_reader", set()),
        ("storage.payloads", {"grpc", "pyarrow"}),
        ("trainer_server.preload", {"grpc", "pyarrow", "torch"}),
        ("evaluator.preload", {"grpc", "pyarrow", "torch"}),
    ],
)
def test_what_reads_samples_loads_no_other_heavy_package(module: str, loads: set[str]) -> None:
    """A local read needs none, and Flight needs two. Workers import nothing after the fork: see `tests.support.worker_imports`."""
    assert _packages(f"modyn.{module}") & HEAVY == loads


@pytest.mark.parametrize("service", ["trainer_server", "evaluator"])
def test_a_worker_loads_nothing_of_the_floors_above_and_no_service(service: str) -> None:
    own = [name.split(".") for name in _loaded(f"modyn.{service}.preload") if name.startswith("modyn.")]
    assert {room for _, room, *_ in own if FLOORS[room] > FLOORS[service]} == set()
    assert [".".join(parts) for parts in own if parts[-1] in ("service", "migrations")] == []


def _methods() -> Iterator[str]:
    """The full names of all methods of our protos."""
    for module in pkgutil.iter_modules(modyn.proto.__path__):
        if module.name.endswith("_pb2"):
            descriptor = import_module(f"modyn.proto.{module.name}").DESCRIPTOR
            for service in descriptor.services_by_name.values():
                yield from (f"/{service.full_name}/{method.name}" for method in service.methods)


def test_every_method_has_a_role_and_no_other() -> None:
    """Add a new one to `NEEDED` in modyn/rpc/access.py: what reads, what workers do, what writes, what deletes."""
    assert {name for name in NEEDED if not name.startswith("/grpc.")} == set(_methods())


def _packages(module: str) -> set[str]:
    """Return the top-level packages that importing `module` loads in a new interpreter."""
    return {name.split(".")[0] for name in _loaded(module)}


@cache
def _loaded(module: str) -> frozenset[str]:
    """Return all modules that are loaded after the import of `module` in a new interpreter."""
    return _loaded_by_each("", module)[module] if module not in WITH_TORCH else _loaded_by_each("torch", *WITH_TORCH)[module]


@cache
def _loaded_by_each(before: str, *names: str) -> dict[str, frozenset[str]]:
    """Return what is loaded after the import of each module in a fork of an interpreter that has imported `before`, which takes seconds."""
    program = f"""
import os, sys
{before and f"import {before}"}
for name in {names}:
    if not os.fork():
        __import__(name)
        print(name, *sys.modules, flush=True)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f"{{name}} cannot be imported")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name: frozenset(loaded) for name, *loaded in map(str.split, done.stdout.splitlines())}


def test_a_folder_holds_what_fits_on_a_screen() -> None:
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in modules() if path.name != "__init__.py")
    assert {folder: number for folder, number in folders.items() if number > 21} == {}


def test_every_public_name_has_a_docstring() -> None:
    """Modules, and what they name without a leading underscore: functions, classes and their methods."""
    missing = []
    for path in modules():
        tree = parsed(path)
        if not ast.get_docstring(tree):
            missing.append(str(path.relative_to(ROOT)))
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        inside = [*tree.body, *(child for found in classes for child in found.body)]
        named = [node for node in inside if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
        public = [node for node in named if not node.name.startswith("_")]
        missing += [f"{path.relative_to(ROOT)}:{node.lineno} {node.name}" for node in public if not ast.get_docstring(node)]
    assert missing == []


def test_no_room_whose_name_says_nothing() -> None:
    vague = {"utils", "common", "helpers", "internal", "misc"}
    assert [
        str(path) for path in modules() if vague & {part.removesuffix(".py") for part in path.relative_to(PACKAGE).parts}
    ] == []


def _is_value_of_a_module(target: str) -> bool:
    """Whether `modyn.room.module.name` is assigned in that module or is a module that it imports: no function, which may be made to fail."""
    module, _, name = target.rpartition(".")
    path = ROOT / f"{module.replace('.', '/')}.py"
    for node in parsed(path).body if path.exists() else ():
        if isinstance(node, ast.Import) and name in {(alias.asname or alias.name) for alias in node.names}:
            return True
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in {found.id for found in targets if isinstance(found, ast.Name)}:
                return True
    return False


def _registered(tree: ast.Module) -> set[str]:
    """Names of datasets that a test module registers, as far as they stand in the calls."""
    makers, found = {"tiny_dataset", "tiny_dataset_config", "shifting_dataset", "drifting_dataset", "add_records"}, set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple | ast.Call):
            elements = node.elts if isinstance(node, ast.Tuple) else node.args
            texts = [str(text.value) if isinstance(text, ast.Constant) else "" for text in elements]
            if texts[:2] == ["data", "register"]:
                found.add(texts[2])
        if isinstance(node, ast.Call):
            named = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if named in makers:
                found |= {
                    str(text.value) for text in node.args[:2] if isinstance(text, ast.Constant) and isinstance(text.value, str)
                }
    return found


def test_datasets_of_the_shared_stack_have_one_module_each() -> None:
    """To register a dataset that is there changes nothing: a module would find the samples of another one, if it comes later in the same worker."""
    modules_of: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path != Path(__file__) and "running_stack" in path.read_text():
            for name in _registered(parsed(path)):
                modules_of.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    assert {name: sorted(of) for name, of in modules_of.items() if len(of) > 1} == {}
    assert {"cli", "cli-records", "by-hand", "clicks", "stream", "shifting"} <= modules_of.keys(), (
        "the calls are not recognised any more"
    )


def test_tests_patch_no_constants() -> None:
    """Limits come in by records and parameters; a test that patches a module's constant depends on how the module reads it."""
    patched = []
    for path in sorted(path for path in (ROOT / "tests").rglob("*.py") if "setattr" in path.read_text()):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
                texts = [str(argument.value) for argument in node.args[:2] if isinstance(argument, ast.Constant)]
                name = texts[0].rsplit(".", 1)[-1].strip("_") if texts else ""
                if (name.isupper() and len(name) > 1) or (texts and _is_value_of_a_module(texts[0])):
                    patched.append(f"{path.relative_to(ROOT)}: {name}")
    assert patched == []
