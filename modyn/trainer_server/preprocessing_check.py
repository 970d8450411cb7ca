"""Checks of the section `preprocessing`, and of what it does not go together with in a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem, Severity
from modyn.config.online import ONLINE
from modyn.config.preprocessing import PREPROCESSING
from modyn.preprocessing.section import check_section_of
from modyn.trainer_server.downsampling import check_downsampling, downsampling_policies

NOT_CHOSEN: Final = (
    "chooses samples by what a model says of them, before they have updated the statistics of `preprocessing`: remove it, or choose by "
    "`presampling_config` or `limit`, which need no features"
)
"""Why downsampling does not go together with the section."""


def check_preprocessing(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Every mistake of the section `preprocessing` of a pipeline, and what else the pipeline asks for that it does not go together with."""
    online = pipeline.get(ONLINE)
    if pipeline.get(PREPROCESSING) is None:
        if isinstance(online, Mapping) and online.get("statistics") is False:
            message = "there are no statistics without a section `preprocessing`: remove it, or add the section"
            return [Problem(f"{ONLINE}.statistics", message, Severity.WARNING)]
        return []
    selection = pipeline.get("selection_strategy")
    if not isinstance(selection, Mapping) or check_downsampling(selection):
        return check_section_of(pipeline)
    chosen = [
        Problem(path, f"{policy.strategy} {NOT_CHOSEN}")
        for path, policy in downsampling_policies(selection).items()
        if policy.config.ratio < policy.config.ratio_max
    ]
    return check_section_of(pipeline) + chosen
