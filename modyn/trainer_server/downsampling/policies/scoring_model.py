"""Scores of a batch that policies compute with the current model. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from modyn.dataset.batch import Batch, map_tensors
from modyn.errors import ConfigError, UserCodeError
from modyn.models.calls import Scores, embedding, forward, gpus_of, plain_output, score_in_mode, unchanged
from modyn.trainer_server.downsampling.policies.sampling import NO_CLASS

_GRADIENT_BYTES: Final = 2**28
"""Limit in bytes on the gradients of single samples that are in memory at once."""
_DRAWS: Final = 4
"""Number of random draws, such as dropout masks, over which a pass averages its scores. A single draw would make weights uneven by chance."""


class SampleCriterion(Protocol):
    """A loss that can be computed for each sample: see `modyn.trainer_server.loop.criterion`."""

    def per_sample(self, output: Any, labels: Tensor) -> Tensor:
        """Return the loss of each sample, (n,)."""

    def counts(self, labels: Tensor) -> Tensor:
        """See `Criterion.counts`."""

    def classes(self, labels: Tensor) -> Tensor | None:
        """Return the class of each sample, int64 (n,), or None if samples have no classes."""

    def probabilities(self, output: Tensor) -> Tensor:
        """Return the class probabilities, (n, c). Raises ConfigError."""


class ScoringModel:
    """The model in training and its loss, for passes without gradients in the precision of the training. The model is in evaluation mode unless
    `scoring` changes the mode. Each call is one pass. A pass leaves parameters, gradients, statistics of BatchNorm and random generators unchanged.

    All results are float32, in the order of the batch. A sample's result does not depend on the other samples of the batch.
    """

    def __init__(self, model: nn.Module, criterion: SampleCriterion, amp_dtype: torch.dtype | None = None) -> None:
        """Args: amp_dtype: data type of mixed precision, or None without mixed precision."""
        self.network = model
        """The model that computes the scores."""
        self._criterion = criterion
        self._amp_dtype = amp_dtype
        self._gpus: list[int] | None = None
        """GPUs of the model inside `scoring`; None outside."""
        self._draws = False
        """Whether modules may draw random numbers inside `scoring`, as dropout does."""
        self._draw = 0
        """Number of the current draw."""
        self._varies: bool | None = None
        """Whether two draws differ; None before the first test."""

    @contextmanager
    def scoring(self, *, as_trained: bool = False) -> Iterator[None]:
        """Switch the model to scoring inside the block, and restore the model afterwards. One block around several calls saves time.

        Args: as_trained: put modules without buffers, such as dropout, into training mode. BatchNorm has buffers, and stays in evaluation mode.
        """
        drawing = [module for module in self.network.modules() if module.training and not module._buffers] if as_trained else []
        with torch.no_grad(), unchanged(self.network):
            for module in drawing:
                module.training = True
            self._gpus, self._draws, self._varies = gpus_of(self.network), as_trained, None if as_trained else False
            try:
                yield
            finally:
                self._gpus, self._draws = None, False

    def mean_over_draws(self, score: Callable[[], Tensor]) -> Tensor:
        """Return the mean of `score()` over `_DRAWS` draws of the model, or one score if the model draws no random numbers. Call inside `scoring`.

        The first call tests whether the model draws random numbers; the test waits for the device.
        """
        total = score()
        for number in range(1, 1 if self._varies is False else _DRAWS):
            self._draw = number
            another = score()
            if self._varies is None:
                self._varies = not torch.allclose(total, another, equal_nan=True)
            if not self._varies:
                break
            total = total + another
        self._draw = 0
        return total / _DRAWS if self._varies else total

    def _unchanged(self) -> AbstractContextManager[None]:
        """Return the context manager of a call. Inside `scoring`, only PyTorch's generators are restored. The model's draws then do not depend on
        earlier calls, so that a resumed pass computes the same scores."""
        if self._gpus is None:
            return unchanged(self.network)
        return _drawing_apart(self._gpus, self._draw) if self._draws else torch.random.fork_rng(self._gpus)

    def outputs(self, batch: Batch) -> Any:
        """Return the model's output."""
        with torch.no_grad(), self._unchanged(), self._precision(batch):
            return forward(self.network, batch.data)

    def losses(self, batch: Batch) -> Tensor:
        """Return the loss of each sample, (n,). The loss of a batch is computed from the sum of these losses."""
        output = self.outputs(batch)
        with torch.no_grad(), self._precision(batch):
            return self._criterion.per_sample(output, batch.labels).float()

    def probabilities(self, batch: Batch) -> Tensor:
        """Return the class probabilities, (n, c); a single logit gives two classes, (n, 2). Raises ConfigError: the loss has no probabilities."""
        return self._criterion.probabilities(self.outputs(batch))

    def probability_errors(self, batch: Batch) -> Tensor:
        """Return the class probabilities minus the target probabilities of the label, (n, c). Raises ConfigError: the loss has no probabilities."""
        probabilities, labels = self.probabilities(batch), batch.labels
        if not labels.is_floating_point():
            # An ignored label may be any number; `DownsamplingPolicy.scored` sets the score of its sample to 0.
            classes = labels.where(self.counts(batch) > 0, 0)
            return probabilities - torch.nn.functional.one_hot(classes, probabilities.shape[1])
        return probabilities - (
            labels if labels.shape == probabilities.shape else torch.stack((1 - labels.reshape(-1), labels.reshape(-1)), 1)
        )

    def last_layer(self, batch: Batch) -> Scores:
        """Return losses, logits, embeddings, and the derivatives of the losses with respect to the logits. Raises ConfigError: there is no last
        layer."""
        with self._unchanged(), self._precision(batch):
            return score_in_mode(self.network, batch.data, batch.labels, self._criterion.per_sample)

    def embeddings(self, batch: Batch) -> Tensor:
        """Return the embeddings, (n, d): the result of the model's `embedding(data)` if this method exists, otherwise the input of the last layer.

        Raises: ConfigError: the model has neither `embedding` nor a last layer. UserCodeError: `embedding(data)` does not return one row a sample.
        """
        with torch.no_grad(), self._unchanged(), self._precision(batch):
            found = embedding(self.network, batch.data)
        if not isinstance(found, Tensor) or found.shape[:1] != (len(batch),):
            raise UserCodeError(f"`embedding` of {type(self.network).__name__} must return one tensor with a row a sample")
        return found.float().flatten(1) if found.dim() > 1 else found.float().unsqueeze(1)

    def gradient_norms(self, batch: Batch) -> Tensor:
        """Return the norm of the gradient of each sample's loss with respect to all trained parameters, (n,), computed by torch.func.

        Raises: ConfigError: the model cannot be differentiated for each sample, for example because of an nn.GRU.
        """
        trained = {name: value.detach() for name, value in self.network.named_parameters() if value.requires_grad}
        fixed = {name: value.detach() for name, value in self.network.named_parameters() if not value.requires_grad}
        fixed |= {name: value.detach() for name, value in self.network.named_buffers()}

        def loss(parameters: dict[str, Tensor], data: Any, label: Tensor) -> Tensor:
            one = map_tensors(data, lambda tensor: tensor.unsqueeze(0))
            output = plain_output(torch.func.functional_call(self.network, {**parameters, **fixed}, *_arguments(one)))
            return self._criterion.per_sample(output, label.unsqueeze(0)).sum()

        def norm(data: Any, label: Tensor) -> Tensor:
            gradients = torch.func.grad(loss)(trained, data, label)
            return torch.stack([gradient.float().square().sum() for gradient in gradients.values()]).sum().sqrt()

        # The number of samples whose gradients, 4 bytes for each parameter, fit into _GRADIENT_BYTES.
        at_once = max(1, _GRADIENT_BYTES // max(1, 4 * sum(value.numel() for value in trained.values())))
        norms: Callable[..., Tensor] = torch.func.vmap(norm, chunk_size=at_once)
        try:
            with self._unchanged(), self._precision(batch), _plain_attention():
                return norms(batch.data, batch.labels).detach()
        except (RuntimeError, ValueError) as error:
            self.losses(batch)  # If the cause is not torch.func, this call raises the original error.
            raise ConfigError(
                f"model.id: the gradients of {type(self.network).__name__} by all parameters cannot be taken sample by sample: set parameters: "
                f"LastLayer, or choose GradNorm. PyTorch: {error}"
            ) from error

    def has_classes(self, batch: Batch) -> bool:
        """Return whether each sample has a class as its label. The loss may ignore some labels."""
        return self._criterion.classes(batch.labels) is not None

    def classes(self, batch: Batch) -> Tensor:
        """Return the class of each sample's label, int64 (n,); NO_CLASS if labels are not classes, or the label is ignored."""
        return self.classes_and_counts(batch)[0]

    def classes_and_counts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the results of `classes` and `counts`."""
        found, counts = self._criterion.classes(batch.labels), self.counts(batch)
        if found is None:
            return batch.labels.new_full((len(batch),), NO_CLASS, dtype=torch.int64), counts
        return found.where(counts > 0, NO_CLASS), counts

    def counts(self, batch: Batch) -> Tensor:
        """Return `Criterion.counts` of the labels, float32 (n,); 0 for an ignored label."""
        return self._criterion.counts(batch.labels)

    def _precision(self, batch: Batch) -> Any:
        return nullcontext() if self._amp_dtype is None else torch.autocast(batch.labels.device.type, self._amp_dtype)


@contextmanager
def _drawing_apart(gpus: list[int], number: int) -> Iterator[None]:
    """Use separate random numbers inside the block, because choices must not depend on the draws of a step. The numbers depend only on the state of
    the generators and on `number`.
    """
    with torch.random.fork_rng(gpus):
        seed = int(torch.randint(2**62, ())) + number
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(seed)
        yield


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Use unfused attention inside the block, because torch.func cannot map the fused operations of evaluation mode with a padding mask."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _arguments(data: Any) -> tuple[Any, Any]:
    """Return the positional and the named inputs for torch.func.functional_call."""
    if isinstance(data, dict):
        return (), data
    return (data if isinstance(data, tuple) else (data,)), {}
