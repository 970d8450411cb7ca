"""The drift trigger with the options of the paper. The user does not need to choose a threshold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from modyn.config.trigger_parts import CRITERION
from modyn.supervisor.triggers.base import SeriesName
from modyn.supervisor.triggers.drift import DataDriftConfig, DataDriftTrigger
from modyn.supervisor.triggers.measures.windows import AmountWindowingStrategy, WindowingStrategy

_AMOUNT = 500
"""Number of samples of a window: about the number of samples in one year of YEARBOOK."""
_QUANTILE = {"id": "DynamicQuantileThresholdCriterion", "window_size": 15, "quantile": 0.05}


class AutoDriftConfig(DataDriftConfig):
    """Options of DataDriftTrigger, each with a default."""

    evaluation_interval_data_points: int | None = Field(250, ge=1, description="number of samples between two checks")
    windowing_strategy: WindowingStrategy = Field(
        default_factory=lambda: AmountWindowingStrategy(amount_ref=_AMOUNT, amount_cur=_AMOUNT),
        description=f"the reference and current samples; amounts that are left out are {_AMOUNT}",
    )
    warmup_intervals: int | None = Field(
        20,
        ge=1,
        description="number of first checks of the run, which fire nothing: those up to the first trigger of `warmup_policy` (6 by default) "
        "have no reference and measure nothing; the others (14) calibrate",
    )
    warmup_policy: dict[str, Any] | None = Field(
        default_factory=lambda: {"id": "DataAmountTrigger", "num_samples": 1500},
        description="the trigger that fires instead of them",
    )
    metrics: dict[SeriesName, dict[str, Any]] = Field(
        default_factory=lambda: {"mmd": {"id": "MMDDriftMetric", CRITERION: dict(_QUANTILE)}},
        min_length=1,
        description="drift metrics of the windows, by names of letters, digits, _ and -. If `on` is labels: ChiSquaredDriftMetric",
    )
    metrics_of_labels: ClassVar[Mapping[str, Any]] = {"chi_squared": {"id": "ChiSquaredDriftMetric", CRITERION: _QUANTILE}}

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_preset(cls, data: Any) -> Any:
        """Drop the default interval if `evaluation_interval` is given. Windows by amount get the preset's amount for each amount that is missing."""
        if not isinstance(data, Mapping):
            return data
        interval = {"evaluation_interval_data_points": None} if "evaluation_interval" in data else {}
        windows = data.get("windowing_strategy")
        if isinstance(windows, Mapping) and windows.get("id") == "AmountWindowingStrategy":
            return {**interval, **data, "windowing_strategy": {"amount_ref": _AMOUNT, "amount_cur": _AMOUNT, **windows}}
        return {**interval, **data}


class AutoDriftTrigger(DataDriftTrigger):
    """Fires when the drift of the newest data is in the top 5 % of the last 15 checks (Modyn, SIGMOD'25, section 7.2: AutoDrift).

    The policy is a DataDriftTrigger with the options of the paper's experiment on YEARBOOK: the maximum mean discrepancy of embeddings, checked
    every 250 samples. In the paper, windows last one year, and warm-up triggers fire every three years. The preset has amounts instead, 500 and
    1,500 samples (a year of YEARBOOK has about 480), which fit any stream. The paper's 14 calibrating checks follow the first
    trigger at 1,500 samples, so the warm-up takes 5,000 samples (20 checks).

    >>> import numpy as np
    >>> from modyn.records import SampleBatch
    >>> from modyn.testing.decisions import decide
    >>> from modyn.testing.fake_evidence import FakeEvidence  # its distance is the distance of the mean labels
    >>> keys = np.arange(8000)
    >>> stream = SampleBatch(keys, keys, (keys >= 6400).astype(np.int64))
    >>> checks = decide(AutoDriftTrigger(AutoDriftConfig()), [stream], source=FakeEvidence(stream))
    >>> [check.position for check in checks if check.fires]
    [1500, 3000, 4500, 6500, 6750]
    """

    Config: ClassVar[type[DataDriftConfig]] = AutoDriftConfig
