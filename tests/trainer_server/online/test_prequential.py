"""How a training of steps differs from others, and the test of its new samples, with tensors alone."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from modyn.config.online import LearningRateRule, OnlineConfig
from modyn.dataset.batch import Batch
from modyn.errors import ConfigError
from modyn.records import RunId
from modyn.testing.stack import tiny_training
from modyn.trainer_server.client import TrainingRequest
from modyn.trainer_server.fitting import stream_rates
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.online.new_samples import NewSamples
from modyn.trainer_server.online.prequential import Prequential
from modyn.trainer_server.request.config import CriterionConfig, TrainingConfig
from modyn.trainer_server.request.step_config import config_of_steps, new_of_steps, section_of_steps
from modyn.trainer_server.result import PrequentialResult


@given(num_new=st.integers(0, 60), step=st.integers(1, 12), drawn=st.integers(0, 9))
def test_new_samples_are_found_by_their_place(num_new: int, step: int, drawn: int) -> None:
    keys: list[int] = []
    for first in range(0, num_new, step):
        keys += [*range(first, min(first + step, num_new)), *[-1] * drawn]
    online = OnlineConfig(trigger={}, step_samples=step, history_samples=drawn)
    assert new_of_steps(np.array(keys, np.int64), online).tolist() == list(range(num_new))


def test_a_training_of_steps_makes_one_pass_in_order() -> None:
    options = tiny_training(epochs_per_trigger=4, shuffle=True, lr_scheduler={"name": "StepLR", "config": {"step_size": 1}})
    config = config_of_steps(TrainingConfig(**options), OnlineConfig(trigger={}, step_samples=3, history_samples=2))
    assert (config.batch_size, config.epochs_per_trigger, config.shuffle, config.lr_scheduler) == (5, 1, False, None)
    assert config.keep_optimizer_state
    assert not config.drop_last_batch


def test_steps_without_a_section_are_refused() -> None:
    with pytest.raises(ConfigError, match="no section `online`"):
        section_of_steps(TrainingRequest(RunId("r"), 1, {}, online=True))


def show(criterion: str, hook: Prequential, keys: list[int], output: torch.Tensor, labels: torch.Tensor) -> None:
    numbers = torch.tensor(keys)
    batch = Batch(numbers, output, labels, torch.ones(len(keys)))
    training: Any = SimpleNamespace(components=SimpleNamespace(criterion=Criterion(CriterionConfig(name=criterion))))
    hook.on_output(training, batch, output)


def test_each_new_sample_counts_once_and_drawn_ones_never() -> None:
    hook = Prequential(NewSamples(np.array([7, 5, 6]), np.arange(3)), 0)
    output, labels = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]]), torch.tensor([0, 0, 1])
    show("CrossEntropyLoss", hook, [5, 6, 1], output, labels)
    show("CrossEntropyLoss", hook, [7, 5, 6], output, labels)
    show("CrossEntropyLoss", hook, [5, 6, 1], output, labels)
    each = nn.functional.cross_entropy(output, labels, reduction="none").tolist()
    found = hook.result()
    assert (found.first_step, found.num, found.errors) == (1, (2, 1), (1, 0))
    assert found.loss == pytest.approx([each[0] + each[1], each[0]])


def test_few_large_outputs_are_held_at_once() -> None:
    """Outputs with a number for each word of a vocabulary, say: those of drawn samples are among them, and all are on the device of the model."""
    hook, held = Prequential(NewSamples(np.arange(9), np.arange(9)), 0), list[weakref.ref[np.ndarray]]()
    for key in range(9):
        output = np.zeros((1, 1 << 20), np.float32)
        held.append(weakref.ref(output))
        show("CrossEntropyLoss", hook, [key], torch.from_numpy(output), torch.tensor([0]))
        del output
        assert sum(output() is not None for output in held) <= 4
    assert hook.result().num == (1,) * 9


def test_a_last_sample_that_is_joined_to_the_batch_before_counts() -> None:
    new = NewSamples(np.arange(5), np.arange(5))
    assert [new.first_seen(np.array(keys)).tolist() for keys in ([0, 1], [2, 3, 4])] == [[0, 1], [0, 1, 2]]


def test_labels_that_are_not_classes_have_no_errors() -> None:
    hook = Prequential(NewSamples(np.array([1, 2]), np.arange(2)), 4)
    show("MSELoss", hook, [1, 2], torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]))
    assert hook.result() == PrequentialResult(5, (2,), (10.0,))


def test_a_single_logit_is_a_class() -> None:
    hook = Prequential(NewSamples(np.array([1, 2]), np.arange(2)), 0)
    show("BCEWithLogitsLoss", hook, [1, 2], torch.tensor([1.0, -3.0]), torch.tensor([0.0, 0.0]))
    assert hook.result().errors == (1,)


def test_what_was_tested_is_kept_in_checkpoints() -> None:
    output, labels = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0])
    one, other = (
        Prequential(NewSamples(np.array([1, 2, 3]), np.arange(3)), 0),
        Prequential(NewSamples(np.array([1, 2, 3]), np.arange(3)), 0),
    )
    show("CrossEntropyLoss", one, [1, 9], output, labels)
    other.load_state(one.state())
    for hook in (one, other):
        show("CrossEntropyLoss", hook, [1, 2], output, labels)
    assert one.result() == other.result()
    assert one.result().num == (1, 1)


def test_rates_continue_from_version_to_version() -> None:
    rates = []
    for before in (0, 3):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.8)
        (schedule,) = stream_rates(LearningRateRule(rule="inverse_scaling"), [optimizer], before)
        for _ in range(3):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
    assert rates == pytest.approx([0.8 / step**0.5 for step in range(1, 7)])
    assert stream_rates(LearningRateRule(), [optimizer], 9) == []


@given(
    num_new=st.integers(1, 30),
    step=st.integers(1, 7),
    drawn=st.integers(0, 4),
    lost=st.sets(st.integers(0, 99), max_size=40),
    cut=st.integers(0, 9),
)
def test_rows_are_found_with_any_left_out(num_new: int, step: int, drawn: int, lost: set[int], cut: int) -> None:
    """New samples that were deleted meanwhile, and a training that resumes from a checkpoint."""
    new = np.random.default_rng(num_new).permutation(100)[:num_new].tolist()
    history, steps = list(range(100, 100 + drawn)), list[list[int]]()
    for first in range(0, num_new, step):
        steps.append([*new[first : first + step], *history])
        history = [*history[1:], new[first]] if drawn else []
    keys = np.array([key for each in steps for key in each])
    places = new_of_steps(np.arange(len(keys)), OnlineConfig(trigger={}, step_samples=step, history_samples=drawn))
    samples, found = NewSamples(keys, places), list[int]()
    for number, each in enumerate(steps):
        kept = [key for key in each if key not in lost]
        rows = samples.first_seen(np.array(kept, np.int64))
        found += [kept[at] for at in rows.tolist()]
        assert all(kept[at] in each[:step] for at in rows.tolist())
        if number == cut:
            other = NewSamples(keys, places)
            other.load_state(samples.state())
            samples = other
    assert found == [key for key in new if key not in lost]
    whole = np.array([key for each in steps for key in each if key not in lost], np.int64)
    assert whole[NewSamples(keys, places).first_seen(whole)].tolist() == found, "several batches at once, as one by one"
