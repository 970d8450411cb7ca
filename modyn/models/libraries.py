"""Models of torchvision, timm and transformers by name, with the arguments that the library takes.

Pretrained weights come from the library's cache on this machine, or from a folder. The network is asked only if `model.download` allows it. No code
of a checkpoint runs: weights are read as tensors only, and `trust_remote_code` is refused. A model that is trained already is built without the
library's weights, so that evaluator, serving and exports need neither cache nor folder.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from modyn.config.base import Problem, section_at
from modyn.errors import ConfigError
from modyn.models.named import Arguments, MissingPackageError, NamedModel
from modyn.models.names import ModelKind, ModelName, Pretrained
from modyn.models.torchvision_import import import_torchvision
from modyn.registry import nearest

_EXTRAS: Final = {ModelKind.TORCHVISION: "vision", ModelKind.TIMM: "timm", ModelKind.TRANSFORMERS: "text"}
_OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_WEIGHTS: Final = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")
_TIMM_WEIGHTS: Final = (
    "model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors", "open_clip_pytorch_model.bin"
)  # fmt: skip
_DOWNLOAD: Final = "or set model.download: true"
_TENSORS_ONLY: Final = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""With this variable, `torch.load` refuses files with code, even if the caller accepts such files."""
_OTHER_SOURCES: Final = ("source", "url", "hf_hub_id", "hf_hub_filename", "state_dict")
"""Keys of `pretrained_cfg_overlay` that name weights at another place than in a local file."""


def check_installed(library: ModelKind) -> None:
    """Raise MissingPackageError if a library is not installed."""
    if find_spec(library) is None:
        raise MissingPackageError(
            f"model.id: {library} is not installed here; `pip install 'modyn[{_EXTRAS[library]}]'` installs it"
        )


def library_model(id_: str, name: ModelName, definition: str) -> NamedModel:
    """Return a model of a library. Raises MissingPackageError: the library is not installed, or cannot be imported."""
    check_installed(name.kind)
    try:
        match name.kind:
            case ModelKind.TORCHVISION:
                return TorchvisionModel(id_, name.name)
            case ModelKind.TIMM:
                return TimmModel(id_, name.name)
        return TransformersModel(id_, name.name, definition)
    except ImportError as error:  # A package that the library itself needs is missing, or is of another version.
        raise MissingPackageError(
            f"model.id: {name.kind} cannot be imported here: {error}; `pip install 'modyn[{_EXTRAS[name.kind]}]'` installs what it needs"
        ) from error


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment within a `with` block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def hub(download: bool) -> Iterator[None]:
    """Keep the libraries of Hugging Face off the network within a `with` block, unless `download` is true."""
    before = [os.environ.get(name, "") for name in _OFFLINE]

    def switch(offline: bool) -> None:
        # The library reads the variable when it is imported, and this constant later.
        if (constants := sys.modules.get("huggingface_hub.constants")) is not None:
            constants.HF_HUB_OFFLINE = offline  # type: ignore[attr-defined]

    if download:
        yield
        return
    with _environment(dict.fromkeys(_OFFLINE, "1")):
        switch(offline=True)
        try:
            yield
        finally:
            switch(offline=any(value.upper() in ("1", "ON", "YES", "TRUE") for value in before))


class TorchvisionModel(NamedModel):
    """A model of `torchvision.models`. The argument `weights` names pretrained weights. If `num_classes` differs from their classes, the layers whose
    shape differs keep random weights.
    """

    def __init__(self, id_: str, name: str) -> None:
        super().__init__(id_)
        self._models: Any = import_torchvision().models
        known = self._models.list_models()
        if name not in known:
            raise ConfigError(f"model.id: torchvision has no model '{name}'{nearest(name, known) or ''}")
        self._name, self._builder = name, self._models.get_model_builder(name)

    def arguments(self) -> Arguments:
        """See `NamedModel`."""
        return Arguments.of(self._builder)

    def problems(self, config: Mapping[str, Any]) -> list[Problem]:
        """See `NamedModel`."""
        if "pretrained" in config:
            return [Problem("model.config.pretrained", "torchvision has no such argument: write weights: DEFAULT")]
        if config.get("weights_backbone") is not None:
            return [Problem("model.config.weights_backbone", "is not loaded: write weights for the whole model, or remove it")]
        if (weights := config.get("weights")) is not None:
            known = list(self._models.get_model_weights(self._name).__members__)
            if not isinstance(weights, str) or weights.rpartition(".")[2] not in known:
                message = f"there are no weights {weights!r}{nearest(str(weights), known) or '.'} Allowed: {', '.join(known)}"
                return [Problem("model.config.weights", message)]
        return super().problems(config)

    def missing_weights(self, config: Mapping[str, Any], pretrained: Pretrained) -> str:
        """See `NamedModel`."""
        if config.get("weights") is None or pretrained.download or (file := self._file(config)).is_file():
            return ""
        return f"the weights {config['weights']} are not in torchvision's cache on this machine: put {self._url(config)} at {file}, {_DOWNLOAD}"

    def build(self, config: Mapping[str, Any], pretrained: Pretrained | None) -> object:
        """See `NamedModel`."""
        own = {name: value for name, value in config.items() if name not in ("weights", "weights_backbone", "progress")}
        if "weights_backbone" in self.arguments().names:
            own["weights_backbone"] = None  # The default of detection models is a download.
        network = self._builder(weights=None, **own)
        if pretrained is None or config.get("weights") is None:
            return network
        if missing := self.missing_weights(config, pretrained):
            raise ConfigError(f"model.config.weights: {missing}")
        import torch

        torch.hub.load_state_dict_from_url(self._url(config), map_location="cpu", progress=False, weights_only=True)
        classes = {name: value for name, value in own.items() if name != "num_classes"}
        # The library itself loads the file, because it renames tensors of some models. The call above has refused a file that contains code.
        theirs = self._builder(weights=self._weights(config), progress=False, **classes).state_dict()
        ours = network.state_dict()
        fitting = {name: value for name, value in theirs.items() if name in ours and ours[name].shape == value.shape}
        network.load_state_dict(fitting, strict=False)
        return network

    def _weights(self, config: Mapping[str, Any]) -> Any:
        return self._models.get_model_weights(self._name)[config["weights"].rpartition(".")[2]]

    def _url(self, config: Mapping[str, Any]) -> str:
        return str(self._weights(config).url)

    def _file(self, config: Mapping[str, Any]) -> Path:
        import torch

        return Path(torch.hub.get_dir()) / "checkpoints" / self._url(config).rpartition("/")[2]


class TimmModel(NamedModel):
    """A model of timm. The arguments are those of `timm.create_model`, such as `num_classes` and `pretrained`."""

    def __init__(self, id_: str, name: str) -> None:
        super().__init__(id_)
        self._timm: Any = import_library("timm")
        if not self._timm.is_model(name):
            # `nearest` compares a limited number of names.
            known = [each for each in self._timm.list_models() if each[:3] == name[:3]] or self._timm.list_models()
            raise ConfigError(f"model.id: timm has no model '{name}'{nearest(name, known) or ''}")
        self._name = name

    def arguments(self) -> Arguments:
        """See `NamedModel`."""
        created = Arguments.of(self._timm.create_model)
        of_class = Arguments.of(self._timm.model_entrypoint(self._name.partition(".")[0]))
        names = dict.fromkeys(name for name in (*created.names, *of_class.names) if name != "model_name")
        return Arguments(tuple(names))

    def problems(self, config: Mapping[str, Any]) -> list[Problem]:
        """See `NamedModel`."""
        if "checkpoint_path" in config:
            message = (
                "is refused, because timm may run code of such a file: write pretrained: true and "
                "pretrained_cfg_overlay: {file: FILE.safetensors}"
            )
            return [Problem("model.config.checkpoint_path", message)]
        if "pretrained_cfg" in config:
            message = "is refused, because it may name any file or URL: write pretrained_cfg_overlay: {file: FILE.safetensors}"
            return [Problem("model.config.pretrained_cfg", message)]
        for key in _OTHER_SOURCES:
            if key in section_at(config, "pretrained_cfg_overlay"):
                message = "is refused: pretrained weights come from timm's cache, or from a local file (file: FILE.safetensors)"
                return [Problem(f"model.config.pretrained_cfg_overlay.{key}", message)]
        file = self._local(config)
        if file and Path(file).suffix not in (".safetensors", ".npz"):
            message = f"'{file}' is not a safetensors file; only such files are read, because others may contain code"
            return [Problem("model.config.pretrained_cfg_overlay.file", message)]
        return super().problems(config)

    def missing_weights(self, config: Mapping[str, Any], pretrained: Pretrained) -> str:
        """See `NamedModel`."""
        if not config.get("pretrained"):
            return ""
        if file := self._local(config):
            return "" if Path(file).is_file() else f"there is no file {file} on this machine"
        found: Any = self._timm.get_pretrained_cfg(self._name)
        if found is None or not found.has_weights:
            return f"timm has no pretrained weights of '{self._name}': remove pretrained"
        if pretrained.download or _is_cached(found):
            return ""
        where = found.hf_hub_id or found.url
        return f"the weights of '{self._name}' ({where}) are not in timm's cache on this machine: put them there, {_DOWNLOAD}"

    def build(self, config: Mapping[str, Any], pretrained: Pretrained | None) -> object:
        """See `NamedModel`."""
        if pretrained is not None and (missing := self.missing_weights(config, pretrained)):
            raise ConfigError(f"model.config.pretrained: {missing}")
        wanted = bool(config.get("pretrained")) and pretrained is not None
        with _environment({_TENSORS_ONLY: "1"}):
            return self._timm.create_model(self._name, **{**config, "pretrained": wanted})

    @staticmethod
    def _local(config: Mapping[str, Any]) -> str:
        overlay = config.get("pretrained_cfg_overlay")
        return str(overlay.get("file") or "") if isinstance(overlay, Mapping) else ""


class TransformersModel(NamedModel):
    """A network of transformers for the classification of sequences, by the name of a folder or of a model in the library's cache.

    The arguments are fields of the network's configuration, such as `num_labels`, and for the weights `pretrained` (default true) and
    `ignore_mismatched_sizes`. Args: definition: the content of `config.json`; empty: the content in the cache.
    """

    _OWN: Final = ("pretrained", "ignore_mismatched_sizes")

    def __init__(self, id_: str, name: str, definition: str) -> None:
        super().__init__(id_)
        self._transformers: Any = import_library("transformers")
        self._name, self._definition = name, definition

    def arguments(self) -> Arguments:
        """See `NamedModel`."""
        configuration, _ = self._configuration({})
        fields = [name for name in configuration.to_dict() if not name.startswith("_")]
        return Arguments(tuple(sorted({*fields, "num_labels", *self._OWN})), is_open=False)

    def problems(self, config: Mapping[str, Any]) -> list[Problem]:
        """See `NamedModel`."""
        if "trust_remote_code" in config:
            return [Problem("model.config.trust_remote_code", "is refused: no code of a checkpoint is run; remove the key")]
        _, unknown = self._configuration(self._fields(config))
        return [self.arguments().unknown(name, f"'{self.id}'") for name in unknown]

    def missing_weights(self, config: Mapping[str, Any], pretrained: Pretrained) -> str:
        """See `NamedModel`."""
        if not config.get("pretrained", True):
            return ""
        random = "for random weights, write model.config.pretrained: false"
        if pretrained.folder:
            found = any(next(Path(pretrained.folder).glob(pattern), None) is not None for pattern in _WEIGHTS)
            return "" if found else f"{pretrained.folder} has no weights on this machine; {random}"
        if pretrained.download or _in_hub_cache(
            self._name, ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
        ):
            return ""
        return (
            f"the weights of '{self._name}' are not in transformers' cache on this machine: put them there, {_DOWNLOAD}; {random}"
        )

    def build(self, config: Mapping[str, Any], pretrained: Pretrained | None) -> object:
        """See `NamedModel`."""
        import torch

        kind = self._transformers.AutoModelForSequenceClassification
        configuration, _ = self._configuration(self._fields(config))
        options = {"trust_remote_code": False, "dtype": torch.float32}
        try:
            if pretrained is None or not config.get("pretrained", True):
                return kind.from_config(configuration, **options)
            if missing := self.missing_weights(config, pretrained):
                raise ConfigError(f"model.config.pretrained: {missing}")
            return kind.from_pretrained(
                pretrained.folder or self._name,
                config=configuration,
                local_files_only=not pretrained.download,
                ignore_mismatched_sizes=bool(config.get("ignore_mismatched_sizes")),
                weights_only=True,
                **options,
            )
        except (ImportError, OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"model.id: transformers cannot build '{self._name}': {error}") from error

    def _fields(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in config.items() if name not in self._OWN}

    def _configuration(self, fields: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the network's configuration, and the fields that it does not have. Raises ConfigError."""
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        try:
            raw = json.loads(self._definition or transformers_definition(self._name, download=False))
            kind = CONFIG_MAPPING[raw["model_type"]]
            found: tuple[Any, dict[str, Any]] = kind.from_dict(raw, return_unused_kwargs=True, **fields)
        except KeyError as error:
            raise ConfigError(
                f"model.id: transformers has no network for the config.json of '{self._name}', and code of a checkpoint is not run"
            ) from error
        except ConfigError:
            raise
        except Exception as error:  # the checks of a configuration raise errors of many classes
            raise ConfigError(f"model.config: '{self.id}' refuses it: {error}") from error
        return found


def transformers_definition(name: str, *, download: bool) -> str:
    """Return the content of `config.json` of a model in the cache of transformers. Raises ConfigError: it is not there, or not readable."""
    transformers = import_library("transformers")
    try:
        with hub(download):
            found, _ = transformers.PreTrainedConfig.get_config_dict(name, local_files_only=not download)
    except (OSError, ValueError) as error:
        advice = "" if download else f": name a folder that has config.json, {_DOWNLOAD}"
        raise ConfigError(f"model.id: '{name}' is not in transformers' cache on this machine{advice}") from error
    return json.dumps({key: value for key, value in found.items() if not key.startswith("_")}, indent=2, sort_keys=True)


def import_library(package: str) -> Any:
    """Import a package without its warnings. If torchvision is installed, timm, transformers and torchmetrics import it, which needs
    `import_torchvision`.
    """
    if find_spec("torchvision") is not None:
        import_torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(package)


def _is_cached(weights: Any) -> bool:
    """Return whether pretrained weights of timm are on this machine. Args: weights: timm's description."""
    if weights.hf_hub_id:
        return _in_hub_cache(weights.hf_hub_id, (weights.hf_hub_filename,) if weights.hf_hub_filename else _TIMM_WEIGHTS)
    import torch

    return bool(weights.url) and (Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]).is_file()


def _in_hub_cache(repository: str, files: tuple[str, ...]) -> bool:
    from huggingface_hub import try_to_load_from_cache

    name, _, revision = repository.partition("@")
    return any(isinstance(try_to_load_from_cache(name, file, revision=revision or None), str) for file in files)
