"""Each policy against its definition, and all of them in both modes: the same seed chooses the same, also after a stop."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modyn.dataset.batch import Batch
from modyn.errors import CancelledError, ConfigError, DataError
from modyn.models.calls import num_logits
from modyn.trainer_server.check import check
from modyn.trainer_server.downsampling.policies import DOWNSAMPLING, downsampling_policies
from modyn.trainer_server.downsampling.policies.policy import Candidates, DownsamplingPolicy, Draw
from modyn.trainer_server.downsampling.policies.sampling import NO_CLASS
from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.request.config import CriterionConfig
from tests.support.training import MemoryData, RecordedReport, TrainingRoom, small_pipeline, train_in_memory

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

NUM = 12
UNCERTAINTIES = [{"strategy": "Uncertainty", "score_metric": metric} for metric in ("LeastConfidence", "Entropy", "Margin")]
STRATEGIES: list[dict[str, Any]] = [
    {"strategy": "Loss"},
    {"strategy": "GradNorm"},
    *UNCERTAINTIES,
    {"strategy": "Uncertainty", "score_metric": "Margin", "balance": True},
    {"strategy": "EL2N", "balance": True},
    {"strategy": "Forgetting"},
    {"strategy": "GraNd"},
    {"strategy": "GraNd", "parameters": "LastLayer", "balance": True},
    {"strategy": "RHOLoss", "holdout_set_strategy": "Twin"},
    {"strategy": "RS2", "with_replacement": True},
    {"strategy": "RS2"},
    {"strategy": "KcenterGreedy"},
    {"strategy": "Craig", "balance": True},
    {"strategy": "GradMatch"},
    {"strategy": "Submodular", "submodular_function": "FacilityLocation"},
]


def policy_of(**config: Any) -> DownsamplingPolicy:
    (found,) = downsampling_policies({"downsampling_config": {"ratio": 50, **config}}).values()
    return found


def linear(outputs: int) -> tuple[nn.Linear, Tensor]:
    layer = nn.Linear(4, outputs)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(1)))
    return layer, torch.randn(NUM, 4, generator=torch.Generator().manual_seed(2))


def scores_of(policy: DownsamplingPolicy, model: nn.Module, data: Tensor, labels: Tensor, loss: str, **options: Any) -> Tensor:
    batch = Batch(torch.arange(NUM), data, labels, torch.ones(NUM))
    found = policy.scored(ScoringModel(model, Criterion(CriterionConfig(name=loss, config=options))), batch)
    assert found.shape == (NUM, 1)
    return found[:, 0]


def test_every_policy_is_tried_here() -> None:
    assert {config["strategy"] for config in STRATEGIES} | {"No"} == set(DOWNSAMPLING.builtin)


LABELS = torch.arange(NUM) % 3


def test_uncertainty_follows_its_definitions() -> None:
    model, data = linear(3)
    probabilities = model.double()(data.double()).softmax(1).detach().numpy()
    model.float()
    ranked = np.sort(probabilities, axis=1)
    expected = {
        "LeastConfidence": 1 - ranked[:, -1],
        "Entropy": -(probabilities * np.log(probabilities)).sum(1),
        "Margin": 1 - (ranked[:, -1] - ranked[:, -2]),
    }
    for metric, values in expected.items():
        policy = policy_of(strategy="Uncertainty", score_metric=metric)
        found = scores_of(policy, model, data, LABELS, "CrossEntropyLoss", label_smoothing=0.3, weight=[1.0, 2.0, 3.0])
        assert np.allclose(found.numpy(), values, atol=1e-5)
        as_log = nn.Sequential(model, nn.LogSoftmax(1))
        assert np.allclose(scores_of(policy, as_log, data, LABELS, "NLLLoss").numpy(), values, atol=1e-5)


def test_with_one_logit_all_uncertainties_choose_those_nearest_to_one_half() -> None:
    model, data = linear(1)
    labels = (torch.arange(NUM) % 2).float().unsqueeze(1)
    nearest = set(model(data).detach().abs().flatten().argsort()[:5].tolist())
    for config in UNCERTAINTIES:
        policy = policy_of(**config)
        scores = scores_of(policy, model, data, labels, "BCEWithLogitsLoss")
        chosen = policy.select(Candidates(scores.unsqueeze(1).numpy(), np.zeros(NUM, np.int64), np.arange(NUM)), 5, Draw(0, 0, 0))
        assert set(chosen.positions.tolist()) == nearest
        as_probability = nn.Sequential(model, nn.Sigmoid())
        assert torch.allclose(scores_of(policy, as_probability, data, labels, "BCELoss"), scores, atol=1e-6)


def test_certain_probabilities_are_finite_scores() -> None:
    data = torch.tensor([[1e5, -1e5], [-1e5, 1e5], [0, 0]] * 4)
    for config in UNCERTAINTIES:
        found = scores_of(policy_of(**config), nn.Linear(2, 2).eval(), data * 1e5, LABELS % 2, "CrossEntropyLoss")
        assert found.isfinite().all()
        assert (found >= 0).all()


@pytest.mark.parametrize(
    ("loss", "outputs", "labels"),
    [
        ("CrossEntropyLoss", 3, LABELS),
        ("CrossEntropyLoss", 3, torch.rand(NUM, 3, generator=torch.Generator().manual_seed(3)).softmax(1)),
        ("BCEWithLogitsLoss", 1, (torch.arange(NUM) % 2).float().unsqueeze(1)),
    ],
)
def test_el2n_is_the_distance_of_probabilities_from_the_label(loss: str, outputs: int, labels: Tensor) -> None:
    model, data = linear(outputs)
    logits = model(data).detach().double()
    if outputs == 1:
        errors = torch.cat((labels - logits.sigmoid(), logits.sigmoid() - labels), 1)
    else:
        errors = logits.softmax(1) - (labels if labels.is_floating_point() else nn.functional.one_hot(labels, 3))
    found = scores_of(policy_of(strategy="EL2N"), model, data, labels, loss)
    assert torch.allclose(found.double(), errors.norm(dim=1), atol=1e-6)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("strategy", ["Loss", "GradNorm", "EL2N", "GraNd", "RHOLoss", "GradMatch"])
def test_a_label_that_is_not_a_class_is_named_where_a_score_meets_it_first(tmp_path: Path, strategy: str, first: bool) -> None:
    pipeline = pipeline_of({"strategy": strategy, "ratio": 50}, first=first)
    pipeline["model"]["config"]["num_classes"] = 9
    with pytest.raises(DataError, match=r"sample \d*9 of .*: the label is 9, and the model has 9 classes \(0 to 8\)"):
        train_in_memory(pipeline, MemoryData(100), tmp_path)


@pytest.mark.parametrize("ignored", [-100, 0, 255])
def test_el2n_gives_ignored_labels_0_for_any_number_of_them(ignored: int) -> None:
    model, data = linear(3)
    labels = (1 + torch.arange(NUM) % 2).where(torch.arange(NUM) % 4 > 0, ignored)
    found = scores_of(policy_of(strategy="EL2N"), model, data, labels, "CrossEntropyLoss", ignore_index=ignored)
    errors = (model(data).detach().softmax(1) - nn.functional.one_hot(labels.clamp(0, 2), 3)).norm(dim=1)
    assert torch.allclose(found, errors.where(labels != ignored, 0.0), atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "options"), [("CrossEntropyLoss", {"label_smoothing": 0.1, "ignore_index": 2}), ("MSELoss", {})]
)
def test_gradients_by_the_logits_and_by_the_parameters(loss: str, options: dict[str, Any]) -> None:
    model, data = linear(3)
    labels = LABELS if loss == "CrossEntropyLoss" else torch.rand(NUM, 3, generator=torch.Generator().manual_seed(3))
    module = getattr(nn, loss)(**options, reduction="none")
    by_logits, by_parameters = [], []
    for i in range(NUM):
        logits = model.double()(data[i : i + 1].double())
        label = labels[i : i + 1]
        value = module(logits, label.double() if label.is_floating_point() else label).sum()
        gradients = torch.autograd.grad(value, [logits, *model.parameters()])
        by_logits.append(gradients[0].norm())
        by_parameters.append(torch.cat([gradient.flatten() for gradient in gradients[1:]]).norm())
    model.float()
    expected = {
        "GradNorm": (torch.stack(by_logits), {}),
        "GraNd": (torch.stack(by_parameters), {"parameters": "All"}),
    }
    for strategy, (values, config) in expected.items():
        found = scores_of(policy_of(strategy=strategy, **config), model, data, labels, loss, **options)
        assert torch.allclose(found.double(), values, atol=1e-5)
    last = scores_of(policy_of(strategy="GraNd", parameters="LastLayer"), model, data, labels, loss, **options)
    assert torch.allclose(last.double(), expected["GraNd"][0], atol=1e-5)


def rs2_choices(num: int, size: int, number: int, **config: Any) -> list[list[int]]:
    policy = policy_of(strategy="RS2", sample_then_batch=True, **config)
    nothing = Candidates(np.zeros((num, 0), np.float32), np.full(num, NO_CLASS), np.arange(num))
    return [policy.select(nothing, size, Draw(1, 0, i)).positions.tolist() for i in range(number)]


@pytest.mark.parametrize(("num", "size"), [(10, 5), (10, 3), (10, 7), (10, 9), (7, 1), (101, 40)])
def test_rs2_without_replacement_shows_each_sample_once_before_any_twice(num: int, size: int) -> None:
    choices = rs2_choices(num, size, 3 * num)
    seen = np.zeros(num, np.int64)
    for choice in choices:
        assert len(set(choice)) == size
        assert choice == sorted(choice)
        seen[choice] += 1
        assert seen.max() - seen.min() <= 1
    assert seen.tolist() == [3 * size] * num
    policy = policy_of(strategy="RS2", sample_then_batch=True)
    nothing = Candidates(np.zeros((num, 0), np.float32), np.full(num, NO_CLASS), np.arange(num))
    assert policy.select(nothing, size, Draw(1, 0, 2 * num)).positions.tolist() == choices[2 * num]  # also in a new process
    assert rs2_choices(num, size, 3 * num) == choices
    assert len({tuple(choice) for choice in choices}) > min(3, num - size)


def test_rs2_resumes_after_thousands_of_selections_as_if_it_had_made_them() -> None:
    nothing = Candidates(np.zeros((109, 0), np.float32), np.full(109, NO_CLASS), np.arange(109))
    policy = policy_of(strategy="RS2", sample_then_batch=True)
    assert policy.select(nothing, 100, Draw(1, 0, 2999)).positions.tolist() == rs2_choices(109, 100, 3000)[2999]


def test_rs2_with_replacement_draws_each_selection_by_itself() -> None:
    choices = rs2_choices(20, 10, 400, with_replacement=True)
    counts = np.bincount(np.concatenate(choices), minlength=20)
    assert abs(counts - 200).max() < 4.5 * np.sqrt(400 * 0.25)
    assert counts[choices[0]].tolist() != counts[choices[1]].tolist()
    assert any(set(one) & set(other) for one, other in pairwise(choices))


def pipeline_of(config: dict[str, Any], *, first: bool, **training: Any) -> dict[str, Any]:
    section = {"name": "CoresetStrategy", "downsampling_config": {"ratio": 30, "sample_then_batch": first, **config}}
    options = {"drop_last_batch": False, "epochs_per_trigger": 2, "shuffle": True, **training}
    return small_pipeline(options, selection_strategy=section)


def runs(config: dict[str, Any], first: bool) -> bool:
    return first or config != {"strategy": "RS2"}


STOPPED_ELSEWHERE = ("Loss", "Forgetting", "RHOLoss", "KcenterGreedy", "Craig", "GradMatch", "Submodular")
"""Tests of the gate that have the name of the policy stop it at several moments; `test_sample_then_batch` stops Loss."""


@pytest.mark.parametrize(
    ("config", "first"),
    [
        pytest.param(
            config,
            first,
            id=f"{'-'.join(map(str, config.values()))}-{'sample-then-batch' if first else 'batch-then-sample'}",
            marks=[] if number % 2 == first and config["strategy"] not in STOPPED_ELSEWHERE else pytest.mark.slow,
        )
        for number, config in enumerate(STRATEGIES)
        for first in (False, True)
    ],
)
def test_every_policy_resumes_after_a_stop_as_if_there_had_been_none(tmp_path: Path, config: dict[str, Any], first: bool) -> None:
    pipeline = pipeline_of(config, first=first, checkpointing={"activated": True, "interval": 1})
    if not runs(config, first):
        assert [problem.path for problem in check(pipeline, RecordedReport())] == ["selection_strategy.downsampling_config"]
        return
    whole = train_in_memory(pipeline, MemoryData(50), tmp_path / "whole")
    assert whole.result["num_samples"] == 2 * 15
    room = TrainingRoom(tmp_path / "stopped", limits={"report_interval_s": 0})
    with pytest.raises(CancelledError):
        room.train(pipeline, MemoryData(50), RecordedReport(stop_after=3 if config["strategy"] == "RS2" or not first else 11))
    again = room.train(pipeline, MemoryData(50))
    assert again.trained.weights_sha256 == whole.trained.weights_sha256
    assert again.result["downsampling"]["class_shares"] == whole.result["downsampling"]["class_shares"]
    assert whole.result["downsampling"]["weight_quantiles"].keys() == ({"0", "0.05", "0.25", "0.5", "0.75", "0.95", "1"} if policy_of(
        **config, sample_then_batch=first).weighs else set())  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True], ids=["batch-then-sample", "sample-then-batch"])
@pytest.mark.parametrize("config", STRATEGIES, ids=lambda config: "-".join(map(str, config.values())))
def test_every_policy_works_in_mixed_precision_and_with_several_workers(
    tmp_path: Path, config: dict[str, Any], first: bool
) -> None:
    if not runs(config, first):
        return
    results = []
    for workers in (1, 2):
        pipeline = pipeline_of(config, first=first, amp=True, amp_dtype="bfloat16", dataloader_workers=workers)
        results.append(train_in_memory(pipeline, MemoryData(50), tmp_path / str(workers)))
    one, two = results
    assert one.trained.weights_sha256 == two.trained.weights_sha256
    assert one.result["num_samples"] == two.result["num_samples"] == 2 * 15
    assert all(value.isfinite().all() for value in one.weights.values())
    full = train_in_memory(pipeline_of(config, first=first), MemoryData(50), tmp_path / "full")
    assert all(torch.allclose(one.weights[name], value, atol=0.2) for name, value in full.weights.items())


@pytest.mark.gpu
@pytest.mark.parametrize("amp_dtype", [None, "float16", "bfloat16"])
@pytest.mark.parametrize("first", [False, True], ids=["batch-then-sample", "sample-then-batch"])
@pytest.mark.parametrize("config", STRATEGIES, ids=lambda config: "-".join(map(str, config.values())))
def test_every_policy_works_on_a_gpu(tmp_path: Path, config: dict[str, Any], first: bool, amp_dtype: str | None) -> None:
    if not runs(config, first):
        return
    options: dict[str, Any] = {"device": "cuda:0", "amp": amp_dtype is not None, "amp_dtype": amp_dtype}
    if amp_dtype == "float16":
        options["grad_scaler_config"] = {"init_scale": 128.0}  # a larger one would skip the first steps
    on_gpu, again = (
        train_in_memory(
            pipeline_of(config, first=first, **options, dataloader_workers=workers), MemoryData(50), tmp_path / f"{workers}"
        )
        for workers in (1, 2)
    )
    assert on_gpu.result["device"] == "cuda:0"
    assert on_gpu.result["num_samples"] == again.result["num_samples"] == 2 * 15
    assert all(value.isfinite().all() for value in on_gpu.weights.values())
    on_cpu = train_in_memory(pipeline_of(config, first=first), MemoryData(50), tmp_path / "cpu")
    for name, value in on_cpu.weights.items():
        torch.testing.assert_close(on_gpu.weights[name].cpu(), value, rtol=0, atol=0.2)


@pytest.mark.parametrize(
    ("kind", "strategy", "first"),
    [
        pytest.param(
            kind,
            strategy,
            first,
            id=f"{kind}-{strategy}-{'sample-then-batch' if first else 'batch-then-sample'}",
            marks=[] if (number + (kind == "regression") + first) % 2 else pytest.mark.slow,
        )
        for kind in ("one logit", "regression")
        for number, strategy in enumerate(("Loss", "GradNorm", "Uncertainty", "EL2N", "GraNd", "RS2"))
        for first in (False, True)
    ],
)
def test_one_logit_and_regression_train_where_it_makes_sense(tmp_path: Path, kind: str, strategy: str, first: bool) -> None:
    config = {"strategy": strategy, **({"score_metric": "Entropy"} if strategy == "Uncertainty" else {})}
    loss = {"name": "BCEWithLogitsLoss" if kind == "one logit" else "MSELoss"}
    pipeline = pipeline_of(
        {**config, **({"with_replacement": True} if strategy == "RS2" else {})}, first=first, optimization_criterion=loss
    )
    pipeline["model"]["config"]["num_classes"] = 1
    pipeline["data"]["label_transformer_function"] = (
        "def label_transformer_function(label):\n    return (label % 2).float().unsqueeze(-1)"
    )
    if kind == "regression" and strategy in ("Uncertainty", "EL2N"):
        with pytest.raises(
            ConfigError, match=f"{strategy} scores probabilities of classes, which MSELoss has none of: choose Loss"
        ):
            train_in_memory(pipeline, MemoryData(50), tmp_path)
        problems = check(pipeline, RecordedReport())
        assert [problem.path for problem in problems] == ["selection_strategy.downsampling_config.strategy"]
        return
    found = train_in_memory(pipeline, MemoryData(50), tmp_path)
    assert found.result["num_samples"] == 30
    shares = found.result["downsampling"]["class_shares"]["after"]
    assert bool(shares) == (kind == "one logit")


NO_LINEAR = """
import torch
from modyn.config.base import Section


class Config(Section):
    width: int = 8


class Convolution(torch.nn.Module):
    Config = Config

    def __init__(self, config):
        super().__init__()
        self.output = torch.nn.Conv1d(1, 10, 6)

    def forward(self, x):
        return self.output(x.unsqueeze(1)).squeeze(2)
"""


def test_a_model_whose_last_layer_cannot_be_found_is_refused_by_the_check(tmp_path: Path) -> None:
    from modyn.models import MODELS
    from tests.support.plugins import installed

    with installed(tmp_path / "plugin", MODELS, "Convolution", NO_LINEAR, "Convolution"):
        for config, refused in (({"strategy": "GradNorm"}, True), ({"strategy": "Loss"}, False), ({"strategy": "GraNd"}, False)):
            pipeline = pipeline_of(config, first=False)
            pipeline["model"] = {"id": "Convolution"}
            problems = check(pipeline, RecordedReport())
            assert [problem.path for problem in problems] == ["selection_strategy.downsampling_config.strategy"] * refused
            assert not refused or "needs the last layer of the model, which has no nn.Linear: let it end" in problems[0].message
            if refused:
                with pytest.raises(ConfigError, match="needs the last layer of the model"):
                    train_in_memory(pipeline, MemoryData(50), tmp_path)
            else:
                assert train_in_memory(pipeline, MemoryData(50), tmp_path).result["num_samples"] == 30


def test_scores_that_a_model_or_a_loss_cannot_give_are_refused_by_the_check(tmp_path: Path) -> None:
    from modyn.models import MODELS
    from tests.support.plugins import installed

    with installed(tmp_path / "plugin", MODELS, "Convolution", NO_LINEAR, "Convolution"):
        pipeline = small_pipeline(model={"id": "Convolution"})
        assert check(pipeline, RecordedReport(), ["loss", "loss_decrease"]) == []
        (problem,) = check(pipeline, RecordedReport(), ["loss", "gradient_32"])
        assert problem.path == "model.id"
        assert (
            "needs the gradients of samples by the weights of the last layer, but Convolution has no nn.Linear" in problem.message
        )
    for loss, told in (
        ("CTCLoss", "is called with log_probs, targets, input_lengths"),
        ("AdaptiveLogSoftmaxWithLoss", "no loss per"),
    ):
        options = {"in_features": 8, "n_classes": 10, "cutoffs": [4]} if told.startswith("no") else {}
        pipeline = small_pipeline({"optimization_criterion": {"name": loss, "config": options}})
        assert bool(check(pipeline, RecordedReport())) == (loss == "CTCLoss")
        (problem,) = check(pipeline, RecordedReport(), ["loss_decrease"])
        assert problem.path == "training.optimization_criterion.name"
        assert told in problem.message


def test_balance_needs_classes() -> None:
    pipeline = pipeline_of({"strategy": "GraNd", "balance": True}, first=True, optimization_criterion={"name": "MSELoss"})
    (problem,) = check(pipeline, RecordedReport())
    assert "GraNd balances classes, which MSELoss has none of" in problem.message


ONE_HOT = "def label_transformer_function(label):\n    return torch.nn.functional.one_hot(label, 10).float()"


@pytest.mark.parametrize("first", [False, True], ids=["batch-then-sample", "sample-then-batch"])
@pytest.mark.parametrize("config", [{"strategy": "GraNd"}, {"strategy": "Craig"}, {"strategy": "KcenterGreedy"}])
def test_balance_over_labels_that_are_not_a_class_is_refused(tmp_path: Path, config: dict[str, Any], first: bool) -> None:
    pipeline = pipeline_of(
        {**config, "balance": True}, first=first, optimization_criterion={"name": "BCEWithLogitsLoss"}, shuffle=False
    )
    pipeline["data"]["label_transformer_function"] = ONE_HOT
    message = (
        f"{config['strategy']} balances classes, which BCEWithLogitsLoss over 10 logits has none of: set balance: false, choose "
    )
    (problem,) = check(pipeline, RecordedReport())
    assert message in problem.message
    with pytest.raises(ConfigError, match=message):
        train_in_memory(pipeline, MemoryData(50), tmp_path)
    pipeline["selection_strategy"]["downsampling_config"]["balance"] = False
    assert train_in_memory(pipeline, MemoryData(50), tmp_path).result["num_samples"] == 30
    # Soft labels are classes where the loss takes one of them.
    pipeline["selection_strategy"]["downsampling_config"]["balance"] = True
    pipeline["training"]["optimization_criterion"] = {"name": "CrossEntropyLoss"}
    shares = train_in_memory(pipeline, MemoryData(50), tmp_path / "soft").result["downsampling"]["class_shares"]
    assert shares["before"].keys() == shares["after"].keys() == set(map(str, range(10)))


def test_balance_ends_at_the_first_batch_where_the_model_does_not_say_how_many_logits_it_has() -> None:
    """Its last nn.Linear may be followed by others. GradMatch balances by default: there is no `balance: true` to remove."""
    model, data = linear(3)
    assert num_logits(model) is None
    message = r"balance: GradMatch is to balance classes, but .* of shape \[12, 3\] give no sample one class: set balance: false"
    with pytest.raises(ConfigError, match=message):
        scores_of(policy_of(strategy="GradMatch"), model, data, torch.ones(NUM, 3), "BCEWithLogitsLoss")


def test_the_memory_of_the_candidates_of_a_batch_is_bounded() -> None:
    config = {"strategy": "Loss", "ratio": 1, "ratio_max": 1000}
    (problem,) = check(pipeline_of(config, first=False, batch_size=512), RecordedReport())
    assert problem.path == "selection_strategy.downsampling_config.strategy"
    assert (
        "chooses each batch of 512 out of 512000 samples, since ratio is 1 of 1000; they are in memory together"
        in problem.message
    )
    assert check(pipeline_of(config, first=False, batch_size=256), RecordedReport()) == []
    assert check(pipeline_of(config, first=True, batch_size=512), RecordedReport()) == []
    everything = {"strategy": "No", "ratio": 100, "ratio_max": 100}
    assert check(pipeline_of(everything, first=False, batch_size=100_000), RecordedReport()) == []


@pytest.mark.parametrize(
    ("batch_size", "ratio", "whole", "chosen"), [(4, 90, 100, 90), (1, 70, 100, 70), (64, 999, 1000, 100), (8, 3, 100, 3)]
)
def test_any_ratio_is_kept_over_an_epoch(tmp_path: Path, batch_size: int, ratio: int, whole: int, chosen: int) -> None:
    pipeline = pipeline_of(
        {"strategy": "Loss", "ratio": ratio, "ratio_max": whole}, first=False, batch_size=batch_size, epochs_per_trigger=1
    )
    assert check(pipeline, RecordedReport()) == []
    found = train_in_memory(pipeline, MemoryData(100), tmp_path).result
    assert found["num_samples"] == found["downsampling"]["num_chosen"] == chosen
    assert found["downsampling"]["num_candidates"] == 100


def test_small_classes_do_not_vanish(tmp_path: Path) -> None:
    """Labels are key % 10; nine in ten samples become class 0."""
    pipeline = pipeline_of({"strategy": "EL2N", "balance": True, "ratio": 20}, first=True)
    pipeline["data"]["label_transformer_function"] = (
        "def label_transformer_function(label):\n    return torch.where(label == 9, 1, 0)"
    )
    found = train_in_memory(pipeline, MemoryData(50), tmp_path)
    assert found.result["downsampling"]["class_shares"] == {"before": {"0": 0.9, "1": 0.1}, "after": {"0": 0.9, "1": 0.1}}
