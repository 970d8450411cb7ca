"""Compute the scores of trained samples that the selection requests. A training computes the scores on the device, and sends them to the selector
when it ends. Imports torch: for workers only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from modyn.dataset.batch import Batch
from modyn.errors import ConfigError, CorruptStateError
from modyn.models.calls import Scores, has_last_layer
from modyn.records import DOWNSAMPLING_SCORE, DOWNSAMPLING_WEIGHT, FeedbackHeader, FeedbackRows, Float32Array, Int64Array
from modyn.rpc.logs import get_logger
from modyn.rpc.retry import Retrier
from modyn.trainer_server.disk.files import feedback_path
from modyn.trainer_server.disk.row_log import RowLog, Rows
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.loop.loop import Hook, Training
from modyn.trainer_server.request.config import CriterionConfig
from modyn.trainer_server.result import FeedbackResult
from modyn.trainer_server.scoring.downsampling_record import DownsamplingRecord

LOSS: Final = "loss"
LOSS_DECREASE: Final = "loss_decrease"
CHOSEN_WIDTHS: Final = {DOWNSAMPLING_SCORE: 1, DOWNSAMPLING_WEIGHT: 1}
"""Scores that are kept in addition to the requested scores if downsampling chooses the samples."""
_GRADIENT: Final = re.compile(r"gradient_([1-9][0-9]{0,3})")
_PATH: Final = "selection_strategy"
_ROWS_PER_WRITE: Final = 65_536


@dataclass(slots=True)
class _Scored:
    """The scores of a batch. losses: (n,), on the device. mean: mean of `losses`, a scalar. decrease: decrease of `mean` by the step; None if the
    decrease is not known yet.
    """

    keys: Tensor
    epoch: int
    losses: Tensor
    mean: Tensor
    gradients: Tensor | None
    chosen_by: Tensor | None = None
    """The scores of downsampling, (n,)."""
    weights: Tensor | None = None
    decrease: Tensor | None = None


class SampleScores(Hook):
    """Keeps scores of each sample that is trained on. `loss`: loss of the sample before the step. `loss_decrease`: mean loss of the sample's batch
    minus mean loss of the next batch. `gradient_N`, in the last epoch: gradient of the sample's loss with respect to the last layer, projected to N
    numbers. If downsampling chose the sample, its downsampling score and its weight are kept too.

    Scores stay on the device until a thread reads about 65,000 scores at once and writes them to a file. Only the end of an epoch and checkpoints
    wait for the thread.
    """

    name = "feedback"

    def __init__(self, widths: Mapping[str, int], log: RowLog, last_epoch: int) -> None:
        """Args: widths: number of values in each score, by name. last_epoch: first epoch in which gradients are computed."""
        self.widths = dict(widths)
        self._gradient = next((name for name in widths if _GRADIENT.fullmatch(name)), None)
        self._sketch: Sketch | None = None
        self._log, self._last_epoch = log, last_epoch
        self._last: _Scored | None = None
        """The newest batch, whose decrease is still unknown."""
        self._waiting: list[_Scored] = []
        self._num_waiting = 0
        # There is only one thread, so that rows are appended in the order of batches. `_write_all` waits for the thread before the log is used.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="scores")
        self._writes: list[Future[None]] = []
        self._resumed = False

    def on_begin(self, training: Training) -> None:
        """Begin with no rows, unless a checkpoint restored rows. Raises TrainingError."""
        if not self._resumed:
            self._log.begin()

    def on_output(self, training: Training, batch: Batch, output: Any) -> None:
        """Score a batch."""
        with torch.no_grad():
            detached = output.detach() if isinstance(output, Tensor) else output
            losses = training.components.criterion.per_sample(detached, batch.labels).float()
            mean = losses.mean()
        # The decrease of a batch's loss is known only after the output of the next batch. A batch therefore waits in `_last`.
        if self._last is not None:
            self._last.decrease = self._last.mean - mean
            self._waiting.append(self._last)
            self._num_waiting += len(self._last.keys)
        self._last = _Scored(
            batch.keys, batch.epoch, losses, mean, self._gradients(training, batch), *self._chosen(training, batch)
        )
        if self._num_waiting >= _ROWS_PER_WRITE:
            self._hand_over()

    def on_epoch(self, training: Training) -> None:
        """Wait until all known scores are written, so that unwritten scores take at most the memory of one epoch. Raises TrainingError."""
        self._write_all()

    def result(self, training: Training) -> FeedbackResult:
        """Write the remaining rows, and return a description of the file. Raises TrainingError."""
        if self._last is not None:
            self._waiting.append(self._last)
            self._last = None
        self._write_all()
        self._log.commit()
        # The number of the attempt is the time in microseconds, because a result keeps integers exactly only up to 2^53.
        return FeedbackResult(self.widths, self._log.num_rows, self._log.crc32, time.time_ns() // 1000)

    def state(self) -> dict[str, Any]:
        """Return the number of valid rows in the file, and the newest batch. Waits for the device and the disk."""
        self._write_all()
        self._log.commit()
        last = self._last
        pending = (
            None
            if last is None
            else [*(last.keys, last.epoch, last.losses, last.mean, last.gradients, last.chosen_by, last.weights)]
        )
        return {**self._counted(), "pending": pending}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state`. Lost rows are logged; rows of later batches are kept."""
        try:
            self._log.resume(state["num_rows"], state["crc32"], _row_dtype(sum(self.widths.values())).itemsize)
            self._resumed = True
        except CorruptStateError as error:
            get_logger("training").warning("scores_lost", reason=error.message)
        if state["pending"] is not None:
            self._last = _Scored(*state["pending"])

    def _counted(self) -> dict[str, int]:
        return {"num_rows": self._log.num_rows, "crc32": self._log.crc32}

    def _gradients(self, training: Training, batch: Batch) -> Tensor | None:
        if self._gradient is None or batch.epoch < self._last_epoch:
            return None
        scores = training.scoring_model().last_layer(batch)
        if self._sketch is None:
            self._sketch = Sketch(self.widths[self._gradient], scores)
        return self._sketch(scores)

    def _chosen(self, training: Training, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """Return the downsampling scores of the samples of a batch, and their weights."""
        if DOWNSAMPLING_WEIGHT not in self.widths:
            return None, None
        [record] = training.hooks_of(DownsamplingRecord)
        assert record.chosen is not None
        return torch.from_numpy(record.chosen.scores_of(batch.keys.numpy())), batch.weights.detach().clone()

    def _hand_over(self) -> None:
        scored, self._waiting, self._num_waiting = self._waiting, [], 0
        if scored:
            self._writes.append(self._writer.submit(self._write, scored))

    def _write_all(self) -> None:
        self._hand_over()
        for write in self._writes:
            write.result()
        self._writes.clear()

    def _write(self, scored: Sequence[_Scored]) -> None:
        """Read scores from the device and write them. Runs in the writer's thread, one call after the other."""
        if self.widths.keys() - CHOSEN_WIDTHS.keys() == {self._gradient}:
            scored = [batch for batch in scored if batch.gradients is not None]
        if not scored:
            return
        keys = torch.cat([batch.keys for batch in scored]).numpy()
        epochs = np.repeat([batch.epoch for batch in scored], [len(batch.keys) for batch in scored])
        columns = [torch.cat([self._column(name, batch) for batch in scored]).cpu().numpy() for name in self.widths]
        self._log.append(feedback_rows(keys, epochs, np.concatenate(columns, axis=1)))

    def _column(self, name: str, batch: _Scored) -> Tensor:
        """Return one score of a batch, (n, width); NaN if the score is unknown."""
        if name == LOSS:
            return batch.losses.unsqueeze(1).to(batch.mean.device)
        if name in CHOSEN_WIDTHS:
            values = batch.chosen_by if name == DOWNSAMPLING_SCORE else batch.weights
            assert values is not None
            return values.float().unsqueeze(1).to(batch.mean.device)
        found = batch.decrease if name == LOSS_DECREASE else batch.gradients
        if found is None:
            found = batch.mean.new_full((), float("nan"))
        return found.float().expand(len(batch.keys), self.widths[name]) if found.dim() == 0 else found


class Sketch:
    """Projects gradients of the last layer's weights and bias to N numbers, without computing the gradients. A gradient is g (e, 1)ᵀ, with the
    derivative g with respect to the logits, (c,), and the embedding e, (d,). The projection is (aᵢ · g)(bᵢ · (e, 1)) / √N, with fixed random signs in
    aᵢ and bᵢ. On average, the inner product of two projections equals the inner product of the gradients.
    """

    def __init__(self, size: int, like: Scores) -> None:
        """Args: size: N. like: scores of the same model, for shapes and device."""
        (_, classes), (_, features) = like.logit_gradients.shape, like.embeddings.shape
        generator = np.random.default_rng([size, classes, features])
        self._of_logits, self._of_embeddings = (
            torch.from_numpy(generator.choice(np.array([-1.0, 1.0], np.float32), (rows, size))).to(like.logit_gradients.device)
            for rows in (classes, features + 1)
        )

    def __call__(self, scores: Scores) -> Tensor:
        """Return the projected gradients, (n, N)."""
        embeddings = scores.embeddings.float()
        left = scores.logit_gradients.float() @ self._of_logits
        right = embeddings @ self._of_embeddings[:-1] + self._of_embeddings[-1]
        projected: Tensor = left * right
        return projected / float(np.sqrt(self._of_logits.shape[1]))


def _row_dtype(width: int) -> np.dtype[Any]:
    return np.dtype([("key", "<i8"), ("epoch", "<i4"), ("scores", "<f4", (width,))])


def feedback_rows(keys: Int64Array, epochs: Int64Array, scores: Float32Array) -> Rows:
    """Pack n rows for the log. Args: keys, epochs: (n,). scores: (n, sum of the widths)."""
    rows = np.empty(len(keys), _row_dtype(scores.shape[1]))
    rows["key"], rows["epoch"], rows["scores"] = keys, epochs, scores
    return rows


def read_feedback(log: RowLog, widths: Mapping[str, int]) -> Iterator[FeedbackRows]:
    """Yield all rows of the log in chunks. Args: widths: number of values in each score, by name, in the order of a row."""
    bounds = np.cumsum([0, *widths.values()]).tolist()
    for chunk in log.chunks(_row_dtype(bounds[-1])):
        parts = zip(widths, bounds, bounds[1:], strict=False)
        scores = {name: np.ascontiguousarray(chunk["scores"][:, low:high]) for name, low, high in parts}
        yield FeedbackRows(chunk["key"].astype(np.int64), chunk["epoch"].astype(np.int32), scores)


def score_width(name: str) -> int:
    """Return the number of values in the score of this name. Raises ConfigError: the name is unknown."""
    if name in (LOSS, LOSS_DECREASE):
        return 1
    if (found := _GRADIENT.fullmatch(name)) is None:
        raise ConfigError(
            f"{_PATH}: the selection asks trainings for the score '{name}'; there are {LOSS}, {LOSS_DECREASE} and gradient_N, with N from 1 to 9999"
        )
    return int(found[1])


def check_scores(names: Iterable[str], model: nn.Module, criterion: CriterionConfig) -> None:
    """Check that the model and the loss can give the scores that the selection requests. Raises ConfigError."""
    names = list(names)
    for name in names:
        score_width(name)
    if any(_GRADIENT.fullmatch(name) for name in names) and not has_last_layer(model):
        raise ConfigError(
            f"model.id: the selection needs the gradients of samples by the weights of the last layer, but {type(model).__name__} has no nn.Linear: "
            "let it end in one, or choose a selection without gradients"
        )
    if names:
        Criterion(criterion).check_per_sample(f"what the selection asks trainings for ({', '.join(names)})")


def sample_scores(inputs: TrainingInputs, model: nn.Module) -> SampleScores:
    """Build the hook for the requested scores and for the scores of downsampling. Raises ConfigError: the model or the trainer cannot give a
    score."""
    names = inputs.trigger_set.feedback
    check_scores(names, model, inputs.config.optimization_criterion)
    widths = {name: score_width(name) for name in names}
    if inputs.downsampling is not None:
        widths |= CHOSEN_WIDTHS
    # With early stopping, any epoch may be the last epoch.
    last_epoch = 0 if inputs.config.early_stopping else inputs.plan.num_epochs - 1
    return SampleScores(widths, RowLog(feedback_path(inputs.context.folder, inputs.request)), last_epoch)


def send_scores(inputs: TrainingInputs, kept: FeedbackResult, retrier: Retrier) -> None:
    """Send the scores of a finished training to the selector. A repeated call has no effect.

    Lost rows are logged, and raise no error, because the model is more important.

    Args: kept: `feedback` of the training's result. Raises: errors of the call to the selector.
    """
    request = inputs.request
    if inputs.context.put_feedback is None:
        return
    log = RowLog(feedback_path(inputs.context.folder, request))
    try:
        log.resume(kept.num_rows, kept.crc32, _row_dtype(sum(kept.scores.values())).itemsize)
    except CorruptStateError as error:
        get_logger("training").warning("scores_lost", reason=error.message)
        return
    checksum = inputs.trigger_set.keys_checksum
    header = FeedbackHeader(request.run_id, request.trigger_id, checksum, kept.attempt, kept.num_rows, kept.scores)
    retrier.call(inputs.context.put_feedback, header, lambda: read_feedback(log, kept.scores))
