"""The rules of the house: which room imports which, what stays light, how large a module is, and what tests may patch."""

from __future__ import annotations

import ast
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import modyn.proto
from modyn.rpc.access import NEEDED
from tests.support.documented_flows import documented_flows

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "modyn"

FLOORS = {
    "errors": 0, "records": 0, "proto": 0, "_core": 0,
    "registry": 1, "json_codec": 1, "atomic_write": 1, "columnar": 1, "latencies": 1, "log_files": 1, "retention": 1, "periodic_task": 1,
    "run_ids": 1, "tolerance": 1, "zstd": 1,
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
"""Bottom up; modules beside the rooms are above all of them."""
SERVICES = ("storage", "selector", "model_storage", "trainer_server", "evaluator", "supervisor")

# What other rooms may import of a service.
FACES = {
    "storage": {"client", "payloads", "model.samples"},
    "supervisor": {"client", "simulation"},
    "trainer_server": {"client", "cache_planning"},
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
    """Folders below `modyn`, which itself holds modules of many floors."""
    folders = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ".".join(path.parent.relative_to(ROOT).parts)
        for path in modules()
    }
    folders = {name.removesuffix(".__init__"): folder for name, folder in folders.items() if folder != "modyn"}
    graph: dict[str, set[str]] = {folder: set() for folder in folders.values()}
    for path in modules():
        here = ".".join(path.parent.relative_to(ROOT).parts)
        if here in graph:
            graph[here] |= {folders[name] for name in _imports_at_module_level(path) if name in folders} - {here}
    assert _in_circles(graph) == []


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


LIGHT_READER = {
    "numpy", "prometheus_client", "pydantic", "pydantic_core", "pydantic_settings", "structlog", "yaml",
    "annotated_types", "backports", "dotenv", "typing_extensions", "typing_inspection", "attr", "pygments", "rich",
    "greenlet",  # which structlog imports where it is installed: tritonclient, of the tests, brings it
}  # fmt: skip
"""What a local read of payloads needs, with what structlog and pydantic import."""


def test_what_a_training_worker_imports_to_read() -> None:
    """No database and no RPC for local reads, no database for the choice between local reads and Flight."""
    assert _third_party("modyn.storage.read.payload_reader") <= LIGHT_READER
    with_flight = _third_party("modyn.storage.payloads")
    assert {"grpc", "pyarrow"} <= with_flight
    assert not with_flight & {"sqlalchemy", "alembic", "psycopg2", "torch", "pandas"}


ALL_WORKERS = {
    "": "_core atomic_write columnar errors json_codec log_files records registry retention tolerance zstd",
    "cache": "breaker call_costs evictions keys memory_tier sample_codec sample_files sample_numbers tier value_layout",
    "config": "alerts base buckets cache dataset downsampling_turns durations endpoint logs online policy preprocessing promotion "
    "record_log retention security serving sizes system",
    "dataset": "bad_samples batch cache_source chunks config connections decode features field_names flight_batches functions local_batches prefetch "
    "preparation_clock processes reader sample_cache user_code",
    "dataset.order": "plan",
    "model_storage": "client",
    "models": "calls classes networks specs weights",
    "preprocessing": "base bucketizer categories column_parser columns components cross_features feature_hasher features frequent_items hash_index "
    "hashed_encoder imputer input_guard label_indexer min_max_scaler moments one_hot_encoder pipeline polynomial_features quantile_sketch "
    "standard_scaler state_bytes string_hash token_counts vocabularies vocabulary",
    "rpc": "channel client columns logs retry security status wire",
    "selector": "client",
    "storage": "client payloads wire",
    "storage.files": "file_system local",
    "storage.flight": "client endpoints fetch protocol",
    "storage.formats": "arrow_times bad_rows base binary csv json_fields json_lines json_schema parquet parquet_footer parquet_types record_log "
    "single_sample tar text_start timestamps",
    "storage.index": "late_labels segment_file segment_index tombstones",
    "storage.model": "file_table records samples schema",
    "storage.read": "locality payload_reader publication record_readers row_order snapshot",
    "workers": "devices fork_server imported_files job_table limits messages placement pool process process_state session",
}
"""Modules of Modyn in every worker, without generated ones, by package. Imported before the fork, by the fork server."""

TRAINING_WORKER = {
    "": "state_folders",
    "config": "selection_advice",
    "cache": "measured_rates measuring performance_model profile redis_scripts served_counts split_plan stores tier_choice",
    "cache.samplers": "base coordinated lru opportunistic shade shared_loader static substitution values",
    "cache.sharing": "clearing compared_job key_sets known_values memory_state served_batch shared_job state stay value_ring",
    "dataset": "background_fill batch_cache batch_maker cache_samplers code_versions loader pipeline_cache sampler_loader session_connections "
    "trigger_set",
    "dataset.order": "held_out",
    "preprocessing": "section",
    "trainer_server": "batch_errors batch_then_sample batches check checkpoint chosen_scores chosen_set client components config criterion "
    "divergence downsampling_record ends epoch_passes faded_mean feedback_file files fitting held_keys hooks inputs irreducible "
    "irreducible_config irreducible_file "
    "joint_step learning loop loss_ranks new_samples online_steps optimizer_states preload preprocessing_check prequential "
    "rate_keeping sample_scores sample_then_batch schedules score_file scoring_pass stages state_file step_guard step_parts step_snapshot "
    "stream_preprocessing stream_rates tensor_ranges train training_plan training_progress validation_pass weighted_loss",
    "trainer_server.coresets": "choices distances facility_location graph_cut greedy k_center log_determinant matching_pursuit partitioned rows",
    "trainer_server.downsampling": "craig el2n feature_policy forgetting grad_match grad_norm grand importance kcenter_greedy loss no policy "
    "rho_loss rs2 sampling scoring submodular uncertainty",
}
"""Those that a training worker has besides."""

EVALUATION_WORKER = {
    "": "state_folders",
    "cache": "measured_rates measuring performance_model profile redis_scripts split_plan stores tier_choice",
    "config": "label_delay",
    "dataset": "batch_maker code_versions key_loader pipeline_cache session_connections",
    "evaluator": "client config drawn_samples evaluate kept_values measure_drift metrics outcomes outputs preload records roc_auc "
    "samples session_model trigger_section unfit_values versions wire",
    "evaluator.drift": "alibi base chi_squared cramer_von_mises domain_classifier energy evidently features histograms kept_sums "
    "kolmogorov_smirnov means middle mmd pairs projections wasserstein",
}
"""Those that an evaluation worker has besides."""

WITH_TORCH = LIGHT_READER | {
    "PIL", "cffi", "cloudpickle", "google", "grpc", "grpc_health", "grpc_reflection", "grpc_tools", "mpmath", "pyarrow", "safetensors",
    "sympy", "torch", "torchgen",
}  # fmt: skip


@pytest.mark.parametrize(
    ("service", "own"), [("trainer_server", TRAINING_WORKER), ("evaluator", EVALUATION_WORKER)], ids=["training", "evaluation"]
)
def test_what_a_worker_imports(service: str, own: dict[str, str]) -> None:
    """Before the fork exactly this, so that no module comes in unnoticed; after it nothing, see `imports_after_fork`."""
    listed = [*ALL_WORKERS.items(), *own.items()]
    packages = {".".join(["modyn", *package.split(".")[:depth]]) for package, _ in listed if package for depth in (0, 1, 2)}
    modules = {".".join(filter(None, ["modyn", package, name])) for package, names in listed for name in names.split()}
    loaded = _loaded(f"modyn.{service}.preload")
    ours = {name for name in loaded if name.split(".")[0] == "modyn" and not name.startswith("modyn.proto")}
    assert ours == packages | modules
    third_party = _third_party(f"modyn.{service}.preload")
    assert "torch" in third_party
    assert third_party <= WITH_TORCH


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


def _third_party(module: str) -> set[str]:
    """Top-level packages outside the standard library that importing `module` loads."""
    names = {name.split(".")[0] for name, file in _loaded(module).items() if "site-packages" in file}
    return {name for name in names if not name.startswith("_")}


@cache
def _loaded(module: str) -> dict[str, str]:
    """File by name of every module that importing `module` loads in a new interpreter; empty where there is none."""
    program = f"import sys, json, {module}; print(json.dumps({{n: getattr(m, '__file__', None) or '' for n, m in sys.modules.items()}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded: dict[str, str] = json.loads(done.stdout)
    return loaded


def test_the_documented_flows_name_files_that_exist_and_count_them() -> None:
    """tests/benchmark/test_trace_flows.py runs the flows."""
    flows = documented_flows()
    assert {flow: len(files) for flow, (_, files) in flows.items()} == {flow: number for flow, (number, _) in flows.items()}
    named = {file for _, files in flows.values() for file in files}
    assert [file for file in sorted(named - {"C++"}) if not (PACKAGE / file).exists()] == []


def test_no_module_outgrows_a_few_screens() -> None:
    long = {str(path.relative_to(ROOT)): lines for path in modules() if (lines := len(path.read_text().splitlines())) > 400}
    assert long == {}


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
