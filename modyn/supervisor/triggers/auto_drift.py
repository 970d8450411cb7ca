"""The drift trigger with the paper's setting: no threshold to choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from modyn.supervisor.triggers.base import OwnSeriesName
from modyn.supervisor.triggers.drift import CRITERION, DataDriftConfig, DataDriftTrigger
from modyn.supervisor.triggers.windows import AmountWindowingStrategy, WindowingStrategy

_AMOUNT = 500
_QUANTILE = {"id": "DynamicQuantileThresholdCriterion", "window_size": 15, "quantile": 0.05}


class AutoDriftConfig(DataDriftConfig):
    """Options of DataDriftTrigger, each with a default."""

    evaluation_interval_data_points: int | None = Field(250, ge=1, description="samples between two checks")
    windowing_strategy: WindowingStrategy = Field(
        default_factory=lambda: AmountWindowingStrategy(amount_ref=_AMOUNT, amount_cur=_AMOUNT),
        description=f"which samples are the reference, and which the current ones; amounts that it leaves out are {_AMOUNT}",
    )
    warmup_intervals: int | None = Field(
        20,
        ge=1,
        description="checks at the start of the run that fire nothing: those up to the first trigger of `warmup_policy`, 6 by default, have no "
        "reference and measure nothing, the others, 14, calibrate",
    )
    warmup_policy: dict[str, Any] | None = Field(
        default_factory=lambda: {"id": "DataAmountTrigger", "num_samples": 1500},
        description="the trigger that fires in their place",
    )
    metrics: dict[OwnSeriesName, dict[str, Any]] = Field(
        default_factory=lambda: {"mmd": {"id": "MMDDriftMetric", CRITERION: dict(_QUANTILE)}},
        min_length=1,
        description="how far apart the windows are; names have letters, digits, _ and - alone. Where `on` is labels: ChiSquaredDriftMetric",
    )
    metrics_of_labels: ClassVar[Mapping[str, Any]] = {"chi_squared": {"id": "ChiSquaredDriftMetric", CRITERION: _QUANTILE}}

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_preset(cls, data: Any) -> Any:
        """An interval of time takes the place of the default one; windows by amount that leave an amount out have the preset's."""
        if not isinstance(data, Mapping):
            return data
        interval = {"evaluation_interval_data_points": None} if "evaluation_interval" in data else {}
        windows = data.get("windowing_strategy")
        if isinstance(windows, Mapping) and windows.get("id") == "AmountWindowingStrategy":
            return {**interval, **data, "windowing_strategy": {"amount_ref": _AMOUNT, "amount_cur": _AMOUNT, **windows}}
        return {**interval, **data}


class AutoDriftTrigger(DataDriftTrigger):
    """Fires when the drift of the newest data is in the top 5 % of the last 15 checks (Modyn, SIGMOD'25, section 7.2: AutoDrift).

    A DataDriftTrigger with the setting of the paper's experiment on YEARBOOK: the maximum mean discrepancy of embeddings, checked every 250
    samples. Windows of one year and warm-up triggers every three years are amounts here, 500 and 1,500 samples (a year there has about 480),
    so that the preset fits any stream. The paper's 14 checks that calibrate are those after the first trigger, at 1,500 samples, since before it
    there is nothing to compare with: the warm-up takes 5,000 samples, 20 checks. Each option can be given.
    """

    Config: ClassVar[type[DataDriftConfig]] = AutoDriftConfig
