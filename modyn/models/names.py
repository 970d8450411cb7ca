"""Names of models in a pipeline, and the files that named models are built from.

`model.id` has four spellings: a registered id (`ResNet18`), an importable name (`package.module:Name`), a file next to the pipeline (`./net.py:Net`),
and a name of a library (`torchvision:resnet50`, `timm:vit_small_patch16_224`, `transformers:FOLDER`). The client reads the files at submission, and
adds their content to the pipeline, in the section `sources`. Therefore a run keeps the code of its model, even if the file changes. This module does
not run any code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from modyn.config.base import Problem, Section, check_section, section_at
from modyn.config.overrides import pipeline_yaml
from modyn.config.yaml_source import load_yaml
from modyn.errors import ConfigError

SOURCES: Final = "sources"
"""Section of a pipeline with the files that its models are built from."""
_CONFIGURATION: Final = "config.json"
"""The file in a folder of transformers that describes the network."""
_IMPORTABLE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class ModelKind(StrEnum):
    """Where the class of a model comes from."""

    REGISTERED = "registered"
    IMPORTED = "imported"
    FILE = "file"
    TORCHVISION = "torchvision"
    TIMM = "timm"
    TRANSFORMERS = "transformers"


LIBRARIES: Final = (ModelKind.TORCHVISION, ModelKind.TIMM, ModelKind.TRANSFORMERS)


@dataclass(frozen=True, slots=True)
class ModelName:
    """A parsed `model.id`."""

    kind: ModelKind
    name: str
    """Registered id, class or function, or name in the library."""
    place: str = ""
    """Module or file of the class; empty for other kinds."""

    @classmethod
    def parse(cls, id_: str) -> ModelName:
        """Parse a `model.id`. An id without a colon is a registered id. Raises ConfigError: the id has none of the four spellings.

        >>> ModelName.parse("./net.py:Net")
        ModelName(kind=<ModelKind.FILE: 'file'>, name='Net', place='./net.py')
        >>> ModelName.parse("timm:vit_small_patch16_224").kind
        <ModelKind.TIMM: 'timm'>
        """
        library, colon, rest = id_.partition(":")
        if colon and library in LIBRARIES:
            if not rest:
                raise ConfigError(f"model.id: '{id_}' names no model; write '{library}:NAME'")
            return cls(ModelKind(library), rest)
        place, _, name = id_.rpartition(":")
        if place.endswith(".py") and name.isidentifier():
            return cls(ModelKind.FILE, name, place)
        if _IMPORTABLE.fullmatch(id_):
            return cls(ModelKind.IMPORTED, name, place)
        if id_.removesuffix(":").endswith(".py"):
            raise ConfigError(f"model.id: '{id_}' names no class of the file; write '{id_.removesuffix(':')}:NAME'")
        if colon:
            raise ConfigError(
                f"model.id: '{id_}' is not the name of a model: write a registered id, package.module:Name, ./file.py:Name, torchvision:NAME, "
                "timm:NAME or transformers:FOLDER"
            )
        return cls(ModelKind.REGISTERED, id_)

    @property
    def file(self) -> str:
        """The file or folder that the model may be built from, as the pipeline writes it; empty: there is none."""
        return self.name if self.kind is ModelKind.TRANSFORMERS else self.place if self.kind is ModelKind.FILE else ""

    @property
    def is_path(self) -> bool:
        """Whether `file` must exist. A name of transformers without `./` or `/` at its start may also be a name in the library's cache."""
        return self.kind is ModelKind.FILE or (self.kind is ModelKind.TRANSFORMERS and self.name.startswith((".", "/", "~")))


class Source(Section):
    """A file that a model is built from."""

    path: str = Field(description="absolute path of the file at submission")
    text: str = Field(description="content of the file at submission")

    @property
    def sha256(self) -> str:
        """SHA-256 of the content."""
        return text_sha256(self.text)


@dataclass(frozen=True, slots=True)
class Pretrained:
    """Where a new network may take the pretrained weights of its library from, in addition to the library's cache on this machine."""

    folder: str = ""
    """Folder of transformers; empty: the model is not built from a folder."""
    download: bool = False
    """Whether the network may be asked."""

    @classmethod
    def of(cls, pipeline: Mapping[str, Any], id_: str) -> Pretrained:
        """Return the places that a pipeline allows for a model. Its option `model.download` counts for all its models."""
        source = source_of(pipeline, id_)
        is_folder = source is not None and ModelName.parse(id_).kind is ModelKind.TRANSFORMERS
        folder = str(Path(source.path).parent) if source is not None and is_folder else ""
        return cls(folder, section_at(pipeline, "model").get("download") is True)


def text_sha256(text: str) -> str:
    """Return the SHA-256 of a text, which identifies the code of a model."""
    return hashlib.sha256(text.encode()).hexdigest()


def with_sources(text: str, file_name: str) -> str:
    """Return the text of a pipeline with the files that its models are built from, in the section `sources`. Files that the section already has are
    not read again. The lines of the other sections stay the same. Files that do not exist are left out, and `check_sources` reports them.

    Args: file_name: path of the pipeline, to which the paths of the files are relative. Raises: ConfigError: a file cannot be read.
    """
    import yaml

    try:
        data = load_yaml(text, file_name).data
    except ConfigError:
        return text  # The check of the pipeline reports the mistake.
    given = section_at(data, SOURCES)
    found = {name.file: source for _, name in _model_names(data) if name.file not in given and (source := _read(name, file_name))}
    if not found:
        return text
    appended = f"{text}\n{yaml.dump({SOURCES: found}, Dumper=_blocks(), sort_keys=False, allow_unicode=True)}"
    whole = {**data, SOURCES: {**given, **found}}
    try:
        return appended if load_yaml(appended, file_name).data == whole else pipeline_yaml(whole)
    except ConfigError:  # The text cannot be continued, because it is written in JSON, or has the section.
        return pipeline_yaml(whole)


def check_sources(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return a problem for each file that a model needs and that the pipeline does not have, and for each wrong entry of `sources`."""
    given = section_at(pipeline, SOURCES)
    wrong = [problem for name, entry in given.items() for problem in check_section(Source, entry, f"{SOURCES}.{name}")]
    return wrong + [
        Problem(path, f"there is no file '{_needed(name)}': its path is relative to the pipeline file, and is read at submission")
        for path, name in _model_names(pipeline)
        if name.is_path and name.file not in given
    ]


def source_of(pipeline: Mapping[str, Any], id_: str) -> Source | None:
    """Return the file that a model is built from; None: the model needs no file, or the pipeline does not have it."""
    try:
        found = section_at(pipeline, SOURCES).get(ModelName.parse(id_).file)
    except ConfigError:
        return None
    return Source(**found) if isinstance(found, Mapping) and not check_section(Source, found, "") else None


def definition_of(pipeline: Mapping[str, Any], id_: str) -> str:
    """Return the content of the file that a model is built from; empty: see `source_of`."""
    source = source_of(pipeline, id_)
    return "" if source is None else source.text


def changed_sources(pipeline: Mapping[str, Any]) -> list[str]:
    """Return a text for each file that has changed since the submission. Files that do not exist on this machine are not compared."""
    sources = [Source(**found) for found in section_at(pipeline, SOURCES).values()]
    changed = []
    for source in sources:
        try:
            now = Path(source.path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if now != source.text:
            changed.append(
                f"{source.path} has changed since the run was submitted (SHA-256 {text_sha256(now)[:12]} instead of {source.sha256[:12]}): the run "
                "continues with the file as it was; start another run to use the new file"
            )
    return changed


def _model_names(data: Mapping[str, Any]) -> Iterator[tuple[str, ModelName]]:
    """Yield each name of a model that needs a file, with its path in the pipeline: `model.id`, and each `il_model_id` of the selection."""

    def ids(path: str, value: object) -> Iterator[tuple[str, str]]:
        if isinstance(value, list | tuple):
            value = dict(enumerate(value))
        for key, inner in value.items() if isinstance(value, Mapping) else ():
            if key == "il_model_id" and isinstance(inner, str):
                yield f"{path}.{key}", inner
            yield from ids(f"{path}.{key}", inner)

    of_model = section_at(data, "model").get("id")
    written = [("model.id", of_model)] if isinstance(of_model, str) else []
    for path, id_ in [*written, *ids("selection_strategy", data.get("selection_strategy"))]:
        try:
            name = ModelName.parse(id_)
        except ConfigError:
            continue  # The trainer server reports the mistake.
        if name.file:
            yield path, name


def _read(name: ModelName, file_name: str) -> dict[str, str] | None:
    path = Path(_needed(name))
    try:
        path = Path(file_name).parent / path.expanduser()
        return {"path": str(path.resolve()), "text": path.read_text(encoding="utf-8")} if path.is_file() else None
    except (OSError, RuntimeError, UnicodeDecodeError) as error:  # RuntimeError: the user of `~name` is unknown
        raise ConfigError(f"model.id: cannot read {path}: {error}") from error


def _needed(name: ModelName) -> str:
    return f"{name.file}/{_CONFIGURATION}" if name.kind is ModelKind.TRANSFORMERS else name.file


def _blocks() -> Any:
    """Return a class that writes texts of several lines as blocks, so that people can read code in a pipeline."""
    import yaml

    class Blocks(yaml.SafeDumper):
        pass

    def written(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Blocks.add_representer(str, written)
    return Blocks
