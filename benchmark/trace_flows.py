"""The files of `modyn/` that the data of a flow passes, found in a run of three triggers of examples/digits.

    python -m benchmark.trace_flows [--checkout FOLDER] [--flight]

`sys.setprofile` watches all processes, from a `sitecustomize` of their own. A file counts for a flow if a function of it receives or returns the
flow's datum, or a record that holds it; how the three flows are told apart stands in `FLOWS`. FOLDER: another checkout of Modyn with a .venv of
its own, so that two versions are counted by one rule: names that only an earlier version has are listed too. What is found for this one are the
tables in docs/architecture.md.
"""

from __future__ import annotations

import argparse
import inspect
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

ROOT = Path(__file__).parents[1]
DEPTH: Final = 4
"""Records in records that are looked into for a datum."""
ENTRIES: Final = 3
"""Entries of a list or a dictionary that are looked at: all are of one kind."""


@dataclass(frozen=True)
class Flow:
    """One flow: its datum, and where in `modyn/` it runs. Places are `file` or `file:function`.

    classes: names of the classes of its datum. arrays: rooms in which arrays and tensors are the datum too. not_in: rooms that it does not
    pass. under: by room whose functions see such data for other ends too: places, of which one must be a caller. outside: places that must
    not be: there the flow has not begun, or has ended.
    """

    classes: frozenset[str]
    arrays: frozenset[str]
    not_in: frozenset[str]
    under: Mapping[str, frozenset[str]] = field(default_factory=dict)
    outside: frozenset[str] = frozenset()


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLUGINS = _names("NewDataStrategy SafetensorsFullModel SlicingEvalStrategy Accuracy F1Score")
"""Classes of the plug-ins that the pipeline names. Their files count, whatever their methods receive."""
FLIGHT_SERVER = _names("storage/flight/server.py storage/flight_server.py")
READING = FLIGHT_SERVER | _names("trainer_server/train.py")
"""In whose processes the keys of a training become tensors."""
SELECTING = _names("selector/service.py:Trigger selector/service.py:GetKeys selector/client.py")
_TRIGGER = _names("_fired_trigger _decided _select _train")
TRIGGER = frozenset(f"supervisor/{file}:{name}" for file in ("executor.py", "run.py") for name in _TRIGGER)
NOWHERE = _names("cli testing proto records.py")
MODEL = _names("network Command ModelVersion StoredModel StoredModelInfo ModelInfo ModelHeader")
"""Of both flows of a model; a `Command` holds its request pickled."""
FLOWS = {
    "Key → tensor": Flow(
        classes=frozenset(),
        arrays=_names("dataset storage"),
        not_in=NOWHERE,
        outside=_names("storage/read/snapshot.py:_read storage/published.py:_read trainer_server/downsampling/no.py")
        | _names("storage/service.py storage/ingest/ingestion.py storage/ingest.py"),
    ),
    "Trigger → model": Flow(
        classes=MODEL
        | _names("TriggerRecord TriggerSet TriggerSetInfo TriggerSetRecord TriggerSetHeader Selection KeysAndWeights")
        | _names("TrainingRequest TrainingStatus TrainingJob Trained NothingTrained"),
        arrays=_names("selector columnar.py"),
        not_in=NOWHERE | _names("dataset storage evaluator analysis client.py"),
        under={"supervisor": TRIGGER, "selector": SELECTING, "columnar.py": SELECTING},
        outside=_names("trainer_server/check.py"),
    ),
    "Model → cell of the evaluation matrix": Flow(
        classes=MODEL
        | _names("EvaluationTask EvaluationRequest EvaluationStatus EvaluationResult RunResults Score Rows _Passed"),
        arrays=_names("columnar.py"),
        not_in=NOWHERE | _names("dataset storage selector trainer_server"),
        under={"columnar.py": _names("evaluator/outputs.py")},
        outside=TRIGGER | _names("cli/runs.py cli/run_tables.py"),
    ),
}


class Watcher:
    """What the functions of one process see. Each find is written at once: workers end without notice.

    Args: package: the folder `modyn/` that is watched. folder: where each process writes a file of its own.
    """

    def __init__(self, package: Path, folder: Path) -> None:
        self._package = f"{package}/"
        self._folder = folder
        self._files: dict[CodeType, str | None] = {}
        self._seen: set[tuple[str, str]] = set()
        self._reads = False

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """The profile function. An error of it would reach the program: it is written down, and `trace` raises it."""
        file = self._file(frame.f_code) if event in ("call", "return") else None
        if file is None:
            return
        try:
            if file in FLIGHT_SERVER and frame.f_code.co_name == "__init__":
                self._watch_server(type(frame.f_locals["self"]))
            values = _arguments(frame) if event == "call" else [value]
            for name, flow in FLOWS.items():
                if (name, file) not in self._seen and self._counts(flow, file, frame, values):
                    self._seen.add((name, file))
                    with (self._folder / str(os.getpid())).open("a") as out:
                        out.write(f"{name}\t{file}\t{frame.f_code.co_name}\n")
        except Exception:  # noqa: BLE001
            (self._folder / f"error-{os.getpid()}").write_text(traceback.format_exc())

    def _file(self, code: CodeType) -> str | None:
        """The file of a function below `modyn/`; None: it is elsewhere."""
        if code not in self._files:
            path = code.co_filename
            self._files[code] = path.removeprefix(self._package) if path.startswith(self._package) else None
        return self._files[code]

    def _counts(self, flow: Flow, file: str, frame: FrameType, values: list[Any]) -> bool:
        room, callers = file.split("/", maxsplit=1)[0], self._callers(frame)
        if room in flow.not_in or callers & flow.outside or (room in flow.under and not callers & flow.under[room]):
            return False
        if not flow.classes:
            self._reads |= bool(callers & READING)
            classes = _names("Batch") if room == "trainer_server" else flow.classes
            return self._reads and any(_holds(value, classes, room in flow.arrays) for value in values)
        own = type(frame.f_locals.get("self"))
        if own.__name__ in PLUGINS and frame.f_code.co_name in vars(own) and frame.f_code.co_name != "__init__":
            return True
        return any(_holds(value, flow.classes, room in flow.arrays) for value in values)

    def _callers(self, frame: FrameType | None) -> set[str]:
        """The places of a function and of all that called it."""
        places: set[str] = set()
        while frame is not None:
            if file := self._file(frame.f_code):
                places |= {file, f"{file}:{frame.f_code.co_name}"}
            frame = frame.f_back
        return places

    def _watch_server(self, kind: type) -> None:
        """Let the methods of a Flight server set the profile function: C++ calls them in threads of its own."""
        if hasattr(kind, "do_action") and not hasattr(kind, "watched"):
            kind.watched = True  # type: ignore[attr-defined]
            for name, call in list(vars(kind).items()):
                if inspect.isfunction(call) and name != "__init__":
                    setattr(kind, name, self._watched(call))

    def _watched(self, call: Any) -> Any:
        def function(*arguments: Any, **named: Any) -> Any:
            sys.setprofile(self)
            return call(*arguments, **named)

        def generator(*arguments: Any, **named: Any) -> Iterator[Any]:
            parts = call(*arguments, **named)
            while True:
                sys.setprofile(self)  # each part may be asked for in another thread
                try:
                    yield next(parts)
                except StopIteration:
                    return

        return generator if inspect.isgeneratorfunction(call) else function


def _arguments(frame: FrameType) -> list[Any]:
    """What a function receives, without the object that it is a method of, unless that is a record or a network itself."""
    code = frame.f_code
    count = (
        code.co_argcount
        + code.co_kwonlyargcount
        + bool(code.co_flags & inspect.CO_VARARGS)
        + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    )
    given = {name: frame.f_locals.get(name) for name in code.co_varnames[:count]}
    return [value for name, value in given.items() if name != "self" or is_dataclass(value) or _is_network(value)]


def _holds(value: Any, classes: frozenset[str], arrays: bool, depth: int = DEPTH) -> bool:
    """Whether a value is a datum, or a record, list or dictionary that holds one."""
    if value is None or not depth or isinstance(value, str | int | float | bytes | type):
        return False
    if type(value).__name__ in classes or ("network" in classes and _is_network(value)) or (arrays and _is_array(value)):
        return True
    inside: list[Any] = []
    if isinstance(value, tuple | list):
        inside = list(value[:ENTRIES])
    elif isinstance(value, dict):
        inside = list(value.values())[:ENTRIES]
    elif is_dataclass(value):
        inside = [getattr(value, each.name, None) for each in fields(value)]
    elif type(value).__name__ == "Job":  # no dataclass, but what stands for the request between a service and its worker
        inside = list(vars(value).values())
    return any(_holds(each, classes, arrays, depth - 1) for each in inside)


def _is_network(value: Any) -> bool:
    """Whether a value is a model with weights; a loss is none."""
    nn = getattr(sys.modules.get("torch"), "nn", None)
    is_module = nn is not None and isinstance(value, nn.Module) and "_parameters" in vars(value)
    return is_module and next(value.parameters(), None) is not None


def _is_array(value: Any) -> bool:
    """Whether a value is of keys or positions, payloads, weights or tensors. Ids of files are uint32, offsets come with payloads."""
    kind = type(value)
    if kind.__name__ in ("ndarray", "memmap"):
        return value.ndim > 0 and value.dtype.name in ("int64", "uint8", "float32")
    return kind.__name__ in ("Tensor", "memoryview", "RecordBatch", "Buffer", "Int64Array")


def install(package: str, folder: str) -> None:
    """Watch all threads of this process that Python starts, and of its forks. Called by `sitecustomize`. Args: as for `Watcher`."""
    watcher = Watcher(Path(package), Path(folder))
    threading.setprofile(watcher)
    sys.setprofile(watcher)


HOOK = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("trace_flows", {path!r})
sys.modules["trace_flows"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.install({package!r}, {seen!r})
"""
"""Of `sitecustomize`. The folders stand in it: workers do not get environment variables that the service does not know."""
RESULTS = "import sys; from modyn.client import Client; Client(sys.argv[1]).evaluations('digits-0001')"


def trace(checkout: Path, *, flight: bool) -> dict[str, dict[str, str]]:
    """Run three triggers with the Modyn of a checkout, and make the table of their evaluations.

    Args: flight: payloads come over Flight; otherwise they are read locally.
    Returns: by flow, each file that counts, and the first function of it that did. `rpc/` with `storage/wire.py` is one.
    Raises: RuntimeError: the watcher failed. CalledProcessError: Modyn did.
    """
    with tempfile.TemporaryDirectory(prefix="modyn-flows-") as temp:
        folder = Path(temp)
        hook, seen, system, pipeline = (folder / name for name in ("hook", "seen", "modyn.yaml", "pipeline.yaml"))
        hook.mkdir()
        seen.mkdir()
        (hook / "sitecustomize.py").write_text(HOOK.format(path=__file__, package=str(checkout / "modyn"), seen=str(seen)))
        system.write_text(f"{{state_dir: {folder}/state, storage: {{short_cut: '{'off' if flight else 'on'}'}}}}")
        text = (checkout / "examples" / "digits" / "pipeline.yaml").read_text()
        pipeline.write_text(text.replace("epochs_per_trigger: 12", "epochs_per_trigger: 2"))
        own = {name: value for name, value in os.environ.items() if not name.startswith("MODYN_")}

        def python(*arguments: object, watched: bool = True) -> None:
            command = [str(checkout / ".venv" / "bin" / "python"), *map(str, arguments)]
            subprocess.run(
                command, cwd=checkout, check=True, stdout=sys.stderr, env=own | ({"PYTHONPATH": str(hook)} if watched else {})
            )

        modyn = partial(python, "-m", "modyn.cli.main", "--config", system)
        python("-m", "examples.digits.make_data", folder / "images", watched=False)
        try:
            modyn("up")
            for split in ("train", "test"):
                files = ("--format", "SingleSampleFileWrapper", "-o", "file_extension=.png", "-o", "label_file_extension=.label")
                modyn("data", "register", f"digits-{split}", folder / "images" / split, *files)
            modyn("run", pipeline, "--experiment", "--max-triggers", 3)
            python("-c", RESULTS, system)
        finally:
            modyn("down")
        if errors := [path.read_text() for path in seen.glob("error-*")]:
            raise RuntimeError(errors[0])
        found: dict[str, dict[str, str]] = {name: {} for name in FLOWS}
        for path in sorted(seen.iterdir()):
            for line in path.read_text().splitlines():
                name, file, function = line.split("\t")
                found[name].setdefault("rpc/" if file.startswith("rpc/") or file == "storage/wire.py" else file, function)
        return found


def main() -> None:
    """Print what counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, default=ROOT, help="folder of Modyn, with a .venv; default: this one")
    parser.add_argument("--flight", action="store_true", help="payloads come over Flight; default: they are read locally")
    options = parser.parse_args()
    for name, files in trace(options.checkout.resolve(), flight=options.flight).items():
        print(f"{name}: {len(files)} files in Python")
        for file, function in sorted(files.items()):
            print(f"    {file} ({function})")


if __name__ == "__main__":
    main()
