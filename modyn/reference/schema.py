"""JSON Schema of a pipeline file, composed from the configuration classes of all packages. `modyn schema` prints it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel

from modyn.config.cache import CacheConfig
from modyn.config.downsampling_turns import ScoreThresholds
from modyn.config.evaluation import EvaluationHandler
from modyn.config.online import OnlineConfig
from modyn.config.pipeline import NOT_YET, EvaluationFrame, Identity, ModelReference, PipelineFrame
from modyn.config.serving import ServedRun
from modyn.config.trigger_parts import CRITERION
from modyn.dataset.config import DataConfig
from modyn.evaluator.config import EvaluationDatasetConfig
from modyn.evaluator.drift import DRIFT_METRICS
from modyn.evaluator.drift.projections import PROJECTIONS
from modyn.evaluator.metrics.metrics import METRICS, torchmetrics_names
from modyn.evaluator.metrics.torch_metric import TorchMetric, TorchMetricConfig
from modyn.model_storage.formats import MODEL_FORMATS
from modyn.model_storage.section import ModelStorageSection
from modyn.models import MODELS
from modyn.models.names import SOURCES
from modyn.preprocessing import COMPONENTS
from modyn.preprocessing.section import PreprocessingSection
from modyn.registry import Registry
from modyn.selector.history import HISTORY
from modyn.selector.presampling import PRESAMPLING
from modyn.selector.selection import SELECTION
from modyn.supervisor.criteria import CRITERIA, PERFORMANCE_CRITERIA
from modyn.supervisor.detectors import DETECTORS
from modyn.supervisor.evaluation import EVALUATION_STRATEGIES
from modyn.supervisor.triggers import TRIGGERS
from modyn.supervisor.triggers.interval import WARM_UP_POLICIES
from modyn.trainer_server.downsampling.policies import DOWNSAMPLING
from modyn.trainer_server.request.config import TrainingConfig

JsonSchema = dict[str, Any]

_BOUNDS = {Ge: ("ge", "minimum"), Gt: ("gt", "exclusiveMinimum"), Le: ("le", "maximum"), Lt: ("lt", "exclusiveMaximum")}


def pipeline_json_schema(plugins: bool = True) -> JsonSchema:
    """Return the JSON Schema (2020-12) of a pipeline file, with the policies of installed packages if `plugins` is set."""
    sections = {
        "pipeline": of_model(Identity),
        "model": _model(plugins),
        "model_storage": _model_storage(plugins),
        "training": of_model(TrainingConfig),
        "data": of_model(DataConfig),
        "preprocessing": {"anyOf": [_preprocessing(plugins), {"type": "null"}]},
        "cache": of_model(CacheConfig),
        "trigger": _trigger(plugins),
        "selection_strategy": _selection_strategy(plugins),
        "online": {"anyOf": [_online(plugins), {"type": "null"}]},
        "serving": {"anyOf": [of_model(ServedRun), {"type": "null"}]},
        "evaluation": {"anyOf": [_evaluation(plugins), {"type": "null"}]},
    }
    fields = {name: field for name, field in PipelineFrame.model_fields.items() if name != SOURCES}  # users do not write sources
    assert sections.keys() == fields.keys()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Modyn pipeline",
        "description": f"When to train, on which samples, and how. Sections still to come: {', '.join(NOT_YET)}.",
        "type": "object",
        "properties": {name: {**section, "description": fields[name].description} for name, section in sections.items()},
        "required": [name for name, field in fields.items() if field.is_required()],
        "additionalProperties": False,
    }


def _model(plugins: bool) -> JsonSchema:
    frozen = of_model(ModelReference)["properties"]["freeze"]

    def constructor(options: JsonSchema) -> JsonSchema:
        config = {**options, "description": "arguments of the model's constructor"}
        needed = {"required": ["config"]} if options.get("required") else {}
        return {"properties": {"config": config, "freeze": frozen}, **needed}

    models = one_of(policies(MODELS, plugins), "id", constructor)
    by_name = _variant("by name", "id", ModelReference, of_model(ModelReference))
    by_name["properties"]["id"] = {"type": "string", "pattern": ":", "description": ModelReference.model_fields["id"].description}
    return {**models, "oneOf": [*models["oneOf"], by_name]}


def _model_storage(plugins: bool) -> JsonSchema:
    schema = of_model(ModelStorageSection)
    schema["properties"]["full_model_strategy"]["properties"]["name"]["enum"] = list(policies(MODEL_FORMATS, plugins))
    return schema


def _selection_strategy(plugins: bool) -> JsonSchema:
    def nested(options: JsonSchema) -> JsonSchema:
        if "presampling_config" in options["properties"]:
            _replace(options, "presampling_config", one_of(policies(PRESAMPLING, plugins), "strategy"))
            downsampling = one_of(policies(DOWNSAMPLING, plugins), "strategy")
            _replace(options, "downsampling_config", downsampling)
            _replace(options, "downsampling_list", {"type": "array", "items": downsampling})
            numbers = {"type": "array", "items": {"type": "integer", "minimum": 0}}
            turns = {"anyOf": [numbers, of_model(ScoreThresholds), {"type": "null"}]}
            _replace(options, "downsampling_thresholds", turns)
        return options

    return one_of(policies(SELECTION, plugins), "name", nested)


def _preprocessing(plugins: bool) -> JsonSchema:
    schema = of_model(PreprocessingSection)
    schema["properties"]["components"]["items"] = one_of(policies(COMPONENTS, plugins), "id")
    return schema


def _online(plugins: bool) -> JsonSchema:
    schema = of_model(OnlineConfig)
    _replace(schema, "trigger", _trigger(plugins))
    _replace(schema, "history", one_of(policies(HISTORY, plugins), "strategy"))
    return schema


def _trigger(plugins: bool) -> JsonSchema:
    criteria = one_of(policies(CRITERIA, plugins), "id")
    criteria["description"] = "criterion for unusual distances"
    metrics = one_of(policies(DRIFT_METRICS, plugins), "id", partial(_with_criterion, criteria=criteria))
    performance_criteria = one_of(policies(PERFORMANCE_CRITERIA, plugins), "id")
    warm_up = one_of(WARM_UP_POLICIES, "id")
    projections = one_of(policies(PROJECTIONS, plugins), "id")
    # The options are described once, with the options of `metrics`.
    named = {
        "enum": list(policies(DRIFT_METRICS, plugins)),
        "description": "a drift metric, with options as in `metrics` of DataDriftTrigger",
    }
    named_metric = {"type": "object", "required": ["id"], "properties": {"id": named}}

    def nested(options: JsonSchema) -> JsonSchema:
        if "warmup_policy" in options["properties"]:
            _replace(options, "warmup_policy", warm_up)
        for compared in [options, *_mappings(options["properties"].get("distance", {}))]:
            if "projection" in compared["properties"]:
                _replace(compared, "projection", projections)
        if "metrics" in options["properties"]:
            _replace_values(options["properties"]["metrics"], metrics)
        if "subtriggers" in options["properties"]:
            _replace_values(options["properties"]["subtriggers"], {"$ref": "#/properties/trigger"})
        if "decision_criteria" in options["properties"]:
            _replace_values(options["properties"]["decision_criteria"], performance_criteria)
        for evaluation in _mappings(options["properties"].get("evaluation", {})):
            if "dataset" in evaluation["properties"]:
                _replace(evaluation, "dataset", _evaluation_dataset(plugins))
        if {"detector", "distance"} <= options["properties"].keys():
            _replace(options, "detector", one_of(policies(DETECTORS, plugins), "id"))
            for distance in _mappings(options["properties"]["distance"]):
                _replace(distance, "metric", named_metric)
        return options

    return one_of(policies(TRIGGERS, plugins), "id", nested)


def _mappings(schema: JsonSchema) -> list[JsonSchema]:
    """Return the schema of a nullable section without null."""
    return [branch for branch in schema.get("anyOf", [schema]) if "properties" in branch]


def _with_criterion(options: JsonSchema, criteria: JsonSchema) -> JsonSchema:
    options.setdefault("properties", {})[CRITERION] = criteria
    options["required"] = [*options.get("required", []), CRITERION]
    return options


def _evaluation(plugins: bool) -> JsonSchema:
    handler, schema = of_model(EvaluationHandler), of_model(EvaluationFrame)
    _replace(handler, "strategy", one_of(policies(EVALUATION_STRATEGIES, plugins), "type"))
    schema["properties"]["datasets"]["items"] = _evaluation_dataset(plugins)
    schema["properties"]["handlers"]["items"] = handler
    return schema


def _evaluation_dataset(plugins: bool) -> JsonSchema:
    dataset = of_model(EvaluationDatasetConfig)
    torch_metric = _variant("torchmetrics", "name", TorchMetric, of_model(TorchMetricConfig))
    others = sorted(torchmetrics_names() - set(METRICS))
    torch_metric["properties"]["name"] = {"enum": others, "description": "a class of torchmetrics"}
    metrics = one_of(policies(METRICS, plugins), "name")
    dataset["properties"]["metrics"]["items"] = {**metrics, "oneOf": [*metrics["oneOf"], torch_metric]}
    return dataset


def _replace(schema: JsonSchema, name: str, choice: JsonSchema) -> None:
    """Replace the schema of the property `name` with `choice`, the schema of policies. The property's description and default stay."""
    old = schema["properties"][name]
    said = {keyword: old[keyword] for keyword in ("description", "default", "examples") if keyword in old}
    is_optional = {"type": "null"} in old.get("anyOf", [])
    schema["properties"][name] = {**({"anyOf": [choice, {"type": "null"}]} if is_optional else choice), **said}


def _replace_values(mapping: JsonSchema, choice: JsonSchema) -> None:
    """Replace the values of a mapping, which are plain mappings, by the options of policies. The pattern of the mapping's keys stays."""
    mapping["additionalProperties"] = choice
    for pattern in mapping.pop("patternProperties", {}):
        mapping["propertyNames"] = {"pattern": pattern}


def of_model(model: type[BaseModel]) -> JsonSchema:
    """Return the schema of a configuration class, with resolved references and without generated titles."""
    schema = model.model_json_schema(mode="validation")
    definitions = schema.pop("$defs", {})
    plain = _plain(schema, definitions)
    assert isinstance(plain, dict)
    if "description" not in schema or model.__doc__ is None:
        plain.pop("description", None)
    for name, field in model.model_fields.items():
        if (field.alias or name) not in plain["properties"]:  # The field is not for users (SkipJsonSchema).
            continue
        shown = plain["properties"][field.alias or name]
        default = field.get_default(call_default_factory=True, validated_data={})
        if field.default_factory is not None and isinstance(default, dict | list | tuple):
            shown["default"] = list(default) if isinstance(default, tuple) else default
        branches = shown.get("anyOf", [])
        for limit in field.metadata:
            # A field may have two forms of input (`86400` or `1d`). Pydantic does not apply the field's bounds to the form of a number.
            for kind, (attribute, keyword) in _BOUNDS.items():
                for branch in branches:
                    if isinstance(limit, kind) and branch.get("type") == "integer":
                        branch[keyword] = getattr(limit, attribute)
    return plain


def one_of(
    policies: Mapping[str, Any], key: str, change: Callable[[JsonSchema], JsonSchema] = lambda options: options
) -> JsonSchema:
    """Return the schema of a mapping that names one of `policies` under `key`, and contains the options of this policy.

    Args: change: function that is applied to the schema of each policy's options.
    """
    variants = [_variant(id_, key, policy, _options(policy, change)) for id_, policy in policies.items()]
    return {"type": "object", "required": [key], "oneOf": variants}


def _options(policy: Any, change: Callable[[JsonSchema], JsonSchema]) -> JsonSchema:
    """Return the schema of a policy's options. Any options are allowed if a package's `Config` has no JSON Schema, e.g. due to a type of its own."""
    try:
        return change(of_model(policy.Config))
    except Exception:
        if policy.__module__.partition(".")[0] == "modyn":
            raise
        return {"additionalProperties": True}


def policies(registry: Registry[Any], plugins: bool) -> dict[str, Any]:
    """Return the policies of a registry by id, without broken policies. Args: plugins: include policies of installed packages."""
    return {id_: registry.get(id_) for id_ in (registry if plugins else sorted(registry.builtin)) if not registry.problem(id_)}


def _variant(id_: str, key: str, policy: object, options: JsonSchema) -> JsonSchema:
    others = {name: value for name, value in options.get("properties", {}).items() if name != key}
    return {
        "title": id_,
        # Examples are removed, because they are for authors of policies.
        "description": (inspect.getdoc(policy) or "").partition(">>>")[0].strip(),
        "type": "object",
        "properties": {key: {"const": id_, "description": "chooses this one"}, **others},
        "required": list(dict.fromkeys([key, *options.get("required", [])])),
        "additionalProperties": options.get("additionalProperties", False),
    }


def _plain(schema: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_plain(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = definitions[schema["$ref"].rsplit("/", 1)[1]]
        return _plain({**target, **{name: value for name, value in schema.items() if name != "$ref"}}, definitions)
    if isinstance(chooser := schema.get("discriminator"), dict):
        return _choice(schema, chooser, definitions)
    if "properties" in schema and isinstance(schema["properties"], dict):
        inner = {name: _plain(value, definitions) for name, value in schema["properties"].items()}
        schema = {name: value for name, value in schema.items() if name not in ("properties", "title")}
        return {**{name: _plain(value, definitions) for name, value in schema.items()}, "properties": inner}
    keep = {"default", "examples", "const", "enum"}
    return {n: v if n in keep else _plain(v, definitions) for n, v in schema.items() if n != "title" or not isinstance(v, str)}


def _choice(schema: JsonSchema, chooser: JsonSchema, definitions: Mapping[str, Any]) -> JsonSchema:
    """Return the schema of a field that takes one of several classes, like `one_of`."""
    key = chooser["propertyName"]
    variants = []
    for id_, reference in chooser["mapping"].items():
        options = _plain({"$ref": reference}, definitions)
        variants.append(_variant(id_, key, None, options) | {"description": options.get("description", "")})
    said: JsonSchema = {keyword: schema[keyword] for keyword in ("description", "default", "examples") if keyword in schema}
    return {"type": "object", "required": [key], "oneOf": variants, **said}
