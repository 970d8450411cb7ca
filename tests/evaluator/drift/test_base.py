"""Invalid input that every drift metric is protected from, and the required return values."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from modyn.config.base import Section, load_section
from modyn.errors import DataError, UserCodeError
from modyn.evaluator.drift import DRIFT_METRICS, Drift, DriftMetric, compare, missing_modules


class Returning(DriftMetric):
    """A metric of a user, which returns what it is given."""

    Config: ClassVar[type[Section]] = Section

    def __init__(self, drift: object) -> None:
        super().__init__(None)
        self.drift = drift

    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        assert reference.dtype == current.dtype == torch.float32
        assert reference.dim() == current.dim() == 2
        return self.drift  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("reference", "current", "says"),
    [
        (torch.ones(1, 2), torch.ones(5, 2), "at least 2 reference samples, and there are 1"),
        (torch.ones(5, 2), torch.ones(0), "at least 2 current samples, and there are 0"),
        (torch.ones(5, 2), torch.tensor([[1, torch.nan], [0, 0], [torch.inf, 1]]), "2 of 3 current samples"),
        (torch.ones(5, 2), torch.ones(5, 3), "2 reference and 3 current values"),
    ],
)
def test_sets_that_cannot_be_compared_are_refused(reference: torch.Tensor, current: torch.Tensor, says: str) -> None:
    with pytest.raises(DataError, match=says):
        compare(Returning(Drift(0.0)), reference, current)


WRONG: list[Any] = [float("nan"), float("inf"), "far", None, True, torch.tensor(0.5)]


@pytest.mark.parametrize("drift", [0.5, None, *map(Drift, WRONG), Drift(0.1, 1.5), Drift(0.1, "low")])  # type: ignore[arg-type]
def test_a_result_that_is_not_a_distance_is_an_error_of_the_metric(drift: object) -> None:
    with pytest.raises(UserCodeError, match="Returning returned"):
        compare(Returning(drift), torch.ones(3, 1), torch.ones(3, 1))


def test_numbers_of_numpy_become_plain_ones() -> None:
    found = compare(Returning(Drift(np.float32(0.5), np.float64(0.25))), torch.ones(3, 1), torch.ones(3, 1))  # type: ignore[arg-type]
    assert found == Drift(0.5, 0.25)
    assert {type(found.distance), type(found.p_value)} == {float}


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.float64, torch.uint8, torch.bool])
def test_numbers_of_any_type_and_shape_are_taken(dtype: torch.dtype) -> None:
    samples = torch.ones(3, 2, 2, dtype=dtype)
    assert compare(Returning(Drift(1.0)), samples, samples).distance == 1.0


def test_what_is_not_installed_is_named_with_the_extra_that_brings_it() -> None:
    class Lacking(Returning):
        needs = ("json", "no_such_module")
        extra = "alibi"

    class Own(Lacking):
        extra = ""

    said = "Lacking needs no_such_module, which is not installed where it is computed; pip install 'modyn[alibi]'"
    assert missing_modules(Lacking) == said
    assert missing_modules(Lacking(None)) == said
    assert missing_modules(Own).endswith("where it is computed")
    assert missing_modules(Returning) == ""


def test_the_extra_of_a_metric_exists() -> None:
    extras = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in DRIFT_METRICS:
        metric = DRIFT_METRICS.get(name)
        assert not metric.needs or metric.extra in extras, name


GIVEN_BY_OPTIONS = {"num_permutations": 5}
WITH_TEST = {"AlibiDetectCVMDriftMetric", "AlibiDetectKSDriftMetric", "AlibiDetectMmdDriftMetric", "CVMDriftMetric", "ChiSquaredDriftMetric",
             "DomainClassifierDriftMetric", "EnergyDriftMetric", "KSDriftMetric", "MMDDriftMetric"}  # fmt: skip


@pytest.mark.parametrize("id_", list(DRIFT_METRICS))
def test_metrics_say_rightly_whether_they_give_a_p_value(id_: str) -> None:
    metric = DRIFT_METRICS.get(id_)
    asked = GIVEN_BY_OPTIONS if "num_permutations" in metric.Config.model_fields else {}
    for options in ({}, asked):
        config = load_section(metric.Config, options)
        says = metric.gives_p_value(config)
        assert says == (id_ in WITH_TEST and options == asked)
        if not missing_modules(metric):
            rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(3)).mul(0.5 if metric.by_category else 50).round()
            assert (compare(metric(config, 0), rows[:20], rows[20:]).p_value is not None) == says
