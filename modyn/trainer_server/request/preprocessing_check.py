"""Checks of the section `preprocessing`, and of options that exclude it in a training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem, Severity, load_section
from modyn.config.online import ONLINE
from modyn.config.preprocessing import PREPROCESSING
from modyn.models import MODELS, check_model, config_class
from modyn.preprocessing import Preprocessing
from modyn.preprocessing.section import check_section_of, preprocessing_of
from modyn.trainer_server.downsampling.policies import check_downsampling, downsampling_policies
from modyn.trainer_server.downsampling.policies.policy import DownsamplingPolicy

_STATISTICS_FIRST: Final = "before_training"


def check_preprocessing(pipeline: Mapping[str, Any]) -> list[Problem]:
    """List the errors in the section `preprocessing` of a pipeline, and the pipeline's options that exclude the section."""
    online = pipeline.get(ONLINE)
    if pipeline.get(PREPROCESSING) is None:
        if isinstance(online, Mapping) and online.get("statistics") is False:
            message = "there are no statistics without a section `preprocessing`: remove it, or add the section"
            return [Problem(f"{ONLINE}.statistics", message, Severity.WARNING)]
        return []
    found = check_section_of(pipeline)
    preprocessing = None if found else preprocessing_of(pipeline)
    found = found or _unfit_model(pipeline.get("model"), preprocessing)
    selection = pipeline.get("selection_strategy")
    if not isinstance(selection, Mapping) or check_downsampling(selection):
        return found
    policies = downsampling_policies(selection)
    refused = {path: why_not_chosen(policy, pipeline[PREPROCESSING], preprocessing) for path, policy in policies.items()}
    return found + [Problem(path, why) for path, why in refused.items() if why]


def why_not_chosen(policy: DownsamplingPolicy, section: object, preprocessing: Preprocessing | None) -> str:
    """Return why a policy cannot choose among samples with features of the section `preprocessing`; empty: it can.

    Args: section: the section, which may be wrong. preprocessing: of the section; None if it is wrong."""
    # A policy that keeps all samples makes no choice, and a policy without a pass needs no features.
    if policy.config.ratio >= policy.config.ratio_max or not policy.needs_pass:
        return ""
    if not isinstance(section, Mapping) or section.get("statistics") != _STATISTICS_FIRST:
        return (
            f"{policy.strategy} chooses samples by what a model says of them, before they have updated the statistics of `preprocessing`: set "
            f"preprocessing.statistics: {_STATISTICS_FIRST}, or choose by `presampling_config` or `limit`, which need no features"
        )
    if policy.needs_irreducible_losses:
        return f"{policy.strategy} trains models of its own, which get no features of `preprocessing`: choose another strategy"
    if preprocessing is not None and preprocessing.num_sparse and getattr(policy.config, "parameters", None) == "All":
        return f"{policy.strategy} cannot take the gradient by all parameters of a sample with sparse features: set parameters: LastLayer"
    return ""


def _unfit_model(model: object, preprocessing: Preprocessing | None) -> list[Problem]:
    """Compare the model's inputs with the features that the section makes. Args: model: the section `model`, which may be wrong."""
    if preprocessing is None or not isinstance(model, Mapping) or not isinstance(id_ := model.get("id"), str):
        return []
    config = model.get("config") or {}
    if id_ not in MODELS or check_model(id_, config):
        return []
    dense, sparse = preprocessing.num_dense, preprocessing.num_sparse
    options = load_section(config_class(id_), config)
    makes = f"the section `preprocessing` makes {sparse} sparse and {dense} dense features"
    if (feature_options := getattr(options, "feature_options", None)) is not None:
        made = feature_options(dense, [found.width for found in preprocessing.ranges if found.sparse])
        wrong = {name: value for name, value in made.items() if getattr(options, name) != value}
        if not wrong:
            return []
        if refused := check_model(id_, {**config, **made}):
            why = f"{makes}, which {id_} does not take ({refused[0].path}: {refused[0].message}); use TabularMLP"
            return [Problem("model.id", why)]
        shown = " and ".join(f"{name}: {list(value) if isinstance(value, tuple) else value}" for name, value in wrong.items())
        return [Problem("model.config", f"{makes}: write {shown}")]
    shape = getattr(options, "sample_shape", None)
    if shape is None:
        if (inputs := getattr(options, "sample_inputs", None)) is None:
            return []
        given = " and ".join(map(str, inputs))
        return [Problem("model.id", f"'{id_}' takes {given}, and {makes}: use TabularMLP, or remove the section")]
    if sparse:
        message = (
            f"'{id_}' takes one tensor, and the section `preprocessing` makes {sparse} sparse features: use SparseLogisticRegression, TabularMLP or "
            "DLRM, or a model whose forward takes indices, offsets, values and dense"
        )
        return [Problem("model.id", message)]
    if (taken := math.prod(shape)) != dense:
        message = f"'{id_}' takes {taken} values a sample, and the section `preprocessing` makes {dense} features: write input_size: {dense}"
        return [Problem("model.config", message)]
    return []
